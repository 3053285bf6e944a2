"""What callers may call, and how many calls at once."""
