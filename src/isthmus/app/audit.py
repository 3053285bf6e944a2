"""The audit log of a hub: opens it in the journal or in a slot, records events, prunes old records, and closes it.

`serve` writes into its journal's store. Processes without a journal, or with the state folder of a running hub, use a
slot (`storage.audit_slots`).
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing, suppress
from pathlib import Path

import msgspec
import structlog

from isthmus import __version__
from isthmus.app.definitions import DefinitionPins
from isthmus.app.hub import RunningHub
from isthmus.app.identity import Identities
from isthmus.config.findings import ConfigError, Place
from isthmus.config.settings import Configuration
from isthmus.core.audit import (
    CALL_LOST,
    CUT,
    LOST_OUTCOME,
    START,
    STARTED,
    STOPPED,
    UNCLEAN,
    UNSIGNED,
    AuditRow,
    EncodedRecord,
    Fact,
    LogState,
    Point,
    RecordEncoder,
    Seal,
    SealKind,
    UnfinishedCalls,
    lost_call_record,
    signed_text,
)
from isthmus.core.ports import AuditJournal, ClosableJournal, Document, Journal, ReadableAuditJournal
from isthmus.core.tasks.engine import UNFINISHED
from isthmus.core.tasks.record import TASK, TaskRecord, record_of
from isthmus.frontends.http.auth import Authenticator
from isthmus.identity.minted_keys import Keys as MintedKeys
from isthmus.identity.minted_keys import State
from isthmus.model.callers import Caller
from isthmus.storage.audit_signatures import (
    MAIN_LOG,
    AuditKeyDamaged,
    AuditKeys,
    FileAuditSigner,
    open_keys,
    read_checkpoint,
    read_keys,
)
from isthmus.storage.audit_slots import acquire_slot, list_slots, reopen_slot
from isthmus.storage.memory import MemoryJournal
from isthmus.storage.sqlite import SqliteJournal
from isthmus.telemetry.audit import Audit, Mode

FIRST_SECONDS = 10.0
"""How long a hub runs before it first prunes idle slots; short-lived commands never do."""

IDLE_SECONDS = 3600.0
"""How often idle slots are pruned."""


async def keep_idle_seats_short(state: Path, keep: Callable[[], float]) -> None:
    """Prune records older than this many seconds while the hub runs."""
    await asyncio.sleep(FIRST_SECONDS)
    while True:
        await prune_idle_seats(state, time.time() - keep())
        await asyncio.sleep(IDLE_SECONDS)


async def prune_idle_seats(state: Path, before: float) -> None:
    """Prune records before that time from every log without a writer."""
    for seat in list_slots(state):
        journal = reopen_slot(state, seat)
        if journal is None:
            continue
        try:
            with (
                suppress(OSError, AuditKeyDamaged),
                closing(FileAuditSigner(state, read_keys(state, seat), slot=seat)) as seals,
            ):
                await journal.open_log(_Pruner(seals))
                while await journal.prune_log(before=before, limit=PRUNED_AT_ONCE):
                    pass
        finally:
            await journal.aclose()


class _Pruner:
    """See `core.ports.AuditNotary`: signs the pruning and adds no records."""

    def __init__(self, seals: FileAuditSigner) -> None:
        self.seal: Callable[[SealKind, Point], Seal] = seals.seal
        self.checkpoint: Callable[[Point], None] = seals.checkpoint

    def record(self, fact: Fact) -> tuple[float, bytes]:
        """Never called: a pruner adds no records."""
        raise AssertionError(fact)


SLACK_SECONDS = 60.0
"""Extra time beyond a call's limit for it to end and be recorded."""

ROWS_AT_ONCE = 1_000
TASKS_AT_ONCE = 100


