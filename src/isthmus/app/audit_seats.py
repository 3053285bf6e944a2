"""Audit logs on seats that nobody has just now: records of theirs get old as well.

Whichever hub runs beside them takes the old ones away, as it does with its own. Started by `app.audit`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from isthmus.core.audit.chain import Kind, Point, Seal
from isthmus.core.audit.facts import Fact
from isthmus.storage.seals import KeyDamaged, Seals, read_keys
from isthmus.storage.seats import seats_of, take_back
from isthmus.storage.sqlite import SqliteJournal

FIRST_SECONDS = 10.0
"""How long a hub has run before it looks at them for the first time: one that only answers a question does not."""

IDLE_SECONDS = 3600.0
"""How often it looks at them."""

PRUNED_AT_ONCE = 10_000


async def keep_idle_seats_short(state: Path, keep: Callable[[], float]) -> None:
    """Take records away that are older than so many seconds, for as long as the hub runs."""
    await asyncio.sleep(FIRST_SECONDS)
    while True:
        await prune_idle_seats(state, time.time() - keep())
        await asyncio.sleep(IDLE_SECONDS)


async def prune_idle_seats(state: Path, before: float) -> None:
    """Take records of that time away from every log that nobody writes."""
    for seat in seats_of(state):
        journal = take_back(state, seat)
        if journal is None:
            continue
        try:
            with suppress(OSError, KeyDamaged):
                await _prune(state, seat, journal, before)
        finally:
            await journal.aclose()


async def _prune(state: Path, seat: int, journal: SqliteJournal, before: float) -> None:
    seals = Seals(state, read_keys(state, seat), seat=seat)
    try:
        await journal.open_log(_Pruner(seals))
        while await journal.prune_log(before=before, limit=PRUNED_AT_ONCE):
            pass
    finally:
        seals.close()


class _Pruner:
    """See `core.ports.ledger.Notary`: one that vouches for what is taken away, and adds nothing."""

    def __init__(self, seals: Seals) -> None:
        self.seal: Callable[[Kind, Point], Seal] = seals.seal
        self.checkpoint: Callable[[Point], None] = seals.checkpoint

    def record(self, fact: Fact) -> tuple[float, bytes]:
        """Nobody writes here."""
        raise AssertionError(fact)
