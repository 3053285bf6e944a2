"""MCP over transports that carry messages both ways on one stream: stdio and the earlier HTTP+SSE transport.

A `DuplexSession` knows no sockets and no framing: its owner passes in whole messages and sends whole messages. It
serves both eras. `McpStdio` frames one as lines; `sse` and dial-in connections have their own framing.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias
from weakref import WeakSet

import msgspec

from isthmus.core.access.bytes_in_flight import COUNTED_BYTES
from isthmus.core.background import BackgroundTasks
from isthmus.core.calls.running_call import InFlight
from isthmus.core.event_loop import LONG_BYTES, read_then
from isthmus.frontends.mcp.batches import BATCH_MAX, BATCHES_VERSION
from isthmus.frontends.mcp.exchange import (
    ClientInput,
    JsonRpcReply,
    McpExchange,
    cancelled_reply,
    refuse,
    reject,
    updated_notification,
)
from isthmus.frontends.mcp.input_required import LegacyClientInput
from isthmus.frontends.mcp.methods import McpMethods, client_capabilities
from isthmus.frontends.mcp.subscriptions import (
    CallerSubscriptions,
    FoundTools,
    ListChangeFeed,
    ListenSubscription,
    McpClient,
    SubscriptionStream,
    TaskStatusNotifier,
)
from isthmus.frontends.mcp.tasks import needs_session, status_notification
from isthmus.model.callers import Caller
from isthmus.model.calls import Call, Event, LogLevel, Outcome, Surface
from isthmus.model.fault_table import TooManyBytes
from isthmus.model.features import TOPICS
from isthmus.wire import jsonrpc, lines
from isthmus.wire.jsonrpc import Batch, ErrorReply, Malformed, Notification, Request, Response
from isthmus.wire.lines import Oversized
from isthmus.wire.mcp import legacy, modern
from isthmus.wire.mcp.forwarded_methods import CALLS
from isthmus.wire.mcp.messages import (
    CALLER_KEY,
    CANCELLED,
    CHANGED,
    Era,
    Implementation,
    Members,
    read_client_capabilities,
    read_string,
)

OnRead: TypeAlias = Callable[[JsonRpcReply | None], None]

INITIALIZED = "notifications/initialized"
_NESTED = refuse(None, jsonrpc.INVALID_REQUEST, "A batch must not contain another batch")


class CallOrigin(msgspec.Struct, frozen=True):
    """Who makes a call on a session that carries the calls of several callers."""

    caller: Caller
    session: str = ""
    shares_link: bool = False
    sharer: str = ""
    is_admitted: bool = False
    """These are as in `Call`."""


class DuplexSession:
    """One caller's session: `receive` gets each message that was read, and `send` is called with each to write."""

    def __init__(
        self,
        mcp_methods: McpMethods,
        caller: Caller,
        surface: Surface,
        background: BackgroundTasks,
        send: Callable[[bytes], None],
        is_crowded: Callable[[], bool] = lambda: False,
        session: str | None = None,
        resolve_caller: Callable[[Members], CallOrigin | None] | None = None,
    ) -> None:
        """`is_crowded` says that the caller reads slowly; droppable messages are skipped then.

        `session` is the id of an earlier session that continues. Another hub, which calls and lists on behalf of
        others, has `resolve_caller`, which reads a modern call's `_meta`.
        """
        self._is_crowded = is_crowded
        self._resolve_caller = resolve_caller or (lambda _meta: None)
        self._methods = mcp_methods
        self._hub = mcp_methods.hub
        self.found = FoundTools()
        id = session or secrets.token_hex(8)
        self._client = McpClient(
            mcp_methods.hub, caller, surface, session=id, found=self.found, is_hub=resolve_caller is not None
        )
        self.session_id = self._client.session
        self._caller = caller
        self._surface = surface
        self._background = background
        self.send = send
        self._calls: dict[bytes, InFlight] = {}
        self._suspended: WeakSet[InFlight] = WeakSet()
        """Calls that have asked a modern caller something, which returns with answers."""
        self._waiting: set[bytes] = set()
        """Calls that wait for starting servers before they are sent."""
        self._subscriptions = CallerSubscriptions(
            self._client, lambda uri: send(updated_notification(uri)), is_crowded=is_crowded
        )
        self.version = ""
        """The version negotiated with a legacy caller."""
        self.client_info: Implementation | None = None
        """What the client calls itself."""
        self._client_input = LegacyClientInput()
        self._list_changes: ListChangeFeed | None = None
        self._task_status: TaskStatusNotifier | None = None
        self._listens: dict[bytes, ListenSubscription] = {}
        """A modern caller's `subscriptions/listen`, by request id; those not acknowledged yet among them."""
        self._is_notifying = True
        self._unread: deque[tuple[bytes, OnRead]] = deque()
        """Messages that wait for a long one before them to be read, and that one."""
        self.is_counted_on_arrival = False
        """Whether the transport has counted the bytes of a long request until it was passed in."""
        self._unanswered = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def is_idle(self) -> bool:
        """Whether every request so far has been answered."""
        return self._idle.is_set()

    @property
    def running_calls(self) -> int:
        """How many calls run."""
        return len(self._calls)

    def arguments_bytes(self) -> int:
        """The size of the arguments of all running calls, and of the messages that are still being read."""
        running = sum(memoryview(inflight.call.arguments).nbytes for inflight in self._calls.values())
        return running + sum(len(body) for body, _ in self._unread)

    def has_asked(self) -> bool:
        """Whether a call waits for its modern caller, which returns with answers."""
        return any(each.outcome is None for each in self._suspended)

    async def finish(self) -> None:
        """Wait until every request so far has been answered."""
        self.stop_notifying()
        await self._idle.wait()

    def stop_notifying(self) -> None:
        """Send only responses from now on."""
        self._is_notifying = False
        if self._list_changes is not None:
            self._list_changes.close()
        if self._task_status is not None:
            self._task_status.close()
        for id in list(self._listens):
            self._end_listen(id)
        self._subscriptions.close()

    def cancel_all(self, why: str) -> None:
        """The caller has left: cancel its calls."""
        for _, on_read in self._unread:
            on_read(None)
            self._end()
        self._unread.clear()
        self._waiting.clear()
        self._client_input.close()
        for inflight in list(self._calls.values()):
            inflight.cancel(why)
        self._hub.session_ended(self._client.session)

    # -- receiving -------------------------------------------------------------------------------------------------

    def receive(self, body: bytes, on_read: OnRead) -> None:
        """Receive one message; `on_read` gets the error response to an unreadable one, for the transport to send.

        A long message is read in turns of the event loop, and those behind it wait: one may cancel it.
        """
        if self._unread or len(body) > LONG_BYTES:
            self._begin()
            self._unread.append((body, on_read))
            if len(self._unread) == 1:
                self._read_next()
        else:
            on_read(self._receive(jsonrpc.decode(body, max_depth=self._hub.limits.depth), body))

    def _read_next(self) -> None:
        body, _ = self._unread[0]
        whole = partial(jsonrpc.decode, body, max_depth=self._hub.limits.depth)
        read_then(whole, jsonrpc.decode_passes, partial(self._was_read, body), jsonrpc.unreadable, self._client.session)

    def _was_read(self, body: bytes, message: jsonrpc.Message) -> None:
        """A long message was read: handle it and the short ones behind it."""
        if not self._unread or self._unread[0][0] is not body:
            return None  # the caller has left meanwhile
        _, on_read = self._unread.popleft()
        on_read(self._receive(message, body))
        self._end()
        while self._unread:
            body, on_read = self._unread[0]
            if len(body) > LONG_BYTES:
                return self._read_next()
            self._unread.popleft()
            on_read(self._receive(jsonrpc.decode(body, max_depth=self._hub.limits.depth), body))
            self._end()
        return None

    def _receive(self, message: jsonrpc.Message, body: bytes) -> JsonRpcReply | None:
        match message:
            case Request(method=method) if method in CALLS and not self._hub.settling:
                # Now and not in a task: its cancellation may be the next message.
                self._begin()
                self._call(message, len(body))
            case Request():
                self._begin()
                if message.method in CALLS:
                    self._waiting.add(bytes(message.id))
                crash_reply = refuse(message.id, jsonrpc.INTERNAL_ERROR, "Internal error; see the hub's log")
                self._background.spawn(
                    f"answer to {message.method}",
                    self._answer(message, len(body)),
                    on_crash=lambda _: self._reply(crash_reply),
                )
            case Notification():
                self._notification(message)
            case Malformed():
                return refuse(message.id, message.code, message.message)
            case Batch():
                return self._batch(body)
            case Response() | ErrorReply():
                self._client_input.receive(message)
        return None

    def _batch(self, body: bytes) -> JsonRpcReply | None:
        """Receive a batch, if the caller's version has batches; each message is answered by itself."""
        if self.version != BATCHES_VERSION:
            return refuse(None, jsonrpc.INVALID_REQUEST, "Batches are not supported")
        if not (elements := jsonrpc.elements(body, BATCH_MAX)):
            return refuse(None, jsonrpc.INVALID_REQUEST, f"A batch has 1 to {BATCH_MAX} messages")
        for element in elements:
            message = jsonrpc.decode(element, max_depth=self._hub.limits.depth)
            self.send_refusal(_NESTED if isinstance(message, Batch) else self._receive(message, element))
        return None

    def send_refusal(self, refused: JsonRpcReply | None) -> None:
        """Send the error response to an unreadable message on the stream."""
        if refused is not None:
            self.send(refused.body)

    def _notification(self, notification: Notification) -> None:
        if notification.method == INITIALIZED and self._list_changes is None and self._is_notifying:
            self._subscriptions.receive_default_logs()
            self._task_status = TaskStatusNotifier(
                self._client, lambda task: self.send(status_notification(task, self._caller)), self._is_crowded
            )
            self._list_changes = ListChangeFeed(
                self._client, lambda topic: self.send(jsonrpc.notification(CHANGED[topic], None)), TOPICS
            )
        elif notification.method == CANCELLED and "requestId" in notification.params:
            id = bytes(notification.params["requestId"])
            if (inflight := self._calls.get(id)) is not None:
                given = read_string(notification.params.get("reason")) if inflight.call.is_admitted else None
                inflight.cancel(given or "by the caller")
            self._end_listen(id)
            self._waiting.discard(id)

    # -- answering -------------------------------------------------------------------------------------------------

    async def _answer(self, request: Request, size: int) -> None:
        if request.method in CALLS:
            return await self._call_when_settled(request, size)
        meta = modern.check(request, None)
        if isinstance(meta, modern.Rejection):
            return self._reply(reject(request.id, meta))
        if meta is not None and CALLER_KEY in meta:
            origin = self._resolve_caller(meta)
            if origin is not None and origin.is_admitted:
                if request.method == modern.LISTEN:
                    return await self._listen(request, origin)
                return self._call_method(request, origin)
        era: Era = "legacy" if meta is None else "modern"
        if request.method == modern.LISTEN and era == "modern":
            return await self._listen(request)
        reply = await self._methods.change_subscription(request, self._subscriptions) if era == "legacy" else None
        if reply is None:
            if request.method == "initialize":
                self.version = legacy.negotiate(legacy.requested_version(request.params) or "")
                self.client_info = legacy.read_client_info(request.params.get("clientInfo"))
                client_caps = read_client_capabilities(request.params.get("capabilities"))
                self._client = msgspec.structs.replace(self._client, client_caps=client_caps)
                self._subscriptions.client = self._client
            reply = await self._methods.answer(request, self._client, era, self.version)
        return self._reply(reply)

    async def _call_when_settled(self, request: Request, size: int) -> None:
        """Start a call after giving starting servers their time, unless the caller cancels it meanwhile."""
        id = bytes(request.id)
        await self._hub.wait_connected(
            self._surface, until=partial(self._methods.is_known, request, self._caller, self._surface)
        )
        if id in self._waiting:
            self._waiting.discard(id)
            self._call(request, size)
        else:
            self._reply(cancelled_reply(request.id))

    def _call(self, request: Request, size: int) -> None:
        meta = modern.check(request, None)
        if isinstance(meta, modern.Rejection):
            return self._reply(reject(request.id, meta))
        era: Era = "legacy" if meta is None else "modern"
        resolved = None if meta is None else self._resolve_caller(meta)
        origin = resolved or CallOrigin(self._caller, self._client.session)
        read = self._methods.read_call(
            request, origin.caller, self._surface, meta, self._subscriptions.level, self._client.client_caps
        )
        if isinstance(read, JsonRpcReply):
            return self._reply(read)
        call, token = read
        if self._hub.is_cutting and era == "legacy" and self.version in legacy.LINKLESS:
            call = msgspec.structs.replace(call, knows_links=False)
        if call.client_caps or (call.extra and needs_session(call)):
            call = msgspec.structs.replace(call, session=origin.session, shares_link=origin.shares_link)
        if origin.is_admitted:
            call = msgspec.structs.replace(call, is_admitted=True, sharer=origin.sharer)
        id = bytes(request.id)
        level = call.log_level if era == "modern" else call.log_level or "debug"
        client_input: ClientInput | None = self._client_input if era == "legacy" else self._methods.client_input
        exchange = _DuplexExchange(self, id, era, token, level, call, client_input)
        if size > COUNTED_BYTES and (refused := self._hold(exchange, size)) is not None:
            exchange.end(refused)
            return None
        inflight = self._methods.start(call, exchange)
        if inflight is not None and inflight.outcome is None and inflight.exchange is exchange:
            self._calls[id] = inflight
            self._suspended.discard(inflight)
            if call.client_caps and era == "modern":
                exchange.inflight = inflight
        return None

    def _call_method(self, request: Request, origin: CallOrigin) -> None:
        """Pass on a request that a caller at another node makes, of a method that hubs do not know."""
        params = msgspec.Raw(jsonrpc.render({name: value for name, value in request.params.items() if name != "_meta"}))
        call = Call(
            origin.caller,
            self._surface,
            request.method,
            params,
            kind="method",
            frontend=self._methods.frontend,
            sharer=origin.sharer,
            is_admitted=True,
        )
        id = bytes(request.id)
        # As the server answered: in the modern era, results have a type.
        exchange = _DuplexExchange(self, id, "legacy", None, None, call, None)
        inflight = self._hub.start(call, exchange)
        if inflight.outcome is None:
            self._calls[id] = inflight

    def _hold(self, exchange: _DuplexExchange, size: int) -> TooManyBytes | None:
        """Count the bytes of a long call until it ends, or return why they are too much."""
        bytes_in_flight = self._hub.bytes_in_flight
        if self.is_counted_on_arrival:
            bytes_in_flight.hold(self._caller, size)
        elif (refused := bytes_in_flight.enter(self._caller, size)) is not None:
            return refused
        exchange.held_bytes = size
        return None

    def call_ended(self, id: bytes, reply: JsonRpcReply, held_bytes: int) -> None:
        """A call has ended, or has asked its caller something."""
        inflight = self._calls.pop(id, None)
        if inflight is not None and inflight.outcome is None:
            self._suspended.add(inflight)
        if held_bytes:
            self._hub.bytes_in_flight.leave(self._caller, held_bytes)
        self._reply(reply)

    async def _listen(self, request: Request, origin: CallOrigin | None = None) -> None:
        """Open a subscription; one of a caller at another node has an `origin`."""
        client_caps = client_capabilities(request, "modern")
        wanted = self._methods.read_listen_filter(request, client_caps)
        if isinstance(wanted, JsonRpcReply):
            self._reply(wanted)
            return
        id = bytes(request.id)
        self._end_listen(id)
        stream = SubscriptionStream(request.id, self.send, frame=bytes)
        client = msgspec.structs.replace(self._client, client_caps=client_caps)
        if origin is not None:
            client = msgspec.structs.replace(client, caller=origin.caller, session=origin.session)
        subscription = ListenSubscription(client, stream, self._is_crowded, self._methods.hub_tasks)
        self._listens[id] = subscription
        granted = await subscription.open(wanted)
        if self._is_notifying and self._listens.get(id) is subscription:
            self.send(stream.acknowledgement(granted))
            subscription.start()
            subscription.watch_lists(granted.topics)
        else:  # it was cancelled meanwhile, or the caller has left
            subscription.close()
        self._end()  # the request has no response while the session lasts

    def _end_listen(self, id: bytes) -> None:
        subscription = self._listens.pop(id, None)
        if subscription is not None:
            subscription.close()

    # -- sending ---------------------------------------------------------------------------------------------------

    def send_report(self, message: bytes) -> None:
        """Send what a later report replaces; dropped if the caller reads slowly."""
        if not self._is_crowded():
            self.send(message)

    def _reply(self, reply: JsonRpcReply) -> None:
        self.send(reply.body)
        self._end()

    def _begin(self) -> None:
        self._unanswered += 1
        self._idle.clear()

    def _end(self) -> None:
        self._unanswered -= 1
        if not self._unanswered:
            self._idle.set()


