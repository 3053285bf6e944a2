"""Reads the audit logs of a hub, whether or not it runs: pages, exports, verification. Writes nothing.

`isthmus audit` and the REST API share this. Besides the log of the hub that serves there may be others, each in a
numbered slot: commands and embedded hubs write these. A running hub reads on a thread (`LiveAudit`), because a log may
have millions of records.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, TypeAlias, TypeVar

import msgspec

from isthmus.app.hub import RunningHub
from isthmus.config.settings import Configuration
from isthmus.core.admin_ports import AuditBusy, AuditFilter, AuditLine, AuditPage, AuditProgress, NoAuditLog
from isthmus.core.audit import (
    NUMBER_MAX,
    START,
    AuditRow,
    ChainBreak,
    Point,
    Seal,
    UnfinishedCalls,
    Verification,
    record_members,
)
from isthmus.model.names import name_filter
from isthmus.storage import audit_sqlite
from isthmus.storage.audit_log_folders import chain_slot, list_slots, slot_file
from isthmus.storage.audit_signatures import (
    FOLDER,
    KEY_FILE,
    MAIN_LOG,
    AuditKeyDamaged,
    AuditKeys,
    AuditPublicKey,
    checkpoint_path,
    read_checkpoint,
    read_keys,
)
from isthmus.storage.settings import StorageSettings
from isthmus.storage.sqlite import FILE

T = TypeVar("T")

SlottedRow: TypeAlias = tuple[int, AuditRow]
"""A record, and the slot of its log."""

UNREADABLE = b'{"event":"cannot be read"}'
"""Stands for content that is no record. Its digest never matches, so `verify` names it."""

TIME_MAX = 253_402_300_800.0
"""The year 10000, which Python's dates cannot hold."""


class AuditStoredElsewhere(OSError):
    """The log cannot be read by the hub; `advice` says what can."""

    def __init__(self, message: str, advice: str) -> None:
        super().__init__(message)
        self.advice = advice


# -- logs ------------------------------------------------------------------------------------------------------------


class ReadableLog(Protocol):
    """A log as it is at one moment."""

    anchor: Seal | None

    def rows(self, *, after: int = 0, since: float = 0.0, until: float = float("inf")) -> AsyncIterator[AuditRow]:
        """The records of a period, the oldest first."""

    def back(self, *, before: int = NUMBER_MAX, until: float = float("inf")) -> AsyncIterator[AuditRow]:
        """The records before that number and that time, the newest first."""

    async def newest(self, limit: int) -> list[AuditRow]:
        """The last records, the oldest first."""


class SanitizedLog:
    """Reads a log that may have been altered: gives every value its type, and replaces content that is not a record.

    An intruder may have put text in place of bytes, a number, or anything else into the database. That must not crash
    the command whose purpose is to find it.
    """

    def __init__(self, log: ReadableLog) -> None:
        self._log = log
        self.anchor = None
        if (seal := log.anchor) is not None:
            self.anchor = Seal(Point(seal.point.number, _bytes(seal.point.digest)), seal.at, _bytes(seal.signature))

    async def rows(self, *, after: int = 0, since: float = 0.0, until: float = float("inf")) -> AsyncIterator[AuditRow]:
        """The records of a period, the oldest first."""
        async for row in self._log.rows(after=after, since=since, until=until):
            yield sanitized_row(row)

    async def back(self, *, before: int = NUMBER_MAX, until: float = float("inf")) -> AsyncIterator[AuditRow]:
        """The records before that number and that time, the newest first."""
        async for row in self._log.back(before=before, until=until):
            yield sanitized_row(row)

    async def newest(self, limit: int) -> list[AuditRow]:
        """The last records, the oldest first."""
        return [sanitized_row(row) for row in await self._log.newest(limit)]


def sanitized_row(row: AuditRow) -> AuditRow:
    """The row, with impossible values replaced."""
    at: object = row.at
    is_time = isinstance(at, int | float) and 0.0 <= at < TIME_MAX
    content = _bytes(row.content)
    try:
        msgspec.json.decode(content, type=dict[str, object])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        content = UNREADABLE
    return AuditRow(row.number, float(row.at) if is_time else 0.0, content, _bytes(row.digest))


