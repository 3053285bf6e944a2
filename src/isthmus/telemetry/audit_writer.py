"""The recorder behind the audit log: it turns every call and event into a fact and writes it to the journal.

`batched` collects facts and writes them every 75 ms, so a call costs one list entry. `strict` writes the start of a
call before it is sent, and its end before the caller gets the result; without the write, neither happens. Made by
`app.audit`; the hub uses it as its recorder.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

import structlog

from isthmus.core.audit import (
    LOST,
    REFUSED,
    AuditEvent,
    CallFact,
    EncodedRecord,
    Fact,
    RecordBatch,
    RecordEncoder,
    Value,
    outcome_word,
)
from isthmus.core.calls.running_call import InFlight
from isthmus.core.event_loop import LONG_BYTES
from isthmus.core.journal import AuditJournal, WriteResult
from isthmus.core.ports import AuditedExchange, Recorder, StrictAudit
from isthmus.model.calls import Call, Outcome
from isthmus.model.fault_table import NotWritten
from isthmus.model.names import ServerName

log = structlog.get_logger(__name__)

Mode: TypeAlias = Literal["batched", "strict"]
AuditMode: TypeAlias = Literal["off", "batched", "strict"]

DAY_SECONDS = 86_400.0

BATCH_SECONDS = 0.075
"""How long facts are collected. A record may be 100 ms late, and the disk needs the rest. Each batch wakes a thread,
which competes with the loop for the interpreter lock."""

RECORD_BATCH = 16
"""Facts that are encoded together, in a later turn of the loop. More would live longer and cost the garbage collector
more. Encoding in the journal's thread costs more, since two Python threads have to take turns."""

IN_HAND_MAX = 4
"""Batches that the journal may have pending."""

RECORDS_MAX = 20_000
"""Records kept while the journal refuses writes; beyond it the oldest are dropped, and the log counts them."""

RETRY_SECONDS = 1.0

REJECTED_SECONDS = 1.0
"""Rejected requests within this time are one record."""

NOT_SENT = "The audit log could not be written, so the call was not sent; the hub's log says why"
RESULT_WITHHELD = "The audit log could not be written, so the result of the call is withheld; the hub's log says why"


@dataclass(frozen=True, slots=True)
class AuditSettings:
    """The `[audit]` settings; `config` fills them."""

    keep: float = 90 * DAY_SECONDS
    """How long records are kept, in seconds."""

    def __post_init__(self) -> None:
        if not self.keep >= DAY_SECONDS:
            raise ValueError(f"keep must be a day (1d) or more, not {self.keep:g} s")


