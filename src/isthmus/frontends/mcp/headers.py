"""What the headers of a request say over Streamable HTTP: what may be routed on, and what its sender understands."""

from __future__ import annotations

from collections import Counter

from isthmus.frontends.http.auth import Fields, Headers
from isthmus.wire.mcp import legacy, modern, params

VERSION_HEADER = modern.VERSION_HEADER.encode()
METHOD_HEADER = modern.METHOD_HEADER.encode()
NAME_HEADER = modern.NAME_HEADER.encode()
SESSION_HEADER = legacy.SESSION_HEADER.encode()
EVENT_HEADER = legacy.EVENT_HEADER.encode()
PARAM_PREFIX = params.PREFIX.encode()

ROUTING = (VERSION_HEADER, METHOD_HEADER, NAME_HEADER, SESSION_HEADER)
"""Headers that somebody may route on, beside those of arguments: given twice, two readers could see two values."""

EVENTS = b"text/event-stream"


def text_of(fields: Fields, name: bytes) -> str | None:
    """What a header says; None if it is not there."""
    value = fields.get(name)
    return None if value is None else value.decode("latin-1")


def accepts(fields: Fields, kind: bytes) -> bool:
    """Whether an answer of this media type is understood."""
    accept = fields.get(b"accept", b"*/*")
    return kind in accept or b"*/*" in accept or _is_among(kind, accept)


def accepts_something(fields: Fields) -> bool:
    """Whether any answer that there is here is understood."""
    return accepts(fields, b"application/json") or accepts(fields, EVENTS)


def prefers_stream(fields: Fields) -> bool:
    """Whether the caller names streams first: without weights, there is no other sign of what it likes."""
    return fields.get(b"accept", b"").startswith(EVENTS)


def _is_among(kind: bytes, accept: bytes) -> bool:
    """Whether a media type is in a list that is not written as most clients write it."""
    wanted = (kind, kind.partition(b"/")[0] + b"/*")
    return any(part.partition(b";")[0].strip().lower() in wanted for part in accept.split(b","))


def repeated(headers: Headers) -> str | None:
    """The name of a routing header that is given twice."""
    counts = Counter(name for name, _ in headers if name in ROUTING or name.startswith(PARAM_PREFIX))
    return next((name.decode() for name, count in counts.items() if count > 1), None)
