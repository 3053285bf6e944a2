"""The connection of one admitted device: its JSON-RPC requests over a WebSocket, and the hub's responses.

The hub answers `initialize`, `tools/list` and `ping` itself, in the order of the requests. A `tools/call` goes to one
server and is answered when it ends. Every other method goes to all servers of the agent (`broadcast`). A list, and a
call of an unknown tool, wait a moment for servers that are just connecting. No asyncio task runs per call: a call is an
entry in the hub's tables, and its end sends the response.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

import msgspec
import structlog

from isthmus.core.access.bytes_in_flight import COUNTED_BYTES
from isthmus.core.calls.running_call import InFlight
from isthmus.core.event_loop import LONG_BYTES, read_then
from isthmus.frontends.http.request_cycle import CROWDED_BYTES
from isthmus.frontends.relay.agents import DeviceTool, RelayAgent
from isthmus.frontends.relay.broadcast import SHORTEST_SECONDS, Broadcast, BroadcastRequest
from isthmus.frontends.relay.faults import NO_NAME, fault_reply, no_such_method, refusal
from isthmus.frontends.relay.server_arrivals import ArrivalWait, ResponseQueue, Waits
from isthmus.model.calls import (
    EVERYTHING,
    NO_CAPABILITIES,
    NOT_ASKED,
    Call,
    Event,
    OnReply,
    Outcome,
    Progress,
    Question,
    Result,
)
from isthmus.model.fault_table import Bug, Cancelled, Executed, Fault, NotConnected, TooManyBytes, UnknownTool
from isthmus.model.relay import Claim, RelayDevice
from isthmus.wire import jsonrpc
from isthmus.wire.jsonrpc import (
    Batch,
    Malformed,
    Message,
    Notification,
    Payload,
    Request,
    notification,
    object_members,
    render,
)
from isthmus.wire.mcp import legacy, modern
from isthmus.wire.mcp.forwarded_methods import (
    INPUT_MEMBERS,
    CallRequest,
    passed_extra,
    passed_meta,
    read_request,
    wrap_bare_result,
)
from isthmus.wire.mcp.lists import array_of
from isthmus.wire.mcp.messages import (
    CANCELLED,
    PROGRESS,
    PROGRESS_TOKEN,
    TOOLS_CHANGED,
    Implementation,
    Members,
    progress_params,
    read_string,
)
from isthmus.wire.mcp.tasks import TASK
from isthmus.wire.relay.device_messages import (
    add_server_id,
    broadcast_result,
    decode,
    list_result,
    render_with_server_id,
    server_counts,
    with_error_text,
)

log = structlog.get_logger(__name__)

CALLS_MAX = 64
"""Concurrent calls of one device."""

PENDING_MAX = 64
"""Responses of one device that may wait for servers, and its concurrent broadcasts."""

HELD_BYTES_MAX = 16 * 1024 * 1024
"""Bytes of one device's unanswered requests; a few of the longest messages fit."""

UNREAD_FRAMES = 4
"""How many of the longest responses a device may leave unread; a further one becomes a short error. From half of it on,
new calls are refused."""

SHORT_ANSWER_BYTES = 2 * 1024
"""A response that is no longer than such an error."""

ID_BYTES_MAX = 1024
"""Request ids are kept and repeated in responses; longer ones are rejected."""

TITLE_LENGTH = 100

CURSOR_LENGTH_MAX = 64
"""Longer than any cursor of the hub."""

NO_CURSOR = "-"

DISCONNECTED = "the device disconnected"
ID_REUSED = "the device reused the request id"

BAD_CURSOR = "Invalid cursor: use the nextCursor of a tools/list result, or none"
TOO_MUCH = f"unanswered requests of this device exceed {HELD_BYTES_MAX} bytes; try again later"

CALL = "tools/call"

INITIALIZED = "notifications/initialized"

NOT_FOR_SERVERS = INPUT_MEMBERS | {TASK}
"""Parameters that are not forwarded: devices cannot receive input requests, and have no tasks."""

