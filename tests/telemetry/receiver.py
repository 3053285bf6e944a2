"""An OTLP receiver: a small HTTP server that keeps the spans and metrics it gets, read with the official classes."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span

SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class ReceivedSpan:
    """A span, and the service that sent it."""

    service: str
    span: Span

    @property
    def attributes(self) -> dict[str, str]:
        return strings(self.span.attributes)

    @property
    def kind(self) -> str:
        return str(Span.SpanKind.Name(self.span.kind)).removeprefix("SPAN_KIND_")


@dataclass(slots=True)
class Receiver:
    """What has arrived so far."""

    port: int
    spans: list[ReceivedSpan] = field(default_factory=list)
    metrics: dict[str, Metric] = field(default_factory=dict)
    headers: list[dict[str, str]] = field(default_factory=list)
    failures: list[int] = field(default_factory=list)
    """Statuses to answer the next requests with."""
    changed: threading.Condition = field(default_factory=threading.Condition)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def wait_for(self, is_so: Callable[[], bool]) -> None:
        """Wait until something is so; called in a thread."""
        with self.changed:
            assert self.changed.wait_for(is_so, SECONDS), [
                (each.service, each.span.name) for each in self.spans
            ] + list(self.metrics)

    def take(self, path: str, headers: dict[str, str], body: bytes) -> int:
        """Keep a request; the status to answer with."""
        if headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        assert headers["content-type"] == "application/x-protobuf"
        with self.changed:
            self.headers.append(headers)
            if self.failures:
                self.changed.notify_all()
                return self.failures.pop(0)
            if path == "/v1/traces":
                self._take_spans(ExportTraceServiceRequest.FromString(body))
            elif path == "/v1/metrics":
                for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                    for scope in resource.scope_metrics:
                        self.metrics |= {metric.name: metric for metric in scope.metrics}
            else:
                return 404
            self.changed.notify_all()
        return 200

    def _take_spans(self, request: ExportTraceServiceRequest) -> None:
        for resource in request.resource_spans:
            service = strings(resource.resource.attributes)["service.name"]
            for scope in resource.scope_spans:
                self.spans += [ReceivedSpan(service, span) for span in scope.spans]


def strings(attributes: object) -> dict[str, str]:
    """Attributes by key; those that are no strings are left out."""
    pairs: list[KeyValue] = list(attributes)  # type: ignore[call-overload]  # a repeated field
    return {pair.key: pair.value.string_value for pair in pairs if pair.value.HasField("string_value")}


@contextmanager
def receiving() -> Iterator[Receiver]:
    """A receiver on a free port."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            body = self.rfile.read(int(headers["content-length"]))
            self.send_response(receiver.take(self.path, headers, body))
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        receiver = Receiver(server.server_port)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield receiver
        finally:
            server.shutdown()
            thread.join()
