"""Proof of the guarantees on a running gateway: real calls, judged by a server of our own behind it."""
