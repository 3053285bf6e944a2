"""What waits for a server's response: a caller's call, or a request of the hub itself; and the table of such requests.

Links report to a waiter what happened on the wire; waiters turn that into outcomes. So the meaning for the caller is
decided once, here, for all kinds of links. This includes calls that need more than one request: `input_required`
results, and tools that a legacy server runs only as a task. Each link has one `RequestTable`.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import partial
from secrets import token_hex
from typing import Protocol

import msgspec

from isthmus.core.calls.running_call import InFlight, OpenQuestion
from isthmus.core.event_loop import LONG_BYTES, in_turn
from isthmus.core.ports import HubExchange, LateProgressExchange, TaskLink, UnaskedExchange
from isthmus.model.calls import (
    NOT_ASKED,
    TASK_KINDS,
    Answered,
    Call,
    LogMessage,
    OnReply,
    Outcome,
    Question,
    Reply,
    Result,
)
from isthmus.model.fault_table import BadReply, Fault, Lost, NotConnected, ServerError, Unanswered
from isthmus.model.features import Feature
from isthmus.model.json_members import known_members
from isthmus.model.names import ServerName
from isthmus.transport.http_client import Ticket
from isthmus.upstream.credential_redaction import Redacting, redact_result
from isthmus.wire.jsonrpc import MEMBERS_MAX, ErrorReply, Payload, is_crowded, render, same_id
from isthmus.wire.mcp.forwarded_methods import (
    CAPABILITY_NEEDED,
    INPUT_REQUIRED,
    RESPONSES,
    STATE,
    InputRequests,
    as_legacy_request,
    read_any_result,
    read_call_result,
    read_input_required,
    read_resource_result,
    write_refusal,
)
from isthmus.wire.mcp.messages import Members, read_progress
from isthmus.wire.mcp.tasks import RELATED, TASK, TASKS_CAPABILITY, is_task_required, read_state


def note_task(inflight: InFlight, server: ServerName, answer: Payload) -> None:
    """Record what a response says about a task, before the call ends."""
    tasks = None if inflight.server_queue is None else inflight.server_queue.tasks
    state = read_state(answer)
    if tasks is None or state is None:
        return
    call, exchange = inflight.call, inflight.exchange
    link: object = inflight.link
    place = link.link_session_of(inflight) if isinstance(link, TaskLink) else None
    if call.kind not in TASK_KINDS:
        request = inflight.carriage.id if isinstance(inflight.carriage, PendingRequest) else -1  # unknown
        report = exchange.reporter() if request >= 0 and isinstance(exchange, LateProgressExchange) else None
        tasks.created(call.caller, server, place, state, session=call.session, request=request, report=report)
    elif state.id == inflight.name:  # a response about another task says nothing about this one
        tasks.answered(call.caller, server, place, state)


ROUNDS_MAX = 10
"""How often one call may be sent again: a server that asks for ever is stopped."""


def ask_caller(
    inflight: InFlight,
    question: Question,
    reply: OnReply,
    others: Sequence[InFlight] = (),
    *,
    lasts: bool = False,
) -> OpenQuestion | None:
    """Ask the caller, if its client capabilities allow it; see `InFlight.ask`."""
    if CAPABILITY_NEEDED[question.method] in inflight.call.client_caps:
        return inflight.ask(question, reply, others, lasts=lasts)
    if isinstance(inflight.exchange, UnaskedExchange) and not inflight.is_done:
        inflight.exchange.unasked(question)
    reply(NOT_ASKED)
    return None


class InputRound:
    """The questions of one `input_required` result for a caller that is asked by requests, and the answers so far."""

    def __init__(self, inflight: InFlight, inputs: InputRequests, *, is_from_node: bool = False) -> None:
        """Another node passes on what its server asks, however often, and what the caller refuses."""
        self._inflight = inflight
        self._is_from_node = is_from_node
        self._inputs = inputs
        self._answers: dict[str, Payload] = {}
        self._server = inflight.target.feature.server

    def ask(self) -> None:
        """Ask all questions at once; without questions, send the call again at once."""
        self._inflight.rounds += 1
        if self._inflight.rounds > ROUNDS_MAX and not self._is_from_node:
            self._inflight.finish(Unanswered(self._server, f"it still asked after {ROUNDS_MAX} rounds"))
        elif not self._inputs.questions:
            self._send_again()
        for key, question in self._inputs.questions.items():
            ask_caller(self._inflight, as_legacy_request(question, token_hex(16)), partial(self._answered, key))

    def _answered(self, key: str, reply: Reply) -> None:
        if self._inflight.outcome is not None:
            return
        if isinstance(reply, Answered):
            self._answers[key] = reply.result
        elif self._is_from_node:
            self._answers[key] = write_refusal(reply)
        else:
            self._inflight.finish(Unanswered(self._server, reply.message))
            return
        if len(self._answers) == len(self._inputs.questions):
            self._send_again()

    def _send_again(self) -> None:
        call, link = self._inflight.call, self._inflight.link
        assert link is not None, "it was sent on a link before"
        extra = dict(call.extra)
        extra[RESPONSES] = msgspec.Raw(render(self._answers))
        extra.pop(STATE, None)
        if self._inputs.state is not None:
            extra[STATE] = self._inputs.state
        self._inflight.call = msgspec.structs.replace(call, extra=extra)
        link.send(self._inflight)


class Waiter(Protocol):
    """Receives the end of one request: exactly one of `result`, `error`, `fail` is called."""

    def result(self, payload: msgspec.Raw) -> None:
        """The server responded."""

    def error(self, reply: ErrorReply) -> None:
        """The server responded with an error."""

    def fail(self, fault: Fault) -> None:
        """There will be no response."""

    def progress(self, params: Members) -> None:
        """The server reported progress."""

    def log(self, line: LogMessage) -> None:
        """The server logged something while it worked on this request."""

    def ask(self, question: Question, reply: OnReply) -> OpenQuestion | None:
        """The server asks something while it works on this request; returns the open question, if it is one."""


OWN_IDS = 1_000_000_000
"""First own id on a link that belongs to one caller, so that own ids and the caller's do not collide. Caller ids
between this and its double are replaced."""

ID_BYTES_MAX = 256
SAFE_INTEGER_MAX = 2**53 - 1
"""Bounds for caller ids: not every server returns longer or larger ones unchanged."""


class PendingRequest(ABC):
    """A request whose response has not come; the `carriage` of its call. Each way to send requests has its own kind."""

    __slots__ = ("id", "lines", "ticket", "waiter", "wire_id")

    def __init__(self, id: int, waiter: Waiter) -> None:
        self.id = id
        self.waiter = waiter
        self.wire_id: bytes | None = None
        """The caller's own id, if the request carries it; `id` is used here and for progress all the same."""
        self.lines = b""
        """HTTP headers of this request only."""
        self.ticket: Ticket | None = None
        """Its POST, once sent, if it is one."""

    @property
    @abstractmethod
    def may_have_left(self) -> bool:
        """False while the request provably has not left, or provably did not run."""

    @property
    def was_read(self) -> bool:
        """Whether the server reads it before whatever is sent from now on; a channel keeps the order."""
        return True

    @abstractmethod
    def abandon(self) -> None:
        """Stop sending it, and ignore its response."""

    def break_off(self, *, is_dead: bool) -> bool:
        """The link is lost: stop sending. Returns whether the server, which is gone if `is_dead`, may have got it."""
        self.abandon()
        return self.may_have_left


