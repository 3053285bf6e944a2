"""A journal in an SQLite file. A confirmed write survives a crash of the process and a power loss.

One thread writes: it takes all pending writes, commits them in one transaction and reports the results to the loop
once, so many writers share the cost of a sync. Another thread reads. `app` opens and closes the journal.
"""

from __future__ import annotations

import asyncio
import fcntl
import sqlite3
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Generic, NamedTuple, TypeAlias, TypeVar

import msgspec
import structlog

from isthmus.core.audit import AuditRow, Fact, LogState
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
)
from isthmus.storage import audit_sqlite
from isthmus.storage.audit_sqlite import SqliteAuditWriter
from isthmus.storage.journal_base import (
    PROBE_BYTES,
    StateInUse,
    WriteProbe,
    fitting_count,
    notify_all,
    page_token,
    parse_page_token,
    set_result_once,
)

log = structlog.get_logger(__name__)

FILE = "journal.db"
LOCK = "journal.lock"

BATCH_MAX = 512
"""Writes per transaction; in a larger one the first write would wait for the last."""

BUSY_SECONDS = 5.0
"""How long a write waits for another program that reads the file."""

ENTRIES_KEPT = 1_000
"""Entries per kind and owner; beyond it the oldest are deleted."""

# Not WITHOUT ROWID: rows that are written together are stored together; by random ids they would be scattered over the
# file. That halves the cost of a write. The index covers a list's filters: reading every document of an owner instead
# takes twelve times as long.
SCHEMA = """
CREATE TABLE IF NOT EXISTS documents (
    kind TEXT NOT NULL, owner TEXT NOT NULL, id TEXT NOT NULL, version INTEGER NOT NULL, at REAL NOT NULL,
    "group" TEXT NOT NULL, state TEXT NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (kind, owner, id)
);
DROP INDEX IF EXISTS documents_by_time;
CREATE INDEX IF NOT EXISTS documents_listed ON documents (kind, owner, at, "group", state);
CREATE INDEX IF NOT EXISTS documents_by_state ON documents (kind, state, at);
CREATE TABLE IF NOT EXISTS entries (
    number INTEGER PRIMARY KEY, kind TEXT NOT NULL, owner TEXT NOT NULL, at REAL NOT NULL, content BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS entries_by_owner ON entries (kind, owner, number);
"""

NEW = """
INSERT INTO documents (version, at, "group", state, body, kind, owner, id) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (kind, owner, id) DO NOTHING
"""
CHANGE = """
UPDATE documents SET version = ?, at = ?, "group" = ?, state = ?, body = ?
WHERE kind = ? AND owner = ? AND id = ? AND version = ?
"""
DROP = "DELETE FROM documents WHERE kind = ? AND owner = ? AND id = ? AND version = ?"
ADD = "INSERT INTO entries (kind, owner, at, content) VALUES (?, ?, ?, ?)"
TRIM = """
DELETE FROM entries WHERE kind = :kind AND owner = :owner AND number <= (
    SELECT number FROM entries WHERE kind = :kind AND owner = :owner ORDER BY number DESC LIMIT 1 OFFSET :kept)
"""
COLUMNS = 'kind, owner, id, version, at, body, "group", state'
ONE = f"SELECT {COLUMNS} FROM documents WHERE rowid = ?"  # noqa: S608 - our own words
# From owner to owner by the index, because there are far fewer owners than documents.
NAMED = f"""
WITH RECURSIVE owners (name) AS (
    SELECT min(owner) FROM documents WHERE kind = :kind UNION ALL
    SELECT (SELECT min(owner) FROM documents WHERE kind = :kind AND owner > name) FROM owners WHERE name NOTNULL)
SELECT {COLUMNS} FROM owners CROSS JOIN documents WHERE kind = :kind AND owner = name AND id = :id LIMIT :limit
"""  # noqa: S608 - our own words
PLACE = "rowid, length(body), at, owner, id"
# A changed file may hold anything: SQLite accepts text in a BLOB column.
LOG_ROWS = """
SELECT number, CAST(at AS REAL), CAST(content AS BLOB), CAST(digest AS BLOB) FROM audit
WHERE number > ? ORDER BY number LIMIT ?
"""

