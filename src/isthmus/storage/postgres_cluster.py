"""A journal in PostgreSQL that several hubs, the nodes of a cluster, use at the same time.

Each node has a row in the table `nodes`. Its `number` is new with every join, and larger than all before: it is the
fencing token. All times there are the database's. The life of a row:

    join ──▶ renewed every third of the lease ──▶ expired, or left ──▶ taken: `heir` is the node that took it
                     ▲         │ the database is away: nothing is written        │ its documents are moved to the heir
                     └─────────┘                                                 ▼ deleted

Every transaction of a node first locks the node's row, which must have no heir. A node that takes a row over waits for
these locks. So a node that was given up cannot write any more, whatever it believes; it joins again under a new number.

A document that is held has the number of its node. Only that node can change it, whatever version others know. Which
documents are held depends on their kind and state (`held`): an ended task is free for all nodes, and its version alone
decides between two writers.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeAlias

import asyncpg
import msgspec
import structlog

from isthmus.core.background import BackgroundTasks
from isthmus.core.journal import DOCUMENT_BYTES, HERE, Document, TrimResult, WriteResult, place_of
from isthmus.storage import journal_base
from isthmus.storage.audit_postgres import CHOOSE_CHAIN
from isthmus.storage.journal_base import StateInUse
from isthmus.storage.postgres import (
    FITTING,
    PATIENCE_SECONDS,
    RETRY_FIRST_SECONDS,
    Connection,
    PostgresJournal,
    PostgresOperation,
    PostgresWrite,
    count_rows,
    decode_text,
    encode_text,
    error_text,
    key_after,
    lock_key,
    prepare_in_turn,
    row_of,
    server_settings_of,
)
from isthmus.storage.settings import LeaseSettings, StorageSettings

log = structlog.get_logger(__name__)

RENEWALS = 3
"""Attempts to renew within one lease."""

WRITING_SHARE = 0.9
"""The share of its lease, by its own clock, in which a node writes: clocks do not run equally fast."""

SHARED_PATIENCE_SECONDS = 0.8
"""How long reads and writes wait for a database that is away: callers get an error within a second."""

SLOW_SECONDS = 0.25
"""After this time without an answer to a read or write, the database is asked whether it lives."""

ANSWER_SECONDS = 0.6
"""How long it may take to answer that: twice the delay that a busy machine causes now and then (0.3 s). A database that
is only slow answers, because the question needs neither a disk nor a lock."""

ANSWER_STEPS = 6
"""The parts of that time. While this process stands still, at most one of them passes."""

CONNECT_STEPS = 4 * ANSWER_STEPS
"""How long it may take to connect first: over a slow network, or to another server."""

TAKE_AGAIN_SECONDS = 0.2
"""How soon a node is tried again that could not be taken: the database still ends its last transaction."""

MOVED_MAX = 100
"""Documents that are moved at once."""

# -- the table of nodes ------------------------------------------------------------------------------------------------

JOIN = """
INSERT INTO nodes (id, name, expires) VALUES ($1, $2, clock_timestamp() + make_interval(secs => $3))
RETURNING number, extract(epoch FROM clock_timestamp())::double precision
"""
RENEW = """
UPDATE nodes SET expires = clock_timestamp() + make_interval(secs => $2) WHERE number = $1 AND heir IS NULL
RETURNING extract(epoch FROM clock_timestamp())::double precision
"""
OTHERS = """
SELECT number, extract(epoch FROM expires - clock_timestamp())::double precision, expires = 'epoch'
FROM nodes WHERE heir IS NULL AND number <> $1
"""
UPTIME = "SELECT extract(epoch FROM clock_timestamp() - pg_postmaster_start_time())::double precision"
LEAVE = "UPDATE nodes SET expires = 'epoch' WHERE number = $1 AND heir IS NULL"
FENCE = "SELECT FROM nodes WHERE number = {number} AND heir IS NULL FOR KEY SHARE"
# Also what a dead node had taken over and not moved yet.
TAKE = """
WITH gone AS (
    SELECT number FROM nodes WHERE number = ANY($2::bigint[]) AND heir IS NULL AND expires < clock_timestamp()
    FOR UPDATE SKIP LOCKED
)
UPDATE nodes SET heir = $1 FROM gone WHERE nodes.number = gone.number OR nodes.heir = gone.number
RETURNING nodes.number, nodes.name
"""
FORGET = """
DELETE FROM nodes WHERE heir = $1 AND NOT EXISTS (SELECT FROM documents WHERE documents.node = nodes.number)
"""
LEFT_OVER = "SELECT count(*) FROM nodes WHERE heir = $1"

# -- documents that nodes hold -----------------------------------------------------------------------------------------

ROWS = """
unnest($1::text[], $2::bytea[], $3::bytea[], $4::bigint[], $5::double precision[], $6::bytea[], $7::text[], $8::bytea[],
    $9::bigint[])
