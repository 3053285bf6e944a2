"""The logs that belong to one configuration: that of the hub which serves, and those of hubs beside it.

Each is a chain of its own (`storage.seats`); what happened is all of them together. Read by `cli.audit`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

from isthmus.cli.audit_rows import Log, soundly
from isthmus.cli.exits import CommandFailed, Exit
from isthmus.config.settings import Configuration
from isthmus.core.audit.chain import Row
from isthmus.storage import log_sqlite
from isthmus.storage.seals import SERVED, checkpoint_of
from isthmus.storage.seats import file_of, seats_of
from isthmus.storage.sqlite import FILE


@dataclass(frozen=True, slots=True)
class Kept:
    """Where a log is."""

    seat: int
    """0 for that of the hub which serves."""
    reading: Callable[[], AbstractAsyncContextManager[Log]]


Seated: TypeAlias = tuple[int, Row]
"""A record, and the seat of its log."""


def logs_of(configuration: Configuration) -> list[Kept]:
    """All logs, that of the hub which serves first; its own may be missing where others are.

    Raises:
        CommandFailed: an extension keeps the only one.
    """
    state = Path(configuration.hub.state)
    beside = [_kept(seat, partial(log_sqlite.reading, file_of(state, seat))) for seat in seats_of(state)]
    if beside and (configuration.storage.is_foreign or not _is_there(configuration)):
        return beside
    return [_kept(SERVED, partial(_served, configuration)), *beside]


def _kept(seat: int, reading: Callable[[], AbstractAsyncContextManager[Log]]) -> Kept:
    return Kept(seat, partial(soundly, reading))


def _is_there(configuration: Configuration) -> bool:
    """Whether a hub may have served with it; what vouches for its log tells as well, should that be gone."""
    state = Path(configuration.hub.state)
    traces = (state / FILE, checkpoint_of(state))
    return configuration.storage.url is not None or any(trace.exists() for trace in traces)


def _served(configuration: Configuration) -> AbstractAsyncContextManager[Log]:
    """The log of the hub that serves."""
    if configuration.storage.url is None:
        return log_sqlite.reading(Path(configuration.hub.state) / FILE)
    if configuration.storage.is_foreign:
        said = f"what the hub keeps is kept by the extension {configuration.storage.scheme}, and so is its audit log"
        raise CommandFailed(Exit.CONFIGURATION, said, "Only what that extension brings can read it.")
    try:
        from isthmus.storage import log_postgres
    except ImportError:
        said = "the audit log is in a database, and the library that reads it is not installed"
        raise CommandFailed(Exit.CONFIGURATION, said, "Get it with: pip install 'isthmus[postgres]'") from None
    return log_postgres.reading(configuration.storage)


async def newest_of(kept: Sequence[Kept], limit: int) -> list[Seated]:
    """The last records, so many of each log, the oldest first."""
    found: list[Seated] = []
    for each in kept:
        async with each.reading() as log:
            found += [(each.seat, row) for row in await log.newest(limit)]
    return sorted(found, key=lambda seated: seated[1].at)


@asynccontextmanager
async def rows_of(kept: Sequence[Kept], since: float, until: float) -> AsyncIterator[AsyncIterator[Seated]]:
    """The records of a time from all logs, in the order in which they were written, as far as clocks tell."""
    async with AsyncExitStack() as stack:
        logs = [(each.seat, await stack.enter_async_context(each.reading())) for each in kept]
        yield _merged([(seat, log.rows(since=since, until=until)) for seat, log in logs])


async def _merged(sources: Sequence[tuple[int, AsyncIterator[Row]]]) -> AsyncIterator[Seated]:
    """One after the other, always of the one that is oldest; each keeps its own order."""
    ahead: dict[int, tuple[Row, AsyncIterator[Row]]] = {}
    for seat, rows in sources:
        if (row := await anext(rows, None)) is not None:
            ahead[seat] = (row, rows)
    while ahead:
        seat = min(ahead, key=lambda each: ahead[each][0].at)
        row, rows = ahead[seat]
        yield seat, row
        following = await anext(rows, None)
        if following is None:
            del ahead[seat]
        else:
            ahead[seat] = (following, rows)
