"""The finished product used from outside: the core document's two scenarios."""
