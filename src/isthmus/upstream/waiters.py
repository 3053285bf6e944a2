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

from isthmus.core.calls.inflight import InFlight
from isthmus.model.calls import TASK_KINDS
from isthmus.model.events import Log, Progress
from isthmus.model.faults import BadReply, Fault, Lost, NotConnected, ServerError
from isthmus.model.names import ServerName
from isthmus.model.outcomes import Outcome, Result
from isthmus.model.questions import NOT_ASKED, OnReply, Question, Reply
from isthmus.upstream.rounds import Round, put
from isthmus.wire.jsonrpc import ErrorReply
from isthmus.wire.mcp.inputs import INPUT_REQUIRED, read_inputs
from isthmus.wire.mcp.messages import PROGRESS_TOKEN, Members
from isthmus.wire.mcp.requests import read_call_result, read_resource_result
from isthmus.wire.mcp.tasks import KNOWN, TASK


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

    def ask(self, question: Question, reply: OnReply) -> None:
        """The server asks something while it works on this."""


_COMPLETE = (None, "complete")


class CallWaiter:
    """A caller's call on a link."""

    __slots__ = ("inflight", "server")

    def __init__(self, inflight: InFlight) -> None:
        route = inflight.route
        assert route is not None, "only what was found is sent"
        self.inflight = inflight
        self.server = route.feature.server

    def result(self, payload: msgspec.Raw) -> None:
        """End the call with the server's result, if it is one."""
        call = self.inflight.call
        answer = read_resource_result(payload) if call.kind == "resource" else read_call_result(payload)
        if answer is not None and answer.result_type in _COMPLETE and call.kind == "tool" and not call.extra:
            # What nearly every call ends in, spared the questions below.
            self._end(Result(payload, answer.is_error, answer.result_type is not None))
        elif answer is None:
            self._end(BadReply(self.server, "the result of a call must be an object"))
        elif answer.result_type == INPUT_REQUIRED:
            self._require(payload)
        elif answer.result_type == TASK and KNOWN in self.inflight.call.profile:
            self._end(Result(payload, is_typed=True, task_of=self.server))
        elif answer.result_type not in _COMPLETE:
            detail = f"a result of type {answer.result_type!r}, which this hub does not relay"
            self._end(BadReply(self.server, detail))
        else:
            is_typed = answer.result_type is not None
            whose = self.server if self._is_about_task() else None
            keeps = answer.ttl_seconds, answer.is_public
            self._end(Result(payload, answer.is_error, is_typed, *keeps, task_of=whose))

    def _is_about_task(self) -> bool:
        call = self.inflight.call
        return call.kind in TASK_KINDS or TASK in call.extra

    def _require(self, payload: msgspec.Raw) -> None:
        """The server asks by its result: pass that on to who comes back, else ask and send the call once more."""
        inputs = read_inputs(payload)
        if isinstance(inputs, str):
            self._end(BadReply(self.server, inputs))
        elif self.inflight.call.comes_back:
            self._end(Result(payload, is_typed=True, is_question=True))
        else:
            self.inflight.carriage = None
            Round(self.inflight, inputs).ask()

    def ask(self, question: Question, reply: OnReply) -> None:
        """Put it to the caller, if that said it can be asked such a thing."""
        put(self.inflight, question, reply)

    def error(self, reply: ErrorReply) -> None:
        """End the call with the server's own error."""
        self._end(ServerError(self.server, reply.code, reply.message, reply.data))

    def fail(self, fault: Fault) -> None:
        """End the call without an answer."""
        self._end(fault)

    def _end(self, outcome: Outcome) -> None:
        # The call and its request hold each other; untied, both (and a reply of megabytes) are freed at once.
        self.inflight.carriage = None
        self.inflight.finish(outcome)

    def progress(self, params: Members) -> None:
        """Pass progress on, without the token of this hop."""
        self.inflight.emit(Progress({key: value for key, value in params.items() if key != PROGRESS_TOKEN}))

    def log(self, line: Log) -> None:
        """Pass it on; whether the caller wants it is for the face to say."""
        self.inflight.emit(line)


class Inquiry:
    """A question of the hub's own (a handshake, a listing, a ping): `answer` is awaited by whoever asked."""

    __slots__ = ("answer", "server")

    def __init__(self, server: ServerName) -> None:
        self.server = server
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


class Unheard:
    """Waits for an answer that nobody reads: the end of a subscription."""

    def result(self, payload: msgspec.Raw) -> None:
        """It went well."""

    def error(self, reply: ErrorReply) -> None:
        """It did not, which changes nothing."""

    def fail(self, fault: Fault) -> None:
        """The link is gone, which its owner hears elsewhere."""

    def progress(self, params: Members) -> None:
        """Nobody asked for progress."""

    def log(self, line: Log) -> None:
        """Nobody reads it."""

    def ask(self, question: Question, reply: OnReply) -> None:
        """Nobody can answer it."""
        reply(NOT_ASKED)


def log_alone(line: Log, waiters: Iterable[Waiter]) -> bool:
    """Give a line that names no call to the latest call of the caller who alone has calls; False if nobody is alone."""
    alone = lone_call(waiters)
    if alone is None:
        return False
    alone.log(line)
    return True


def lone_call(waiters: Iterable[Waiter]) -> CallWaiter | None:
    """The latest call of the caller who alone has calls; None if nobody is alone."""
    calls = [waiter for waiter in waiters if isinstance(waiter, CallWaiter)]
    if len({waiter.inflight.call.caller for waiter in calls}) != 1:
        return None
    return calls[0] if len(calls) == 1 else _Latest(calls)


class _Latest(CallWaiter):
    """The latest of several calls, of which nobody can say which one a question is about: all of them wait for it."""

    __slots__ = ("_others",)

    def __init__(self, calls: Sequence[CallWaiter]) -> None:
        super().__init__(calls[-1].inflight)
        self._others = [waiter.inflight for waiter in calls[:-1]]

    def ask(self, question: Question, reply: OnReply) -> None:
        """Put it to the caller, while the clocks of all its calls stand still."""
        for inflight in self._others:
            inflight.hold()
        super().ask(question, partial(self._answered, reply))

    def _answered(self, reply: OnReply, answer: Reply) -> None:
        for inflight in self._others:
            inflight.answered()
        reply(answer)


def lost(server: ServerName, detail: str, *, may_have_left: bool) -> Fault:
    """The fault for a request whose carrier broke."""
    return Lost(server, detail, executed="unknown" if may_have_left else "no")


def turned_away(server: ServerName, detail: str, status: int | None = None) -> Fault:
    """The fault for a request that the server provably did not run."""
    return NotConnected(server, detail, status=status)
