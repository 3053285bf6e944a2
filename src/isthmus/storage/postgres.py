"""A journal in a PostgreSQL database, for hubs without a disk that lasts.

One connection writes. All writes that come while it is busy form its next transaction, so many writers share the cost
of a commit. It also holds the lock that makes this hub the only writer. If it breaks, it is replaced, and nothing is
written before the lock is held again. Other connections read. `app` opens and closes the journal.

These connections do not pass the egress guard: only the operator configures their address.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias, TypeVar, cast

import asyncpg
import msgspec
import structlog

from isthmus import __version__
from isthmus.core.audit import AuditRow, Fact, LogState
from isthmus.core.background import BackgroundTasks
from isthmus.core.histograms import WriteMetrics
from isthmus.core.journal import (
    DOCUMENT_BYTES,
    AuditNotary,
    Document,
    DocumentPlace,
    JournalEntry,
    OnWritten,
    Page,
    TrimResult,
    WriteResult,
    place_of,
)
from isthmus.storage import audit_postgres, journal_base
from isthmus.storage.audit_postgres import PostgresAuditWriter
from isthmus.storage.journal_base import (
    PROBE_BYTES,
    StateInUse,
    StateUnusable,
    WriteProbe,
    notify_all,
    page_token,
    parse_page_token,
    set_result_once,
)
from isthmus.storage.settings import StorageSettings

log = structlog.get_logger(__name__)

BATCH_MAX = 512
"""Writes per transaction; in a larger one the first write would wait for the last."""

WAITING_MAX = 10_000
"""Pending writes; beyond it writes are refused."""

CONNECT_SECONDS = 2.0
"""How long one server may take to accept a connection. A lost SYN is sent again after a second."""
OTHER_CONNECT_SECONDS = 1.0
"""The same, if there is another server to try: this one's machine may be off."""
COMMAND_SECONDS = 10.0
"""How long one statement may take; then the database counts as lost."""

OPEN_SECONDS = 10.0
"""How long a starting hub waits for the database."""

IN_USE_SECONDS = 2.0
"""How long a starting hub waits for the lock of the hub before it."""

PATIENCE_SECONDS = 5.0
"""How long reads and writes of a single hub wait for a lost database; most are back by then."""

LOST_READ_SECONDS = 1.0
"""How long one read waits while the database is known to be away: a request may need several."""

RETRY_FIRST_SECONDS = 0.1
RETRY_MAX_SECONDS = 1.0

CLOSE_SECONDS = 5.0

READERS_MAX = 4
"""Connections for reading; one more is for writing."""

ENTRIES_KEPT = 1_000
"""Entries per kind and owner; beyond it the oldest are deleted."""

# Values of callers are bytes: PostgreSQL's text cannot hold every character, and its order depends on a language.
SCHEMA = """
CREATE TABLE documents (
    kind text COLLATE "C" NOT NULL, owner bytea NOT NULL, id bytea NOT NULL, version bigint NOT NULL,
    at double precision NOT NULL, "group" bytea NOT NULL, state text COLLATE "C" NOT NULL, body bytea NOT NULL,
    PRIMARY KEY (kind, owner, id)
);
CREATE INDEX documents_by_time ON documents (kind, owner, at, id);
CREATE INDEX documents_by_state ON documents (kind, state, at);
CREATE TABLE entries (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, kind text COLLATE "C" NOT NULL, owner bytea NOT NULL,
    at double precision NOT NULL, content bytea NOT NULL
);
CREATE INDEX entries_by_owner ON entries (kind, owner, number);
"""
# The index covers a list's filters, so that not every document of an owner is read.
LISTED = """
DROP INDEX documents_by_time;
CREATE INDEX documents_listed ON documents (kind, owner, at, id, "group", state);
"""
# The nodes of a cluster (`storage.postgres_cluster`), and which of them works on a document; NULL if none does. One hub
# alone writes neither.
NODES = """
CREATE TABLE nodes (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, id text NOT NULL, name text NOT NULL,
    joined timestamptz NOT NULL DEFAULT clock_timestamp(), expires timestamptz NOT NULL, heir bigint
);
ALTER TABLE documents ADD COLUMN node bigint;
CREATE INDEX documents_by_node ON documents (node, at) WHERE node IS NOT NULL;
"""
NODES += audit_postgres.CHAINS_SCHEMA
# The newest minor release of a hub that has used the tables.
NEWEST_RELEASE = "ALTER TABLE about ADD COLUMN release text NOT NULL DEFAULT ''"
STEPS = (SCHEMA, LISTED, audit_postgres.SCHEMA, NODES, NEWEST_RELEASE)
"""The migrations: each adds one version of the tables, in a transaction. A database is migrated from its own version to
the last. Hubs of the minor release before must be able to use the result: add, and remove one release later."""

