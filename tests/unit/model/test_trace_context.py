"""W3C trace context: read from headers and `_meta`, and written to headers."""

from __future__ import annotations

import msgspec
import pytest

from isthmus.model.calls import Call
from isthmus.model.trace_context import SpanContext, parent_of, parse_traceparent, trace_headers, with_http_context
from tests.unit.core.doubles import call, raw

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"
OTHER = f"00-{'1' * 32}-{'2' * 16}-00"


def having(**meta: str) -> Call:
    return msgspec.structs.replace(call(), meta={key: raw(value) for key, value in meta.items()})


def test_a_context_is_read_and_written() -> None:
    span = parse_traceparent(PARENT)
    assert span == SpanContext(TRACE, SPAN, is_sampled=True)
    assert span.traceparent == PARENT
    # A later version may have more fields.
    assert parse_traceparent(f"01-{TRACE}-{SPAN}-03-more") == span


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00",
        f"00-{TRACE}-{SPAN}",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        PARENT.upper(),
        f"01-{TRACE}-{SPAN}-01-" + "x" * 1000,
        f"{PARENT}\r\nx: y",
    ],
)
def test_an_invalid_trace_context_is_ignored(text: str) -> None:
    assert parse_traceparent(text) is None
    assert with_http_context(call(), text.encode(), None) == call()
    assert trace_headers({"traceparent": raw(text)}) == {}


def test_the_context_of_a_request_is_carried_in_meta() -> None:
    carried = with_http_context(having(other="x"), PARENT.encode(), b"vendor=1")
    assert carried == having(other="x", traceparent=PARENT, tracestate="vendor=1")
    assert trace_headers(carried.meta) == {"traceparent": PARENT, "tracestate": "vendor=1"}
    assert with_http_context(call(), PARENT.encode(), b"no\x00text") == having(traceparent=PARENT)


def test_meta_wins_and_the_other_context_is_linked() -> None:
    own = having(traceparent=PARENT)
    assert with_http_context(own, PARENT.encode(), None) is own
    linked = with_http_context(own, OTHER.encode(), b"x=y")
    assert (linked.meta, linked.linked_trace) == (own.meta, OTHER)


def test_headers_are_made_of_valid_text_only() -> None:
    assert trace_headers({}) == {}
    odd = {"traceparent": raw(PARENT), "tracestate": raw("a\r\nb: c")}
    assert trace_headers(odd) == {"traceparent": PARENT}
    assert parent_of({"traceparent": msgspec.Raw(b'"\\u0030"')}) is None
