"""The questions of one server to its callers (elicitation, sampling, roots), and to which caller each of them goes.

On a link that callers share, a question may not say which call it belongs to. It then goes to the only program with
calls, if there is only one. Links own one `ServerQuestions` each; pools read from it whether programs may share a link.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Protocol
from weakref import ref

import msgspec

from isthmus.core.calls.running_call import InFlight, OpenQuestion
from isthmus.core.ports import ElicitationExchange, HubExchange
from isthmus.model.calls import GIVEN_UP, NO_CAPABILITIES, UNSURE, Answered, ClientCapabilities, Question, Reply
from isthmus.model.names import ServerName
from isthmus.upstream.response_waiters import UNKNOWN_SESSION, CallWaiter, RequestTable, Waiter, lone_call
from isthmus.wire import jsonrpc
from isthmus.wire.jsonrpc import ErrorReply, Request, render
from isthmus.wire.mcp.forwarded_methods import (
    ELICITATION_ID,
    QUESTIONS,
    URL_ELICITATION_REQUIRED,
    read_url_elicitations,
)

ELICITATIONS_MAX = 1_000
"""Elicitations remembered per link; the oldest are forgotten first."""

ELICITATION_ID_LENGTH_MAX = 1024

EARLY_MAX = 10
EARLY_SECONDS = 2.0
"""How long a question that arrived before its call waits for it."""


class UrlElicitations:
    """URL elicitations of one link, so that the caller can be notified when the user has finished there.

    Before 2026-07-28 a server reports that by a notification with the id of the elicitation. Calls are held weakly:
    they may end before the user is done.
    """

    def __init__(self) -> None:
        self._sent: dict[bytes, tuple[ref[InFlight], Callable[[msgspec.Raw], None] | None]] = {}

    def add(self, id: msgspec.Raw, inflight: InFlight) -> None:
        """Remember that an elicitation with this id sent the user of this call to a URL."""
        if len(memoryview(id)) > ELICITATION_ID_LENGTH_MAX:
            return
        exchange = inflight.exchange
        later = exchange.done_later() if isinstance(exchange, ElicitationExchange) else None
        self._sent[bytes(id)] = (ref(inflight), later)
        if len(self._sent) > ELICITATIONS_MAX:
            del self._sent[next(iter(self._sent))]

    def completed(self, id: msgspec.Raw) -> None:
        """The user has finished: notify the caller once, through its call or, if that is over, beside its calls."""
        call, later = self._sent.pop(bytes(id), (None, None))
        inflight = None if call is None else call()
        if inflight is not None and inflight.outcome is None:
            inflight.elicitation_complete(id)
        elif later is not None:
            later(id)


class Say(Protocol):
    """Sends a message to the server."""

    def __call__(self, message: bytes, *, is_awaited: bool = False) -> None:
        """The server waits for the message if `is_awaited`: it must not be dropped under load."""


class ServerQuestions:
    """The questions that one link has received."""

    __slots__ = (
        "_lost",
        "_open",
        "_requests",
        "abandoned_session",
        "can_wait",
        "client_caps",
        "early",
        "has_asked",
        "has_unanswered",
        "on_question",
        "server",
        "url_elicitations",
    )

    def __init__(self, server: ServerName, requests: RequestTable, lost: asyncio.Future[str]) -> None:
        self.server = server
        self._requests = requests
        self._lost = lost
        self.client_caps: ClientCapabilities = NO_CAPABILITIES
        """What the callers on this link can be asked; sent in `initialize` to a legacy server."""
        self.on_question: Callable[[], None] = _ignore
        """Called for a question that does not name its call: programs should not share such a link."""
        self.has_asked = False
        """Whether there was such a question, even before a pool owned the link."""
        self.can_wait = True
        """Whether a question that arrives between calls may belong to the next call."""
        self.has_unanswered = False
        """Whether such a question got no answer. A server that asks only once needs a new handshake."""
        self.abandoned_session: str | None = None
        """The session, or `UNKNOWN_SESSION`, of abandoned calls about which the server may still ask; None if there are
        none."""
        self.url_elicitations = UrlElicitations()
        self.early: dict[bytes, tuple[Request, Say, asyncio.TimerHandle]] = {}
        """Questions that arrived before a call they could belong to, and how they are answered."""
        self._open: dict[bytes, OpenQuestion] = {}
        """Questions that callers have not answered, by the server's ids."""

    def note_question(self) -> None:
        """The server asked without naming a call."""
        self.has_asked = True
        self.on_question()

    def ask_only_caller(self, request: Request, say: Say) -> bool:
        """Pass a request that names no call to the only possible caller.

        Returns whether it is a question that arrived while there was no call. Some servers ask for the roots right
        after the handshake, before the call that the link was made for is sent. Such a question waits a moment for the
        call. A question about an earlier call must not reach the next caller.
        """
        is_question = request.method in QUESTIONS and self.client_caps
        if not is_question or any(isinstance(waiter, CallWaiter) for waiter in self._requests.waiters()):
            self.ask_caller(request, lone_call(self._requests.waiters(), self.abandoned_session), say)
            return False
        self._drop_early(bytes(request.id))
        if self.can_wait and len(self.early) < EARLY_MAX:
            timer = asyncio.get_running_loop().call_later(EARLY_SECONDS, self._deliver_early, request, say)
            self.early[bytes(request.id)] = (request, say, timer)
            return True
        if not self.can_wait:
            self.abandoned_session = UNKNOWN_SESSION
        self.has_unanswered = True
        self.ask_caller(request, None, say)
        return True

    def deliver_early(self) -> None:
        """A call was sent: deliver `early` questions to it, once its sender has registered it."""
        for request, say, _ in self.early.values():
            asyncio.get_running_loop().call_soon(self._deliver_early, request, say)

    def _deliver_early(self, request: Request, say: Say) -> None:
        if self._drop_early(bytes(request.id)) and not self._lost.done():
            waiter = lone_call(self._requests.waiters(), self.abandoned_session)
            self.has_unanswered |= waiter is None
            self.ask_caller(request, waiter, say)

    def _drop_early(self, id: bytes) -> bool:
        """Stop waiting for a call for this question; False if it is unknown."""
        early = self.early.pop(id, None)
        if early is not None:
            early[-1].cancel()
        return early is not None

    def ask_caller(self, request: Request, waiter: Waiter | None, say: Say) -> None:
        """Pass a server's request to its caller, if the caller is known and the method is a question."""
        if request.method not in QUESTIONS or (waiter is None and not self.client_caps):
            say(reply_to(request))
            return
        if waiter is None:
            say(_render_reply(request, UNSURE))
            return
        source = self.server if "_meta" in request.params else None
        question = Question(request.method, msgspec.Raw(render(request.params)), source)
        # An answer may take hours: keep only the id, not the whole message.
        bare = Request(request.id.copy(), request.method, {})
        asked = waiter.ask(question, partial(self._reply, bare, say))
        if asked is not None:
            self._open[bytes(request.id)] = asked
            if (id := request.params.get(ELICITATION_ID)) is not None and asked.asked_of is not None:
                self.url_elicitations.add(id, asked.asked_of)

    def _reply(self, request: Request, say: Say, reply: Reply) -> None:
        was_open = self._open.pop(bytes(request.id), None) is not None
        if reply is not GIVEN_UP:
            # An immediate refusal may be dropped: the server can cause one as often as it likes.
            say(_render_reply(request, reply), is_awaited=was_open)

    def cancel(self, id: bytes) -> None:
        """The server withdrew its request; the specification forbids a reply."""
        self._drop_early(id)
        if (asked := self._open.pop(id, None)) is not None:
            asked.retract()

    def note_error(self, waiter: Waiter, reply: ErrorReply) -> None:
        """If the server's error sends the user to a URL first, remember the call for that."""
        if reply.code == URL_ELICITATION_REQUIRED and isinstance(waiter, CallWaiter):
            for id in read_url_elicitations(reply.data):
                self.url_elicitations.add(id, waiter.inflight)

    def note_abandoned(self, inflight: InFlight) -> None:
        """A call that may have reached the server was abandoned: the server may still ask about it."""
        session = inflight.call.session
        if not isinstance(inflight.exchange, HubExchange):
            self.abandoned_session = session if self.abandoned_session in (None, session) else UNKNOWN_SESSION

    def retract_all(self) -> None:
        """The link is lost."""
        questions, self._open = self._open, {}
        for asked in questions.values():
            asked.retract()


def _ignore() -> None:
    """One function for all links: there may be ten thousand of them."""


def reply_to(request: Request) -> bytes:
    """Answer a server's request that is for no caller: the hub itself only answers pings."""
    if request.method == "ping":
        return jsonrpc.result(request.id, b"{}")
    text = f"{request.method} is not supported by this client"
    return jsonrpc.error(request.id, jsonrpc.METHOD_NOT_FOUND, text)


def _render_reply(request: Request, reply: Reply) -> bytes:
    if isinstance(reply, Answered):
        return jsonrpc.result(request.id, reply.result)
    return jsonrpc.error(request.id, reply.code, reply.message)
