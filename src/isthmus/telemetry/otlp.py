"""Sends spans and metrics to an OpenTelemetry collector: OTLP over HTTP with protobuf, in the background.

Configured by the standard `OTEL_*` variables and `[telemetry]`. Calls only append to a bounded queue; what does not fit
is dropped and counted, so that a slow collector costs spans and never calls. Made by `app.metrics`.
"""

from __future__ import annotations

import asyncio
import gzip
import ssl
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import get_args
from urllib.parse import unquote

import structlog

from isthmus import __version__
from isthmus.core.background import BackgroundTasks
from isthmus.core.figures import Histogram
from isthmus.core.ports import Recorder
from isthmus.model.names import ServerName
from isthmus.telemetry.metrics import OTHER, CallMetrics, TelemetrySettings
from isthmus.telemetry.protobuf import Attributes, encode_histogram, envelope, scope
from isthmus.telemetry.tracing import (
    MCP_FRONTENDS,
    NETWORK,
    Sampler,
    SamplerName,
    SpanEncoder,
    TracedCall,
    TracingRecorder,
)
from isthmus.transport.egress import Egress, tls_settings
from isthmus.transport.push_client import PushClient
from isthmus.wire.mcp.calls import METHODS

log = structlog.get_logger(__name__)

PROTOCOL = "http/protobuf"
RETRIED = (429, 502, 503, 504)
"""Statuses after which the same request is sent again, by the specification of OTLP."""

HTTP_REDIRECT = 300
ATTEMPTS = 4
PAUSE_SECONDS = 1.0
TOLD_SECONDS = 60.0
"""How often a collector that cannot be reached is logged."""


ENCODED_AT_ONCE = 64
"""Calls whose spans are encoded in one turn of the event loop; that takes less than half a millisecond."""


class OtlpUnusable(ValueError):
    """The variables ask for something that the hub does not have."""


@dataclass(frozen=True, slots=True)
class OtlpTarget:
    """Where one kind of data goes."""

    url: str
    headers: Mapping[str, str]
    timeout: float
    is_compressed: bool


@dataclass(frozen=True, slots=True)
class OtlpSettings:
    """What the variables and `[telemetry]` say."""

    traces: OtlpTarget | None
    metrics: OtlpTarget | None
    resource: Mapping[str, str]
    sampler: Sampler
    queue_max: int = 2_048
    batch_max: int = 512
    batch_seconds: float = 5.0
    metrics_seconds: float = 60.0
    certificate: str | None = None
    client_certificate: str | None = None
    client_key: str | None = None


def read_otlp(settings: TelemetrySettings, environment: Mapping[str, str], instance: str) -> OtlpSettings | None:
    """The settings of the exporter; None if nobody asked for it. What the file says wins.

    Raises:
        OtlpUnusable: a variable has a value that the hub does not support.
    """
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true" and settings.otlp_endpoint is None:
        return None
    traces = _target("TRACES", settings, environment)
    metrics = _target("METRICS", settings, environment)
    if traces is None and metrics is None:
        return None
    queue_max = int(_number(environment, "OTEL_BSP_MAX_QUEUE_SIZE", 2_048))
    return OtlpSettings(
        traces,
        metrics,
        _resource(environment, instance),
        _sampler(settings, environment),
        queue_max=queue_max,
        batch_max=min(int(_number(environment, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 512)), queue_max),
        batch_seconds=_number(environment, "OTEL_BSP_SCHEDULE_DELAY", 5_000) / 1000,
        metrics_seconds=_number(environment, "OTEL_METRIC_EXPORT_INTERVAL", 60_000) / 1000,
        certificate=environment.get("OTEL_EXPORTER_OTLP_CERTIFICATE") or None,
        client_certificate=environment.get("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE") or None,
        client_key=environment.get("OTEL_EXPORTER_OTLP_CLIENT_KEY") or None,
    )


