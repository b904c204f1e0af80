"""What is done outside: effects, one file a subject, run by the Temporal worker."""