HAS_RELEASE = STEPS.index(NEWEST_RELEASE) + 1
"""The first version of the tables with a release."""

MIGRATE_SECONDS = 600.0
"""How long one step may take."""
MIGRATION_SECONDS = MIGRATE_SECONDS * len(STEPS)
"""How long a node that starts waits for another one that migrates the tables."""
MIGRATION_LOCK_SECONDS = 1.0
"""How long it waits at once: a statement that waits for longer counts as lost."""
STEP_LOCK_SECONDS = 1.0
"""How long a step waits for a table that others use: they wait behind it. Then it lets them go on, and tries again."""

LIVE_NODES = "SELECT count(*) FROM nodes WHERE heir IS NULL AND expires > clock_timestamp()"

ROWS = """
unnest($1::text[], $2::bytea[], $3::bytea[], $4::bigint[], $5::double precision[], $6::bytea[], $7::text[], $8::bytea[])
AS new (kind, owner, id, version, at, "group", state, body)
"""
NEW = f"""
INSERT INTO documents (kind, owner, id, version, at, "group", state, body) SELECT * FROM {ROWS}
ON CONFLICT DO NOTHING
"""  # noqa: S608 - our own words
CHANGE = f"""
UPDATE documents AS kept
SET version = new.version, at = new.at, "group" = new."group", state = new.state, body = new.body
FROM {ROWS}
WHERE kept.kind = new.kind AND kept.owner = new.owner AND kept.id = new.id AND kept.version = new.version - 1
"""  # noqa: S608
DROP = """
DELETE FROM documents AS kept
USING unnest($1::text[], $2::bytea[], $3::bytea[], $4::bigint[]) AS new (kind, owner, id, version)
WHERE kept.kind = new.kind AND kept.owner = new.owner AND kept.id = new.id AND kept.version = new.version - 1
"""
PRUNE = """
DELETE FROM documents WHERE (kind, owner, id) IN (
    SELECT kind, owner, id FROM documents WHERE kind = $1 AND state = ANY($2::text[]) AND at < $3 ORDER BY at LIMIT $4)
"""
WEIGH = """
SELECT kind, state, sum(octet_length(body) + $3::bigint)::bigint FROM documents
WHERE kind = ANY($1::text[]) AND owner = $2 GROUP BY kind, state
"""
TRIM_DOCUMENTS = """
WITH oldest AS (
    SELECT id, at, octet_length(body) + $6::bigint AS size FROM documents
    WHERE kind = $1 AND owner = $2 AND state = ANY($3::text[]) ORDER BY at, id LIMIT $5
), counted AS (SELECT id, size, sum(size) OVER (ORDER BY at, id) - size AS taken FROM oldest)
DELETE FROM documents AS kept USING counted
WHERE kept.kind = $1 AND kept.owner = $2 AND kept.id = counted.id AND counted.taken < $4::bigint
RETURNING kept.id, counted.size
"""
ADD = """
INSERT INTO entries (kind, owner, at, content)
SELECT * FROM unnest($1::text[], $2::bytea[], $3::double precision[], $4::bytea[])
"""
TRIM = """
DELETE FROM entries WHERE kind = $1 AND owner = $2 AND number <= (
    SELECT number FROM entries WHERE kind = $1 AND owner = $2 ORDER BY number DESC LIMIT 1 OFFSET $3)
"""

