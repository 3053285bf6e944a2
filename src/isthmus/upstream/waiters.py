"""Who waits for a server's answer: a call, or the hub itself.

Links tell a waiter how its request ended in wire terms; waiters turn that into outcomes. So each kind of link says
only what happened on its carrier, and what that means for a caller is decided once, here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Protocol

import msgspec

from isthmus.core.calls.inflight import InFlight
from isthmus.model.events import Log, Progress
from isthmus.model.faults import BadReply, Fault, Lost, NotConnected, ServerError
from isthmus.model.names import ServerName
from isthmus.model.outcomes import Outcome, Result
from isthmus.model.questions import NOT_ASKED, OnReply, Question
from isthmus.upstream.rounds import Round
from isthmus.wire.jsonrpc import ErrorReply
from isthmus.wire.mcp.inputs import ASKED_OF, INPUT_REQUIRED, read_inputs
from isthmus.wire.mcp.messages import PROGRESS_TOKEN, Members
from isthmus.wire.mcp.requests import read_call_result, read_resource_result


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


class CallWaiter:
    """A caller's call on a link."""

    __slots__ = ("inflight", "server")

    def __init__(self, inflight: InFlight) -> None:
        self.inflight = inflight
        self.server = inflight.target.feature.server

    def result(self, payload: msgspec.Raw) -> None:
        """End the call with the server's result, if it is one."""
        read = read_resource_result if self.inflight.call.kind == "resource" else read_call_result
        answer = read(payload)
        if answer is None:
            self._end(BadReply(self.server, "the result of a call must be an object"))
        elif answer.result_type == INPUT_REQUIRED:
            self._require(payload)
        elif answer.result_type not in (None, "complete"):
            detail = f"a result of type {answer.result_type!r}, which this hub does not relay"
            self._end(BadReply(self.server, detail))
        else:
            is_typed = answer.result_type is not None
            self._end(Result(payload, answer.is_error, is_typed, answer.ttl_seconds, answer.is_public))

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
        if ASKED_OF[question.method] in self.inflight.call.profile:
            self.inflight.ask(question, reply)
        else:
            reply(NOT_ASKED)

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
    return calls[-1] if len({waiter.inflight.call.caller for waiter in calls}) == 1 else None


def lost(server: ServerName, detail: str, *, may_have_left: bool) -> Fault:
    """The fault for a request whose carrier broke."""
    return Lost(server, detail, executed="unknown" if may_have_left else "no")


def turned_away(server: ServerName, detail: str, status: int | None = None) -> Fault:
    """The fault for a request that the server provably did not run."""
    return NotConnected(server, detail, status=status)