class RequestTable:
    """The requests of one link that wait for a response, and their ids."""

    __slots__ = ("is_dedicated", "last_id", "pending")

    def __init__(self) -> None:
        self.pending: dict[int, PendingRequest] = {}
        self.last_id = 0
        self.is_dedicated = False
        """Whether only one caller uses the link: its requests keep their ids."""

    def next_id(self) -> int:
        """The next id of the link. Callers' ids are replaced by it; but see `caller_request_id`."""
        self.last_id += 1
        return self.last_id

    def dedicate_to_caller(self) -> None:
        """From now on only one caller uses this link."""
        self.is_dedicated = True
        self.last_id = OWN_IDS

    def caller_request_id(self, call: Call) -> bytes | None:
        """The caller's own id for a call; None if the link's own id is used.

        The link's own id is used on shared links, and while another request with the same id is pending.
        """
        if call.request_id is None or not self.is_dedicated or len(memoryview(call.request_id)) > ID_BYTES_MAX:
            return None
        try:
            id = msgspec.json.decode(call.request_id, type=int | str)
        except msgspec.MsgspecError:
            return None
        if isinstance(id, int) and (OWN_IDS <= id < 2 * OWN_IDS or abs(id) > SAFE_INTEGER_MAX):
            return None
        written = msgspec.json.encode(id)
        return None if any(request.wire_id == written for request in self.pending.values()) else written

    def pop(self, id: Payload | None) -> PendingRequest | None:
        """Remove the request that a response is for, and return it; None for an unknown or outdated id."""
        if id is None:
            return None
        if self.is_dedicated:  # requests may have their caller's ids on the wire
            requests = self.pending.values()
            own = (each.id for each in requests if same_id(id, each.wire_id or b"%d" % each.id))
            return self.pending.pop(next(own, -1), None)
        try:
            return self.pending.pop(int(bytes(id)), None)
        except ValueError:
            return None

    def has_id_of(self, request: PendingRequest) -> bool:
        """Whether a pending request has the same id on the wire; the link's own ids are used once."""
        return request.wire_id is not None and any(each.wire_id == request.wire_id for each in self.pending.values())

    def forget(self, waiter: Waiter) -> None:
        """Abandon the request of this waiter, if it is still pending."""
        for request in self.pending.values():
            if request.waiter is waiter:
                del self.pending[request.id]
                request.abandon()
                return

    def waiters(self) -> Iterable[Waiter]:
        """Everything that waits for a response."""
        return (request.waiter for request in self.pending.values())

    def break_off(self, server: ServerName, reason: str, *, is_dead: bool) -> None:
        """The link is lost: every pending request ends as lost. The server is gone only if `is_dead`."""
        pending, self.pending = self.pending, {}
        for request in pending.values():
            request.waiter.fail(lost(server, reason, may_have_left=request.break_off(is_dead=is_dead)))


