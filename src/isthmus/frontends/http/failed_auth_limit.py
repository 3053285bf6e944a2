"""The brake on guessing: who shows wrong keys, one after the other, is answered 429 for a while.

It counts failures, per address, and nothing else: a key that is right passes whoever else has failed from there,
because behind a proxy everybody has one address. So an accepted request never comes here. The gate asks for what is in
headers, faces with credentials of their own (a form, a query) ask by themselves.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Final, TypeAlias

import structlog

from isthmus.frontends.http.settings import whose_address

log = structlog.get_logger(__name__)

WRONG_KEYS_PER_MINUTE: Final = 60

WINDOW_SECONDS: Final = 60.0

ROUNDING_SECONDS: Final = 1e-6
"""What adding up times may be off by."""

ADDRESSES_MAX: Final = 4096
"""Addresses that are remembered; of more, those go first from which nothing wrong has come for longest."""

TOLD_SECONDS: Final = 60.0
"""How often the operator is told at most, however many guess."""

Client: TypeAlias = tuple[str, int] | None
"""Where a request comes from, as ASGI has it; None on a socket without addresses."""

UNKNOWN: Final = ("", 0)

COMING_FROM: ContextVar[Client | str] = ContextVar("coming_from")
"""Whence the request comes that this task serves, set by whoever routes it. Faces give the gate headers and nothing
else, and one that is looked at before it has a task (it is again afterwards) is not to be counted twice."""


class FailedAuthLimit:
    """Lets each address fail so many times a minute, at once or spread."""

    def __init__(self, per_minute: int = WRONG_KEYS_PER_MINUTE, now: Callable[[], float] = time.monotonic) -> None:
        self.per_minute = per_minute
        self.refused = 0
        """How often somebody was told to wait, since the start."""
        self.on_told: Callable[[str, int], None] = _nobody
        """Hears what the log is told: an address, and how many were refused since the last time, from everywhere."""
        self._now = now
        self._paid_at: dict[str, float] = {}
        """By address, when all its failures will be forgotten; the one that failed last comes last."""
        self._told_at = -math.inf
        self._told = 0

    def failed(self, client: Client | str) -> int:
        """Count a wrong key; return how many seconds to wait before another, 0 if that may come at once."""
        now = self._now()
        address = whose_address(client if isinstance(client, str) else (client or UNKNOWN)[0])
        paid_at = max(now, self._paid_at.pop(address, now)) + WINDOW_SECONDS / self.per_minute
        over = paid_at - now - WINDOW_SECONDS - ROUNDING_SECONDS
        # Who goes on while the brake is on pays nothing more: it would never end for whoever shares the address.
        self._paid_at[address] = paid_at if over <= 0 else paid_at - WINDOW_SECONDS / self.per_minute
        if len(self._paid_at) > ADDRESSES_MAX:
            del self._paid_at[next(iter(self._paid_at))]
        if over <= 0:
            return 0
        self._refuse(address, now)
        return math.ceil(over)

    def failed_here(self) -> int:
        """The same for the request that this task serves; 0 if it is not known whence that comes."""
        client = COMING_FROM.get(UNKNOWN)
        return 0 if client is UNKNOWN else self.failed(client)

    def _refuse(self, address: str, now: float) -> None:
        self.refused += 1
        if now - self._told_at < TOLD_SECONDS:
            return
        count, self._told = self.refused - self._told, self.refused
        self._told_at = now
        log.warning("wrong keys come faster than they are answered", address=address, refused=count)
        self.on_told(address, count)


def _nobody(_address: str, _count: int) -> None:
    """Nobody keeps book."""
