"""Server-sent events: the framing of streamed HTTP answers, after the WHATWG's rules for event streams.

It yields events with their data as bytes and knows no JSON-RPC. It does not reconnect; links do that.
"""

from __future__ import annotations

from msgspec import Raw, Struct

from isthmus.wire.jsonrpc import Payload, compact
from isthmus.wire.lines import LIMIT_BYTES, Oversized

_BOM = b"\xef\xbb\xbf"
_RETRY_DIGITS = 9
"""Eleven days in milliseconds; a longer number is an attack on the reader."""


class SseEvent(Struct, frozen=True, kw_only=True):
    """One dispatched event; `id` and `retry` (milliseconds) only if this event named them."""

    event: str = "message"
    data: bytes
    id: str | None = None
    retry: int | None = None


_DATA = b"data: "


class SseDecoder:
    """Cut events out of whatever chunks arrive.

    It never reads, waits or raises. The fields of one event, and any line, may take `limit_bytes`; beyond it
    the event comes out as `Oversized`, once and as soon as that is known, and is dropped up to its end. Every
    byte is looked at once, however the stream is cut.

    `last_event_id` and `retry` keep what the stream said last, also in events without data, which are not
    dispatched.
    """

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self.last_event_id: str | None = None
        self.retry: int | None = None
        self._limit_bytes = limit_bytes
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._ended_with_cr = False
        self._is_first_line = True
        self._is_skipping = False
        self._clear()

    def _clear(self) -> None:
        self._size_bytes = 0
        self._name = ""
        self._data: list[bytes] = []
        self._id: str | None = None
        self._retry: int | None = None

    def feed(self, chunk: bytes) -> list[SseEvent | Oversized]:
        """Return the events that `chunk` completes."""
        found: list[SseEvent | Oversized] = []
        if self._ended_with_cr and chunk:
            # The line ended with the CR already; the LF of a CRLF that was cut apart must not end another.
            chunk = chunk.removeprefix(b"\n")
            self._ended_with_cr = False
        if not chunk:
            return found
        ended = chunk.splitlines()
        rest = b"" if chunk.endswith((b"\n", b"\r")) else ended.pop()
        self._ended_with_cr = chunk.endswith(b"\r")
        for line in ended:
            self._end_line(line, found)
        self._hold(rest, found)
        return found

    def _hold(self, part: bytes, found: list[SseEvent | Oversized]) -> None:
        """Keep the beginning of a line; of a line to be skipped only that it is not blank."""
        if not self._is_skipping and self._size_bytes + self._held_bytes + len(part) > self._limit_bytes:
            self._is_skipping = True
            self._clear()
            found.append(Oversized(self._limit_bytes))
        if self._is_skipping:
            part = b"" if self._held else part[:1]
        if part:
            self._held.append(part)
            self._held_bytes += len(part)

    def _end_line(self, line: bytes, found: list[SseEvent | Oversized]) -> None:
        self._hold(line, found)
        parts, self._held = self._held, []
        size, self._held_bytes = self._held_bytes, 0
        if len(parts) > 1 and parts[0].startswith(_DATA) and not self._is_skipping and not self._is_first_line:
            # A long message is copied once.
            self._size_bytes += size
            self._data.append(b"".join((memoryview(parts[0])[len(_DATA) :], *parts[1:])))
            return
        line = b"".join(parts)
        if self._is_first_line:
            # Of a line to be skipped nothing else may be left, and it is not blank for that.
            line = line if self._is_skipping else line.removeprefix(_BOM)
            self._is_first_line = False
        if not line:
            self._end_event(found)
        elif not self._is_skipping and not line.startswith(b":"):
            self._size_bytes += len(line)
            name, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            match name:
                case b"data":
                    self._data.append(value)
                case b"event":
                    self._name = value.decode(errors="replace")
                case b"id" if b"\0" not in value:
                    self._id = value.decode(errors="replace")
                case b"retry" if value.isdigit() and len(value) <= _RETRY_DIGITS:
                    self._retry = int(value)

    def _end_event(self, found: list[SseEvent | Oversized]) -> None:
        if self._is_skipping:
            self._is_skipping = False
            return
        if self._id is not None:
            self.last_event_id = self._id
        if self._retry is not None:
            self.retry = self._retry
        if self._data:
            name = self._name or "message"
            found.append(SseEvent(event=name, data=b"\n".join(self._data), id=self._id, retry=self._retry))
        self._clear()


def frame(message: Payload, *, id: str | None = None, event: str = "message") -> bytes:
    """Put one message into one event.

    A raw line break in it would end the data and let the rest be read as fields or as another event, so such
    a message is compacted.

    Raises:
        ValueError: `id` or `event` holds a line break or NUL.
    """
    head = b"" if id is None else b"id: %b\n" % _one_line(id)
    start = b"".join((head, b"event: ", _one_line(event), b"\ndata: "))
    if isinstance(message, Raw):
        # A long result, which nearly always has no line break, is copied once.
        whole = b"".join((start, message, b"\n\n"))
        if whole.find(b"\n", len(start)) == len(whole) - 2 and whole.find(b"\r", len(start)) < 0:
            return whole
    return b"".join((start, compact(message), b"\n\n"))


def named(event: str, text: str) -> bytes:
    """An event of this name whose data is one line of text.

    Raises:
        ValueError: one of the two holds a line break or NUL.
    """
    return b"event: %b\ndata: %b\n\n" % (_one_line(event), _one_line(text))


def prime(id: str, retry_ms: int) -> bytes:
    """An empty event with the id to resume from, and how soon, as MCP starts a stream.

    Raises:
        ValueError: `id` holds a line break or NUL.
    """
    return b"id: %b\nretry: %d\ndata: \n\n" % (_one_line(id), retry_ms)


def mark(id: str, retry_ms: int) -> bytes:
    """The same without data: readers that follow the rules of event streams dispatch no event for it.

    Raises:
        ValueError: `id` holds a line break or NUL.
    """
    return b"id: %b\nretry: %d\n\n" % (_one_line(id), retry_ms)


def retry(milliseconds: int) -> bytes:
    """How soon to reconnect, without an event."""
    return b"retry: %d\n\n" % milliseconds


def comment(text: str = "") -> bytes:
    """A line that every reader ignores, to keep a silent stream open.

    Raises:
        ValueError: `text` holds a line break or NUL.
    """
    return b": %b\n\n" % _one_line(text)


def _one_line(text: str) -> bytes:
    if any(mark in text for mark in "\r\n\0"):
        raise ValueError(f"{text!r} cannot stand on one line of an event stream")
    return text.encode()
