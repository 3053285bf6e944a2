"""Stores servers that dialled in, so that a restarted hub knows them before they are back.

One document per server, under its agent and id. Writes are delayed, batched and bounded; a failing journal only costs a
log line.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeAlias, get_args

import msgspec
import structlog

from isthmus.core.background import BackgroundTasks
from isthmus.core.journal import Document, Journal, WriteResult
from isthmus.model.features import Ability
from isthmus.model.names import ServerName, parse_server_name
from isthmus.upstream.listing import Listing, read_lists, written_lists

log = structlog.get_logger(__name__)

KIND = "dialin"
HERE, AWAY = "here", "away"

RECORD_BYTES_MAX = 2 * 1024 * 1024
"""Longer records are not stored. It is room for the default number of tools of an agent, of four kilobytes each."""

AGENT_BYTES_MAX = 4 * 1024 * 1024
"""All records of one agent together, so that few agents cannot displace the others."""

RECORDS_MAX = 20_000
RECORDS_BYTES_MAX = 32 * 1024 * 1024
"""All records together. Tasks share the journal and need room there."""

PAUSE_SECONDS = 1.0
"""Between two rounds of writing, so that an unstable server is written once a second at most."""

CLOSE_SECONDS = 2.0
"""How long shutdown waits for the last round."""

AT_ONCE = 256
"""Documents per round of writing or reading."""

TITLE_LENGTH_MAX = 400

Key: TypeAlias = tuple[str, str]
"""The key of an agent, and the id of a server of it."""


class ServerRecord(msgspec.Struct, frozen=True):
    """The stored state of one server. Times are in seconds since the epoch."""

    agent: str
    server_id: str
    name: ServerName
    listing: Listing
    abilities: frozenset[Ability]
    came: float
    """When it connected for the first time; servers are restored in this order."""
    seen: float
    """When it was last connected; for a server that was connected when the hub ended, the time of loading."""
    is_here: bool = False
    is_named: bool = False
    """Its client chose the id when it connected; otherwise the id is the name in its `serverInfo`."""
    title: str | None = None

    @property
    def key(self) -> Key:
        """The key of its document."""
        return self.agent, self.server_id


class _RecordHead(msgspec.Struct):
    """The members of a document besides the lists, which keep the JSON of the server."""

    name: str
    came: float
    abilities: list[str] = []
    named: bool = False
    title: str | None = None


class _StoredRecord(msgspec.Struct, frozen=True):
    """The last known version of a document in the journal."""

    version: int
    size_bytes: int
    mark: bytes


class RegistryStore:
    """Keeps the records in the journal up to date; `now` returns seconds since the epoch."""

    def __init__(self, journal: Journal, background: BackgroundTasks, now: Callable[[], float]) -> None:
        self._journal = journal
        self._background = background
        self._now = now
        self._known: dict[Key, _StoredRecord] = {}
        self._bytes = 0
        self._bytes_of: Counter[str] = Counter()
        """The bytes of each agent."""
        self._promised = 0, 0
        """Bytes and documents that are being written and not in the totals yet."""
        self._promised_to: Counter[str] = Counter()
        self._due: dict[Key, ServerRecord | None] = {}
        """Records to write, or None to delete."""
        self._work: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()

    # -- changes ---------------------------------------------------------------------------------------------------

    def store(self, record: ServerRecord) -> None:
        """Store a record soon."""
        self._put(record.key, record)

    def forget(self, agent: str, server_id: str) -> None:
        """Delete a record soon."""
        self._put((agent, server_id), None)

    def _put(self, key: Key, record: ServerRecord | None) -> None:
        self._due[key] = record
        if self._work is None:
            self._work = self._background.spawn("remembering what dialled in", self._write_all())

    async def aclose(self) -> None:
        """Write pending records, for at most `CLOSE_SECONDS`."""
        self._hurry.set()
        if self._work is not None:
            await asyncio.wait({self._work}, timeout=CLOSE_SECONDS)

    # -- writing ---------------------------------------------------------------------------------------------------

    async def _write_all(self) -> None:
        try:
            while self._due:
                due, self._due = self._due, {}
                keys = [*due]
                for start in range(0, len(keys), AT_ONCE):
                    await self._write({key: due[key] for key in keys[start : start + AT_ONCE]})
                with suppress(TimeoutError):
                    async with asyncio.timeout(PAUSE_SECONDS):  # not `wait_for`: on 3.11 it can swallow a cancellation
                        await self._hurry.wait()
        finally:
            self._work = None

    def _document(self, key: Key, record: ServerRecord | None) -> Document | None:
        """The document to write; None if nothing changes."""
        known = self._known.get(key)
        body = None if record is None else _encode_record(record)
        if body is not None and not self._reserve(key[0], known, len(body)):
            log.warning("a dial-in server is too large to be stored", agent=key[0], size_bytes=len(body))
            body = None
        if body is None or record is None:
            return None if known is None else Document(KIND, *key, known.version + 1, self._now(), None)
        state = HERE if record.is_here else AWAY
        if known is not None and known.mark == _mark(state, body):
            return None
        return Document(KIND, *key, 1 if known is None else known.version + 1, record.seen, body, state=state)

    def _reserve(self, agent: str, known: _StoredRecord | None, size_bytes: int) -> bool:
        """Reserve room for a document; returns whether there is room."""
        more_bytes, more = (size_bytes, 1) if known is None else (size_bytes - known.size_bytes, 0)
        bytes_taken, taken = self._promised
        has_room = (
            size_bytes <= RECORD_BYTES_MAX
            and self._bytes_of[agent] + self._promised_to[agent] + more_bytes <= AGENT_BYTES_MAX
            and self._bytes + bytes_taken + more_bytes <= RECORDS_BYTES_MAX
            and len(self._known) + taken + more <= RECORDS_MAX
        )
        if has_room:
            self._promised = bytes_taken + more_bytes, taken + more
            self._promised_to[agent] += more_bytes
        return has_room

    async def _write(self, due: dict[Key, ServerRecord | None]) -> None:
        self._promised = 0, 0
        self._promised_to.clear()
        documents = [document for key, record in due.items() if (document := self._document(key, record)) is not None]
        loop = asyncio.get_running_loop()
        waits: dict[asyncio.Future[WriteResult], Document] = {}
        for document in documents:
            wait: asyncio.Future[WriteResult] = loop.create_future()
            waits[wait] = document
            self._journal.write((document,), partial(_settle, wait))
        if not waits:
            return
        await asyncio.wait(waits)
        failed = [document for wait, document in waits.items() if wait.result() != "kept"]
        for wait, document in waits.items():
            if wait.result() == "kept":
                self._note(document)
        if failed:
            log.warning("dial-in servers could not be stored", servers=len(failed))
            unsure = [document for wait, document in waits.items() if wait.result() in ("conflict", "unknown")]
            await self._look_again(unsure, due)

    async def _look_again(self, documents: Sequence[Document], due: dict[Key, ServerRecord | None]) -> None:
        """Read documents that could not be written, and write them once more."""
        try:
            for document in documents:
                key = document.owner, document.id
                self._forget(key)
                if (found := await self._journal.read(KIND, *key)) is not None:
                    self._note(found)
                if not self._hurry.is_set():  # otherwise shutdown would wait for endless retries
                    self._due.setdefault(key, due[key])
        except OSError as error:
            log.warning("stored dial-in servers could not be read", error=str(error))

    def _note(self, document: Document) -> None:
        """Note the version of a document in the journal."""
        key = document.owner, document.id
        self._forget(key)
        if document.body is not None:
            size_bytes = len(document.body)
            self._known[key] = _StoredRecord(document.version, size_bytes, _mark(document.state, document.body))
            self._weigh(key, size_bytes)

    def _forget(self, key: Key) -> None:
        if (known := self._known.pop(key, None)) is not None:
            self._weigh(key, -known.size_bytes)

    def _weigh(self, key: Key, more_bytes: int) -> None:
        self._bytes += more_bytes
        self._bytes_of[key[0]] += more_bytes
        if not self._bytes_of[key[0]]:
            del self._bytes_of[key[0]]

    # -- reading ---------------------------------------------------------------------------------------------------

    async def load(self) -> list[ServerRecord]:
        """All records, in the order of their first connection. Those over the limits are deleted, the oldest first."""
        records: OrderedDict[Key, ServerRecord] = OrderedDict()
        last: Document | None = None
        try:
            while found := await self._journal.all_in(KIND, (HERE, AWAY), limit=AT_ONCE, after=last):
                last = found[-1]
                for document in found:
                    self._note(document)
                    if (record := _decode_record(document, self._now())) is not None:
                        records[record.key] = record
                while records and (len(records) > RECORDS_MAX or self._bytes > RECORDS_BYTES_MAX):
                    key, _ = records.popitem(last=False)
                    self._weigh(key, -self._known[key].size_bytes)
                    self._known[key] = msgspec.structs.replace(self._known[key], size_bytes=0)
                    self.forget(*key)
        except OSError as error:
            log.warning("stored dial-in servers could not be read", error=str(error))
        return sorted(records.values(), key=lambda record: record.came)


def _settle(wait: asyncio.Future[WriteResult], verdict: WriteResult) -> None:
    if not wait.done():
        wait.set_result(verdict)


def _mark(state: str, body: bytes) -> bytes:
    return hashlib.blake2b(state.encode() + b"\0" + body, digest_size=12).digest()


# -- documents -------------------------------------------------------------------------------------------------------


def _encode_record(record: ServerRecord) -> bytes:
    title = None if record.title is None else record.title[:TITLE_LENGTH_MAX]
    head = _RecordHead(record.name, record.came, sorted(record.abilities), record.is_named, title)
    return msgspec.json.encode(head)[:-1] + b"," + written_lists(record.listing) + b"}"


def _decode_record(document: Document, now: float) -> ServerRecord | None:
    """A record; None, and a warning, if the document is damaged."""
    body = document.body or b""
    try:
        head = msgspec.json.decode(body, type=_RecordHead)
        name = parse_server_name(head.name)
        listing = read_lists(name, body)
    except (ValueError, msgspec.MsgspecError, RecursionError) as error:
        log.warning("a stored dial-in server is damaged", agent=document.owner, id=document.id, error=str(error))
        return None
    is_here = document.state == HERE
    return ServerRecord(
        document.owner,
        document.id,
        name,
        listing,
        frozenset(ability for ability in get_args(Ability) if ability in head.abilities),
        head.came,
        now if is_here else document.at,
        is_here,
        head.named,
        head.title,
    )