COLUMNS = 'kind, owner, id, version, at, body, "group", state, node'
READ = f"SELECT {COLUMNS} FROM documents WHERE kind = $1 AND owner = $2 AND id = $3"  # noqa: S608
COUNT = "SELECT count(*) FROM documents WHERE {narrowed}"
# Rows beyond the page come without their body: PostgreSQL reads only its length.
FITTING = """
SELECT kind, owner, id, version, at, CASE WHEN taken < {bytes}::bigint THEN body END AS body, "group", state, node
FROM (
    SELECT *, sum(octet_length(body)) OVER (ORDER BY {order} ROWS UNBOUNDED PRECEDING) - octet_length(body) AS taken
    FROM (SELECT * FROM {source} WHERE {where} ORDER BY {order} LIMIT {limit}) AS asked
) AS found ORDER BY {order}
"""
PAGE = FITTING.format(
    source="documents",
    where="{narrowed} AND (at, id) < ($6, $7)",
    order="at DESC, id DESC",
    limit="$8",
    bytes="$9",
)
# One part per state or owner, each in the order of an index, so that no more is read than is shown.
BY_STATE = """
(SELECT latest.* FROM unnest($2::text[]) AS part (state), LATERAL (
    SELECT * FROM documents WHERE kind = $1 AND documents.state = part.state AND (at, owner, id) < ($4, $5, $6)
    AND $3::bytea[] IS NOT NULL ORDER BY at DESC, owner DESC, id DESC LIMIT $7) AS latest) AS parts
"""
BY_OWNER = """
(SELECT latest.* FROM unnest($3::bytea[]) AS part (owner), LATERAL (
    SELECT * FROM documents WHERE kind = $1 AND documents.owner = part.owner AND state = ANY($2::text[])
    AND (at, documents.owner, id) < ($4, $5, $6) ORDER BY at DESC, id DESC LIMIT $7) AS latest) AS parts
"""
NEWEST = FITTING.format(source=BY_STATE, where="true", order="at DESC, owner DESC, id DESC", limit="$7", bytes="$8")
NEWEST_OF = FITTING.format(source=BY_OWNER, where="true", order="at DESC, owner DESC, id DESC", limit="$7", bytes="$8")
# From owner to owner by the index, because there are far fewer owners than documents.
NAMED = f"""
WITH RECURSIVE owners (name) AS (
    (SELECT owner FROM documents WHERE kind = $1 ORDER BY owner LIMIT 1)
    UNION ALL SELECT following.owner FROM owners, LATERAL (
        SELECT owner FROM documents WHERE kind = $1 AND owner > name ORDER BY owner LIMIT 1) AS following)
SELECT {COLUMNS} FROM owners JOIN documents ON kind = $1 AND owner = name AND id = $2 LIMIT $3
"""  # noqa: S608
ALL_IN = FITTING.format(
    source="documents",
    where="kind = $1 AND state = ANY($2::text[]) AND (at, owner, id) > ($3, $4, $5)",
    order="at, owner, id",
    limit="$6",
    bytes="$7",
)
LATEST = "SELECT at, content FROM entries WHERE kind = $1 AND owner = $2 ORDER BY number DESC LIMIT $3"

LIVELY = {"tcp_keepalives_idle": "10", "tcp_keepalives_interval": "5", "tcp_keepalives_count": "3"}
"""Makes the database notice soon that a hub's machine is gone, and release its lock."""

INDEXED = {"enable_seqscan": "off"}
"""Writes always use an index, even while the planner has no statistics of growing tables."""

WRITABLE = "read-write"
"""Connect to the primary only: a standby would grant the lock, refuse all writes and return old data."""

AWAY = (
    OSError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # asyncpg found no writable server
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
)
FAILED = (*AWAY, asyncpg.PostgresError)
"""All errors of a database."""
USELESS = (TimeoutError, asyncpg.ReadOnlySQLTransactionError)
"""Errors after which a connection is replaced: no response, or a server that became read-only."""

Connection: TypeAlias = Any
"""An `asyncpg.Connection`; the package has no types of its own."""
PostgresOperation: TypeAlias = Callable[[Connection], Awaitable[bool]]
"""Makes one write in a transaction; False on a version conflict."""
Key: TypeAlias = tuple[str, str, str]
_T = TypeVar("_T")


class PostgresWrite(msgspec.Struct, frozen=True):
    """One write: documents and audit facts, which share a transaction with others, or an operation of its own."""

    done: OnWritten
    documents: Sequence[Document] = ()
    operation: PostgresOperation | None = None
    facts: Sequence[Fact] = ()

    def keys(self) -> set[Key]:
        """The keys of its documents."""
        return {(document.kind, document.owner, document.id) for document in self.documents}


