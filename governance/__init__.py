"""What is allowed: pure functions and frozen types. No clock, no randomness, no I/O."""
