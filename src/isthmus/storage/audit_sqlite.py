"""The audit log in the journal's file: the journal appends, `isthmus audit` reads, also while a hub writes.

`storage.sqlite` appends within its own transactions.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from isthmus.core.audit import NUMBER_MAX, START, AuditRow, Fact, LogState, Point, Seal, batch_of
from isthmus.core.journal import AuditNotary

SCHEMA = """
CREATE TABLE IF NOT EXISTS audit (
    number INTEGER PRIMARY KEY, at REAL NOT NULL, content BLOB NOT NULL, digest BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS audit_anchor (
    id INTEGER PRIMARY KEY CHECK (id = 1), number INTEGER NOT NULL, digest BLOB NOT NULL, at REAL NOT NULL,
    signature BLOB NOT NULL
);
"""
# One statement for any number of records, which are cut out of five values: binding four values for each of a thousand
# records would hold the interpreter's lock, and with it the event loop, for half a millisecond. `RecordBatch` says what
# a place is; an integer divided by a million is the same number in SQLite and in Python.
APPEND = """
INSERT INTO audit (number, at, content, digest)
WITH RECURSIVE records (i, start, length) AS (
    VALUES (0, 1, CAST(substr(?5, 17, 8) AS INTEGER)) UNION ALL
    SELECT i + 1, start + length, CAST(substr(?5, i * 24 + 41, 8) AS INTEGER) FROM records WHERE i + 1 < ?2)
SELECT ?1 + i, CAST(substr(?5, i * 24 + 1, 16) AS INTEGER) / 1e6, substr(?3, start, length), substr(?4, i * 32 + 1, 32)
FROM records
"""
LAST = "SELECT number, at, CAST(content AS BLOB), CAST(digest AS BLOB) FROM audit ORDER BY number DESC LIMIT 1"
ANCHOR = "SELECT number, digest, at, signature FROM audit_anchor"
SET_ANCHOR = "INSERT OR REPLACE INTO audit_anchor (id, number, digest, at, signature) VALUES (1, ?, ?, ?, ?)"
FIRST_KEPT = "SELECT number FROM audit WHERE at >= ? ORDER BY number LIMIT 1"
ENDS = "SELECT min(number), max(number) FROM audit"
DIGEST = "SELECT digest FROM audit WHERE number = ?"
DROP = "DELETE FROM audit WHERE number <= ?"
ROWS = "SELECT number, at, content, digest FROM audit WHERE number > ? AND at >= ? AND at < ? ORDER BY number"
NEWEST = "SELECT number, at, content, digest FROM audit ORDER BY number DESC LIMIT ?"
BACK = "SELECT number, at, content, digest FROM audit WHERE number < ? AND at < ? ORDER BY number DESC"


class SqliteAuditWriter:
    """Appends to the log, within transactions of the journal."""

    def __init__(self, notary: AuditNotary) -> None:
        self._notary = notary
        self._committed: Point | None = None
        self.head = START
        """The last record that was written; it may not be committed yet."""

    def find(self, connection: sqlite3.Connection) -> LogState:
        """Read the end of the log. Raises `sqlite3.Error`."""
        log_state = read_log_state(connection)
        self.head = self._committed = log_state.head
        return log_state

    def begin(self, connection: sqlite3.Connection) -> None:
        """A transaction has begun: forget the records of a failed one."""
        if self._committed is None:
            self.find(connection)
        else:
            self.head = self._committed

    def append(self, connection: sqlite3.Connection, writes: Iterable[Sequence[Fact]]) -> None:
        """Append the facts of these writes, in one statement."""
        batch = batch_of(self.head, writes, self._notary.record)
        if batch:
            parts = (b"".join(batch.contents), b"".join(batch.digests), b"".join(batch.places))
            connection.execute(APPEND, (self.head.number + 1, len(batch), *parts))
        self.head = batch.head

    def prune(self, before: float, limit: int, connection: sqlite3.Connection) -> int:
        """Delete some of the oldest records. The last one stays, since the next record refers to it."""
        first, last = connection.execute(ENDS).fetchone()
        if first is None:
            return 0
        kept = connection.execute(FIRST_KEPT, (before,)).fetchone()
        until = min((last if kept is None else kept[0]) - 1, last - 1, first + limit - 1)
        if until < first:
            return 0
        (digest,) = connection.execute(DIGEST, (until,)).fetchone()
        seal = self._notary.seal("anchor", Point(until, digest))
        connection.execute(SET_ANCHOR, (until, digest, seal.at, seal.signature))
        return connection.execute(DROP, (until,)).rowcount

    def committed(self) -> None:
        """The transaction was committed."""
        if self.head != self._committed:
            self._committed = self.head
            self._notary.checkpoint(self.head)

    def set_unknown(self) -> None:
        """The result of the transaction is unknown: read the end of the log before the next one."""
        self._committed = None


def read_log_state(connection: sqlite3.Connection) -> LogState:
    """Read the end and the anchor of a log."""
    anchor = read_anchor(connection)
    row = connection.execute(LAST).fetchone()
    if row is None:
        return LogState(START if anchor is None else anchor.point, None, anchor)
    return LogState(Point(row[0], row[3]), row[2], anchor)


def read_anchor(connection: sqlite3.Connection) -> Seal | None:
    """The last deleted record; None if none was deleted."""
    found = connection.execute(ANCHOR).fetchone()
    if found is None:
        return None
    number, digest, at, signature = found
    return Seal(Point(number, digest), at, signature)


class SqliteAuditReader:
    """Reads a log as it was at one moment. Made by `open_reader`."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.anchor = read_anchor(connection)

    async def rows(self, *, after: int = 0, since: float = 0.0, until: float = float("inf")) -> AsyncIterator[AuditRow]:
        """The records of a period, oldest first."""
        for row in self._connection.execute(ROWS, (after, since, until)):
            yield AuditRow(*row)

    async def back(self, *, before: int = NUMBER_MAX, until: float = float("inf")) -> AsyncIterator[AuditRow]:
        """The records before that number and that time, newest first."""
        for row in self._connection.execute(BACK, (before, until)):
            yield AuditRow(*row)

    async def newest(self, limit: int) -> list[AuditRow]:
        """The last records, oldest first."""
        return [AuditRow(*row) for row in reversed(self._connection.execute(NEWEST, (limit,)).fetchall())]


@asynccontextmanager
async def open_reader(path: Path) -> AsyncIterator[SqliteAuditReader]:
    """Open the log in a journal's file, whether or not a hub writes to it.

    Raises:
        FileNotFoundError: the file is missing.
        OSError: the file has no log, or is unreadable.
    """
    if not path.is_file():  # noqa: ASYNC240 - local and fast; SQLite would make an empty file
        raise FileNotFoundError(f"there is no journal at {path}")
    connection = sqlite3.connect(path, timeout=5.0, isolation_level=None)
    try:
        connection.execute("PRAGMA query_only = ON")
        connection.execute("BEGIN")
        yield SqliteAuditReader(connection)
    except sqlite3.Error as error:
        raise OSError(f"the audit log in {path} cannot be read: {error}") from error
    finally:
        connection.close()
