"""A journal in a file, by SQLite: what it calls kept survives the end of the process, and of the machine's power.

One thread writes. It takes all that has come meanwhile, writes it in one transaction and tells the loop once, so that
many writers share the cost of a sync. Another thread reads. `app` opens it and closes it.
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
from typing import IO, NamedTuple, TypeAlias, TypeVar

import msgspec
import structlog

from isthmus.core.audit import AuditRow, Fact, LogState
from isthmus.core.ports import (
    DOCUMENT_BYTES,
    AuditSigner,
    Document,
    JournalEntry,
    OnWritten,
    Page,
    TrimResult,
    WriteResult,
)
from isthmus.storage import audit_sqlite
from isthmus.storage.audit_sqlite import AT_ONCE_MAX, SqliteAuditWriter
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
from isthmus.storage.write_batching import WriteBatcher

log = structlog.get_logger(__name__)

FILE = "journal.db"
LOCK = "journal.lock"

BATCH_MAX = 512
"""Writes in one transaction; more would make the first of them wait for the last."""

BUSY_SECONDS = 5.0
"""How long another program's look into the file may hold up a write."""

ENTRIES_KEPT = 1_000
"""Entries kept of one kind and owner; the oldest go first."""

# Not WITHOUT ROWID: what is written together lies together, where ids that are mere chance would scatter it over the
# file. That halves what a write costs. A list is narrowed by its index alone: to look up every document of an owner
# for it takes twelve times as long.
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
# Whoever changed the file may have left anything there: SQLite keeps a text in the place of bytes.
LOG_ROWS = """
SELECT number, CAST(at AS REAL), CAST(content AS BLOB), CAST(digest AS BLOB) FROM audit
WHERE number > ? ORDER BY number LIMIT ?
"""

PRUNE = """
DELETE FROM documents WHERE (kind, owner, id) IN (
    SELECT kind, owner, id FROM documents WHERE kind = ? AND state IN ({}) AND at < ? ORDER BY at LIMIT ?)
"""

# By the plus both go by the index of the owner's own, and not by that of all owners' states.
WEIGH = """
SELECT kind, state, sum(length(body) + ?) FROM documents WHERE kind = ? AND owner = ? GROUP BY +state
"""
OLDEST = """
SELECT rowid, id, length(body) + ? FROM documents WHERE kind = ? AND owner = ? AND +state IN ({})
ORDER BY at, id LIMIT ?
"""

_T = TypeVar("_T")
SqliteOperation: TypeAlias = Callable[[sqlite3.Connection], bool]
"""Writes what belongs together; False if another one came before it."""


class SqliteWrite(NamedTuple):
    """Documents and facts that belong together, or another deed."""

    done: OnWritten
    deed: SqliteOperation
    documents: Sequence[Document] = ()
    facts: Sequence[Fact] = ()


