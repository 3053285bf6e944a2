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


class LineDecoder:
    """Cut lines out of whatever chunks arrive.

    It never reads, waits or raises: a line that is too long comes out as `Oversized`, once and as soon as it
    is known, and the rest of it is dropped. Every byte is looked at once, however the stream is cut.
    """

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._is_skipping = False

    def feed(self, chunk: bytes) -> list[bytes | Oversized]:
        """Return the lines that `chunk` completes, without their line ends; blank ones are left out."""
        ended = chunk.split(b"\n")
        rest = ended.pop()
        found: list[bytes | Oversized] = []
        for line in ended:
            if line or self._held or self._is_skipping:  # a chunk may consist of line breaks
                self._end(line, found)
        if rest:
            self._hold(rest, found)
        return found

    def _end(self, line: bytes, found: list[bytes | Oversized]) -> None:
        # The usual line arrives whole; only the first of a chunk can have a beginning in an earlier one.
        if self._held or self._is_skipping or len(line) > self._limit_bytes:
            self._hold(line, found)
            line = b"".join(self._held)
            self._drop()
            self._is_skipping = False
        line = line.removesuffix(b"\r")
        if line and not line.isspace():
            found.append(line)

    def _hold(self, part: bytes, found: list[bytes | Oversized]) -> None:
        """Keep the beginning of a line, or nothing more of it once it is too long."""
        if self._is_skipping:
            return
        if self._held_bytes + len(part) <= self._limit_bytes:
            self._held.append(part)
            self._held_bytes += len(part)
            return
        self._drop()
        self._is_skipping = True
        found.append(Oversized(self._limit_bytes))

    def _drop(self) -> None:
        self._held = []
        self._held_bytes = 0


def frame(message: Payload) -> bytes:
    """Put one message on one line.

    A raw line break is legal between JSON tokens, and on a pipe it would end the message and begin another
    that was never authorised, so such a message is compacted.
    """
    return compact(message) + b"\n"
