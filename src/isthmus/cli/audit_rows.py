"""Records of an audit log as a command may meet them: whoever changed a database may have left anything there.

A text where bytes were, a number, or bytes that are no record must not end the command that is there to name them.
What cannot be a record is read as one that says so: its digest is not that of its content, so that `isthmus audit
verify` names it, and the others are shown. `cli.audit` reads every log through here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

import msgspec

from isthmus.core.audit.chain import Point, Row, Seal

UNREADABLE = b'{"event":"cannot be read"}'
TIME_MAX = 253_402_300_800.0
"""The year 10000, which no date can name."""


class Log(Protocol):
    """A log to be read, as it stands at one moment."""

    anchor: Seal | None

    def rows(self, *, after: int = 0, since: float = 0.0, until: float = float("inf")) -> AsyncIterator[Row]:
        """The records of a time, the oldest first."""

    async def newest(self, limit: int) -> list[Row]:
        """The last records, the oldest first."""


class SoundLog:
    """Another log, of which every value is what it should be one of."""

    def __init__(self, log: Log) -> None:
        self._log = log
        anchor = log.anchor
        self.anchor = None if anchor is None else _sound_seal(anchor)

    async def rows(self, *, after: int = 0, since: float = 0.0, until: float = float("inf")) -> AsyncIterator[Row]:
        """See `Log`."""
        async for row in self._log.rows(after=after, since=since, until=until):
            yield sound(row)

    async def newest(self, limit: int) -> list[Row]:
        """See `Log`."""
        return [sound(row) for row in await self._log.newest(limit)]


@asynccontextmanager
async def soundly(reading: Callable[[], AbstractAsyncContextManager[Log]]) -> AsyncIterator[Log]:
    """Read a log so."""
    async with reading() as log:
        yield SoundLog(log)


def sound(row: Row) -> Row:
    """The row itself, but for values in it that can be none of a record's."""
    at: object = row.at
    is_time = isinstance(at, int | float) and 0.0 <= at < TIME_MAX
    content = _bytes(row.content)
    return Row(
        row.number,
        float(row.at) if is_time else 0.0,
        content if _is_record(content) else UNREADABLE,
        _bytes(row.digest),
    )


def _sound_seal(seal: Seal) -> Seal:
    return Seal(Point(seal.point.number, _bytes(seal.point.digest)), seal.at, _bytes(seal.signature))


def _bytes(value: object) -> bytes:
    """SQLite keeps what it is given: a text that was put in the place of bytes comes back as a text."""
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")


def _is_record(content: bytes) -> bool:
    try:
        msgspec.json.decode(content, type=dict[str, object])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return True
