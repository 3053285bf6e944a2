"""One call to an agent: its message, the task that it becomes, and the outcome.

No asyncio task and no lock: callbacks and one timer. The message is sent once and never repeated. If anything breaks
afterwards, the hub polls the task and subscribes to it again. The link makes one `RemoteTask` per call. Its HTTP
requests (`HttpExchange`), cancel requests and the owners of tasks are here, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from hashlib import blake2b
from secrets import compare_digest, token_bytes, token_hex
from typing import Protocol

import msgspec

from isthmus.core.calls.running_call import InFlight
from isthmus.core.settings import Limits
from isthmus.model.callers import Caller
from isthmus.model.calls import Answered, Outcome, Reply, Result
from isthmus.model.fault_table import BadReply, Fault, Lost, NotConnected, ServerError, Unanswered
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
from isthmus.model.trace_context import trace_headers
from isthmus.transport.http_client import EVENT_STREAM, ConnectionLost, Ticket, media_type
from isthmus.upstream.a2a.mcp_conversion import (
    AgentQuestion,
    ArtifactBuffer,
    ProgressReports,
    TaskMessage,
    TaskRef,
    answer_parts,
    fault_in,
    question_in,
    result_of,
)
from isthmus.upstream.credential_redaction import Redact, redact_result
from isthmus.upstream.http_shared import ADVICE, OK, TURNED_AWAY, UNAUTHORIZED, login_url
from isthmus.upstream.response_waiters import ROUNDS_MAX, ask_caller, lost, turned_away
from isthmus.wire.a2a.client import ClientBinding, ClientOperation, code_of
from isthmus.wire.a2a.operations import A2aProblem, GetTask, SendMessage, SubscribeToTask
from isthmus.wire.jsonrpc import render
from isthmus.wire.lines import Oversized
from isthmus.wire.mcp.forwarded_methods import CAPABILITY_NEEDED
from isthmus.wire.sse import SseDecoder

POLL_SECONDS = 0.2
"""The pause before the first poll of a task without a stream."""

POLL_GROWTH = 1.5
POLL_SECONDS_MAX = 5.0

FAILURES_MAX = 8
"""Failed polls in a row, about ten seconds: an agent that restarts may still know its tasks."""

SUBSCRIBES_MAX = 100
"""Subscriptions to one task; after that it is only polled."""

DOUBTS_MAX = 4
"""Polls that may still return a question after its answer was sent on a connection that broke."""

TASK_ID_SECONDS = 10.0
"""How long a cancelled call waits for its task's id, which the cancel request needs."""

LOGIN = "elicitation.url"
"""The capability of callers that can open a URL to log in, as another hub requests it."""

ID_LENGTH_MAX = 1_000
"""Longest id of a task or context: each is repeated in every request."""

HISTORY_LENGTH = 2
"""Messages that a poll requests: some agents put their answer only there."""


DRAINING_MAX = 2
"""Enough to reuse the connections of most agents. The link needs one spare connection for each."""


class DrainingConnections:
    """Exchanges that are over but still hold a connection. Each ends after a timeout, or when there are too many."""

    def __init__(self) -> None:
        self._timers: dict[Callable[[], None], asyncio.TimerHandle] = {}

    def add(self, stop: Callable[[], None], seconds: float) -> None:
        """Call `stop` after this time, unless it is dropped before."""
        self._timers[stop] = asyncio.get_running_loop().call_later(seconds, self._stop, stop)
        if len(self._timers) > DRAINING_MAX:
            self._stop(next(iter(self._timers)))

    def drop(self, stop: Callable[[], None]) -> None:
        """Cancel the timeout of `stop`, if it has one."""
        timer = self._timers.pop(stop, None)
        if timer is not None:
            timer.cancel()

    def _stop(self, stop: Callable[[], None]) -> None:
        self.drop(stop)
        stop()


TEMPORARY = (408, 425, 429)
SERVER_ERROR = 500
"""These statuses, and all from 500 on, are temporary: a request may be repeated."""

EVENTS_MAX = 100_000
"""Events of one stream: a text that is streamed word by word has some thousands of them."""

LINGER_SECONDS = 1.0
"""How long an agent may keep a stream open after its last event before the hub closes the connection."""

