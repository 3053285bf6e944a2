"""Who carries something to an address that a caller named. `transport` implements it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec


class Receipt(msgspec.Struct, frozen=True):
    """What came of carrying something there: the status of the answer, or the reason why there is none."""

    status: int | None = None
    reason: str = ""
    is_refused: bool = False
    """Nothing may be sent there at all; the reason says why."""
    retry_after: float | None = None
    """How many seconds the other side wants to be left alone."""


class Courier(Protocol):
    """Carries bytes to an address, once: what failed is not repeated, and where it is pointed to is not gone.

    `is_trusted` says that whoever named the address may name private ones, if the operator listed them.
    """

    async def refusal(self, url: str, *, is_trusted: bool) -> str | None:
        """Why nothing may be sent there, as far as can be told now; None if it may."""

    async def carry(self, url: str, headers: Mapping[str, str], body: bytes, *, is_trusted: bool) -> Receipt:
        """Bring it there, and say what came of that; never raises, and takes a bounded time."""
