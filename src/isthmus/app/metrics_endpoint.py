"""Everything that `/metrics` shows, and the exporter of spans: made by `app.serve`, read from the parts of the hub.

Nothing here is on the path of a call: figures are read when somebody scrapes.
"""

from __future__ import annotations

import hmac
import os
import platform
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sized
from contextlib import suppress
from typing import TYPE_CHECKING

import structlog

from isthmus import __version__
from isthmus.app.hub import RunningHub
from isthmus.config.settings import Configuration
from isthmus.core.calls.circuit_breaker import BreakerState
from isthmus.core.calls.server_queue import ServerQueue
from isthmus.core.event_loop import LONG_BYTES, in_passes
from isthmus.core.journal import HealthReportingJournal, MeasuredJournal
from isthmus.frontends.http.auth import Authenticator, Fields
from isthmus.frontends.http.health import Metrics
from isthmus.frontends.http.listener import HttpListener
from isthmus.frontends.relay.http import RelayHttp
from isthmus.identity.keys import credential_of
from isthmus.model.names import ServerName
from isthmus.telemetry.call_metrics import (
    OPEN_METRICS_TYPE,
    TEXT_TYPE,
    CallMetrics,
    Exposition,
    by_label,
    labels,
    write_calls,
)
from isthmus.telemetry.loop_lag import LoopMonitor
from isthmus.telemetry.otlp import OtlpExporter, Telemetry, read_otlp

if TYPE_CHECKING:  # a hub that is alone imports nothing of it
    from isthmus.app.cluster import Cluster

if sys.platform != "win32":
    import resource

log = structlog.get_logger(__name__)

BREAKER: Mapping[BreakerState, int] = {"closed": 0, "half_open": 1, "open": 2}


def open_telemetry(configuration: Configuration, environment: Mapping[str, str]) -> Telemetry:
    """The counters of calls, and the exporter if `[telemetry]` or the `OTEL_*` variables ask for one."""
    settings, otlp = configuration.telemetry, None
    try:
        otlp = read_otlp(settings, environment, str(uuid.uuid4()))
        metrics = CallMetrics(settings.metrics_tools, measures_servers=otlp is not None and otlp.metrics is not None)
        exporter = None if otlp is None else OtlpExporter(otlp, metrics)
    except (ValueError, OSError) as error:  # a variable is unusable, or a certificate cannot be read
        log.warning("no telemetry is sent", reason=str(error))
        return Telemetry(CallMetrics(settings.metrics_tools))
    if otlp is not None and exporter is not None:
        targets = {name: target.url for name in ("traces", "metrics") if (target := getattr(otlp, name)) is not None}
        log.info("telemetry is sent by OTLP", **targets)
        exporter.start()
    return Telemetry(metrics, exporter)


async def close_telemetry(telemetry: Telemetry) -> None:
    """Send the last spans, if the collector accepts them soon."""
    if telemetry.exporter is not None:
        await telemetry.exporter.aclose()


def open_metrics(
    running: RunningHub,
    auth: Authenticator,
    telemetry: Telemetry,
    monitor: LoopMonitor,
    sessions: Mapping[str, Sized],
    listener: HttpListener,
    relay: RelayHttp | None = None,
    cluster: Cluster | None = None,
) -> Metrics:
    """The frontend of `/metrics`; `sessions` are those of each frontend. Rejected requests are counted from now on.

    The workers of a `cluster` on one machine have one address, and each shows the figures of all.
    """
    counts: dict[str, Callable[[], int]] = {name: each.__len__ for name, each in sessions.items()}
    if relay is not None:
        counts["relay"] = lambda: len(relay.devices())
    shown = HubMetrics(running, telemetry, monitor, counts, listener.connections)
    auth.on_turned_away = shown.count_rejected(auth.on_turned_away)
    return Metrics(auth, shown.is_allowed, shown.render if cluster is None else cluster.all_metrics(shown.render))