_ADVICE = {**ADVICE, 405: "; check the address in its card"}


class RemoteTaskLink(Protocol):
    """What a remote task needs from its link."""

    server: ServerName
    limits: Limits
    draining: DrainingConnections
    redact: Redact
    on_doubt: Callable[[], None]
    on_unauthorized: Callable[[], None]

    @property
    def can_stream(self) -> bool:
        """Whether the agent streams updates of its tasks."""

    @property
    def is_hub(self) -> bool:
        """Whether the agent is another hub, whose messages contain MCP values."""

    @property
    def is_lost(self) -> bool:
        """Whether the link can no longer send requests."""

    def start_exchange(
        self, operation: ClientOperation, owner: RemoteTask | CancelRequest, headers: Mapping[str, str] | None = None
    ) -> HttpExchange:
        """Send a request."""

    def public_task_id(self, inflight: InFlight, task: str) -> str:
        """The id with which the caller of a call continues its task."""

    def cancel_task(self, task: str) -> None:
        """Cancel a task; the response is ignored."""

    def remote_task_ended(self, remote_task: RemoteTask) -> None:
        """A remote task has ended."""


class HttpExchange:
    """One request and its reply."""

    __slots__ = (
        "_binding",
        "_chunks",
        "_decoder",
        "_events",
        "_is_done",
        "_link",
        "_login",
        "_owner",
        "_size",
        "_status",
        "id",
        "operation",
        "ticket",
    )

    def __init__(
        self,
        link: RemoteTaskLink,
        binding: ClientBinding,
        id: int,
        operation: ClientOperation,
        owner: RemoteTask | CancelRequest,
    ) -> None:
        self._link = link
        self._binding = binding
        self.id = id
        self.operation = operation
        self._owner = owner
        self.ticket: Ticket | None = None
        self._is_done = False
        self._status = 0
        self._login: str | None = None
        self._chunks: list[bytes] = []
        self._size = self._events = 0
        self._decoder: SseDecoder | None = None

    @property
    def may_have_left(self) -> bool:
        """False while the request provably has not left."""
        return self.ticket is not None and self.ticket.may_have_left

    def abandon(self) -> None:
        """Ignore the rest of the response, and close the connection."""
        self._is_done = True
        self._link.draining.drop(self.abandon)
        if self.ticket is not None:
            self.ticket.abort()

    def leave(self) -> None:
        """Ignore the rest of the response, but let the agent end its stream, so that the connection can be reused."""
        if not self._is_done:
            self._is_done = True
            if self.ticket is not None and self._decoder is not None:
                self._link.draining.add(self.abandon, LINGER_SECONDS)

    # -- callbacks of the HTTP client ------------------------------------------------------------------------------

    def on_head(self, status: int, headers: Mapping[str, str]) -> None:
        """Receive status and headers; the body is a stream of events or one document."""
        self._status = status
        self._login = login_url(status, headers)
        if status == OK and media_type(headers) == EVENT_STREAM:
            self._decoder = SseDecoder(self._link.limits.reply_bytes)

    def on_body(self, chunk: bytes) -> None:
        """Receive a part of the body."""
        if self._is_done:
            return
        if self._decoder is not None:
            self._read_events(chunk, self._decoder)
            return
        self._size += len(chunk)
        self._chunks.append(chunk)
        if self._size > self._link.limits.reply_bytes:
            self._reject(f"an answer of over {self._link.limits.reply_bytes} bytes")

    def _read_events(self, chunk: bytes, decoder: SseDecoder) -> None:
        for event in decoder.feed(chunk):
            if self._is_done:
                return
            self._events += 1
            if isinstance(event, Oversized):
                self._reject(f"an event of over {event.limit_bytes} bytes")
            elif self._events > EVENTS_MAX:
                self._reject(f"a stream of over {EVENTS_MAX} events")
            elif event.data:
                update = self._binding.read_event(self.id, event)
                if isinstance(update, A2aProblem):
                    self.abandon()
                    self._owner.failed(self._fault(update))
                else:
                    self._owner.on_update(update, is_whole=False)

    def on_end(self) -> None:
        """The body is complete."""
        if self._is_done:
            self._link.draining.drop(self.abandon)
        elif self._decoder is None:
            self._read_whole(b"".join(self._chunks))
        else:
            self._is_done = True
            self._owner.stream_ended()

    def on_lost(self, lost_: ConnectionLost) -> None:
        """The connection was lost before the body was complete."""
        if self._is_done:
            self._link.draining.drop(self.abandon)
        else:
            self._is_done = True
            self._link.on_doubt()
            self._owner.failed(lost(self._link.server, lost_.reason, may_have_left=lost_.may_have_left))

    # -- reading ---------------------------------------------------------------------------------------------------

    def _read_whole(self, body: bytes) -> None:
        self._is_done = True
        if self._status in TURNED_AWAY:
            detail = f"it answered HTTP {self._status}{_ADVICE.get(self._status, '')}"
            if self._status == UNAUTHORIZED:
                self._link.on_unauthorized()
            self._owner.failed(turned_away(self._link.server, detail, self._status, self._login))
            return
        answer = self._binding.read(self.id, self.operation, self._status, body)
        is_temporary = self._status in TEMPORARY or self._status >= SERVER_ERROR
        if not isinstance(answer, A2aProblem):
            self._owner.on_update(answer, is_whole=True)
        elif is_temporary and not isinstance(self.operation, SendMessage):
            # The owner may repeat the request; a message is never repeated.
            self._owner.failed(Lost(self._link.server, f"it answered HTTP {self._status}", executed="unknown"))
        else:
            self._owner.failed(self._fault(answer))

    def _fault(self, problem: A2aProblem) -> Fault:
        code = code_of(problem)
        if code is None:
            return BadReply(self._link.server, self._link.redact(problem.message))
        fault = ServerError(self._link.server, code, self._link.redact(problem.message))
        if self._status != OK:
            fault.executed = "unknown"
        return fault

    def _reject(self, detail: str) -> None:
        self.abandon()
        self._owner.failed(BadReply(self._link.server, detail))


