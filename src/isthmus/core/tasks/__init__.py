"""Tasks: calls that are kept, so that their callers can leave and come back for the answer."""
