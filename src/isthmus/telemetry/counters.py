"""Counts of what happened, as plain integers: adding to one costs a tenth of a microsecond, reading is rare."""

from __future__ import annotations

from dataclasses import dataclass, field

from isthmus.core.ports import AuditGate
from isthmus.model.calls import Call, Outcome
from isthmus.model.faults import Fault
from isthmus.model.names import ServerName

SERVERS_MAX = 20_000
"""Servers that are counted each by itself: those that dial in may have ever new names."""

OTHERS = ServerName("#others")
"""What all further ones are counted as; no server has such a name."""


@dataclass(slots=True)
class ServerCounts:
    """What happened on one server."""

    calls: int = 0
    seconds: float = 0.0
    late: int = 0
    """Answers that came after their call had ended."""
    outcomes: dict[str, int] = field(default_factory=dict)
    """How often calls ended in each way: `result`, `tool_error`, or a fault's reason."""


class Counters:
    """A recorder that counts in memory."""

    audit_gate: AuditGate | None = None

    def __init__(self) -> None:
        self.servers: dict[ServerName | None, ServerCounts] = {}

    def ended(
        self, call: Call, server: ServerName | None, outcome: Outcome, seconds: float, link: object = None
    ) -> None:
        """Count a call."""
        counts = self._of(server)
        counts.calls += 1
        counts.seconds += seconds
        key = outcome.reason if isinstance(outcome, Fault) else "tool_error" if outcome.is_error else "result"
        counts.outcomes[key] = counts.outcomes.get(key, 0) + 1

    def late(self, server: ServerName) -> None:
        """Count an answer that nobody waits for."""
        self._of(server).late += 1

    def together(self, name: ServerName) -> GroupedCounters:
        """A recorder that counts many servers as this one."""
        return GroupedCounters(self, name)

    def _of(self, server: ServerName | None) -> ServerCounts:
        counts = self.servers.get(server)
        if counts is None:
            known = server if len(self.servers) < SERVERS_MAX else OTHERS
            counts = self.servers.setdefault(known, ServerCounts())
        return counts


class GroupedCounters:
    """Counts what happens on servers that come and go as if they were one."""

    audit_gate: AuditGate | None = None

    def __init__(self, counters: Counters, name: ServerName) -> None:
        self._counters = counters
        self._name = name

    def ended(
        self, call: Call, server: ServerName | None, outcome: Outcome, seconds: float, link: object = None
    ) -> None:
        """Count a call."""
        self._counters.ended(call, None if server is None else self._name, outcome, seconds)

    def late(self, server: ServerName) -> None:
        """Count an answer that nobody waits for."""
        self._counters.late(self._name)
