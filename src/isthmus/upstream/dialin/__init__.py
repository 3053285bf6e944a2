"""Servers that connect to the hub instead of being connected to."""