OWN_METHODS = frozenset({CALL, "initialize", "tools/list", "ping"})

REFUSED = frozenset({"logging/setlevel", "resources/subscribe", "resources/unsubscribe", "server/discover"})

REFUSED_PREFIXES = ("tasks/", "subscriptions/", "sampling/", "elicitation/", "roots/", "notifications/")
"""Methods that would change a server's state for all callers, that only clients implement, or that have no response."""

TOOLS_CHANGED_MESSAGE = jsonrpc.notification(TOOLS_CHANGED)


class DeviceSocket(Protocol):
    """The part of `transport.accepted_socket.AcceptedSocket` that a device's connection uses."""

    client: str | None
    on_binary: Callable[[bytes], None] | None

    def send(self, message: bytes) -> None:
        """Send a text message."""

    def buffered_bytes(self) -> int:
        """Bytes that the device has not read yet."""

    def close(self, code: int, reason: str = "") -> None:
        """Close the socket; nothing more is received."""


class DeviceCall:
    """One `tools/call` of a device. `size` is the length of its message."""

    __slots__ = ("_connection", "_token", "id", "inflight", "name", "size", "wait")

    def __init__(
        self, connection: DeviceConnection, id: msgspec.Raw, name: str, token: msgspec.Raw | None, size: int
    ) -> None:
        """`name` is the device's name for the tool, `token` its progress token."""
        self._connection = connection
        self._token = token
        self.id = id
        self.name = name
        self.size = size
        self.inflight: InFlight | None = None
        self.wait: ArrivalWait | None = None
        """Set while the call waits for its server to connect, before it starts."""

    def cancel(self, why: str) -> None:
        """Cancel the call, started or not."""
        if self.inflight is not None:
            self.inflight.cancel(why)
        elif self.wait is not None:
            self.wait.stop()
            self.wait = None
            self.end(Cancelled(why, executed="no"))

    def emit(self, event: Event) -> None:
        """Forward progress if the device requested it."""
        if self._token is not None and isinstance(event, Progress):
            self._connection.report(notification(PROGRESS, progress_params(self._token, event.members)))

    def ask(self, question: Question, reply: OnReply) -> None:
        """Decline: devices claim that they support input requests, but never answer them."""
        reply(NOT_ASKED)

    def end(self, outcome: Outcome) -> None:
        """Send the response."""
        self.inflight = None  # breaks the reference cycle
        self._connection.call_ended(self, outcome)


