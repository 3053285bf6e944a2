"""The limits of the hub.

Numbers only, checked when created. `config` fills them from `[limits]`; `app` passes them to the core, the links and
the frontends. `max_calls`, `max_queued` and `call_seconds` are defaults for servers that set none themselves.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

KIB = 1024
MIB = 1024 * KIB

CALL_SECONDS = 240.0
"""How long a server may be silent about a call, unless configured.

Clients time out themselves: the SDKs' HTTP clients (httpx as the Python SDK sets it, Node's fetch) after five minutes.
The hub times out a minute earlier, so that callers learn what happened and whether the tool ran."""

HARD_SECONDS = 3600.0
"""How long a call may take in all. Tools that report progress, and agents, work for many minutes; a server that reports
for ever returns its slot after an hour."""

HARD_SECONDS_MAX = 86_400.0
"""The largest `hard_seconds` that an operator may set: work that takes longer than a day does not belong in a call."""


@dataclass(frozen=True, slots=True)
class Limits:
    """All limits; durations are seconds."""

    call_seconds: float = CALL_SECONDS
    """How long a server may be silent about a call: since its start, or since the last sign of life (progress, a log
    line, an answered question, an agent's status update)."""
    hard_seconds: float = HARD_SECONDS
    """How long any call may take, whatever its server reports and however long its caller takes to answer questions."""
    connect_seconds: float = 5.0
    listing_seconds: float = 25.0
    """How long a list waits for servers without a cached list that are still connecting for the first time. A package
    runner that downloads its packages takes ten seconds and more, and most clients list once. Some clients give a
    server 30 s to start: one that hangs must not cost them all the others."""
    drain_seconds: float = 30.0
    """How long running calls may take once the hub is stopping."""
    lag_seconds: float = 10.0
    """How long a reader may stall before its connection is closed."""

    connections: int = 4096
    """Client connections at once, not counting WebSockets."""
    connections_per_address: int = 2048
    """Client connections of one address."""
    wrong_keys_per_minute: int = 60
    """How many unknown keys and tokens one address may send before it must wait."""

    max_calls: int = 64
    max_queued: int = 256
    tenant_calls: int = 1000
    """How many calls of one tenant may run or wait in the whole hub, if several tenants share it."""
    caller_bytes: int = 64 * MIB
    """How many bytes of long requests and unread responses of one caller may be in the whole hub."""
    tenant_bytes: int = 256 * MIB
    """The same for all callers of a tenant together."""
    kept_result_seconds: float = 3600.0
    """How long the whole of a result that was cut stays readable."""
    caller_kept_bytes: int = 64 * MIB
    """How many bytes of such results of one caller are kept; the oldest are dropped."""
    kept_bytes: int = 256 * MIB
    """The same for all callers; the oldest of the caller with the most bytes are dropped."""
    tools_per_server: int = 20_000
    """Entries of one list of a server: twice the longest that we know. A hostile server cannot make a view so long
    that compiling it holds the event loop for more than 50 ms."""
    list_pages: int = 10_000
    """Pages of one list of a server; with the cursor check, an endless list costs a bounded number of requests."""
    depth: int = 64
    """The nesting depth of JSON."""

    request_bytes: int = 4 * MIB
    reply_bytes: int = 16 * MIB
    """A message of a server, so also a page of one of its lists."""
    list_bytes: int = 64 * MIB
    """All definitions of one list of a server."""
    list_page_bytes: int = 4 * MIB
    """A page of a list that a caller gets. Many clients read only the first page, so it is long."""
    notification_bytes: int = 1 * MIB
    schema_bytes: int = 256 * KIB
    lag_bytes: int = 1 * MIB
    """How much may wait for a slow reader before its connection is closed."""

    breaker_failures: int = 5
    """Failures in a row that open the breaker."""
    breaker_share: float = 0.5
    """The share of failures that opens the breaker, of at least `breaker_calls` within `breaker_window_seconds`."""
    breaker_calls: int = 10
    breaker_window_seconds: float = 30.0
    breaker_open_seconds: float = 3.0
    """How long it stays open the first time; the time doubles up to `breaker_open_max_seconds`."""
    breaker_open_max_seconds: float = 60.0

    def __post_init__(self) -> None:
        for limit in fields(self):
            # Not `value <= 0`, so that NaN fails too; infinity is no bound at all.
            value = getattr(self, limit.name)
            if limit.name not in _MINIMUMS and not 0 < value < float("inf"):
                raise ValueError(f"{limit.name} must be positive, not {value}")
            if value < _MINIMUMS.get(limit.name, 0):
                raise ValueError(f"{limit.name} must be at least {_MINIMUMS[limit.name]}, not {value}")
            if value > _MAXIMUMS.get(limit.name, value):
                raise ValueError(f"{limit.name} must be at most {_MAXIMUMS[limit.name]:g}, not {value}")
        if self.call_seconds > self.hard_seconds:
            raise ValueError(
                f"call_seconds must be at most hard_seconds ({self.hard_seconds}), not {self.call_seconds}"
            )
        if self.breaker_open_max_seconds < self.breaker_open_seconds:
            raise ValueError(
                "breaker_open_max_seconds must be at least breaker_open_seconds "
                f"({self.breaker_open_seconds}), not {self.breaker_open_max_seconds}"
            )


_MINIMUMS = {
    "max_queued": 0,
    # Smaller ones reject an ordinary `initialize` or schema, and nothing works without an obvious reason.
    "request_bytes": 4 * KIB,
    "caller_bytes": 64 * KIB,
    "tenant_bytes": 64 * KIB,
    "reply_bytes": 4 * KIB,
    "notification_bytes": 1 * KIB,
    "schema_bytes": 1 * KIB,
    "list_bytes": 4 * KIB,
    "list_page_bytes": 4 * KIB,
    "lag_bytes": 4 * KIB,
    "depth": 8,
}

_MAXIMUMS = {
    "hard_seconds": HARD_SECONDS_MAX,
    "breaker_share": 1.0,
    # Decoders recurse once per level; deeper input would hit the interpreter's own limit first.
    "depth": 512,
}