async def loose_ends(
    ledger: AuditJournal, journal: Journal, server_status: LogState, call_seconds: float
) -> dict[str, EncodedRecord]:
    """Find calls that began within a call's time limit before the log's last record and have no end.

    Return the records that close these calls, by call id. Waiting tasks do not count, even if they had begun: they
    were queued again and continue. Raises `OSError`.
    """
    if not isinstance(ledger, ReadableAuditJournal):
        return {}
    ends = UnfinishedCalls()
    after = await _begin_of(ledger, server_status, call_seconds + SLACK_SECONDS)
    while rows := await ledger.log_rows(after=after, limit=ROWS_AT_ONCE):
        for row in rows:
            ends.take(row)
        after = rows[-1].number
    waiting = await _waiting(journal) if ends.open else set()
    now = time.time()
    made = {id: lost_call_record(row, now) for id, row in ends.open.items() if id not in waiting}
    return {id: record for id, record in made.items() if record is not None}


async def _begin_of(ledger: ReadableAuditJournal, server_status: LogState, seconds: float) -> int:
    """The number before the first record since that time; a binary search, as a log may have millions of records."""
    low = 0 if server_status.anchor is None else server_status.anchor.point.number
    high = server_status.head.number
    last = await _after(ledger, high - 1)
    while last is not None and high - low > ROWS_AT_ONCE:
        middle = (low + high) // 2
        row = await _after(ledger, middle)
        if row is not None and row.at < last.at - seconds:
            low = middle
        else:
            high = middle
    return low


async def _after(ledger: ReadableAuditJournal, number: int) -> AuditRow | None:
    rows = await ledger.log_rows(after=number, limit=1)
    return rows[0] if rows else None


async def _waiting(journal: Journal) -> set[str]:
    """The ids of tasks that the previous hub left waiting and that continue."""
    ids: set[str] = set()
    last: Document | None = None
    while found := await journal.all_in(TASK, UNFINISHED, limit=TASKS_AT_ONCE, after=last):
        last = found[-1]
        for document in found:
            with suppress(msgspec.MsgspecError):
                if record_of(document).phase == "waiting":
                    ids.add(document.id)
    return ids


log = structlog.get_logger(__name__)

PRUNE_SECONDS = 3600.0
"""How often old records are pruned."""

PRUNED_AT_ONCE = 10_000


class Notary:
    """See `core.ports.AuditNotary`: encodes records and signs the log."""

    def __init__(self, scribe: RecordEncoder, seals: FileAuditSigner) -> None:
        self._scribe = scribe
        self._seals = seals

    def record(self, fact: Fact) -> tuple[float, bytes]:
        """Encode an event as a record."""
        return self._scribe.record(fact)

    def seal(self, kind: SealKind, point: Point) -> Seal:
        """Sign a point of the log."""
        return self._seals.seal(kind, point)

    def checkpoint(self, point: Point) -> None:
        """Store a checkpoint of the log's end."""
        self._seals.checkpoint(point)


