"""What people see: the console and the Temporal UI, in a real browser."""
