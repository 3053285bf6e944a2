"""Links whose responses arrive on one stream: stdio, WebSocket, servers that dial in, and HTTP+SSE.

Messages of all requests arrive mixed. Responses are matched by id, progress by its token. Requests go out on a
channel, together, at the end of a turn of the event loop. While the server has too much unread, requests are held
here: a held request can still be withdrawn for certain, a written one cannot. `StdioLink`, `SocketLink` and
`DialInLink` add the channel and its framing; `SseLink` sends each message as a POST instead. Streamable HTTP is not
such a link: each of its responses belongs to one POST.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from functools import partial
from typing import Protocol

import structlog

from isthmus.core.calls.inflight import InFlight
from isthmus.core.pauses import read_then
from isthmus.core.settings import Limits
from isthmus.model.calls import NOT_ASKED, LogMessage, OnReply, Question
from isthmus.model.faults import BadReply, Fault, ServerError
from isthmus.model.names import ServerName
from isthmus.transport.flow_control import WriteBatch
from isthmus.upstream.link import BaseLink
from isthmus.upstream.waiters import LATER_BYTES, CallWaiter, Waiter, log_alone, lost, waiter_for
from isthmus.wire import jsonrpc
from isthmus.wire.jsonrpc import ErrorReply, Malformed, Notification, Payload, Request, Response
from isthmus.wire.mcp import modern
from isthmus.wire.mcp.calls import METHODS, QUESTIONS
from isthmus.wire.mcp.messages import CANCELLED, PROGRESS, Implementation, Members, cancelled_params, token_of

log = structlog.get_logger(__name__)

HOLD_ABOVE_BYTES = 64 * 1024
"""With more than this unread by the server, further requests are held here, where they can still be withdrawn."""

GARBAGE_MAX = 10_000
"""Lines in a row that are not messages: more than any banner. Such a server is given up."""

RELISTEN_SECONDS = 5.0
"""Pause before a server that ended its subscription is asked for another one."""


class Channel(Protocol):
    """Carries bytes to the server and counts them."""

    def write(self, data: bytes) -> int:
        """Send `data`; return the offset of its end in everything ever written."""

    def has_left(self, offset: int) -> bool:
        """Whether the byte before `offset` may have reached the server."""

    def buffered_bytes(self) -> int:
        """Bytes that the server has not read yet."""

    def kill(self) -> None:
        """End the channel at once."""

    async def aclose(self) -> None:
        """End the channel in good order, within seconds."""


class SentRequest:
    """A request and its waiter. `frame` holds its bytes until they are written; `end` is where they end then."""

    __slots__ = ("end", "frame", "id", "waiter")

    wire_id: bytes | None = None
    """The caller's own id, if the request carries it instead of ours. Only some kinds of links do that."""

    def __init__(self, id: int, waiter: Waiter, frame: bytes | None = None) -> None:
        self.id = id
        self.waiter = waiter
        self.frame = frame
        self.end = 0

    @property
    def has_gone(self) -> bool:
        """False while the request can still be withdrawn for certain. A written request will be read one day."""
        return self.frame is None

    def abandon(self) -> None:
        """Stop sending the request."""


