"""The relay: devices that call over a WebSocket, and the door at which servers dial in."""
