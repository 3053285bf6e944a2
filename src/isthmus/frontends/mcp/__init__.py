"""The MCP face: both eras, over Streamable HTTP and over standard streams."""
