"""Newline framing: one JSON message per line, as stdio carries it.

It cuts bytes into lines; `wire.jsonrpc` reads their content. The stdio links and the stdio frontend use it.
"""

from __future__ import annotations

from msgspec import Struct

from isthmus.wire.jsonrpc import Payload, compact

LIMIT_BYTES = 16 * 1024 * 1024
"""Enough for any reply that the hub forwards, and all the memory that a flooding peer can cost."""


class Oversized(Struct, frozen=True):
    """One message was longer than `limit_bytes`; its bytes are gone, the messages after it are not."""

    limit_bytes: int


class Collected:
    """A text that arrives in chunks. A long one grows chunk by chunk: joining megabytes at once takes milliseconds."""

    __slots__ = ("_chunks", "_long", "size")

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self._long: bytearray | None = None
        self.size = 0

    def add(self, chunk: bytes) -> None:
        """Add a chunk."""
        self.size += len(chunk)
        if self._long is not None:
            self._long += chunk
        elif self.size <= LONG_BYTES:
            self._chunks.append(chunk)
        else:
            self._long = bytearray(b"".join((*self._chunks, chunk)))
            self._chunks = []

    def take(self) -> bytes | memoryview:
        """The text, a long one as a view. This is empty afterwards."""
        whole = b"".join(self._chunks) if self._long is None else memoryview(self._long).toreadonly()
        self._chunks, self._long, self.size = [], None, 0
        return whole


LONG_BYTES = 3 * 512 * 1024
"""Shorter messages are joined, which takes up to 0.1 ms: readers that need `bytes` would copy a view anyway."""

_CR = ord("\r")


class LineDecoder:
    """Cut lines out of whatever chunks arrive.

    It never reads, waits or raises: a line that is too long comes out as `Oversized`, once and as soon as it
    is known, and the rest of it is dropped. Every byte is looked at once, however the stream is cut.
    """

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._held = Collected()
        self._is_skipping = False

    def feed(self, chunk: bytes) -> list[bytes | memoryview | Oversized]:
        """Return the lines that `chunk` completes, without their line ends; blank ones are left out."""
        ended = chunk.split(b"\n")
        rest = ended.pop()
        found: list[bytes | memoryview | Oversized] = []
        for line in ended:
            if line or self._held.size or self._is_skipping:  # a chunk may consist of line breaks
                self._end(line, found)
        if rest:
            self._hold(rest, found)
        return found

    def _end(self, line: bytes, found: list[bytes | memoryview | Oversized]) -> None:
        # The usual line arrives whole; only the first of a chunk can have a beginning in an earlier one.
        if self._held.size or self._is_skipping or len(line) > self._limit_bytes:
            self._hold(line, found)
            whole = self._held.take()
            self._is_skipping = False
            if isinstance(whole, memoryview):
                if not bytes(whole[:1]).isspace() or not bytes(whole).isspace():
                    found.append(whole[:-1] if whole[-1] == _CR else whole)
                return
            line = whole
        line = line.removesuffix(b"\r")
        if line and not line.isspace():
            found.append(line)

    def _hold(self, part: bytes, found: list[bytes | memoryview | Oversized]) -> None:
        """Keep the beginning of a line, or nothing more of it once it is too long."""
        if self._is_skipping:
            return
        if self._held.size + len(part) <= self._limit_bytes:
            self._held.add(part)
            return
        self._held.take()
        self._is_skipping = True
        found.append(Oversized(self._limit_bytes))


def frame(message: Payload) -> bytes:
    """Put one message on one line.

    A raw line break is legal between JSON tokens, and on a pipe it would end the message and begin another
    that was never authorized, so such a message is compacted.
    """
    return compact(message) + b"\n"
