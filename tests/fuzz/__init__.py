"""Generated requests to every route, judged by the published OpenAPI document."""