def _bytes(value: object) -> bytes:
    """SQLite returns text where text was written in place of bytes."""
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class AuditLogSource:
    """A log to open."""

    slot: int
    """0 for the log of the hub that serves; above `SLOTS_MAX` for the logs of nodes."""
    open: Callable[[], AbstractAsyncContextManager[ReadableLog]]
    node: str = ""
    """The node's name, for the log of a node of a cluster."""
    key: str = ""
    """The node's public key, as the database has it."""

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[ReadableLog]:
        """Open the log, and close it at the end."""
        async with self.open() as log:
            yield SanitizedLog(log)


async def logs_of(configuration: Configuration) -> list[AuditLogSource]:
    """All logs, that of the serving hub first. It is left out if it does not exist and others do.

    Raises:
        AuditStoredElsewhere: an extension stores the only log.
        OSError: the database cannot be reached.
    """
    state, storage = Path(configuration.hub.state), configuration.storage
    others = [
        AuditLogSource(slot, partial(audit_sqlite.open_reader, slot_file(state, slot))) for slot in list_slots(state)
    ]
    # The checkpoint too: if the log was deleted, the checkpoint shows that there was one.
    has_served = storage.url is not None or (state / FILE).exists() or checkpoint_path(state).exists()
    if others and (storage.is_foreign or not has_served):
        return others
    if storage.url is not None and not storage.is_foreign:
        others += await _node_logs(storage)
    return [AuditLogSource(MAIN_LOG, partial(_open_main, configuration)), *others]


async def _node_logs(storage: StorageSettings) -> list[AuditLogSource]:
    """The logs of the nodes of a cluster."""
    audit_postgres = _library()
    return [
        AuditLogSource(
            chain_slot(chain.chain), partial(audit_postgres.open_reader, storage, chain.chain), chain.node, chain.key
        )
        for chain in await audit_postgres.list_chains(storage)
    ]


def _open_main(configuration: Configuration) -> AbstractAsyncContextManager[ReadableLog]:
    if configuration.storage.url is None:
        return audit_sqlite.open_reader(Path(configuration.hub.state) / FILE)
    if configuration.storage.is_foreign:
        text = f"the extension {configuration.storage.scheme} stores the audit log"
        raise AuditStoredElsewhere(text, "Use the tools of that extension to read it.")
    reader: AbstractAsyncContextManager[ReadableLog] = _library().open_reader(configuration.storage)
    return reader


def _library() -> ModuleType:
    try:
        from isthmus.storage import audit_postgres  # noqa: PLC0415 - only who wants it has the library
    except ImportError:
        text = "the audit log is in PostgreSQL, and its library is not installed"
        raise AuditStoredElsewhere(text, "Install it with: pip install 'isthmus[postgres]'") from None
    return audit_postgres


@asynccontextmanager
async def rows_of(
    sources: Sequence[AuditLogSource], since: float, until: float
) -> AsyncIterator[AsyncIterator[SlottedRow]]:
    """The records of a period from all logs, ordered by time."""
    async with AsyncExitStack() as stack:
        logs = [(source.slot, await stack.enter_async_context(source.reading())) for source in sources]
        yield _merged([(slot, log.rows(since=since, until=until)) for slot, log in logs])


async def _merged(logs: Sequence[tuple[int, AsyncIterator[AuditRow]]]) -> AsyncIterator[SlottedRow]:
    """Merge by time. Each log keeps its own order, even if its clock jumped."""
    ahead: dict[int, tuple[AuditRow, AsyncIterator[AuditRow]]] = {}
    for slot, rows in logs:
        if (row := await anext(rows, None)) is not None:
            ahead[slot] = (row, rows)
    while ahead:
        slot = min(ahead, key=lambda each: ahead[each][0].at)
        row, rows = ahead[slot]
        yield slot, row
        following = await anext(rows, None)
        if following is None:
            del ahead[slot]
        else:
            ahead[slot] = (following, rows)


