"""Who is calling: callers made of the credentials that they show."""
