"""Connections to servers: transports, reconnecting, lists, subscriptions. Everything a server sends is untrusted."""
