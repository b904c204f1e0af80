"""Who asks: HTTP routes, console and command line. Translates, never decides."""