_COMPLETE = (None, "complete")

BULKY_BYTES = 65536
"""Larger results are checked for too many members: frontends may rewrite a result member by member."""

LATER_BYTES = LONG_BYTES
"""Larger results are read in one turn of the event loop and end their calls in a later one."""

_READERS = {"resource": read_resource_result, "method": read_any_result}
"""Readers of results that are not tool results."""


class CallWaiter:
    """A caller's call on a link."""

    __slots__ = ("inflight", "server")

    is_from_node = False
    """Whether another node of the cluster responds, and not the server itself."""

    def __init__(self, inflight: InFlight) -> None:
        route = inflight.route
        assert route is not None, "only what was found is sent"
        self.inflight = inflight
        self.server = route.feature.server

    def request(self) -> tuple[Call, str]:
        """What is sent: the call and the server's own name for what it calls, or another request in its place."""
        return self.inflight.call, self.inflight.name

    def result(self, payload: msgspec.Raw, *, is_later: bool = False) -> None:
        """End the call with the server's result, if it is valid; a long result ends it in a later turn of the loop."""
        call = self.inflight.call
        if (size := len(memoryview(payload))) > BULKY_BYTES and not is_later:
            if known_members(payload) is not None:  # all that is left to do is to write it
                is_later = size > LATER_BYTES
            elif self._is_refused_or_deferred(payload):
                return
        if is_later and self.inflight.is_done:  # it ended between two turns, and must not be sent again
            self._end(BadReply(self.server, "the result came after the end of the call"))
            return
        answer = _READERS.get(call.kind, read_call_result)(payload)
        if answer is not None and answer.result_type in _COMPLETE and call.kind == "tool" and not call.extra:
            # The usual case, without the checks below.
            visible = self._hidden(payload) if answer.is_error else payload
            if is_later:
                is_untyped = not answer.has_type and bytes(memoryview(visible)[:2]) == b'{"'
                is_typed = answer.result_type is not None
                self._end_soon(Result(visible, answer.is_error, is_typed, is_untyped=is_untyped))
            else:
                self._end(Result(visible, answer.is_error, answer.result_type is not None))
        elif answer is None:
            self._end(BadReply(self.server, "the result of a call must be an object"))
        elif answer.result_type == INPUT_REQUIRED:
            self._require(payload)
        elif answer.result_type == TASK and TASKS_CAPABILITY in self.inflight.call.client_caps:
            note_task(self.inflight, self.server, payload)
            self._end(Result(payload, is_typed=True, task_of=self.server))
        elif answer.result_type not in _COMPLETE:
            detail = f"a result of type {answer.result_type!r}, which this hub does not relay"
            self._end(BadReply(self.server, detail))
        else:
            is_typed = answer.result_type is not None
            is_about_task = call.kind in TASK_KINDS or TASK in call.extra
            task_of = self.server if is_about_task else None
            keeps = answer.ttl_seconds, answer.is_public
            if task_of is not None:
                note_task(self.inflight, self.server, payload)
            visible = self._hidden(payload) if answer.is_error else payload
            ending = Result(visible, answer.is_error, is_typed, *keeps, task_of=task_of)
            if is_later:
                self._end_soon(ending)
            else:
                self._end(ending)

    def _is_refused_or_deferred(self, payload: msgspec.Raw) -> bool:
        """Refuse a result with too many members, and defer a long result to a later turn of the loop.

        This turn has decoded the result, and the caller's frontend will write it.
        """
        if len(memoryview(payload)) > LATER_BYTES:
            in_turn(partial(self._check_long, payload))
            return True
        return self._is_refused(payload)

    def _check_long(self, payload: msgspec.Raw) -> None:
        if not self._is_refused(payload):
            in_turn(partial(CallWaiter.result, self, payload, is_later=True))

    def _is_refused(self, payload: msgspec.Raw) -> bool:
        if not is_crowded(payload):
            return False
        self._end(BadReply(self.server, f"its result has over {MEMBERS_MAX} members"))
        return True

    def _end_soon(self, outcome: Outcome) -> None:
        in_turn(partial(self._end, outcome))

    def _hidden(self, payload: msgspec.Raw) -> msgspec.Raw:
        """An error result without the link's credentials."""
        link: object = self.inflight.link
        return redact_result(payload, link.redactor_for(self.inflight)) if isinstance(link, Redacting) else payload

    def _require(self, payload: msgspec.Raw) -> None:
        """The server needs input. Return that to a caller that retries by itself; else ask, and send the call again."""
        inputs = read_input_required(payload)
        if isinstance(inputs, str):
            self._end(BadReply(self.server, inputs))
        elif self.inflight.call.comes_back:
            self._end(Result(payload, is_typed=True, asked_by=self.server))
        else:
            self.inflight.carriage = None
            InputRound(self.inflight, inputs, is_from_node=self.is_from_node).ask()

    def ask(self, question: Question, reply: OnReply) -> OpenQuestion | None:
        """Ask the caller, if its client capabilities allow it."""
        return ask_caller(self.inflight, question, reply)

    def error(self, reply: ErrorReply) -> None:
        """End the call with the server's error."""
        self._end(ServerError(self.server, reply.code, reply.message, reply.data))

    def fail(self, fault: Fault) -> None:
        """End the call without a response."""
        self.inflight.carriage = None  # as in `_end`
        self.inflight.fail(fault)

    def _end(self, outcome: Outcome) -> None:
        # The call and its request refer to each other; without this, both (and a reply of megabytes) would be freed
        # late.
        self.inflight.carriage = None
        self.inflight.finish(outcome)

    def progress(self, params: Members) -> None:
        """Pass progress on, without the token of this hop."""
        self.inflight.emit(read_progress(params, self.server))

    def log(self, line: LogMessage) -> None:
        """Pass a log line on; the frontend filters by level."""
        if "_meta" in line.members:
            line = msgspec.structs.replace(line, task_of=self.server)
        self.inflight.emit(line)


