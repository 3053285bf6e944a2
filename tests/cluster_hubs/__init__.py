"""Several hubs as one: real processes, a real NATS server."""
