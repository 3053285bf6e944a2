"""The audit log's ears: every call and event as a fact, handed to the journal.

`batched` gathers facts and hands them over every 75 ms, so that a call costs an entry in a list. `strict` writes that a
call begins before it is sent and how it ended before its caller hears of it, and lets neither happen unwritten. Made
by `app.audit`; the hub reaches it as its recorder.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from functools import partial
from typing import Literal, TypeAlias

import structlog

from isthmus.core.audit.facts import LOST, REFUSED, Ended, Fact, Happening, Scribe, Value, Written, said_of
from isthmus.core.calls.inflight import InFlight
from isthmus.core.pauses import LONG_BYTES, in_turn
from isthmus.core.ports.journal import Verdict
from isthmus.core.ports.ledger import Ledger
from isthmus.core.ports.recorder import Noting, Recorder, Witness
from isthmus.model.calls import Call
from isthmus.model.faults import NotWritten
from isthmus.model.names import ServerName
from isthmus.model.outcomes import Outcome

log = structlog.get_logger(__name__)

Mode: TypeAlias = Literal["batched", "strict"]

GATHER_SECONDS = 0.075
"""How long facts are gathered, of the tenth of a second that a record may be late: each time wakes a thread, which
waits for the interpreter's lock and is in the way of the loop meanwhile. The rest is the disk's."""

PORTION = 16
"""Facts that are made records together, in a later turn of the loop. More would be held, and looked at by the
collector, for longer; in the journal's thread it costs more, since two threads that both run Python have to take
turns."""

IN_HAND_MAX = 4
"""How often the journal is handed records before it has written the first of them."""

RECORDS_MAX = 20_000
"""Records that wait for a journal that refuses them; of more the oldest are given up, and counted in the log."""

RETRY_SECONDS = 1.0

STRANGERS_SECONDS = 1.0
"""Those who were not let in are one record for so long, however many they are."""

NOT_SENT = "The audit log could not be written, so the call was not sent; the hub's log says why"
NOT_TOLD = "The audit log could not be written, so how the call ended is not told; the hub's log says why"


class Audit:
    """Gathers facts and has them written; events come through `note`."""

    def __init__(self, ledger: Ledger, scribe: Scribe, mode: Mode, now: Callable[[], float] = time.time) -> None:
        """Needs a running loop."""
        self.mode = mode
        self._ledger = ledger
        self._scribe = scribe
        self._now = now
        self._loop = asyncio.get_running_loop()
        self._gathered: list[Fact] = []
        self._records: list[Written] = []
        """What is to be handed over next; a call may hold megabytes of arguments, of which these hold none."""
        self._timer: asyncio.TimerHandle | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._in_hand = 0
        self._idle: asyncio.Event = asyncio.Event()
        self.lost = 0
        """Facts that could not be kept, and of which the log does not tell yet."""
        self._strangers: dict[tuple[str, int], int] = {}
        self.witness: StrictWitness | None = StrictWitness(self, ledger, now) if mode == "strict" else None

    def over(self, recorder: Recorder) -> AuditedRecorder:
        """A recorder that does what this one does, and hears for the log."""
        return AuditedRecorder(self, recorder)

    def note(self, event: str, **about: Value) -> None:
        """Something happened that is not a call; no secret belongs into it."""
        self.add(Happening(self._now(), event, about))

    def turned_away(self, face: str, status: int) -> None:
        """Somebody was not let in: one record tells of all within a second."""
        if not self._strangers:
            self._loop.call_later(STRANGERS_SECONDS, self.tell_of_strangers)
        self._strangers[face, status] = self._strangers.get((face, status), 0) + 1

    def tell_of_strangers(self) -> None:
        """Tell of those who came since the last time."""
        counts, self._strangers = self._strangers, {}
        for (face, status), count in counts.items():
            self.note(REFUSED, face=face, status=status, count=count)

    def add(self, fact: Fact) -> None:
        """Gather a fact."""
        if self._timer is None:
            self._timer = self._loop.call_later(GATHER_SECONDS, self._flush_in_turns)
        self._gathered.append(fact)
        if len(self._gathered) == PORTION:
            self._loop.call_soon(self._write_some)

    def _write_out(self) -> None:
        """Make records of what was gathered, here and not where they are kept: see `PORTION`."""
        gathered, self._gathered = self._gathered, []
        self._records += [Written(*self._scribe.record(fact)) for fact in gathered]
        self._bound()

    def _write_some(self) -> bool:
        """Make records up to a call whose arguments take long to digest; False if that was not all."""
        done = 0
        for fact in self._gathered:
            self._records.append(Written(*self._scribe.record(fact)))
            done += 1
            if isinstance(fact, tuple) and len(memoryview(fact[1].arguments)) > LONG_BYTES:
                break
        del self._gathered[:done]
        self._bound()
        return not self._gathered

    def _flush_in_turns(self) -> None:
        """Hand over what there is, with long arguments in turns of the event loop of their own."""
        if self._write_some():
            self.flush()
        else:
            in_turn(self._flush_in_turns)

    def _bound(self) -> None:
        if (over := len(self._records) - RECORDS_MAX) > 0:
            self.lost += over
            del self._records[:over]

    def flush(self) -> None:
        """Hand over what there is, unless the journal is busy with enough of it, or has just refused it."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._write_out()
        if self._records and self._retry is None and self._in_hand < IN_HAND_MAX:
            self._write()

    def _write(self) -> None:
        records, self._records = self._records, []
        told, self.lost = self.lost, 0
        if told:
            first = Written(*self._scribe.record(Happening(self._now(), LOST, {"records": told})))
            records.insert(0, first)
        self._in_hand += 1
        self._idle.clear()
        self._ledger.write((), partial(self._written, records, told), records)

    def _written(self, records: list[Written], told: int, verdict: Verdict) -> None:
        self._in_hand -= 1
        if verdict != "kept":
            self.lost += told
            self._records[:0] = records[1:] if told else records
            self._bound()
            if self._retry is None:
                log.error("the audit log cannot be written; it is tried again", records=len(self._records))
                self._retry = self._loop.call_later(RETRY_SECONDS, self._try_again)
        elif self._records and self._timer is None:
            self.flush()
        if not self._in_hand:
            self._idle.set()

    def _try_again(self) -> None:
        self._retry = None
        self.flush()

    async def aclose(self, within: float = 5.0) -> None:
        """Write what is left, as far as that goes; nothing is told any more."""
        self._stop_waiting()
        self.flush()
        if self._in_hand:
            self._idle.clear()
            try:
                await asyncio.wait_for(self._idle.wait(), within)
            except TimeoutError:
                log.error("the end of the audit log could not be written")
        self._stop_waiting()

    def _stop_waiting(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None


class AuditedRecorder:
    """See `core.ports.recorder.Recorder`. On the path of every call."""

    def __init__(self, audit: Audit, recorder: Recorder) -> None:
        self._count = recorder.ended
        self.late = recorder.late
        self._add = audit.add
        self._now = time.time
        self.witness: Witness | None = audit.witness

    def ended(
        self, call: Call, server: ServerName | None, outcome: Outcome, seconds: float, link: object = None
    ) -> None:
        """Count a call, and have it written some time soon unless the witness does."""
        self._count(call, server, outcome, seconds)
        if self.witness is None:
            self._add((self._now(), call, server, outcome, seconds, link is not None, ""))


class StrictWitness:
    """See `core.ports.recorder.Witness`."""

    def __init__(self, audit: Audit, ledger: Ledger, now: Callable[[], float]) -> None:
        self.waiting = 0
        self._audit = audit
        self._ledger = ledger
        self._now = now
        self._run = secrets.token_hex(4)
        self._count = 0
        self._begun: dict[InFlight, str] = {}
        """What the records of calls are known by that may have been sent."""

    def begun(self, call: Call, id: str) -> Fact:
        """What is written before a call is sent."""
        return (self._now(), call, None, None, 0.0, False, id)

    def begin(self, inflight: InFlight, send: Callable[[InFlight], None]) -> None:
        """Write that it begins, and send it once that is kept; a task does so in its own commit, when it is sent."""
        exchange = inflight.exchange
        if isinstance(exchange, Noting):
            if exchange.notes_begin:
                send(inflight)
                return
            id = exchange.noted_as
        else:
            self._count += 1
            self._begun[inflight] = id = f"{self._run}-{self._count}"
        fact: Ended = (self._now(), inflight.call, inflight.target.feature.server, None, 0.0, False, id)
        self.waiting += 1
        self._ledger.write((), partial(self._kept, inflight, send), (fact,))

    def _kept(self, inflight: InFlight, send: Callable[[InFlight], None], verdict: Verdict) -> None:
        self.waiting -= 1
        if verdict == "kept":
            send(inflight)
        else:
            inflight.finish(NotWritten(NOT_SENT))

    def ended(self, inflight: InFlight, server: ServerName | None, outcome: Outcome, seconds: float) -> None:
        """Write how it ended, and tell it once that is kept; a task does so in its own commit."""
        id = self._begun.pop(inflight, "")
        was_sent, exchange = inflight.link is not None, inflight.exchange
        if isinstance(exchange, Noting):
            exchange.note((self._now(), inflight.call, server, outcome, seconds, was_sent, id or exchange.noted_as))
            inflight.tell(outcome)
            return
        self.waiting += 1
        fact: Ended = (self._now(), inflight.call, server, outcome, seconds, was_sent, id)
        self._ledger.write((), partial(self._sealed, inflight, outcome, fact), (fact,))

    def _sealed(self, inflight: InFlight, outcome: Outcome, fact: Ended, verdict: Verdict) -> None:
        self.waiting -= 1
        if verdict == "refused":
            self._audit.add(fact)  # once it can be written: what has begun in the log ends there
        if verdict != "kept":
            _, executed = said_of(outcome, was_sent=inflight.link is not None)
            outcome = NotWritten(NOT_TOLD if executed != "no" else NOT_SENT, executed=executed)
        inflight.tell(outcome)
