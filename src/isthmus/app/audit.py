"""The audit log of a hub: opened over its journal or on a seat, told what happens, pruned, and closed in good order.

`serve` writes into its journal's own store. Whoever keeps nothing else, or shares the state folder with a hub that
does, takes a seat (`storage.audit_slots`).
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
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
"""How long a hub has run before it looks at them for the first time: one that only answers a question does not."""

IDLE_SECONDS = 3600.0
"""How often it looks at them."""


async def keep_idle_seats_short(state: Path, keep: Callable[[], float]) -> None:
    """Take records away that are older than so many seconds, for as long as the hub runs."""
    await asyncio.sleep(FIRST_SECONDS)
    while True:
        await prune_idle_seats(state, time.time() - keep())
        await asyncio.sleep(IDLE_SECONDS)


async def prune_idle_seats(state: Path, before: float) -> None:
    """Take records of that time away from every log that nobody writes."""
    for seat in list_slots(state):
        journal = reopen_slot(state, seat)
        if journal is None:
            continue
        try:
            with suppress(OSError, AuditKeyDamaged):
                await _prune(state, seat, journal, before)
        finally:
            await journal.aclose()


async def _prune(state: Path, seat: int, journal: SqliteJournal, before: float) -> None:
    seals = FileAuditSigner(state, read_keys(state, seat), slot=seat)
    try:
        await journal.open_log(_Pruner(seals))
        while await journal.prune_log(before=before, limit=PRUNED_AT_ONCE):
            pass
    finally:
        seals.close()


class _Pruner:
    """See `core.ports.AuditNotary`: one that vouches for what is taken away, and adds nothing."""

    def __init__(self, seals: FileAuditSigner) -> None:
        self.seal: Callable[[SealKind, Point], Seal] = seals.seal
        self.checkpoint: Callable[[Point], None] = seals.checkpoint

    def record(self, fact: Fact) -> tuple[float, bytes]:
        """Nobody writes here."""
        raise AssertionError(fact)


SLACK_SECONDS = 60.0
"""How much longer than it may a call is believed to have taken to end, and to be written."""

ROWS_AT_ONCE = 1_000
TASKS_AT_ONCE = 100


async def loose_ends(
    ledger: AuditJournal, journal: Journal, server_status: LogState, call_seconds: float
) -> dict[str, EncodedRecord]:
    """What began within the time that a call may take before the log's last record, and has not ended.

    Returned are the records that close these calls, by what each is known by. A task that waits is no open end, though
    it may have begun: it was put back, and goes on. Raises `OSError`.
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
    """The number before the first record of so many seconds: looked for by halves, as a log may have millions."""
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
    """The ids of tasks that the hub before left waiting, and that are gone on with."""
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
"""How often it is looked whether records are too old."""

PRUNED_AT_ONCE = 10_000


class Notary:
    """See `core.ports.AuditNotary`: a scribe, and seals."""

    def __init__(self, scribe: RecordEncoder, seals: FileAuditSigner) -> None:
        self._scribe = scribe
        self._seals = seals

    def record(self, fact: Fact) -> tuple[float, bytes]:
        """The record of a fact."""
        return self._scribe.record(fact)

    def seal(self, kind: SealKind, point: Point) -> Seal:
        """Sign a point."""
        return self._seals.seal(kind, point)

    def checkpoint(self, point: Point) -> None:
        """Note how far the log goes."""
        self._seals.checkpoint(point)


