"""Several messages in one POST, as revision 2025-03-26 has them: each is answered as if it had come alone.

A `Part` is the peer of one message and knows nothing of HTTP's statuses; a `BatchReply` gathers what the parts say
into one array, or, as soon as one of them streams, into one stream. Made by `http`; where messages are not answered
one by one anyway, nothing has to be gathered.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from isthmus.frontends.http.bodies import JSON, STREAM
from isthmus.frontends.http.request_cycle import Peer
from isthmus.wire import sse

BATCHES_VERSION = "2025-03-26"
"""The only revision in which several messages may come as one."""

BATCH_MAX = 100
"""Messages in one batch: each costs as much as a request of its own, and all of them count as one."""


class BatchReply:
    """What a batch is answered with. It ends when `close` was called and every part has ended."""

    def __init__(self, peer: Peer, on_end: Callable[[], None]) -> None:
        self.peer = peer
        self._on_end = on_end
        self._open = 1
        """Parts that have not ended, and one for who still makes parts."""
        self._answers: list[bytes] = []
        self._is_stream = False

    def part(self) -> Part:
        """The peer of one more message that will be answered."""
        self._open += 1
        return Part(self)

    def add(self, answer: bytes) -> None:
        """A message is answered whole."""
        if self._is_stream:
            self.peer.push(sse.frame(answer))
        else:
            self._answers.append(answer)

    def stream(self) -> None:
        """A part has something to say before its answer: the whole becomes a stream."""
        if not self._is_stream:
            self._is_stream = True
            self.peer.begin(200, STREAM)
            for answer in self._answers:
                self.peer.push(sse.frame(answer))

    def close(self) -> None:
        """A part has ended, or no further one will be made."""
        self._open -= 1
        if not self._open:
            self._end()
            self._on_end()

    def _end(self) -> None:
        if self._is_stream:
            self.peer.end(b"")
        elif self._answers:
            self.peer.answer(200, JSON, b"[%b]" % b",".join(self._answers))
        else:
            self.peer.answer(202, b"", b"")


class Part:
    """One message's peer; see `Peer`."""

    def __init__(self, reply: BatchReply) -> None:
        self._reply = reply
        self._is_over = False

    def on_disconnect(self, callback: Callable[[], None]) -> None:
        """See `Peer`."""
        self._reply.peer.on_disconnect(partial(self._leave, callback))

    def _leave(self, callback: Callable[[], None]) -> None:
        if not self._is_over:
            callback()
        if not self._is_over:  # its answer goes to wherever the caller comes back, and not through here
            self._finish()

    def take_body(self) -> bytes | None:
        """Its message was read already."""
        return None

    def answer(self, status: int, lines: bytes, body: bytes) -> None:
        """See `Peer`; a status belongs to the whole."""
        if not self._is_over:
            if body:
                self._reply.add(body)
            self._finish()

    def begin(self, status: int, lines: bytes) -> None:
        """See `Peer`."""
        self._reply.stream()

    def push(self, chunk: bytes) -> None:
        """See `Peer`."""
        if not self._is_over:
            self._reply.peer.push(chunk)

    def end(self, chunk: bytes) -> None:
        """See `Peer`."""
        if not self._is_over:
            self._reply.peer.push(chunk)
            self._finish()

    def _finish(self) -> None:
        self._is_over = True
        self._reply.close()

    def buffered_bytes(self) -> int:
        """See `Peer`."""
        return self._reply.peer.buffered_bytes()

    def abort(self) -> None:
        """See `Peer`."""
        self._reply.peer.abort()