class DuplexLink(BaseLink):
    """One stream of messages from a server, shared by every request to it."""

    is_duplex = True
    takes_methods = True

    def __init__(self, server: ServerName, me: Implementation, limits: Limits) -> None:
        super().__init__(server, me, limits)
        self._pending: dict[int, SentRequest] = {}
        self._held: dict[int, SentRequest] = {}
        self._batch = WriteBatch()
        self._channel: Channel | None = None
        self._garbage = 0
        self._is_garbage_logged = False
        self._listening: int | None = None
        """The request on which a modern server announces changes."""
        self._next_listening: int | None = None
        """The request that replaces it as soon as the server acknowledges it."""
        self._missed_changes = False
        """The server ended a subscription; changes since then were missed."""

    # -- sending ---------------------------------------------------------------------------------------------------

    def send(self, inflight: InFlight) -> None:
        """See `core.ports.link.Link`."""
        id = self.next_id()
        inflight.carriage = id
        waiter = waiter_for(inflight) if self.dialect.era == "legacy" else CallWaiter(inflight)
        params = self.dialect.call_params(inflight.call, inflight.name, id)
        self._dispatch(id, METHODS.get(inflight.call.kind, inflight.name), params, waiter)
        if self._early:
            self._deliver_early_soon()

    def _dispatch(self, id: int, method: str, params: bytes, waiter: Waiter) -> None:
        """Hold the request until the end of this turn of the loop, or until the server reads again."""
        if self._channel is None or self.lost.done():
            waiter.fail(lost(self.server, self._lost_reason(), may_have_left=False))
            return
        self._pending[id] = sent = SentRequest(id, waiter, self._frame(jsonrpc.request(id, method, params)))
        if not self._held:
            self._batch.add(self)
        self._held[id] = sent

    def flush(self) -> None:
        """Write held requests: at the end of a turn of the loop, or when the server reads again."""
        channel = self._channel
        while self._held and channel is not None and channel.buffered_bytes() <= HOLD_ABOVE_BYTES:
            batch: list[SentRequest] = []
            frames: list[bytes] = []
            total_bytes = 0
            while self._held and total_bytes <= HOLD_ABOVE_BYTES:
                sent = self._held.pop(next(iter(self._held)))
                batch.append(sent)
                frames.append(sent.frame or b"")
                total_bytes += len(frames[-1])
            end = channel.write(b"".join(frames)) - total_bytes
            for sent, frame in zip(batch, frames, strict=True):
                end += len(frame)
                sent.end = end
                sent.frame = None

    def _frame(self, message: bytes) -> bytes:
        """One message as it is written to the channel."""
        raise NotImplementedError

    def _say(self, message: bytes) -> None:
        """Send a message that has no response."""
        if self._channel is not None and not self.lost.done():
            self._channel.write(self._frame(message))

    def _send_about(self, sent: SentRequest, message: bytes) -> None:
        """Send a message that has no response and concerns a request."""
        self._say(message)

    def _can_reply(self) -> bool:
        """Whether the server reads what it is sent. A server that asks without reading would fill our memory."""
        return self._channel is not None and self._channel.buffered_bytes() <= HOLD_ABOVE_BYTES

    def _notify(self, method: str, params: Payload | None) -> None:
        self._say(jsonrpc.notification(method, params))

    # -- withdrawing -----------------------------------------------------------------------------------------------

    def may_have_run(self, inflight: InFlight) -> bool:
        """See `core.ports.link.Link`."""
        sent = self._pending.get(_id_of(inflight))
        return sent is None or sent.has_gone

    def withdraw(self, inflight: InFlight, reason: str) -> None:
        """Drop a held request, or ask the server to cancel a sent one."""
        sent = self._pending.pop(_id_of(inflight), None)
        if sent is None:
            return
        if sent.has_gone:
            self._note_abandoned(inflight)
            id = sent.wire_id or str(sent.id).encode()
            self._send_about(sent, jsonrpc.notification(CANCELLED, cancelled_params(id, reason)))
            self._cancel_hidden_task(inflight)
        self._held.pop(sent.id, None)
        sent.abandon()

    def _forget(self, waiter: Waiter) -> None:
        for id, sent in self._pending.items():
            if sent.waiter is waiter:
                del self._pending[id]
                self._held.pop(id, None)
                sent.abandon()
                return

    # -- receiving -------------------------------------------------------------------------------------------------

    def read(self, text: bytes) -> None:
        """Handle one message of the server."""
        if len(text) > LATER_BYTES and (sent := self._answered(jsonrpc.answer_start(text))) is not None:
            whole = partial(jsonrpc.decode, text, max_depth=self.limits.depth, max_values=None)
            then = partial(self._take_long_answer, sent)
            read_then(whole, jsonrpc.decode_passes, then, jsonrpc.unreadable, self.server)
            return
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
                    self._on_request(message)
            case Malformed() if (sent := self._answered(jsonrpc.answered_in(text))) is not None:
                sent.waiter.fail(BadReply(self.server, message.message))
            case _:
                self._log_garbage(text)
                return
        self._garbage = 0

    def _take_long_answer(self, sent: SentRequest, message: jsonrpc.Message) -> None:
        self._garbage = 0
        match message:
            case Response():
                sent.waiter.result(message.result)
            case ErrorReply():
                self.on_error_reply(sent.waiter, message)
            case _:
                detail = message.message if isinstance(message, Malformed) else "not a JSON-RPC answer"
                sent.waiter.fail(BadReply(self.server, detail))

    def _answered(self, id: Payload | None) -> SentRequest | None:
        """Take the pending request that a response is for; None for an unknown or outdated id."""
        if id is None:
            return None
        try:
            return self._pending.pop(int(bytes(id)), None)
        except ValueError:
            return None

    def _on_request(self, request: Request) -> None:
        """Pass a server's request to the caller it must be meant for."""
        if request.method in QUESTIONS and self.client_caps:
            self._note_question()
        self._ask_only_caller(request, self._say)

    def _waiters(self) -> Iterable[Waiter]:
        return (sent.waiter for sent in self._pending.values())

    def on_notification(self, method: str, params: Members) -> None:
        """Progress names its request; other notifications name none."""
        if method == PROGRESS:
            sent = self._pending.get(token_of(params))
            if sent is not None:
                sent.waiter.progress(params)
            else:
                self._on_late_progress(params)
        elif method == modern.ACKNOWLEDGED:
            self._on_acknowledged(params)
        else:
            super().on_notification(method, params)

    def _on_log_line(self, line: LogMessage) -> None:
        """A line that names no call goes to the only caller with calls here, else to the operator."""
        if not log_alone(line, self._waiters()):
            self.on_log(line)

    def _log_garbage(self, text: bytes) -> None:
        # Many servers print a banner to the wrong stream: the first line is logged, the rest is noise.
        self._garbage += 1
        if self._garbage > GARBAGE_MAX:
            self._fail(f"it wrote over {GARBAGE_MAX} lines in a row that are not messages")
        elif not self._is_garbage_logged:
            self._is_garbage_logged = True
            log.warning("server wrote something that is not a message", server=self.server, text=repr(text[:120]))

    # -- the subscription of a modern server -----------------------------------------------------------------------

    def listen(self) -> None:
        """Subscribe to changes of a modern server; the request stays open as long as the link."""
        if self.dialect.era == "modern" and self.capabilities.announces_changes and not self.lost.done():
            self._modern_subscriptions.again()

    def _listen_to(self, uris: Collection[str]) -> None:
        if self._listening is None:
            self._listening = self._next_listening  # it may be acknowledged before the new one
        else:
            self._stop_listening(self._next_listening)
        self._next_listening = id = self.next_id()
        self._expect_listening()
        self._dispatch(id, modern.LISTEN, self._listen_params(uris), _ListenWaiter(self, id))

    def _stop_listening(self, id: int | None) -> None:
        if id is not None and self._pending.pop(id, None) is not None:
            self._notify(CANCELLED, cancelled_params(str(id).encode(), "another takes its place"))

    def _on_acknowledged(self, params: Members) -> None:
        """The new subscription is active: drop the one before it. Acknowledgements of older ones are ignored."""
        named = modern.read_subscription(params)
        if self._next_listening is None or named not in (None, str(self._next_listening).encode()):
            return
        before, self._listening, self._next_listening = self._listening, self._next_listening, None
        self._stop_listening(before)
        self._listen_done()
        self._modern_subscriptions.acknowledged(modern.read_granted(params))
        if self._missed_changes:
            self._missed_changes = self._modern_subscriptions.is_asking
            self.on_gap()

    def on_listen_ended(self, subscription: int) -> None:
        """The server ended a subscription: ask for another one in a while, unless one is on its way."""
        if subscription == self._next_listening:
            self._next_listening = None
            self._modern_subscriptions.interrupted()
        elif subscription == self._listening:
            self._listening = None
            self._modern_subscriptions.closed()
        else:
            return  # an earlier one that was replaced
        if not self.lost.done():
            self._missed_changes = True
            if self._next_listening is None:
                asyncio.get_running_loop().call_later(RELISTEN_SECONDS, self.listen)

    def on_listen_refused(self, subscription: int, reply: ErrorReply) -> None:
        """The server refused a subscription; an earlier one stays active."""
        if subscription == self._next_listening:
            self._next_listening = None
            refusal = ServerError(self.server, reply.code, reply.message, reply.data)
            self._listen_done(refusal)
            self._modern_subscriptions.refused(refusal)
        else:
            self.on_listen_ended(subscription)

    # -- ending ----------------------------------------------------------------------------------------------------

    def _fail(self, reason: str) -> None:
        """Give the stream up, and everything that is pending on it."""
        self._on_broken(reason)
        self._cut()

    def _cut(self) -> None:
        """End the channel at once."""
        if self._channel is not None:
            self._channel.kill()

    def _on_broken(self, reason: str, *, is_dead: bool = True) -> None:
        """The link is lost: every pending request ends as lost. The server is gone only if `is_dead`."""
        self._held = {}
        if self.lost.done():
            return
        self._lose(reason)
        pending, self._pending = self._pending, {}
        for sent in pending.values():
            sent.waiter.fail(lost(self.server, reason, may_have_left=self._may_have_left(sent, is_dead=is_dead)))

    def _may_have_left(self, sent: SentRequest, *, is_dead: bool) -> bool:
        """A living server may still read what was written; a dead one got only what had left."""
        if sent.frame is not None or self._channel is None:
            return False
        return not is_dead or self._channel.has_left(sent.end)

    def _lost_reason(self) -> str:
        return self.lost.result() if self.lost.done() else "it is not running"

    async def aclose(self) -> None:
        """Close the channel in good order; pending requests end as lost."""
        if self._channel is not None:
            self._on_broken("closed by the hub", is_dead=False)
            await self._channel.aclose()


class _ListenWaiter:
    """Waits for the end of a subscription."""

    def __init__(self, link: DuplexLink, id: int) -> None:
        self._link = link
        self._id = id

    def result(self, payload: Payload) -> None:
        """The server ended the subscription in good order."""
        self._link.on_listen_ended(self._id)

    def error(self, reply: ErrorReply) -> None:
        """The server refused the subscription."""
        self._link.on_listen_refused(self._id, reply)

    def fail(self, fault: Fault) -> None:
        """The link is lost; `on_lost` reports that."""

    def progress(self, params: Members) -> None:
        """A subscription has no progress."""

    def log(self, line: LogMessage) -> None:
        """A subscription has no log."""

    def ask(self, question: Question, reply: OnReply) -> None:
        """A subscription has no caller to ask."""
        reply(NOT_ASKED)


def _id_of(inflight: InFlight) -> int:
    return inflight.carriage if isinstance(inflight.carriage, int) else -1
