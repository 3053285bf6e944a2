"""Tool definitions: those accepted, those that wait for the operator's approval, and the last changes.

They are in a file, or in the database of a cluster (`SharedDefinitions`). It is a file of its own and not part of the
journal, because the command line reads it and approves in it while a hub runs.
Few things are written: a tool when it is first seen, and when its definition changes. `app` opens it for the hub, which
uses one thread for it; the command line opens it itself.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import msgspec

from isthmus.core.journal import SharedState, StateDocument

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
CREATE TABLE IF NOT EXISTS last_read_approval (id INTEGER PRIMARY KEY CHECK (id = 1), number INTEGER NOT NULL);
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
ACCEPTED: Final = """
SELECT server, variant, tool, CAST(fingerprint AS BLOB), CAST(definition AS BLOB), CAST(at AS REAL) FROM pins
"""
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

    def accepted(self) -> list[SeenDefinition]:
        """All accepted definitions."""
        return [SeenDefinition(*row) for row in self._file.execute(ACCEPTED)]

    def store(self, sightings: Sequence[tuple[SeenDefinition, bool]]) -> None:
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
        found = self._file.execute("SELECT number FROM last_read_approval").fetchone()
        return found[0] if found is not None else 0

    def set_last_read_approval(self, number: int) -> None:
        """Store that a hub has read the approvals up to this number."""
        with _Transaction(self._file):
            self._file.execute(
                "INSERT OR REPLACE INTO last_read_approval VALUES (1, max(?, ?))", (number, self.last_read_approval())
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


# -- in the database of a cluster --------------------------------------------------------------------------------------

DEFINITIONS: Final = "definitions"
"""The kind of the shared documents with definitions."""

CHANGES_PER_TOOL: Final = 5
WRITTEN_AT_ONCE: Final = 500

ToolKey: TypeAlias = tuple[str, str, str]
"""Server, variant and tool."""


class SharedDefinition(msgspec.Struct, frozen=True, array_like=True):
    """A document: all that is known of one tool. It is never deleted."""

    server: str
    variant: str
    tool: str
    accepted: SeenDefinition | None = None
    pending: SeenDefinition | None = None
    changes: tuple[DefinitionChange, ...] = ()
    unread: bytes = b""
    """The fingerprint that was approved, until a node has reported that."""

    @property
    def key(self) -> ToolKey:
        """Server, variant and tool."""
        return self.server, self.variant, self.tool


class SharedNews(NamedTuple):
    """The changes since the last call of `news`."""

    accepted: dict[ToolKey, bytes]
    """The fingerprints of accepted definitions that are new."""
    settled: list[ToolKey]
    """Tools that no longer wait for approval."""
    approved: list[DefinitionChange]
    """Approvals that no other node reports."""


class SharedDefinitions:
    """The definitions that all nodes of a cluster share. See `DefinitionStore`; every method may raise `OSError`.

    One document has all of one tool, so that nodes that see tools at the same time hinder each other little. Of two
    that see a tool for the first time, the first one decides.
    """

    def __init__(self, state: SharedState) -> None:
        self._state = state
        self.where = f"the definitions in {state.where}"
        state.follow(DEFINITIONS)
        self._decoded: dict[str, tuple[int, SharedDefinition]] = {}
        self._revision = -1
        self._reported: dict[str, SharedDefinition] = {}
        """The fingerprints that `news` has returned."""

    def close(self) -> None:
        """Nothing to do: others use the connection, too."""

    @property
    def revision(self) -> int:
        """A number that changes whenever a definition does."""
        return self._state.revision(DEFINITIONS)

    def known(self) -> list[tuple[str, str, str, bytes]]:
        """See `DefinitionStore`."""
        return [(*each.key, each.accepted.fingerprint) for each in self._all() if each.accepted is not None]

    def store(
        self, sightings: Sequence[tuple[SeenDefinition, bool]], *, first: frozenset[ToolKey] = frozenset()
    ) -> None:
        """See `DefinitionStore`.

        Definitions of tools that are seen for the `first` time do not replace those that another node has accepted.
        """
        for start in range(0, len(sightings), WRITTEN_AT_ONCE):
            part = sightings[start : start + WRITTEN_AT_ONCE]

            def changed(part: Sequence[tuple[SeenDefinition, bool]] = part) -> dict[str, SharedDefinition]:
                new: dict[str, SharedDefinition] = {}
                for seen, is_pending in part:
                    has = new.get(_id_of(seen)) or self._get(seen)
                    is_accepted = has.accepted is not None and has.accepted.fingerprint == seen.fingerprint
                    if is_pending:
                        is_known = is_accepted or (has.pending and has.pending.fingerprint == seen.fingerprint)
                        after = has if is_known else msgspec.structs.replace(has, pending=seen)
                    elif is_accepted:
                        after = msgspec.structs.replace(has, pending=None)
                    elif has.accepted is not None and seen[:3] in first:
                        continue
                    else:
                        after = self._accepted(has, seen, "noticed")
                    if after != has:
                        new[_id_of(seen)] = after
                return new

            self._change(changed)

    def pending_keys(self) -> list[ToolKey]:
        """See `DefinitionStore`."""
        return [each.key for each in self._all() if each.pending is not None]

    def waiting(self) -> list[PendingDefinition]:
        """See `DefinitionStore`."""
        found = [each for each in self._all() if each.pending is not None]
        found.sort(key=lambda each: (each.server, each.tool, each.variant))
        return [PendingDefinition(each.pending, self._before(each)) for each in found if each.pending is not None]

    def changes(self, limit: int) -> list[DefinitionChange]:
        """See `DefinitionStore`."""
        found = sorted((change for each in self._all() for change in each.changes), key=lambda change: change.at)
        return found[-limit:]

    def approve(self, seen: SeenDefinition, at: float) -> bool:
        """See `DefinitionStore`."""

        def changed() -> dict[str, SharedDefinition]:
            has = self._get(seen)
            if has.pending is None or has.pending.fingerprint != seen.fingerprint:
                return {}
            after = self._accepted(has, seen._replace(at=at), "approved")
            return {_id_of(seen): msgspec.structs.replace(after, unread=seen.fingerprint)}

        return self._change(changed)

    def news(self) -> SharedNews:
        """What has changed since the last call. An approval is returned to one node of the cluster."""
        news = SharedNews({}, [], [])
        for id, (_, now) in list(self._read().items()):
            before = self._reported.get(id)
            if before is now:
                continue
            mark = None if now.accepted is None else now.accepted.fingerprint
            if mark is not None and (before is None or before.accepted is None or before.accepted.fingerprint != mark):
                news.accepted[now.key] = mark
            if before is not None and before.pending is not None and now.pending is None:
                news.settled.append(now.key)
            if now.unread and self._pop_unread(id, now):
                news.approved.extend([each for each in now.changes if each.fingerprint == now.unread][-1:])
            self._reported[id] = now
        return news

    def _pop_unread(self, id: str, now: SharedDefinition) -> bool:
        """Whether this node reports an approval; only the first node that asks does."""
        change = StateDocument(self._decoded[id][0], _encoded(msgspec.structs.replace(now, unread=b"")))
        return self._state.write(DEFINITIONS, {id: change})

    def imported(self, file: DefinitionStore) -> tuple[dict[str, StateDocument], int, int]:
        """The documents that share the definitions of a file; how many are shared already, and how many differ."""
        new: dict[str, SharedDefinition] = {}
        same = different = 0
        for seen in file.accepted():
            has = self._get(seen).accepted
            if has is None:
                new[_id_of(seen)] = msgspec.structs.replace(self._get(seen), accepted=seen)
            elif has.fingerprint == seen.fingerprint:
                same += 1
            else:
                different += 1
        for pending in file.waiting():
            has_pending = new.get(_id_of(pending.seen)) or self._get(pending.seen)
            if has_pending.pending is None and (_id_of(pending.seen) in new or has_pending.accepted is None):
                new[_id_of(pending.seen)] = msgspec.structs.replace(has_pending, pending=pending.seen)
        return self._documents(new), same, different

    # -- documents -----------------------------------------------------------------------------------------------------

    def _all(self) -> Iterator[SharedDefinition]:
        return (each for _, each in list(self._read().values()))

    def _read(self) -> dict[str, tuple[int, SharedDefinition]]:
        """All documents with their versions; only those that are new are decoded."""
        revision = self.revision
        if revision != self._revision:
            has, decoded = self._decoded, {}
            for id, (version, body) in self._state.all(DEFINITIONS).items():
                known = has.get(id)
                if known is None or known[0] != version:
                    known = version, _decode(body or b"")
                decoded[id] = known
            self._decoded, self._revision = decoded, revision
        return self._decoded

    def _get(self, seen: SeenDefinition) -> SharedDefinition:
        found = self._read().get(_id_of(seen))
        return SharedDefinition(*seen[:3]) if found is None else found[1]

    def _before(self, tool: SharedDefinition) -> bytes | None:
        """The last accepted definition; for a new variant, the general one."""
        accepted = tool.accepted
        if accepted is None and tool.variant:
            accepted = self._get(SeenDefinition(tool.server, "", tool.tool, b"", b"", 0.0)).accepted
        return None if accepted is None else accepted.definition

    def _accepted(self, has: SharedDefinition, seen: SeenDefinition, how: str) -> SharedDefinition:
        before, changes = self._before(has), has.changes
        if how == "approved" or before not in (None, seen.definition):
            change = DefinitionChange(0, *seen[:4], before, seen.definition, seen.at, how)
            changes = (*changes, change)[-CHANGES_PER_TOOL:]
        return msgspec.structs.replace(has, accepted=seen, pending=None, changes=changes)

    def _change(self, changed: Callable[[], dict[str, SharedDefinition]]) -> bool:
        """Write what `changed` returns; again if another writer was faster. False if there is nothing to write."""
        while new := changed():
            if self._state.write(DEFINITIONS, self._documents(new)):
                return True
        return False

    def _documents(self, new: dict[str, SharedDefinition]) -> dict[str, StateDocument]:
        versions = self._decoded
        return {id: StateDocument(versions[id][0] if id in versions else 0, _encoded(new[id])) for id in new}


AnyDefinitions: TypeAlias = DefinitionStore | SharedDefinitions

_encoded: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(SharedDefinition).decode


def _id_of(seen: SeenDefinition) -> str:
    """A digest: names of tools may be longer than an index takes."""
    return hashlib.sha256(msgspec.msgpack.encode(seen[:3])).hexdigest()