PRUNE = """
DELETE FROM documents WHERE (kind, owner, id) IN (
    SELECT kind, owner, id FROM documents WHERE kind = ? AND state IN ({}) AND at < ? ORDER BY at LIMIT ?)
"""

# The plus makes both use the index by owner, and not that by state.
WEIGH = """
SELECT kind, state, sum(length(body) + ?) FROM documents WHERE kind = ? AND owner = ? GROUP BY +state
"""
OLDEST = """
SELECT rowid, id, length(body) + ? FROM documents WHERE kind = ? AND owner = ? AND +state IN ({})
ORDER BY at, id LIMIT ?
"""

_T = TypeVar("_T")
SqliteOperation: TypeAlias = Callable[[sqlite3.Connection], bool]
"""Makes one write in a transaction; False on a version conflict."""


class SqliteWrite(NamedTuple):
    """One write: documents and audit facts, or another operation."""

    done: OnWritten
    documents: Sequence[Document] = ()
    facts: Sequence[Fact] = ()
    operation: SqliteOperation | None = None


# Waking the writer thread costs both threads, and one sync costs as much for one write as for many. So the writes of
# one turn of the loop go together, and so do those of the next turns while each turn brings more. After a large batch,
# another one is likely: then the first writes wait a moment for the others. A single write does not wait.

TURNS_MAX = 4
"""How many turns of the loop a batch may grow."""

PATIENCE_SECONDS = 0.001
"""How long the first writes wait for the others: about one sync (0.2 to 5 ms), which they then share."""