class PostgresJournal:
    """See `core.journal.Journal`. Made by `open`, on the event loop that gets the results."""

    def __init__(self, settings: StorageSettings) -> None:
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._background = BackgroundTasks("journal")
        self._connection: Connection | None = None
        """The connection that writes and holds the lock."""
        self._is_connected = asyncio.Event()
        self._lost_at = self._loop.time()
        self._is_closed = False
        self._waiting: deque[PostgresWrite] = deque()
        self._current: Sequence[PostgresWrite] = ()
        self._wake = asyncio.Event()
        self._log: PostgresAuditWriter | None = None
        self._chain: int | None = None
        """The chain of the audit log, of a node of a cluster."""
        self.write_metrics = WriteMetrics(self._loop.time)
        self._probe = WriteProbe(lambda done: self._enqueue(PostgresWrite(done, operation=_test_write)))
        self._writer: asyncio.Task[None] | None = None
        self._reads: set[asyncio.Timeout] = set()
        """The limits of all reads under way."""
        self._readers = asyncpg.create_pool(
            min_size=0,
            max_size=READERS_MAX,
            connect=self._dial,
            reset=_keep_state,
            server_settings=server_settings_of(settings),
        )

    @classmethod
    async def open(cls, settings: StorageSettings) -> PostgresJournal:
        """Connect, make or migrate the tables, and lock other hubs out.

        Raises:
            StateInUse: another hub uses the schema.
            StateUnusable: the database cannot be reached or used.
        """
        journal = cls(settings)
        await journal._open()
        return journal

    async def _open(self) -> None:
        try:
            await self._begin()
        except (*FAILED, StateInUse, StateUnusable) as error:
            await self.aclose()
            if isinstance(error, StateInUse):
                raise
            raise StateUnusable(f"{self._settings.shown}: {error_text(error)}") from error

    async def _begin(self) -> None:
        await self._readers  # does not connect yet
        begun = self._loop.time()
        while self._connection is None:
            try:
                await self._connect()
            except (*FAILED, StateInUse) as error:
                patience = IN_USE_SECONDS if isinstance(error, StateInUse) else OPEN_SECONDS
                if not may_come_back(error) or self._loop.time() > begun + patience:
                    raise
                await asyncio.sleep(RETRY_FIRST_SECONDS)
        self._writer = self._background.spawn("writer", self._run_writer())

    async def aclose(self) -> None:
        """Write what is pending, if possible, and disconnect; later writes are refused."""
        self._is_closed = True
        self._wake.set()
        if self._writer is not None:
            await asyncio.wait({self._writer}, timeout=PATIENCE_SECONDS + COMMAND_SECONDS)
        await self._background.aclose()
        current, self._current = self._current, ()
        notify_all((work.done, "unknown") for work in current)  # interrupted writes
        waiting, self._waiting = self._waiting, deque()
        notify_all((work.done, "refused") for work in waiting)
        self._readers.terminate()
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                await connection.close(timeout=CLOSE_SECONDS)
            except FAILED:
                connection.terminate()

    @property
    def is_failing(self) -> bool:
        """See `core.journal.HealthReportingJournal`."""
        return not self._is_closed and (self._connection is None or self._probe.is_failing)

    # -- write connection --------------------------------------------------------------------------------------------

    async def _connect(self) -> None:
        """Connect and take the lock.

        Raises:
            StateInUse: another hub holds the lock.
            StateUnusable: a newer hub made the tables.
        """
        connection = await self._dial(server_settings=server_settings_of(self._settings) | INDEXED)
        try:
            await self._claim(connection)
        except BaseException:
            connection.terminate()
            raise
        connection.add_termination_listener(self._lose)
        self._connection = connection
        self._is_connected.set()

    async def _claim(self, connection: Connection) -> None:
        """Take the lock for the lifetime of the connection, then migrate the tables."""
        schema = self._settings.schema
        if not await connection.fetchval("SELECT pg_try_advisory_lock($1)", lock_key(schema)):
            advice = "give this one its own with ?schema=NAME in its url"
            raise StateInUse(f'another hub is using schema "{schema}": {advice}')
        await prepare(connection, schema)

    async def _dial(self, *_: object, **how: Any) -> Connection:
        """Connect to the writable server.

        Each server has its own timeout: one whose machine is off must not use up the time of the next.
        """
        *others, last = self._settings.server_urls
        how = {"timeout": CONNECT_SECONDS, "command_timeout": COMMAND_SECONDS, "target_session_attrs": WRITABLE, **how}
        soon = {**how, "timeout": min(how["timeout"], OTHER_CONNECT_SECONDS)}
        for server in others:
            with suppress(*AWAY):
                return await asyncpg.connect(server, **soon)
        return await asyncpg.connect(last, **how)

    def _lose(self, connection: Connection) -> None:
        """Drop the write connection and reconnect; until then nothing is written."""
        if self._connection is None or connection is not self._connection:
            return
        connection.terminate()
        self._connection = None
        if self._log is not None:
            self._log.set_unknown()  # another hub may write before this one does again
        self._is_connected.clear()
        self._lost_at = self._loop.time()
        if not self._is_closed:
            log.error("lost the connection to the journal's database", database=self._settings.shown)
            self._background.spawn("connection", self._reconnect())

    async def _reconnect(self) -> None:
        pause = RETRY_FIRST_SECONDS
        while self._connection is None:
            try:
                await self._connect()
            except Exception as error:  # noqa: BLE001 - this loop must go on after any error
                log.warning("cannot reconnect to the journal's database", error=error_text(error))
                await asyncio.sleep(pause)
                pause = min(2 * pause, RETRY_MAX_SECONDS)
        log.info("reconnected to the journal's database", seconds=round(self._loop.time() - self._lost_at, 1))

    # -- writing -----------------------------------------------------------------------------------------------------

    def write(self, documents: Sequence[Document], done: OnWritten, facts: Sequence[Fact] = ()) -> None:
        """See `core.journal.Journal`."""
        self._enqueue(PostgresWrite(done, documents, facts=facts))

    async def commit(self, entries: Sequence[JournalEntry]) -> None:
        """See `core.journal.Journal`."""
        await self._perform(partial(_add, entries))

    async def prune(self, kind: str, states: Collection[str], *, before: float, limit: int) -> int:
        """See `core.journal.Journal`."""
        return await self._query_writer(
            lambda connection: count_rows(connection, PRUNE, kind, list(states), before, limit)
        )

    async def weigh(self, kinds: Collection[str], owner: str) -> Mapping[tuple[str, str], int]:
        """See `core.journal.Journal`."""
        return await self._query_writer(partial(_weigh, list(kinds), owner))

    async def trim(self, kind: str, owner: str, states: Collection[str], *, bytes: int, limit: int) -> TrimResult:
        """See `core.journal.Journal`."""
        return await self._query_writer(partial(_trim, kind, owner, list(states), bytes, limit))

    async def open_log(self, notary: AuditNotary) -> LogState:
        """See `core.journal.AuditJournal`."""
        writer = PostgresAuditWriter(notary, self._chain)
        log_state = await self._query_writer(writer.find)
        self._log = writer
        return log_state

    async def prune_log(self, *, before: float, limit: int) -> int:
        """See `core.journal.AuditJournal`."""
        assert self._log is not None, "the log is opened first"
        return await self._query_writer(partial(self._log.prune, before, limit))

    async def log_rows(self, *, after: int, limit: int) -> Sequence[AuditRow]:
        """See `core.journal.ReadableAuditJournal`."""
        assert self._log is not None, "the log is opened first"
        return [AuditRow(*row) for row in await self._read(self._log.statements.page, after, limit)]

    async def _query_writer(self, query: Callable[[Connection], Awaitable[_T]]) -> _T:
        """Run a query within a transaction of the writer and return its result."""
        results: list[_T] = []

        async def operation(connection: Connection) -> bool:
            results.append(await query(connection))
            return True

        await self._perform(operation)
        return results[-1]

    async def _perform(self, operation: PostgresOperation) -> None:
        written: asyncio.Future[WriteResult] = self._loop.create_future()
        self._enqueue(PostgresWrite(partial(set_result_once, written), operation=operation))
        if (result := await written) != "kept":
            raise OSError(f"the journal could not be written: {result}")

    def _enqueue(self, work: PostgresWrite) -> None:
        if self._is_closed or len(self._waiting) >= WAITING_MAX:
            self._loop.call_soon(work.done, "refused")
            return
        self.write_metrics.begin()
        self._waiting.append(work)
        self._wake.set()

    async def _run_writer(self) -> None:
        while not self._is_closed or self._waiting:
            if not self._waiting:
                self._wake.clear()
                await self._wake.wait()
                continue
            self._current = self._batch()
            await self._wait_writable()
            results = await self._write_batch(self._current)
            works, self._current = self._current, ()
            self.write_metrics.end(results)
            notify_all(zip((work.done for work in works), results, strict=True))
            if "refused" in results or "unknown" in results:
                self._probe.probe()

    async def _wait_writable(self) -> None:
        """Wait for a lost database, up to `_patience`."""
        patience = self._lost_at + self._patience - self._loop.time()
        if self._connection is None and patience > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(patience):  # not `wait_for`: on 3.11 it can swallow a cancellation
                    await self._is_connected.wait()

    def _batch(self) -> list[PostgresWrite]:
        """The next writes that can share a transaction: their documents have distinct keys."""
        first = self._waiting.popleft()
        works, keys = [first], first.keys()
        while self._waiting and len(works) < BATCH_MAX and first.operation is None:
            following = self._waiting[0].keys()
            if self._waiting[0].operation is not None or not keys.isdisjoint(following):
                break
            keys |= following
            works.append(self._waiting.popleft())
        return works

    async def _write_batch(self, works: Sequence[PostgresWrite]) -> list[WriteResult]:
        """Write all in one transaction; if that fails, split it in halves, so that one bad write fails alone."""
        result = await self._write_together(works)
        if result in ("kept", "unknown") or len(works) == 1:
            return [result] * len(works)
        half = len(works) // 2
        return [*await self._write_batch(works[:half]), *await self._write_batch(works[half:])]

    async def _write_together(self, works: Sequence[PostgresWrite]) -> WriteResult:
        connection = self._connection
        if connection is None:
            return "refused"
        operation = works[0].operation or self._put([document for work in works for document in work.documents])
        facts = [work.facts for work in works if work.facts]
        try:
            if not await self._begin_transaction(connection):
                return "refused"
            if self._log is not None:
                self._log.begin()
            if not await operation(connection):
                await connection.execute("ROLLBACK")
                return "conflict"
            if facts and self._log is not None:
                await self._log.append(facts, connection)
        except Exception as error:  # noqa: BLE001 - one bad write must not end the writer task
            log.error("cannot write the journal", database=self._settings.shown, error=error_text(error))
            await self._undo(connection, error)
            return "refused"
        return await self._finish(connection)

    async def _begin_transaction(self, connection: Connection) -> bool:
        """Begin a transaction; False if this hub may not write now."""
        await connection.execute("BEGIN")
        return True

    def _put(self, documents: Sequence[Document]) -> PostgresOperation:
        """The operation that writes documents with distinct keys."""
        return partial(_put, documents)

    async def _finish(self, connection: Connection) -> WriteResult:
        try:
            await connection.execute("COMMIT")
        except FAILED as error:
            # Only the database can tell whether a failed commit was written.
            log.error("the journal may not have been written", database=self._settings.shown, error=error_text(error))
            self._lose(connection)
            return "unknown"
        if self._log is not None:
            self._log.committed()
        return "kept"

    async def _undo(self, connection: Connection, error: Exception) -> None:
        """Roll back, or drop the connection if it is unusable."""
        if isinstance(error, USELESS):
            self._lose(connection)
            return
        try:
            await connection.execute("ROLLBACK")
        except FAILED:
            self._lose(connection)

    # -- reading -----------------------------------------------------------------------------------------------------

    async def read(self, kind: str, owner: str, id: str) -> Document | None:
        """See `core.journal.Journal`."""
        found = self._documents(await self._read(READ, kind, encode_text(owner), encode_text(id)))
        return found[0] if found else None

    async def page(
        self,
        kind: str,
        owner: str,
        *,
        group: str = "",
        states: Collection[str] = (),
        after: float = 0.0,
        limit: int,
        token: str = "",
    ) -> Page:
        """See `core.journal.Journal`."""
        at, id = parse_page_token(token) if token else (float("inf"), "")
        # The WHERE clause of a list; absent conditions are left out, so that the index can be used.
        in_group = '"group" = $4' if group else "$4::bytea IS NOT NULL"
        in_states = "state = ANY($5::text[])" if states else "$5::text[] IS NOT NULL"
        narrowed = f"kind = $1 AND owner = $2 AND at > $3 AND {in_group} AND {in_states}"
        values = (kind, encode_text(owner), after, encode_text(group), list(states))
        total = (await self._read(COUNT.format(narrowed=narrowed), *values))[0][0]
        asked = (*values, at, encode_text(id), limit + 1, journal_base.PAGE_BYTES)
        rows = await self._read(PAGE.format(narrowed=narrowed), *asked)
        found = self._documents(rows[:limit])
        return Page(tuple(found), total, page_token(found[-1]) if len(rows) > len(found) else "")

    async def all_in(
        self, kind: str, states: Collection[str], *, limit: int, after: Document | None = None
    ) -> list[Document]:
        """See `core.journal.Journal`."""
        place = key_after(None if after is None else place_of(after), float("-inf"))
        return self._documents(await self._read(ALL_IN, kind, list(states), *place, limit, journal_base.PAGE_BYTES))

    async def newest(
        self,
        kind: str,
        states: Collection[str],
        *,
        owners: Collection[str] = (),
        limit: int,
        before: DocumentPlace | None = None,
    ) -> list[Document]:
        """See `core.journal.Journal`."""
        place = key_after(before, float("inf"))
        values = (kind, list(states), [encode_text(owner) for owner in owners], *place, limit, journal_base.PAGE_BYTES)
        return self._documents(await self._read(NEWEST_OF if owners else NEWEST, *values))

    async def named(self, kind: str, id: str, *, limit: int) -> list[Document]:
        """See `core.journal.Journal`."""
        return self._documents(await self._read(NAMED, kind, encode_text(id), limit))

    async def latest(self, kind: str, owner: str, limit: int) -> list[JournalEntry]:
        """See `core.journal.Journal`."""
        rows = await self._read(LATEST, kind, encode_text(owner), limit)
        return [JournalEntry(kind, owner, at, msgspec.Raw(content)) for at, content in reversed(rows)]

    def _documents(self, rows: Sequence[Any]) -> list[Document]:
        """The documents of the page."""
        return [
            Document(kind, decode_text(owner), decode_text(id), version, at, body, decode_text(group), state)
            for kind, owner, id, version, at, body, group, state, _ in rows
            if body is not None
        ]

    async def _read(self, text: str, *values: object) -> Sequence[Any]:
        """Read, with a timeout that includes the wait for a connection."""
        try:
            async with asyncio.timeout(LOST_READ_SECONDS if self._is_long_lost() else COMMAND_SECONDS) as limit:
                self._reads.add(limit)
                try:
                    return await self._fetch(text, *values)
                finally:
                    self._reads.discard(limit)
        except FAILED as error:
            raise OSError(f"the journal cannot be read: {error_text(error)}") from error

    @property
    def _patience(self) -> float:
        """How long reads and writes wait for a lost database."""
        return PATIENCE_SECONDS

    def _is_long_lost(self) -> bool:
        """Whether the database was away for longer than requests wait for it."""
        return self._connection is None and self._loop.time() > self._lost_at + self._patience

    async def _fetch(self, text: str, *values: object) -> Sequence[Any]:
        """Read; retry while the database is lost."""
        lost_at = self._loop.time() if self._connection is not None else self._lost_at
        give_up = lost_at + self._patience
        while True:
            try:
                async with self._readers.acquire() as connection:
                    try:
                        return cast("Sequence[Any]", await connection.fetch(text, *values))
                    except (TimeoutError, asyncio.CancelledError):
                        connection.terminate()  # else closing it waits for the database to cancel the query
                        raise
            except FAILED as error:
                if not may_come_back(error) or self._is_closed or self._loop.time() > give_up:
                    raise
                await asyncio.sleep(RETRY_FIRST_SECONDS)


