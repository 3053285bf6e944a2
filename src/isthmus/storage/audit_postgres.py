"""The audit log in the journal's database: the journal appends, `isthmus audit` reads, also while a hub writes.

`storage.postgres` appends within its own transactions.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import asyncpg

from isthmus.core.audit import NUMBER_MAX, START, AuditRow, Fact, LogState, Point, Seal, follow
from isthmus.core.ports import AuditNotary
from isthmus.storage.settings import StorageSettings

SCHEMA = """
CREATE TABLE audit (
    number bigint PRIMARY KEY, at double precision NOT NULL, content bytea NOT NULL, digest bytea NOT NULL
);
CREATE TABLE audit_anchor (
    id integer PRIMARY KEY CHECK (id = 1), number bigint NOT NULL, digest bytea NOT NULL, at double precision NOT NULL,
    signature bytea NOT NULL
);
"""
APPEND = """
INSERT INTO audit (number, at, content, digest)
SELECT * FROM unnest($1::bigint[], $2::double precision[], $3::bytea[], $4::bytea[])
"""
LAST = "SELECT number, digest, content FROM audit ORDER BY number DESC LIMIT 1"
ANCHOR = "SELECT number, digest, at, signature FROM audit_anchor"
SET_ANCHOR = """
INSERT INTO audit_anchor (id, number, digest, at, signature) VALUES (1, $1, $2, $3, $4)
ON CONFLICT (id) DO UPDATE SET number = $1, digest = $2, at = $3, signature = $4
"""
ENDS = "SELECT min(number), max(number) FROM audit"
FIRST_KEPT = "SELECT number FROM audit WHERE at >= $1 ORDER BY number LIMIT 1"
DIGEST = "SELECT digest FROM audit WHERE number = $1"
DROP = "DELETE FROM audit WHERE number <= $1"
ROWS = """
SELECT number, at, content, digest FROM audit WHERE number > $1 AND at >= $2 AND at < $3 ORDER BY number
"""
NEWEST = "SELECT number, at, content, digest FROM audit ORDER BY number DESC LIMIT $1"
BACK = "SELECT number, at, content, digest FROM audit WHERE number < $1 AND at < $2 ORDER BY number DESC"

CONNECT_SECONDS = 5.0

Connection: TypeAlias = Any
"""An `asyncpg.Connection`; the package has no types of its own."""


class PostgresAuditWriter:
    """Appends to the log, within transactions of the journal."""

    def __init__(self, notary: AuditNotary) -> None:
        self._notary = notary
        self._committed: Point | None = None
        self._head = START

    async def find(self, connection: Connection) -> LogState:
        """Read the end of the log."""
        anchor = await _read_anchor(connection)
        row = await connection.fetchrow(LAST)
        if row is None:
            standing = LogState(START if anchor is None else anchor.point, None, anchor)
        else:
            standing = LogState(Point(row[0], row[1]), row[2], anchor)
        self._head = self._committed = standing.head
        return standing

    async def append(self, facts: Sequence[Fact], connection: Connection) -> None:
        """Append records, after the committed ones."""
        if self._committed is None:
            await self.find(connection)
        head = self._committed or START
        rows = []
        for fact in facts:
            at, content = self._notary.record(fact)
            head = follow(head, content)
            rows.append((head.number, at, content, head.digest))
        await connection.execute(APPEND, *zip(*rows, strict=True))
        self._head = head

    async def prune(self, before: float, limit: int, connection: Connection) -> int:
        """Delete some of the oldest records. The last one stays, since the next record refers to it."""
        ends: tuple[int | None, int] = await connection.fetchrow(ENDS)
        first, last = ends
        if first is None:
            return 0
        kept: int | None = await connection.fetchval(FIRST_KEPT, before)
        until = min((last if kept is None else kept) - 1, last - 1, first + limit - 1)
        if until < first:
            return 0
        digest = await connection.fetchval(DIGEST, until)
        seal = self._notary.seal("anchor", Point(until, digest))
        await connection.execute(SET_ANCHOR, until, digest, seal.at, seal.signature)
        await connection.execute(DROP, until)
        return until - first + 1

    def begin(self) -> None:
        """A transaction has begun: forget the records of a failed one."""
        if self._committed is not None:
            self._head = self._committed

    def committed(self) -> None:
        """The transaction was committed."""
        if self._committed is not None and self._head != self._committed:
            self._committed = self._head
            self._notary.checkpoint(self._head)

    def set_unknown(self) -> None:
        """The result of the transaction is unknown: read the end of the log before the next one."""
        self._committed = None


async def _read_anchor(connection: Connection) -> Seal | None:
    found = await connection.fetchrow(ANCHOR)
    return None if found is None else Seal(Point(found[0], found[1]), found[2], found[3])


class PostgresAuditReader:
    """Reads a log as it was at one moment. Made by `open_reader`."""

    def __init__(self, connection: Connection, anchor: Seal | None) -> None:
        self._connection = connection
        self.anchor = anchor

    async def rows(self, *, after: int = 0, since: float = 0.0, until: float = float("inf")) -> AsyncIterator[AuditRow]:
        """The records of a period, oldest first."""
        async for row in self._connection.cursor(ROWS, after, since, until, prefetch=500):
            yield AuditRow(*row)

    async def back(self, *, before: int = NUMBER_MAX, until: float = float("inf")) -> AsyncIterator[AuditRow]:
        """The records before that number and that time, newest first."""
        async for row in self._connection.cursor(BACK, before, until, prefetch=500):
            yield AuditRow(*row)

    async def newest(self, limit: int) -> list[AuditRow]:
        """The last records, oldest first."""
        return [AuditRow(*row) for row in reversed(await self._connection.fetch(NEWEST, limit))]


@asynccontextmanager
async def open_reader(settings: StorageSettings) -> AsyncIterator[PostgresAuditReader]:
    """Open the log in a hub's database, whether or not the hub runs.

    Raises:
        OSError: the database cannot be reached, or has no log.
    """
    server_settings = {"application_name": "isthmus audit", "search_path": settings.schema}
    try:
        connection: Connection = await _connect(settings, server_settings)
        try:
            async with connection.transaction(isolation="repeatable_read", readonly=True):
                yield PostgresAuditReader(connection, await _read_anchor(connection))
        finally:
            await connection.close(timeout=CONNECT_SECONDS)
    except (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
        raise OSError(f"the audit log in {settings.shown} cannot be read: {error}") from error


async def _connect(settings: StorageSettings, server_settings: dict[str, str]) -> Connection:
    """Connect to the first server that responds."""
    *others, last = settings.server_urls
    for server in others:
        try:
            return await asyncpg.connect(server, timeout=CONNECT_SECONDS, server_settings=server_settings)
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError):
            continue
    return await asyncpg.connect(last, timeout=CONNECT_SECONDS, server_settings=server_settings)