class IgnoredResponse:
    """A request of the hub whose response, progress and log lines do not matter. The hub has no user to ask."""

    def result(self, payload: msgspec.Raw) -> None:
        """See `Waiter`."""

    def error(self, reply: ErrorReply) -> None:
        """See `Waiter`."""

    def fail(self, fault: Fault) -> None:
        """See `Waiter`."""

    def progress(self, params: Members) -> None:
        """See `Waiter`."""

    def log(self, line: LogMessage) -> None:
        """See `Waiter`."""

    def ask(self, question: Question, reply: OnReply) -> None:
        """See `Waiter`."""
        reply(NOT_ASKED)


class HubRequest(IgnoredResponse):
    """A request of the hub itself (a handshake, a listing, a ping); `answer` is awaited."""

    __slots__ = ("answer", "method", "server")

    def __init__(self, server: ServerName, method: str = "") -> None:
        self.server = server
        self.method = method
        self.answer: asyncio.Future[msgspec.Raw] = asyncio.get_running_loop().create_future()

    def result(self, payload: msgspec.Raw) -> None:
        if not self.answer.done():
            self.answer.set_result(payload)

    def error(self, reply: ErrorReply) -> None:
        """Raise the server's error in the awaiting task."""
        self.fail(ServerError(self.server, reply.code, reply.message, reply.data))

    def fail(self, fault: Fault) -> None:
        """Raise the fault in the awaiting task."""
        if not self.answer.done():
            self.answer.set_exception(fault)