# -- verification ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AuditVerdict:
    """The result of verifying one log."""

    slot: int
    count: int
    first: int
    last: Point
    key: str | None
    broken: ChainBreak | None
    open: int = 0
    """Calls that started and have not ended."""
    lost: int = 0
    """Calls that started and whose end is unknown."""
    unsigned: int = 0
    """Records after the last checkpoint. Anybody who can write to the store could have added them."""
    node: str = ""
    """The name of the node that wrote the log; empty for a log of this hub."""
    is_remote: bool = False
    """Whether the node is on another machine, which has its checkpoint: here its end cannot be verified."""


async def verify_logs(configuration: Configuration, on_row: Callable[[AuditRow], None]) -> list[AuditVerdict]:
    """Verify every log; `on_row` is called with each record that was checked.

    Raises:
        OSError: a log cannot be read.
    """
    state = Path(configuration.hub.state)
    return [await _verify(state, source, on_row) for source in await logs_of(configuration)]


async def _verify(state: Path, source: AuditLogSource, on_row: Callable[[AuditRow], None]) -> AuditVerdict:
    keys: AuditKeys | AuditPublicKey
    checkpoint: Seal | None = None
    try:
        # Before the records: a running hub writes records first.
        if source.key and not _is_own(state, source.key):
            keys = AuditPublicKey(source.key, source.slot)
        else:
            keys = read_keys(state, source.slot)
            checkpoint = read_checkpoint(state, keys, source.slot)
    except FileNotFoundError:
        missing = ChainBreak(0, f"its key is missing from {state}, so nothing can be verified")
        return AuditVerdict(source.slot, 0, 0, START, None, missing)
    except ValueError as error:  # `AuditKeyDamaged`, or an invalid public key
        return AuditVerdict(source.slot, 0, 0, START, None, ChainBreak(0, str(error)), node=source.node)
    calls = UnfinishedCalls()
    try:
        async with source.reading() as log:
            verification = Verification(log.anchor, checkpoint, keys.is_signed)
            first = verification.head.number + 1
            async for row in log.rows():
                if verification.check_row(row) is not None:
                    break
                calls.add_row(row)
                on_row(row)
    except FileNotFoundError:
        if checkpoint is None:
            raise
        verification, first = Verification(None, checkpoint, keys.is_signed), 1
    is_remote = isinstance(keys, AuditPublicKey)
    broken = verification.broken if is_remote else verification.end()
    head = verification.head
    unsigned = 0 if checkpoint is None else max(0, head.number - checkpoint.point.number)
    return AuditVerdict(
        source.slot,
        verification.count,
        first,
        head,
        keys.name,
        broken,
        len(calls.open),
        calls.lost,
        unsigned,
        source.node,
        is_remote,
    )


def _is_own(state: Path, key: str) -> bool:
    """Whether the log of a node is signed with the key of this state folder."""
    try:
        return read_keys(state).name == key
    except (OSError, AuditKeyDamaged):
        return False


def broken_words(verdicts: Sequence[AuditVerdict]) -> list[str]:
    """The first break of each log."""
    broken = []
    for verdict in verdicts:
        if (found := verdict.broken) is not None:
            where = f"slot {verdict.slot}, " if verdict.slot else ""
            where = f"node {verdict.node}, " if verdict.node else where
            broken.append(f"{where}record {found.number}: {found.why}" if found.number else f"{where}{found.why}")
    return broken


def verdict_document(verdicts: Sequence[AuditVerdict]) -> dict[str, object]:
    """The main log at the top level, those in slots below; `good` is about all of them."""
    main = next((verdict for verdict in verdicts if not verdict.slot), None)
    main = main or AuditVerdict(MAIN_LOG, 0, 1, START, verdicts[0].key, None)
    slots = [{"slot": verdict.slot, **_as_json(verdict)} for verdict in verdicts if verdict.slot]
    return {**_as_json(main), "good": not broken_words(verdicts), "slots": slots}


