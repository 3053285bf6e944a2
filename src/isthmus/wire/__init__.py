"""Sans-I/O dialects and framers: bytes and JSON in, values out, and back. No event loop, no socket, no clock."""
