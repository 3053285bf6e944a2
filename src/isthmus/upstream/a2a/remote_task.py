"""One call to an agent: its message, the task that it becomes, and the outcome.

No asyncio task and no lock: callbacks and one timer. The message is sent once and never repeated. If anything breaks
afterwards, the hub polls the task and subscribes to it again. The link makes one per call.
"""

from __future__ import annotations

import asyncio
from secrets import token_hex
from typing import Protocol

import msgspec

from isthmus.core.calls.inflight import InFlight
from isthmus.core.settings import Limits
from isthmus.model.calls import Answered, Outcome, Reply, Result
from isthmus.model.faults import BadReply, Fault, Lost, NotConnected, ServerError, Unanswered
from isthmus.model.names import ServerName
from isthmus.model.tasks import (
    ENDED,
    WAITING,
    Message,
    Part,
    Task,
    TaskArtifactUpdate,
    TaskStatus,
    TaskStatusUpdate,
    TextPart,
    Update,
)
from isthmus.upstream.a2a.http_exchange import ExchangeOwner, HttpExchange, LingeringConnections
from isthmus.upstream.a2a.messages import (
    AgentQuestion,
    ProgressReports,
    TaskMessage,
    answer_parts,
    fault_in,
    question_in,
)
from isthmus.upstream.a2a.results import ArtifactBuffer, TaskRef, result_of
from isthmus.upstream.redaction import Redact, redact_result
from isthmus.upstream.waiters import ROUNDS_MAX, ask_caller, lost
from isthmus.wire.a2a.client import ClientOperation
from isthmus.wire.a2a.operations import GetTask, SendMessage, SubscribeToTask
from isthmus.wire.jsonrpc import render
from isthmus.wire.mcp.calls import CAPABILITY_NEEDED

POLL_SECONDS = 0.2
"""The pause before the first look at a task of which nothing is heard by itself."""

POLL_GROWTH = 1.5
POLL_SECONDS_MAX = 5.0

FAILURES_MAX = 8
"""How often in a row a look may fail, which takes ten seconds: an agent that starts anew may know its tasks again."""

SUBSCRIBES_MAX = 100
"""How often the stream of one task is asked for again; after that it is only looked at."""

DOUBTS_MAX = 4
"""How often a question may be shown once more whose answer was on a connection that broke."""

TASK_ID_SECONDS = 10.0
"""How long who gave a call up still listens for the task's id, without which it cannot be given up over there."""

LOGIN = "elicitation.url"
"""What a caller says that can be sent to an address, as another hub asks for it."""

ID_LENGTH_MAX = 1_000
"""Of a task and of a conversation: each is repeated in every request."""

HISTORY_LENGTH = 2
"""Messages that a look asks for: an agent may have put its answer nowhere else."""


class RemoteTaskLink(Protocol):
    """What a remote task needs from its link."""

    server: ServerName
    limits: Limits
    lingering: LingeringConnections
    redact: Redact

    @property
    def can_stream(self) -> bool:
        """Whether the agent tells of its tasks while they run."""

    @property
    def is_hub(self) -> bool:
        """Whether it is another hub, which says more exactly what it means."""

    @property
    def is_lost(self) -> bool:
        """Whether nothing more can be sent."""

    def start_exchange(self, asked: ClientOperation, owner: ExchangeOwner) -> HttpExchange:
        """Send a request."""

    def task_started(self, inflight: InFlight, task: str) -> None:
        """The agent has said which task a call has become."""

    def cancel_task(self, task: str) -> None:
        """Tell the agent that nobody waits for a task."""

    def over(self, remote_task: RemoteTask) -> None:
        """A remote task has ended."""


