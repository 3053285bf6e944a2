"""Recorders of calls: counters as plain integers, which cost a tenth of a microsecond, and a log of each call."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import structlog

from isthmus.core.calls.inflight import InFlight
from isthmus.core.ports import AuditGate, Recorder
from isthmus.model.calls import Outcome
from isthmus.model.faults import Fault
from isthmus.model.names import ServerName
from isthmus.telemetry.metrics import CallMetrics

log = structlog.get_logger(__name__)

SERVERS_MAX = 20_000
"""Servers with counters of their own: dial-in servers may use ever new names."""

SAMPLES_MAX = 500
WATCH_SECONDS = 15.0
"""How long durations are kept after the figures were read; otherwise a call only updates counters."""

OTHERS = ServerName("#others")
"""The name for all further servers; no server can have it."""


@dataclass(slots=True)
class ServerCounts:
    """The counters of one server."""

    calls: int = 0
    seconds: float = 0.0
    late: int = 0
    """Replies that came after the end of their call."""
    outcomes: dict[str, int] = field(default_factory=dict)
    """Calls by outcome: `result`, `tool_error`, or the reason of a fault."""
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=SAMPLES_MAX))
    """How long the last calls took, while the figures are being read."""

    def figures(self) -> dict[str, object]:
        """The counters as JSON has them, with percentiles of the last calls."""
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
            "outcomes": dict(self.outcomes),
            "latency": latency,
        }


class Counters:
    """A recorder that counts in memory."""

    audit_gate: AuditGate | None = None
    started: Callable[[InFlight], None] | None = None

    def __init__(self, metrics: CallMetrics | None = None) -> None:
        """With `metrics`, calls are also counted by tool, frontend and duration."""
        self._watched_until = 0.0
        """While the figures are being read, each duration is kept as well."""
        self.servers: dict[ServerName | None, ServerCounts] = {}
        self._metrics = metrics

    def ended(self, inflight: InFlight, server: ServerName | None, outcome: Outcome, seconds: float) -> None:
        """Count a call."""
        counts = self._of(server)
        counts.calls += 1
        counts.seconds += seconds
        key = outcome.reason if isinstance(outcome, Fault) else "tool_error" if outcome.is_error else "result"
        counts.outcomes[key] = counts.outcomes.get(key, 0) + 1
        if self._watched_until:
            self._sample(counts, seconds)
        if self._metrics is not None:
            self._metrics.ended(inflight, server, outcome, seconds)

    def waited(self, inflight: InFlight, seconds: float) -> None:
        """Count a wait in a queue."""
        if self._metrics is not None and inflight.route is not None:
            self._metrics.waited(inflight.route.feature.server, seconds)

    def _sample(self, counts: ServerCounts, seconds: float) -> None:
        if time.monotonic() > self._watched_until:
            self._watched_until = 0.0
            for each in self.servers.values():
                each.recent.clear()
        else:
            counts.recent.append(seconds)

    def figures(self) -> dict[ServerName | None, Callable[[], Mapping[str, object]]]:
        """What reads the figures of each server; for a moment, durations are kept for the next look."""
        self._watched_until = time.monotonic() + WATCH_SECONDS
        return {server: counts.figures for server, counts in self.servers.items()}

    def late(self, server: ServerName) -> None:
        """Count a late reply."""
        self._of(server).late += 1

    def _of(self, server: ServerName | None) -> ServerCounts:
        counts = self.servers.get(server)
        if counts is None:
            known = server if len(self.servers) < SERVERS_MAX else OTHERS
            counts = self.servers.setdefault(known, ServerCounts())
        return counts


class LoggedCalls:
    """A recorder that logs each call, for `isthmus serve --verbose`, and forwards it."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.started = recorder.started
        self.waited = recorder.waited
        self.late = recorder.late
        self.audit_gate = recorder.audit_gate

    def ended(self, inflight: InFlight, server: ServerName | None, outcome: Outcome, seconds: float) -> None:
        """Log and forward the end of a call."""
        self._recorder.ended(inflight, server, outcome, seconds)
        call = inflight.call
        fault = outcome if isinstance(outcome, Fault) else None
        log.debug(
            "call",
            tool=call.name,
            caller=call.caller.name,
            ms=round(seconds * 1000, 1),
            outcome=outcome_key(outcome),
            executed=None if fault is None else fault.executed,
            reason=None if fault is None else fault.message,
            **inflight.ids(),
        )


def outcome_key(outcome: Outcome) -> str:
    """`result`, `tool_error`, or the reason of a fault."""
    return outcome.reason if isinstance(outcome, Fault) else "tool_error" if outcome.is_error else "result"


class GroupedCounters:
    """Counts servers that come and go under one name."""

    audit_gate: AuditGate | None = None

    def __init__(self, counters: Recorder, name: ServerName) -> None:
        self._counters = counters
        self._name = name
        self.started = counters.started

    def ended(self, inflight: InFlight, server: ServerName | None, outcome: Outcome, seconds: float) -> None:
        """Count a call."""
        self._counters.ended(inflight, None if server is None else self._name, outcome, seconds)

    def waited(self, inflight: InFlight, seconds: float) -> None:
        """Nothing to count: queues of these servers have no name that lasts."""

    def late(self, server: ServerName) -> None:
        """Count a late reply."""
        self._counters.late(self._name)
