"""The audit log of a hub: opens it in the journal or in a slot, records events, prunes old records, and closes it.

`serve` writes into its journal's store. Processes without a journal, or with the state folder of a running hub, use a
slot (`storage.audit_log_folders`).
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing, suppress
from pathlib import Path

import msgspec
import structlog

from isthmus import __version__
from isthmus.app.caller_identity import Identities
from isthmus.app.definition_pins import DefinitionPins
from isthmus.app.hub import RunningHub
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
from isthmus.core.journal import (
    AuditJournal,
    ChainedAuditJournal,
    ClosableJournal,
    DocumentPlace,
    Journal,
    ReadableAuditJournal,
    place_of,
)
from isthmus.core.tasks.engine import UNFINISHED
from isthmus.core.tasks.record import TASK, TaskRecord, record_of
from isthmus.frontends.http.auth import Authenticator
from isthmus.identity.minted_keys import Keys as MintedKeys
from isthmus.identity.minted_keys import State
from isthmus.model.callers import Caller
from isthmus.storage.audit_log_folders import acquire_place, acquire_slot, chain_slot, list_slots, reopen_slot
from isthmus.storage.audit_signatures import (
    MAIN_LOG,
    AuditKeyDamaged,
    AuditKeys,
    FileAuditSigner,
    open_keys,
    read_checkpoint,
    read_keys,
)
from isthmus.storage.memory import MemoryJournal
from isthmus.storage.sqlite import SqliteJournal
from isthmus.telemetry.audit_writer import Audit, Mode

FIRST_PRUNE_SECONDS = 10.0
"""How long a hub runs before it first prunes idle slots; short-lived commands never do."""

IDLE_PRUNE_SECONDS = 3600.0
"""How often idle slots are pruned."""


async def keep_pruning_idle_slots(state: Path, keep: Callable[[], float]) -> None:
    """Prune records older than this many seconds while the hub runs."""
    await asyncio.sleep(FIRST_PRUNE_SECONDS)
    while True:
        await prune_idle_slots(state, time.time() - keep())
        await asyncio.sleep(IDLE_PRUNE_SECONDS)


class Notary:
    """Encodes records and signs the log for `core.journal.AuditJournal`. Pruning needs no encoder."""

    def __init__(self, signer: FileAuditSigner, encoder: RecordEncoder | None = None) -> None:
        self.seal: Callable[[SealKind, Point], Seal] = signer.seal
        self.checkpoint: Callable[[Point], None] = signer.checkpoint
        self._encoder = encoder

    def record(self, fact: Fact) -> tuple[float, bytes]:
        """Encode an event as a record."""
        assert self._encoder is not None, "pruning adds no records"
        return self._encoder.record(fact)


async def prune_idle_slots(state: Path, before: float) -> None:
    """Prune records before that time from every log without a writer."""
    for slot in list_slots(state):
        journal = reopen_slot(state, slot)
        if journal is None:
            continue
        try:
            with (
                suppress(OSError, AuditKeyDamaged),
                closing(FileAuditSigner(state, read_keys(state, slot), slot=slot)) as signer,
            ):
                await journal.open_log(Notary(signer))
                while await journal.prune_log(before=before, limit=PRUNED_AT_ONCE):
                    pass
        finally:
            await journal.aclose()


SLACK_SECONDS = 60.0
"""Extra time beyond a call's limit for it to end and be recorded."""

ROWS_AT_ONCE = 1_000
TASKS_AT_ONCE = 100


async def unfinished_calls(
    ledger: AuditJournal, journal: Journal, log_state: LogState, call_seconds: float
) -> dict[str, EncodedRecord]:
    """Find calls that began within a call's time limit before the log's last record and have no end.

    Return the records that close these calls, by call id. Waiting tasks do not count, even if they had begun: they
    were queued again and continue. Raises `OSError`.
    """
    if not isinstance(ledger, ReadableAuditJournal):
        return {}
    unfinished = UnfinishedCalls()
    after = await _number_before(ledger, log_state, call_seconds + SLACK_SECONDS)
    while rows := await ledger.log_rows(after=after, limit=ROWS_AT_ONCE):
        for row in rows:
            unfinished.add_row(row)
        after = rows[-1].number
    waiting = await _waiting_task_ids(journal) if unfinished.open else set()
    now = time.time()
    made = {id: lost_call_record(row, now) for id, row in unfinished.open.items() if id not in waiting}
    return {id: record for id, record in made.items() if record is not None}