class RemoteTask:
    """One call, from its message to its outcome."""

    def __init__(self, link: RemoteTaskLink, inflight: InFlight, message: TaskMessage) -> None:
        self._link = link
        self._inflight = inflight
        self._message = message
        self._task = message.task
        self._context = message.context
        self._artifacts = ArtifactBuffer(link.limits.reply_bytes, is_hub=link.is_hub)
        self._reports = ProgressReports(inflight)
        self._exchange: HttpExchange | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._has_left = False
        self._is_known = False
        """Whether the agent has named the task."""
        self._has_gap = False
        """Whether updates may have been missed."""
        self._is_whole = False
        """Whether the artifacts are those of a whole task, not of single updates."""
        self._final: TaskStatus | None = None
        """The final status, while the task is polled once more for its artifacts."""
        self._question: TaskStatus | None = None
        """The status with the last question of the agent."""
        self._last_polled: tuple[object, ...] = ()
        """State, message and artifacts of the last poll."""
        self._doubts = 0
        """Polls that may still return the question before its answer counts as lost; 0 if the answer arrived."""
        self._is_given_up = False
        self._pause = POLL_SECONDS
        self._failures = self._subscribes = 0

    # -- sending ---------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Send the first message."""
        self._send_message(self._message.parts)

    def _send_message(self, parts: tuple[Part, ...]) -> None:
        message = Message(token_hex(16), "user", parts, self._message.metadata)
        context = self._context or None
        self._send(SendMessage(message, self._task or None, context, waits=False, is_stream=self._link.can_stream))

    def _send(self, operation: ClientOperation) -> None:
        self._exchange = self._link.start_exchange(operation, self, trace_headers(self._inflight.call.meta))

    @property
    def may_have_run(self) -> bool:
        """False only while the message provably has not left."""
        return self._has_left or self._is_known or (self._exchange is not None and self._exchange.may_have_left)

    @property
    def _task_ref(self) -> TaskRef:
        return TaskRef(self._task and self._link.public_task_id(self._inflight, self._task), self._context)

    # -- updates ---------------------------------------------------------------------------------------------------

    def on_update(self, update: Update, *, is_whole: bool) -> None:
        """The agent sent an update; `is_whole` if it is the whole response."""
        self._failures = 0
        if isinstance(update, Message):
            self._context = update.context or self._context
            self._finish(self._result(update.parts))
            return
        if (error := self._set_task(update)) is not None:
            self._reject(error)
        elif self._is_given_up:
            self._link.cancel_task(self._task)
            self._stop()
        else:
            self._apply(update, is_whole=is_whole)

    def _set_task(self, update: Task | TaskStatusUpdate | TaskArtifactUpdate) -> str | None:
        """Store the ids of the task; returns an error message if they are invalid or of another task."""
        task, context = (update.id, update.context) if isinstance(update, Task) else (update.task, update.context)
        if not task or max(len(task), len(context)) > ID_LENGTH_MAX:
            return f"a task without an id of 1 to {ID_LENGTH_MAX} characters"
        if self._task not in ("", task):
            return "an answer about another task"
        self._task, self._is_known, self._has_left = task, True, True
        self._context = context or self._context
        return None

    def _apply(self, update: Task | TaskStatusUpdate | TaskArtifactUpdate, *, is_whole: bool) -> None:
        before = self._last_polled
        if is_whole and isinstance(update, Task):
            self._last_polled = (update.status.state, update.status.message, update.artifacts)
        # An unchanged poll is no sign that the agent works on the task.
        if not is_whole or not isinstance(update, Task) or self._last_polled != before:
            self._inflight.heartbeat()
        error: str | None = None
        match update:
            case Task():
                self._is_whole = True
                error = self._artifacts.replace(update.artifacts)
            case TaskArtifactUpdate():
                error = self._artifacts.add(update)
            case TaskStatusUpdate():
                self._is_whole = False
        if error is not None:
            self._reject(error)
            return
        if isinstance(update, TaskArtifactUpdate):
            return
        status = update.status
        if status.state in ENDED:
            self._end(status, update if isinstance(update, Task) else None)
        elif status.state in WAITING and not self._was_answered(status):
            self._on_waiting(status)
        else:
            self._reports.report(status)
            if is_whole:
                self._follow(status)

    def _end(self, status: TaskStatus, task: Task | None) -> None:
        if self._has_gap and not self._is_whole:
            self._has_gap = False  # this poll is the last one
            self._final = status
            self._poll()
            return
        parts = self._artifacts.parts()
        if self._link.is_hub and not parts:
            fault = fault_in(status, self._link.server, self._link.redact)
            if fault is not None:
                self._finish(fault)
                return
        # The message of another hub only repeats its artifacts; for other agents it may be the only answer.
        if status.message is not None and not (parts and self._link.is_hub):
            parts += status.message.parts
        if not parts and task is not None:
            parts = next((each.parts for each in reversed(task.history) if each.role == "agent"), ())
        if status.state == "completed":
            self._finish(self._result(parts))
        else:
            parts = parts or (TextPart(_NO_REASON[status.state]),)
            self._finish(self._result(parts, is_error=True))

    def _result(self, parts: tuple[Part, ...], *, is_error: bool = False) -> Result:
        result = result_of(parts, self._task_ref, is_error=is_error, is_hub=self._link.is_hub)
        if not is_error:
            return result
        return msgspec.structs.replace(result, payload=redact_result(result.payload, self._link.redact))

    # -- following -------------------------------------------------------------------------------------------------

    def stream_ended(self) -> None:
        """The stream ended before the task."""
        if self._is_given_up:
            self._stop()
        elif not self._is_known:
            self._finish(BadReply(self._link.server, "its stream ended before its first event"))
        else:
            self._has_gap = True
            self._poll_later()

    def _follow(self, status: TaskStatus) -> None:
        """Subscribe to a working task, or poll it later."""
        if self._doubts and status.state in WAITING and self._was_answered(status):
            self._doubts -= 1
            if self._doubts:
                self._poll_later()
            else:
                why = "the answer to its question did not arrive"
                self._stop_polling(Lost(self._link.server, why, executed="unknown"))
            return
        self._doubts = 0  # it works, so the answer has arrived
        is_poll = self._exchange is not None and isinstance(self._exchange.operation, GetTask)
        if is_poll and self._link.can_stream and self._subscribes < SUBSCRIBES_MAX:
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
        """The exchange failed. A message is never sent again, but its task can be polled."""
        exchange, self._exchange = self._exchange, None
        self._has_left = self.may_have_run or (exchange is not None and exchange.may_have_left)
        if self._is_given_up:
            self._stop()
        elif self._final is not None:
            self._end(self._final, None)
        elif exchange is None or isinstance(exchange.operation, SendMessage):
            if self._is_known and isinstance(fault, Lost) and self._may_poll():
                self._doubts = DOUBTS_MAX  # polling shows whether the message arrived
                self._poll_later()
                return
            if self._is_known:
                self._link.cancel_task(self._task)
            self._finish(fault)
        elif isinstance(exchange.operation, SubscribeToTask) and not isinstance(fault, Lost):
            # The task may have just ended, or the agent cannot subscribe after all: only poll from now on.
            self._subscribes = SUBSCRIBES_MAX
            self._poll_later()
        elif isinstance(fault, BadReply | ServerError) or not self._may_poll():
            self._stop_polling(fault)
        else:
            self._poll_later()

    def _may_poll(self) -> bool:
        self._failures += 1
        self._has_gap = True
        return self._failures <= FAILURES_MAX and not self._link.is_lost

    def _stop_polling(self, fault: Fault) -> None:
        """End the call: the state of its task stays unknown."""
        if isinstance(fault, BadReply):
            self._link.cancel_task(self._task)
            self._finish(fault)
        elif isinstance(fault, Lost | NotConnected):
            self._finish(Lost(self._link.server, fault.why, executed="unknown"))
        else:
            self._finish(BadReply(self._link.server, f"it does not return the state of its task: {fault.message}"))

    def _reject(self, detail: str) -> None:
        """End the call because of an unusable update."""
        if self._exchange is not None:
            self._exchange.abandon()
        if self._is_given_up:
            self._stop()
            return
        if self._is_known:
            self._link.cancel_task(self._task)
        self._finish(BadReply(self._link.server, detail))

    # -- questions -------------------------------------------------------------------------------------------------

    def _on_waiting(self, status: TaskStatus) -> None:
        """The agent waits for the caller: ask it if it can be asked, else end the call with the question."""
        if self._exchange is not None:
            self._exchange.leave()
            self._exchange = None
        message_parts = () if status.message is None else status.message.parts
        agent_question = question_in(message_parts)
        can_open_login = agent_question.is_hubs_own and LOGIN in self._inflight.call.client_caps
        if status.state == "auth_required" and not can_open_login:
            needed = TextPart(f"The agent needs a login before it goes on with task {self._task_ref.task!r}.")
            self._finish(result_of((needed, *message_parts, *self._artifacts.parts()), self._task_ref, is_error=True))
        elif CAPABILITY_NEEDED[agent_question.question.method] in self._inflight.call.client_caps:
            self._question, self._doubts = status, 0
            # Ask the caller. Its answer is the next message of the task.
            self._inflight.rounds += 1
            if self._inflight.rounds > ROUNDS_MAX:
                self._link.cancel_task(self._task)
                self._finish(Unanswered(self._link.server, f"it still asked after {ROUNDS_MAX} rounds"))
            else:
                ask_caller(self._inflight, agent_question.question, lambda reply: self._answered(agent_question, reply))
        elif self._message.takes_text:
            advice = TextPart(
                "The agent needs an answer before it goes on. Call this tool again with the answer as message, "
                f"task_id {self._task_ref.task!r} and context_id {self._context!r}."
            )
            members = render({"state": b'"input-required"', **self._task_ref.members()})
            self._finish(
                result_of((*self._artifacts.parts(), *message_parts, advice), self._task_ref, structured=members)
            )
        else:
            self._link.cancel_task(self._task)
            self._finish(Unanswered(self._link.server, "its caller cannot be asked"))

    def _was_answered(self, status: TaskStatus) -> bool:
        """Whether the question in a status was answered: agents return it until they have read the answer.

        The official SDKs return it without its message then.
        """
        before = self._question
        if before is None:
            return bool(self._message.task) and status.message is None
        if status.message is None or before.message is None:
            return status.message is None and status.at == before.at
        is_same = status.message.parts == before.message.parts and status.at == before.at
        return is_same or status.message == before.message

    def _answered(self, agent_question: AgentQuestion, reply: Reply) -> None:
        if self._inflight.outcome is not None:
            return
        parts = answer_parts(agent_question, reply.result) if isinstance(reply, Answered) else None
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
        """The caller cancelled: cancel the task as soon as its id is known."""
        self._stop_timer()
        if self.cancel_if_known() or not self.may_have_run:
            self._stop()
        else:
            self._is_given_up = True
            self._link.draining.add(self._stop, TASK_ID_SECONDS)

    def cancel_if_known(self) -> bool:
        """Cancel the task if its id is known; returns whether it is."""
        has_name = self._is_known or (bool(self._task) and self.may_have_run)
        if has_name:
            self._link.cancel_task(self._task)
        return has_name

    def close(self) -> None:
        """The link was closed: end the call."""
        fault = lost(self._link.server, "closed by the hub", may_have_left=self.may_have_run)
        is_awaited = self._inflight.outcome is None and not self._is_given_up
        self._stop()
        if is_awaited:
            self._finish(fault)

    def _stop(self) -> None:
        """Ignore all further updates."""
        self._stop_timer()
        self._link.draining.drop(self._stop)
        if self._exchange is not None:
            self._exchange.abandon()
            self._exchange = None
        self._link.remote_task_ended(self)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _finish(self, outcome: Outcome) -> None:
        self._stop_timer()
        if self._exchange is not None:
            self._exchange.leave()
            self._exchange = None
        self._link.remote_task_ended(self)
        # The call and this object refer to each other; without the cycle both are freed at once.
        self._inflight.carriage = None
        if isinstance(outcome, Result):
            self._inflight.finish(outcome)
        else:
            self._inflight.fail(outcome)