AS new (kind, owner, id, version, at, "group", state, body, node)
"""
NEW = f"""
INSERT INTO documents (kind, owner, id, version, at, "group", state, body, node) SELECT * FROM {ROWS}
ON CONFLICT DO NOTHING
"""  # noqa: S608 - our own words
CHANGE = f"""
UPDATE documents AS kept
SET version = new.version, at = new.at, "group" = new."group", state = new.state, body = new.body, node = new.node
FROM {ROWS}
WHERE kept.kind = new.kind AND kept.owner = new.owner AND kept.id = new.id AND kept.version = new.version - 1
AND (kept.node IS NULL OR kept.node = $10)
"""  # noqa: S608
DROP = """
DELETE FROM documents AS kept
USING unnest($1::text[], $2::bytea[], $3::bytea[], $4::bigint[]) AS new (kind, owner, id, version)
WHERE kept.kind = new.kind AND kept.owner = new.owner AND kept.id = new.id AND kept.version = new.version - 1
AND (kept.node IS NULL OR kept.node = $5)
"""
# Rows that another node deletes now are skipped: two nodes that wait for each other would both fail.
PRUNE = """
DELETE FROM documents WHERE (kind, owner, id) IN (
    SELECT kind, owner, id FROM documents
    WHERE kind = $1 AND state = ANY($2::text[]) AND at < $3 AND (node IS NULL OR node = $5)
    ORDER BY at LIMIT $4 FOR UPDATE SKIP LOCKED)