async def _number_before(ledger: ReadableAuditJournal, log_state: LogState, seconds: float) -> int:
    """The number before the first record since that time; a binary search, as a log may have millions of records."""
    low = 0 if log_state.anchor is None else log_state.anchor.point.number
    high = log_state.head.number
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


async def _waiting_task_ids(journal: Journal) -> set[str]:
    """The ids of tasks that the previous hub left waiting and that continue."""
    ids: set[str] = set()
    last: DocumentPlace | None = None
    # `newest`, because another node of a cluster may have taken them over.
    while found := await journal.newest(TASK, UNFINISHED, limit=TASKS_AT_ONCE, before=last):
        last = place_of(found[-1])
        for document in found:
            with suppress(msgspec.MsgspecError):
                if record_of(document).phase == "waiting":
                    ids.add(document.id)
    return ids


log = structlog.get_logger(__name__)

PRUNE_SECONDS = 3600.0
"""How often old records are pruned."""

PRUNED_AT_ONCE = 10_000


class AuditLog:
    """An open audit log; created by `open_audit`."""

    def __init__(self, ledger: AuditJournal, encoder: RecordEncoder, signer: FileAuditSigner, mode: Mode) -> None:
        self.audit = Audit(ledger, encoder, mode)
        self.closed: frozenset[str] = frozenset()
        """The calls that the previous hub left open; this hub recorded them as lost at its start."""
        self.slot_journal: SqliteJournal | None = None
        """The journal of a log in a slot; it is closed with the log."""
        self.place_descriptor: int | None = None
        """For a node of a cluster: the open file that reserves its place below the state folder."""
        self._ledger = ledger
        self._encoder = encoder
        self._signer = signer
        self._keys: dict[str, tuple[State, Caller]] = {}

    def attach(self, running: RunningHub, auth: Authenticator, identities: Identities, pins: DefinitionPins) -> None:
        """Record events besides calls of a serving hub, and prune old records."""
        auth.on_turned_away = self.audit.count_rejected
        self._keys = states_of(identities.keys, time.time())
        identities.on_keys = self._compare_keys
        self.follow(running, pins)

    def follow(self, running: RunningHub, pins: DefinitionPins | None) -> None:
        """Record changed definitions and prune old records; for a hub without callers."""
        if pins is not None:
            pins.record = lambda event, facts: self.audit.note(event, **{key: str(each) for key, each in facts.items()})

        def keep() -> float:
            return running.configuration.audit.keep

        running.background.spawn("audit retention", self.retain(keep))
        state = Path(running.configuration.hub.state)
        running.background.spawn("retention of other audit logs", keep_pruning_idle_slots(state, keep))

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
        return self._encoder.digest(digest.digest())

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
        if self.slot_journal is not None:
            await self.slot_journal.aclose()
        self._signer.close()
        if self.place_descriptor is not None:
            os.close(self.place_descriptor)


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
        if isinstance(journal, ChainedAuditJournal):
            return await _open_node_log(configuration, journal, journal, mode, by)
        if isinstance(journal, AuditJournal):
            return await _open(configuration, journal, journal, mode, by)
        return await _open_in_slot(configuration, journal, mode, by)
    except (OSError, AuditKeyDamaged) as error:
        if mode == "strict":
            await journal.aclose()
            problem = f'cannot be "strict": {error}'
            raise ConfigError(Place(configuration.file, "hub.audit").finding(problem)) from error
        log.warning("calls are not audited", reason=str(error))
        return None


async def _open_in_slot(configuration: Configuration, journal: ClosableJournal, mode: Mode, by: str) -> AuditLog:
    """Open a log in a slot, for a journal that has none. A strict log needs a journal in this process's memory."""
    memory = journal if type(journal) is MemoryJournal else None  # an extension's journal may write elsewhere
    if mode == "strict" and memory is None:
        raise OSError("the storage of the hub's tasks has no audit log")
    number, slot = acquire_slot(Path(configuration.hub.state))
    try:
        opened = await _open(configuration, journal, slot, mode, by, number)
    except BaseException:
        await slot.aclose()
        raise
    opened.slot_journal = slot
    if memory is not None:
        memory.log = slot
    return opened