def _as_json(verdict: AuditVerdict) -> dict[str, object]:
    broken = verdict.broken
    return {
        "good": broken is None,
        "records": verdict.count,
        "first": verdict.first,
        "last": verdict.last.number,
        "digest": verdict.last.digest.hex(),
        "key": verdict.key,
        "open": verdict.open,
        "lost": verdict.lost,
        "unsigned": verdict.unsigned,
        **({"node": verdict.node, "remote": verdict.is_remote} if verdict.node else {}),
        "bad": None if broken is None else {"record": broken.number or None, "why": broken.why},
    }


def verdict_lines(verdict: AuditVerdict) -> Iterator[str]:
    """The verdict on an intact log, in words."""
    name = f"The audit log in slot {verdict.slot}" if verdict.slot else "The audit log"
    name = f"The audit log of node {verdict.node}" if verdict.node else name
    if not verdict.count:
        yield f"{name} is intact and has no records."
        return
    yield f"{name} is intact: {verdict.count} records, {verdict.first} to {verdict.last.number}."
    if verdict.is_remote:
        yield "not verified: whether records are missing at its end (the node has its checkpoint; verify it there)"
    if verdict.open:
        yield f"unfinished calls: {verdict.open} (still running, or the hub was killed)"
    if verdict.lost:
        yield f"lost calls: {verdict.lost} (the hub was killed; how they ended is unknown)"
    if verdict.unsigned:
        yield f"unsigned records at the end: {verdict.unsigned} (not signed yet, or not written by the hub)"
    yield f"last digest  {verdict.last.digest.hex()}"
    yield f"signed by    {verdict.key}"


# -- pages and exports -----------------------------------------------------------------------------------------------

SCANNED_MAX = 50_000
"""Records that are read for one page: a rare caller in a long log is found in several steps."""

PAGE_BYTES = 2 * 1024 * 1024
RECORD_BYTES = 64 * 1024
"""Longer than any record that a hub writes; a page shows a longer one as unreadable."""

SLACK_SECONDS = 3600.0
"""Older records may follow newer ones where a clock was set back; further than that the search does not look."""

PIECE_BYTES = 32 * 1024
"""A piece of an export."""

DENIED = "denied"
"""As an outcome, it finds the calls of what exists and the caller may not use."""

_CURSOR = re.compile(r"[0-9]{1,9}:[0-9]{1,18}(-[0-9]{1,9}:[0-9]{1,18})*")


def audit_line(slot: int, row: AuditRow) -> AuditLine:
    """A record as exports and pages have it."""
    return AuditLine(slot=slot, number=row.number, digest=row.digest.hex(), record=msgspec.Raw(row.content))


def record_filter(wanted: AuditFilter) -> Callable[[AuditRow], bool]:
    """Whether a record is wanted, apart from its time."""
    members: dict[str, object] = {"caller": wanted.caller, "server": wanted.server, "outcome": wanted.outcome}
    if wanted.outcome == DENIED:  # the caller got the reason of a missing name
        members |= {"outcome": None, "denied": True}
    equal = {name: value for name, value in members.items() if value is not None}
    fits_tool = None if wanted.tool is None else name_filter(wanted.tool)
    fits_event = None if wanted.event is None else name_filter(wanted.event)
    if not equal and fits_tool is None and fits_event is None:
        return lambda _: True

    def fits(row: AuditRow) -> bool:
        record = record_members(row.content)
        if any(record.get(name) != value for name, value in equal.items()):
            return False
        if fits_event is not None and not fits_event(str(record.get("event"))):
            return False
        name = str(record.get("name", ""))
        # On the page of one server, tools are called by their own names.
        return fits_tool is None or fits_tool(name) or fits_tool(f"{record.get('server')}.{name}")

    return fits


