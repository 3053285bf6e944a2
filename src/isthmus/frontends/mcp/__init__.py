"""The MCP frontend: both eras, over Streamable HTTP, HTTP+SSE and stdio."""