def log_alone(line: LogMessage, waiters: Iterable[Waiter]) -> bool:
    """Pass a log line that names no call to the latest call of the only caller; False if there are several callers."""
    calls = _calls_among(waiters)
    if len({waiter.inflight.call.caller for waiter in calls}) != 1:
        return False
    for waiter in _callers_own(calls)[-1:]:
        waiter.log(line)
        return True
    return False


def _calls_among(waiters: Iterable[Waiter]) -> list[CallWaiter]:
    return [waiter for waiter in waiters if isinstance(waiter, CallWaiter)]


def _callers_own(calls: Iterable[CallWaiter]) -> list[CallWaiter]:
    """Without calls that the hub makes in a caller's name."""
    return [waiter for waiter in calls if not isinstance(waiter.inflight.exchange, HubExchange)]


UNKNOWN_SESSION = ""
"""Stands for calls without a session, or of several: their programs cannot be distinguished."""


def lone_call(waiters: Iterable[Waiter], abandoned_session: str | None = None) -> CallWaiter | None:
    """The call for a question that names none, or None if that is ambiguous.

    It is the latest call of the only program with calls. Calls of one session belong to one program. Without a session,
    two calls of one caller may belong to two programs. `abandoned_session` is the session of abandoned calls about
    which the server may still ask.
    """
    calls = _calls_among(waiters)
    if len({(waiter.inflight.call.caller, waiter.inflight.call.session) for waiter in calls}) != 1:
        return None
    session = calls[0].inflight.call.session
    if session == UNKNOWN_SESSION and (len(calls) > 1 or abandoned_session is not None):
        return None
    own = _callers_own(calls)
    return _OneOfCalls(own) if own and abandoned_session in (None, session) else None


