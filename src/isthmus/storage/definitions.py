"""Tool definitions in a file: those accepted, those that wait for the operator's approval, and the last changes.

A file of its own and not part of the journal, because the command line reads it and approves in it while a hub runs.
Few things are written: a tool when it is first seen, and when its definition changes. `app` opens it for the hub, which
uses one thread for it; the command line opens it itself.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

FILE: Final = "definitions.db"
BUSY_SECONDS: Final = 5.0
CHANGES_KEPT: Final = 10_000
CHANGES_PER_SERVER: Final = 1000
"""Changes kept per server, so that one server with many changes does not displace the others."""

SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS pins (
    server TEXT NOT NULL, variant TEXT NOT NULL, tool TEXT NOT NULL,
    fingerprint BLOB NOT NULL, definition BLOB NOT NULL, at REAL NOT NULL, PRIMARY KEY (server, variant, tool)
);
CREATE TABLE IF NOT EXISTS waiting (
    server TEXT NOT NULL, variant TEXT NOT NULL, tool TEXT NOT NULL,
    fingerprint BLOB NOT NULL, definition BLOB NOT NULL, at REAL NOT NULL, PRIMARY KEY (server, variant, tool)
);
CREATE TABLE IF NOT EXISTS changes (
    number INTEGER PRIMARY KEY AUTOINCREMENT, server TEXT NOT NULL, variant TEXT NOT NULL, tool TEXT NOT NULL,
    fingerprint BLOB NOT NULL, before BLOB, after BLOB NOT NULL, at REAL NOT NULL, how TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS changes_of ON changes (server, number);
CREATE TABLE IF NOT EXISTS heard (id INTEGER PRIMARY KEY CHECK (id = 1), number INTEGER NOT NULL);
"""

KEEP: Final = "INSERT OR REPLACE INTO pins VALUES (?, ?, ?, ?, ?, ?)"
WAIT: Final = """
INSERT OR REPLACE INTO waiting SELECT ?, ?, ?, ?, ?, ? WHERE NOT EXISTS
    (SELECT 1 FROM pins WHERE server = ? AND variant = ? AND tool = ? AND fingerprint = ?)
"""
"""Unless this definition was approved meanwhile through another hub."""
WAITS_NOT: Final = "DELETE FROM waiting WHERE server = ? AND variant = ? AND tool = ?"
BEFORE: Final = """
SELECT CAST(definition AS BLOB) FROM pins WHERE server = ? AND variant = ? AND tool = ?
UNION ALL SELECT CAST(definition AS BLOB) FROM pins WHERE server = ? AND variant = '' AND tool = ? LIMIT 1
"""
KNOWN: Final = "SELECT server, variant, tool, CAST(fingerprint AS BLOB) FROM pins"
WAITING: Final = """
SELECT server, variant, tool, CAST(fingerprint AS BLOB), CAST(definition AS BLOB), CAST(at AS REAL) FROM waiting
ORDER BY server, tool, variant
"""
CHANGE: Final = """
SELECT number, server, variant, tool, CAST(fingerprint AS BLOB), CAST(before AS BLOB), CAST(after AS BLOB),
    CAST(at AS REAL), how FROM changes
"""
"""The casts fix the types: a file that was edited by hand may have text in place of bytes."""
CHANGED: Final = """
INSERT INTO changes (server, variant, tool, fingerprint, before, after, at, how) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""
TRIM: Final = "DELETE FROM changes WHERE number <= (SELECT max(number) FROM changes) - ?"
TRIM_SERVER: Final = """
DELETE FROM changes WHERE server = :server AND number <=
    (SELECT number FROM changes WHERE server = :server ORDER BY number DESC LIMIT 1 OFFSET :kept)