async def _open_node_log(
    configuration: Configuration, journal: ClosableJournal, ledger: ChainedAuditJournal, mode: Mode, by: str
) -> AuditLog:
    """Open the log of a node of a cluster."""
    state = Path(configuration.hub.state)
    place, descriptor = acquire_place(state)
    try:
        chain = await ledger.choose_chain(open_keys(state).name, place)
        opened = await _open(configuration, journal, ledger, mode, by, chain_slot(chain))
    except BaseException:
        os.close(descriptor)
        raise
    opened.place_descriptor = descriptor
    return opened


async def _open(
    configuration: Configuration,
    journal: ClosableJournal,
    ledger: AuditJournal,
    mode: Mode,
    by: str,
    slot: int = MAIN_LOG,
) -> AuditLog:
    state = Path(configuration.hub.state)
    keys = open_keys(state, slot)
    checkpoint = read_checkpoint(state, keys, slot)
    signer = FileAuditSigner(state, keys, slot=slot)
    try:
        encoder = RecordEncoder(keys.digesting)
        log_state = await ledger.open_log(Notary(signer, encoder))
        if checkpoint is None and log_state.head == START:
            signer.begin()
        lost_calls = await _lost_calls(configuration, journal, ledger, log_state)
    except BaseException:
        signer.close()
        raise
    opened = AuditLog(ledger, encoder, signer, mode)
    opened.closed = frozenset(lost_calls)
    _record_start(opened, log_state, checkpoint, keys)
    for record in lost_calls.values():
        opened.audit.add(record)
    files = opened.digest_of(configuration.files)
    opened.audit.note(STARTED, version=__version__, by=by, audit=mode, key=keys.name, configuration=files)
    opened.audit.flush()
    return opened


async def _lost_calls(
    configuration: Configuration, journal: ClosableJournal, ledger: AuditJournal, log_state: LogState
) -> Mapping[str, EncodedRecord]:
    """The records that close the calls of a previous hub that was killed."""
    if _is_clean(log_state):
        return {}
    try:
        return await unfinished_calls(ledger, journal, log_state, configuration.hub.limits.hard_seconds)
    except OSError as error:  # the log works without it
        log.error("unfinished calls of the previous hub could not be closed in the audit log", reason=str(error))
        return {}


def _is_clean(log_state: LogState) -> bool:
    return log_state.last is None or f'"event":"{STOPPED}"'.encode() in log_state.last


def _record_start(opened: AuditLog, log_state: LogState, checkpoint: Seal | None, keys: AuditKeys) -> None:
    """Record how the previous hub left the log."""
    if (why := _tampering(log_state, checkpoint, keys)) is not None:
        log.error("the audit log does not match its checkpoint", why=why)
        opened.audit.note(CUT, why=why)
    # Anybody with write access to the store can extend the chain; a signature from here on would confirm that.
    unsigned = 0 if checkpoint is None else max(0, log_state.head.number - checkpoint.point.number)
    if not _is_clean(log_state):
        log.warning("the previous hub did not shut down cleanly: its last records may be missing")
        opened.audit.note(UNCLEAN, after=log_state.head.number, lost=len(opened.closed), unsigned=unsigned)
    elif unsigned:
        log.error("the audit log ends with records that no hub signed", records=unsigned)
        opened.audit.note(UNSIGNED, after=log_state.head.number - unsigned, records=unsigned)


def _tampering(log_state: LogState, checkpoint: Seal | None, keys: AuditKeys) -> str | None:
    """What is missing or altered at the end of the log; None if nothing is."""
    number = log_state.head.number
    if checkpoint is None:
        return "there was no checkpoint beside it" if number else None
    if not keys.is_signed(signed_text("checkpoint", checkpoint.point, checkpoint.at), checkpoint.signature):
        return "its checkpoint is not signed with the hub's key"
    if checkpoint.point.number > number:
        return f"the log ended with record {number}, but its checkpoint confirms {checkpoint.point.number}"
    if checkpoint.point.number == number and checkpoint.point != log_state.head:
        return f"record {number} differs from the one that its checkpoint confirms"
    return None
