"""Servers, builders and fixtures that tests share."""