"""


class SeenDefinition(NamedTuple):
    """A tool definition and when it was seen."""

    server: str
    variant: str
    tool: str
    fingerprint: bytes
    definition: bytes
    at: float


class PendingDefinition(NamedTuple):
    """A definition that waits for approval, and the last accepted one; None if nothing waits."""

    seen: SeenDefinition
    before: bytes | None


class DefinitionChange(NamedTuple):
    """A changed definition: `noticed` if it was accepted automatically, or `approved`."""

    number: int
    server: str
    variant: str
    tool: str
    fingerprint: bytes
    before: bytes | None
    after: bytes
    at: float
    how: str


class DefinitionStore:
    """The file. Each method is one transaction and may block; none is for the event loop."""

    def __init__(self, folder: Path) -> None:
        """Raises `OSError` or `sqlite3.Error` if the file cannot be opened."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = folder / FILE
        path.touch(mode=0o600)
        self._file = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            self._file.execute("PRAGMA journal_mode = WAL")
            self._file.execute("PRAGMA synchronous = FULL")
            self._file.executescript(SCHEMA)
        except BaseException:
            self._file.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    # -- for the hub ---------------------------------------------------------------------------------------------------

    def known(self) -> list[tuple[str, str, str, bytes]]:
        """Server, variant, tool and fingerprint of all accepted definitions."""
        return self._file.execute(KNOWN).fetchall()

    def keep(self, sightings: Sequence[tuple[SeenDefinition, bool]]) -> None:
        """Store definitions in order; those with `True` wait for approval."""
        with _Transaction(self._file):
            for seen, is_pending in sightings:
                if is_pending:
                    self._file.execute(WAIT, (*seen, *seen[:4]))
                else:
                    self._accept(seen, "noticed")

    def approved_after(self, number: int) -> list[DefinitionChange]:
        """The approvals after the change with this number."""
        rows = self._file.execute(CHANGE + "WHERE number > ? AND how = 'approved' ORDER BY number", (number,))
        return [DefinitionChange(*row) for row in rows]

    def last_read_approval(self) -> int:
        """The number of the last approval that a hub has read."""
        found = self._file.execute("SELECT number FROM heard").fetchone()
        return found[0] if found is not None else 0

    def set_last_read_approval(self, number: int) -> None:
        """Store that a hub has read the approvals up to this number."""
        with _Transaction(self._file):
            self._file.execute(
                "INSERT OR REPLACE INTO heard VALUES (1, max(?, ?))", (number, self.last_read_approval())
            )

    def pending_keys(self) -> list[tuple[str, str, str]]:
        """Server, variant and tool of all pending definitions."""
        return self._file.execute("SELECT server, variant, tool FROM waiting").fetchall()

    # -- for the operator ----------------------------------------------------------------------------------------------

    def waiting(self) -> list[PendingDefinition]:
        """The pending definitions, ordered by server and tool."""
        with closing(self._file.execute(WAITING)) as rows:
            seen = [SeenDefinition(*row) for row in rows]
        return [PendingDefinition(each, self._before(each)) for each in seen]

    def changes(self, limit: int) -> list[DefinitionChange]:
        """The last changes, oldest first."""
        rows = self._file.execute(CHANGE + "ORDER BY number DESC LIMIT ?", (limit,)).fetchall()
        return [DefinitionChange(*row) for row in reversed(rows)]

    def approve(self, seen: SeenDefinition, at: float) -> bool:
        """Accept a pending definition; False if it has changed, or is not pending."""
        with _Transaction(self._file):
            found = self._file.execute(
                "SELECT fingerprint FROM waiting WHERE server = ? AND variant = ? AND tool = ?", seen[:3]
            ).fetchone()
            if found is None or found[0] != seen.fingerprint:
                return False
            self._accept(seen._replace(at=at), "approved")
        return True

    # -- shared --------------------------------------------------------------------------------------------------------

    def _accept(self, seen: SeenDefinition, how: str) -> None:
        before = self._before(seen)
        self._file.execute(KEEP, seen)
        self._file.execute(WAITS_NOT, seen[:3])
        if how == "approved" or before not in (None, seen.definition):
            change = (*seen[:4], before, seen.definition, seen.at, how)
            self._file.execute(CHANGED, change)
            self._file.execute(TRIM, (CHANGES_KEPT,))
            self._file.execute(TRIM_SERVER, {"server": seen.server, "kept": CHANGES_PER_SERVER})

    def _before(self, seen: SeenDefinition) -> bytes | None:
        """The last accepted definition; for a new variant, the general one."""
        found = self._file.execute(BEFORE, (*seen[:3], seen.server, seen.tool)).fetchone()
        return None if found is None else bytes(found[0])


class _Transaction:
    """A write transaction; other writers wait for it."""

    def __init__(self, file: sqlite3.Connection) -> None:
        self._file = file

    def __enter__(self) -> None:
        self._file.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._file.execute("COMMIT" if kind is None else "ROLLBACK")
