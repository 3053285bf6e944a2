"""Events of the legacy era's streams, stored so that a caller that reconnects receives those that it missed.

The SDK writes them down and reads them again (`Last-Event-ID`); `fixture` gives it this book.
"""

from __future__ import annotations

from mcp.server.streamable_http import EventCallback, EventMessage, EventStore
from mcp_types import JSONRPCMessage


class Book(EventStore):
    """All events since the start, each under its number; a fixture lives for minutes, so nothing is thrown away."""

    def __init__(self) -> None:
        self._events: list[tuple[str, JSONRPCMessage | None]] = []

    async def store_event(self, stream_id: str, message: JSONRPCMessage | None) -> str:
        """Write an event down and give its number; without a message it is the mark at a stream's beginning."""
        self._events.append((stream_id, message))
        return str(len(self._events))

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        """Send what followed on the same stream and name it, or `None` for a number that was never given."""
        if not last_event_id.isdigit() or not 0 < int(last_event_id) <= len(self._events):
            return None
        seen = int(last_event_id)
        stream = self._events[seen - 1][0]
        for number, (of_stream, message) in enumerate(self._events[seen:], seen + 1):
            if of_stream == stream and message is not None:
                await send_callback(EventMessage(message, str(number)))
        return stream
