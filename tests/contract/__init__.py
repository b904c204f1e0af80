"""Tests of the promises about the project itself."""