class AuditLog:
    """An open audit log; created by `open_audit`."""

    def __init__(self, ledger: AuditJournal, scribe: RecordEncoder, seals: FileAuditSigner, mode: Mode) -> None:
        self.audit = Audit(ledger, scribe, mode)
        self.closed: frozenset[str] = frozenset()
        """The calls that the previous hub left open; this hub recorded them as lost at its start."""
        self.seat: SqliteJournal | None = None
        """The log's own journal, if it is closed with the log."""
        self._ledger = ledger
        self._scribe = scribe
        self._seals = seals
        self._keys: dict[str, tuple[State, Caller]] = {}

    def attach(self, running: RunningHub, auth: Authenticator, identities: Identities, pins: DefinitionPins) -> None:
        """Record events besides calls of a serving hub, and prune old records."""
        auth.on_turned_away = self.audit.count_rejected
        self._keys = states_of(identities.keys, time.time())
        identities.on_keys = self._compare_keys
        self.follow(running, pins)

    def follow(self, running: RunningHub, pins: DefinitionPins | None) -> None:
        """The same for a hub without callers."""
        if pins is not None:
            pins.record = lambda event, facts: self.audit.note(event, **{key: str(each) for key, each in facts.items()})

        def keep() -> float:
            return running.configuration.audit.keep

        running.background.spawn("audit retention", self.retain(keep))
        state = Path(running.configuration.hub.state)
        running.background.spawn("retention of other audit logs", keep_idle_seats_short(state, keep))

    def tasks_lost(self, lost: Iterable[TaskRecord]) -> None:
        """Record the end of tasks that were running when the previous hub was killed."""
        for each in lost:
            if each.id not in self.closed:
                about = {"caller": each.owner.name, "tenant": each.owner.tenant, "id": each.id}
                self.audit.note(CALL_LOST, **about, outcome=LOST_OUTCOME, executed="unknown")

    def _compare_keys(self, keys: MintedKeys) -> None:
        """Record keys that were created or became invalid since the last check."""
        before, self._keys = self._keys, states_of(keys, time.time())
        for id, (state, caller) in self._keys.items():
            if id not in before or before[id][0] != state:
                event = "key.created" if id not in before and state == "good" else f"key.{state}"
                self.audit.note(event, key=id, caller=caller.name, tenant=caller.tenant)

    def reloaded(self, configuration: Configuration) -> None:
        """Record a changed configuration. Its files may contain secrets, so only a keyed digest is recorded."""
        self.audit.note("configuration.reloaded", configuration=self.digest_of(configuration.files))

    def digest_of(self, files: Iterable[Path]) -> str:
        """A keyed digest of these files."""
        digest = hashlib.sha256()
        for file in sorted(files):
            with suppress(OSError):
                digest.update(hashlib.sha256(file.read_bytes()).digest())
        return self._scribe.digest(digest.digest())

    async def retain(self, keep: Callable[[], float]) -> None:
        """Prune records older than this many seconds while the hub runs."""
        while True:
            with suppress(OSError):
                while await self._ledger.prune_log(before=time.time() - keep(), limit=PRUNED_AT_ONCE):
                    pass  # each step waits for the journal's writer, so others can go first
            await asyncio.sleep(PRUNE_SECONDS)

    async def stop(self) -> None:
        """Record the hub's end as the last record."""
        self.audit.record_rejected()
        self.audit.note(STOPPED)  # the last record, which the next hub checks
        await self.audit.aclose()

    async def close(self) -> None:
        """Release the checkpoint once the journal is closed."""
        if self.seat is not None:
            await self.seat.aclose()
        self._seals.close()


def states_of(keys: MintedKeys, now: float) -> dict[str, tuple[State, Caller]]:
    """The state and the caller of each key."""
    return {key.id: (key.state(now), key.caller) for key in keys}


async def close_audit(opened: AuditLog | None, journal: ClosableJournal) -> None:
    """Record the end of the hub and close the journal."""
    if opened is not None:
        await opened.stop()
    await journal.aclose()
    if opened is not None:
        await opened.close()


async def open_audit(configuration: Configuration, journal: ClosableJournal, by: str = "serve") -> AuditLog | None:
    """Open the configured audit log; None if it is off, or optional and cannot be opened.

    `by` names the command that runs the hub. If the journal has no log, a slot is used.

    Raises:
        ConfigError: the log is required and cannot be opened; the journal is closed then.
    """
    mode = configuration.hub.audit
    if mode == "off":
        return None
    try:
        if isinstance(journal, AuditJournal):
            return await _opened(configuration, journal, journal, mode, by)
        return await _on_seat(configuration, journal, mode, by)
    except (OSError, AuditKeyDamaged) as error:
        if mode == "strict":
            await journal.aclose()
            said = f'cannot be "strict": {error}'
            raise ConfigError(Place(configuration.file, "hub.audit").finding(said)) from error
        log.warning("calls are not audited", reason=str(error))
        return None


