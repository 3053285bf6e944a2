"""Servers that dial in: they connect to the hub, instead of the hub to them."""