class Audit:
    """Collects facts and writes them; events other than calls come through `note`."""

    def __init__(
        self, journal: AuditJournal, encoder: RecordEncoder, mode: Mode, now: Callable[[], float] = time.time
    ) -> None:
        """Needs a running loop."""
        self.mode = mode
        self._journal = journal
        self._encoder = encoder
        self._now = now
        self._loop = asyncio.get_running_loop()
        self._facts: list[Fact] = []
        self._batch = RecordBatch()
        """Encoded records that wait to be written; unlike calls, they hold no arguments."""
        self._timer: asyncio.TimerHandle | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._pending = 0
        self._idle: asyncio.Event = asyncio.Event()
        self.lost = 0
        """Dropped facts that the log does not count yet."""
        self.written = self.dropped = 0
        """All records that the journal has taken, and all that were dropped because it refused them for too long."""
        self._rejected: dict[tuple[str, int], int] = {}
        # A thread of its own: facts wait for it, and other work must not keep it busy.
        self._digests = ThreadPoolExecutor(1, "isthmus-audit")
        self.strict_audit: StrictAuditWriter | None = (
            StrictAuditWriter(self, journal, now) if mode == "strict" else None
        )

    def wrap(self, recorder: Recorder) -> AuditedRecorder:
        """A recorder that forwards to `recorder` and writes to the log."""
        return AuditedRecorder(self, recorder)

    def note(self, event: str, **about: Value) -> None:
        """Record an event other than a call; it must not hold secrets."""
        self.add(AuditEvent(self._now(), event, about))

    def count_rejected(self, frontend: str, status: int) -> None:
        """Count a rejected request; one record covers all within a second."""
        if not self._rejected:
            self._loop.call_later(REJECTED_SECONDS, self.record_rejected)
        self._rejected[frontend, status] = self._rejected.get((frontend, status), 0) + 1

    def record_rejected(self) -> None:
        """Record the rejected requests since the last time."""
        counts, self._rejected = self._rejected, {}
        for (frontend, status), count in counts.items():
            self.note(REFUSED, frontend=frontend, status=status, count=count)

    def add(self, fact: Fact) -> None:
        """Add a fact."""
        if self._timer is None:
            self._timer = self._loop.call_later(BATCH_SECONDS, self._flush_in_turns)
        self._facts.append(fact)
        if len(self._facts) == RECORD_BATCH:
            self._loop.call_soon(self._encode_some)

    @property
    def unwritten(self) -> int:
        """Records that wait to be written."""
        return len(self._facts) + len(self._batch)

    def _encode_some(self) -> Fact | None:
        """Encode facts up to a call with long arguments; return that one."""
        done, long = 0, None
        for fact in self._facts:
            if isinstance(fact, tuple) and len(memoryview(fact[1].arguments)) > LONG_BYTES:
                long = fact
                break
            self._batch.add(*self._encoder.record(fact))
            done += 1
        del self._facts[:done]
        self._drop_excess()
        return long

    def _flush_in_turns(self) -> None:
        """Flush, with the digests of long arguments computed on a thread: that releases the interpreter's lock."""
        long = self._encode_some()
        if long is None:
            self.flush()
        else:
            encoding = self._loop.run_in_executor(self._digests, self._encoder.record, long)
            encoding.add_done_callback(partial(self._encoded, long))

    def _encoded(self, fact: Fact, encoding: asyncio.Future[tuple[float, bytes]]) -> None:
        # Otherwise the log was closed meanwhile, which encodes everything at once.
        if self._facts and self._facts[0] is fact and not encoding.cancelled():
            self._batch.add(*encoding.result())
            del self._facts[0]
            self._flush_in_turns()

    def _drop_excess(self) -> None:
        if (over := len(self._batch) - RECORDS_MAX) > 0:
            self.lost += over
            self.dropped += over
            self._batch.replace_first(over)

    def flush(self) -> None:
        """Write all facts, unless the journal is busy or has just refused a write."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        # Here and not in the journal's thread; see `RECORD_BATCH`.
        facts, self._facts = self._facts, []
        for fact in facts:
            self._batch.add(*self._encoder.record(fact))
        self._drop_excess()
        self._write_encoded()

    def _write_encoded(self) -> None:
        if not self._batch or self._retry is not None or self._pending >= IN_HAND_MAX:
            return
        batch, self._batch = self._batch, RecordBatch(self._batch.head)
        lost, self.lost = self.lost, 0
        if lost:
            first = EncodedRecord(*self._encoder.record(AuditEvent(self._now(), LOST, {"records": lost})))
            batch.replace_first(0, first)
        self._pending += 1
        self._idle.clear()
        self._journal.write((), partial(self._written, batch, lost), batch)

    def _written(self, batch: RecordBatch, lost: int, verdict: WriteResult) -> None:
        self._pending -= 1
        if verdict != "kept":
            self.lost += lost
            if lost:
                batch.replace_first(1)
            batch.extend(self._batch)
            self._batch = batch
            self._drop_excess()
            if self._retry is None:
                log.error("cannot write the audit log; retrying", records=len(self._batch))
                self._retry = self._loop.call_later(RETRY_SECONDS, self._retry_write)
        else:
            self.written += len(batch)
            if not self._pending:
                self._batch.follow(batch.head)  # usually it does; otherwise the writer had to compute all digests anew
            if self._batch and self._timer is None:
                self._write_encoded()
        if not self._pending:
            self._idle.set()

    def _retry_write(self) -> None:
        self._retry = None
        self._write_encoded()

    async def aclose(self, within: float = 5.0) -> None:
        """Write the remaining facts, if possible; nothing is recorded after that."""
        self._cancel_retry()
        self.flush()
        self._digests.shutdown(wait=False)
        if self._pending:
            self._idle.clear()
            try:
                await asyncio.wait_for(self._idle.wait(), within)
            except TimeoutError:
                log.error("cannot write the end of the audit log")
        self._cancel_retry()

    def _cancel_retry(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None


class AuditedRecorder:
    """See `core.ports.Recorder`. On the path of every call."""

    def __init__(self, audit: Audit, recorder: Recorder) -> None:
        self._count = recorder.call_ended
        self.started = recorder.started
        self.waited = recorder.waited
        self.late = recorder.late
        self._add = audit.add
        self._now = time.time
        self.strict_audit: StrictAudit | None = audit.strict_audit

    def call_ended(self, inflight: InFlight, server: ServerName | None, outcome: Outcome, seconds: float) -> None:
        """Count a call and record it, unless the strict witness does."""
        self._count(inflight, server, outcome, seconds)
        if self.strict_audit is None:
            self._add((self._now(), inflight.call, server, outcome, seconds, inflight.was_sent, ""))


class StrictAuditWriter:
    """See `core.ports.StrictAudit`."""

    def __init__(self, audit: Audit, journal: AuditJournal, now: Callable[[], float]) -> None:
        self.waiting = 0
        self._audit = audit
        self._journal = journal
        self._now = now
        self._run = secrets.token_hex(4)
        self._count = 0
        self._begun: dict[InFlight, str] = {}
        """The record ids of calls that may have been sent."""

    def start_fact(self, call: Call, id: str) -> Fact:
        """The fact that is written before a call is sent."""
        return (self._now(), call, None, None, 0.0, False, id)

    def begin(self, inflight: InFlight, send: Callable[[InFlight], None]) -> None:
        """Write the start of a call, then send it; a task writes its start in its own commit."""
        exchange = inflight.exchange
        if isinstance(exchange, AuditedExchange):
            if exchange.audits_start:
                send(inflight)
                return
            id = exchange.audit_id
        else:
            self._count += 1
            self._begun[inflight] = id = f"{self._run}-{self._count}"
        fact: CallFact = (self._now(), inflight.call, inflight.target.feature.server, None, 0.0, False, id)
        self.waiting += 1
        self._journal.write((), partial(self._kept, inflight, send), (fact,))

    def _kept(self, inflight: InFlight, send: Callable[[InFlight], None], verdict: WriteResult) -> None:
        self.waiting -= 1
        if verdict == "kept":
            send(inflight)
        else:
            inflight.finish(NotWritten(NOT_SENT))

    def call_ended(self, inflight: InFlight, server: ServerName | None, outcome: Outcome, seconds: float) -> None:
        """Write the end of a call, then deliver its outcome; a task writes its end in its own commit."""
        id = self._begun.pop(inflight, "")
        was_sent, exchange = inflight.was_sent, inflight.exchange
        if isinstance(exchange, AuditedExchange):
            exchange.note((self._now(), inflight.call, server, outcome, seconds, was_sent, id or exchange.audit_id))
            inflight.deliver(outcome)
            return
        self.waiting += 1
        fact: CallFact = (self._now(), inflight.call, server, outcome, seconds, was_sent, id)
        self._journal.write((), partial(self._sealed, inflight, outcome, fact), (fact,))

    def _sealed(self, inflight: InFlight, outcome: Outcome, fact: CallFact, verdict: WriteResult) -> None:
        self.waiting -= 1
        if verdict == "refused":
            self._audit.add(fact)  # written later: a call that starts in the log also ends there
        if verdict != "kept":
            _, executed = outcome_word(outcome, was_sent=inflight.was_sent)
            outcome = NotWritten(RESULT_WITHHELD if executed != "no" else NOT_SENT, executed=executed)
        inflight.deliver(outcome)
