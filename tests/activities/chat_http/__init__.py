"""Tests of chat_http."""
