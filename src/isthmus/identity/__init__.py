"""Identifies callers by their credentials: API keys, signed tokens, access tokens and relay tokens."""