_NO_REASON = {
    "failed": "The agent failed and gave no reason.",
    "rejected": "The agent rejected the task and gave no reason.",
    "canceled": "The agent cancelled the task.",
}


CANCEL_SECONDS = 10.0
"""How long the hub waits for the response to a cancel request."""


class CancelRequest:
    """Waits for the response to a cancel request, for at most `CANCEL_SECONDS`."""

    def __init__(self, on_done: Callable[[CancelRequest], object]) -> None:
        self._on_done = on_done
        self._exchange: HttpExchange | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def begin(self, exchange: HttpExchange) -> None:
        """Wait for the response."""
        self._exchange = exchange
        self._timer = asyncio.get_running_loop().call_later(CANCEL_SECONDS, self.end)

    @property
    def has_left(self) -> bool:
        """Whether the request may have reached the agent."""
        return self._exchange is not None and self._exchange.may_have_left

    def on_update(self, update: Update, *, is_whole: bool) -> None:
        """The agent responded."""
        self.end()

    def stream_ended(self) -> None:
        """The response is over."""
        self.end()

    def failed(self, fault: Fault) -> None:
        """The request failed; the task may have ended by itself."""
        self.end()

    def end(self) -> None:
        """Stop waiting."""
        if self._timer is not None:
            self._timer.cancel()
        if self._exchange is not None:
            self._exchange.abandon()
        if not self.done.done():
            self.done.set_result(None)
        self._on_done(self)


class TaskIds:
    """The ids of remote tasks as callers see them: signed, so that no caller can continue another caller's task.

    All links to agents share one. Nodes of a cluster with a database have one key.
    """

    def __init__(self) -> None:
        self.key = token_bytes(32)

    def public(self, caller: Caller, server: ServerName, own: str) -> str:
        """The id for the caller of a task."""
        return f"{own}.{self._signature(caller, server, own)}"

    def own(self, caller: Caller, server: ServerName, public: str) -> str | None:
        """The agent's own id; None if it was not given to this caller."""
        own, _, signature = public.rpartition(".")
        expected = self._signature(caller, server, own)
        return own if compare_digest(expected.encode(), signature.encode("utf-8", "surrogatepass")) else None

    def _signature(self, caller: Caller, server: ServerName, own: str) -> str:
        signed = msgspec.json.encode([caller.tenant, caller.name, server, own.encode("utf-8", "surrogatepass").hex()])
        return blake2b(signed, digest_size=12, key=self.key).hexdigest()
