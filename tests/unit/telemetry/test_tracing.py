"""Spans of calls: their parents, their names, and what is passed on to servers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import ref

import msgspec
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from isthmus.core.calls.hub import Hub
from isthmus.core.calls.server_queue import ServerQueue
from isthmus.core.settings import Limits
from isthmus.model.calls import Kind, Result
from isthmus.model.faults import NotConnected
from isthmus.model.names import ServerName
from isthmus.model.trace_context import SpanContext, parent_of
from isthmus.telemetry.metrics import CallMetrics
from isthmus.telemetry.protobuf import envelope, scope
from isthmus.telemetry.tracing import CallAbout, Sampler, SpanEncoder, Trace, TracedCall, TracingRecorder
from tests.unit.core.doubles import DONE, SERVER, HeldLink, Listener, call, raw, ready, tool

TRACE = "0af7651916cd43dd8448eb211c80319c"
SAMPLED = f"00-{TRACE}-b7ad6b7169203331-01"
UNSAMPLED = f"00-{TRACE}-b7ad6b7169203331-00"


class Traced:
    """A hub that traces, with one server."""

    def __init__(self, sampler: Sampler | None = None) -> None:
        self.ended: list[TracedCall] = []
        self.counters = CallMetrics()
        recorder = TracingRecorder(self.counters, sampler or Sampler(), self.ended.append, lambda _: "http")
        self.hub = Hub(Limits(), recorder)
        self.queue = ServerQueue(SERVER, self.hub.limits)
        self.link = HeldLink()
        self.queue.attach(self.link)
        self.hub.open_server_queue(self.queue, ready(tool("read")))

    def call(self, meta: Mapping[str, str] | None = None, **more: Any) -> str | None:
        """Make a call; the `traceparent` that its server gets."""
        asked = msgspec.structs.replace(
            call(), meta={key: raw(value) for key, value in (meta or {}).items()}, frontend="mcp", **more
        )
        inflight = self.hub.start(asked, Listener())
        if inflight.outcome is None:
            inflight.finish(DONE)
        found = inflight.call.meta.get("traceparent")
        return None if found is None else msgspec.json.decode(found, type=str)


def spans_of(ended: list[TracedCall]) -> list[Span]:
    encoder = SpanEncoder()
    spans = [span for each in ended for span in encoder.encode(each)]
    sent = ExportTraceServiceRequest.FromString(envelope({"service.name": "x"}, scope("isthmus", "1"), spans))
    [resource] = sent.resource_spans
    [found] = resource.scope_spans
    assert found.scope.name == "isthmus"
    return list(found.spans)


async def test_the_span_of_the_server_is_below_that_of_the_caller() -> None:
    traced = Traced()
    passed = traced.call({"traceparent": SAMPLED, "tracestate": "vendor=1"})
    inbound, outbound = spans_of(traced.ended)
    assert inbound.trace_id.hex() == outbound.trace_id.hex() == TRACE
    assert inbound.parent_span_id.hex() == "b7ad6b7169203331"
    assert outbound.parent_span_id == inbound.span_id
    assert passed == f"00-{TRACE}-{outbound.span_id.hex()}-01"
    assert (inbound.name, inbound.kind) == ("tools/call files.read", Span.SPAN_KIND_SERVER)
    assert (outbound.name, outbound.kind) == ("tools/call read", Span.SPAN_KIND_CLIENT)
    assert inbound.trace_state == outbound.trace_state == "vendor=1"
    assert traced.counters.servers[SERVER].calls == 1


async def test_a_call_without_a_context_begins_a_trace() -> None:
    traced = Traced()
    first, second = traced.call(), traced.call()
    assert first is not None
    assert second is not None
    assert first[3:35] != second[3:35]
    assert [span.parent_span_id for span in spans_of(traced.ended)][::2] == [b"", b""]


async def test_a_call_that_a_function_makes_is_below_the_call_of_the_function() -> None:
    traced = Traced()
    outer = traced.hub.start(call(), Listener())
    inner = traced.hub.start(call(), Listener(), ref(outer))
    inner.finish(DONE)
    outer.finish(DONE)
    within, _, _, function = spans_of(traced.ended)
    assert within.trace_id == function.trace_id
    assert within.parent_span_id == function.span_id


async def test_a_caller_that_does_not_sample_is_passed_on_as_it_is() -> None:
    traced = Traced()
    assert traced.call({"traceparent": UNSAMPLED}) == UNSAMPLED
    assert traced.ended == []


async def test_servers_learn_that_the_hub_has_decided_not_to_sample() -> None:
    traced = Traced(Sampler("always_off"))
    passed = traced.call()
    assert passed is not None
    assert passed.endswith("-00")
    assert traced.ended == []


async def test_a_call_that_was_not_sent_has_no_span_of_a_server_and_is_an_error() -> None:
    traced = Traced()
    traced.queue.detach("it fell over", is_failure=True)
    traced.call()
    [span] = spans_of(traced.ended)
    assert span.status.code == span.status.STATUS_CODE_ERROR
    attributes = {pair.key: pair.value.string_value for pair in span.attributes}
    assert attributes["error.type"] == attributes["isthmus.outcome"] == NotConnected.reason
    assert (attributes["isthmus.executed"], attributes["rpc.response.status_code"]) == ("no", "-32011")


async def test_the_wait_in_a_queue_is_before_the_span_of_the_server() -> None:
    traced = Traced()
    traced.queue.adjust(1, 10, 60.0)
    first = traced.hub.start(call(), Listener())
    second = traced.hub.start(call(), Listener())
    first.finish(DONE)
    second.finish(Result(msgspec.Raw(b"{}"), is_error=True))
    *_, inbound, outbound = spans_of(traced.ended)
    assert inbound.start_time_unix_nano < outbound.start_time_unix_nano <= outbound.end_time_unix_nano
    assert outbound.status.code == outbound.status.STATUS_CODE_ERROR


async def test_the_other_context_of_a_request_is_a_link() -> None:
    traced = Traced()
    traced.call({"traceparent": SAMPLED}, linked_trace=f"00-{'1' * 32}-{'2' * 16}-01")
    inbound, outbound = spans_of(traced.ended)
    assert [(link.trace_id.hex(), link.span_id.hex()) for link in inbound.links] == [("1" * 32, "2" * 16)]
    assert not outbound.links


@pytest.mark.parametrize(
    ("kind", "frontend", "carrier", "names"),
    [
        ("tool", "a2a", "stdio", ["execute_tool files.read", "tools/call read"]),
        ("tool", "mcp", "agent", ["tools/call files.read", "invoke_agent files"]),
        ("tool", "rest", "python", ["execute_tool files.read", "execute_tool read"]),
        ("tool", "mcp", "rpc", ["tools/call files.read", "read"]),
        ("prompt", "mcp", "http", ["prompts/get files.read", "prompts/get read"]),
        ("resource", "mcp", "http", ["resources/read", "resources/read"]),
        ("tool", "mcp", None, ["tools/call files.read"]),
    ],
)
def test_spans_have_the_names_of_the_conventions(
    kind: Kind, frontend: str, carrier: str | None, names: list[str]
) -> None:
    about = CallAbout("files.read", "read", kind, frontend, ServerName("files"), carrier, "ok", "yes")
    spans = spans_of([TracedCall(Trace(b"t" * 16, b"a" * 8, b"b" * 8), 2**62, about)])
    assert [span.name for span in spans] == names
    if kind == "resource":
        assert all(pair.value.string_value != "read" for span in spans for pair in span.attributes)


@pytest.mark.parametrize(
    ("sampler", "parent", "wanted"),
    [
        (Sampler(), "no parent", "sampled"),
        (Sampler(), "unsampled", "unsampled"),
        (Sampler("always_on", is_parent_based=False), "unsampled", "sampled"),
        (Sampler("always_off"), "sampled", "sampled"),
        (Sampler("always_off", is_parent_based=False), "sampled", "unsampled"),
        (Sampler("traceidratio", 0.0), "no parent", "unsampled"),
        (Sampler("traceidratio", 1.0), "no parent", "sampled"),
    ],
)
def test_samplers_decide_as_those_of_opentelemetry(sampler: Sampler, parent: str, wanted: str) -> None:
    context = None if parent == "no parent" else SpanContext("1" * 32, "2" * 16, is_sampled=parent == "sampled")
    assert sampler.decides(2**127 + 12345, context) is (wanted == "sampled")


def test_a_ratio_is_a_share_of_the_trace_ids() -> None:
    sampler = Sampler("traceidratio", 0.25)
    assert sum(sampler.decides(number << 54, None) for number in range(1024)) == 256


def test_a_context_is_read_only_if_it_is_one() -> None:
    assert parent_of({"traceparent": raw(SAMPLED)}) == SpanContext(TRACE, "b7ad6b7169203331", is_sampled=True)
    for odd in ("", "nonsense", f"ff-{TRACE}-b7ad6b7169203331-01", SAMPLED + "-x", f"00-{'0' * 32}-{'1' * 16}-01"):
        assert parent_of({"traceparent": raw(odd)}) is None
    assert parent_of({"traceparent": msgspec.Raw(b"7")}) is None
