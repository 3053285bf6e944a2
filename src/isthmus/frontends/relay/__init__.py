"""The relay: devices that call over a WebSocket, and the endpoint where servers dial in."""
