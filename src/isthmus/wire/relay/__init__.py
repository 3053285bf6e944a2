"""The wire formats of the relay: messages to devices, and several servers on one WebSocket."""
