"""The console: sessions by cookie, a minimal page, and what protects the surface."""
