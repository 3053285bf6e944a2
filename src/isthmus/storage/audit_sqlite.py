"""The audit log in the journal's file: appended by the journal's writer, read by anybody who may read the file.

`storage.sqlite` appends within its own transactions; `isthmus audit` reads while a hub writes.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from isthmus.core.audit import START, AuditRow, Fact, LogState, Point, Seal, follow
from isthmus.core.ports import AuditSigner

SCHEMA = """
CREATE TABLE IF NOT EXISTS audit (
    number INTEGER PRIMARY KEY, at REAL NOT NULL, content BLOB NOT NULL, digest BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS audit_anchor (
    id INTEGER PRIMARY KEY CHECK (id = 1), number INTEGER NOT NULL, digest BLOB NOT NULL, at REAL NOT NULL,
    signature BLOB NOT NULL
);
"""
APPEND = "INSERT INTO audit (number, at, content, digest) SELECT * FROM (VALUES {}) WHERE column1 IS NOT NULL"
BATCH_SIZES = (1, 4, 16, 64, 256, 1024)
"""How many records one statement writes; a portion that is not full is filled up with nothing. Few statements, since
each lets the interpreter's lock go, and while it waits to have that again it disturbs the thread that has it; few
sizes, since each is prepared and kept."""
AT_ONCE_MAX = BATCH_SIZES[-1]
WIDTH = 4
_APPENDS = {size: APPEND.format(", ".join(["(?, ?, ?, ?)"] * size)) for size in BATCH_SIZES}
LAST = "SELECT number, at, CAST(content AS BLOB), CAST(digest AS BLOB) FROM audit ORDER BY number DESC LIMIT 1"
ANCHOR = "SELECT number, digest, at, signature FROM audit_anchor"
SET_ANCHOR = "INSERT OR REPLACE INTO audit_anchor (id, number, digest, at, signature) VALUES (1, ?, ?, ?, ?)"
FIRST_KEPT = "SELECT number FROM audit WHERE at >= ? ORDER BY number LIMIT 1"
ENDS = "SELECT min(number), max(number) FROM audit"
DIGEST = "SELECT digest FROM audit WHERE number = ?"
DROP = "DELETE FROM audit WHERE number <= ?"
ROWS = "SELECT number, at, content, digest FROM audit WHERE number > ? AND at >= ? AND at < ? ORDER BY number"
NEWEST = "SELECT number, at, content, digest FROM audit ORDER BY number DESC LIMIT ?"


class SqliteAuditWriter:
    """The end of the log, as the journal's writer has it. Used within transactions that somebody else ends."""

    def __init__(self, notary: AuditSigner) -> None:
        self._notary = notary
        self._kept: Point | None = None
        self.head = START
        """The last record that was written, which need not be kept yet."""

    def find(self, connection: sqlite3.Connection) -> LogState:
        """Look where the log ends. Raises `sqlite3.Error`."""
        server_status = read_standing(connection)
        self.head = self._kept = server_status.head
        return server_status

    def begin(self, connection: sqlite3.Connection) -> None:
        """A transaction has begun: what was written in one that failed is not there."""
        if self._kept is None:
            self.find(connection)
        else:
            self.head = self._kept

    def append(self, connection: sqlite3.Connection, facts: Sequence[Fact]) -> None:
        """Write the next records."""
        head = self.head
        rows: list[object] = []
        for fact in facts:
            at, content = self._notary.record(fact)
            head = follow(head, content)
            rows += (head.number, at, content, head.digest)
        _insert(connection, rows)
        self.head = head

    def prune(self, before: float, limit: int, connection: sqlite3.Connection) -> int:
        """Take away some of the oldest records; the last one stays, as the next one follows it."""
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

    def kept(self) -> None:
        """The transaction is kept, and so is what was written in it."""
        if self.head != self._kept:
            self._kept = self.head
            self._notary.checkpoint(self.head)

    def unknown(self) -> None:
        """Nobody knows what became of the transaction: look before the next."""
        self._kept = None


def _insert(connection: sqlite3.Connection, values: Sequence[object]) -> None:
    """Write rows, of which all values follow each other."""
    most = AT_ONCE_MAX * WIDTH
    for start in range(0, len(values), most):
        portion = values[start : start + most]
        size = next(size for size in BATCH_SIZES if size * WIDTH >= len(portion))
        connection.execute(_APPENDS[size], [*portion, *(None,) * (size * WIDTH - len(portion))])


def read_standing(connection: sqlite3.Connection) -> LogState:
    """How a log stands."""
    anchor = read_anchor(connection)
    row = connection.execute(LAST).fetchone()
    if row is None:
        return LogState(START if anchor is None else anchor.point, None, anchor)
    return LogState(Point(row[0], row[3]), row[2], anchor)


def read_anchor(connection: sqlite3.Connection) -> Seal | None:
    """Up to where older records were taken away, if any were."""
    found = connection.execute(ANCHOR).fetchone()
    if found is None:
        return None
    number, digest, at, signature = found
    return Seal(Point(number, digest), at, signature)


class SqliteAuditReader:
    """A log to be read, as it stands at one moment. Made by `open_reader`."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.anchor = read_anchor(connection)

    async def rows(self, *, after: int = 0, since: float = 0.0, until: float = float("inf")) -> AsyncIterator[AuditRow]:
        """The records of a time, the oldest first."""
        for row in self._connection.execute(ROWS, (after, since, until)):
            yield AuditRow(*row)

    async def newest(self, limit: int) -> list[AuditRow]:
        """The last records, the oldest first."""
        return [AuditRow(*row) for row in reversed(self._connection.execute(NEWEST, (limit,)).fetchall())]


def _check_is_there(path: Path) -> None:
    """SQLite would make an empty one."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no journal at {path}")


@asynccontextmanager
async def open_reader(path: Path) -> AsyncIterator[SqliteAuditReader]:
    """Read the log in a journal's file, whether or not a hub writes to it.

    Raises:
        FileNotFoundError: there is no such file.
        OSError: it holds no log, or cannot be read.
    """
    _check_is_there(path)
    connection = sqlite3.connect(path, timeout=5.0, isolation_level=None)
    try:
        connection.execute("PRAGMA query_only = ON")
        connection.execute("BEGIN")
        yield SqliteAuditReader(connection)
    except sqlite3.Error as error:
        raise OSError(f"the audit log in {path} cannot be read: {error}") from error
    finally:
        connection.close()