# -- on one connection -----------------------------------------------------------------------------------------------


def lock_key(schema: str) -> int:
    """The key of the lock that makes a hub the only one in a schema."""
    return int.from_bytes(hashlib.blake2b(f"isthmus {schema}".encode(), digest_size=8).digest(), signed=True)


async def prepare_in_turn(connection: Connection, schema: str) -> None:
    """See `prepare`; one node of a cluster after the other.

    Raises:
        StateUnusable: see `prepare`.
        TimeoutError: another node takes too long.
    """
    key = lock_key(schema) ^ 1
    loop = asyncio.get_running_loop()
    give_up = loop.time() + MIGRATION_SECONDS
    is_locked = is_logged = False
    while not is_locked:
        try:
            async with connection.transaction():  # the lock is the connection's; only the setting ends with it
                await connection.execute(f"SET LOCAL lock_timeout = '{MIGRATION_LOCK_SECONDS:g}s'")
                await connection.execute("SELECT pg_advisory_lock($1)", key)
            is_locked = True
        except asyncpg.LockNotAvailableError:
            if not is_logged:
                is_logged = True
                log.info("another node migrates the tables of the database; waiting for it", schema=schema)
            if loop.time() > give_up:
                raise TimeoutError(f"another node has been migrating the tables for {MIGRATION_SECONDS:g} s") from None
    try:
        await prepare(connection, schema)
    finally:
        await connection.execute("SELECT pg_advisory_unlock($1)", key)


