"""Servers at addresses that callers name, each kept for its caller alone."""
