"""Counts the bytes of long requests and unread responses that each caller and each tenant has in memory.

A request counts from its header, with the length that it announces, until it is answered; over gRPC, stdio and the
relay from its last byte. A response over HTTP counts until its caller has read it. Short messages are not counted: the
number of connections bounds them. The hub has one such count for all frontends. A long request that exceeds it is
refused; unread responses exceed it as they come, and then every new call is refused until some are read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

from isthmus.model.callers import Caller
from isthmus.model.fault_table import TooManyBytes

COUNTED_BYTES = 64 * 1024
"""Shorter messages are not counted; the listener reads that much ahead of every connection."""


class BytesInFlight:
    """Sums by caller and by tenant."""

    def __init__(self, caller_bytes: int, tenant_bytes: int) -> None:
        self.caller_bytes = caller_bytes
        self.tenant_bytes = tenant_bytes
        self._all = _Sums()
        self._unread = _Sums()
        """Only the responses."""
        self.has_excess = False
        """Whether anybody's unread responses exceed a bound."""
        self.on_excess: Callable[[], None] = lambda: None
        """Called when that changes."""

    def enter(self, caller: Caller, size: int) -> TooManyBytes | None:
        """Count a request, or return why it is too much; a single request is never too much."""
        held = self._all.of_caller(caller)
        if held and held + size > self.caller_bytes:
            return TooManyBytes(caller.name, held, self.caller_bytes)
        held = self._all.of_tenant(caller)
        if held and held + size > self.tenant_bytes:
            return TooManyBytes(f"tenant {caller.tenant}", held, self.tenant_bytes)
        self._all.add(caller, size)
        return None

    def hold(self, caller: Caller, size: int) -> None:
        """Count a request that was already accepted."""
        self._all.add(caller, size)

    def leave(self, caller: Caller, size: int) -> None:
        """A counted request was answered, or its caller disconnected."""
        self._all.add(caller, -size)

    def hold_response(self, caller: Caller, size: int) -> Callable[[], None]:
        """Count a response until the returned function is called, once: it was read, or its caller disconnected."""
        self._add_response(caller, size)
        return partial(self._add_response, caller, -size)

    def _add_response(self, caller: Caller, size: int) -> None:
        self._all.add(caller, size)
        self._unread.add(caller, size)
        has_excess = self._unread.are_over(self.caller_bytes, self.tenant_bytes)
        if has_excess != self.has_excess:
            self.has_excess = has_excess
            self.on_excess()

    def excess(self, caller: Caller) -> TooManyBytes | None:
        """Why a caller may begin nothing before it has read more; None if it may."""
        held = self._unread.of_caller(caller)
        if held > self.caller_bytes:
            return TooManyBytes(caller.name, held, self.caller_bytes)
        held = self._unread.of_tenant(caller)
        if held > self.tenant_bytes:
            return TooManyBytes(f"tenant {caller.tenant}", held, self.tenant_bytes)
        return None


class _Sums:
    def __init__(self) -> None:
        self._of_caller: Counter[tuple[str, str]] = Counter()
        self._of_tenant: Counter[str] = Counter()

    def of_caller(self, caller: Caller) -> int:
        return self._of_caller[caller.tenant, caller.name]

    def of_tenant(self, caller: Caller) -> int:
        return self._of_tenant[caller.tenant]

    def are_over(self, caller_bytes: int, tenant_bytes: int) -> bool:
        sums = (self._of_caller.values(), caller_bytes), (self._of_tenant.values(), tenant_bytes)
        return any(max(held, default=0) > most for held, most in sums)

    def add(self, caller: Caller, size: int) -> None:
        key = (caller.tenant, caller.name)
        self._of_caller[key] += size
        self._of_tenant[caller.tenant] += size
        if not self._of_caller[key]:
            del self._of_caller[key]
        if not self._of_tenant[caller.tenant]:
            del self._of_tenant[caller.tenant]
