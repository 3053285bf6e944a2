"""Channels: what carries messages, and the guard all dialling passes. They do not know what they carry."""