class SqliteJournal:
    """See `core.ports.Journal`. Made on the event loop that hears the verdicts."""

    def __init__(self, folder: Path) -> None:
        """Raises `StateInUse`, or `OSError` or `sqlite3.Error` if the file cannot be opened."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = _lock(folder / LOCK)
        self._path = folder / FILE
        self._loop = asyncio.get_running_loop()
        self._is_closed = False
        self._log: SqliteAuditWriter | None = None
        self._probe = WriteProbe(lambda done: self._take(SqliteWrite(done, _try)))
        self._queue: SimpleQueue[list[SqliteWrite] | None] = SimpleQueue()
        self._gathering: WriteBatcher[SqliteWrite] = WriteBatcher(self._queue.put, BATCH_MAX)
        with ExitStack() as opened:
            opened.callback(self._lock.close)
            self._path.touch(mode=0o600)  # what callers say and are told is for nobody else; its side files follow it
            self._written = _open(self._path)
            opened.callback(self._written.close)
            self._written.executescript(SCHEMA + audit_sqlite.SCHEMA)
            self._reading = _open(self._path)
            opened.pop_all()
        self._reader = ThreadPoolExecutor(1, "journal reader")
        self._writer = threading.Thread(target=self._write_on, name="journal writer", daemon=True)
        self._writer.start()

    @property
    def is_failing(self) -> bool:
        """See `core.ports.HealthReportingJournal`."""
        return self._probe.is_failing and not self._is_closed

    # -- writing, on the loop ----------------------------------------------------------------------------------------

    def write(self, documents: Sequence[Document], done: OnWritten, facts: Sequence[Fact] = ()) -> None:
        """See `core.ports.Journal`."""
        self._take(SqliteWrite(done, partial(_put, documents), documents, facts))

    async def commit(self, entries: Sequence[JournalEntry]) -> None:
        """See `core.ports.Journal`."""
        await self._done(partial(_add, entries))

    async def prune(self, kind: str, states: Collection[str], *, before: float, limit: int) -> int:
        """See `core.ports.Journal`."""
        counts: list[int] = []
        await self._done(partial(_prune, kind, tuple(states), before, limit, counts))
        return counts[-1]

    async def weigh(self, kinds: Collection[str], owner: str) -> Mapping[tuple[str, str], int]:
        """See `core.ports.Journal`."""
        return await self._answered(partial(_weigh, tuple(kinds), owner))

    async def trim(self, kind: str, owner: str, states: Collection[str], *, bytes: int, limit: int) -> TrimResult:
        """See `core.ports.Journal`."""
        return await self._answered(partial(_trim, kind, owner, tuple(states), bytes, limit))

    async def open_log(self, notary: AuditSigner) -> LogState:
        """See `core.ports.AuditJournal`."""
        writer = SqliteAuditWriter(notary)
        server_status = await self._answered(writer.find)
        self._log = writer
        return server_status

    async def prune_log(self, *, before: float, limit: int) -> int:
        """See `core.ports.AuditJournal`."""
        assert self._log is not None, "the log is opened first"
        return await self._answered(partial(self._log.prune, before, limit))

    async def log_rows(self, *, after: int, limit: int) -> Sequence[AuditRow]:
        """See `core.ports.ReadableAuditJournal`."""
        rows = await self._run(lambda: self._reading.execute(LOG_ROWS, (after, limit)).fetchall())
        return [AuditRow(*row) for row in rows]

    async def _answered(self, ask: Callable[[sqlite3.Connection], _T]) -> _T:
        answers: list[_T] = []
        await self._done(partial(_keep_answer, ask, answers))
        return answers[-1]

    async def _done(self, deed: SqliteOperation) -> None:
        kept: asyncio.Future[WriteResult] = self._loop.create_future()
        self._take(SqliteWrite(partial(set_result_once, kept), deed))
        if (verdict := await kept) != "kept":
            raise OSError(f"the journal could not be written: {verdict}")

    def _take(self, work: SqliteWrite) -> None:
        if self._is_closed:
            self._loop.call_soon(work.done, "refused")
            return
        self._gathering.add(work)

    async def aclose(self) -> None:
        """Write what is waiting, and let the file go; what comes later is refused."""
        self._is_closed = True
        self._gathering.flush()
        self._queue.put(None)
        try:
            await self._loop.run_in_executor(None, self._writer.join)
        except RuntimeError:  # a program that ends may begin no thread any more
            self._writer.join()
        self._reader.shutdown()
        self._reading.close()
        self._written.close()
        self._lock.close()

    # -- writing, on the writer's thread -----------------------------------------------------------------------------

    def _write_on(self) -> None:
        while (works := self._queue.get()) is not None:
            is_last = False
            while len(works) < BATCH_MAX and not is_last and not self._queue.empty():
                more = self._queue.get()
                is_last = more is None
                works = works + (more or [])
            self._tell(works, self._write_batch(works))
            if is_last:
                return

    def _write_batch(self, works: Sequence[SqliteWrite]) -> list[WriteResult]:
        """Write all in one transaction; if none of it could be, each alone, so that only those fail that must."""
        verdicts = self._transact(works)
        if verdicts is not None:
            return verdicts
        return ["refused"] if len(works) == 1 else [self._write_batch([work])[0] for work in works]

    def _transact(self, works: Sequence[SqliteWrite]) -> list[WriteResult] | None:
        """What became of each; None if the transaction was refused."""
        if self._log is not None and (records := _records_alone(works)):
            return self._append(records, len(works), self._log)
        try:
            self._begin()
            if self._write_together(works):
                verdicts: list[WriteResult] = ["kept"] * len(works)
            else:
                self._written.execute("ROLLBACK")
                self._begin()
                verdicts = [self._write_one(work) for work in works]
        except sqlite3.Error as error:
            log.error("the journal refuses to be written", path=str(self._path), error=str(error))
            self._reopen()
            return None
        try:
            self._written.execute("COMMIT")
        except sqlite3.Error as error:
            # What a failed commit left behind, only the file itself can tell.
            log.error("the journal may not have been written", path=str(self._path), error=str(error))
            self._reopen()
            return ["unknown"] * len(works)
        if self._log is not None:
            self._log.kept()
        return verdicts

    def _append(self, records: Sequence[Fact], count: int, writer: SqliteAuditWriter) -> list[WriteResult] | None:
        """Write records and nothing else, in one statement, which is a transaction by itself."""
        try:
            writer.begin(self._written)
            writer.append(self._written, records)
        except Exception as error:  # noqa: BLE001 - each comes again by itself: only those are refused that must be
            log.error("the journal refuses to be written", path=str(self._path), error=str(error))
            self._reopen()
            return None
        writer.kept()
        return ["kept"] * count

    def _begin(self) -> None:
        self._written.execute("BEGIN IMMEDIATE")
        if self._log is not None:
            self._log.begin(self._written)

    def _write_together(self, works: Sequence[SqliteWrite]) -> bool:
        """Write all without a savepoint for each; False if something does not go, which leaves nobody knows what."""
        documents = [document for work in works for document in work.documents]
        keys = {(document.kind, document.owner, document.id) for document in documents}
        if len(keys) < len(documents) or not all(work.documents or work.facts for work in works):
            return False
        try:
            return _put(documents, self._written) and self._note([fact for work in works for fact in work.facts])
        except Exception:  # it will come again, with the work that it belongs to
            if not self._written.in_transaction:
                raise
            return False

    def _note(self, facts: Sequence[Fact]) -> bool:
        """Write the log's next records."""
        if facts and self._log is not None:
            self._log.append(self._written, facts)
        return True

    def _write_one(self, work: SqliteWrite) -> WriteResult:
        """Write what belongs together; whatever goes wrong undoes it, and only it."""
        self._written.execute("SAVEPOINT one")
        head = None if self._log is None else self._log.head
        verdict: WriteResult
        try:
            verdict = "kept" if work.deed(self._written) and self._note(work.facts) else "conflict"
        except Exception as error:  # one caller's odd text must not end the thread that writes for everybody
            if not self._written.in_transaction:
                raise  # SQLite gave up all of it, for want of room perhaps
            log.error("something could not be written", path=str(self._path), error=str(error))
            verdict = "refused"
        if verdict != "kept":
            self._written.execute("ROLLBACK TO one")
            if self._log is not None and head is not None:
                self._log.head = head
        self._written.execute("RELEASE one")
        return verdict

    def _reopen(self) -> None:
        if self._log is not None:
            self._log.unknown()
        self._written.close()
        try:
            self._written = _open(self._path)
        except sqlite3.Error as error:
            log.error("the journal cannot be opened again", path=str(self._path), error=str(error))

    def _tell(self, works: Sequence[SqliteWrite], verdicts: Sequence[WriteResult]) -> None:
        try:
            told = [(work.done, verdict) for work, verdict in zip(works, verdicts, strict=True)]
            self._loop.call_soon_threadsafe(notify_all, told)
            if "refused" in verdicts or "unknown" in verdicts:
                self._loop.call_soon_threadsafe(self._probe.suspect)
        except RuntimeError:
            return  # the loop is closed: nobody is left to hear

    # -- reading -----------------------------------------------------------------------------------------------------

    async def read(self, kind: str, owner: str, id: str) -> Document | None:
        """See `core.ports.Journal`."""
        where = f"SELECT {COLUMNS} FROM documents WHERE kind = ? AND owner = ? AND id = ?"  # noqa: S608 - our own words
        found = await self._ask(where, (kind, owner, id))
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
        """See `core.ports.Journal`."""
        clauses = ["kind = ?", "owner = ?", "at > ?"]
        values: list[object] = [kind, owner, after]
        if group:
            clauses.append('"group" = ?')
            values.append(group)
        if states:
            clauses.append(f"+state IN ({_marks(states)})")  # by the plus not by the index of all owners' states
            values += states
        where = " AND ".join(clauses)
        total = await self._count(where, values)
        if token:
            at, id = parse_page_token(token)
            where += " AND (at, id) < (?, ?)"
            values += [at, id]
        found, has_more = await self._some(where, "at DESC, id DESC", values, limit)
        return Page(tuple(found), total, page_token(found[-1]) if has_more else "")

    async def all_in(
        self, kind: str, states: Collection[str], *, limit: int, after: Document | None = None
    ) -> list[Document]:
        """See `core.ports.Journal`."""
        values: list[object] = [kind, *states]
        where = f"kind = ? AND state IN ({_marks(states)})"
        if after is not None:
            where += " AND (at, owner, id) > (?, ?, ?)"
            values += [after.at, after.owner, after.id]
        found, _ = await self._some(where, "at, owner, id", values, limit)
        return found

    async def latest(self, kind: str, owner: str, limit: int) -> list[JournalEntry]:
        """See `core.ports.Journal`."""
        text = "SELECT kind, owner, at, content FROM entries WHERE kind = ? AND owner = ? ORDER BY number DESC LIMIT ?"
        rows = await self._run(lambda: self._reading.execute(text, (kind, owner, limit)).fetchall())
        return [JournalEntry(kind, owner, at, msgspec.Raw(content)) for kind, owner, at, content in reversed(rows)]

    async def _ask(self, text: str, values: Sequence[object]) -> list[Document]:
        rows = await self._run(lambda: self._reading.execute(text, tuple(values)).fetchall())
        return [Document(*row) for row in rows]

    async def _some(self, where: str, order: str, values: Sequence[object], limit: int) -> tuple[list[Document], bool]:
        """Those that go on one page, and whether there are more."""
        text = f"SELECT rowid, length(body) FROM documents WHERE {where} ORDER BY {order} LIMIT ?"  # noqa: S608
        return await self._run(partial(self._read_some, text, (*values, limit + 1), limit))

    def _read_some(self, text: str, values: Sequence[object], limit: int) -> tuple[list[Document], bool]:
        """Look up how long they are, and read those that fit, as they all were at one time."""
        self._reading.execute("BEGIN")
        try:
            found = self._reading.execute(text, values).fetchall()
            count = fitting_count(length for _, length in found[:limit])
            rows = [self._reading.execute(ONE, (row,)).fetchone() for row, _ in found[:count]]
        finally:
            self._reading.execute("ROLLBACK")
        return [Document(*row) for row in rows], len(found) > count

    async def _count(self, where: str, values: Sequence[object]) -> int:
        text = f"SELECT count(*) FROM documents WHERE {where}"  # noqa: S608 - our own words, values apart
        held = tuple(values)
        counted: int = await self._run(lambda: self._reading.execute(text, held).fetchone()[0])
        return counted

    async def _run(self, work: Callable[[], _T]) -> _T:
        try:
            return await self._loop.run_in_executor(self._reader, work)
        except (sqlite3.Error, UnicodeError, RuntimeError) as error:  # the last by a reader that is shut down
            raise OSError(f"the journal cannot be read: {error}") from error