def _target(signal: str, settings: TelemetrySettings, environment: Mapping[str, str]) -> OtlpTarget | None:
    def given(name: str) -> str:
        return (environment.get(f"OTEL_EXPORTER_OTLP_{signal}_{name}") or "").strip() or (
            environment.get(f"OTEL_EXPORTER_OTLP_{name}") or ""
        ).strip()

    exporter = environment.get(f"OTEL_{signal}_EXPORTER", "").strip() or "otlp"
    if exporter == "none":
        return None
    own = environment.get(f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT", "").strip()
    base = settings.otlp_endpoint or environment.get("OTEL_EXPORTER_OTLP_ENDPOINT", "").strip()
    url = f"{base.rstrip('/')}/v1/{signal.lower()}" if settings.otlp_endpoint or not own else own
    if not base and not own:
        return None
    if exporter != "otlp":
        raise OtlpUnusable(f"OTEL_{signal}_EXPORTER must be otlp or none, not {exporter}")
    if (protocol := given("PROTOCOL") or PROTOCOL) != PROTOCOL:
        raise OtlpUnusable(f"the protocol must be {PROTOCOL} (most collectors have it at port 4318), not {protocol}")
    if not url.startswith(("http://", "https://")):
        raise OtlpUnusable(f"the endpoint must be a URL such as http://localhost:4318, not {url!r}")
    if (compression := given("COMPRESSION") or "none") not in ("none", "gzip"):
        raise OtlpUnusable(f"the compression must be gzip or none, not {compression}")
    headers = _pairs(environment.get("OTEL_EXPORTER_OTLP_HEADERS", ""))
    headers |= _pairs(environment.get(f"OTEL_EXPORTER_OTLP_{signal}_HEADERS", ""))
    timeout = _number({"timeout": given("TIMEOUT")}, "timeout", 10_000) / 1000
    return OtlpTarget(url, headers, timeout, compression == "gzip")


def _pairs(text: str) -> dict[str, str]:
    """`key1=value1,key2=value2`, percent-encoded."""
    pairs = (pair.partition("=") for pair in text.split(","))
    return {unquote(key.strip()): unquote(value.strip()) for key, _, value in pairs if key.strip() and value.strip()}


def _number(environment: Mapping[str, str], name: str, default: float) -> float:
    text = environment.get(name, "").strip()
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise OtlpUnusable(f"{name} must be a positive number, not {text!r}")
    return value


def _resource(environment: Mapping[str, str], instance: str) -> dict[str, str]:
    own = {"service.name": "isthmus", "service.version": __version__, "service.instance.id": instance}
    given = _pairs(environment.get("OTEL_RESOURCE_ATTRIBUTES", ""))
    name = environment.get("OTEL_SERVICE_NAME", "").strip()
    return {**own, **given, **({"service.name": name} if name else {})}


def _sampler(settings: TelemetrySettings, environment: Mapping[str, str]) -> Sampler:
    if settings.sample_ratio is not None:
        return Sampler("traceidratio", settings.sample_ratio)
    text = environment.get("OTEL_TRACES_SAMPLER", "").strip() or "parentbased_always_on"
    name = next((known for known in get_args(SamplerName) if text.removeprefix("parentbased_") == known), None)
    if name is None:
        raise OtlpUnusable(f"OTEL_TRACES_SAMPLER must be one of OpenTelemetry's general samplers, not {text}")
    ratio = 1.0
    if argument := environment.get("OTEL_TRACES_SAMPLER_ARG", "").strip():
        with suppress(ValueError):
            ratio = min(1.0, max(0.0, float(argument)))
    return Sampler(name, ratio, text.startswith("parentbased_"))


@dataclass(frozen=True, slots=True)
class Telemetry:
    """What a serving hub measures: its calls, and their spans if there is an exporter."""

    calls: CallMetrics
    exporter: OtlpExporter | None = None

    def over(self, recorder: Recorder, carrier_of: Callable[[ServerName], str | None]) -> Recorder:
        """A recorder that forwards to `recorder` and traces; the same if nothing is traced."""
        if self.exporter is None or self.exporter.sampler is None:
            return recorder
        return TracingRecorder(recorder, self.exporter.sampler, self.exporter.add, carrier_of)


# -- the exporter ------------------------------------------------------------------------------------------------------


class OtlpExporter:
    """Queues ended calls, and sends them and the metrics until it is closed. Needs a running loop."""

    def __init__(self, settings: OtlpSettings, metrics: CallMetrics) -> None:
        """Raises: OSError or ValueError if a certificate cannot be read."""
        self._settings = settings
        self._metrics = metrics
        self._queue: deque[TracedCall] = deque()
        self._encoder = SpanEncoder()
        self._scope = scope("isthmus", __version__)
        self._background = BackgroundTasks("telemetry")
        # The operator names the collector, so it may be anywhere.
        self._client = PushClient(Egress(_tls(settings)), self._background, lambda _: True)
        self._wake = asyncio.Event()
        self._ended = asyncio.Event()
        self._is_closing = False
        self._started = time.time_ns()
        self._told_at = float("-inf")
        self.counts = {"exported": 0, "dropped": 0}
        """Traced calls, for `/metrics`."""
        self.sampler = settings.sampler if settings.traces is not None else None
        """None if no spans are sent."""

    def start(self) -> None:
        """Send from now on."""
        self._background.spawn("telemetry", self._run())

    def add(self, call: TracedCall) -> None:
        """Queue the spans of a call."""
        queue = self._queue
        if len(queue) >= self._settings.queue_max:
            self.counts["dropped"] += 1
            return
        queue.append(call)
        if len(queue) == self._settings.batch_max:
            self._wake.set()

    async def aclose(self, within: float = 5.0) -> None:
        """Send what is left, if that is possible in this time."""
        self._is_closing = True
        self._wake.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self._ended.wait()
        await self._client.aclose()
        await self._background.aclose()

    async def _run(self) -> None:
        due = time.monotonic() + self._settings.metrics_seconds
        while not self._is_closing:
            await self._sleep(min(self._settings.batch_seconds, max(0.0, due - time.monotonic())))
            await self._send_spans()
            if time.monotonic() >= due:
                await self._send_metrics()
                due = time.monotonic() + self._settings.metrics_seconds
        await self._send_spans()
        await self._send_metrics()
        self._ended.set()

    async def _sleep(self, seconds: float) -> None:
        """Wait, or until there is a whole batch, or until the end."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        self._wake.clear()

    async def _send_spans(self) -> None:
        target = self._settings.traces
        while self._queue and target is not None:
            batch = [self._queue.popleft() for _ in range(min(len(self._queue), self._settings.batch_max))]
            spans: list[bytes] = []
            for at, call in enumerate(batch, 1):
                spans += self._encoder.encode(call)
                if at % ENCODED_AT_ONCE == 0:
                    await asyncio.sleep(0)
            is_sent = await self._post(target, envelope(self._settings.resource, self._scope, spans))
            self.counts["exported" if is_sent else "dropped"] += len(batch)

    async def _send_metrics(self) -> None:
        if self._settings.metrics is None:
            return
        now = time.time_ns()
        families = [encode_histogram(*family, self._started, now) for family in duration_families(self._metrics)]
        if families:
            await self._post(self._settings.metrics, envelope(self._settings.resource, self._scope, families))

    async def _post(self, target: OtlpTarget, body: bytes) -> bool:
        """Send a request, several times if need be; whether it was accepted."""
        headers = {"content-type": "application/x-protobuf", "user-agent": f"isthmus/{__version__}", **target.headers}
        if target.is_compressed:
            body, headers["content-encoding"] = gzip.compress(body), "gzip"
        pause, why = PAUSE_SECONDS, ""
        for attempt in range(ATTEMPTS):
            if attempt:
                if self._is_closing:
                    break
                await self._sleep(pause)
                pause *= 2
            try:
                async with asyncio.timeout(target.timeout):
                    receipt = await self._client.post(target.url, headers, body, is_trusted=True)
            except TimeoutError:
                why = f"no answer within {target.timeout:g} s"
                continue
            if receipt.status is not None and receipt.status < HTTP_REDIRECT:
                return True
            why = receipt.reason if receipt.status is None else f"HTTP {receipt.status}"
            if receipt.is_refused or (receipt.status is not None and receipt.status not in RETRIED):
                break
        if time.monotonic() - self._told_at > TOLD_SECONDS:
            self._told_at = time.monotonic()
            log.warning("cannot send telemetry", url=target.url, reason=why)
        return False


def _tls(settings: OtlpSettings) -> ssl.SSLContext | None:
    """The certificates of the settings; None for the system's."""
    if settings.certificate is None and settings.client_certificate is None:
        return None
    authority = "" if settings.certificate is None else Path(settings.certificate).read_text(encoding="utf-8")
    context = tls_settings(authority)
    if settings.client_certificate is not None:
        context.load_cert_chain(settings.client_certificate, settings.client_key)
    return context


def duration_families(metrics: CallMetrics) -> list[tuple[str, str, list[tuple[Attributes, Histogram]]]]:
    """The histograms that OpenTelemetry's conventions for MCP name: of callers' requests, and of those to servers."""
    inbound: list[tuple[Attributes, Histogram]] = []
    outbound: list[tuple[Attributes, Histogram]] = []
    for series in list(metrics.series.values()):
        server, tool, kind, frontend, outcome, _ = series.key
        attributes = {"mcp.method.name": METHODS.get(kind, OTHER), "isthmus.server": server or ""}
        if tool:
            attributes |= {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": tool}
        if outcome != "ok":
            attributes["error.type"] = outcome
        if frontend in MCP_FRONTENDS:
            inbound.append(({**attributes, **NETWORK.get(frontend, {})}, series.durations))
        if series.at_server is not None and series.at_server.count:
            outbound.append(({**attributes, "isthmus.frontend": frontend}, series.at_server))
    families = (
        ("mcp.server.operation.duration", "The duration of requests of callers.", inbound),
        ("mcp.client.operation.duration", "The duration of requests to servers.", outbound),
    )
    return [family for family in families if family[2]]
