"""A server reached over Streamable HTTP: the link, its requests, and the stream of its changes."""