def _records_alone(works: Sequence[SqliteWrite]) -> list[Fact]:
    """All records, if nothing else is to be written and one statement can take them."""
    if not all(work.facts and not work.documents for work in works):
        return []
    facts = [fact for work in works for fact in work.facts]
    return facts if len(facts) <= AT_ONCE_MAX else []


def _keep_answer(ask: Callable[[sqlite3.Connection], _T], answers: list[_T], connection: sqlite3.Connection) -> bool:
    """A deed that has an answer."""
    answers.append(ask(connection))
    return True


def _put(documents: Sequence[Document], connection: sqlite3.Connection) -> bool:
    """Write documents, each under a key of its own; False if one could not take the place that it was meant for."""
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


def _try(connection: sqlite3.Connection) -> bool:
    """Write something that leaves nothing behind."""
    added = connection.execute(ADD, ("probe", "", 0.0, bytes(PROBE_BYTES)))
    connection.execute("DELETE FROM entries WHERE number = ?", (added.lastrowid,))
    return True


def _prune(
    kind: str, states: Sequence[str], before: float, limit: int, counts: list[int], connection: sqlite3.Connection
) -> bool:
    found = connection.execute(PRUNE.format(_marks(states)), (kind, *states, before, limit))
    counts.append(found.rowcount)
    return True


def _weigh(kinds: Sequence[str], owner: str, connection: sqlite3.Connection) -> dict[tuple[str, str], int]:
    rows = [row for kind in kinds for row in connection.execute(WEIGH, (DOCUMENT_BYTES, kind, owner))]
    return {(kind, state): size for kind, state, size in rows}


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
    """Hold the folder until the file is closed; the system lets go of it with the process."""
    held = path.open("ab")
    with suppress(PermissionError):  # it is another's, who is using it then
        path.chmod(0o600)  # whoever can open it can hold it, and so keep every hub from starting
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as taken:
        held.close()
        raise StateInUse(f"another hub is using {path.parent}; give this one a [hub] state of its own") from taken
    return held
