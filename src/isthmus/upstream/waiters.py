"""Who waits for a server's answer: a call, or the hub itself.

Links tell a waiter how its request ended in wire terms; waiters turn that into outcomes. So each kind of link says
only what happened on its carrier, and what that means for a caller is decided once, here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Protocol

import msgspec

from isthmus.core.calls.inflight import InFlight, OpenQuestion
from isthmus.core.pauses import in_turn
from isthmus.core.ports.exchange import Aside
from isthmus.model.calls import TASK_KINDS
from isthmus.model.events import Log
from isthmus.model.faults import BadReply, Fault, Lost, NotConnected, ServerError
from isthmus.model.names import ServerName
from isthmus.model.outcomes import Outcome, Result
from isthmus.model.questions import NOT_ASKED, OnReply, Question
from isthmus.upstream.hiding import Hiding, hide_in_result
from isthmus.upstream.rounds import Round, put
from isthmus.upstream.task_notes import note
from isthmus.wire.jsonrpc import MEMBERS_MAX, ErrorReply, is_crowded
from isthmus.wire.mcp.inputs import ASKED_OF, INPUT_REQUIRED, read_inputs
from isthmus.wire.mcp.messages import Members, read_progress
from isthmus.wire.mcp.requests import read_any_result, read_call_result, read_resource_result
from isthmus.wire.mcp.tasks import KNOWN, RELATED, TASK


class Waiter(Protocol):
    """Hears how one request ends: exactly one of `result`, `error`, `fail` is called."""

    def result(self, payload: msgspec.Raw) -> None:
        """The server answered."""

    def error(self, reply: ErrorReply) -> None:
        """The server answered with an error."""

    def fail(self, fault: Fault) -> None:
        """There will be no answer."""

    def progress(self, params: Members) -> None:
        """The server reported progress."""

    def log(self, line: Log) -> None:
        """The server logged something while it worked on this."""

    def ask(self, question: Question, reply: OnReply) -> OpenQuestion | None:
        """The server asks something while it works on this; returns what it can be taken back by, if it is open."""


_COMPLETE = (None, "complete")

BULKY_BYTES = 65536
"""Results over this are looked at for too many members: what faces write anew, they write member by member."""

LATER_BYTES = 1024 * 1024
"""Results over this end their calls in another turn of the event loop than the one that reads them."""

_READERS = {"resource": read_resource_result, "method": read_any_result}
"""What reads the result of kinds of calls, where it is not that of a tool."""


class CallWaiter:
    """A caller's call on a link."""

    __slots__ = ("inflight", "server")

    def __init__(self, inflight: InFlight) -> None:
        route = inflight.route
        assert route is not None, "only what was found is sent"
        self.inflight = inflight
        self.server = route.feature.server

    def result(self, payload: msgspec.Raw, *, is_later: bool = False) -> None:
        """End the call with the server's result, if it is one; soon, if it is long."""
        call = self.inflight.call
        if len(memoryview(payload)) > BULKY_BYTES and not is_later and self._is_put_off(payload):
            return
        answer = _READERS.get(call.kind, read_call_result)(payload)
        if answer is not None and answer.result_type in _COMPLETE and call.kind == "tool" and not call.extra:
            # What nearly every call ends in, spared the questions below.
            told = self._hidden(payload) if answer.is_error else payload
            if is_later:
                is_untyped = not answer.has_type and bytes(memoryview(told)[:2]) == b'{"'
                is_typed = answer.result_type is not None
                self._end_soon(Result(told, answer.is_error, is_typed, is_untyped=is_untyped))
            else:
                self._end(Result(told, answer.is_error, answer.result_type is not None))
        elif answer is None:
            self._end(BadReply(self.server, "the result of a call must be an object"))
        elif answer.result_type == INPUT_REQUIRED:
            self._require(payload)
        elif answer.result_type == TASK and KNOWN in self.inflight.call.profile:
            note(self.inflight, self.server, payload)
            self._end(Result(payload, is_typed=True, task_of=self.server))
        elif answer.result_type not in _COMPLETE:
            detail = f"a result of type {answer.result_type!r}, which this hub does not relay"
            self._end(BadReply(self.server, detail))
        else:
            is_typed = answer.result_type is not None
            whose = self.server if self._is_about_task() else None
            keeps = answer.ttl_seconds, answer.is_public
            if whose is not None:
                note(self.inflight, self.server, payload)
            told = self._hidden(payload) if answer.is_error else payload
            ending = Result(told, answer.is_error, is_typed, *keeps, task_of=whose)
            if is_later:
                self._end_soon(ending)
            else:
                self._end(ending)

    def _is_put_off(self, payload: msgspec.Raw) -> bool:
        """Refuse a long result of too many members, or end the call with it in another turn of the loop.

        It was decoded just now, and the caller's face will write it.
        """
        if len(memoryview(payload)) > LATER_BYTES:
            in_turn(partial(self._look, payload))
            return True
        return self._is_refused(payload)

    def _look(self, payload: msgspec.Raw) -> None:
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
        """A result that tells of a failure, without what the server was shown."""
        link: object = self.inflight.link
        return hide_in_result(payload, link.hide_for(self.inflight)) if isinstance(link, Hiding) else payload

    def _is_about_task(self) -> bool:
        call = self.inflight.call
        return call.kind in TASK_KINDS or TASK in call.extra

    def _require(self, payload: msgspec.Raw) -> None:
        """The server asks by its result: pass that on to who comes back, else ask and send the call once more."""
        inputs = read_inputs(payload)
        if isinstance(inputs, str):
            self._end(BadReply(self.server, inputs))
        elif self.inflight.call.comes_back:
            self._end(Result(payload, is_typed=True, asked_by=self.server))
        else:
            self.inflight.carriage = None
            Round(self.inflight, inputs).ask()

    def ask(self, question: Question, reply: OnReply) -> OpenQuestion | None:
        """Put it to the caller, if that said it can be asked such a thing."""
        return put(self.inflight, question, reply)

    def error(self, reply: ErrorReply) -> None:
        """End the call with the server's own error."""
        self._end(ServerError(self.server, reply.code, reply.message, reply.data))

    def fail(self, fault: Fault) -> None:
        """End the call without an answer."""
        self.inflight.carriage = None  # as in `_end`
        self.inflight.fail(fault)

    def _end(self, outcome: Outcome) -> None:
        # The call and its request hold each other; untied, both (and a reply of megabytes) are freed at once.
        self.inflight.carriage = None
        self.inflight.finish(outcome)

    def progress(self, params: Members) -> None:
        """Pass progress on, without the token of this hop."""
        self.inflight.emit(read_progress(params, self.server))

    def log(self, line: Log) -> None:
        """Pass it on; whether the caller wants it is for the face to say."""
        if "_meta" in line.members:
            line = msgspec.structs.replace(line, task_of=self.server)
        self.inflight.emit(line)


