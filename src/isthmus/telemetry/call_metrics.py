"""Metrics: calls by server, tool, frontend and outcome, and the text that Prometheus reads.

`CallMetrics` is a recorder. It counts on the path of every call, so it only adds to numbers that one look finds; label
texts are made once per series. Labels are bounded: callers and sessions are never labels, and tools and servers beyond
a limit count as `other`.
`Exposition` writes text format 0.0.4, or OpenMetrics if the scraper asks for it. `app.metrics_endpoint` collects
everything else and serves it. Why there is no library for this: docs/decisions/telemetry.md.
"""

from __future__ import annotations

import hashlib
import time
from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Literal, TypeAlias

from isthmus.core.calls.running_call import InFlight
from isthmus.core.histograms import CALL_BOUNDS, Histogram
from isthmus.core.ports import Recorder, StrictAudit
from isthmus.model.calls import Kind, Outcome, Result
from isthmus.model.names import ServerName
from isthmus.wire.mcp.forwarded_methods import METHODS

OTHER = "other"
"""The label of all servers or tools beyond the limit."""

SERVERS_MAX = 1_000
"""Servers with labels of their own: dial-in servers may use ever new names."""

COUNTED_SERVERS_MAX = 20_000
"""Servers with counts of their own, for status and console."""

OTHERS = ServerName("#others")
"""Counts all further servers; no server can have this name."""

SAMPLES_MAX = 500
WATCH_SECONDS = 15.0
"""How long durations are kept after the figures were read; otherwise a call only updates counts."""

SHARE_OF_TOOLS = 4
"""One server may have this part of all labelled tools: callers of an unlisted server make names up."""

SERIES_MAX = 5_000
"""Combinations of labels; later ones count as tool and server `other`. A scrape of so many has 16 MB."""

KNOWN_KEYS_MAX = 20_000
"""Combinations that are found at once; later ones take a longer way."""

LABEL_LENGTH_MAX = 128

SERIES_AT_ONCE = 200
"""Series that are written between two turns of the event loop; that takes about a millisecond."""

TEXT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
OPEN_METRICS_TYPE = b"application/openmetrics-text; version=1.0.0; charset=utf-8"

MetricsAccess: TypeAlias = Literal["operators", "open", "off"]
ACCESS: tuple[MetricsAccess, ...] = ("operators", "open", "off")


@dataclass(frozen=True, slots=True)
class TelemetrySettings:
    """The `[telemetry]` settings; `config` fills them."""

    metrics: MetricsAccess = "operators"
    metrics_key: str | None = field(default=None, repr=False)
    metrics_tools: int = 1_000
    otlp_endpoint: str | None = None
    sample_ratio: float | None = None

    def __post_init__(self) -> None:
        if self.metrics not in ACCESS:
            raise ValueError(f"metrics must be one of {', '.join(ACCESS)}, not {self.metrics!r}")
        if not 0 <= self.metrics_tools <= 100_000:
            raise ValueError(f"metrics_tools must be between 0 and 100000, not {self.metrics_tools}")
        if self.otlp_endpoint is not None and not self.otlp_endpoint.startswith(("http://", "https://")):
            raise ValueError(f"otlp_endpoint must be a URL such as http://localhost:4318, not {self.otlp_endpoint!r}")
        if self.sample_ratio is not None and not 0 <= self.sample_ratio <= 1:
            raise ValueError(f"sample_ratio must be between 0 and 1, not {self.sample_ratio:g}")


# -- calls -------------------------------------------------------------------------------------------------------------

CallKey: TypeAlias = tuple[ServerName | None, str, Kind, str, str, str]
"""Server, the server's own name of the tool, kind, frontend, outcome, and whether it ran."""


class CallSeries:
    """The calls of one combination of labels."""

    __slots__ = ("at_server", "durations", "key", "labels", "received_bytes", "sent_bytes")

    def __init__(self, key: CallKey, *, measures_servers: bool) -> None:
        server, tool, kind, frontend, outcome, executed = self.key = key
        self.labels = labels(
            server=server or "",
            tool=tool,
            method=METHODS.get(kind, OTHER),
            frontend=frontend or "hub",
            outcome=outcome,
            executed=executed,
        )
        self.durations = Histogram()
        self.at_server = Histogram() if measures_servers else None
        """How long the server took, without the wait in its queue."""
        self.sent_bytes = 0
        """Bytes of arguments that were sent to the server."""
        self.received_bytes = 0
        """Bytes of its results."""