"""
TRIM_DOCUMENTS = """
WITH oldest AS (
    SELECT id, at, octet_length(body) + $6::bigint AS size FROM documents
    WHERE kind = $1 AND owner = $2 AND state = ANY($3::text[]) AND (node IS NULL OR node = $7)
    ORDER BY at, id LIMIT $5 FOR UPDATE SKIP LOCKED
), counted AS (SELECT id, size, sum(size) OVER (ORDER BY at, id) - size AS taken FROM oldest)
DELETE FROM documents AS kept USING counted
WHERE kept.kind = $1 AND kept.owner = $2 AND kept.id = counted.id AND counted.taken < $4::bigint
RETURNING kept.id, counted.size
"""
ALL_IN = FITTING.format(
    source="documents",
    where="kind = $1 AND state = ANY($2::text[]) AND (at, owner, id) > ($3, $4, $5) AND (node IS NULL OR node = $8)",
    order="at, owner, id",
    limit="$6",
    bytes="$7",
)
# At least one, and no more than fit in a page.
MOVE = """
WITH picked AS (
    SELECT kind, owner, id, at, octet_length(body) AS size FROM documents
    WHERE {condition} ORDER BY at LIMIT $2 FOR UPDATE SKIP LOCKED
), counted AS (
    SELECT *, sum(size) OVER (ORDER BY at, owner, id ROWS UNBOUNDED PRECEDING) - size AS taken FROM picked
)
UPDATE documents AS kept SET node = $1 FROM counted
WHERE kept.kind = counted.kind AND kept.owner = counted.owner AND kept.id = counted.id AND counted.taken < $3::bigint
RETURNING kept.kind, kept.owner, kept.id, version, kept.at, body, "group", state, node
"""
MOVE_TAKEN = MOVE.format(condition="node IN (SELECT number FROM nodes WHERE heir = $1)")
# Of a hub that was alone in the schema: documents of nodes are never free in a state in which nodes hold them.
MOVE_FREE = MOVE.format(condition="node IS NULL AND kind = $4 AND state = ANY($5::text[])")

Dial: TypeAlias = Callable[..., Awaitable[Connection]]


class NodeLease:
    """This node's row in the table of nodes. One background task joins, renews it, and takes over rows of dead nodes.

    It has a connection of its own, so that it never waits for writes.
    """

    def __init__(self, settings: StorageSettings, lease: LeaseSettings, dial: Dial) -> None:
        self.id = secrets.token_hex(8)
        """The same for as long as this process runs."""
        self.name = lease.node
        self.seconds = lease.seconds
        self.number: int | None = None
        """The fencing token; None before the first join."""
        self.on_lost: Callable[[], None] = lambda: None
        """Called when another node has taken this one over, before it joins again."""
        self.on_joined: Callable[[int], None] = lambda _: None
        """Called with each new number."""
        self.inherited = asyncio.Event()
        """Set while there may be documents to move here."""
        self.held = asyncio.Event()
        """Set once the lease was renewed, until it is found to have ended."""
        self.lost_at = 0.0
        self.nodes = 1
        """How many nodes had a lease at the last renewal, this one included."""
        self._until = float("-inf")
        self._since = 0.0
        """Since when it was renewed in time."""
        self._ahead: float | None = None
        """By how many seconds the database's clock is ahead of the event loop's."""
        self._settings = settings
        self._dial = dial
        self._channel = f"isthmus {settings.schema}"
        self._loop = asyncio.get_running_loop()
        self._connection: Connection | None = None
        self._wake = asyncio.Event()
        self._is_away = False

    @property
    def is_held(self) -> bool:
        """Whether this node may write."""
        return self._loop.time() < self._until

    def now(self) -> float:
        """The time of the database's clock; steps of this machine's clock do not matter."""
        return time.time() if self._ahead is None else self._ahead + self._loop.time()

    def _note_time(self, asked: float, at: float) -> None:
        """The database's clock showed `at` between `asked` and now. What is within that time is not corrected."""
        answered = self._loop.time()
        if self._ahead is None or not asked <= at - self._ahead <= answered:
            self._ahead = at - (asked + answered) / 2

    async def join(self) -> None:
        """Connect and join for the first time. Raises what the database raises."""
        self._connection = await self._connect()
        await self._tick(self._connection)

    async def run(self) -> None:
        """Renew until cancelled."""
        pause = 0.0
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):  # not `wait_for`: on 3.11 it can swallow a cancellation
                    await self._wake.wait()
            self._wake.clear()
            try:
                if self._connection is None:
                    self._connection = await self._connect()
                pause = await self._tick(self._connection)
            except Exception as error:  # noqa: BLE001 - this loop must go on after any error
                pause = self._on_failed(error)

    def _on_failed(self, error: Exception) -> float:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()
        if not self._is_away:
            self._is_away = True
            log.warning("the lease of this node cannot be renewed", node=self.name, error=error_text(error))
        if not self.is_held and self.held.is_set():
            self.held.clear()
            self.lost_at = self._loop.time()
            log.error("the lease of this node has ended; nothing is written until it is renewed", node=self.name)
        return min(RETRY_FIRST_SECONDS, self.seconds / 20) if self.is_held else RETRY_FIRST_SECONDS

    async def _connect(self) -> Connection:
        seconds = self.seconds / RENEWALS
        server_settings = server_settings_of(self._settings)
        connection = await self._dial(server_settings=server_settings, timeout=seconds, command_timeout=seconds)
        connection.add_termination_listener(lambda _: self.check_soon())
        await connection.add_listener(self._channel, lambda *_: self.check_soon())
        return connection

    def check_soon(self) -> None:
        """Look at the table now: something has changed there, or with the connection."""
        self._wake.set()

    async def _tick(self, connection: Connection) -> float:
        """Renew the lease, and take over rows of dead nodes; return the seconds until the next time."""
        begun = self._loop.time()
        if self.number is not None:
            at = await connection.fetchval(RENEW, self.number, self.seconds)
            if at is None:
                self._lose()
            else:
                self._note_time(begun, at)
        is_new = self.number is None
        if is_new:
            asked = self._loop.time()
            self.number, at = await connection.fetchrow(JOIN, self.id, self.name, self.seconds)
            self._note_time(asked, at)
            log.info("joined the database", node=self.name, number=self.number)
            self.on_joined(self.number)
        if is_new or not self.is_held:
            self._since = begun
        self._until = begun + WRITING_SHARE * self.seconds
        self._is_away = False
        self.held.set()
        if is_new:  # what a hub left that was alone in the schema
            self.inherited.set()
        pause = self.seconds / RENEWALS
        gone: list[int] = []
        expired: list[int] = []
        others = await connection.fetch(OTHERS, self.number)
        self.nodes = 1 + sum(left >= 0 for _, left, _ in others)
        for number, left, has_left in others:
            if left >= 0:
                pause = min(pause, left + RETRY_FIRST_SECONDS)
            else:
                (gone if has_left else expired).append(number)
        if expired:
            # After a pause of the database, or of this node, every lease looks ended: living nodes get time to renew.
            patience = self.seconds / 2
            is_fresh = not is_new and begun < self._since + patience
            if not is_fresh and await connection.fetchval(UPTIME) > patience:
                gone += expired
            else:
                pause = min(pause, TAKE_AGAIN_SECONDS)
        if gone and not await self._take_over(connection, gone):
            pause = min(pause, TAKE_AGAIN_SECONDS)
        return pause

    def _lose(self) -> None:
        log.error("another node has taken over the tasks of this one; joining again", node=self.name)
        self.number, self._until = None, float("-inf")
        self.held.clear()
        self.lost_at = self._loop.time()
        self.on_lost()

    async def _take_over(self, connection: Connection, gone: Sequence[int]) -> bool:
        """Become the heir of these nodes; False if some could not be taken."""
        async with connection.transaction():
            if await count_rows(connection, FENCE.format(number=self.number)) != 1:
                return True  # taken over itself, which the next renewal finds
            taken = await connection.fetch(TAKE, self.number, gone)
        for number, name in taken:
            log.warning("took over the tasks of another node", node=name, number=number)
        if taken:
            self.inherited.set()
        return {number for number, _ in taken}.issuperset(gone)

    async def leave(self) -> None:
        """Let another node take over at once."""
        connection, self._connection = self._connection, None
        self._until = float("-inf")
        if connection is None:
            return
        try:
            if self.number is not None:
                await connection.execute(LEAVE, self.number)
                await connection.execute("SELECT pg_notify($1, '')", self._channel)
            await connection.close(timeout=self.seconds / RENEWALS)
        except Exception as error:  # noqa: BLE001 - the lease ends by itself
            log.warning("cannot leave the cluster; the lease of this node ends by itself", error=error_text(error))
            connection.terminate()