async def prepare(connection: Connection, schema: str) -> None:
    """Make commits durable, and migrate the tables; a migration that was interrupted continues.

    Raises:
        StateUnusable: hubs of this release cannot use the tables.
    """
    if await connection.fetchval("SHOW synchronous_commit") == "off":
        await connection.execute("SET synchronous_commit = on")
    async with connection.transaction():
        # Checked first: CREATE needs a right that the user may not have.
        if not await connection.fetchval("SELECT count(*) FROM pg_namespace WHERE nspname = $1", schema):
            await connection.execute(f'CREATE SCHEMA "{schema}"')
        if await connection.fetchval("SELECT to_regclass('about')") is None:
            await connection.execute("CREATE TABLE about (version integer NOT NULL); INSERT INTO about VALUES (0)")
    version: int = await connection.fetchval("SELECT version FROM about")
    release = await _check_release(connection, version)
    while version < len(STEPS):
        try:
            async with connection.transaction():
                await connection.execute(f"SET LOCAL lock_timeout = '{STEP_LOCK_SECONDS:g}s'")
                await connection.execute(STEPS[version], timeout=MIGRATE_SECONDS)
                await connection.execute("UPDATE about SET version = $1", version + 1)
        except asyncpg.LockNotAvailableError:
            await asyncio.sleep(STEP_LOCK_SECONDS / 2)
        else:
            version += 1
    if version >= HAS_RELEASE and release < RELEASE:
        await connection.execute("UPDATE about SET release = $1", ".".join(map(str, RELEASE)))