class AuditLog:
    """An open log; made by `open_audit`."""

    def __init__(self, ledger: AuditJournal, scribe: RecordEncoder, seals: FileAuditSigner, mode: Mode) -> None:
        self.audit = Audit(ledger, scribe, mode)
        self.closed: frozenset[str] = frozenset()
        """The calls that the hub before left open, and that were ended as lost when this one started."""
        self.seat: SqliteJournal | None = None
        """Where it is, if that is closed with it."""
        self._ledger = ledger
        self._scribe = scribe
        self._seals = seals
        self._keys: dict[str, tuple[State, Caller]] = {}

    def attach(self, running: RunningHub, auth: Authenticator, identities: Identities, pins: DefinitionPins) -> None:
        """Hear of whatever is not a call at a hub that serves, and have old records taken away."""
        auth.on_turned_away = self.audit.turned_away
        self._keys = states_of(identities.keys, time.time())
        identities.on_keys = self._compare_keys
        self.follow(running, pins)

    def follow(self, running: RunningHub, pins: DefinitionPins | None) -> None:
        """The same at a hub that nobody has to be let in to."""
        if pins is not None:
            pins.tell = self._tell

        def keep() -> float:
            return running.configuration.audit.keep

        running.background.spawn("audit retention", self.retain(keep))
        state = Path(running.configuration.hub.state)
        running.background.spawn("retention of other audit logs", keep_idle_seats_short(state, keep))

    def tasks_lost(self, lost: Iterable[TaskRecord]) -> None:
        """These tasks were on their way when the hub before was killed: have each of them end in the log, too."""
        for each in lost:
            if each.id not in self.closed:
                about = {"caller": each.owner.name, "tenant": each.owner.tenant, "id": each.id}
                self.audit.note(CALL_LOST, **about, outcome=LOST_OUTCOME, executed="unknown")

    def _tell(self, event: str, facts: Mapping[str, object]) -> None:
        self.audit.note(event, **{key: str(value) for key, value in facts.items()})

    def _compare_keys(self, keys: MintedKeys) -> None:
        """Tell of keys that were made, or are good no more, since they were looked at last."""
        before, self._keys = self._keys, states_of(keys, time.time())
        for id, (state, caller) in self._keys.items():
            if id not in before or before[id][0] != state:
                event = "key.created" if id not in before and state == "good" else f"key.{state}"
                self.audit.note(event, key=id, caller=caller.name, tenant=caller.tenant)

    def reloaded(self, configuration: Configuration) -> None:
        """The configuration is another one now; of its files, which may hold secrets, a keyed digest is kept."""
        self.audit.note("configuration.reloaded", configuration=self.digest_of(configuration.files))

    def digest_of(self, files: Iterable[Path]) -> str:
        """Tells one state of these files from another."""
        digest = hashlib.sha256()
        for file in sorted(files):
            with suppress(OSError):
                digest.update(hashlib.sha256(file.read_bytes()).digest())
        return self._scribe.digest(digest.digest())

    async def retain(self, keep: Callable[[], float]) -> None:
        """Take records away that are older than so many seconds, for as long as the hub runs."""
        while True:
            with suppress(OSError):
                while await self._ledger.prune_log(before=time.time() - keep(), limit=PRUNED_AT_ONCE):
                    pass  # each waits for the journal's writer, and so lets others go first
            await asyncio.sleep(PRUNE_SECONDS)

    async def stop(self) -> None:
        """Write that the hub ends; nothing follows."""
        self.audit.tell_of_strangers()
        self.audit.note(STOPPED)  # as the last one, which the next hub looks at
        await self.audit.aclose()

    async def close(self) -> None:
        """Let the checkpoint go, once the journal is closed."""
        if self.seat is not None:
            await self.seat.aclose()
        self._seals.close()


def states_of(keys: MintedKeys, now: float) -> dict[str, tuple[State, Caller]]:
    """How it is with each key, and whose it is."""
    return {key.id: (key.state(now), key.caller) for key in keys}


async def close_audit(opened: AuditLog | None, journal: ClosableJournal) -> None:
    """Write that the hub ends, and let the journal go."""
    if opened is not None:
        await opened.stop()
    await journal.aclose()
    if opened is not None:
        await opened.close()


async def open_audit(configuration: Configuration, journal: ClosableJournal, by: str = "serve") -> AuditLog | None:
    """The log that a configuration asks for; None if it wants none, or can do without one that cannot be kept.

    `by` is what runs the hub, as the log names it. With a journal that keeps no log, a seat is taken.

    Raises:
        ConfigError: it wants every call in the log, and there can be none; the journal is closed then.
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
    """A log beside a journal that keeps none; only one that is this process's own notes facts with its documents."""
    memory = journal if type(journal) is MemoryJournal else None  # what somebody else made of it may write elsewhere
    if mode == "strict" and memory is None:
        raise OSError("what the hub's tasks are kept in keeps no audit log")
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
    """What closes the calls that the hub before left open, if it did not come to its end."""
    if _is_clean(server_status):
        return {}
    try:
        return await loose_ends(ledger, journal, server_status, configuration.hub.limits.hard_seconds)
    except OSError as error:  # no reason to go without a log
        log.error("calls that the hub before left open in the audit log stay so", reason=str(error))
        return {}


def _is_clean(server_status: LogState) -> bool:
    return server_status.last is None or f'"event":"{STOPPED}"'.encode() in server_status.last


def _tell_of_start(opened: AuditLog, server_status: LogState, vouched: Seal | None, keys: AuditKeys) -> None:
    """Write what the log looks like before anything is added to it."""
    if (why := _cut(server_status, vouched, keys)) is not None:
        log.error("the audit log is not as it was left", why=why)
        opened.audit.note(CUT, why=why)
    # The chain can be gone on with by whoever can write to the store, and from here on that would be vouched for.
    unsigned = 0 if vouched is None else max(0, server_status.head.number - vouched.point.number)
    if not _is_clean(server_status):
        log.warning("the hub before this one did not come to its end: its last records may be missing")
        opened.audit.note(UNCLEAN, after=server_status.head.number, lost=len(opened.closed), unsigned=unsigned)
    elif unsigned:
        log.error("the audit log ends in good order, with records that no hub signed", records=unsigned)
        opened.audit.note(UNSIGNED, after=server_status.head.number - unsigned, records=unsigned)


def _cut(server_status: LogState, vouched: Seal | None, keys: AuditKeys) -> str | None:
    """What is missing of the log, as far as its end shows that."""
    number = server_status.head.number
    if vouched is None:
        return "there was no checkpoint beside it" if number else None
    if not keys.is_signed(signed_text("checkpoint", vouched.point, vouched.at), vouched.signature):
        return "its checkpoint was not signed by the hub's key"
    if vouched.point.number > number:
        return f"the log ended with record {number}, and its checkpoint vouched for {vouched.point.number}"
    if vouched.point.number == number and vouched.point != server_status.head:
        return f"record {number} was another one than its checkpoint vouched for"
    return None