async def read_page(
    sources: Sequence[AuditLogSource],
    wanted: AuditFilter,
    limit: int,
    cursor: str | None,
    on_row: Callable[[AuditRow], None],
) -> tuple[list[AuditLine], str | None, int]:
    """The newest records before the cursor, the cursor of older ones, and how many records were read.

    Raises:
        OSError: a log cannot be read.
    """
    before = None if cursor is None else _read_cursor(cursor)
    fits = record_filter(wanted)
    lines: list[AuditLine] = []
    scanned = size = 0
    async with AsyncExitStack() as stack:
        ahead: dict[int, tuple[AuditRow, AsyncIterator[AuditRow]]] = {}
        for source in sources:
            if before is None or source.slot in before:
                log = await stack.enter_async_context(source.reading())
                number = NUMBER_MAX if before is None else before[source.slot]
                rows = log.back(before=number, until=wanted.until)
                if (row := await anext(rows, None)) is not None:
                    ahead[source.slot] = (row, rows)
        while ahead and len(lines) < limit and scanned < SCANNED_MAX and size < PAGE_BYTES:
            slot = max(ahead, key=lambda each: ahead[each][0].at)
            row, rows = ahead.pop(slot)
            on_row(row)
            scanned += 1
            if row.at < wanted.since - SLACK_SECONDS:
                continue
            if len(row.content) > RECORD_BYTES:
                row = msgspec.structs.replace(row, content=UNREADABLE)
            if row.at >= wanted.since and fits(row):
                lines.append(audit_line(slot, row))
                size += len(row.content)
            if (following := await anext(rows, None)) is not None:
                ahead[slot] = (following, rows)
    following_cursor = "-".join(f"{slot}:{row.number + 1}" for slot, (row, _) in sorted(ahead.items()))
    return lines, following_cursor or None, scanned


def _read_cursor(text: str) -> dict[int, int]:
    return {int(slot): int(number) for slot, number in (each.split(":") for each in text.split("-"))}


def is_cursor(text: str) -> bool:
    """Whether a text may be the cursor of a page."""
    return len(text) <= PIECE_BYTES and _CURSOR.fullmatch(text) is not None


async def export_lines(
    sources: Sequence[AuditLogSource],
    wanted: AuditFilter,
    emit: Callable[[bytes], None],
    on_row: Callable[[AuditRow], None],
) -> None:
    """Emit the wanted records as JSON Lines, the oldest first, in pieces.

    Raises:
        OSError: a log cannot be read.
    """
    fits, piece = record_filter(wanted), bytearray()
    async with rows_of(sources, wanted.since, wanted.until) as rows:
        async for slot, row in rows:
            on_row(row)
            if fits(row):
                piece += msgspec.json.encode(audit_line(slot, row)) + b"\n"
            if len(piece) >= PIECE_BYTES:
                emit(bytes(piece))
                piece.clear()
    if piece:
        emit(bytes(piece))


# -- a running hub ---------------------------------------------------------------------------------------------------

ROWS_AT_ONCE = 64
REST_SECONDS = 0.0003
"""The reading thread works for about half a millisecond and then leaves the interpreter to the event loop."""

PROGRESS_ROWS = 2_000

AHEAD = 2
"""Pieces that the thread may be ahead of its reader."""

EXPORTS_MAX = 2


class _Stopped(Exception):
    """The reader is gone."""


async def from_thread(
    work: Callable[[Callable[[T], None]], Coroutine[Any, Any, None]], ended: asyncio.Future[None] | None = None
) -> AsyncGenerator[T]:
    """Yield what `work` emits on a thread with an event loop of its own. Closing this, or `ended`, stops it.

    `emit` blocks the thread while its reader is behind, so nothing piles up.
    """
    loop = asyncio.get_running_loop()
    results: asyncio.Queue[tuple[T] | Exception | None] = asyncio.Queue()
    room, stopped = threading.Semaphore(AHEAD), threading.Event()

    def put(result: tuple[T] | Exception | None) -> None:
        with suppress(RuntimeError):  # the hub has ended
            loop.call_soon_threadsafe(results.put_nowait, result)

    def emit(item: T) -> None:
        room.acquire()
        if stopped.is_set():
            raise _Stopped
        put((item,))

    def run() -> None:
        try:
            asyncio.run(work(emit))
        except _Stopped:
            return
        except Exception as error:  # noqa: BLE001 - passed on to the reader
            put(error)
        else:
            put(None)

    if ended is not None:
        ended.add_done_callback(lambda _: results.put_nowait(None))
    # A daemon: a database that hangs must not keep the hub from ending.
    threading.Thread(target=run, name="audit-reader", daemon=True).start()
    try:
        while (result := await results.get()) is not None:
            if isinstance(result, Exception):
                raise result
            yield result[0]
            room.release()
    finally:
        stopped.set()
        room.release()


