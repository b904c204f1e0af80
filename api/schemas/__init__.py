"""Request and response bodies, one file a resource."""
