"""W3C trace context (https://www.w3.org/TR/trace-context/): where a call carries it, and how it is read.

A call carries its context in `_meta`, as MCP does (SEP-414): `traceparent` and `tracestate`. A context that came in
HTTP headers is put there by the frontend; links write it into the server's `_meta` and, over HTTP, into headers again.
The hub passes it on unchanged, unless it traces itself (`telemetry.otlp`). `baggage` ends at the hub: it is a
caller's text that servers would believe.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextvars import ContextVar
from typing import NamedTuple

import msgspec

from isthmus.model.calls import Call

TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"
PARENT_HEADER = b"traceparent"
STATE_HEADER = b"tracestate"

STATE_LENGTH_MAX = 512

_PARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_STATE = re.compile(r"[\x20-\x7e]{1,512}")


REQUEST_TRACE: ContextVar[tuple[bytes, bytes | None] | None] = ContextVar("request_trace", default=None)
"""`traceparent` and `tracestate` of the request that this task serves, for frontends that make a call far from it."""


class SpanContext(NamedTuple):
    """A span, here or at a peer."""

    trace_id: str
    span_id: str
    is_sampled: bool

    @property
    def traceparent(self) -> str:
        """The header that names it."""
        return f"00-{self.trace_id}-{self.span_id}-0{int(self.is_sampled)}"


def parse_traceparent(text: str) -> SpanContext | None:
    """The span that a `traceparent` names; None if it is invalid."""
    match = _PARENT.fullmatch(text) if len(text) <= STATE_LENGTH_MAX else None
    if match is None:
        return None
    version, trace_id, span_id, flags, more = match.groups()
    if version == "ff" or (version == "00" and more is not None) or not int(trace_id, 16) or not int(span_id, 16):
        return None
    return SpanContext(trace_id, span_id, bool(int(flags, 16) & 1))


def parent_of(meta: Mapping[str, msgspec.Raw]) -> SpanContext | None:
    """The span that a call's `_meta` names."""
    text = _text(meta.get(TRACEPARENT))
    return None if text is None else parse_traceparent(text)


def state_of(meta: Mapping[str, msgspec.Raw]) -> str:
    """The `tracestate` beside it; empty if absent."""
    text = _text(meta.get(TRACESTATE))
    return text if text is not None and _STATE.fullmatch(text) else ""


def _text(raw: msgspec.Raw | None) -> str | None:
    # Nearly always a plain string without escapes; anything else names no span.
    data = b"" if raw is None else bytes(raw)
    return data[1:-1].decode("latin-1") if data[:1] == b'"' and b"\\" not in data else None


def with_http_context(call: Call, parent: bytes, state: bytes | None) -> Call:
    """The call with the context of its HTTP request. `_meta` takes precedence: then the other is only linked."""
    text = parent.decode("latin-1")
    span = parse_traceparent(text)
    if span is None:
        return call
    if TRACEPARENT in call.meta:
        return call if parent_of(call.meta) == span else msgspec.structs.replace(call, linked_trace=text)
    meta = {**call.meta, TRACEPARENT: msgspec.Raw(msgspec.json.encode(text))}
    shown = b"" if state is None else state
    if (found := shown.decode("latin-1")) and _STATE.fullmatch(found):
        meta[TRACESTATE] = msgspec.Raw(msgspec.json.encode(found))
    return msgspec.structs.replace(call, meta=meta)


def trace_headers(meta: Mapping[str, msgspec.Raw]) -> dict[str, str]:
    """The HTTP headers that carry a call's context to its server; none if it has no valid one."""
    span = parent_of(meta)
    if span is None:
        return {}
    state = state_of(meta)
    return {TRACEPARENT: _text(meta[TRACEPARENT]) or "", **({TRACESTATE: state} if state else {})}
