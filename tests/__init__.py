"""Tests, mirroring the source folders."""