async def _on_seat(configuration: Configuration, journal: ClosableJournal, mode: Mode, by: str) -> AuditLog:
    """Open a log next to a journal without one. Only a journal in this process can write events with its documents."""
    memory = journal if type(journal) is MemoryJournal else None  # an extension's journal may write elsewhere
    if mode == "strict" and memory is None:
        raise OSError("the storage of the hub's tasks has no audit log")
    number, seat = acquire_slot(Path(configuration.hub.state))
    try:
        opened = await _opened(configuration, journal, seat, mode, by, number)
    except BaseException:
        await seat.aclose()
        raise
    opened.seat = seat
    if memory is not None:
        memory.log = seat
    return opened


async def _opened(
    configuration: Configuration,
    journal: ClosableJournal,
    ledger: AuditJournal,
    mode: Mode,
    by: str,
    number: int = MAIN_LOG,
) -> AuditLog:
    state = Path(configuration.hub.state)
    keys = open_keys(state, number)
    vouched = read_checkpoint(state, keys, number)
    seals = FileAuditSigner(state, keys, slot=number)
    try:
        scribe = RecordEncoder(keys.digesting)
        server_status = await ledger.open_log(Notary(scribe, seals))
        if vouched is None and server_status.head == START:
            seals.begin()
        loose = await _left_open(configuration, journal, ledger, server_status)
    except BaseException:
        seals.close()
        raise
    opened = AuditLog(ledger, scribe, seals, mode)
    opened.closed = frozenset(loose)
    _tell_of_start(opened, server_status, vouched, keys)
    for record in loose.values():
        opened.audit.add(record)
    files = opened.digest_of(configuration.files)
    opened.audit.note(STARTED, version=__version__, by=by, audit=mode, key=keys.name, configuration=files)
    opened.audit.flush()
    return opened


async def _left_open(
    configuration: Configuration, journal: ClosableJournal, ledger: AuditJournal, server_status: LogState
) -> Mapping[str, EncodedRecord]:
    """The records that close the calls of a previous hub that was killed."""
    if _is_clean(server_status):
        return {}
    try:
        return await loose_ends(ledger, journal, server_status, configuration.hub.limits.hard_seconds)
    except OSError as error:  # the log works without it
        log.error("calls that the previous hub left open in the audit log stay open", reason=str(error))
        return {}


def _is_clean(server_status: LogState) -> bool:
    return server_status.last is None or f'"event":"{STOPPED}"'.encode() in server_status.last


def _tell_of_start(opened: AuditLog, server_status: LogState, vouched: Seal | None, keys: AuditKeys) -> None:
    """Record the state of the log before anything is added."""
    if (why := _cut(server_status, vouched, keys)) is not None:
        log.error("the audit log is not as it was left", why=why)
        opened.audit.note(CUT, why=why)
    # Anybody with write access to the store can extend the chain; a signature from here on would confirm that.
    unsigned = 0 if vouched is None else max(0, server_status.head.number - vouched.point.number)
    if not _is_clean(server_status):
        log.warning("the previous hub did not shut down cleanly: its last records may be missing")
        opened.audit.note(UNCLEAN, after=server_status.head.number, lost=len(opened.closed), unsigned=unsigned)
    elif unsigned:
        log.error("the audit log ends with records that no hub signed", records=unsigned)
        opened.audit.note(UNSIGNED, after=server_status.head.number - unsigned, records=unsigned)


def _cut(server_status: LogState, vouched: Seal | None, keys: AuditKeys) -> str | None:
    """What the end of the log shows to be missing or altered."""
    number = server_status.head.number
    if vouched is None:
        return "there was no checkpoint beside it" if number else None
    if not keys.is_signed(signed_text("checkpoint", vouched.point, vouched.at), vouched.signature):
        return "its checkpoint is not signed with the hub's key"
    if vouched.point.number > number:
        return f"the log ended with record {number}, but its checkpoint confirms {vouched.point.number}"
    if vouched.point.number == number and vouched.point != server_status.head:
        return f"record {number} differs from the one that its checkpoint confirms"
    return None
