"""OTLP: the environment variables, and batches that cannot be sent."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from weakref import ref

import msgspec
import pytest
import trustme
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from isthmus.core.calls.hub import Hub
from isthmus.core.calls.server_queue import ServerQueue
from isthmus.core.settings import Limits
from isthmus.model.calls import Kind, Result
from isthmus.model.fault_table import NotConnected
from isthmus.model.names import ServerName
from isthmus.model.trace_context import SpanContext, parent_of
from isthmus.telemetry import otlp as module
from isthmus.telemetry.call_metrics import CallMetrics, TelemetrySettings
from isthmus.telemetry.otlp import (
    CallAbout,
    OtlpExporter,
    OtlpSettings,
    OtlpUnusable,
    Sampler,
    SpanEncoder,
    Telemetry,
    Trace,
    TracedCall,
    TracingRecorder,
    duration_families,
    encode_histogram,
    envelope,
    read_otlp,
    scope,
)
from tests.telemetry.receiver import Receiver, receiving
from tests.unit.core.doubles import DONE, SERVER, HeldLink, Listener, call, raw, ready, tool

NOTHING = TelemetrySettings()
BASE = "OTEL_EXPORTER_OTLP_ENDPOINT"
HERE = {BASE: "http://localhost:4318/"}


def read(environment: Mapping[str, str], settings: TelemetrySettings = NOTHING) -> OtlpSettings:
    found = read_otlp(settings, environment, "this one")
    assert found is not None
    return found


def urls(found: OtlpSettings) -> list[str | None]:
    return [None if target is None else target.url for target in (found.traces, found.metrics)]


def ended(outcome: str = "ok") -> TracedCall:
    about = CallAbout("files.read", "read", "tool", "mcp", ServerName("files"), "http", outcome, "yes")
    return TracedCall(Trace(b"t" * 16, b"a" * 8, b"b" * 8), 2**62, about)


# -- the variables -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {BASE: " "},
        {**HERE, "OTEL_SDK_DISABLED": "true"},
        {**HERE, "OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none"},
    ],
)
def test_nothing_is_sent_unless_configured(environment: dict[str, str]) -> None:
    assert read_otlp(NOTHING, environment, "this one") is None


def test_one_endpoint_serves_both_and_each_may_have_its_own() -> None:
    assert urls(read(HERE)) == ["http://localhost:4318/v1/traces", "http://localhost:4318/v1/metrics"]
    own = {**HERE, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "https://traces.example/in"}
    assert urls(read(own)) == ["https://traces.example/in", "http://localhost:4318/v1/metrics"]
    assert urls(read({**own, "OTEL_METRICS_EXPORTER": "none"})) == ["https://traces.example/in", None]
    filed = TelemetrySettings(otlp_endpoint="http://filed:4318")
    assert urls(read({**own, "OTEL_SDK_DISABLED": "true"}, filed)) == [
        "http://filed:4318/v1/traces",
        "http://filed:4318/v1/metrics",
    ]


def test_headers_timeouts_and_the_resource_are_read() -> None:
    found = read(
        {
            **HERE,
            "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20x, team=a,broken",
            "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "team=b",
            "OTEL_EXPORTER_OTLP_TIMEOUT": "2500",
            "OTEL_EXPORTER_OTLP_METRICS_COMPRESSION": "gzip",
            "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=prod,service.name=ignored",
            "OTEL_SERVICE_NAME": "hub",
            "OTEL_BSP_MAX_QUEUE_SIZE": "10",
            "OTEL_BSP_SCHEDULE_DELAY": "50",
        }
    )
    assert found.traces is not None
    assert found.metrics is not None
    assert found.traces.headers == {"authorization": "Bearer x", "team": "b"}
    assert found.metrics.headers["team"] == "a"
    assert (found.traces.timeout, found.traces.is_compressed, found.metrics.is_compressed) == (2.5, False, True)
    assert (found.queue_max, found.batch_max, found.batch_seconds) == (10, 10, 0.05)
    assert found.resource["service.name"] == "hub"
    assert found.resource["deployment.environment.name"] == "prod"
    assert found.resource["service.instance.id"] == "this one"


@pytest.mark.parametrize(
    ("text", "argument", "sampler"),
    [
        ("", "", Sampler()),
        ("always_off", "", Sampler("always_off", is_parent_based=False)),
        ("parentbased_traceidratio", "0.25", Sampler("traceidratio", 0.25)),
        ("traceidratio", "7", Sampler("traceidratio", 1.0, is_parent_based=False)),
        ("traceidratio", "odd", Sampler("traceidratio", 1.0, is_parent_based=False)),
    ],
)
def test_samplers_are_those_of_the_specification(text: str, argument: str, sampler: Sampler) -> None:
    variables = {**HERE, "OTEL_TRACES_SAMPLER": text, "OTEL_TRACES_SAMPLER_ARG": argument}
    assert read(variables).sampler == sampler
    assert read(variables, TelemetrySettings(sample_ratio=0.5)).sampler == Sampler("traceidratio", 0.5)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "zstd"),
        ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "localhost:4317"),
        ("OTEL_TRACES_EXPORTER", "zipkin"),
        ("OTEL_TRACES_SAMPLER", "jaeger_remote"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "-1"),
    ],
)
def test_unsupported_otlp_settings_are_named(variable: str, value: str) -> None:
    with pytest.raises(OtlpUnusable, match=value):
        read({**HERE, variable: value})


# -- the exporter ------------------------------------------------------------------------------------------------------


async def arrived(receiver: Receiver, count: int) -> None:
    await asyncio.to_thread(receiver.wait_for, lambda: len(receiver.spans) == count)


async def test_spans_that_wait_are_sent_at_the_end() -> None:
    with receiving() as receiver:
        exporter = OtlpExporter(read({BASE: receiver.url, "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip"}), CallMetrics())
        exporter.start()
        for _ in range(200):
            exporter.add(ended())
        await exporter.aclose()
        await arrived(receiver, 400)
    assert exporter.counts == {"exported": 200, "dropped": 0}


async def test_a_full_batch_does_not_wait_for_the_time() -> None:
    with receiving() as receiver:
        variables = {BASE: receiver.url, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "2"}
        exporter = OtlpExporter(read(variables), CallMetrics())
        exporter.start()
        exporter.add(ended())
        exporter.add(ended("timed_out"))
        await arrived(receiver, 4)
        await exporter.aclose()


async def test_a_collector_that_is_busy_is_asked_again_and_one_that_refuses_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "PAUSE_SECONDS", 0.001)
    with receiving() as receiver:
        receiver.failures = [503, 429]
        exporter = OtlpExporter(read({BASE: receiver.url, "OTEL_BSP_SCHEDULE_DELAY": "1"}), CallMetrics())
        exporter.start()
        exporter.add(ended())
        await arrived(receiver, 2)
        receiver.failures = [400]
        exporter.add(ended())
        await asyncio.to_thread(receiver.wait_for, lambda: not receiver.failures)
        await exporter.aclose()
    assert exporter.counts == {"exported": 1, "dropped": 1}
    assert len(receiver.headers) == 4


async def test_spans_beyond_the_queue_are_dropped_and_counted() -> None:
    variables = {BASE: "http://127.0.0.1:1", "OTEL_BSP_MAX_QUEUE_SIZE": "3"}
    exporter = OtlpExporter(read(variables), CallMetrics())
    for _ in range(5):
        exporter.add(ended())
    assert exporter.counts == {"exported": 0, "dropped": 2}
    exporter.start()
    await exporter.aclose()
    assert exporter.counts == {"exported": 0, "dropped": 5}


async def test_without_traces_the_recorder_stays_as_it_is() -> None:
    exporter = OtlpExporter(read({**HERE, "OTEL_TRACES_EXPORTER": "none"}), CallMetrics())
    recorder = CallMetrics()
    for telemetry in (Telemetry(CallMetrics()), Telemetry(CallMetrics(), exporter)):
        assert telemetry.wrap(recorder, lambda _: None) is recorder


async def test_certificates_are_those_of_the_variables(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    client = authority.issue_cert("client.example")
    client.private_key_and_cert_chain_pem.write_to_path(tmp_path / "client.pem")
    variables = {
        **HERE,
        "OTEL_EXPORTER_OTLP_CERTIFICATE": str(tmp_path / "ca.pem"),
        "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE": str(tmp_path / "client.pem"),
    }
    OtlpExporter(read(variables), CallMetrics())
    with pytest.raises(OSError, match="absent"):
        OtlpExporter(read({**HERE, "OTEL_EXPORTER_OTLP_CERTIFICATE": "/absent"}), CallMetrics())


def test_histograms_have_the_conventional_names_and_attributes() -> None:
    metrics = CallMetrics(measures_servers=True)
    series = metrics._series_of((ServerName("files"), "read", "tool", "mcp", "timed_out", "unknown"))
    series.durations.observe(0.3)
    assert series.at_server is not None
    series.at_server.observe(0.2)
    metrics._series_of((ServerName("files"), "read", "tool", "a2a", "ok", "yes")).durations.observe(0.1)
    families = [encode_histogram(*family, 1, 2) for family in duration_families(metrics)]
    sent = ExportMetricsServiceRequest.FromString(envelope({"service.name": "x"}, scope("isthmus", "1"), families))
    [inbound, outbound] = sent.resource_metrics[0].scope_metrics[0].metrics
    assert (inbound.name, inbound.unit) == ("mcp.server.operation.duration", "s")
    assert outbound.name == "mcp.client.operation.duration"
    [point] = inbound.histogram.data_points
    attributes = {pair.key: pair.value.string_value for pair in point.attributes}
    assert attributes == {
        "mcp.method.name": "tools/call",
        "isthmus.server": "files",
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "read",
        "error.type": "timed_out",
        "network.transport": "tcp",
        "network.protocol.name": "http",
    }
    assert (point.count, point.sum, sum(point.bucket_counts)) == (1, 0.3, 1)
    assert len(point.bucket_counts) == len(point.explicit_bounds) + 1
    assert inbound.histogram.aggregation_temporality == 2


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
