"""Kills processes in the middle of rounds and asks the upstream's own log what really happened."""