class WriteBatcher(Generic[_T]):
    """Passes items on in batches, in order. On one loop only."""

    def __init__(
        self, send: Callable[[list[_T]], None], batch_max: int, patience_seconds: float = PATIENCE_SECONDS
    ) -> None:
        """A batch of `batch_max` items is sent at once; it may hold a few more."""
        self._loop = asyncio.get_running_loop()
        self._send = send
        self._batch_max = batch_max
        self._patience_seconds = patience_seconds
        self._items: list[_T] = []
        self._expected = 1
        """How many items are worth waiting for: three quarters of the last batch, since rarely all come again."""
        self._timer: asyncio.TimerHandle | None = None

    def add(self, item: _T) -> None:
        """Add an item; it is sent soon."""
        self._items.append(item)
        if len(self._items) == 1:
            self._loop.call_soon(self._check)
        elif self._timer is not None and self._is_enough():
            self.flush()

    def flush(self) -> None:
        """Send all items now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._items:
            items, self._items = self._items, []
            self._expected = max(1, len(items) * 3 // 4)
            self._send(items)

    def _check(self, seen: int = 0, turns: int = 0) -> None:
        count = len(self._items)
        if turns < TURNS_MAX and seen < count < self._batch_max:
            self._loop.call_soon(self._check, count, turns + 1)
        elif count and not self._is_enough():
            self._timer = self._loop.call_later(self._patience_seconds, self.flush)
        else:
            self.flush()

    def _is_enough(self) -> bool:
        return len(self._items) >= min(self._expected, self._batch_max)


class SqliteJournal:
    """See `core.journal.Journal`. Made on the event loop that gets the results."""

    def __init__(self, folder: Path) -> None:
        """Raises `StateInUse`, or `OSError` or `sqlite3.Error` if the file cannot be opened."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = _lock(folder / LOCK)
        self._path = folder / FILE
        self._loop = asyncio.get_running_loop()
        self._is_closed = False
        self._log: SqliteAuditWriter | None = None
        self.write_metrics = WriteMetrics(self._loop.time)
        self._probe = WriteProbe(lambda done: self._enqueue(SqliteWrite(done, operation=_test_write)))
        self._queue: SimpleQueue[list[SqliteWrite] | None] = SimpleQueue()
        self._batcher: WriteBatcher[SqliteWrite] = WriteBatcher(self._queue.put, BATCH_MAX)
        with ExitStack() as opened:
            opened.callback(self._lock.close)
            self._path.touch(mode=0o600)  # private to the hub's user; SQLite's side files get the same mode
            self._write_connection = _open(self._path)
            opened.callback(self._write_connection.close)
            self._write_connection.executescript(SCHEMA + audit_sqlite.SCHEMA)
            self._read_connection = _open(self._path)
            opened.pop_all()
        self._reader = ThreadPoolExecutor(1, "journal reader")
        self._writer = threading.Thread(target=self._run_writer, name="journal writer", daemon=True)
        self._writer.start()

    @property
    def is_failing(self) -> bool:
        """See `core.journal.HealthReportingJournal`."""
        return self._probe.is_failing and not self._is_closed

    # -- writing, on the loop ----------------------------------------------------------------------------------------

    def write(self, documents: Sequence[Document], done: OnWritten, facts: Sequence[Fact] = ()) -> None:
        """See `core.journal.Journal`."""
        self._enqueue(SqliteWrite(done, documents, facts))

    async def commit(self, entries: Sequence[JournalEntry]) -> None:
        """See `core.journal.Journal`."""
        await self._perform(partial(_add, entries))

    async def prune(self, kind: str, states: Collection[str], *, before: float, limit: int) -> int:
        """See `core.journal.Journal`."""
        return await self._query_writer(
            lambda connection: connection.execute(PRUNE.format(_marks(states)), (kind, *states, before, limit)).rowcount
        )

    async def weigh(self, kinds: Collection[str], owner: str) -> Mapping[tuple[str, str], int]:
        """See `core.journal.Journal`."""

        def weigh(connection: sqlite3.Connection) -> dict[tuple[str, str], int]:
            rows = [row for kind in kinds for row in connection.execute(WEIGH, (DOCUMENT_BYTES, kind, owner))]
            return {(kind, state): size for kind, state, size in rows}

        return await self._query_writer(weigh)

    async def trim(self, kind: str, owner: str, states: Collection[str], *, bytes: int, limit: int) -> TrimResult:
        """See `core.journal.Journal`."""
        return await self._query_writer(partial(_trim, kind, owner, tuple(states), bytes, limit))

    async def open_log(self, notary: AuditNotary) -> LogState:
        """See `core.journal.AuditJournal`."""
        writer = SqliteAuditWriter(notary)
        log_state = await self._query_writer(writer.find)
        self._log = writer
        return log_state

    async def prune_log(self, *, before: float, limit: int) -> int:
        """See `core.journal.AuditJournal`."""
        assert self._log is not None, "the log is opened first"
        return await self._query_writer(partial(self._log.prune, before, limit))

    async def log_rows(self, *, after: int, limit: int) -> Sequence[AuditRow]:
        """See `core.journal.ReadableAuditJournal`."""
        rows = await self._run(lambda: self._read_connection.execute(LOG_ROWS, (after, limit)).fetchall())
        return [AuditRow(*row) for row in rows]

    async def _query_writer(self, query: Callable[[sqlite3.Connection], _T]) -> _T:
        """Run a query within a transaction of the writer and return its result."""
        results: list[_T] = []

        def operation(connection: sqlite3.Connection) -> bool:
            results.append(query(connection))
            return True

        await self._perform(operation)
        return results[-1]

    async def _perform(self, operation: SqliteOperation) -> None:
        written: asyncio.Future[WriteResult] = self._loop.create_future()
        self._enqueue(SqliteWrite(partial(set_result_once, written), operation=operation))
        if (result := await written) != "kept":
            raise OSError(f"the journal could not be written: {result}")

    def _enqueue(self, work: SqliteWrite) -> None:
        if self._is_closed:
            self._loop.call_soon(work.done, "refused")
            return
        self.write_metrics.begin()
        self._batcher.add(work)

    async def aclose(self) -> None:
        """Write what is pending and close the file; later writes are refused."""
        self._is_closed = True
        self._batcher.flush()
        self._queue.put(None)
        try:
            await self._loop.run_in_executor(None, self._writer.join)
        except RuntimeError:  # a program that ends cannot start threads
            self._writer.join()
        self._reader.shutdown()
        self._read_connection.close()
        self._write_connection.close()
        self._lock.close()

    # -- writing, on the writer's thread -----------------------------------------------------------------------------

    def _run_writer(self) -> None:
        while (works := self._queue.get()) is not None:
            is_last = False
            while len(works) < BATCH_MAX and not is_last and not self._queue.empty():
                more = self._queue.get()
                is_last = more is None
                works = works + (more or [])
            self._report(works, self._write_batch(works))
            if is_last:
                return

    def _write_batch(self, works: Sequence[SqliteWrite]) -> list[WriteResult]:
        """Write all in one transaction; if that fails, each alone, so that one bad write fails alone."""
        results = self._transact(works)
        if results is not None:
            return results
        return ["refused"] if len(works) == 1 else [self._write_batch([work])[0] for work in works]

    def _transact(self, works: Sequence[SqliteWrite]) -> list[WriteResult] | None:
        """The result of each write; None if the transaction was refused."""
        if self._log is not None and all(work.facts and not work.documents for work in works):
            return self._append(works, self._log)
        try:
            self._begin()
            if self._write_together(works):
                results: list[WriteResult] = ["kept"] * len(works)
            else:
                self._write_connection.execute("ROLLBACK")
                self._begin()
                results = [self._write_one(work) for work in works]
        except sqlite3.Error as error:
            log.error("cannot write the journal", path=str(self._path), error=str(error))
            self._reopen()
            return None
        try:
            self._write_connection.execute("COMMIT")
        except sqlite3.Error as error:
            # Only the file can tell whether a failed commit was written.
            log.error("the journal may not have been written", path=str(self._path), error=str(error))
            self._reopen()
            return ["unknown"] * len(works)
        if self._log is not None:
            self._log.committed()
        return results

    def _append(self, works: Sequence[SqliteWrite], writer: SqliteAuditWriter) -> list[WriteResult] | None:
        """Write audit records alone, in one statement, which is its own transaction."""
        try:
            writer.begin(self._write_connection)
            writer.append(self._write_connection, [work.facts for work in works])
        except Exception as error:  # noqa: BLE001 - each write is tried again alone
            log.error("cannot write the journal", path=str(self._path), error=str(error))
            self._reopen()
            return None
        writer.committed()
        return ["kept"] * len(works)

    def _begin(self) -> None:
        self._write_connection.execute("BEGIN IMMEDIATE")
        if self._log is not None:
            self._log.begin(self._write_connection)

    def _write_together(self, works: Sequence[SqliteWrite]) -> bool:
        """Write all without savepoints; False if one fails, which leaves the transaction in an unknown state."""
        documents = [document for work in works for document in work.documents]
        keys = {(document.kind, document.owner, document.id) for document in documents}
        if len(keys) < len(documents) or not all(work.documents or work.facts for work in works):
            return False
        try:
            return _put(documents, self._write_connection) and self._append_facts(works)
        except Exception:  # each write is tried again alone
            if not self._write_connection.in_transaction:
                raise
            return False

    def _append_facts(self, works: Sequence[SqliteWrite]) -> bool:
        """Append audit records."""
        if self._log is not None:
            self._log.append(self._write_connection, [work.facts for work in works])
        return True

    def _write_one(self, work: SqliteWrite) -> WriteResult:
        """Make one write; a failure rolls back this write only."""
        self._write_connection.execute("SAVEPOINT one")
        head = None if self._log is None else self._log.head
        result: WriteResult
        try:
            if work.operation is None:
                is_written = _put(work.documents, self._write_connection)
            else:
                is_written = work.operation(self._write_connection)
            result = "kept" if is_written and self._append_facts((work,)) else "conflict"
        except Exception as error:  # one bad write must not end the writer thread
            if not self._write_connection.in_transaction:
                raise  # SQLite rolled the whole transaction back, for example on a full disk
            log.error("a write failed", path=str(self._path), error=str(error))
            result = "refused"
        if result != "kept":
            self._write_connection.execute("ROLLBACK TO one")
            if self._log is not None and head is not None:
                self._log.head = head
        self._write_connection.execute("RELEASE one")
        return result

    def _reopen(self) -> None:
        if self._log is not None:
            self._log.set_unknown()
        self._write_connection.close()
        try:
            self._write_connection = _open(self._path)
        except sqlite3.Error as error:
            log.error("cannot reopen the journal", path=str(self._path), error=str(error))

    def _report(self, works: Sequence[SqliteWrite], results: Sequence[WriteResult]) -> None:
        try:
            self._loop.call_soon_threadsafe(self._reported, works, results)
        except RuntimeError:
            return  # the loop is closed

    def _reported(self, works: Sequence[SqliteWrite], results: Sequence[WriteResult]) -> None:
        self.write_metrics.end(results)
        notify_all((work.done, result) for work, result in zip(works, results, strict=True))
        if "refused" in results or "unknown" in results:
            self._probe.probe()

    # -- reading -----------------------------------------------------------------------------------------------------

    async def read(self, kind: str, owner: str, id: str) -> Document | None:
        """See `core.journal.Journal`."""
        text = f"SELECT {COLUMNS} FROM documents WHERE kind = ? AND owner = ? AND id = ?"  # noqa: S608 - our own words
        row = await self._run(lambda: self._read_connection.execute(text, (kind, owner, id)).fetchone())
        return None if row is None else Document(*row)

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
        clauses = ["kind = ?", "owner = ?", "at > ?"]
        values: list[object] = [kind, owner, after]
        if group:
            clauses.append('"group" = ?')
            values.append(group)
        if states:
            clauses.append(f"+state IN ({_marks(states)})")  # the plus avoids the index by state
            values += states
        where = " AND ".join(clauses)
        count, counted = f"SELECT count(*) FROM documents WHERE {where}", tuple(values)  # noqa: S608 - our own words
        total: int = await self._run(lambda: self._read_connection.execute(count, counted).fetchone()[0])
        if token:
            at, id = parse_page_token(token)
            where += " AND (at, id) < (?, ?)"
            values += [at, id]
        found, has_more = await self._read_page(where, "at DESC, id DESC", values, limit)
        return Page(tuple(found), total, page_token(found[-1]) if has_more else "")

    async def all_in(
        self, kind: str, states: Collection[str], *, limit: int, after: Document | None = None
    ) -> list[Document]:
        """See `core.journal.Journal`."""
        values: list[object] = [kind, *states]
        where = f"kind = ? AND state IN ({_marks(states)})"
        if after is not None:
            where += " AND (at, owner, id) > (?, ?, ?)"
            values += [after.at, after.owner, after.id]
        found, _ = await self._read_page(where, "at, owner, id", values, limit)
        return found

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
        # One part per owner or state, each in the order of an index, so that no more is read than is shown.
        place: tuple[object, ...] = before or ()
        where = f"kind = ? AND owner = ? AND +state IN ({_marks(states)})" if owners else "kind = ? AND state = ?"
        where += "" if before is None else " AND (at, owner, id) < (?, ?, ?)"
        order = "at DESC, owner DESC, id DESC"
        one = f"SELECT * FROM (SELECT {PLACE} FROM documents WHERE {where} ORDER BY {order} LIMIT ?)"  # noqa: S608
        values: list[object] = []
        for part in owners or states:
            values += [kind, part, *(states if owners else ()), *place, limit]
        text = " UNION ALL ".join([one] * len(owners or states)) + f" ORDER BY {order} LIMIT ?"
        return (await self._run(partial(self._read_page_now, text, (*values, limit), limit)))[0]

    async def named(self, kind: str, id: str, *, limit: int) -> list[Document]:
        """See `core.journal.Journal`."""
        values = {"kind": kind, "id": id, "limit": limit}
        rows = await self._run(lambda: self._read_connection.execute(NAMED, values).fetchall())
        return [Document(*row) for row in rows]

    async def latest(self, kind: str, owner: str, limit: int) -> list[JournalEntry]:
        """See `core.journal.Journal`."""
        text = "SELECT kind, owner, at, content FROM entries WHERE kind = ? AND owner = ? ORDER BY number DESC LIMIT ?"
        rows = await self._run(lambda: self._read_connection.execute(text, (kind, owner, limit)).fetchall())
        return [JournalEntry(kind, owner, at, msgspec.Raw(content)) for kind, owner, at, content in reversed(rows)]

    async def _read_page(
        self, where: str, order: str, values: Sequence[object], limit: int
    ) -> tuple[list[Document], bool]:
        """The documents of one page, and whether there are more."""
        text = f"SELECT rowid, length(body) FROM documents WHERE {where} ORDER BY {order} LIMIT ?"  # noqa: S608
        return await self._run(partial(self._read_page_now, text, (*values, limit + 1), limit))

    def _read_page_now(self, text: str, values: Sequence[object], limit: int) -> tuple[list[Document], bool]:
        """Read the lengths, then the documents that fit, in one snapshot."""
        self._read_connection.execute("BEGIN")
        try:
            found = self._read_connection.execute(text, values).fetchall()
            count = fitting_count(length for _, length, *_ in found[:limit])
            rows = [self._read_connection.execute(ONE, (row,)).fetchone() for row, *_ in found[:count]]
        finally:
            self._read_connection.execute("ROLLBACK")
        return [Document(*row) for row in rows], len(found) > count

    async def _run(self, work: Callable[[], _T]) -> _T:
        try:
            return await self._loop.run_in_executor(self._reader, work)
        except (sqlite3.Error, UnicodeError, RuntimeError) as error:  # RuntimeError: the reader is shut down
            raise OSError(f"the journal cannot be read: {error}") from error