class _PausingCounter:
    """Counts records, and pauses now and then so that the event loop's thread can run."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, _: AuditRow) -> None:
        self.count += 1
        if self.count % ROWS_AT_ONCE == 0:
            time.sleep(REST_SECONDS)


def has_log(configuration: Configuration) -> bool:
    """Whether a hub of this configuration keeps a log, or once did; creating a log creates a key."""
    return configuration.hub.audit != "off" or (Path(configuration.hub.state) / FOLDER / KEY_FILE).exists()


class LiveAudit:
    """What the REST API says about the audit logs of a running hub; they are read on threads."""

    def __init__(self, running: RunningHub) -> None:
        self._running = running
        self._pages = asyncio.Semaphore(2)
        self._is_verifying = False
        self._exports = 0

    async def page(self, wanted: AuditFilter, limit: int, cursor: str | None) -> AuditPage:
        """The newest records before the cursor. Raises `ValueError` for a bad cursor."""
        if cursor is not None and not is_cursor(cursor):
            raise ValueError("cursor must be the `next` of an earlier answer")
        configuration = self._running.configuration
        mode = configuration.hub.audit
        if not has_log(configuration):
            return AuditPage(mode, (), None, 0)

        async def work(emit: Callable[[AuditPage], None]) -> None:
            emit(
                AuditPage(
                    mode, *await read_page(await logs_of(configuration), wanted, limit, cursor, _PausingCounter())
                )
            )

        async with self._pages, aclosing(from_thread(work)) as pages:
            return await anext(pages)

    def _configuration(self) -> Configuration:
        configuration = self._running.configuration
        if not has_log(configuration):
            raise NoAuditLog("This hub keeps no audit log: set `audit` in [hub] and restart it")
        return configuration

    async def export(self, wanted: AuditFilter, ended: asyncio.Future[None]) -> AsyncGenerator[bytes]:
        """All records as JSON Lines, the oldest first, in pieces, until `ended` is done."""
        if self._exports >= EXPORTS_MAX:
            raise AuditBusy(f"{EXPORTS_MAX} exports are running: try again when one has ended")
        configuration = self._configuration()

        async def work(emit: Callable[[bytes], None]) -> None:
            await export_lines(await logs_of(configuration), wanted, emit, _PausingCounter())

        self._exports += 1
        try:
            async with aclosing(from_thread(work, ended)) as pieces:
                async for piece in pieces:
                    yield piece
        finally:
            self._exports -= 1

    async def verify(self, ended: asyncio.Future[None]) -> AsyncGenerator[AuditProgress | Mapping[str, object]]:
        """Verify all logs: progress, and at the end the verdict as JSON has it, unless `ended` is done before."""
        if self._is_verifying:
            raise AuditBusy("The audit log is being verified: wait for the end of that")
        configuration = self._configuration()
        self._is_verifying = True
        try:
            async with aclosing(from_thread(partial(_verify_live, configuration), ended)) as steps:
                async for step in steps:
                    yield step
        finally:
            self._is_verifying = False


async def _verify_live(
    configuration: Configuration, emit: Callable[[AuditProgress | Mapping[str, object]], None]
) -> None:
    total = 0
    for source in await logs_of(configuration):
        with suppress(FileNotFoundError):
            async with source.reading() as log:
                for row in await log.newest(1):
                    total += row.number - (0 if log.anchor is None else log.anchor.point.number)
    count_row = _PausingCounter()
    emit(AuditProgress(0, total))

    def on_row(row: AuditRow) -> None:
        count_row(row)
        if count_row.count % PROGRESS_ROWS == 0:
            emit(AuditProgress(count_row.count, max(total, count_row.count)))

    verdicts = await verify_logs(configuration, on_row)
    broken = broken_words(verdicts)
    said = [f"The audit log failed verification: {'; '.join(broken)}"]
    if not broken:
        said = [line for verdict in verdicts for line in verdict_lines(verdict)]
    emit({**verdict_document(verdicts), "said": said})
