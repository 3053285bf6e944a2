"""Heads of requests that a connection has parsed, known again by their bytes when the client repeats them.

A client that keeps its connection sends the same head with nearly every request, all but the length of the body. The
same bytes at the same place mean the same thing, so the connection need not parse them again. Only for requests that
one read brings whole: whatever else arrives goes to the parser, which has not seen what was taken here.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from isthmus.frontends.http.request_cycle import Message

HEADS_MAX = 4
"""Heads that one connection remembers, the first ones that it sees; a client has one for each tool that it names."""

HEAD_BYTES_MAX = 4096
"""A longer head is not remembered."""

_END = b"\r\n\r\n"
_LENGTH = re.compile(rb"\r\ncontent-length: ?([0-9]{1,9})\r\n", re.IGNORECASE)
_DIGITS_MAX = 9


class CachedHeader(NamedTuple):
    """The bytes before and after a head's length, what they were found to mean, and where the length stands in it."""

    before: bytes
    after: bytes
    scope: Message
    place: int

    def body_in(self, data: bytes) -> bytes | None:
        """The body of the one request that a read brought, if it has this head and is whole; else None."""
        if not data.startswith(self.before):
            return None
        start = len(self.before)
        end = data.find(b"\r", start, start + _DIGITS_MAX + 1)
        if end < 0 or not data.startswith(self.after, end):
            return None
        digits = data[start:end]
        body = data[end + len(self.after) :]
        return body if digits.isdigit() and int(digits) == len(body) else None

    def scope_for(self, body: bytes) -> Message:
        """What a request with this head and `body` is to an application."""
        headers = [*self.scope["headers"]]
        headers[self.place] = (b"content-length", b"%d" % len(body))
        return {**self.scope, "headers": headers}


def remembered(data: bytes, body_bytes: int, scope: Message) -> CachedHeader | None:
    """The head of a request that the parser has just read from `data`; None if there is more in it, or less."""
    head = data[: len(data) - body_bytes]
    length = _LENGTH.search(head)
    if length is None or len(head) > HEAD_BYTES_MAX or data.find(_END) + len(_END) != len(head):
        return None
    if head.count(b"\n") != head.count(b"\r\n"):
        return None  # where lines may end in another way, they may do so before what was found here
    places = [place for place, (name, _) in enumerate(scope["headers"]) if name == b"content-length"]
    if len(places) != 1 or int(length[1]) != body_bytes:
        return None
    kept = {**scope, "headers": [*scope["headers"]]}
    kept.pop("extensions", None)
    return CachedHeader(head[: length.start(1)], head[length.end(1) :], kept, places[0])