class _DuplexExchange(McpExchange):
    """The exchange of a call on a duplex session."""

    __slots__ = ("_duplex", "held_bytes")

    def __init__(
        self,
        duplex: DuplexSession,
        id: bytes,
        era: Era,
        token: msgspec.Raw | None,
        level: LogLevel | None,
        call: Call,
        client_input: ClientInput | None,
    ) -> None:
        self._duplex = duplex
        self.held_bytes = 0
        """The size of a long request."""
        self._id = id
        self._era = era
        self._token = token
        self._level = level
        self._client_input = client_input
        self.call = call
        self.inflight = None

    def emit(self, event: Event) -> None:
        """Send an event, if the caller asked for such events."""
        message = self._render_event(event)
        if message is not None:
            self._duplex.send_report(message)

    def send(self, message: bytes) -> None:
        """See `McpExchange`."""
        self._duplex.send(message)

    def _late_send(self) -> Callable[[bytes], None]:
        return self._duplex.send_report

    def tools_found(self, names: Sequence[str]) -> None:
        """See `FindingExchange`; a modern caller has no session."""
        if self._era == "legacy":
            self._duplex.found.add(names)

    @property
    def session_id(self) -> str:
        """See `SessionExchange`."""
        return self._duplex.session_id

    def end(self, outcome: Outcome) -> None:
        """Send the response."""
        held_bytes, self.held_bytes = self.held_bytes, 0
        self._duplex.call_ended(bytes(self._id), self._reply_to(outcome), held_bytes)


class McpStdio:
    """A duplex session over standard streams, one line a message: `feed` gets what was read, `write` the lines."""

    def __init__(
        self,
        mcp_methods: McpMethods,
        caller: Caller,
        surface: Surface,
        background: BackgroundTasks,
        write: Callable[[bytes], None],
        is_crowded: Callable[[], bool] = lambda: False,
    ) -> None:
        """`is_crowded` says that the caller reads slowly."""
        self._write = write
        self._session = DuplexSession(mcp_methods, caller, surface, background, self._send, is_crowded)
        self._decoder = lines.LineDecoder(mcp_methods.hub.limits.request_bytes)
        self.finish = self._session.finish
        self.cancel_all = self._session.cancel_all

    def feed(self, chunk: bytes) -> None:
        """Receive what was read from the caller."""
        for line in self._decoder.feed(chunk):
            if isinstance(line, Oversized):
                text = f"a message may have {line.limit_bytes} bytes at most"
                self._session.send_refusal(refuse(None, jsonrpc.INVALID_REQUEST, text))
            else:
                self._session.receive(bytes(line), self._session.send_refusal)

    def _send(self, message: bytes) -> None:
        self._write(lines.frame(message))
