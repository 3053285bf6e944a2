"""The audit log in the journal's database: the journal appends, `isthmus audit` reads, also while a hub writes.

`storage.postgres` appends within its own transactions.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import asyncpg
import msgspec

from isthmus.core.audit import NUMBER_MAX, START, AuditRow, Fact, LogState, Point, Seal, batch_of
from isthmus.core.journal import AuditNotary
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
# The logs of nodes of a cluster: each node appends to a chain of its own. `key` is its public key, and `place` tells
# nodes apart that share a state folder.
CHAINS_SCHEMA = """
CREATE TABLE audit_chains (
    chain integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY, key text NOT NULL, place integer NOT NULL,
    node text NOT NULL, UNIQUE (key, place)
);
CREATE TABLE node_audit (
    chain integer NOT NULL, number bigint NOT NULL, at double precision NOT NULL, content bytea NOT NULL,
    digest bytea NOT NULL, PRIMARY KEY (chain, number)
);
CREATE TABLE node_audit_anchors (
    chain integer PRIMARY KEY, number bigint NOT NULL, digest bytea NOT NULL, at double precision NOT NULL,
    signature bytea NOT NULL
);
"""
CHOOSE_CHAIN = """
INSERT INTO audit_chains (key, place, node) VALUES ($1, $2, $3)
ON CONFLICT (key, place) DO UPDATE SET node = $3 RETURNING chain
"""
CHAINS = "SELECT chain, key, node FROM audit_chains ORDER BY chain"


class AuditStatements:
    """The statements of one log: that of a hub that is alone, or the chain of a node."""

    def __init__(self, chain: int | None = None) -> None:
        columns = "number, at, content, digest"
        rows = "unnest($1::bigint[], $2::double precision[], $3::bytea[], $4::bytea[])"
        anchor_columns, anchor_values = "number, digest, at, signature", "$1, $2, $3, $4"
        changed = "number = $1, digest = $2, at = $3, signature = $4"
        # The words are our own, and the chain is a number.
        if chain is None:
            audit, anchor = "audit", "audit_anchor"
            self.append = f"INSERT INTO audit ({columns}) SELECT * FROM {rows}"  # noqa: S608
            self.set_anchor = f"INSERT INTO audit_anchor (id, {anchor_columns}) VALUES (1, {anchor_values})"  # noqa: S608
            self.set_anchor += f" ON CONFLICT (id) DO UPDATE SET {changed}"
            self.drop = "DELETE FROM audit WHERE number <= $1"
        else:
            audit = f"(SELECT * FROM node_audit WHERE chain = {chain}) AS audit"  # noqa: S608
            anchor = f"(SELECT * FROM node_audit_anchors WHERE chain = {chain}) AS audit_anchor"  # noqa: S608
            self.append = f"INSERT INTO node_audit (chain, {columns}) SELECT {chain}, * FROM {rows}"  # noqa: S608
            self.set_anchor = f"INSERT INTO node_audit_anchors (chain, {anchor_columns})"
            self.set_anchor += f" VALUES ({chain}, {anchor_values}) ON CONFLICT (chain) DO UPDATE SET {changed}"
            self.drop = f"DELETE FROM node_audit WHERE chain = {chain} AND number <= $1"  # noqa: S608
        self.last = f"SELECT number, digest, content FROM {audit} ORDER BY number DESC LIMIT 1"  # noqa: S608
        self.anchor = f"SELECT {anchor_columns} FROM {anchor}"  # noqa: S608
        self.ends = f"SELECT min(number), max(number) FROM {audit}"  # noqa: S608
        self.first_kept = f"SELECT number FROM {audit} WHERE at >= $1 ORDER BY number LIMIT 1"  # noqa: S608
        self.digest = f"SELECT digest FROM {audit} WHERE number = $1"  # noqa: S608
        self.page = f"SELECT {columns} FROM {audit} WHERE number > $1 ORDER BY number LIMIT $2"  # noqa: S608
        self.rows = f"SELECT {columns} FROM {audit} WHERE number > $1 AND at >= $2 AND at < $3 ORDER BY number"  # noqa: S608
        self.newest = f"SELECT {columns} FROM {audit} ORDER BY number DESC LIMIT $1"  # noqa: S608
        self.back = f"SELECT {columns} FROM {audit} WHERE number < $1 AND at < $2 ORDER BY number DESC"  # noqa: S608


CONNECT_SECONDS = 5.0

Connection: TypeAlias = Any
"""An `asyncpg.Connection`; the package has no types of its own."""


class PostgresAuditWriter:
    """Appends to the log, within transactions of the journal."""

    def __init__(self, notary: AuditNotary, chain: int | None = None) -> None:
        self._notary = notary
        self.statements = AuditStatements(chain)
        self._committed: Point | None = None
        self._head = START

    async def find(self, connection: Connection) -> LogState:
        """Read the end of the log."""
        anchor = await _read_anchor(connection, self.statements)
        row = await connection.fetchrow(self.statements.last)
        if row is None:
            log_state = LogState(START if anchor is None else anchor.point, None, anchor)
        else:
            log_state = LogState(Point(row[0], row[1]), row[2], anchor)
        self._head = self._committed = log_state.head
        return log_state

    async def append(self, writes: Iterable[Sequence[Fact]], connection: Connection) -> None:
        """Append the facts of these writes, after the committed ones."""
        if self._committed is None:
            await self.find(connection)
        before = self._committed or START
        batch = batch_of(before, writes, self._notary.record)
        numbers = range(before.number + 1, batch.head.number + 1)
        await connection.execute(self.statements.append, numbers, batch.times, batch.contents, batch.digests)
        self._head = batch.head

    async def prune(self, before: float, limit: int, connection: Connection) -> int:
        """Delete some of the oldest records. The last one stays, since the next record refers to it."""
        ends: tuple[int | None, int] = await connection.fetchrow(self.statements.ends)
        first, last = ends
        if first is None:
            return 0
        kept: int | None = await connection.fetchval(self.statements.first_kept, before)
        until = min((last if kept is None else kept) - 1, last - 1, first + limit - 1)
        if until < first:
            return 0
        digest = await connection.fetchval(self.statements.digest, until)
        seal = self._notary.seal("anchor", Point(until, digest))
        await connection.execute(self.statements.set_anchor, until, digest, seal.at, seal.signature)
        await connection.execute(self.statements.drop, until)
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


async def _read_anchor(connection: Connection, statements: AuditStatements) -> Seal | None:
    found = await connection.fetchrow(statements.anchor)
    return None if found is None else Seal(Point(found[0], found[1]), found[2], found[3])


class PostgresAuditReader:
    """Reads a log as it was at one moment. Made by `open_reader`."""

    def __init__(self, connection: Connection, anchor: Seal | None, statements: AuditStatements) -> None:
        self._connection = connection
        self._statements = statements
        self.anchor = anchor

    async def rows(self, *, after: int = 0, since: float = 0.0, until: float = float("inf")) -> AsyncIterator[AuditRow]:
        """The records of a period, oldest first."""
        async for row in self._connection.cursor(self._statements.rows, after, since, until, prefetch=500):
            yield AuditRow(*row)

    async def back(self, *, before: int = NUMBER_MAX, until: float = float("inf")) -> AsyncIterator[AuditRow]:
        """The records before that number and that time, newest first."""
        async for row in self._connection.cursor(self._statements.back, before, until, prefetch=500):
            yield AuditRow(*row)

    async def newest(self, limit: int) -> list[AuditRow]:
        """The last records, oldest first."""
        return [AuditRow(*row) for row in reversed(await self._connection.fetch(self._statements.newest, limit))]


@asynccontextmanager
async def open_reader(settings: StorageSettings, chain: int | None = None) -> AsyncIterator[PostgresAuditReader]:
    """Open the log in a hub's database, whether or not the hub runs; of a node, its chain.

    Raises:
        OSError: the database cannot be reached, or has no log.
    """
    statements = AuditStatements(chain)
    async with _reading(settings) as connection:
        yield PostgresAuditReader(connection, await _read_anchor(connection, statements), statements)


class AuditChain(msgspec.Struct, frozen=True):
    """The log of a node: its number, the public key of the node, and its name."""

    chain: int
    key: str
    node: str


async def list_chains(settings: StorageSettings) -> list[AuditChain]:
    """The logs of all nodes that there ever were. Raises `OSError`."""
    async with _reading(settings) as connection:
        if await connection.fetchval("SELECT to_regclass('audit_chains')") is None:
            return []  # an older hub made the tables
        return [AuditChain(*row) for row in await connection.fetch(CHAINS)]


@asynccontextmanager
async def _reading(settings: StorageSettings) -> AsyncIterator[Connection]:
    """A connection that sees the database as it is at one moment."""
    server_settings = {"application_name": "isthmus audit", "search_path": settings.schema}
    try:
        connection: Connection = await _connect(settings, server_settings)
        try:
            async with connection.transaction(isolation="repeatable_read", readonly=True):
                yield connection
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
