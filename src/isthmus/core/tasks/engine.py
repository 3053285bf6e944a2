"""Runs tasks: keeps each change before anybody hears of it, and finds all of them again after a crash.

One engine serves every face that has tasks. A task has at most one running call; its caller's going away ends nothing.
Of each task one record is being written at a time. What changes meanwhile is written next, as it stands by then; who
listens hears of each record when it is kept.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeAlias

import msgspec
import structlog
from msgspec import Raw

from isthmus.core.audit.facts import Fact
from isthmus.core.background import BackgroundTasks
from isthmus.core.calls.hub import Hub
from isthmus.core.calls.inflight import InFlight
from isthmus.core.calls.server_queue import ServerQueue
from isthmus.core.ports.journal import Document, Journal, Verdict, size_of
from isthmus.core.tasks.allowance import BEGIN_SHARE, BYTES, Allowance
from isthmus.core.tasks.draft import Draft, Errand, NotKept, Taken, TooMuchSaid
from isthmus.core.tasks.live import Live, contained
from isthmus.core.tasks.pushes import DELIVERY, deliveries_of
from isthmus.core.tasks.quota import Quota
from isthmus.core.tasks.record import (
    TASK,
    Ending,
    Owner,
    Pending,
    Recipient,
    Record,
    document_of,
    ending_of,
    owner_of,
    record_of,
)
from isthmus.core.tasks.rested import Key, Rested
from isthmus.core.tasks.undoing import Undoing, nothing_of
from isthmus.core.tasks.waiting import Waits
from isthmus.model.calls import Call
from isthmus.model.conversation import ABSENT, Message, TaskState
from isthmus.model.faults import Cancelled
from isthmus.model.questions import Reply

log = structlog.get_logger(__name__)

RECOVERED_AT_ONCE = 100
"""Tasks that are read together after a crash; each may have as much to say as an answer may."""

RETRY_SECONDS = 1.0
"""After what the journal refused, how long until it is asked again: what ended is not told before it is kept."""

KEPT_SECONDS = 10.0
"""How long who begins a task, or went on with one, waits for the journal; then it is told how things stood before."""

RECOVERED_SECONDS = 5.0
"""How long the hub stays closed for a journal that does not take how tasks ended."""

LOST = Ending(
    reason="lost",
    message="The hub ended while the call was on its way, and nobody can say how far it came",
    executed="unknown",
)

UNFINISHED: tuple[TaskState, ...] = ("submitted", "working", "input_required", "auth_required")

Now: TypeAlias = Callable[[], float]
OnDue: TypeAlias = Callable[[Sequence[Document]], None]


class Engine:
    """The tasks of one hub."""

    def __init__(
        self,
        hub: Hub,
        journal: Journal,
        now: Now,
        background: BackgroundTasks | None = None,
        keep_bytes: Callable[[Owner], int] = lambda _: BYTES,
    ) -> None:
        """`keep_bytes` says how much is kept of an owner's tasks now.

        Without a `background` of the hub's it has one of its own, which nobody need close: all that it does ends soon.
        """
        self._hub = hub
        self._journal = journal
        self.now = now
        self._loop = asyncio.get_running_loop()
        self._live: dict[Key, Live] = {}
        """Those with a call, or with something that is being written."""
        self._rested = Rested()
        self._undoing = Undoing(journal, self._perhaps_idle)
        """Those that count as none."""
        self.waits = Waits(self, hub)
        """Those whose servers are away."""
        self._left: list[Record] = []
        """Those that the hub before this one left waiting."""
        self._background = background or BackgroundTasks("tasks")
        self.on_due: OnDue = _leave_due
        """Is told what is to be sent as soon as that is kept."""
        self.write_question: Callable[[Record], Message | None] = lambda _: None
        """The open question of a task as a message of its history, where its face has one."""
        self._quota = Quota()
        self.allowance = Allowance(journal, self._background, keep_bytes, self._forget)
        self._idle: asyncio.Event = asyncio.Event()
        self._idle.set()

    # -- beginning -----------------------------------------------------------------------------------------------------

    async def begin(self, draft: Draft) -> Live:
        """Make a task; when this returns it is kept, and its call has started, whether or not anybody still waits.

        Raises:
            NotKept: it could not be written, or is more than may be kept of its caller's tasks, or of what says nothing
                to do; nothing was started.
            Taken: its caller has a task of this id, or what was to be kept with it is there already.
        """
        live = Live(self, self._record(draft))
        live.listeners.update(dict.fromkeys(draft.listeners))
        live.waits_for_login = draft.waits_for_login
        self._check_is_free(live)
        if draft.call is not None:
            self._launch(live, draft.call)
        try:
            document = await self._admitted(live, draft)
        except BaseException:
            self._drop_call(live)
            raise
        self._enter(live)
        self.allowance.count(live)
        live.is_starting = live.is_news = False
        live.is_writing = True
        live.begun = begun = self._loop.create_future()
        live.writing_send = live.send
        due = deliveries_of(live.record)
        self.allowance.count_due(live.record.owner, due)
        documents = (document, *draft.besides, *due)
        facts, live.notes = (*live.notes, *self._foretold(live)), []
        self._journal.write(documents, partial(self._begun, live, live.record, documents), facts)
        verdict = await begun
        if verdict == "kept":
            return live
        raise Taken(live.record.id) if verdict == "conflict" else NotKept

    async def _admitted(self, live: Live, draft: Draft) -> Document:
        """What is to be written first of a task, if it may be begun."""
        self._note_phase(live)
        record, document = live.record, self._document(live)
        await self.allowance.check(record.owner, live.size_bytes, BEGIN_SHARE)
        try:
            await self._undoing.until_done(live.key, KEPT_SECONDS)
        except TimeoutError as error:
            raise NotKept from error
        self._check_is_free(live)
        if draft.call is None and (wait := self._quota.take(record.owner, live.size_bytes, self._loop.time())):
            raise TooMuchSaid(wait)
        self._note_phase(live)
        return document if live.record is record else self._document(live)

    def _check_is_free(self, live: Live) -> None:
        if self._in_mind(live.key) is not None:
            raise Taken(live.record.id)

    def _begun(self, live: Live, record: Record, documents: Sequence[Document], verdict: Verdict) -> None:
        """The first record is kept, or not: let the call be sent, or forget the task."""
        live.is_writing = False
        begun, live.begun = live.begun, None
        if begun is not None and not begun.done():
            # Before the call: on most loops, who waits for this then listens when the tool reports for the first time.
            # On uvloop a quick tool is heard first, and `Live.reports` has what it said.
            begun.set_result(verdict)
        if verdict == "kept":
            self._told(live, record)
            self._pass_on(record, documents)
            self._send_call(live)
            if live.is_stale and not live.is_writing:
                self._write(live)
            if live.wait is None:
                self.go_on(live)
            self._wake(live)
            self._rest(live)
        else:
            self._drop_call(live)
            if verdict == "unknown":
                self._take_back(live.key, documents)
            self.allowance.uncount(live)
            self.allowance.uncount_due(live.record.owner, [each for each in documents if each.kind == DELIVERY])
            self._leave(live)

    def _foretold(self, live: Live) -> tuple[Fact, ...]:
        """What the audit log must know before the call is sent, which is when what is being written is kept."""
        witness = self._hub.witness
        if witness is None or live.writing_send is None or live.call is None:
            return ()
        return (witness.begun(live.call, live.noted_as),)

    def _note_apart(self, live: Live) -> None:
        """Nothing more is kept of a task; what the audit log is to be told of it is, all the same."""
        if live.notes:
            self._journal.write((), _ignore, tuple(live.notes))
            live.notes.clear()

    def _take_back(self, key: Key, documents: Sequence[Document]) -> None:
        """Take away what may be kept of a task; its caller was told that there is none."""
        self._idle.clear()
        self._undoing.add(key, [each for each in documents if each.kind != DELIVERY])
        # Apart from the rest: of what is due somebody may have taken note already, and without its task it is dropped.
        if due := [each for each in documents if each.kind == DELIVERY]:
            self._journal.write(nothing_of(due), _ignore)

    async def until_undone(self, owner: Owner, id: str) -> bool:
        """Wait until nothing is kept of a task that was not begun; False if it is no such. Raises `TimeoutError`."""
        return await self._undoing.until_done((owner.key, id), KEPT_SECONDS)

    def _record(self, draft: Draft) -> Record:
        now = self.now()
        return Record(
            draft.id or secrets.token_hex(16),
            owner_of(draft.caller, draft.realm),
            draft.context,
            draft.origin,
            draft.state,
            now,
            now,
            said=draft.said,
            # Kept before the first byte leaves: after a crash it cannot be told whether it did.
            phase="idle" if draft.call is None and not draft.is_running else "sent",
            ending=draft.ending,
            brief=draft.brief,
            metadata=draft.metadata,
            recipients=draft.recipients,
        )

    # -- sending ---------------------------------------------------------------------------------------------------

    def _launch(self, live: Live, call: Call | Errand) -> None:
        """Have a task's call find its place: a slot, a queue, or an end. Nothing is sent before that is kept."""
        live.is_starting = True
        if not isinstance(call, Call):
            live.call, live.send = None, partial(self._run_errand, live, call)
            return
        if not call.lasts:  # by which a lane knows that it must ask before it sends
            call = msgspec.structs.replace(call, lasts=True)
        live.call = call
        inflight = self._hub.start(call, live)
        if inflight.outcome is None:
            live.inflight = inflight

    def _run_errand(self, live: Live, errand: Errand) -> None:
        underway = errand.start(live)
        if underway.outcome is None:
            live.inflight = underway

    def _note_phase(self, live: Live) -> None:
        """Have the record of a task whose call was launched say whether that may be sent next, or waits."""
        if live.send is not None:
            if live.record.phase != "sent":
                live.record = msgspec.structs.replace(live.record, phase="sent", pending=None)
        elif isinstance(live.inflight, InFlight) and live.record.phase != "waiting":
            pending = self.waits.pending(live, live.inflight)
            live.record = msgspec.structs.replace(live.record, phase="waiting", pending=pending)

    def may_send(self, live: Live, inflight: InFlight, send: Callable[[InFlight], None]) -> bool:
        """Whether a call that has left its queue may be sent now; else `send` is called once that is kept."""
        if live.is_starting:
            live.send = partial(send, inflight)
            return False
        if live.record.phase != "waiting":
            return True
        live.send = partial(send, inflight)
        self.change(live, state="working", phase="sent", pending=None)
        return False

    def _send_call(self, live: Live) -> None:
        """Send a call if what is kept now says that it may have been sent: an earlier change does not."""
        send, live.writing_send = live.writing_send, None
        if send is None or send is not live.send:
            return
        live.send = None
        if live.record.is_ended:
            return
        send()
        if live.inflight is not None and live.record.state == "submitted":
            # Not written: what is kept as sent counts as being worked on.
            live.record = msgspec.structs.replace(live.record, state="working")
            self._told(live, live.record)

    def _drop_call(self, live: Live) -> None:
        """Do not send the call of a task that was not sent; nobody is told."""
        live.send = live.writing_send = None
        self.waits.stop(live)
        inflight, live.inflight = live.inflight, None
        if isinstance(inflight, InFlight):
            inflight.abandon()

    # -- waiting for a server ------------------------------------------------------------------------------------------

    def go_on(self, live: Live, server_queue: ServerQueue | None = None) -> None:
        """Start the call of a task that waits for its server, or wait on.

        `server_queue` is that of its server by now, if that has news.
        """
        pending = live.record.pending
        if live.record.phase != "waiting" or pending is None or live.inflight is not None:
            return
        self.waits.stop(live)
        if live.is_starting:  # once that is kept
            return
        if server_queue is not None and server_queue.server != pending.server:
            self._keep_waiting(live, self.waits.rename(live, pending, server_queue.server))
        found = self.waits.look(live)
        if isinstance(found, Call):
            inflight = self._hub.start(found, live)
            if inflight.outcome is None:
                live.inflight = inflight
        elif found is not None:
            live.end(found)

    def put_back(self, live: Live, inflight: InFlight) -> bool:
        """Have a task wait whose call could not be sent after all; False if it was not started here."""
        if (pending := self.waits.put_back(live, inflight)) is None:
            return False
        live.inflight = live.send = None
        self._keep_waiting(live, pending)
        return True

    def _keep_waiting(self, live: Live, pending: Pending) -> None:
        """Keep it that a task waits so, which is no news to anybody."""
        if live.record.phase == "waiting" and live.record.pending == pending:
            return
        live.record = msgspec.structs.replace(live.record, phase="waiting", pending=pending)
        if not live.is_starting:
            self._save(live)

    def resume(self) -> None:
        """Go on with what the hub before this one left waiting.

        To be asked once servers are known that were known then.
        """
        left, self._left = self._left, []
        for record in left:
            assert record.pending is not None, "only these are left"
            live = Live(self, record, is_kept=True)
            live.call, live.since = record.pending.call, record.pending.since
            live.waits_for_login = record.pending.waits_for_login
            live.is_left = True
            self._enter(live)
            self.go_on(live)

    def leave_waiting(self) -> None:
        """Leave what waits for a server that is away to the hub that comes next."""
        self._leave_to_next([live for live in self._waiting() if live.inflight is None])

    def leave_unsent(self) -> None:
        """Leave all that was not sent to the hub that comes next, also what waits in a queue."""
        waiting = self._waiting()
        for live in waiting:
            self._drop_call(live)
        self._leave_to_next(waiting)

    def _waiting(self) -> list[Live]:
        return [live for live in self._live.values() if live.record.phase == "waiting"]

    def _leave_to_next(self, waiting: Sequence[Live]) -> None:
        self.waits.leave(waiting)
        for live in waiting:
            self._rest(live)

    # -- going on ------------------------------------------------------------------------------------------------------

    def change(self, live: Live, **changes: object) -> None:
        """Replace a task's record and tell who listens once that is kept; an ended task does not change."""
        if live.record.is_ended or self._is_another(live):
            self._note_apart(live)
            return
        live.is_news = True
        if live.record.asked is not None and "asked" in changes:
            changes["said"] = self._with_question(live.record, changes.get("said", live.record.said))
        live.record = msgspec.structs.replace(live.record, updated=self.now(), **changes)
        if not live.is_starting:
            self._save(live)

    def _with_question(self, record: Record, said: object) -> object:
        """What was said, and before what is said now the question that is not open any more."""
        question = self.write_question(record)
        if question is None or not isinstance(said, tuple):
            return said
        return (*record.said, question, *said[len(record.said) :])

    def address(self, live: Live, recipients: tuple[Recipient, ...]) -> None:
        """Have changes of a task told to these from now on; nobody hears of that, and an ended task allows it."""
        if self._is_another(live):
            return
        live.record = msgspec.structs.replace(live.record, recipients=recipients)
        self._save(live)

    def _is_another(self, live: Live) -> bool:
        """Whether the task was forgotten since this one was found, and called back as another, which counts now."""
        counts = self._in_mind(live.key)
        if counts is None or counts is live:
            return False
        log.error("a task is to be changed that was called back as another", task=live.record.id)
        return True

    def _save(self, live: Live) -> None:
        if live.is_writing:
            live.is_stale = True
        else:
            self._enter(live)
            self._write(live)

    def _write(self, live: Live) -> None:
        live.is_writing = True
        live.is_stale = False
        live.writing_send = live.send
        is_news, live.is_news = live.is_news, False
        live.record = msgspec.structs.replace(live.record, version=live.record.version + 1)
        due = deliveries_of(live.record) if is_news else ()
        self.allowance.count_due(live.record.owner, due)
        written = partial(self._written, live, live.record, due, is_news=is_news)
        live.noting, live.notes = live.notes, []
        facts = (*live.noting, *self._foretold(live))
        document = self._document(live)
        self.allowance.count(live)
        self._journal.write((document, *due), written, facts)

    def _document(self, live: Live) -> Document:
        document = document_of(live.record)
        live.size_bytes = len(document.body or b"")
        return document

    def _written(self, live: Live, record: Record, due: Sequence[Document], verdict: Verdict, *, is_news: bool) -> None:
        live.is_writing = False
        live.is_news |= is_news and verdict != "kept"
        if verdict != "kept":
            live.notes[:0] = live.noting
            self.allowance.uncount_due(record.owner, due)
        live.noting = []
        if verdict in ("refused", "unknown"):
            self._try_again(live, record, verdict)
        elif verdict == "conflict" and live.is_unsure:
            # What nobody knew of was kept after all, and has this version.
            live.is_unsure = False
            self._write(live)
        elif verdict == "conflict":
            self._look(live, record)
        else:
            live.is_unsure = False
            if is_news:
                self._told(live, record)
                self._pass_on(record, due)
            else:
                live.kept = record
            self._send_call(live)
            if live.is_stale and not live.is_writing:
                self._write(live)
            self._wake(live)
            self._rest(live)

    def _look(self, live: Live, record: Record) -> None:
        """See what the journal has in the place of what was kept; what changes meanwhile is written after that."""
        live.is_writing = True
        self._background.spawn(f"look at task {record.id}", self._settle(live, record))

    async def _settle(self, live: Live, record: Record) -> None:
        try:
            document = await self._journal.read(TASK, *live.key)
        except OSError:
            self._try_again(live, record, "refused")
            return
        there = None if document is None else _readable(document)
        if document is None or there is None:
            self._give_up(live, record)
        elif document.version < record.version:
            log.warning("the journal lost changes of a task; it is written again", task=record.id)
            self._try_again(live, msgspec.structs.replace(record, version=document.version + 1), "refused")
        else:
            self._give_way(live, msgspec.structs.replace(there, version=document.version))

    def _give_up(self, live: Live, record: Record) -> None:
        """The journal has nothing of it any more."""
        log.error("somebody else took a task away", task=record.id)
        live.is_writing = False
        self._drop_unsent(live)
        live.record = msgspec.structs.replace(record, state="failed", phase="over", ending=LOST, asked=None)
        self._note_apart(live)
        self.allowance.uncount(live)
        self._leave(live)
        _tell(live, live.record)
        self._wake(live)

    def _give_way(self, live: Live, there: Record) -> None:
        """Somebody else changed it, which nobody should: that counts from now on."""
        log.error("somebody else changed a task", task=there.id)
        live.is_writing = live.is_stale = live.is_news = False
        self._drop_unsent(live)
        ours, live.record = live.record, there
        self._told(live, there)
        self._note_apart(live)
        if there.phase in ("sent", "waiting") and live.inflight is None:
            # Nobody else will end it: its call was ours, or is lost.
            state, ending = (ours.state, ours.ending) if ours.is_ended else ("failed", LOST)
            self.change(live, state=state, phase="over", ending=ending, asked=None, besides=())
        self._wake(live)
        self._rest(live)

    def _drop_unsent(self, live: Live) -> None:
        """Drop the call of a task if it was not sent."""
        if live.record.phase == "waiting" or live.send is not None:
            self._drop_call(live)

    def _wake(self, live: Live) -> None:
        if not live.is_writing:
            wakes, live.wakes = live.wakes, []
            for wake in wakes:
                wake.set_result(None)

    async def until_kept(self, live: Live) -> None:
        """Wait until all that changed of a task is kept, for as long as anybody would."""
        if live.is_writing:
            wake: asyncio.Future[None] = self._loop.create_future()
            live.wakes.append(wake)
            await asyncio.wait({wake}, timeout=KEPT_SECONDS)

    def _try_again(self, live: Live, record: Record, verdict: Verdict) -> None:
        live.is_writing = True  # whatever changes meanwhile is written with it
        live.is_unsure |= verdict == "unknown"
        live.record = msgspec.structs.replace(live.record, version=record.version - 1)
        self._loop.call_later(RETRY_SECONDS, self._write, live)

    def _told(self, live: Live, record: Record) -> None:
        live.kept = record
        _tell(live, record)
        if record.is_ended:
            live.reports.forget()

    def _pass_on(self, record: Record, documents: Sequence[Document]) -> None:
        if record.recipients:
            self.on_due([document for document in documents if document.kind == DELIVERY])

    def answer_besides(self, live: Live, number: int, reply: Reply) -> bool:
        """Give the server an answer to one of its questions, whichever it is; False if it does not ask that."""
        asked = live.record.asked
        if asked is not None and asked.number == number:
            return self.answer(live, None, reply)
        on_reply = live.take(number)
        if on_reply is not None:
            on_reply(reply)
        return on_reply is not None

    def answer(self, live: Live, said: Message | None, reply: Reply) -> bool:
        """Give the server what its caller answered, and keep what was `said`; False if nothing is waited for."""
        on_reply, live.reply = live.reply, None
        if on_reply is None:
            return False
        live.reports.begin_turn()
        spoken = live.record.said if said is None else (*live.record.said, said)
        self.change(live, state="working", asked=None, said=spoken)
        on_reply(reply)
        if live.reply is None:
            live.ask_next()
        return True

    def carry_on(self, live: Live, said: Message, call: Call | Errand, brief: Raw = ABSENT) -> None:
        """Start the call of a task that had none so far, as soon as that is kept."""
        if self._is_another(live):
            return
        record = live.record
        live.reports.begin_turn()
        live.since = self.now()
        live.is_starting = True
        spoken, meant = (*record.said, said), brief or record.brief
        self.change(live, state="submitted", phase="sent", asked=None, said=spoken, brief=meant, pending=None)
        self._launch(live, call)
        self._note_phase(live)
        live.is_starting = False
        if live.send is not None:
            live.record = msgspec.structs.replace(live.record, state="working")
        self._save(live)

    def reopen(self, live: Live) -> None:
        """Have a task that has ended wait for a message again, which must be given at once: it is kept with that."""
        live.record = msgspec.structs.replace(live.record, state="input_required", phase="idle", ending=None)

    def hand_over(self, live: Live, inflight: InFlight) -> None:
        """Let a task that `is_running` have its call, which has not ended."""
        live.inflight = inflight
        inflight.exchange = live

    def discard(self, live: Live) -> None:
        """Take a task away, with all that is kept of it, of which nobody is told any more."""
        self._take_back(live.key, (self._document(live),))
        self.allowance.uncount(live)
        self._leave(live)
        self._rested.take(live.key)

    def cancel(self, live: Live, why: str) -> bool:
        """Give a task up; False if it has ended already."""
        if live.record.is_ended:
            return False
        live.record = msgspec.structs.replace(live.record, is_withdrawn=True)
        if live.inflight is not None:
            live.inflight.cancel(why)
        else:
            was_to_call = live.record.phase in ("waiting", "sent")
            ending = ending_of(Cancelled(why, executed="no")) if was_to_call else None
            live.send = live.call = None
            self.waits.stop(live)
            self.change(live, state="canceled", phase="over", asked=None, pending=None, ending=ending)
        return True

    # -- finding -------------------------------------------------------------------------------------------------------

    async def find(self, owner: Owner, id: str) -> Live | None:
        """One of an owner's tasks, as soon as it is kept; None if it has none of this id."""
        key = (owner.key, id)
        live = self._in_mind(key)
        if live is None:
            document = await self._read(key)
            # Somebody else may have looked for it at the same time: both are to have the same one.
            live = self._in_mind(key)
            if live is None and document is not None:
                live = self._called_back(document)
        if live is not None and live.begun is not None:
            await asyncio.wait({live.begun})
        return live if live is not None and live.kept is not None else None

    def is_undoing(self, owner: Owner, id: str) -> bool:
        """Whether a task could not be begun for certain, and what may be kept of it is being deleted."""
        return (owner.key, id) in self._undoing

    def is_in_mind(self, owner: Owner, id: str) -> bool:
        """Whether a task can be found without the journal."""
        return self._in_mind((owner.key, id)) is not None

    async def _read(self, key: Key) -> Document | None:
        """What the journal has of a task, unless that is being taken away."""
        document = None if key in self._undoing else await self._journal.read(TASK, *key)
        return None if key in self._undoing else document

    def _in_mind(self, key: Key) -> Live | None:
        return self._live.get(key) or self._rested.get(key)

    def _called_back(self, document: Document) -> Live:
        live = Live(self, record_of(document), is_kept=True)
        live.size_bytes = len(document.body or b"")
        live.counted_bytes, live.is_counted_open = size_of(document), not live.record.is_ended
        self._rested.keep(live.key, live)
        return live

    def newest(self, document: Document) -> Record | None:
        """What is known of a task that was read from the journal: as it stands by now, or None if it counts as none."""
        key = (document.owner, document.id)
        if key in self._undoing:
            return None
        live = self._live.get(key)
        return live.kept if live is not None and live.kept is not None else record_of(document)

    # -- what is under way, and what rests -----------------------------------------------------------------------------

    def _enter(self, live: Live) -> None:
        self._rested.take(live.key)
        self._live[live.key] = live
        self._idle.clear()

    def _rest(self, live: Live) -> None:
        """Let a task rest, unless it has a call or something is being written."""
        is_waiting = live.record.phase == "waiting" and (live.inflight is not None or not self.waits.are_left)
        if not live.is_writing and live.record.phase != "sent" and not is_waiting:
            self._leave(live)
            self._rested.keep(live.key, live)

    def _leave(self, live: Live) -> None:
        if self._live.get(live.key) is live:
            del self._live[live.key]
        self._perhaps_idle()

    def _perhaps_idle(self) -> None:
        if not self._live and not self._undoing:
            self._idle.set()

    async def until_idle(self) -> None:
        """Wait until no task has a call, all that happened is kept, and nothing is that did not."""
        await self._idle.wait()

    def give_up_waiting(self, why: str) -> None:
        """Withdraw the calls that wait for an answer of their callers, who can give none any more."""
        for live in list(self._live.values()):
            if live.reply is not None and live.inflight is not None:
                live.inflight.cancel(why)

    def forget_before(self, ended: float, waiting: float) -> None:
        """Have nothing in mind that ended, or has waited for its caller, since before: the journal let it go."""
        self._rested.drop(lambda record: record.updated < (ended if record.is_ended else waiting))

    def _forget(self, owner: Owner, ids: Iterable[str]) -> None:
        """Have none of these in mind, which the journal let go."""
        for id in ids:
            self._rested.take((owner.key, id))

    # -- after a crash -------------------------------------------------------------------------------------------------

    async def recover(self) -> list[Record]:
        """End what was on its way when the hub ended, before anybody is let in; return these tasks as they stood.

        What had not been sent waits until `resume`.
        """
        lost: list[Record] = []
        last: Document | None = None
        latest = self._loop.time() + RECOVERED_SECONDS
        while found := await self._journal.all_in(TASK, UNFINISHED, limit=RECOVERED_AT_ONCE, after=last):
            last = found[-1]
            read = [record for document in found if (record := _readable(document)) is not None]
            sent = [record for record in read if record.phase == "sent"]
            self._end_lost(sent)
            lost += sent
            self._left += [record for record in read if record.phase == "waiting" and record.pending is not None]
            # They are tried again for as long as it takes, but nobody is kept waiting for that.
            with suppress(TimeoutError):
                await asyncio.wait_for(self.until_idle(), latest - self._loop.time())
        return lost

    def _end_lost(self, records: Sequence[Record]) -> None:
        for record in records:
            self.change(Live(self, record, is_kept=True), state="failed", phase="over", ending=LOST, asked=None)


def _readable(document: Document) -> Record | None:
    try:
        return record_of(document)
    except msgspec.MsgspecError as error:  # one that another version wrote must not keep the hub from starting
        log.error("a task cannot be read", task=document.id, error=str(error))
        return None


def _leave_due(_: Sequence[Document]) -> None:
    """Nobody sends anything here; it stays due."""


def _ignore(_: Verdict) -> None:
    """Whether it was there or not, it is not there now."""


def _tell(live: Live, record: Record) -> None:
    for listener in list(live.listeners):
        contained(partial(listener.moved, record))