def _put(documents: Sequence[Document], connection: sqlite3.Connection) -> bool:
    """Write documents with distinct keys; False on a version conflict."""
    kept = [document for document in documents if document.body is not None]
    new = [_row(each) for each in kept if each.version == 1]
    changed = [(*_row(each), each.version - 1) for each in kept if each.version != 1]
    gone = [(each.kind, each.owner, each.id, each.version - 1) for each in documents if each.body is None]
    for text, rows in ((NEW, new), (CHANGE, changed), (DROP, gone)):
        if rows and connection.executemany(text, rows).rowcount != len(rows):
            return False
    return True


def _row(document: Document) -> tuple[object, ...]:
    key = (document.kind, document.owner, document.id)
    return (document.version, document.at, document.group, document.state, document.body, *key)


def _add(entries: Sequence[JournalEntry], connection: sqlite3.Connection) -> bool:
    for entry in entries:
        connection.execute(ADD, (entry.kind, entry.owner, entry.at, bytes(entry.content)))
        connection.execute(TRIM, {"kind": entry.kind, "owner": entry.owner, "kept": ENTRIES_KEPT})
    return True


def _test_write(connection: sqlite3.Connection) -> bool:
    """Write something and delete it."""
    added = connection.execute(ADD, ("probe", "", 0.0, bytes(PROBE_BYTES)))
    connection.execute("DELETE FROM entries WHERE number = ?", (added.lastrowid,))
    return True


def _trim(
    kind: str, owner: str, states: Sequence[str], bytes: int, limit: int, connection: sqlite3.Connection
) -> TrimResult:
    rows: list[int] = []
    ids: list[str] = []
    taken = 0
    oldest = connection.execute(OLDEST.format(_marks(states)), (DOCUMENT_BYTES, kind, owner, *states, limit))
    for row, id, size in oldest.fetchall():
        if taken >= bytes:
            break
        rows.append(row)
        ids.append(id)
        taken += size
    connection.executemany("DELETE FROM documents WHERE rowid = ?", [(row,) for row in rows])
    return TrimResult(tuple(ids), taken)


def _marks(values: Collection[object]) -> str:
    return ", ".join("?" * len(values))


def _open(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _lock(path: Path) -> IO[bytes]:
    """Lock the folder until the file is closed; the system releases it when the process ends."""
    held = path.open("ab")
    with suppress(PermissionError):  # another user owns it and probably uses it
        path.chmod(0o600)  # any user who can open it could lock it and keep hubs from starting
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as taken:
        held.close()
        raise StateInUse(f"another hub is using {path.parent}; give this one a [hub] state of its own") from taken
    return held