class OutcomeCount:
    """The calls of one server that ended in one way."""

    __slots__ = ("calls", "seconds")

    def __init__(self) -> None:
        self.calls = 0
        self.seconds = 0.0


@dataclass(slots=True)
class ServerCounts:
    """The calls of one server."""

    late: int = 0
    """Replies that came after the end of their call."""
    by_outcome: defaultdict[str, OutcomeCount] = field(default_factory=lambda: defaultdict(OutcomeCount))
    """By outcome: `result`, `tool_error`, or the reason of a fault."""
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=SAMPLES_MAX))
    """How long the last calls took, while the figures are being read."""

    @property
    def outcomes(self) -> dict[str, int]:
        """Calls by outcome."""
        return {outcome: count.calls for outcome, count in self.by_outcome.items()}

    @property
    def calls(self) -> int:
        """All calls."""
        return sum(count.calls for count in self.by_outcome.values())

    @property
    def seconds(self) -> float:
        """What all calls took together."""
        return sum(count.seconds for count in self.by_outcome.values())

    def figures(self) -> dict[str, object]:
        """The counts as JSON has them, with percentiles of the last calls."""
        took = sorted(self.recent)
        latency = (
            {
                "calls": len(took),
                "p50": round(took[len(took) // 2], 6),
                "p99": round(took[len(took) * 99 // 100], 6),
            }
            if took
            else None
        )
        return {
            "calls": self.calls,
            "seconds": round(self.seconds, 6),
            "late": self.late,
            "outcomes": self.outcomes,
            "latency": latency,
        }


class CallMetrics:
    """A recorder that counts calls: by server, and in a bounded number of series."""

    strict_audit: StrictAudit | None = None
    started: Callable[[InFlight], None] | None = None

    def __init__(self, tools_max: int = 1_000, *, measures_servers: bool = False) -> None:
        self._tools_max = tools_max
        self._measures_servers = measures_servers
        self._known: dict[CallKey, tuple[CallSeries, ServerCounts, OutcomeCount]] = {}
        """What a call with this key is counted in."""
        self.series: dict[CallKey, CallSeries] = {}
        self.servers: dict[ServerName | None, ServerCounts] = {}
        self.waits: dict[ServerName, Histogram] = {}
        """How long calls waited that could not be sent at once, by server."""
        self._tools: set[tuple[ServerName, str]] = set()
        self._tools_of: Counter[ServerName] = Counter()
        self._servers: set[ServerName] = set()
        self._watched_until = 0.0
        """While the figures are being read, each duration is kept as well."""

    def call_ended(self, inflight: InFlight, server: ServerName | None, outcome: Outcome, seconds: float) -> None:
        """Count a call. The time for which a person held it is not the server's."""
        # Not `was_sent`, here and in `RecentCalls`: a property costs a function call, and every call comes here.
        call, was_sent = inflight.call, inflight.link is not None and not inflight.is_unreached
        held = 0.0 if inflight.steps is None else inflight.held_seconds(seconds)
        seconds -= held
        received = 0
        if isinstance(outcome, Result):  # asked first: the usual class is recognized at once
            received = len(outcome.payload)
            if outcome.asked_by is not None:
                word, executed = "asked", "unknown"
            else:
                word, executed = "tool_error" if outcome.is_error else "ok", "yes" if was_sent else "no"
        else:
            word, executed = outcome.reason, outcome.executed
        kind = call.kind
        tool = inflight.name if kind == "tool" and server is not None else ""
        key = (server, tool, kind, call.frontend, word, executed)
        series, counts, ended = self._known.get(key) or self._find(key)
        durations = series.durations
        durations.buckets[bisect_left(CALL_BOUNDS, seconds)] += 1
        durations.sum += seconds
        ended.calls += 1
        ended.seconds += seconds
        if was_sent:
            if series.at_server is not None:
                series.at_server.observe(seconds - max(0.0, inflight.wait_seconds - held))
            series.sent_bytes += len(call.arguments)
            series.received_bytes += received
        if self._watched_until:
            self._sample(counts, seconds)

    def waited(self, inflight: InFlight, seconds: float) -> None:
        """Count a wait in a server's queue."""
        if inflight.route is None:
            return
        server = self.server_label(inflight.route.feature.server)
        waits = self.waits.get(server)
        if waits is None:
            waits = self.waits[server] = Histogram()
        waits.observe(seconds - inflight.held_seconds(seconds))

    def late(self, server: ServerName) -> None:
        """Count a late reply."""
        self._counts_of(server).late += 1

    def figures(self) -> dict[ServerName | None, Callable[[], Mapping[str, object]]]:
        """What reads the figures of each server; for a moment, durations are kept for the next look."""
        self._watched_until = time.monotonic() + WATCH_SECONDS
        return {server: counts.figures for server, counts in self.servers.items()}

    def _sample(self, counts: ServerCounts, seconds: float) -> None:
        if time.monotonic() > self._watched_until:
            self._watched_until = 0.0
            for each in self.servers.values():
                each.recent.clear()
        else:
            counts.recent.append(seconds)

    def _find(self, key: CallKey) -> tuple[CallSeries, ServerCounts, OutcomeCount]:
        word, counts = key[4], self._counts_of(key[0])
        found = (self._series_of(key), counts, counts.by_outcome["result" if word in ("ok", "asked") else word])
        if len(self._known) < KNOWN_KEYS_MAX:
            self._known[key] = found
        return found

    def _counts_of(self, server: ServerName | None) -> ServerCounts:
        counts = self.servers.get(server)
        if counts is None:
            known = server if len(self.servers) < COUNTED_SERVERS_MAX else OTHERS
            counts = self.servers.setdefault(known, ServerCounts())
        return counts

    def server_label(self, server: ServerName) -> ServerName:
        """The server's own name, or `other` if there are too many."""
        if server not in self._servers:
            if len(self._servers) >= SERVERS_MAX:
                return ServerName(OTHER)
            self._servers.add(server)
        return server

    def _series_of(self, key: CallKey) -> CallSeries:
        """The series of these labels within the limits; made if it is new."""
        server, tool, *rest = key
        if server is not None:
            server = ServerName(OTHER) if len(self.series) >= SERIES_MAX else self.server_label(server)
        if tool and server is not None and (server, tool) not in self._tools:
            if (
                len(self.series) >= SERIES_MAX
                or len(self._tools) >= self._tools_max
                or self._tools_of[server] * SHARE_OF_TOOLS >= self._tools_max
            ):
                tool = OTHER
            else:
                self._tools.add((server, tool))
                self._tools_of[server] += 1
        bounded: CallKey = (server, tool, *rest)  # type: ignore[assignment]  # the rest of a key
        series = self.series.get(bounded)
        if series is None:
            series = self.series[bounded] = CallSeries(bounded, measures_servers=self._measures_servers)
        return series


class GroupedCounters:
    """Counts servers that come and go under one name."""

    strict_audit: StrictAudit | None = None

    def __init__(self, counters: Recorder, name: ServerName) -> None:
        self._counters = counters
        self._name = name
        self.started = counters.started

    def call_ended(self, inflight: InFlight, server: ServerName | None, outcome: Outcome, seconds: float) -> None:
        """Count a call."""
        self._counters.call_ended(inflight, None if server is None else self._name, outcome, seconds)

    def waited(self, inflight: InFlight, seconds: float) -> None:
        """Nothing to count: queues of these servers have no name that lasts."""

    def late(self, server: ServerName) -> None:
        """Count a late reply."""
        self._counters.late(self._name)


# -- the text ----------------------------------------------------------------------------------------------------------

_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


def labels(**values: str) -> str:
    """Labels as the text has them, without braces; empty values are left out."""
    return ",".join(f'{name}="{_label_value(value)}"' for name, value in values.items() if value)


def _label_value(value: str) -> str:
    if len(value) > LABEL_LENGTH_MAX:
        # With a digest: two long names that begin alike stay two series.
        digest = hashlib.blake2b(value.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()
        value = f"{value[: LABEL_LENGTH_MAX - 13]}~{digest}"
    return value.encode("utf-8", "backslashreplace").decode().translate(_ESCAPES)


@cache
def _bound_labels(bounds: tuple[float, ...]) -> tuple[str, ...]:
    """The last label of each bucket, and what follows it. There are two or three such tuples."""
    return tuple(f'le="{bound}"}} ' for bound in (*map(float, bounds), "+Inf"))


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else repr(float(value))


class Exposition:
    """Writes metric families, one after the other."""

    def __init__(self, *, is_open_metrics: bool = False) -> None:
        self._is_open_metrics = is_open_metrics
        self._lines: list[str] = []
        self._chunks: list[bytes] = []

    def counter(self, name: str, help: str, samples: Iterable[tuple[str, float]]) -> None:
        """A family whose name ends in `_total`."""
        self._head(name.removesuffix("_total") if self._is_open_metrics else name, "counter", help)
        self._samples(name, samples)

    def gauge(self, name: str, help: str, samples: Iterable[tuple[str, float]]) -> None:
        """A family of values that go up and down."""
        self._head(name, "gauge", help)
        self._samples(name, samples)

    def histogram(self, name: str, help: str, samples: Iterable[tuple[str, Histogram]]) -> Generator[None, None, None]:
        """A family of histograms; pauses between some of them, so that the event loop gets a turn."""
        self._head(name, "histogram", help)
        for at, (label, histogram) in enumerate(samples):
            if at % SERIES_AT_ONCE == SERIES_AT_ONCE - 1:
                self._flush()
                yield
            comma, braces = ("," if label else ""), (f"{{{label}}}" if label else "")
            total, lines, start = 0, self._lines, f"{name}_bucket{{{label}{comma}"
            for count, bound in zip(histogram.buckets, _bound_labels(histogram.bounds), strict=True):
                total += count
                lines.append(f"{start}{bound}{total}")
            lines.append(f"{name}_sum{braces} {_number(histogram.sum)}")
            lines.append(f"{name}_count{braces} {total}")

    def _head(self, name: str, kind: str, help: str) -> None:
        self._lines.append(f"# HELP {name} {help}")
        self._lines.append(f"# TYPE {name} {kind}")

    def _samples(self, name: str, samples: Iterable[tuple[str, float]]) -> None:
        for label, value in samples:
            self._lines.append(f"{name}{{{label}}} {_number(value)}" if label else f"{name} {_number(value)}")

    def _flush(self) -> None:
        # Bit by bit: to encode megabytes at once would hold the event loop.
        self._lines.append("")
        self._chunks.append("\n".join(self._lines).encode())
        self._lines.clear()

    def text(self) -> bytes:
        """Everything that was written."""
        if self._is_open_metrics:
            self._lines.append("# EOF")
        self._flush()
        return b"".join(self._chunks)


def merge_texts(texts: Mapping[str, bytes], label: str) -> Generator[None, None, bytes]:
    """One text from those of several processes, whose samples get a label with the process; pauses between parts."""
    families: dict[str, list[str]] = {}
    for process, text in texts.items():
        added, family = f'{label}="{process}"', families.setdefault("", [])
        for at, line in enumerate(text.decode().split("\n")):
            if at % LINES_AT_ONCE == LINES_AT_ONCE - 1:
                yield
            if line.startswith("# HELP "):
                family = families.setdefault(line.split(" ", 3)[2], [])
                if not family:
                    family.append(line)
            elif line.startswith("# TYPE "):
                if len(family) == 1:
                    family.append(line)
            elif line and not line.startswith("#"):
                name, brace, rest = line.partition("{")
                if brace and " " not in name:
                    family.append(f"{name}{{{added},{rest}")
                else:
                    name, _, value = line.partition(" ")
                    family.append(f"{name}{{{added}}} {value}")
    end = ["# EOF"] if any(text.endswith(b"# EOF\n") for text in texts.values()) else []
    chunks: list[bytes] = []
    for family in (*families.values(), end):
        if family:
            chunks.append("\n".join((*family, "")).encode())
            yield
    return b"".join(chunks)


LINES_AT_ONCE = 1_000


def write_calls(out: Exposition, metrics: CallMetrics) -> Generator[None, None, None]:
    """The families of `CallMetrics`; pauses between parts."""
    series = list(metrics.series.values())
    out.counter(
        "isthmus_calls_total",
        "Calls that have ended, by outcome and by whether the tool ran (executed).",
        [(each.labels, each.durations.count) for each in series],
    )
    yield
    yield from out.histogram(
        "isthmus_call_duration_seconds",
        "Time from the start of a call in the hub to its end, the wait in its queue included.",
        [(each.labels, each.durations) for each in series],
    )
    sent: Counter[str] = Counter()
    received: Counter[str] = Counter()
    for each in series:
        if each.key[0] is not None:
            name = labels(server=each.key[0])
            sent[name] += each.sent_bytes
            received[name] += each.received_bytes
    out.counter("isthmus_server_sent_bytes_total", "Bytes of arguments sent to a server.", sent.items())
    out.counter("isthmus_server_received_bytes_total", "Bytes of results received from a server.", received.items())
    yield from out.histogram(
        "isthmus_queue_wait_seconds",
        "How long calls waited for a slot or a link that could not be sent at once.",
        [(labels(server=server), waits) for server, waits in list(metrics.waits.items())],
    )


def by_label(name: str, values: Mapping[str, float]) -> list[tuple[str, float]]:
    """Samples of a family with one label."""
    return [(labels(**{name: key}), value) for key, value in values.items()]
