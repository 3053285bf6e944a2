"""Counts the bytes of long requests that each caller and each tenant has in progress.

A request counts from its header, with the length that it announces, until it is answered. Short requests are not
counted: the number of connections bounds them. `app.routes` uses it before a frontend reads the body,
and gRPC once it has read a message.
"""

from __future__ import annotations

from collections import Counter

from isthmus.model.callers import Caller
from isthmus.model.faults import TooManyBytes

COUNTED_BYTES = 64 * 1024
"""Shorter requests are not counted; the listener reads that much ahead of every connection."""


class BytesInFlight:
    """Sums by caller and by tenant."""

    def __init__(self, caller_bytes: int, tenant_bytes: int) -> None:
        self.caller_bytes = caller_bytes
        self.tenant_bytes = tenant_bytes
        self._of_caller: Counter[tuple[str, str]] = Counter()
        self._of_tenant: Counter[str] = Counter()

    def enter(self, caller: Caller, size: int) -> TooManyBytes | None:
        """Count a request, or return why it is too much; a single request is never too much."""
        who = (caller.tenant, caller.name)
        held = self._of_caller[who]
        if held and held + size > self.caller_bytes:
            return TooManyBytes(caller.name, held, self.caller_bytes)
        held = self._of_tenant[caller.tenant]
        if held and held + size > self.tenant_bytes:
            return TooManyBytes(f"tenant {caller.tenant}", held, self.tenant_bytes)
        self._of_caller[who] += size
        self._of_tenant[caller.tenant] += size
        return None

    def leave(self, caller: Caller, size: int) -> None:
        """A counted request was answered, or its caller disconnected."""
        who = (caller.tenant, caller.name)
        self._of_caller[who] -= size
        self._of_tenant[caller.tenant] -= size
        if not self._of_caller[who]:
            del self._of_caller[who]
        if not self._of_tenant[caller.tenant]:
            del self._of_tenant[caller.tenant]
