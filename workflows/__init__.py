"""In what order: deterministic workflow code with its message types and options."""
