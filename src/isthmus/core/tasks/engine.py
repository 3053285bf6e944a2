"""Runs tasks: stores each change before anyone sees it, and recovers all tasks after a crash.

One engine serves every frontend that has tasks. A task has at most one running call, and its caller's disconnecting
ends nothing. The life of a task's record:

    start ──write──▶ stored ──change──▶ writing ──kept──────────────────────▶ stored, listeners notified, call sent
                                           │ refused, unknown ─ after a second ─▶ written again
                                           │ conflict: the journal is read, and its record or ours wins

One record of a task is written at a time. What changes meanwhile is written next, as it is by then. A call's phase goes
`waiting` → `sent` → `over`; that it is `sent` is stored before the call is sent, so that after a crash an unsent call
can still be sent and a sent one is never repeated.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeAlias

import msgspec
import structlog
from msgspec import Raw

from isthmus.core.audit import Fact
from isthmus.core.background import BackgroundTasks
from isthmus.core.calls.hub import Hub
from isthmus.core.calls.running_call import InFlight
from isthmus.core.calls.server_queue import ServerQueue
from isthmus.core.journal import Document, Journal, PeerTasks, SharedJournal, WriteResult
from isthmus.core.tasks.live_task import (
    RETRY_SECONDS,
    LiveTask,
    NewTask,
    Report,
    ResumableWork,
    ShutdownListener,
    TaskExists,
    TaskNotStored,
    TaskStore,
    TaskWork,
    decode_or_log,
    tombstone,
)
from isthmus.core.tasks.offline_tasks import OfflineQueue
from isthmus.core.tasks.push_delivery import DELIVERY, deliveries_of
from isthmus.core.tasks.record import (
    TASK,
    PendingCall,
    PushRecipient,
    StoredOutcome,
    StoredQuestion,
    TaskOwner,
    TaskRecord,
    document_of,
    is_approval,
    is_login,
    login_question,
    outcome_bytes,
    state_after,
    stored_outcome,
)
from isthmus.core.tasks.storage_limits import BEGIN_SHARE, StorageQuota
from isthmus.model.calls import Call, Declined, Event, OnReply, Outcome, Question, Reply, Result
from isthmus.model.fault_table import Cancelled, Fault, TaskElsewhere
from isthmus.model.tasks import ABSENT, ENDED, Message, TaskState

log = structlog.get_logger(__name__)

RECOVERED_AT_ONCE = 100
"""Tasks that are read together after a crash; each may be as large as a response may be."""

STORE_SECONDS = 10.0
"""How long a caller waits for the journal; then it gets the last stored state."""

RECOVERED_SECONDS = 5.0
"""How long the start of the hub waits for a journal that does not accept the ends of lost tasks."""

QUESTIONS_BYTES_MAX = 4 * 1024 * 1024
"""All open questions of a task together: they are stored, and part of every status."""

TOO_LARGE = Declined(-32603, "The question is too large to be stored until the caller answers")

LOST = StoredOutcome(
    reason="lost",
    message="The hub stopped while the call was running, and it is unknown how far it got",
    executed="unknown",
)

FOLLOW_SECONDS = 0.5
"""How often the journal is read for tasks of other nodes that a caller follows here."""

TAKEN_OVER = "the hub could not renew its lease, and another one has taken over its tasks"

UNFINISHED: tuple[TaskState, ...] = ("submitted", "working", "input_required", "auth_required")

Now: TypeAlias = Callable[[], float]
OnDue: TypeAlias = Callable[[Sequence[Document]], None]


class TaskEngine:
    """The tasks of one hub."""

    def __init__(
        self,
        hub: Hub,
        journal: Journal,
        now: Now,
        background: BackgroundTasks | None = None,
    ) -> None:
        """Without the hub's `background` it creates its own, which need not be closed: its tasks end soon."""
        self._hub = hub
        self._journal = journal
        self.now = now
        self._loop = asyncio.get_running_loop()
        self._background = background or BackgroundTasks("tasks")
        self._store = TaskStore(journal)
        self._store.on_news = lambda live: self._notify_stored(live, live.record)
        self.offline_queue = OfflineQueue(hub, now, self.resume_call)
        self._left: list[TaskRecord] = []
        """Tasks of the previous hub that were not sent, or whose work continues."""
        self.work_of: Callable[[TaskRecord], TaskWork | None] = lambda _: None
        """The work of a task that continues after a restart; None if this hub cannot do it."""
        self.on_due: OnDue = lambda _: None
        """Receives deliveries as soon as they are stored; without it they stay due."""
        self.write_question: Callable[[TaskRecord], Message | None] = lambda _: None
        """The open question of a task as a message of its history, if its frontend has such messages."""
        self.on_changed: Callable[[LiveTask], None] | None = None
        """Called when the stored record of a task has changed, or its call has reported something."""
        self.storage_quota = StorageQuota(journal, self._background, self._store.uncache)
        self.peers: PeerTasks | None = None
        """The other nodes of a cluster, if they can be reached."""
        if isinstance(journal, SharedJournal):
            journal.on_lost = self.give_up_all
            self._background.spawn("tasks of other nodes", self._follow_shown())

    # -- starting a task -----------------------------------------------------------------------------------------------

    async def begin(self, draft: NewTask) -> LiveTask:
        """Start a task. When this returns, it is stored and its call is started, even if the caller has disconnected.

        Raises:
            TaskNotStored: it could not be written, or the caller's storage quota is exhausted; nothing was started.
            TaskExists: the caller has a task with this id, or a document to be stored with it exists.
        """
        now = self.now()
        record = TaskRecord(
            draft.id or secrets.token_hex(16),
            TaskOwner(draft.caller.tenant, draft.caller.name, draft.realm),
            draft.context,
            draft.origin,
            draft.state,
            now,
            now,
            said=draft.said,
            # Stored before the first byte is sent: after a crash that is unknown.
            phase="idle" if draft.call is None and not draft.is_running else "sent",
            ending=draft.ending,
            brief=draft.brief,
            metadata=draft.metadata,
            recipients=draft.recipients,
            resumes=hasattr(draft.call, "first_documents"),
        )
        live = LiveTask(record)
        if draft.listeners:
            live.listeners.update(dict.fromkeys(draft.listeners))
        live.waits_for_login = draft.waits_for_login
        if self._store.get(live.key) is not None:
            raise TaskExists(record.id)
        if draft.call is not None:
            self._launch(live, draft.call)
        try:
            document = await self._admit(live)
        except BaseException:
            self._drop_call(live)
            raise
        self._store.set_running(live)
        self.storage_quota.count(live)
        live.is_starting = live.is_news = False
        live.is_writing = True
        live.begun = begun = self._loop.create_future()
        live.writing_send = live.send
        due: tuple[Document, ...] = ()
        if live.record.recipients:
            due = deliveries_of(live.record)
            self.storage_quota.count_due(live.record.owner, due)
        documents = (document, *draft.besides, *due)
        if record.resumes and isinstance(draft.call, ResumableWork):
            documents = (*documents, *draft.call.first_documents(*live.key))
        facts, live.notes = (*live.notes, *self._start_facts(live)), []
        self._journal.write(documents, partial(self._on_begun, live, live.record, documents), facts)
        result = await begun
        if result == "kept":
            return live
        raise TaskExists(live.record.id) if result == "conflict" else TaskNotStored

    async def _admit(self, live: LiveTask) -> Document:
        """The first document of a task, if it may be started."""
        self._update_phase(live)
        record, document = live.record, self._document(live)
        await self.storage_quota.check(record.owner, live.size_bytes, BEGIN_SHARE)
        if live.key in self._store.deletes:
            try:
                await self._store.deletes.wait_deleted(live.key, STORE_SECONDS)
            except TimeoutError as error:
                raise TaskNotStored from error
        if self._store.get(live.key) is not None:  # begun by a concurrent request meanwhile
            raise TaskExists(record.id)
        self._update_phase(live)
        return document if live.record is record else self._document(live)

    def _on_begun(self, live: LiveTask, record: TaskRecord, documents: Sequence[Document], result: WriteResult) -> None:
        """The first record was written, or not: send the call, or drop the task."""
        live.is_writing = False
        begun, live.begun = live.begun, None
        if begun is not None and not begun.done():
            # Before the call: on most loops the caller then listens when the tool sends its first report. On uvloop a
            # quick tool comes first, and `LiveTask.reports` has what it sent.
            begun.set_result(result)
        if result == "kept":
            self._notify_stored(live, record)
            if record.recipients:
                self._pass_on(documents)
            self._send_call(live)
            if live.is_stale and not live.is_writing:
                self._write(live)
            if live.record.phase == "waiting" and live not in self.offline_queue:
                self.resume_call(live)
            if live.wakes:
                self._wake(live)
            self._rest(live)
        else:
            self._drop_call(live)
            if result == "unknown":
                self._delete(live.key, documents)
            self.storage_quota.uncount(live)
            self.storage_quota.uncount_due(live.record.owner, [each for each in documents if each.kind == DELIVERY])
            self._store.remove(live)

    def _start_facts(self, live: LiveTask) -> tuple[Fact, ...]:
        """The audit fact that the call starts, if the record being written stands for sending it."""
        if live.writing_send is None or live.call is None or (strict_audit := self._hub.strict_audit) is None:
            return ()
        return (strict_audit.start_fact(live.call, live.record.id),)

    def _write_facts_alone(self, live: LiveTask) -> None:
        """Write a task's audit facts although no record follows."""
        if live.notes:
            self._journal.write((), lambda _: None, tuple(live.notes))
            live.notes.clear()

    def _delete(self, key: tuple[str, str], documents: Sequence[Document]) -> None:
        self._store.delete(key, [each for each in documents if each.kind != DELIVERY])
        # Separately: the outbox may already have changed a delivery. Without its task it is dropped anyway.
        if due := [each for each in documents if each.kind == DELIVERY]:
            self._journal.write([tombstone(each) for each in due], lambda _: None)

    # -- sending the call ----------------------------------------------------------------------------------------------

    def _launch(self, live: LiveTask, call: Call | TaskWork) -> None:
        """Queue a task's call, or refuse it. Nothing is sent before that is stored."""
        live.is_starting = True
        if not isinstance(call, Call):

            def start(work: TaskWork = call) -> None:
                running = work.start(TaskExchange(self, live))
                if running.outcome is None:
                    live.inflight = running

            live.call, live.send = None, start
            return
        if not call.lasts:  # tells the server's queue to ask before it sends
            call = msgspec.structs.replace(call, lasts=True)
        live.call = call
        self._start_call(live, call)

    def _start_call(self, live: LiveTask, call: Call) -> None:
        inflight = self._hub.start(call, TaskExchange(self, live))
        if inflight.outcome is None:
            live.inflight = inflight

    def _update_phase(self, live: LiveTask) -> None:
        """Set the phase of a launched call: `sent` if it can be sent next, `waiting` if it is queued."""
        if live.send is not None:
            if live.record.phase != "sent":
                live.record = msgspec.structs.replace(live.record, phase="sent", pending=None)
        elif isinstance(live.inflight, InFlight) and live.record.phase != "waiting":
            pending = self.offline_queue.pending(live, live.inflight)
            live.record = msgspec.structs.replace(live.record, phase="waiting", pending=pending)

    def hold(self, live: LiveTask, notice: Question) -> None:
        """Show that a task's call waits for an operator. It was not sent, so the next hub asks again."""
        asked = StoredQuestion(notice.method, notice.params)
        if live.record.asked != asked and not live.record.is_terminal:
            self.change(live, state="auth_required", asked=asked)

    def end_hold(self, live: LiveTask) -> None:
        """A person has decided about the call of a task: its time starts now."""
        live.since = self.now()
        pending = live.record.pending
        if pending is not None:
            pending = msgspec.structs.replace(pending, since=live.since)
        if live.record.asked is not None and is_approval(live.record.asked):
            self.change(live, state="submitted", asked=None, pending=pending)
        elif pending is not None:  # the caller itself has decided
            self._store_waiting(live, pending)

    def may_send(self, live: LiveTask, inflight: InFlight, send: Callable[[InFlight], None]) -> bool:
        """Whether a call that has left its queue may be sent now; otherwise `send` is called once that is stored."""
        if live.is_starting:
            live.send = partial(send, inflight)
            return False
        if live.record.phase != "waiting":
            return True
        live.send = partial(send, inflight)
        self.change(live, state="working", phase="sent", pending=None)
        return False

    def _send_call(self, live: LiveTask) -> None:
        """Send the call if the record that was just stored says that it may have been sent."""
        send, live.writing_send = live.writing_send, None
        if send is None or send is not live.send:
            return
        live.send = None
        if live.record.state in ENDED:
            return
        send()
        if live.inflight is not None and live.record.state == "submitted":
            # Not written: a stored record whose call was sent counts as working.
            live.record = msgspec.structs.replace(live.record, state="working")
            self._notify_stored(live, live.record)

    def _drop_call(self, live: LiveTask) -> None:
        """Drop a call that was not sent, without an end."""
        live.send = live.writing_send = None
        self.offline_queue.stop(live)
        inflight, live.inflight = live.inflight, None
        if isinstance(inflight, InFlight):
            inflight.abandon()

    def attach_call(self, live: LiveTask, inflight: InFlight) -> None:
        """Give a task that was started with `is_running` its call, which has not ended."""
        live.inflight = inflight
        inflight.exchange = TaskExchange(self, live)

    # -- waiting for a server ------------------------------------------------------------------------------------------

    def resume_call(self, live: LiveTask, server_queue: ServerQueue | None = None) -> None:
        """Start the call of a task that waits for its server, or keep waiting.

        `server_queue` is the server's present queue, if that has news.
        """
        pending = live.record.pending
        if live.record.phase != "waiting" or pending is None or live.inflight is not None:
            return
        self.offline_queue.stop(live)
        if live.is_starting:  # called again once that is stored
            return
        if server_queue is not None and server_queue.server != pending.server:
            self._store_waiting(live, self.offline_queue.rename(live, pending, server_queue.server))
        step = self.offline_queue.next_step(live)
        if isinstance(step, Call):
            self._start_call(live, step)
        elif step is not None:
            self._end(live, step)

    def put_back(self, live: LiveTask, inflight: InFlight) -> bool:
        """Let a task wait whose call could not be sent; False if the call was not started here."""
        if (pending := self.offline_queue.put_back(live, inflight)) is None:
            return False
        live.inflight = live.send = None
        if self._hub.approvals is not None:
            self._hub.approvals.not_sent(inflight)
        self._store_waiting(live, pending)
        return True

    def _store_waiting(self, live: LiveTask, pending: PendingCall) -> None:
        """Store that a task waits; listeners are not notified."""
        if live.record.phase == "waiting" and live.record.pending == pending:
            return
        live.record = msgspec.structs.replace(live.record, phase="waiting", pending=pending)
        if not live.is_starting:
            self._save(live)

    def resume(self) -> None:
        """Continue the unsent tasks of the previous hub. Call it once the servers of then are configured."""
        left, self._left = self._left, []
        for record in left:
            live = self._store.adopt(record)
            if record.resumes:
                self._resume_work(live)
                continue
            assert record.pending is not None, "`recover` selects these"
            # Of unsent calls, those that are held have asked somebody something: that time is not theirs.
            since = record.pending.since if record.asked is None else self.now()
            live.call, live.since = record.pending.call, since
            live.waits_for_login = record.pending.waits_for_login
            live.is_left = True
            self._store.set_running(live)
            self.resume_call(live)

    def _resume_work(self, live: LiveTask) -> None:
        """Continue work whose progress is stored."""
        work = self.work_of(live.record)
        if work is None:
            self.change(live, state="failed", phase="over", ending=LOST, asked=None)
            return
        self._store.set_running(live)
        running = work.start(TaskExchange(self, live))
        if running.outcome is None:
            live.inflight = running

    def leave(self, live: LiveTask) -> None:
        """Leave a task whose work is stored to the next hub."""
        live.inflight = None
        self._store.set_idle(live)
        for listener in list(live.listeners):
            if isinstance(listener, ShutdownListener):
                listener.left()

    def release_offline(self) -> None:
        """Leave tasks that wait for a disconnected server, or for an operator, to the next hub."""
        unsent = [
            live
            for live in self._unsent()
            if live.inflight is None or (isinstance(live.inflight, InFlight) and live.inflight.is_held)
        ]
        for live in unsent:
            if live.inflight is not None:
                self._drop_call(live)
        self._release(unsent)

    def release_unsent(self) -> None:
        """Leave all unsent tasks to the next hub, including those in a server's queue."""
        unsent = self._unsent()
        for live in unsent:
            self._drop_call(live)
        self._release(unsent)

    def _unsent(self) -> list[LiveTask]:
        return [live for live in self._store.running() if live.record.phase == "waiting"]

    def _release(self, unsent: Sequence[LiveTask]) -> None:
        self.offline_queue.close(unsent)
        for live in unsent:
            self._rest(live)

    # -- changing a task -----------------------------------------------------------------------------------------------

    def change(self, live: LiveTask, **changes: object) -> None:
        """Replace a task's record, and notify listeners once it is stored; an ended task does not change."""
        if live.record.state in ENDED or live.holder or self._is_outdated(live):
            self._write_facts_alone(live)
            return
        live.is_news = True
        if live.record.asked is not None and "asked" in changes:
            # The question closes: it goes into the history, before the message that answers it.
            said = changes.get("said", live.record.said)
            question = self.write_question(live.record)
            if question is not None and isinstance(said, tuple):
                changes["said"] = (*live.record.said, question, *said[len(live.record.said) :])
        live.record = msgspec.structs.replace(live.record, updated=self.now(), **changes)
        if not live.is_starting:
            self._save(live)

    def set_recipients(self, live: LiveTask, recipients: tuple[PushRecipient, ...]) -> None:
        """Replace a task's push recipients, even of an ended task; listeners are not notified."""
        if live.holder or self._is_outdated(live):
            return
        live.record = msgspec.structs.replace(live.record, recipients=recipients)
        self._save(live)

    def _is_outdated(self, live: LiveTask) -> bool:
        """Whether the task was dropped from memory and loaded again as another object, which counts now."""
        current = self._store.get(live.key)
        if current is None or current is live:
            return False
        log.error("an outdated copy of a task was changed; the change is ignored", task=live.record.id)
        return True

    def answer_question(self, live: LiveTask, number: int, reply: Reply) -> bool:
        """Answer one of the server's open questions by its number; False if it is not open."""
        asked = live.record.asked
        if asked is not None and asked.number == number:
            return self.answer(live, None, reply)
        found = next((each for each in live.questions if each[0].number == number), None)
        if found is None:
            return False
        self._close_question(live, found)
        found[1](reply)
        return True

    def answer(self, live: LiveTask, said: Message | None, reply: Reply) -> bool:
        """Answer the server's first open question and store the message; False if no question is open."""
        on_reply, live.reply = live.reply, None
        if on_reply is None:
            return False
        live.reports.begin_turn()
        messages = live.record.said if said is None else (*live.record.said, said)
        self.change(live, state="working", asked=None, said=messages)
        on_reply(reply)
        if live.reply is None:
            self._ask_next(live)
        return True

    def ask(self, live: LiveTask, question: Question, reply: OnReply) -> None:
        """Store a question of the server; the task's next message answers it. One is open at a time."""
        live.asked += 1
        asked = StoredQuestion(question.method, question.params.copy(), live.asked)
        if sum(len(memoryview(each.params)) for each in (asked, *live.open_questions)) > QUESTIONS_BYTES_MAX:
            reply(TOO_LARGE)
        elif live.reply is None:
            self._open_question(live, asked, reply)
        else:
            live.questions.append((asked, reply))
            self.change(live, besides=live.open_questions)

    def _open_question(self, live: LiveTask, asked: StoredQuestion, reply: OnReply) -> None:
        live.reply = reply
        state: TaskState = "auth_required" if is_login(asked) else "input_required"
        self.change(live, state=state, asked=asked, besides=live.open_questions)

    def _ask_next(self, live: LiveTask) -> bool:
        """Open the next question; False if no question waits."""
        if not live.questions:
            return False
        self._open_question(live, *live.questions.pop(0))
        return True

    def _close_question(self, live: LiveTask, each: tuple[StoredQuestion, OnReply]) -> None:
        live.questions.remove(each)
        self.change(live, besides=live.open_questions)

    def retract(self, live: LiveTask, reply: OnReply) -> None:
        """Close the question with this `reply`: the server no longer asks it."""
        if reply is live.reply:
            live.reply = None
            if not self._ask_next(live):
                self.change(live, state="working", asked=None)
        for each in [each for each in live.questions if each[1] is reply]:
            self._close_question(live, each)

    def continue_with(self, live: LiveTask, said: Message, call: Call | TaskWork, brief: Raw = ABSENT) -> None:
        """Start a call of a task that has none, as soon as that is stored."""
        if live.holder or self._is_outdated(live):
            return
        record = live.record
        live.reports.begin_turn()
        live.since = self.now()
        live.is_starting = True
        messages, brief = (*record.said, said), brief or record.brief
        # Only the work that a task begins with is stored beside it.
        changes = {"asked": None, "said": messages, "brief": brief, "pending": None, "resumes": False}
        self.change(live, state="submitted", phase="sent", **changes)
        self._launch(live, call)
        self._update_phase(live)
        live.is_starting = False
        if live.send is not None:
            live.record = msgspec.structs.replace(live.record, state="working")
        self._save(live)

    def reopen(self, live: LiveTask) -> None:
        """Let an ended task wait for a message again. Pass that message next: both are stored together."""
        live.record = msgspec.structs.replace(live.record, state="input_required", phase="idle", ending=None)

    def cancel(self, live: LiveTask, why: str) -> bool:
        """Cancel a task; False if it has ended already, or another node holds it (see `cancel_elsewhere`)."""
        if live.record.is_terminal or live.holder:
            return False
        live.record = msgspec.structs.replace(live.record, is_withdrawn=True)
        if live.inflight is not None:
            live.inflight.cancel(why)
        else:
            had_call = live.record.phase in ("waiting", "sent")
            ending = stored_outcome(Cancelled(why, executed="no")) if had_call else None
            live.send = live.call = None
            self.offline_queue.stop(live)
            self.change(live, state="canceled", phase="over", asked=None, pending=None, ending=ending)
        return True

    def cancel_unanswered(self, why: str) -> None:
        """Cancel the calls that wait for an answer of their callers, because answers can no longer arrive."""
        for live in self._store.running():
            if live.reply is not None and live.inflight is not None:
                live.inflight.cancel(why)

    def _end(self, live: LiveTask, outcome: Outcome) -> None:
        """Store how a task's call ended."""
        live.inflight = None
        live.call = None
        live.reply = None
        live.questions.clear()
        may_retry = live.waits_for_login and not isinstance(outcome, Result)
        if may_retry and (asked := login_question(outcome)) is not None:
            self.change(live, state="auth_required", phase="idle", asked=asked)
            return
        ending, state = stored_outcome(outcome), state_after(outcome)
        if (refused := self.storage_quota.refusal(live, outcome_bytes(ending))) is not None:
            ending, state = stored_outcome(refused), state_after(refused)
        self.change(live, state=state, phase="over", ending=ending, asked=None, besides=(), pending=None)

    def discard(self, live: LiveTask) -> None:
        """Delete a task, without notifying listeners."""
        self._delete(live.key, (self._document(live),))
        self.storage_quota.uncount(live)
        self._store.remove(live)
        self._store.uncache(live.record.owner, (live.record.id,))

    # -- writing records -----------------------------------------------------------------------------------------------

    def _save(self, live: LiveTask) -> None:
        if live.is_writing:
            live.is_stale = True
        else:
            self._store.set_running(live)
            self._write(live)

    def _write(self, live: LiveTask) -> None:
        live.retry = None
        live.is_writing = True
        live.is_stale = False
        live.writing_send = live.send
        is_news, live.is_news = live.is_news, False
        live.record = msgspec.structs.replace(live.record, version=live.record.version + 1)
        due: tuple[Document, ...] = ()
        if is_news and live.record.recipients:
            due = deliveries_of(live.record)
            self.storage_quota.count_due(live.record.owner, due)
        on_result = partial(self._on_written, live, live.record, due, is_news=is_news)
        live.noting, live.notes = live.notes, []
        facts = (*live.noting, *self._start_facts(live))
        document = self._document(live)
        self.storage_quota.count(live)
        self._journal.write((document, *due), on_result, facts)

    def _document(self, live: LiveTask) -> Document:
        document = document_of(live.record, live.key[0])
        live.size_bytes = len(document.body or b"")
        return document

    def _on_written(
        self, live: LiveTask, record: TaskRecord, due: Sequence[Document], result: WriteResult, *, is_news: bool
    ) -> None:
        live.is_writing = False
        if live.holder:  # it was given up meanwhile
            if result != "kept":
                live.notes[:0] = live.noting
            live.noting = []
            self._write_facts_alone(live)
            return
        live.is_news |= is_news and result != "kept"
        if result != "kept":
            live.notes[:0] = live.noting
            self.storage_quota.uncount_due(record.owner, due)
        live.noting = []
        if result in ("refused", "unknown"):
            self._write_later(live, record, result)
        elif result == "conflict" and live.is_unsure:
            # The earlier write with the result `unknown` was stored after all, and has this version.
            live.is_unsure = False
            self._write(live)
        elif result == "conflict":
            live.is_writing = True  # what changes meanwhile is written after that
            self._background.spawn(f"resolve the conflict of task {record.id}", self._resolve_conflict(live, record))
        else:
            live.is_unsure = False
            if is_news:
                self._notify_stored(live, record)
                if record.recipients:
                    self._pass_on(due)
            else:
                live.stored = record
            if live.writing_send is not None:
                self._send_call(live)
            if live.is_stale and not live.is_writing:
                self._write(live)
            if live.wakes:
                self._wake(live)
            self._rest(live)

    def _write_later(self, live: LiveTask, record: TaskRecord, result: WriteResult) -> None:
        live.is_writing = True  # what changes meanwhile is written with it
        live.is_unsure |= result == "unknown"
        live.record = msgspec.structs.replace(live.record, version=record.version - 1)
        live.retry = self._loop.call_later(RETRY_SECONDS, self._write, live)

    async def _resolve_conflict(self, live: LiveTask, record: TaskRecord) -> None:
        """Read what the journal has instead of the last stored record."""
        try:
            document = await self._journal.read(TASK, *live.key)
        except OSError:
            if not live.holder:
                self._write_later(live, record, "refused")
            return
        if live.holder:
            return
        if document is not None and document.is_elsewhere:
            self._give_up(live)
            self._store.view_of(document)
            return
        theirs = None if document is None else decode_or_log(document)
        if document is None or theirs is None:
            self._end_deleted(live, record)
        elif document.version < record.version:
            log.warning("the journal lost changes of a task; writing it again", task=record.id)
            self._write_later(live, msgspec.structs.replace(record, version=document.version + 1), "refused")
        else:
            self._accept_theirs(live, msgspec.structs.replace(theirs, version=document.version))

    def _end_deleted(self, live: LiveTask, record: TaskRecord) -> None:
        log.error("task was deleted by another process", task=record.id)
        live.is_writing = False
        self._drop_unsent(live)
        live.record = msgspec.structs.replace(record, state="failed", phase="over", ending=LOST, asked=None)
        self._write_facts_alone(live)
        self.storage_quota.uncount(live)
        self._store.remove(live)
        _notify_changed(live, live.record)
        self._wake(live)

    def _accept_theirs(self, live: LiveTask, theirs: TaskRecord) -> None:
        log.error("task was changed by another process", task=theirs.id)
        live.is_writing = live.is_stale = live.is_news = False
        self._drop_unsent(live)
        ours, live.record = live.record, theirs
        self._notify_stored(live, theirs)
        self._write_facts_alone(live)
        if theirs.phase in ("sent", "waiting") and live.inflight is None:
            # The other process will not end it: the call was ours, or is lost.
            state, ending = (ours.state, ours.ending) if ours.is_terminal else ("failed", LOST)
            self.change(live, state=state, phase="over", ending=ending, asked=None, besides=())
        self._wake(live)
        self._rest(live)

    def _drop_unsent(self, live: LiveTask) -> None:
        if live.record.phase == "waiting" or live.send is not None:
            self._drop_call(live)

    def _wake(self, live: LiveTask) -> None:
        if not live.is_writing:
            wakes, live.wakes = live.wakes, []
            for wake in wakes:
                wake.set_result(None)

    async def wait_stored(self, live: LiveTask) -> None:
        """Wait until all changes of a task are stored, at most `STORE_SECONDS`."""
        if live.is_writing:
            wake: asyncio.Future[None] = self._loop.create_future()
            live.wakes.append(wake)
            await asyncio.wait({wake}, timeout=STORE_SECONDS)

    def _notify_stored(self, live: LiveTask, record: TaskRecord) -> None:
        live.stored = record
        if live.listeners:
            _notify_changed(live, record)
        if record.state in ENDED and live.reports.count:
            live.reports.clear()
        if self.on_changed is not None:
            self.on_changed(live)

    def _pass_on(self, documents: Sequence[Document]) -> None:
        self.on_due([document for document in documents if document.kind == DELIVERY])

    def _rest(self, live: LiveTask) -> None:
        """Move a task to the cache, unless it has a call or is being written."""
        phase = live.record.phase
        if live.is_writing or phase == "sent":
            return
        if phase != "waiting" or (live.inflight is None and self.offline_queue.is_closed):
            self._store.set_idle(live)

    # -- finding tasks -------------------------------------------------------------------------------------------------

    async def find(self, owner: TaskOwner, id: str) -> LiveTask | None:
        """One of an owner's tasks, as soon as it is stored; None if it has no task with this id."""
        live = await self._store.load((owner.key, id))
        while live is not None and live.begun is not None:
            await asyncio.wait({live.begun})
            if live.stored is None:  # not begun here: perhaps another node was faster
                live = await self._store.load((owner.key, id))
        return live if live is not None and live.stored is not None else None

    def counts(self) -> dict[str, int]:
        """Unfinished tasks in memory, by state."""
        return {**Counter(live.record.state for live in self._store.running() if not live.record.is_terminal)}

    def last_report(self, record: TaskRecord) -> Report | None:
        """What the running call of a task reported last."""
        live = self._store.get((record.owner.key, record.id)) if record.phase == "sent" else None
        return None if live is None else live.reports.last

    def is_in_memory(self, owner: TaskOwner, id: str) -> bool:
        """Whether a task can be found without the journal."""
        return self._store.get((owner.key, id)) is not None

    def is_deleting(self, owner: TaskOwner, id: str) -> bool:
        """Whether a task is being deleted, also one whose first write had the result `unknown`."""
        return (owner.key, id) in self._store.deletes

    async def wait_deleted(self, owner: TaskOwner, id: str) -> bool:
        """Wait until the delete of a task is confirmed; False if it is not being deleted. Raises `TimeoutError`."""
        return await self._store.deletes.wait_deleted((owner.key, id), STORE_SECONDS)

    def current_record(self, document: Document) -> TaskRecord | None:
        """The newest stored record of a task that was read from the journal; None while it is being deleted."""
        return self._store.current_record(document)

    async def wait_idle(self) -> None:
        """Wait until no task has a call, all changes are stored and all deletes are confirmed."""
        await self._store.wait_idle()

    def forget_before(self, ended: float, waiting: float) -> None:
        """Drop from memory what `Retention` has deleted."""
        self._store.uncache_before(ended, waiting)

    # -- after a crash -------------------------------------------------------------------------------------------------

    async def recover(self) -> list[TaskRecord]:
        """Fail the tasks whose calls were running when the hub stopped; return their records as they were.

        Call it before callers are admitted. Unsent calls wait until `resume`.
        """
        lost: list[TaskRecord] = []
        last: Document | None = None
        latest = self._loop.time() + RECOVERED_SECONDS
        while True:
            if isinstance(self._journal, SharedJournal):
                found = await self._journal.inherit()
            else:
                found = await self._journal.all_in(TASK, UNFINISHED, limit=RECOVERED_AT_ONCE, after=last)
            if not found:
                return lost
            last = found[-1]
            lost += self.take_over(found)
            # Writes are retried for as long as it takes, but the start does not wait for that.
            with suppress(TimeoutError):
                await asyncio.wait_for(self.wait_idle(), latest - self._loop.time())

    def take_over(self, documents: Sequence[Document]) -> list[TaskRecord]:
        """Continue with what another hub left, as `recover` does; return the records of tasks that have failed."""
        lost: list[TaskRecord] = []
        for document in documents:
            record = decode_or_log(document) if document.kind == TASK else None
            if record is None or record.is_terminal:
                continue
            if record.resumes and record.phase == "sent":
                self._left.append(record)
            elif record.phase == "sent":
                lost.append(record)
                self.change(self._store.adopt(record), state="failed", phase="over", ending=LOST, asked=None)
            elif record.phase == "waiting" and record.pending is not None:
                self._left.append(record)
        self._pass_on(documents)
        return lost

    # -- other nodes ---------------------------------------------------------------------------------------------------

    def give_up_all(self) -> None:
        """Another node has taken over all that this one held: stop working on it, and show what the other stores."""
        running = [live for live in self._store.running() if live.begun is None]
        if running:
            log.error("the tasks of this node continue on another one", tasks=len(running))
        self._left.clear()
        for live in running:
            self._give_up(live)
        self._store.give_up_idle()

    def _give_up(self, live: LiveTask) -> None:
        self._drop_unsent(live)
        live.reply = None
        live.questions.clear()
        self._store.give_up(live)
        if live.retry is not None:
            live.retry.cancel()
            live.retry = None
        live.is_writing = live.is_stale = live.is_news = live.is_unsure = False
        if live.stored is not None:  # what was not stored never was
            live.record = live.stored
        self._write_facts_alone(live)
        self._wake(live)
        if live.inflight is not None:
            live.inflight.cancel(TAKEN_OVER)

    async def _follow_shown(self) -> None:
        """Notify listeners of tasks that other nodes change."""
        while True:
            await asyncio.sleep(FOLLOW_SECONDS)
            for live in self._store.followed():
                if live.listeners and not live.record.is_terminal:
                    with suppress(OSError):
                        await self._look_again(live)

    async def _look_again(self, live: LiveTask) -> None:
        """Read a task that another node holds."""
        document = await self._journal.read(TASK, *live.key)
        if (
            document is None
            or not live.holder
            or (document.version, document.holder)
            == (
                live.record.version,
                live.holder,
            )
        ):
            return
        try:
            self._store.view_of(document)
        except msgspec.MsgspecError as error:
            log.error("a stored task cannot be decoded", task=document.id, error=str(error))

    async def cancel_held(self, owner: str, id: str, why: str) -> None:
        """Cancel a task for another node, and wait until that is stored. What has ended, or is not here, stays."""
        live = await self._store.load((owner, id))
        if live is not None and self.cancel(live, why):
            await self.wait_stored(live)

    async def cancel_elsewhere(self, live: LiveTask, why: str) -> Fault | None:
        """Let the node that holds a task cancel it; the fault if that was not possible."""
        if self.peers is None:
            return TaskElsewhere(live.record.id)
        if (fault := await self.peers.cancel(live.holder, *live.key, why)) is None:
            with suppress(OSError):
                await self._look_again(live)
        return fault


