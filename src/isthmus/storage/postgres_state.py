"""Small documents that all nodes of a cluster must agree on, in their PostgreSQL database: keys, logins, pins.

They are rows of the journal's table `documents`, in kinds of their own. Each kind has a revision, a row that every
write locks and raises by one; the `version` of a document is the revision of its last write. So a reader asks for what
is newer than what it has, and of two writers that read the same version only the first succeeds. Deleted documents stay
as empty rows, so that readers learn of them.

Readers have the kinds that they follow in memory. A notification of PostgreSQL makes them read at once; a poll finds
what a lost notification would have announced. Everything runs on a thread with its own event loop, because the command
line and the threads of a hub use it, too.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from types import MappingProxyType
from typing import Any, Final, TypeVar

import asyncpg
import structlog

from isthmus.core.journal import StateDocument
from isthmus.storage.journal_base import StateUnusable
from isthmus.storage.postgres import (
    AWAY,
    CONNECT_SECONDS,
    FAILED,
    MIGRATION_SECONDS,
    WRITABLE,
    Connection,
    error_text,
    lock_key,
    prepare_in_turn,
    server_settings_of,
)
from isthmus.storage.settings import StorageSettings

log = structlog.get_logger(__name__)

POLL_SECONDS = 0.3
"""How often the revisions are read: without a notification, a change is seen this late."""

STALE_SECONDS = 2.0
"""Without a successful poll for so long, what is in memory may be old."""

COMMAND_SECONDS = 5.0
LOCK_SECONDS = 20.0
"""A node that holds a lock longer is assumed to hang, and the others continue without it."""

LOCK_POLL_SECONDS = 0.05

REVISIONS: Final = "revisions"
"""The kind of the rows with the revisions of the other kinds."""

DELETED: Final = "deleted"
_EMPTY: Mapping[str, StateDocument] = MappingProxyType({})

SEEN = "SELECT convert_from(id, 'UTF8'), version FROM documents WHERE kind = $1"
NEWER = "SELECT convert_from(id, 'UTF8'), version, state, body FROM documents WHERE kind = $1 AND version > $2"
RAISE = f"""
INSERT INTO documents (kind, owner, id, version, at, "group", state, body)
VALUES ('{REVISIONS}', '', convert_to($1, 'UTF8'), 1, 0, '', '', '')
ON CONFLICT (kind, owner, id) DO UPDATE SET version = documents.version + 1 RETURNING version
"""  # noqa: S608 - our own words
HAS = """
SELECT convert_from(id, 'UTF8'), CASE WHEN state = 'deleted' THEN 0 ELSE version END FROM documents
WHERE kind = $1 AND id = ANY($2::bytea[])
"""
PUT = """
INSERT INTO documents (kind, owner, id, version, at, "group", state, body) VALUES ($1, '', $2, $3, $4, '', $5, $6)
ON CONFLICT (kind, owner, id) DO UPDATE
SET version = excluded.version, at = excluded.at, state = excluded.state, body = excluded.body
"""

_T = TypeVar("_T")


class PostgresState:
    """See `core.journal.SharedState`."""

    def __init__(self, settings: StorageSettings, *kinds: str) -> None:
        """Connect, make or migrate the tables, and read the documents of these kinds.

        Raises:
            StateUnusable: the database cannot be reached or used.
        """
        self.where = settings.shown or ""
        self._settings = settings
        self._channel = f"isthmus {settings.schema} state"
        self._kinds = set(kinds)
        self._revisions: dict[str, int] = {}
        self._documents: dict[str, Mapping[str, StateDocument]] = {}
        self._good_at = float("-inf")
        self._connection: Connection | None = None
        self._held: set[str] = set()
        self._is_away = False
        self._loop = asyncio.new_event_loop()
        self._turn = asyncio.Lock()
        """One statement at a time on the one connection."""
        self._wake = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_forever, name="shared state", daemon=True)
        self._thread.start()
        try:
            # It may wait for a node that migrates, and migrate itself.
            self._wait(self._refresh(), 2 * MIGRATION_SECONDS)
        except OSError as error:
            self.close()
            raise StateUnusable(str(error)) from error
        self._poll = asyncio.run_coroutine_threadsafe(self._run(), self._loop)

    def close(self) -> None:
        """Disconnect; nothing can be read afterwards."""
        if self._loop.is_closed():
            return

        async def end() -> None:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            self._drop()

        with suppress(Exception):
            asyncio.run_coroutine_threadsafe(end(), self._loop).result(COMMAND_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(COMMAND_SECONDS)
        if not self._thread.is_alive():
            self._loop.close()

    # -- from any thread ---------------------------------------------------------------------------------------------

    @property
    def is_current(self) -> bool:
        """See `core.journal.SharedState`."""
        return time.monotonic() - self._good_at < STALE_SECONDS

    def revision(self, kind: str) -> int:
        """See `core.journal.SharedState`."""
        return self._revisions.get(kind, 0)

    def all(self, kind: str) -> Mapping[str, StateDocument]:
        """See `core.journal.SharedState`."""
        return self._documents.get(kind, _EMPTY)

    def follow(self, kind: str) -> None:
        """See `core.journal.SharedState`."""
        if kind not in self._kinds:
            self._kinds.add(kind)
            self.read_now()

    def read_now(self) -> None:
        """See `core.journal.SharedState`."""
        self._wait(self._refresh())

    def write(self, kind: str, changes: Mapping[str, StateDocument]) -> bool:
        """See `core.journal.SharedState`."""
        return self._wait(self._write(kind, changes))

    @asynccontextmanager
    async def lock(self, name: str) -> AsyncIterator[None]:
        """See `core.journal.SharedState`."""
        key = lock_key(f"{self._settings.schema} {name}")
        has_lock = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._lock(name, key), self._loop))
        try:
            yield
        finally:
            if has_lock:
                asyncio.run_coroutine_threadsafe(self._unlock(name, key), self._loop)

    def _wait(self, work: Coroutine[Any, Any, _T], seconds: float = 2 * (CONNECT_SECONDS + COMMAND_SECONDS)) -> _T:
        """Run on the thread's loop. Raises `OSError`."""
        running = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return running.result(seconds)
        except (*FAILED, TimeoutError) as error:
            running.cancel()
            raise OSError(f"{self.where} cannot be used: {error_text(error)}") from error

    # -- on the thread's loop ----------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_SECONDS):  # not `wait_for`: on 3.11 it can swallow a cancellation
                    await self._wake.wait()
            self._wake.clear()
            try:
                await self._refresh()
            except Exception as error:  # noqa: BLE001 - this loop must go on after any error
                if not self._is_away:
                    self._is_away = True
                    log.warning("the shared state cannot be read from the database", error=error_text(error))
            else:
                self._is_away = False

    async def _refresh(self) -> None:
        async with self._turn, self._connected() as connection:
            for kind, revision in await connection.fetch(SEEN, REVISIONS):
                seen = self._revisions.get(kind, 0)
                if revision == seen or kind not in self._kinds:
                    continue
                # A smaller revision: the database was restored from a backup.
                found = {} if revision < seen else dict(self._documents.get(kind, {}))
                for id, version, state, body in await connection.fetch(NEWER, kind, 0 if revision < seen else seen):
                    if state == DELETED:
                        found.pop(id, None)
                    else:
                        found[id] = StateDocument(version, body)
                # First the content: a reader that sees the revision must see its documents.
                self._documents[kind] = MappingProxyType(found)
                self._revisions[kind] = revision
        self._good_at = time.monotonic()

    async def _write(self, kind: str, changes: Mapping[str, StateDocument]) -> bool:
        is_written = True
        try:
            async with self._turn, self._connected() as connection, connection.transaction():
                # The revision's row first: writers of one kind wait here for each other.
                revision = await connection.fetchval(RAISE, kind)
                has = dict(await connection.fetch(HAS, kind, [id.encode() for id in changes]))
                if any(has.get(id, 0) != change.version for id, change in changes.items()):
                    raise _Conflict
                rows = []
                for id, change in changes.items():
                    state, body = (DELETED, b"") if change.body is None else ("", change.body)
                    rows.append((kind, id.encode(), revision, time.time(), state, body))
                await connection.executemany(PUT, rows)
                await connection.execute("SELECT pg_notify($1, '')", self._channel)
        except _Conflict:
            is_written = False
        await self._refresh()
        return is_written

    async def _lock(self, name: str, key: int) -> bool:
        until = time.monotonic() + LOCK_SECONDS
        while time.monotonic() < until:
            if name not in self._held:
                with suppress(*FAILED):
                    if await self._try_lock(key):
                        self._held.add(name)
                        return True
            await asyncio.sleep(LOCK_POLL_SECONDS)
        return False

    async def _try_lock(self, key: int) -> bool:
        async with self._turn, self._connected() as connection:
            return bool(await connection.fetchval("SELECT pg_try_advisory_lock($1)", key))

    async def _unlock(self, name: str, key: int) -> None:
        self._held.discard(name)
        with suppress(*FAILED):  # a lost connection has lost its locks
            async with self._turn, self._connected() as connection:
                await connection.execute("SELECT pg_advisory_unlock($1)", key)

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Connection]:
        """The connection; after an error of the database it is replaced at the next use."""
        if self._connection is None or self._connection.is_closed():
            self._connection = await self._connect()
        try:
            yield self._connection
        except _Conflict:
            raise
        except BaseException:
            self._drop()
            raise

    async def _connect(self) -> Connection:
        how: dict[str, Any] = {
            "timeout": CONNECT_SECONDS,
            "command_timeout": COMMAND_SECONDS,
            "target_session_attrs": WRITABLE,
        }
        how["server_settings"] = server_settings_of(self._settings)
        *others, last = self._settings.server_urls
        connection: Connection | None = None
        for server in others:
            with suppress(*AWAY):
                connection = await asyncpg.connect(server, **how)
                break
        connection = connection or await asyncpg.connect(last, **how)
        try:
            await prepare_in_turn(connection, self._settings.schema)
            await connection.add_listener(self._channel, lambda *_: self._wake.set())
        except BaseException:
            connection.terminate()
            raise
        return connection

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()


class _Conflict(Exception):
    """Another writer was faster."""