Release: TypeAlias = tuple[int, ...]
"""The major and minor number of a version."""

RELEASE: Release = tuple(map(int, __version__.split(".")[:2]))


async def _check_release(connection: Connection, version: int) -> Release:
    """The newest release that has used the tables; empty if that is not known.

    Raises:
        StateUnusable: it is more than one minor release away from this one.
    """
    stored = await connection.fetchval("SELECT release FROM about") if version >= HAS_RELEASE else ""
    release: Release = tuple(map(int, stored.split("."))) if stored else ()
    own, newest = ".".join(map(str, RELEASE)), stored
    is_next = (RELEASE[0], RELEASE[1] + 1) == release
    if version > len(STEPS) and not is_next:
        said = f"the tables have version {version} of a newer hub; this hub supports up to {len(STEPS)}"
        raise StateUnusable(f"{said}. Hubs of {newest or 'another version'} have used them, and this one is {own}")
    if release > RELEASE and not is_next:
        advice = "at most one minor version may lie between hubs of one database; upgrade this one"
        raise StateUnusable(f"hubs of version {newest} use the tables, and this one is {own}: {advice}")
    if release and (release[0], release[1] + 1) < RELEASE and await connection.fetchval(LIVE_NODES):
        advice = "upgrade its nodes one minor version at a time, or stop them all first"
        raise StateUnusable(f"nodes of version {newest} run on this database, and this one is {own}: {advice}")
    return release


