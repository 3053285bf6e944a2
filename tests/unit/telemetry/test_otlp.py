"""OTLP: what the variables say, and what happens to what cannot be sent."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest
import trustme
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from isthmus.model.names import ServerName
from isthmus.telemetry import otlp as module
from isthmus.telemetry.metrics import CallMetrics, TelemetrySettings
from isthmus.telemetry.otlp import OtlpExporter, OtlpSettings, OtlpUnusable, Telemetry, duration_families, read_otlp
from isthmus.telemetry.protobuf import encode_histogram, envelope, scope
from isthmus.telemetry.tracing import CallAbout, Sampler, Trace, TracedCall
from tests.telemetry.receiver import Receiver, receiving

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
def test_nothing_is_sent_unless_somebody_asks(environment: dict[str, str]) -> None:
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
def test_what_the_hub_does_not_have_is_named(variable: str, value: str) -> None:
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


async def test_what_does_not_fit_is_dropped_and_counted() -> None:
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
        assert telemetry.over(recorder, lambda _: None) is recorder


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