class Inquiry:
    """A question of the hub's own (a handshake, a listing, a ping): `answer` is awaited by whoever asked."""

    __slots__ = ("answer", "method", "server")

    def __init__(self, server: ServerName, method: str = "") -> None:
        self.server = server
        self.method = method
        self.answer: asyncio.Future[msgspec.Raw] = asyncio.get_running_loop().create_future()

    def result(self, payload: msgspec.Raw) -> None:
        """Hand the result over."""
        if not self.answer.done():
            self.answer.set_result(payload)

    def error(self, reply: ErrorReply) -> None:
        """Raise the server's error where it is awaited."""
        self.fail(ServerError(self.server, reply.code, reply.message, reply.data))

    def fail(self, fault: Fault) -> None:
        """Raise the fault where it is awaited."""
        if not self.answer.done():
            self.answer.set_exception(fault)

    def progress(self, params: Members) -> None:
        """Nobody asked for progress."""

    def log(self, line: Log) -> None:
        """Nobody reads it."""

    def ask(self, question: Question, reply: OnReply) -> None:
        """Nobody can answer it."""
        reply(NOT_ASKED)


def log_alone(line: Log, waiters: Iterable[Waiter]) -> bool:
    """Give a line that names no call to the latest call of the caller who alone has calls; False if nobody is alone."""
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
    """Without what the hub asks in a caller's name, behind which nobody listens."""
    return [waiter for waiter in calls if not isinstance(waiter.inflight.exchange, Aside)]


SOMEBODYS = ""
"""Stands for calls that are not of one conversation, or of none: who made them cannot be told apart."""


def lone_call(waiters: Iterable[Waiter], strays: str | None = None) -> CallWaiter | None:
    """Whom a question that names no call is put to: the latest call of the one program that has any; None if unsure.

    Calls of one conversation are one program's. Without a conversation, two calls of the same caller may be two
    programs'. `strays` is the conversation of calls that nobody waits for and that may ask all the same.
    """
    calls = _calls_among(waiters)
    if len({(waiter.inflight.call.caller, waiter.inflight.call.session) for waiter in calls}) != 1:
        return None
    session = calls[0].inflight.call.session
    if session == SOMEBODYS and (len(calls) > 1 or strays is not None):
        return None
    own = _callers_own(calls)
    return _Lone(own) if own and strays in (None, session) else None


class _Lone(CallWaiter):
    """The latest of one program's calls, of which nobody can say which one a question is about: all wait for it."""

    __slots__ = ("_others",)

    def __init__(self, calls: Sequence[CallWaiter]) -> None:
        super().__init__(calls[-1].inflight)
        self._others = [waiter.inflight for waiter in calls[:-1]]

    def ask(self, question: Question, reply: OnReply) -> OpenQuestion | None:
        """Put it to the caller, while the clocks of all its calls stand still."""
        return put(self.inflight, question, reply, self._others, lasts=_lasts(question))


def _lasts(question: Question) -> bool:
    """Whether its server may answer all calls and still wait: roots are a client's, and a task outlives its call."""
    return ASKED_OF[question.method] == "roots" or RELATED.encode() in bytes(question.params)


def lost(server: ServerName, detail: str, *, may_have_left: bool) -> Fault:
    """The fault for a request whose carrier broke."""
    return Lost(server, detail, executed="unknown" if may_have_left else "no")


def turned_away(server: ServerName, detail: str, status: int | None = None, login: str | None = None) -> Fault:
    """The fault for a request that the server provably did not run."""
    return NotConnected(server, detail, status=status, login=login)