class HubMetrics:
    """Collects the figures of a serving hub."""

    def __init__(
        self,
        running: RunningHub,
        telemetry: Telemetry,
        monitor: LoopMonitor,
        sessions: Mapping[str, Callable[[], int]],
        connections: Callable[[], int],
    ) -> None:
        """`sessions` counts those of each frontend."""
        self._running = running
        self._calls = telemetry.calls
        self._exporter = telemetry.exporter
        self._monitor = monitor
        self._sessions = sessions
        self._connections = connections
        self._rejected: Counter[tuple[str, int]] = Counter()

    def is_allowed(self, fields: Fields) -> bool | None:
        """Whether a request of another caller than an operator may read the metrics; None if there are none."""
        settings = self._running.configuration.telemetry
        if settings.metrics == "off":
            return None
        if settings.metrics == "open":
            return True
        credential = credential_of(fields)
        key = settings.metrics_key
        return key is not None and credential is not None and hmac.compare_digest(credential, key.encode())

    def count_rejected(self, before: Callable[[str, int], None]) -> Callable[[str, int], None]:
        """Count requests that frontends turn away; returns what to call for each."""

        def on_turned_away(frontend: str, status: int) -> None:
            self._rejected[frontend, status] += 1
            before(frontend, status)

        return on_turned_away

    async def render(self, *, is_open_metrics: bool) -> tuple[bytes, bytes]:
        """The media type and the text."""
        out = Exposition(is_open_metrics=is_open_metrics)
        await in_passes(self._write(out), LONG_BYTES + 1)  # a hub may have thousands of series: in passes
        return OPEN_METRICS_TYPE if is_open_metrics else TEXT_TYPE, out.text()

    def _write(self, out: Exposition) -> Generator[None, None, None]:
        out.gauge(
            "isthmus_build_info",
            "The version of the hub and of Python.",
            [(labels(version=__version__, python=platform.python_version()), 1)],
        )
        yield from write_calls(out, self._calls)
        yield from self._servers(out)
        self._callers(out)
        self._storage(out)
        yield from self._event_loop(out)
        _process(out)

    def _servers(self, out: Exposition) -> Generator[None, None, None]:
        hub = self._running.hub
        statuses = hub.snapshot.server_statuses
        states: Counter[str] = Counter(status.state for status in statuses.values())
        out.gauge("isthmus_servers", "Servers by state.", by_label("state", states))
        queues: dict[str, list[ServerQueue]] = {}
        for name, queue in sorted(hub.server_queues.items()):
            queues.setdefault(self._calls.server_label(name), []).append(queue)
        yield
        # Servers that dialled in come and go, and disabled ones are not missed: `isthmus_servers` counts them.
        missed = {name: each for name, each in statuses.items() if each.state not in ("away", "disabled", "stopped")}
        up = {name: int(missed[ServerName(name)].state == "ready") for name in queues if name in missed}
        out.gauge("isthmus_server_up", "Whether a server is connected and listed.", by_label("server", up))
        breakers = {
            name: BREAKER[of_server[0].breaker_state] for name, of_server in queues.items() if len(of_server) == 1
        }
        out.gauge(
            "isthmus_server_breaker_state",
            "The circuit breaker of a server: 0 closed, 1 half open, 2 open.",
            by_label("server", breakers),
        )
        yield
        for family, help, figure in (
            ("isthmus_server_calls_running", "Calls that run at a server.", lambda queue: queue.running),
            ("isthmus_server_calls_queued", "Calls that wait for a slot or a link of a server.", lambda q: q.queued),
            ("isthmus_server_calls_limit", "Calls that may run at a server at once.", lambda queue: queue.max_calls),
            ("isthmus_server_queue_limit", "Calls that may wait for a server.", lambda queue: queue.max_queued),
            ("isthmus_server_links", "Connections to a server.", lambda queue: queue.links),
        ):
            values = {name: sum(map(figure, of_server)) for name, of_server in queues.items()}
            out.gauge(family, help, by_label("server", values))
            yield
        late: Counter[str] = Counter()
        for server, counts in list(self._running.counters.servers.items()):
            if server is not None and counts.late:
                late[self._calls.server_label(server)] += counts.late
        out.counter(
            "isthmus_late_replies_total",
            "Replies of a server to calls that had ended already.",
            by_label("server", late),
        )

    def _callers(self, out: Exposition) -> None:
        running = self._running
        counts = {name: count() for name, count in self._sessions.items()}
        out.gauge(
            "isthmus_sessions", "Open sessions of callers, and devices, by frontend.", by_label("frontend", counts)
        )
        out.gauge("isthmus_connections", "Open HTTP connections of callers.", [("", self._connections())])
        out.counter(
            "isthmus_rejected_requests_total",
            "Requests without a valid key, or from a place that is not allowed.",
            [
                (labels(frontend=frontend, status=str(status)), count)
                for (frontend, status), count in self._rejected.items()
            ],
        )
        out.gauge(
            "isthmus_approvals_waiting", "Calls that wait for a person's decision.", [("", running.approvals.waiting)]
        )
        budgets = running.budgets
        out.counter(
            "isthmus_budget_refusals_total",
            "Calls that a budget had no room for.",
            by_label("budget", {budget.name: budgets.refusals[budget.name] for budget in budgets.budgets}),
        )
        out.gauge(
            "isthmus_budget_counters",
            "Callers, tenants, sets or tools that a budget counts.",
            by_label("budget", budgets.counts()),
        )
        out.gauge("isthmus_tasks", "Unfinished tasks in memory, by state.", by_label("state", running.tasks.counts()))

    def _storage(self, out: Exposition) -> None:
        journal, audit = self._running.journal, self._running.audit
        is_failing = isinstance(journal, HealthReportingJournal) and journal.is_failing
        out.gauge("isthmus_journal_failing", "Whether the journal refuses writes.", [("", int(is_failing))])
        if isinstance(journal, MeasuredJournal):
            figures = journal.write_metrics
            out.gauge("isthmus_journal_pending_writes", "Writes that are not durable yet.", [("", figures.pending)])
            out.gauge("isthmus_journal_lag_seconds", "Age of the oldest of them.", [("", figures.lag_seconds)])
            out.counter(
                "isthmus_journal_writes_total", "Writes by how they ended.", by_label("result", figures.results)
            )
            writes = out.histogram(
                "isthmus_journal_write_seconds",
                "How long the oldest write of each transaction took.",
                [("", figures.seconds)],
            )
            for _ in writes:
                pass
        if audit is not None:
            out.gauge("isthmus_audit_pending_records", "Audit records to be written.", [("", audit.unwritten)])
            out.counter("isthmus_audit_records_total", "Audit records written.", [("", audit.written)])
            out.counter(
                "isthmus_audit_dropped_records_total",
                "Audit records dropped because the journal refused them for too long.",
                [("", audit.dropped)],
            )
        if self._exporter is not None:
            counts = self._exporter.counts
            out.counter(
                "isthmus_traced_calls_total", "Traced calls by what became of their spans.", by_label("result", counts)
            )

    def _event_loop(self, out: Exposition) -> Generator[None, None, None]:
        monitor = self._monitor
        yield from out.histogram(
            "isthmus_event_loop_lag_seconds", "How late a timer of the event loop fires.", [("", monitor.lag)]
        )
        out.counter(
            "isthmus_event_loop_held_total", "How often work held the event loop for over 50 ms.", [("", monitor.held)]
        )


STARTED_AT = time.time()
"""Close enough to the start of the process: this module is imported by `isthmus serve` at once."""


def _process(out: Exposition) -> None:
    """The figures that client libraries of Prometheus have for every process, by the same names."""
    out.gauge("process_start_time_seconds", "Start of the process since 1970.", [("", round(STARTED_AT, 3))])
    own_seconds = sum(os.times()[:2])  # in user mode and in the kernel
    out.counter("process_cpu_seconds_total", "CPU time of the process.", [("", round(own_seconds, 3))])
    with suppress(OSError, ValueError, IndexError):  # only Linux has these files
        page = os.sysconf("SC_PAGE_SIZE")
        with open("/proc/self/statm", encoding="ascii") as statm:
            virtual, resident = (int(number) * page for number in statm.read().split()[:2])
        out.gauge("process_virtual_memory_bytes", "Virtual memory.", [("", virtual)])
        out.gauge("process_resident_memory_bytes", "Resident memory.", [("", resident)])
        out.gauge("process_open_fds", "Open file descriptors.", [("", len(os.listdir("/proc/self/fd")))])
    if sys.platform != "win32":
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        out.gauge("process_max_fds", "Most file descriptors that may be open.", [("", most)])