class _OneOfCalls(CallWaiter):
    """The latest of one program's calls; a question may belong to any of them, so all of them wait for the answer."""

    __slots__ = ("_others",)

    def __init__(self, calls: Sequence[CallWaiter]) -> None:
        super().__init__(calls[-1].inflight)
        self._others = [waiter.inflight for waiter in calls[:-1]]

    def ask(self, question: Question, reply: OnReply) -> OpenQuestion | None:
        """Ask the caller; the timeouts of all its calls are paused meanwhile."""
        # Such questions may outlive the call: roots belong to the client, and a task outlives its call.
        lasts = CAPABILITY_NEEDED[question.method] == "roots" or RELATED.encode() in bytes(question.params)
        return ask_caller(self.inflight, question, reply, self._others, lasts=lasts)


def lost(server: ServerName, detail: str, *, may_have_left: bool) -> Fault:
    """The fault for a request whose connection broke."""
    return Lost(server, detail, executed="unknown" if may_have_left else "no")


def turned_away(server: ServerName, detail: str, status: int | None = None, login: str | None = None) -> Fault:
    """The fault for a request that the server provably did not run."""
    return NotConnected(server, detail, status=status, login=login)


CANCEL = "tasks/cancel"


def waiter_for(inflight: InFlight) -> CallWaiter:
    """The waiter for a call to a legacy server.

    If the server runs the tool only as a task and the caller cannot ask for one, the hub asks for the task and waits
    for its result; to the caller, and in whatever is recorded, it is an ordinary call. Calls that ask for a task
    themselves, or are about one, are not changed.
    """
    if isinstance(inflight.carriage, TaskResultWaiter):
        return inflight.carriage
    call, route = inflight.call, inflight.route
    assert route is not None, "the hub has found it before a call is sent"
    if call.kind != "tool" or not call.comes_back or TASK in call.extra or not _is_task(route.feature):
        return CallWaiter(inflight)
    return _TaskStart(inflight)


class NodeCallWaiter(CallWaiter):
    """A caller's call on a link to another node of the cluster."""

    __slots__ = ()

    is_from_node = True


def _is_task(tool: Feature) -> bool:
    execution = tool.definition.get("execution")
    return execution is not None and is_task_required(execution)


class _TaskStart(CallWaiter):
    """Waits for the task to be created, then requests its result on the same link."""

    __slots__ = ()

    def request(self) -> tuple[Call, str]:
        """The call, as a task."""
        call = self.inflight.call
        return msgspec.structs.replace(call, extra={**call.extra, TASK: msgspec.Raw(b"{}")}), self.inflight.name

    def result(self, payload: msgspec.Raw, *, is_later: bool = False) -> None:
        """The server responded: with a task, or with the result at once."""
        inflight, link = self.inflight, self.inflight.link
        if inflight.is_done:  # a long answer takes several turns to read
            return
        state = read_state(payload)
        if state is None or link is None:
            super().result(payload, is_later=is_later)
            return
        inflight.rounds += 1  # it runs, whatever the next request brings
        inflight.carriage = TaskResultWaiter(inflight, state.id)
        link.send(inflight)


class TaskResultWaiter(CallWaiter):
    """Waits for the result of a task that its caller does not know of."""

    __slots__ = ("task_id",)

    def __init__(self, inflight: InFlight, task_id: str) -> None:
        super().__init__(inflight)
        self.task_id = task_id

    def request(self) -> tuple[Call, str]:
        """A request for the result of the task."""
        return msgspec.structs.replace(self.inflight.call, kind="task_result", extra={}), self.task_id

    def _end(self, outcome: Outcome) -> None:
        # The result names the task.
        super()._end(msgspec.structs.replace(outcome, task_of=self.server) if isinstance(outcome, Result) else outcome)
