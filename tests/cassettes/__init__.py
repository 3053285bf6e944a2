"""Cassettes: recorded with real servers and clients, replayed without the servers."""