class DatabasePulse:
    """Notices soon that the database does not respond: behind a cut cable, nothing else would say so.

    It asks only while a read or write waits for longer than usual, and then until there is an answer again. It has a
    connection of its own from the start: over a slow network, to connect takes ten times as long as an answer.
    """

    def __init__(self, settings: StorageSettings, dial: Dial, background: BackgroundTasks) -> None:
        self.is_silent = False
        """Whether it has not answered, and not since."""
        self.on_silent: Callable[[], None] = lambda: None
        self._settings = settings
        self._dial = dial
        self._background = background
        self._loop = asyncio.get_running_loop()
        self._connection: Connection | None = None
        self._waiting: dict[object, float] = {}
        """When each read or write began that is under way, the oldest first."""
        self._timer: asyncio.TimerHandle | None = None
        self._is_asking = False

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch over a read or write."""
        key = object()
        self._waiting[key] = self._loop.time()
        if self._timer is None:
            self._look_in(SLOW_SECONDS)
        try:
            yield
        finally:
            del self._waiting[key]

    def _look_in(self, seconds: float) -> None:
        self._timer = self._loop.call_later(seconds, self._check)

    def _check(self) -> None:
        self._timer = None
        oldest = next(iter(self._waiting.values()), None)
        if oldest is None or self._is_asking:
            return
        if (left := oldest + SLOW_SECONDS - self._loop.time()) > 0:
            self._look_in(left)
        else:
            self.ask()

    def ask(self) -> None:
        """Ask the database whether it lives."""
        self._is_asking = True
        self._background.spawn("pulse", self._probe_until_answered())

    async def _probe_until_answered(self) -> None:
        try:
            while not await self._is_answered(CONNECT_STEPS if self._connection is None else ANSWER_STEPS):
                if not self.is_silent:
                    self.is_silent = True
                    log.error("the database does not respond", database=self._settings.shown)
                    self.on_silent()
                await asyncio.sleep(RETRY_FIRST_SECONDS)
            if self.is_silent:
                log.info("the database responds again", database=self._settings.shown)
        finally:
            self.is_silent = self._is_asking = False
        if self._waiting and self._timer is None:
            self._look_in(SLOW_SECONDS)

    async def _is_answered(self, steps: int) -> bool:
        asking = self._background.spawn("question", self._probe())
        for _ in range(steps):
            await asyncio.wait({asking}, timeout=ANSWER_SECONDS / ANSWER_STEPS)
            if asking.done():
                break
        asking.cancel()
        is_answered = asking.done() and not asking.cancelled() and asking.result()
        if not is_answered:
            self.close()
        return is_answered

    async def _probe(self) -> bool:
        try:
            if self._connection is None:
                self._connection = await self._dial(server_settings=server_settings_of(self._settings))
            await self._connection.execute("SELECT 1")
        except Exception as error:  # noqa: BLE001 - whatever it is, there was no answer, unless the database says it
            return isinstance(error, asyncpg.PostgresError)
        return True

    def close(self) -> None:
        """Disconnect."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()