class RemoteTask:
    """One call, from its message to its outcome."""

    def __init__(self, link: RemoteTaskLink, inflight: InFlight, told: TaskMessage) -> None:
        self._link = link
        self._inflight = inflight
        self._message = told
        self._task = told.task
        self._context = told.context
        self._artifacts = ArtifactBuffer(link.limits.reply_bytes, is_hub=link.is_hub)
        self._reports = ProgressReports(inflight)
        self._exchange: HttpExchange | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._has_left = False
        self._is_known = False
        """Whether the agent has said which task it is."""
        self._has_gap = False
        """Whether something of the task may have been told that nobody heard."""
        self._is_whole = False
        """Whether what was gathered is all there is, by the agent's own word."""
        self._final: TaskStatus | None = None
        """How the task ended, while what it brought forth is asked for once more."""
        self._question: TaskStatus | None = None
        """What the agent last asked."""
        self._last_polled: tuple[object, ...] = ()
        """What the last look showed."""
        self._doubts = 0
        """How many more times that may be shown before its answer is taken for lost; 0 if it has arrived."""
        self._is_given_up = False
        self._pause = POLL_SECONDS
        self._failures = self._subscribes = 0

    # -- sending ---------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Tell the agent what it is to do."""
        self._send_message(self._message.parts)

    def _send_message(self, parts: tuple[Part, ...]) -> None:
        message = Message(token_hex(16), "user", parts, self._message.metadata)
        context = self._context or None
        self._send(SendMessage(message, self._task or None, context, waits=False, is_stream=self._link.can_stream))

    def _send(self, asked: ClientOperation) -> None:
        self._exchange = self._link.start_exchange(asked, self)

    @property
    def may_have_run(self) -> bool:
        """False only while the message provably has not left."""
        return self._has_left or self._is_known or (self._exchange is not None and self._exchange.may_have_left)

    @property
    def _about(self) -> TaskRef:
        return TaskRef(self._task, self._context)

    # -- what the agent says ---------------------------------------------------------------------------------------

    def on_update(self, update: Update, *, is_whole: bool) -> None:
        """See `ExchangeOwner`."""
        self._failures = 0
        if isinstance(update, Message):
            self._context = update.context or self._context
            self._finish(self._result(update.parts))
            return
        if (stranger := self._note_task(update)) is not None:
            self._spoil(stranger)
        elif self._is_given_up:
            self._link.cancel_task(self._task)
            self._stop()
        else:
            self._apply(update, is_whole=is_whole)

    def _note_task(self, update: Task | TaskStatusUpdate | TaskArtifactUpdate) -> str | None:
        """Learn which task it is; what is wrong if it is another than before."""
        task, context = (update.id, update.context) if isinstance(update, Task) else (update.task, update.context)
        if not task or max(len(task), len(context)) > ID_LENGTH_MAX:
            return f"a task without an id of 1 to {ID_LENGTH_MAX} characters"
        if self._task not in ("", task):
            return "an answer about another task"
        if not self._is_known:
            self._link.task_started(self._inflight, task)
        self._task, self._is_known, self._has_left = task, True, True
        self._context = context or self._context
        return None

    def _apply(self, update: Task | TaskStatusUpdate | TaskArtifactUpdate, *, is_whole: bool) -> None:
        if not is_whole or self._has_changed(update):
            self._inflight.heartbeat()
        wrong: str | None = None
        match update:
            case Task():
                self._is_whole = True
                wrong = self._artifacts.replace(update.artifacts)
            case TaskArtifactUpdate():
                wrong = self._artifacts.add(update)
            case TaskStatusUpdate():
                self._is_whole = False
        if wrong is not None:
            self._spoil(wrong)
        elif not isinstance(update, TaskArtifactUpdate):
            self._apply_status(update.status, update if isinstance(update, Task) else None, is_whole=is_whole)

    def _has_changed(self, update: Task | TaskStatusUpdate | TaskArtifactUpdate) -> bool:
        """Whether a look shows something new: that an agent answers is no sign that it works on the task."""
        if not isinstance(update, Task):
            return True
        before, self._last_polled = self._last_polled, (update.status.state, update.status.message, update.artifacts)
        return self._last_polled != before

    def _apply_status(self, status: TaskStatus, task: Task | None, *, is_whole: bool) -> None:
        if status.state in ENDED:
            self._end(status, task)
        elif status.state in WAITING and not self._was_answered(status):
            self._on_waiting(status)
        else:
            self._reports.tell(status)
            if is_whole:
                self._follow_unless_lost(status)

    def _end(self, status: TaskStatus, task: Task | None) -> None:
        if self._has_gap and not self._is_whole:
            self._has_gap = False  # what this look does not bring, nothing does
            self._final = status
            self._poll()
            return
        parts = self._artifacts.parts()
        if self._link.is_hub and not parts and (fault := self._fault_in(status)) is not None:
            self._finish(fault)
            return
        # A hub only repeats in words what it brought forth; others may say there what is nowhere else.
        if status.message is not None and not (parts and self._link.is_hub):
            parts += status.message.parts
        if not parts and task is not None:
            parts = _last_said(task)
        if status.state == "completed":
            self._finish(self._result(parts))
        else:
            parts = parts or (TextPart(_NO_REASON[status.state]),)
            self._finish(self._result(parts, is_error=True))

    def _fault_in(self, status: TaskStatus) -> ServerError | None:
        return fault_in(status, self._link.server, self._link.redact)

    def _result(self, parts: tuple[Part, ...], *, is_error: bool = False) -> Result:
        result = result_of(parts, self._about, is_error=is_error, is_hub=self._link.is_hub)
        if not is_error:
            return result
        return msgspec.structs.replace(result, payload=redact_result(result.payload, self._link.redact))

    # -- how it goes on --------------------------------------------------------------------------------------------

    def ended(self) -> None:
        """See `ExchangeOwner`: the stream is over, and the task is not."""
        if self._is_given_up:
            self._stop()
        elif not self._is_known:
            self._finish(BadReply(self._link.server, "its stream ended before it said anything"))
        else:
            self._has_gap = True
            self._poll_later()

    def _follow_unless_lost(self, status: TaskStatus) -> None:
        if not self._doubts or status.state not in WAITING or not self._was_answered(status):
            self._doubts = 0  # it works: whatever it was told has arrived
            self._follow()
            return
        self._doubts -= 1
        if self._doubts:
            self._poll_later()
        else:
            why = "the answer to its question did not arrive"
            self._give_up_polling(Lost(self._link.server, why, executed="unknown"))

    def _follow(self) -> None:
        """The task works, and nothing of it will be heard unless it is asked for: listen, or look again in a while."""
        is_looking = self._exchange is not None and isinstance(self._exchange.asked, GetTask)
        if is_looking and self._link.can_stream and self._subscribes < SUBSCRIBES_MAX:
            self._subscribes += 1
            self._send(SubscribeToTask(self._task))
        else:
            self._poll_later()

    def _poll_later(self) -> None:
        self._exchange = None
        self._timer = asyncio.get_running_loop().call_later(self._pause, self._poll)
        self._pause = min(self._pause * POLL_GROWTH, POLL_SECONDS_MAX)

    def _poll(self) -> None:
        self._stop_timer()
        if self._exchange is not None:
            self._exchange.leave()
        self._send(GetTask(self._task, HISTORY_LENGTH))

    def failed(self, fault: Fault) -> None:
        """See `ExchangeOwner`: what was sent is never sent again, but how its task stands can be asked."""
        exchange, self._exchange = self._exchange, None
        self._has_left = self.may_have_run or (exchange is not None and exchange.may_have_left)
        if self._is_given_up:
            self._stop()
        elif self._final is not None:
            self._end(self._final, None)
        elif exchange is None or isinstance(exchange.asked, SendMessage):
            self._on_send_failed(fault)
        elif isinstance(exchange.asked, SubscribeToTask) and not isinstance(fault, Lost):
            # It may have ended just now, or the agent cannot do what its card says: it is looked at from now on.
            self._subscribes = SUBSCRIBES_MAX
            self._poll_later()
        elif isinstance(fault, BadReply | ServerError) or not self._may_poll():
            self._give_up_polling(fault)
        else:
            self._poll_later()

    def _on_send_failed(self, fault: Fault) -> None:
        """A message may not have arrived: if its task is known, that tells; otherwise nobody can."""
        if self._is_known and isinstance(fault, Lost) and self._may_poll():
            self._doubts = DOUBTS_MAX
            self._poll_later()
            return
        if self._is_known:
            self._link.cancel_task(self._task)
        self._finish(fault)

    def _may_poll(self) -> bool:
        self._failures += 1
        self._has_gap = True
        return self._failures <= FAILURES_MAX and not self._link.is_lost

    def _give_up_polling(self, fault: Fault) -> None:
        """Nothing more can be learned of a task that had begun."""
        if isinstance(fault, BadReply):
            self._link.cancel_task(self._task)
            self._finish(fault)
        elif isinstance(fault, Lost | NotConnected):
            self._finish(Lost(self._link.server, fault.why, executed="unknown"))
        else:
            self._finish(BadReply(self._link.server, f"it does not tell how its task stands: {fault.message}"))

    def _spoil(self, detail: str) -> None:
        """What it says is of no use: nobody listens on."""
        if self._exchange is not None:
            self._exchange.abandon()
        if self._is_given_up:
            self._stop()
            return
        if self._is_known:
            self._link.cancel_task(self._task)
        self._finish(BadReply(self._link.server, detail))

    # -- what it asks ----------------------------------------------------------------------------------------------

    def _on_waiting(self, status: TaskStatus) -> None:
        """The agent waits for the caller: for an answer, or for a login."""
        if self._exchange is not None:
            self._exchange.leave()
            self._exchange = None
        said = () if status.message is None else status.message.parts
        asking = question_in(said)
        is_asked = asking.is_hubs_own and LOGIN in self._inflight.call.client_caps
        if status.state == "auth_required" and not is_asked:
            self._finish(_refused(said, self._artifacts.parts(), self._about))
        elif CAPABILITY_NEEDED[asking.question.method] in self._inflight.call.client_caps:
            self._question, self._doubts = status, 0
            self._ask(asking)
        else:
            self._return_question(said)

    def _ask(self, asking: AgentQuestion) -> None:
        """Put what the agent needs to know to the caller, whose answer is the task's next message."""
        self._inflight.rounds += 1
        if self._inflight.rounds > ROUNDS_MAX:
            self._link.cancel_task(self._task)
            self._finish(Unanswered(self._link.server, f"it went on asking after {ROUNDS_MAX} rounds"))
        else:
            ask_caller(self._inflight, asking.question, lambda reply: self._answered(asking, reply))

    def _was_answered(self, status: TaskStatus) -> bool:
        """Whether it is a question that has been answered: agents show it until they have looked at the answer.

        The official ones show it without its words by then.
        """
        before = self._question
        if before is None:
            return bool(self._message.task) and status.message is None
        if status.message is None or before.message is None:
            return status.message is None and status.at == before.at
        is_same = status.message.parts == before.message.parts and status.at == before.at
        return is_same or status.message == before.message

    def _return_question(self, said: tuple[Part, ...]) -> None:
        """The caller cannot be asked: it is told how to go on, if the tool has a place for that."""
        if not self._message.takes_text:
            self._link.cancel_task(self._task)
            self._finish(Unanswered(self._link.server, "its caller cannot be asked"))
            return
        advice = TextPart(
            "The agent needs an answer before it goes on. Call this tool again with the answer as message, "
            f"task_id {self._task!r} and context_id {self._context!r}."
        )
        members = {"state": b'"input-required"', **self._about.members()}
        self._finish(result_of((*self._artifacts.parts(), *said, advice), self._about, structured=render(members)))

    def _answered(self, asking: AgentQuestion, reply: Reply) -> None:
        if self._inflight.outcome is not None:
            return
        parts = answer_parts(asking, reply.result) if isinstance(reply, Answered) else None
        if self._link.is_lost:
            self._finish(Lost(self._link.server, "the link was lost meanwhile", executed="unknown"))
        elif parts is not None:
            self._pause = POLL_SECONDS
            self._send_message(parts)
        else:
            self._link.cancel_task(self._task)
            why = "its question was declined" if isinstance(reply, Answered) else reply.message
            self._finish(Unanswered(self._link.server, why))

    # -- the end ---------------------------------------------------------------------------------------------------

    def give_up(self) -> None:
        """The caller waits no more: tell the agent, as soon as it is known of what."""
        self._stop_timer()
        if self.cancel_if_known() or not self.may_have_run:
            self._stop()
        else:
            self._is_given_up = True
            self._link.lingering.add(self._stop, TASK_ID_SECONDS)

    def cancel_if_known(self) -> bool:
        """Tell the agent that nobody will hear of its task, if it is known which one that is."""
        has_name = self._is_known or (bool(self._task) and self.may_have_run)
        if has_name:
            self._link.cancel_task(self._task)
        return has_name

    def close(self) -> None:
        """The link is gone."""
        fault = lost(self._link.server, "closed by the hub", may_have_left=self.may_have_run)
        is_awaited = self._inflight.outcome is None and not self._is_given_up
        self._stop()
        if is_awaited:
            self._finish(fault)

    def _stop(self) -> None:
        """Listen no more."""
        self._stop_timer()
        self._link.lingering.drop(self._stop)
        if self._exchange is not None:
            self._exchange.abandon()
            self._exchange = None
        self._link.over(self)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _finish(self, outcome: Outcome) -> None:
        self._stop_timer()
        if self._exchange is not None:
            self._exchange.leave()
            self._exchange = None
        self._link.over(self)
        # The call and its commission hold each other; untied, both are freed at once.
        self._inflight.carriage = None
        if isinstance(outcome, Result):
            self._inflight.finish(outcome)
        else:
            self._inflight.fail(outcome)


_NO_REASON = {
    "failed": "The agent failed, and does not say why.",
    "rejected": "The agent rejected the task, and does not say why.",
    "canceled": "The agent gave the task up by itself.",
}


def _last_said(task: Task) -> tuple[Part, ...]:
    """The agent's last words, where its answer is nowhere else."""
    said = [message.parts for message in task.history if message.role == "agent"]
    return said[-1] if said else ()


def _refused(said: tuple[Part, ...], made: tuple[Part, ...], about: TaskRef) -> Result:
    """The agent needs a login somewhere, which its message tells where; then the task can go on."""
    words = TextPart(f"The agent needs a login before it goes on with task {about.task!r}.")
    return result_of((words, *said, *made), about, is_error=True)
