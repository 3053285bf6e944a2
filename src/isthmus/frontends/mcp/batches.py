"""Batches over Streamable HTTP (protocol version 2025-03-26): several messages in one POST, answered together.

A `BatchPart` is the peer of one message. A `BatchReply` collects their responses into one array, or into one stream
as soon as one of them streams. `http` makes them. Duplex transports answer each message by itself.
"""

from __future__ import annotations

from collections.abc import Callable

from isthmus.frontends.http.request_cycle import JSON, STREAM, Peer
from isthmus.wire import sse
from isthmus.wire.jsonrpc import LONG_BYTES, Text, joined, text_size

BATCHES_VERSION = "2025-03-26"
"""The only protocol version with batches."""

BATCH_MAX = 100
"""Messages in one batch: each costs as much as a request, but the whole batch is counted as one request."""


class BatchReply:
    """The response to a batch. It ends when `close` was called and every part has ended."""

    def __init__(self, peer: Peer, on_end: Callable[[], None]) -> None:
        self.peer = peer
        self._on_end = on_end
        self._open = 1
        """Parts that have not ended, plus one until all parts are made."""
        self._replies: list[Text] = []
        self._is_stream = False

    def part(self) -> BatchPart:
        """The peer of one more message that will be answered."""
        self._open += 1
        return BatchPart(self)

    def add(self, reply: Text) -> None:
        """Add the whole response to a message."""
        if self._is_stream:
            self.peer.push(sse.frame(joined(reply)))
        else:
            self._replies.append(reply)

    def start_stream(self) -> None:
        """A part sends something before its response: the whole becomes a stream."""
        if not self._is_stream:
            self._is_stream = True
            self.peer.begin(200, STREAM)
            for reply in self._replies:
                self.peer.push(sse.frame(joined(reply)))

    def close(self) -> None:
        """A part has ended, or all parts are made."""
        self._open -= 1
        if self._open:
            return
        if self._is_stream:
            self.peer.end(b"")
        elif self._replies:
            self.peer.answer(200, JSON, _array(self._replies))
        else:
            self.peer.answer(202, b"", b"")
        self._on_end()


def _array(replies: list[Text]) -> Text:
    """The responses as an array; long ones are not copied."""
    parts: list[bytes | memoryview] = []
    for reply in replies:
        parts.append(b"," if parts else b"[")
        parts += (reply,) if isinstance(reply, bytes) else reply
    whole = (*parts, b"]")
    return whole if text_size(whole) > LONG_BYTES else joined(whole)


class BatchPart:
    """The peer of one message in a batch; see `Peer`."""

    def __init__(self, reply: BatchReply) -> None:
        self._reply = reply
        self._is_done = False

    def on_disconnect(self, callback: Callable[[], None]) -> None:
        """See `Peer`."""

        def disconnected() -> None:
            if not self._is_done:
                callback()
            if not self._is_done:  # the response goes to a resumed stream, and not through here
                self._finish()

        self._reply.peer.on_disconnect(disconnected)

    def take_body(self) -> bytes | None:
        """The message was read already."""
        return None

    def answer(self, status: int, lines: bytes, body: Text) -> None:
        """See `Peer`. The batch as a whole has one status."""
        if not self._is_done:
            if body:
                self._reply.add(body)
            self._finish()

    def begin(self, status: int, lines: bytes) -> None:
        """See `Peer`."""
        self._reply.start_stream()

    def push(self, chunk: bytes) -> None:
        """See `Peer`."""
        if not self._is_done:
            self._reply.peer.push(chunk)

    def end(self, chunk: bytes) -> None:
        """See `Peer`."""
        if not self._is_done:
            self._reply.peer.push(chunk)
            self._finish()

    def _finish(self) -> None:
        self._is_done = True
        self._reply.close()

    def buffered_bytes(self) -> int:
        """See `Peer`."""
        return self._reply.peer.buffered_bytes()

    def abort(self) -> None:
        """See `Peer`."""
        self._reply.peer.abort()
