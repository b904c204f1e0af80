"""Small programs that use Sluicegate from outside."""