async def _put(documents: Sequence[Document], connection: Connection) -> bool:
    """Write documents with distinct keys; False on a version conflict."""
    new = [row_of(each) for each in documents if each.version == 1 and each.body is not None]
    changed = [row_of(each) for each in documents if each.version != 1 and each.body is not None]
    gone = [row_of(each)[:4] for each in documents if each.body is None]
    for text, rows in ((NEW, new), (CHANGE, changed), (DROP, gone)):
        if rows and await count_rows(connection, text, *zip(*rows, strict=True)) != len(rows):
            return False
    return True


async def _add(entries: Sequence[JournalEntry], connection: Connection) -> bool:
    rows = [(entry.kind, encode_text(entry.owner), entry.at, bytes(entry.content)) for entry in entries]
    await count_rows(connection, ADD, *zip(*rows, strict=True))
    for kind, owner in {(kind, owner) for kind, owner, _, _ in rows}:
        await count_rows(connection, TRIM, kind, owner, ENTRIES_KEPT)
    return True


async def _test_write(connection: Connection) -> bool:
    """Write something and delete it."""
    await _add([JournalEntry("probe", "", 0.0, msgspec.Raw(bytes(PROBE_BYTES)))], connection)
    await connection.execute("DELETE FROM entries WHERE kind = 'probe'")
    return True


async def _weigh(kinds: Sequence[str], owner: str, connection: Connection) -> dict[tuple[str, str], int]:
    rows = await connection.fetch(WEIGH, kinds, encode_text(owner), DOCUMENT_BYTES)
    return {(kind, state): size for kind, state, size in rows}


async def _trim(
    kind: str, owner: str, states: Sequence[str], bytes: int, limit: int, connection: Connection
) -> TrimResult:
    rows = await connection.fetch(TRIM_DOCUMENTS, kind, encode_text(owner), states, bytes, limit, DOCUMENT_BYTES)
    return TrimResult(tuple(decode_text(id) for id, _ in rows), sum(size for _, size in rows))


async def count_rows(connection: Connection, text: str, *values: object) -> int:
    """Execute a statement and return the number of rows."""
    status: str = await connection.execute(text, *values)
    return int(status.rpartition(" ")[2])


async def _keep_state(_: Connection) -> None:
    """Reads leave no state on a connection, so nothing is reset."""


def may_come_back(error: Exception) -> bool:
    """Whether a retry makes sense; asyncpg raises `ValueError` for wrong arguments."""
    return isinstance(error, (*AWAY, StateInUse)) and not isinstance(error, ValueError)


def server_settings_of(settings: StorageSettings) -> dict[str, str]:
    """The settings of every connection."""
    return {"application_name": "isthmus", "search_path": settings.schema, **LIVELY}


def key_after(place: DocumentPlace | None, first: float) -> tuple[float, bytes, bytes]:
    """The values of a place in a list, as the database compares them; without one, those of its beginning."""
    return (first, b"", b"") if place is None else (place[0], encode_text(place[1]), encode_text(place[2]))


def row_of(document: Document) -> tuple[object, ...]:
    """The values of a document's columns."""
    key = (document.kind, encode_text(document.owner), encode_text(document.id), document.version)
    return (*key, document.at, encode_text(document.group), document.state, document.body)


def encode_text(text: str) -> bytes:
    """A text of a caller as the database stores it."""
    return text.encode(errors="surrogatepass")


def decode_text(data: bytes) -> str:
    """The reverse of `encode_text`."""
    return data.decode(errors="surrogatepass")


def error_text(error: Exception) -> str:
    """What an error says, for the log."""
    return str(error) or type(error).__name__