class DeviceConnection:
    """One connected device. `on_end` is called once, when the socket ends or is closed."""

    __slots__ = (
        "_agent",
        "_answered",
        "_broadcasts",
        "_calls",
        "_connected_at",
        "_held_bytes",
        "_implementation",
        "_is_draining",
        "_is_initialized",
        "_is_open",
        "_on_end",
        "_responses",
        "_socket",
        "_title",
        "_unread",
        "claim",
        "id",
    )

    def __init__(
        self,
        socket: DeviceSocket,
        agent: RelayAgent,
        claim: Claim,
        implementation: Implementation,
        connected_at: float,
        on_end: Callable[[DeviceConnection], None],
    ) -> None:
        self.id = secrets.token_hex(6)
        self.claim = claim
        self._socket = socket
        self._agent = agent
        self._implementation = implementation
        self._connected_at = connected_at
        self._on_end = on_end
        self._title: str | None = None
        self._calls: set[DeviceCall] = set()
        self._broadcasts: set[Broadcast] = set()
        self._responses = ResponseQueue()
        self._answered = 0
        self._held_bytes = 0
        self._unread: deque[bytes] = deque()
        """Messages that wait for a long one before them to be read, and that one."""
        self._is_open = True
        self._is_initialized = False
        self._is_draining = False
        socket.on_binary = self._read_binary

    def summary(self) -> RelayDevice:
        """The device as it is listed."""
        client, calls = self._socket.client, len(self._calls)
        return RelayDevice(self.id, self._agent.key, self._connected_at, client, self._title, calls, self._answered)

    # -- closing ---------------------------------------------------------------------------------------------------

    def connection_ended(self, reason: str) -> None:
        """The device has disconnected."""
        self._end()

    def flush(self) -> None:
        """Nothing is held back while the device reads slowly."""

    def close(self, code: int, reason: str) -> None:
        """Close the connection and cancel its requests."""
        if self._is_open:
            self._socket.close(code, reason)
            self._end()

    def drain(self) -> None:
        """Close the connection once all of its requests are answered."""
        self._is_draining = True
        self._close_if_drained()

    def _close_if_drained(self) -> None:
        if self._is_draining and not (self._calls or self._broadcasts or self._responses or self._unread):
            self.close(1012, "the hub is restarting")

    def _end(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        self._responses.close()
        for broadcast in list(self._broadcasts):
            self._forget(broadcast)
            broadcast.cancel(DISCONNECTED)
        for exchange in list(self._calls):
            exchange.cancel(DISCONNECTED)
        self._on_end(self)

    # -- reading ---------------------------------------------------------------------------------------------------

    def read(self, text: bytes | memoryview) -> None:
        """Receive one message. A long one is read in turns of the event loop, and those behind it wait."""
        text = bytes(text)
        if not self._unread and len(text) <= LONG_BYTES:
            self._receive(decode(text, max_depth=self._agent.hub.limits.depth), len(text))
            return
        self._unread.append(text)
        if len(self._unread) == 1:
            self._read_next()

    def _read_next(self) -> None:
        whole = partial(decode, self._unread[0], max_depth=self._agent.hub.limits.depth)
        read_then(whole, jsonrpc.decode_passes, self._was_read, jsonrpc.unreadable, self._agent)

    def _was_read(self, message: Message) -> None:
        """The first unread message was read: handle it and the short ones behind it."""
        if not self._is_open:
            self._unread.clear()
            return
        text = self._unread.popleft()
        if isinstance(message, Malformed) and message.code == jsonrpc.INVALID_PARAMS:
            message = decode(text, max_depth=self._agent.hub.limits.depth)  # it may have a form that devices send
        self._receive(message, len(text))
        while self._unread and self._is_open:
            if len(self._unread[0]) > LONG_BYTES:
                self._read_next()
                return
            text = self._unread.popleft()
            self._receive(decode(text, max_depth=self._agent.hub.limits.depth), len(text))
        self._close_if_drained()

    def _receive(self, message: Message, size: int) -> None:
        try:
            if isinstance(message, Request):
                self._receive_request(message, size)
            elif isinstance(message, Notification):
                if message.method == INITIALIZED:
                    self._is_initialized = True
                elif message.method == CANCELLED and "requestId" in message.params:
                    # A cancelled call is answered, any other request is not.
                    id = bytes(message.params["requestId"])
                    for exchange in [exchange for exchange in self._calls if bytes(exchange.id) == id]:
                        exchange.cancel("by the device")
                    self._drop(id, "by the device")
                    self._close_if_drained()
            elif isinstance(message, Malformed):
                self._send(jsonrpc.error(_usable_id(message.id), message.code, message.message))
            elif isinstance(message, Batch):
                self._send(jsonrpc.error(None, jsonrpc.INVALID_REQUEST, "Batches are not supported: send one by one"))
        except Exception as defect:  # noqa: BLE001 - a defect must cost one message, not the connection
            self._report_defect(message.id if isinstance(message, Request) else None, defect)

    def _read_binary(self, _: bytes) -> None:
        self._send(jsonrpc.error(None, jsonrpc.INVALID_REQUEST, "Messages must be text frames, not binary ones"))

    def _report_defect(self, id: Payload | None, defect: Exception) -> None:
        incident = secrets.token_hex(6)
        log.error("defect while answering a device", incident=incident, agent=self._agent.key, exc_info=defect)
        self._send(fault_reply(id or b"null", Bug(incident), self._agent.name, ""))

    def _drop(self, id: bytes, why: str) -> None:
        """Drop the requests with this id that are not calls, without a response."""
        self._responses.drop(id)
        for broadcast in [broadcast for broadcast in self._broadcasts if broadcast.request.id == id]:
            self._forget(broadcast)
            broadcast.cancel(why)

    def _release_id(self, request: Request) -> None:
        """Finish earlier requests with the id of a new request, with the results so far.

        If the new request is a call, drop them: devices take any response with a call's id for the tool's result.
        """
        id = bytes(request.id)
        if request.method == CALL:
            self._drop(id, ID_REUSED)
            return
        self._responses.finish_now(id)
        for broadcast in [broadcast for broadcast in self._broadcasts if broadcast.request.id == id]:
            broadcast.finish_now(ID_REUSED)

    def _receive_request(self, request: Request, size: int) -> None:
        if _usable_id(request.id) is None:
            text = f'"id" must have at most {ID_BYTES_MAX} bytes'
            self._send(jsonrpc.error(None, jsonrpc.INVALID_REQUEST, text))
            return
        if self._broadcasts or self._responses:
            self._release_id(request)
            if not self._is_open:  # those were the last responses of a draining device
                return
        match request.method:
            case "tools/call":
                self._call(request, size)
            case "initialize":
                version = read_version(request.params)
                if version is None:
                    text = "initialize needs a protocolVersion, a string"
                    self._send(jsonrpc.error(request.id, jsonrpc.INVALID_PARAMS, text))
                    return
                self._title = device_title(request.params)
                self._respond_in_order(request, partial(initialize_result, self._agent, self._implementation, version))
            case "tools/list":
                cursor = read_cursor(request.params)
                self._respond_in_order(
                    request, partial(tools_page, self._agent, cursor), partial(self._agent.arrivals, for_list=True)
                )
            case "ping":
                self._send(jsonrpc.result(request.id, ping_result(self._agent)))
            case method if _is_refused(method):
                self._send(no_such_method(request.id, method))
            case _:
                self._broadcast(request, size)

    # -- methods of the hub ----------------------------------------------------------------------------------------

    def _respond_in_order(
        self,
        request: Request,
        make: Callable[[], bytes | None],
        find_arrivals: Callable[[], Waits] | None = None,
    ) -> None:
        """Respond in the order of requests, once these servers are listed or the time is over."""
        if len(self._responses) >= PENDING_MAX:
            self._refuse(request.id, f"{PENDING_MAX} requests of this device wait for servers; try again later")
            return
        id = bytes(request.id)
        respond = partial(self._respond, id, make)
        if find_arrivals is None:
            self._responses.add(id, respond)
        elif (asking := self._agent.ask_nodes()) is not None:
            self._responses.add(id, respond, asking, find_arrivals)
        else:
            self._responses.add(id, respond, find_arrivals())

    def _respond(self, id: bytes, make: Callable[[], bytes | None]) -> None:
        try:
            made = make()
            if made is None:
                self._send(jsonrpc.error(id, jsonrpc.INVALID_PARAMS, BAD_CURSOR))
            else:
                self._send_response(id, jsonrpc.result(id, made), "no")
        except Exception as defect:  # noqa: BLE001 - as in `read`
            self._report_defect(id, defect)
        self._close_if_drained()

    def tools_changed(self) -> None:
        """Notify the device, if it has sent `notifications/initialized`."""
        if self._is_initialized:
            self.report(TOOLS_CHANGED_MESSAGE)

    # -- calls -----------------------------------------------------------------------------------------------------

    def _call(self, request: Request, size: int) -> None:
        asked = read_request(CALL, request.params)
        if isinstance(asked, str):
            asked = _read_null_arguments(request)
            if isinstance(asked, str):
                self._send(jsonrpc.error(request.id, jsonrpc.INVALID_PARAMS, asked))
                return
        entry = self._agent.table().entries.get(asked.name)
        waits: Waits = ((), 0.0)
        asking: Waits | None = None
        if (entry is None or not entry.is_listed) and asked.name:
            asking = self._agent.ask_nodes()
            waits = asking or self._arrivals_for(asked.name)
        if entry is None and not asked.name:
            self._send(jsonrpc.error(request.id, jsonrpc.INVALID_PARAMS, NO_NAME))
        elif entry is None and not waits[0]:
            fault = self._unreached(asked.name) or UnknownTool(asked.name)
            self._send(fault_reply(request.id, fault, self._agent.name, asked.name))
        elif (why := self._busy_reason(size)) is not None:
            self._refuse(request.id, why)
        elif (refused := self._hold(size)) is not None:
            self._send(fault_reply(request.id, refused, self._agent.name, asked.name))
        else:
            exchange = DeviceCall(self, request.id, asked.name, asked.meta.get(PROGRESS_TOKEN), size)
            self._calls.add(exchange)
            if waits[0] or entry is None:
                self._call_later(exchange, asked, waits, is_asking=asking is not None)
            else:
                self._start(exchange, asked, entry, self._agent.settings.timeout)

    def _arrivals_for(self, name: str) -> Waits:
        """What a call waits for: any connecting server may have an unknown tool, and a known one has its server."""
        entry = self._agent.table().entries.get(name)
        if entry is not None and entry.is_listed:
            return (), 0.0
        return self._agent.arrivals() if entry is None else self._agent.arrivals_of(entry.server_id)

    def _call_later(self, exchange: DeviceCall, asked: CallRequest, waits: Waits, *, is_asking: bool) -> None:
        """Start a call once its server is listed, or respond with the state of things when the time is over."""
        began = self._agent.hub.now()

        def start(*, is_due: bool) -> None:
            entry = self._agent.table().entries.get(asked.name)
            if not is_due and (entry is None or not entry.is_listed):
                return
            assert exchange.wait is not None
            exchange.wait.stop()
            exchange.wait = None
            if entry is None:
                exchange.end(self._unreached(asked.name) or UnknownTool(asked.name))
            else:
                held = self._agent.hub.now() - began
                self._start(exchange, asked, entry, max(self._agent.settings.timeout - held, SHORTEST_SECONDS))

        find_more = partial(self._arrivals_for, asked.name) if is_asking else None
        exchange.wait = ArrivalWait(waits, partial(start, is_due=True), partial(start, is_due=False), find_more)

    def _unreached(self, name: str) -> NotConnected | None:
        """The fault of an unknown tool that a server which is down may have; None if no such server is down."""
        return self._agent.hub.unreached(self._agent.caller.grants, EVERYTHING, name)

    def _busy_reason(self, size: int) -> str | None:
        """Why a call of this size is refused now; None if it is accepted."""
        if len(self._calls) >= CALLS_MAX:
            return f"{CALLS_MAX} calls of this device are running; try again later"
        if self._held_bytes + size > HELD_BYTES_MAX:
            return TOO_MUCH
        if self._socket.buffered_bytes() > UNREAD_FRAMES * self._agent.settings.frame_bytes // 2:
            return "this device has too many unread responses; try again when it has read them"
        return None

    def _start(self, exchange: DeviceCall, asked: CallRequest, entry: DeviceTool, seconds: float) -> None:
        call = Call(  # by position, on the hot path: keywords take three times as long
            self._agent.caller,
            entry.surface,
            entry.tool,
            asked.arguments,
            passed_meta(asked.meta, _no_task) if asked.meta else {},
            passed_extra(asked.extra, NOT_FOR_SERVERS) if asked.extra else {},
            PROGRESS_TOKEN in asked.meta,
            "tool",
            None,
            NO_CAPABILITIES,
            "",
            False,
            "relay",
            seconds,
            False,
            False,
            self.id,
        )
        inflight = self._agent.hub.start(call, exchange)
        if inflight.outcome is None:
            exchange.inflight = inflight

    def call_ended(self, exchange: DeviceCall, outcome: Outcome) -> None:
        """A call has ended: respond if the device is still connected."""
        self._calls.discard(exchange)
        self._release(exchange.size)
        if not self._is_open:
            return
        self._answered += 1
        if isinstance(outcome, Fault):
            self._send_response(
                exchange.id, fault_reply(exchange.id, outcome, self._agent.name, exchange.name), outcome.executed
            )
        else:
            outcome = wrap_bare_result(outcome) if outcome.is_bare else outcome
            payload = self._device_payload(outcome) if outcome.is_typed or outcome.is_error else outcome.payload
            self._send_response(exchange.id, jsonrpc.result(exchange.id, payload), "yes")
        if self._is_draining:
            self._close_if_drained()

    def _device_payload(self, result: Result) -> Payload:
        """A result in the form that devices read. A result that is too long is not converted, because it is not sent.

        The text of a tool error is repeated where devices look for it, unless that makes the result too long.
        """
        payload: Payload = result.payload
        room = self._agent.settings.frame_bytes - 2 * ID_BYTES_MAX
        if len(memoryview(payload)) > self._agent.settings.frame_bytes:
            return payload
        if result.is_typed:
            payload = modern.as_legacy(payload) or payload
        written = with_error_text(payload) if result.is_error else payload
        return written if len(memoryview(written)) <= room else payload

    # -- broadcasts ------------------------------------------------------------------------------------------------

    def _broadcast(self, request: Request, size: int) -> None:
        meta = object_members(request.params["_meta"]) if "_meta" in request.params else {}
        if meta is None:
            text = "_meta must be an object without repeated members"
            self._send(jsonrpc.error(request.id, jsonrpc.INVALID_PARAMS, text))
            return
        if len(self._broadcasts) >= PENDING_MAX:
            self._refuse(request.id, f"{PENDING_MAX} requests to all servers are running; try again later")
        elif self._held_bytes + size > HELD_BYTES_MAX:
            self._refuse(request.id, TOO_MUCH)
        elif (refused := self._hold(size)) is not None:
            self._send(fault_reply(request.id, refused, self._agent.name, request.method))
        else:
            params = {key: value for key, value in request.params.items() if key != "_meta"}
            asked = BroadcastRequest(
                bytes(request.id),
                request.method,
                passed_extra(params, NOT_FOR_SERVERS),
                passed_meta(meta, _no_task) if meta else {},
                size,
                self.id,
            )
            broadcast = Broadcast(self._agent, asked, self._broadcast_ended)
            self._broadcasts.add(broadcast)
            broadcast.start()

    def _broadcast_ended(self, broadcast: Broadcast, answer: bytes) -> None:
        self._forget(broadcast)
        self._send_response(broadcast.request.id, answer, "yes")
        self._close_if_drained()

    def _forget(self, broadcast: Broadcast) -> None:
        self._broadcasts.discard(broadcast)
        self._release(broadcast.request.size)

    def _hold(self, size: int) -> TooManyBytes | None:
        """Count the bytes of a request, or return why they are too much for the agent or its tenant."""
        if size > COUNTED_BYTES:
            refused = self._agent.hub.bytes_in_flight.enter(self._agent.caller, size)
            if refused is not None:
                return refused
        self._held_bytes += size
        return None

    def _release(self, size: int) -> None:
        self._held_bytes -= size
        if size > COUNTED_BYTES:
            self._agent.hub.bytes_in_flight.leave(self._agent.caller, size)

    # -- writing ---------------------------------------------------------------------------------------------------

    def report(self, message: bytes) -> None:
        """Send an optional message, unless the device reads slowly or the message is too long."""
        if self._socket.buffered_bytes() <= CROWDED_BYTES and len(message) <= self._agent.settings.frame_bytes:
            self._send(message)

    def _send_response(self, id: Payload, message: bytes, executed: Executed) -> None:
        """Send a response, or an error if it is too long for the device."""
        size = len(message)
        if size > SHORT_ANSWER_BYTES:
            limit, unread = self._agent.settings.frame_bytes, self._socket.buffered_bytes()
            if size > limit:
                details = f"应答过大: {size} 字节, 上限 {limit} 字节"
                message = refusal(id, self._agent.name, details, executed=executed)
            elif unread + size > UNREAD_FRAMES * limit:
                details = f"未读应答过多: {unread} 字节未读, 再加 {size} 字节超过上限 {UNREAD_FRAMES * limit} 字节"
                message = refusal(id, self._agent.name, details, executed=executed)
        self._send(message)

    def _refuse(self, id: Payload, details: str) -> None:
        self._send(refusal(id, self._agent.name, details))

    def _send(self, message: bytes) -> None:
        if self._is_open:
            self._socket.send(message)


def _is_refused(method: str) -> bool:
    """Whether a method is not broadcast. Case is ignored, because some servers ignore it."""
    folded = method.casefold()
    return folded in REFUSED or folded in OWN_METHODS or folded.startswith(REFUSED_PREFIXES)


def _usable_id(id: msgspec.Raw | None) -> msgspec.Raw | None:
    return None if id is None or len(memoryview(id)) > ID_BYTES_MAX else id


def _read_null_arguments(request: Request) -> CallRequest | str:
    """Read a call whose arguments are null, as some devices write it; else say what is wrong."""
    if not read_string(request.params.get("name")):
        return NO_NAME
    is_null = bytes(request.params.get("arguments", b"")) == b"null"
    rest = {key: value for key, value in request.params.items() if key != "arguments" or not is_null}
    return read_request(CALL, rest)


def _no_task(_: str) -> str | None:
    """Devices have no tasks, so no id belongs to one."""
    return None


def initialize_result(agent: RelayAgent, implementation: Implementation, version: str) -> bytes:
    """An `InitializeResult`, with the results of the agent's servers if they fit."""
    own = object_members(legacy.initialize_result(version, implementation, frozenset({"tools"}))) or {}
    here = [agent_server for agent_server in agent.servers() if agent_server.is_here]
    rest = server_counts(len(here), agent.absent())
    room = agent.settings.frame_bytes * 3 // 4
    results = [
        add_server_id(agent_server.welcome, agent_server.server_id) or _server_entry(agent_server.server_id)
        for agent_server in here
    ]
    for responses in (results, [_server_entry(agent_server.server_id) for agent_server in here]):
        whole = render({**own, "responses": array_of(responses), **rest})
        if len(whole) <= room:
            return whole
    return render(own)


def tools_page(agent: RelayAgent, cursor: str | None) -> bytes | None:
    """A page of the tools; None if the cursor is invalid. There are several pages only if one is too long."""
    table = agent.table()
    agent.listed(table)
    position = 0 if cursor is None else table.position(cursor)
    if position is None:
        return None
    rest = server_counts(len(agent.present()), agent.absent(with_others=True))
    if table.has_page(position + 1):
        rest["nextCursor"] = b'"%b"' % table.cursor(position + 1).encode()
    return list_result("tools", table.page(position), rest)


def ping_result(agent: RelayAgent) -> bytes:
    """The connected servers."""
    here = [agent_server for agent_server in agent.servers() if agent_server.is_here]
    return broadcast_result(
        [_server_entry(agent_server.server_id) for agent_server in here], server_counts(len(here), agent.absent())
    )


def _server_entry(server_id: str) -> bytes:
    return render_with_server_id({}, server_id)


def read_version(params: Members) -> str | None:
    """The protocol version for an `initialize`; None if it requests none."""
    requested = legacy.requested_version(params)
    return None if requested is None else legacy.negotiate(requested)


def read_cursor(params: Members) -> str | None:
    """The cursor of a request: None for the first page, and an invalid cursor if it is not a string."""
    cursor = params.get("cursor")
    if cursor is None or bytes(cursor) == b"null":
        return None
    return (read_string(cursor) or NO_CURSOR)[:CURSOR_LENGTH_MAX]


def device_title(params: Members) -> str | None:
    """The name and version of a device; None if it has none that can be shown."""
    info = object_members(params.get("clientInfo", b"")) or {}
    words = [word for name in ("name", "version") if (word := read_string(info.get(name)))]
    title = " ".join(words)[:TITLE_LENGTH]
    return title if title and title.isprintable() else None
