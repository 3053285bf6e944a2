"""The REST frontend: the hub's tools, resources, prompts and servers as plain HTTP and JSON."""
