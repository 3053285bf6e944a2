"""What links share whose answers come back on one stream: stdio, WebSocket, and the HTTP+SSE of the earlier era.

Messages of all requests arrive mixed; answers find who asked by their id, progress by its token. How a message
travels is the kind's: it adds `_dispatch`, `_say` and what it knows of a request that has left or not. Streamable
HTTP, where each answer belongs to its own POST, is no such link.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Collection, Iterable
from typing import Any, Generic, TypeVar

import structlog

from isthmus.core.calls.inflight import InFlight
from isthmus.core.settings import Limits
from isthmus.model.calls import NOT_ASKED, LogMessage, OnReply, Question
from isthmus.model.faults import BadReply, Fault, ServerError
from isthmus.model.names import ServerName
from isthmus.upstream.link import BaseLink
from isthmus.upstream.waiters import CallWaiter, Waiter, log_alone, lost, waiter_for
from isthmus.wire import jsonrpc
from isthmus.wire.jsonrpc import ErrorReply, Malformed, Notification, Payload, Request, Response
from isthmus.wire.mcp import modern
from isthmus.wire.mcp.calls import METHODS
from isthmus.wire.mcp.input_requests import QUESTIONS
from isthmus.wire.mcp.messages import CANCELLED, PROGRESS, Implementation, Members, cancelled_params, token_of

log = structlog.get_logger(__name__)

GARBAGE_MAX = 10_000
"""Pieces in a row that are no messages: more than any banner, and a server that writes so is no server."""


RELISTEN_SECONDS = 5.0
"""How long a server that ended its subscription is left alone."""


class SentRequest:
    """One request, and who waits for its answer."""

    __slots__ = ("id", "waiter")

    wire_id: bytes | None = None
    """The caller's own id, where that is the request's; only some kinds have that."""

    def __init__(self, id: int, waiter: Waiter) -> None:
        self.id = id
        self.waiter = waiter


S = TypeVar("S", bound=SentRequest)


class DuplexLink(BaseLink, Generic[S]):
    """One stream of messages from a server, shared by every request to it."""

    is_duplex = True
    takes_methods = True

    def __init__(self, server: ServerName, me: Implementation, limits: Limits) -> None:
        super().__init__(server, me, limits)
        self._pending: dict[int, S] = {}
        self._garbage = 0
        self._is_garbage_logged = False
        self._listening: int | None = None
        """The request on which a modern server announces changes."""
        self._next_listening: int | None = None
        """One that takes its place as soon as the server acknowledges it."""
        self._missed_changes = False
        """One of them was ended by the server, and what it told since then was not heard."""

    # -- what a kind adds ------------------------------------------------------------------------------------------

    @abstractmethod
    def _say(self, message: bytes) -> None:
        """Send what has no answer."""

    @abstractmethod
    def _can_reply(self) -> bool:
        """Whether the server takes what it is sent: one that asks and does not read would fill our memory."""

    @abstractmethod
    def _has_gone(self, sent: S) -> bool:
        """False while the request can still be kept from the server, for certain."""

    @abstractmethod
    def _take_back(self, sent: S) -> None:
        """Nobody waits any more: what has not gone stays here."""

    @abstractmethod
    def _may_have_left(self, sent: S, *, is_dead: bool) -> bool:
        """Whether a lost link's request may have reached the server, which lives on unless `is_dead`."""

    @abstractmethod
    def _cut(self) -> None:
        """End the carrier at once."""

    # -- sending ---------------------------------------------------------------------------------------------------

    def send(self, inflight: InFlight) -> None:
        """See `core.ports.Link`."""
        id = self.next_id()
        inflight.carriage = id
        waiter = waiter_for(inflight) if self.dialect.era == "legacy" else CallWaiter(inflight)
        params = self.dialect.call_params(inflight.call, inflight.name, id)
        self._dispatch(id, METHODS.get(inflight.call.kind, inflight.name), params, waiter)
        if self._early:
            self._deliver_early_soon()

    def _notify(self, method: str, params: Payload | None) -> None:
        self._say(jsonrpc.notification(method, params))

    def listen(self) -> None:
        """A modern server announces changes only to those who ask; the request stays open for the link's life."""
        if self.dialect.era == "modern" and self.capabilities.announces_changes and not self.lost.done():
            self._modern_subscriptions.again()

    def _listen_to(self, uris: Collection[str]) -> None:
        if self._listening is None:
            self._listening = self._next_listening  # it may be acknowledged soon, and the next one later
        else:
            self._stop_listening(self._next_listening)
        self._next_listening = id = self.next_id()
        self._expect_listening()
        self._dispatch(id, modern.LISTEN, self._listen_params(uris), _ListenWaiter(self, id))

    def _stop_listening(self, id: int | None) -> None:
        if id is not None and self._pending.pop(id, None) is not None:
            self._notify(CANCELLED, cancelled_params(str(id).encode(), "another takes its place"))

    # -- giving up -------------------------------------------------------------------------------------------------

    def _send_about(self, sent: S, message: bytes) -> None:
        """Send what has no answer and is about a request."""
        self._say(message)

    def may_have_run(self, inflight: InFlight) -> bool:
        """See `core.ports.Link`."""
        sent = self._pending.get(_id_of(inflight))
        return sent is None or self._has_gone(sent)

    def withdraw(self, inflight: InFlight, reason: str) -> None:
        """Take a request back, or ask the server to stop."""
        sent = self._pending.pop(_id_of(inflight), None)
        if sent is None:
            return
        if self._has_gone(sent):
            self._note_abandoned(inflight)
            id = sent.wire_id or str(sent.id).encode()
            self._send_about(sent, jsonrpc.notification(CANCELLED, cancelled_params(id, reason)))
            self._cancel_hidden_task(inflight)
        self._take_back(sent)

    def _forget(self, waiter: Waiter) -> None:
        for id, sent in self._pending.items():
            if sent.waiter is waiter:
                del self._pending[id]
                self._take_back(sent)
                return

    # -- receiving -------------------------------------------------------------------------------------------------

    def read(self, text: bytes) -> None:
        """Take one message of the server."""
        message = jsonrpc.decode(text, max_depth=self.limits.depth, max_values=None)
        match message:
            case Response(id=id):
                if (sent := self._answered(id)) is not None:
                    sent.waiter.result(message.result)
            case ErrorReply(id=id):
                if (sent := self._answered(id)) is not None:
                    self.on_error_reply(sent.waiter, message)
            case Notification():
                self.on_notification(message.method, message.params)
            case Request():
                if self._can_reply():
                    self._asked(message)
            case Malformed() if (sent := self._answered(jsonrpc.answered_in(text))) is not None:
                sent.waiter.fail(BadReply(self.server, message.message))
            case _:
                self._log_garbage(text)
                return
        self._garbage = 0

    def _asked(self, request: Request) -> None:
        """Put a server's request to the caller it can be meant for."""
        if request.method in QUESTIONS and self.client_caps:
            self._note_question()
        self._ask_only_caller(request, self._say)

    def _waiters(self) -> Iterable[Waiter]:
        return (sent.waiter for sent in self._pending.values())

    def _answered(self, id: Payload | None) -> S | None:
        """The request that an answer is for. Ids that are not ours, or not ours any more, are nobody's."""
        if id is None:
            return None
        try:
            return self._pending.pop(int(bytes(id)), None)
        except ValueError:
            return None

    def on_notification(self, method: str, params: Members) -> None:
        """Progress names its request; nothing else does."""
        if method == PROGRESS:
            sent = self._pending.get(token_of(params))
            if sent is not None:
                sent.waiter.progress(params)
            else:
                self._on_late_progress(params)
        elif method == modern.ACKNOWLEDGED:
            self._acknowledged(params)
        else:
            super().on_notification(method, params)

    def _acknowledged(self, params: Members) -> None:
        """The server tells from now on; what it says of an earlier subscription is no news."""
        named = modern.read_subscription(params)
        if self._next_listening is None or named not in (None, str(self._next_listening).encode()):
            return
        before, self._listening, self._next_listening = self._listening, self._next_listening, None
        self._stop_listening(before)
        self._listen_done()
        self._modern_subscriptions.acknowledged(modern.read_honoured(params))
        if self._missed_changes:
            self._missed_changes = self._modern_subscriptions.is_asking
            self.on_gap()

    def _on_log_line(self, line: LogMessage) -> None:
        """A line that names no call is the caller's who alone has calls here; else it is the operator's."""
        if not log_alone(line, self._waiters()):
            self.on_log(line)

    def _log_garbage(self, text: bytes) -> None:
        # Many servers print a banner to the wrong stream; once is news, the rest is noise.
        self._garbage += 1
        if self._garbage > GARBAGE_MAX:
            self._fail(f"it wrote over {GARBAGE_MAX} lines in a row that are no messages")
        elif not self._is_garbage_logged:
            self._is_garbage_logged = True
            log.warning("server wrote something that is no message", server=self.server, text=repr(text[:120]))

    # -- ending ----------------------------------------------------------------------------------------------------

    def _fail(self, reason: str) -> None:
        """The stream cannot be trusted any more: end it, and with it what was on the way."""
        self._on_broken(reason)
        self._cut()

    def _on_broken(self, reason: str, *, is_dead: bool = True) -> None:
        if self.lost.done():
            return
        self._lose(reason)
        pending, self._pending = self._pending, {}
        for sent in pending.values():
            sent.waiter.fail(lost(self.server, reason, may_have_left=self._may_have_left(sent, is_dead=is_dead)))

    def _reason(self) -> str:
        return self.lost.result() if self.lost.done() else "it is not running"

    def on_listen_ended(self, subscription: int) -> None:
        """The server ended a subscription: if no other is on its way, ask for one in a while."""
        if self._drop_listening(subscription) and not self.lost.done():
            self._missed_changes = True
            if self._next_listening is None:
                asyncio.get_running_loop().call_later(RELISTEN_SECONDS, self.listen)

    def _drop_listening(self, subscription: int) -> bool:
        """Whether it was one that matters."""
        if subscription == self._next_listening:
            self._next_listening = None
            self._modern_subscriptions.interrupted()
        elif subscription == self._listening:
            self._listening = None
            self._modern_subscriptions.closed()
        else:
            return False
        return True

    def on_listen_refused(self, subscription: int, reply: ErrorReply) -> None:
        """The server does not announce after all, or not this; what it announced before stays so."""
        if subscription == self._next_listening:
            self._next_listening = None
            refusal = ServerError(self.server, reply.code, reply.message, reply.data)
            self._listen_done(refusal)
            self._modern_subscriptions.refused(refusal)
        else:
            self.on_listen_ended(subscription)


class _ListenWaiter:
    """Waits for the end of a subscription; a refusal is told to who asked for it."""

    def __init__(self, link: DuplexLink[Any], id: int) -> None:
        self._link = link
        self._id = id

    def result(self, payload: Payload) -> None:
        """The stream was ended in good order."""
        self._link.on_listen_ended(self._id)

    def error(self, reply: ErrorReply) -> None:
        """The server does not announce after all."""
        self._link.on_listen_refused(self._id, reply)

    def fail(self, fault: Fault) -> None:
        """The link is gone, which its owner hears elsewhere."""

    def progress(self, params: Members) -> None:
        """Nobody asked for progress."""

    def log(self, line: LogMessage) -> None:
        """Nobody reads it."""

    def ask(self, question: Question, reply: OnReply) -> None:
        """Nobody can answer it."""
        reply(NOT_ASKED)


def _id_of(inflight: InFlight) -> int:
    return inflight.carriage if isinstance(inflight.carriage, int) else -1