class TaskExchange:
    """The caller's side of a task's call: implements `Exchange` and its durable, audited and retracting forms."""

    __slots__ = ("_engine", "live")

    def __init__(self, engine: TaskEngine, live: LiveTask) -> None:
        self._engine = engine
        self.live = live

    def emit(self, event: Event) -> None:
        """Remember a report, and pass it to listeners once the task is stored."""
        report = self.live.reports.note(event, self._engine.now())
        if (stored := self.live.stored) is None:
            return
        for listener in list(self.live.listeners):
            _notify(partial(listener.task_reported, stored, report))
        if (on_changed := self._engine.on_changed) is not None:
            on_changed(self.live)

    def ask(self, question: Question, reply: OnReply) -> None:
        """See `Exchange`."""
        self._engine.ask(self.live, question, reply)

    def held(self, notice: Question) -> None:
        """See `HoldableExchange`."""
        self._engine.hold(self.live, notice)

    def released(self) -> None:
        """See `HoldableExchange`."""
        self._engine.end_hold(self.live)

    def retract(self, reply: OnReply) -> None:
        """See `RetractingExchange`."""
        self._engine.retract(self.live, reply)

    def retract_later(self, reply: OnReply) -> None:
        """Nothing to do later: the task ends with its call, and its questions with it."""

    def end(self, outcome: Outcome) -> None:
        """See `Exchange`."""
        self._engine._end(self.live, outcome)

    def may_send(self, inflight: InFlight, send: Callable[[InFlight], None]) -> bool:
        """See `DurableExchange`."""
        return self._engine.may_send(self.live, inflight, send)

    def put_back(self, inflight: InFlight) -> bool:
        """See `DurableExchange`."""
        return self._engine.put_back(self.live, inflight)

    def leave(self) -> None:
        """Leave the task, whose work is stored, to the next hub."""
        self._engine.leave(self.live)

    @property
    def audits_start(self) -> bool:
        """See `AuditedExchange`; the calls of a `TaskWork` are started elsewhere."""
        return self.live.call is not None

    @property
    def audit_id(self) -> str:
        """See `AuditedExchange`."""
        return self.live.record.id

    def note(self, fact: Fact) -> None:
        """See `AuditedExchange`."""
        self.live.notes.append(fact)


def _notify_changed(live: LiveTask, record: TaskRecord) -> None:
    for listener in list(live.listeners):
        _notify(partial(listener.task_changed, record))


def _notify(call_listener: Callable[[], None]) -> None:
    try:
        call_listener()
    except Exception:  # one broken listener must not affect the others, or the server's link
        log.exception("a listener of a task failed")