class SharedPostgresJournal(PostgresJournal):
    """See `core.journal.SharedJournal`. `held` are the states in which documents of a kind are held."""

    def __init__(self, settings: StorageSettings, lease: LeaseSettings, held: Mapping[str, Collection[str]]) -> None:
        super().__init__(settings)
        self.lease = NodeLease(settings, lease, self._dial)
        self._pulse = DatabasePulse(settings, self._dial, self._background)
        self._pulse.on_silent = self._end_waits
        self.inherited = self.lease.inherited
        self._held = held
        self._kinds_to_move: list[str] = []
        """Kinds of which documents may be left that no node ever held."""
        self._writing_as: int | None = None
        """The number under which the present transaction was begun."""

    @classmethod
    async def open_shared(
        cls, settings: StorageSettings, lease: LeaseSettings, held: Mapping[str, Collection[str]]
    ) -> SharedPostgresJournal:
        """Connect, make or migrate the tables, and join the cluster.

        Raises:
            StateInUse: a hub that is alone uses the schema.
            StateUnusable: the database cannot be reached or used.
        """
        journal = cls(settings, lease, held)
        await journal._open()
        return journal

    @property
    def on_lost(self) -> Callable[[], None]:
        """See `core.journal.SharedJournal`."""
        return self.lease.on_lost

    @on_lost.setter
    def on_lost(self, callback: Callable[[], None]) -> None:
        self.lease.on_lost = callback

    @property
    def on_joined(self) -> Callable[[int], None]:
        """See `core.journal.SharedJournal`."""
        return self.lease.on_joined

    @on_joined.setter
    def on_joined(self, callback: Callable[[int], None]) -> None:
        self.lease.on_joined = callback

    @property
    def number(self) -> int | None:
        """See `core.journal.SharedJournal`."""
        return self.lease.number

    @property
    def is_held(self) -> bool:
        """See `core.journal.SharedJournal`."""
        return self.lease.is_held

    def now(self) -> float:
        """See `core.journal.ClockedJournal`."""
        return self.lease.now()

    @property
    def nodes(self) -> int:
        """See `core.journal.SharedJournal`."""
        return self.lease.nodes

    async def _begin(self) -> None:
        await super()._begin()
        await self.lease.join()
        self._kinds_to_move = list(self._held)
        self._background.spawn("lease", self.lease.run())
        self._pulse.ask()

    async def aclose(self) -> None:
        """See `PostgresJournal`; then another node takes over at once."""
        self._is_closed = True
        self._wake.set()
        if self._writer is not None:
            await asyncio.wait({self._writer}, timeout=PATIENCE_SECONDS)
        await self._background.aclose()
        self._pulse.close()
        await self.lease.leave()
        await super().aclose()

    @property
    def is_failing(self) -> bool:
        """See `core.journal.HealthReportingJournal`."""
        is_silent = self._pulse.is_silent or not self.lease.is_held
        return super().is_failing or (not self._is_closed and is_silent)

    @property
    def _patience(self) -> float:
        """See `PostgresJournal`; callers can be told sooner, because other nodes may reach the database."""
        return 0.0 if self._pulse.is_silent else SHARED_PATIENCE_SECONDS

    def _is_long_lost(self) -> bool:
        """The lease ends before a connection does that only stands still."""
        lost_at = self.lease.lost_at  # 0 until there was a lease
        is_late = not self.lease.is_held and bool(lost_at) and self._loop.time() > lost_at + self._patience
        return is_late or super()._is_long_lost()

    def _end_waits(self) -> None:
        """The database does not respond: end all that waits for it. What was not committed is not stored."""
        for limit in self._reads:
            limit.reschedule(self._loop.time())
        if self._connection is not None:
            self._lose(self._connection)

    async def _read(self, text: str, *values: object) -> Sequence[Any]:
        if self._pulse.is_silent:
            raise OSError("the journal cannot be read: the database does not respond")
        with self._pulse.watched():
            return await super()._read(text, *values)

    async def _write_together(self, works: Sequence[PostgresWrite]) -> WriteResult:
        with self._pulse.watched():
            return await super()._write_together(works)

    async def _claim(self, connection: Connection) -> None:
        """Keep hubs out that are alone in their schema, for the lifetime of the connection; migrate the tables."""
        schema = self._settings.schema
        key = lock_key(schema)
        if not await connection.fetchval("SELECT pg_try_advisory_lock_shared($1)", key):
            advice = "it needs a [cluster] table, too"
            raise StateInUse(f'a hub that is not part of a cluster is using schema "{schema}": {advice}')
        # The database ends the transaction of a node that stands still, so that it can be taken over.
        milliseconds = int(1000 * self.lease.seconds / RENEWALS)
        await connection.execute(f"SET idle_in_transaction_session_timeout = {milliseconds}")
        await prepare_in_turn(connection, schema)

    # -- writing -----------------------------------------------------------------------------------------------------

    async def _wait_writable(self) -> None:
        await super()._wait_writable()
        patience = self.lease.lost_at + self._patience - self._loop.time()
        if not self.lease.is_held and patience > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(patience):  # not `wait_for`: on 3.11 it can swallow a cancellation
                    await self.lease.held.wait()

    async def _begin_transaction(self, connection: Connection) -> bool:
        """Begin a transaction in which this node cannot be taken over; False if it was, or its lease has ended."""
        if not self.lease.is_held:
            return False
        self._writing_as = self.lease.number
        status = await connection.execute(f"BEGIN; {FENCE.format(number=self._writing_as)}")
        if status == "SELECT 1":
            return True
        await connection.execute("ROLLBACK")
        self.lease.check_soon()
        return False

    def _put(self, documents: Sequence[Document]) -> PostgresOperation:
        return partial(self._put_held, documents)

    async def _put_held(self, documents: Sequence[Document], connection: Connection) -> bool:
        number = self._writing_as
        new: list[tuple[object, ...]] = []
        changed: list[tuple[object, ...]] = []
        gone: list[tuple[object, ...]] = []
        for document in documents:
            row = row_of(document)
            if document.body is None:
                gone.append(row[:4])
                continue
            is_held = document.state in self._held.get(document.kind, ())
            (new if document.version == 1 else changed).append((*row, number if is_held else None))
        for text, rows, beside in ((NEW, new, ()), (CHANGE, changed, (number,)), (DROP, gone, (number,))):
            # In one order on all nodes: two that wait for each other would both fail.
            rows.sort(key=lambda row: row[:3])
            if rows and await count_rows(connection, text, *zip(*rows, strict=True), *beside) != len(rows):
                return False
        return True

    async def prune(self, kind: str, states: Collection[str], *, before: float, limit: int) -> int:
        """See `core.journal.Journal`; what other nodes hold stays."""

        async def delete(connection: Connection) -> int:
            return await count_rows(connection, PRUNE, kind, list(states), before, limit, self._writing_as)

        return await self._query_writer(delete)

    async def trim(self, kind: str, owner: str, states: Collection[str], *, bytes: int, limit: int) -> TrimResult:
        """See `core.journal.Journal`; what other nodes hold stays."""

        async def delete(connection: Connection) -> TrimResult:
            values = (kind, encode_text(owner), list(states), bytes, limit, DOCUMENT_BYTES, self._writing_as)
            rows = await connection.fetch(TRIM_DOCUMENTS, *values)
            return TrimResult(tuple(decode_text(id) for id, _ in rows), sum(size for _, size in rows))

        return await self._query_writer(delete)

    async def choose_chain(self, key: str, place: int) -> int:
        """See `core.journal.ChainedAuditJournal`."""

        async def choose(connection: Connection) -> int:
            chain: int = await connection.fetchval(CHOOSE_CHAIN, key, place, self.lease.name)
            return chain

        self._chain = await self._query_writer(choose)
        return self._chain

    # -- taking over -------------------------------------------------------------------------------------------------

    async def inherit(self) -> list[Document]:
        """See `core.journal.SharedJournal`."""
        self.inherited.clear()
        try:
            return await self._query_writer(self._move)
        except OSError:
            self.inherited.set()
            raise

    async def _move(self, connection: Connection) -> list[Document]:
        number, most = self._writing_as, journal_base.PAGE_BYTES
        rows = await connection.fetch(MOVE_TAKEN, number, MOVED_MAX, most)
        while not rows and self._kinds_to_move:
            kind = self._kinds_to_move[-1]
            rows = await connection.fetch(MOVE_FREE, number, MOVED_MAX, most, kind, list(self._held[kind]))
            if not rows:
                self._kinds_to_move.pop()
        if not rows:
            await connection.execute(FORGET, number)
        if rows or await connection.fetchval(LEFT_OVER, number):
            self.inherited.set()
        return sorted(self._documents(rows), key=lambda document: document.at)

    # -- reading -----------------------------------------------------------------------------------------------------

    async def all_in(
        self, kind: str, states: Collection[str], *, limit: int, after: Document | None = None
    ) -> list[Document]:
        """See `core.journal.Journal`."""
        place = key_after(None if after is None else place_of(after), float("-inf"))
        values = (kind, list(states), *place, limit, journal_base.PAGE_BYTES, self.lease.number)
        return self._documents(await self._read(ALL_IN, *values))

    def _documents(self, rows: Sequence[Any]) -> list[Document]:
        number = self.lease.number
        found = super()._documents(rows)
        holders = [row[8] for row in rows if row[5] is not None]
        names = {None: "", number: HERE}
        return [
            msgspec.structs.replace(document, holder=names.get(holder, str(holder)))
            for document, holder in zip(found, holders, strict=True)
        ]
