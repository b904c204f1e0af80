"""Tests of activities."""
