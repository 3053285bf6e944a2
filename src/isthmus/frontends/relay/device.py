"""One device's conversation: what it asks over its WebSocket, answered once each, under its own ids.

A device greets, lists and calls; what else it asks goes to every server of its agent. Greetings and lists are answered
in the order asked, calls as they end. A list, and a call whose tool is not there, wait a moment for servers that have
just arrived. Nothing here is a task: a call is an entry in the hub's tables, and its end is the answer.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from functools import partial

import msgspec
import structlog

from isthmus.frontends.http.request_cycle import CROWDED_BYTES
from isthmus.frontends.relay import answers
from isthmus.frontends.relay.agents import Agent
from isthmus.frontends.relay.broadcast import SHORTEST_SECONDS, Asked, Broadcast
from isthmus.frontends.relay.device_tools import Entry
from isthmus.frontends.relay.exchange import DeviceExchange
from isthmus.frontends.relay.faults import NO_NAME, fault_reply, no_such_method, refusal
from isthmus.frontends.relay.ports import DeviceSocket
from isthmus.frontends.relay.waiting import Wait, Waiting
from isthmus.model.calls import EVERYTHING, NO_CAPABILITIES, Call, Outcome, Result
from isthmus.model.faults import Bug, Executed, Fault, NotConnected, UnknownTool
from isthmus.model.relay import Claim, RelayDevice
from isthmus.wire import jsonrpc
from isthmus.wire.jsonrpc import Batch, Malformed, Notification, Payload, Request, object_members
from isthmus.wire.mcp import modern
from isthmus.wire.mcp.calls import INPUT_MEMBERS, CallRequest, passed_extra, passed_meta, read_request, wrap_bare_result
from isthmus.wire.mcp.messages import (
    CANCELLED,
    PROGRESS_TOKEN,
    TOOLS_CHANGED,
    Implementation,
    read_string,
)
from isthmus.wire.mcp.tasks import TASK
from isthmus.wire.relay.messages import decode, with_error_text

log = structlog.get_logger(__name__)

CALLS_MAX = 64
"""Calls of one device at once."""

PENDING_MAX = 64
"""Answers of one device that may wait for servers at once; the same again for what is asked of all servers."""

HELD_BYTES_MAX = 16 * 1024 * 1024
"""How much of what one device asked may be kept until it is answered; a few of the longest messages fit."""

UNREAD_FRAMES = 4
"""How many of the longest answers a device may have unread; a further one becomes an error, which is short. With half
of it unread, nothing more is called for it."""

SHORT_ANSWER_BYTES = 2 * 1024
"""An answer that is no longer than such an error."""

ID_BYTES_MAX = 1024
"""Ids are repeated in answers and kept as long; a longer one is none."""

LEFT = "the device left"
REUSED = "the device asks something else under the same id"

BAD_CURSOR = "Invalid cursor: give one that tools/list gave, or none"
TOO_MUCH = f"over {HELD_BYTES_MAX} bytes of this device wait for answers already; ask again later"

CALL = "tools/call"
INITIALIZED = "notifications/initialized"

NOT_FOR_SERVERS = INPUT_MEMBERS | {TASK}
"""What no device can say to a server: answers to questions that it cannot be asked, and that it wants a task."""

OWN_METHODS = frozenset({CALL, "initialize", "tools/list", "ping"})
REFUSED = frozenset({"logging/setlevel", "resources/subscribe", "resources/unsubscribe", "server/discover"})
REFUSED_PREFIXES = ("tasks/", "subscriptions/", "sampling/", "elicitation/", "roots/", "notifications/")
"""Methods that would change what a server does for everybody, that are asked of clients, or that have no answer."""

CHANGED = jsonrpc.notification(TOOLS_CHANGED)


def _nobodys(_: str) -> str | None:
    """Devices are given no tasks, so no id of theirs is one's."""
    return None


class DeviceLine:
    """One device, who hears its socket until that ends or is closed; `on_over` is called once, then."""

    __slots__ = (
        "_agent",
        "_answered",
        "_broadcasts",
        "_calls",
        "_held_bytes",
        "_is_draining",
        "_is_listening",
        "_is_open",
        "_me",
        "_on_over",
        "_since",
        "_socket",
        "_title",
        "_waiting",
        "claim",
        "id",
    )

    def __init__(
        self,
        socket: DeviceSocket,
        agent: Agent,
        claim: Claim,
        me: Implementation,
        since: float,
        on_over: Callable[[DeviceLine], None],
    ) -> None:
        self.id = secrets.token_hex(6)
        self.claim = claim
        self._socket = socket
        self._agent = agent
        self._me = me
        self._since = since
        self._on_over = on_over
        self._title: str | None = None
        self._calls: set[DeviceExchange] = set()
        self._broadcasts: set[Broadcast] = set()
        self._waiting = Waiting()
        self._answered = 0
        self._held_bytes = 0
        self._is_open = True
        self._is_listening = False
        self._is_draining = False
        socket.on_binary = self._read_binary

    def shown(self) -> RelayDevice:
        """How it is shown."""
        client, calls = self._socket.client, len(self._calls)
        return RelayDevice(self.id, self._agent.key, self._since, client, self._title, calls, self._answered)

    # -- its end ---------------------------------------------------------------------------------------------------

    def ended(self, reason: str) -> None:
        """The device has gone."""
        self._be_over()

    def flush(self) -> None:
        """It reads again; nothing was held back meanwhile."""

    def close(self, code: int, reason: str) -> None:
        """Let the device go, whatever it still waits for."""
        if self._is_open:
            self._socket.close(code, reason)
            self._be_over()

    def drain(self) -> None:
        """Let it go once everything that it asked has been answered."""
        self._is_draining = True
        self._leave_if_done()

    def _leave_if_done(self) -> None:
        if self._is_draining and not self._calls and not self._broadcasts and not self._waiting:
            self.close(1012, "the hub is restarting")

    def _be_over(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        self._waiting.close()
        for broadcast in list(self._broadcasts):
            broadcast.cancel(LEFT)
        self._broadcasts.clear()
        for exchange in list(self._calls):
            exchange.cancel(LEFT)
        self._on_over(self)

    # -- reading ---------------------------------------------------------------------------------------------------

    def read(self, text: bytes) -> None:
        """Take one message."""
        message = decode(text, max_depth=self._agent.hub.limits.depth)
        try:
            if isinstance(message, Request):
                self._take(message, len(text))
            elif isinstance(message, Notification):
                self._note(message)
            elif isinstance(message, Malformed):
                self._say(jsonrpc.error(_repeatable(message.id), message.code, message.message))
            elif isinstance(message, Batch):
                self._say(jsonrpc.error(None, jsonrpc.INVALID_REQUEST, "Batches are not supported: send one by one"))
        except Exception as defect:  # noqa: BLE001 - it must cost one message, not the device's connection
            self._blame(message.id if isinstance(message, Request) else None, defect)

    def _read_binary(self, _: bytes) -> None:
        self._say(jsonrpc.error(None, jsonrpc.INVALID_REQUEST, "Messages must be text frames, not binary ones"))

    def _blame(self, id: Payload | None, defect: Exception) -> None:
        incident = secrets.token_hex(6)
        log.error("defect while answering a device", incident=incident, agent=self._agent.key, exc_info=defect)
        self._say(fault_reply(id or b"null", Bug(incident), self._agent.name, ""))

    def _note(self, notification: Notification) -> None:
        if notification.method == INITIALIZED:
            self._is_listening = True
        elif notification.method == CANCELLED and "requestId" in notification.params:
            self._withdraw(bytes(notification.params["requestId"]))

    def _withdraw(self, id: bytes) -> None:
        """Cancel the call of this id, which is answered so, or whatever else is asked under it, which is not."""
        for exchange in [exchange for exchange in self._calls if bytes(exchange.id) == id]:
            exchange.cancel("by the device")
        self._drop(id, "by the device")
        self._leave_if_done()

    def _drop(self, id: bytes, why: str) -> None:
        """Let nothing be answered any more that was asked under an id, beside calls."""
        self._waiting.drop(id)
        for broadcast in [broadcast for broadcast in self._broadcasts if broadcast.asked.id == id]:
            self._forget(broadcast)
            broadcast.cancel(why)

    def _make_way(self, request: Request) -> None:
        """Let nothing wait under an id that is used again: it is answered with what is there.

        Unless it is a call that uses it, since devices take whatever comes under a call's id for the tool's result.
        """
        id = bytes(request.id)
        if request.method == CALL:
            self._drop(id, REUSED)
            return
        self._waiting.hurry(id)
        for broadcast in [broadcast for broadcast in self._broadcasts if broadcast.asked.id == id]:
            broadcast.hurry(REUSED)

    def _take(self, request: Request, size: int) -> None:
        if _repeatable(request.id) is None:
            text = f'"id" must have at most {ID_BYTES_MAX} bytes'
            self._say(jsonrpc.error(None, jsonrpc.INVALID_REQUEST, text))
            return
        if self._broadcasts or self._waiting:
            self._make_way(request)
            if not self._is_open:  # what was answered was all that a draining device waited for
                return
        match request.method:
            case "tools/call":
                self._call(request, size)
            case "initialize":
                self._greet(request)
            case "tools/list":
                cursor = answers.read_cursor(request.params)
                self._await(request, partial(answers.tools, self._agent, cursor), *self._agent.arrivals(for_list=True))
            case "ping":
                self._say(jsonrpc.result(request.id, answers.alive(self._agent)))
            case method if _is_refused(method):
                self._say(no_such_method(request.id, method))
            case _:
                self._broadcast(request, size)

    # -- what the hub answers itself -------------------------------------------------------------------------------

    def _greet(self, request: Request) -> None:
        version = answers.read_version(request.params)
        if version is None:
            text = "initialize needs a protocolVersion, a string"
            self._say(jsonrpc.error(request.id, jsonrpc.INVALID_PARAMS, text))
            return
        self._title = answers.title_of(request.params)
        self._await(request, partial(answers.greeting, self._agent, self._me, version))

    def _await(
        self,
        request: Request,
        make: Callable[[], bytes | None],
        arrivals: Sequence[asyncio.Future[None]] = (),
        seconds: float = 0.0,
    ) -> None:
        """Answer once these servers are there or the time is over, and in the order asked."""
        if len(self._waiting) >= PENDING_MAX:
            self._refuse(request.id, f"{PENDING_MAX} answers wait for servers already; ask again later")
            return
        id = bytes(request.id)
        self._waiting.add(id, partial(self._give, id, make), arrivals, seconds)

    def _give(self, id: bytes, make: Callable[[], bytes | None]) -> None:
        try:
            made = make()
            if made is None:
                self._say(jsonrpc.error(id, jsonrpc.INVALID_PARAMS, BAD_CURSOR))
            else:
                self._answer(id, jsonrpc.result(id, made), "no")
        except Exception as defect:  # noqa: BLE001 - as in `read`
            self._blame(id, defect)
        self._leave_if_done()

    def tools_changed(self) -> None:
        """Tell the device, if it has said that it listens."""
        if self._is_listening:
            self.report(CHANGED)

    # -- what one server answers -----------------------------------------------------------------------------------

    def _call(self, request: Request, size: int) -> None:
        asked = read_request(CALL, request.params)
        if isinstance(asked, str):
            asked = _forgiven(request)
            if isinstance(asked, str):
                self._say(jsonrpc.error(request.id, jsonrpc.INVALID_PARAMS, asked))
                return
        entry = self._agent.table().entries.get(asked.name)
        arrivals, seconds = ((), 0.0) if entry is not None and entry.is_listed else self._arrivals_for(asked, entry)
        if entry is None and not arrivals:
            self._say(self._unknown(request.id, asked.name))
        elif (why := self._why_too_much(size)) is not None:
            self._refuse(request.id, why)
        else:
            exchange = DeviceExchange(self, request.id, asked.name, asked.meta.get(PROGRESS_TOKEN), size)
            self._calls.add(exchange)
            self._held_bytes += size
            if arrivals or entry is None:
                self._hold(exchange, asked, arrivals, seconds)
            else:
                self._start(exchange, asked, entry, self._agent.settings.timeout)

    def _arrivals_for(self, asked: CallRequest, entry: Entry | None) -> tuple[Sequence[asyncio.Future[None]], float]:
        """Servers being greeted that may have the tool: any for an unknown name, else its own if that is away."""
        if not asked.name:
            return (), 0.0
        return self._agent.arrivals() if entry is None else self._agent.arrivals_of(entry.server_id)

    def _hold(
        self, exchange: DeviceExchange, asked: CallRequest, arrivals: Sequence[asyncio.Future[None]], seconds: float
    ) -> None:
        """Start a call once its server is there; when the time is over, answer as things are then."""
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

        exchange.wait = Wait(arrivals, seconds, partial(start, is_due=True), partial(start, is_due=False))

    def _unknown(self, id: Payload, name: str) -> bytes:
        """The answer where no tool has this name: a server that the device may use can be down."""
        if not name:
            return jsonrpc.error(id, jsonrpc.INVALID_PARAMS, NO_NAME)
        return fault_reply(id, self._unreached(name) or UnknownTool(name), self._agent.name, name)

    def _unreached(self, name: str) -> NotConnected | None:
        return self._agent.hub.unreached(self._agent.caller.grants, EVERYTHING, name)

    def _why_too_much(self, size: int) -> str | None:
        """Why a call of this size is not made now; None if it is."""
        if len(self._calls) >= CALLS_MAX:
            return f"{CALLS_MAX} calls of this device are under way already; call again later"
        if self._held_bytes + size > HELD_BYTES_MAX:
            return TOO_MUCH
        if self._socket.buffered_bytes() > UNREAD_FRAMES * self._agent.settings.frame_bytes // 2:
            return "this device has too many answers unread; call again when it has read them"
        return None

    def _start(self, exchange: DeviceExchange, asked: CallRequest, entry: Entry, seconds: float) -> None:
        call = Call(  # by position: by name it takes three times as long, and every call comes through here
            self._agent.caller,
            entry.surface,
            entry.tool,
            asked.arguments,
            passed_meta(asked.meta, _nobodys) if asked.meta else {},
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

    def call_ended(self, exchange: DeviceExchange, outcome: Outcome) -> None:
        """A call has ended, and is answered if the device is still there."""
        self._calls.discard(exchange)
        self._held_bytes -= exchange.size
        if not self._is_open:
            return
        self._answered += 1
        if isinstance(outcome, Fault):
            self._answer(
                exchange.id, fault_reply(exchange.id, outcome, self._agent.name, exchange.name), outcome.executed
            )
        else:
            outcome = wrap_bare_result(outcome) if outcome.is_bare else outcome
            payload = self._as_read(outcome) if outcome.is_typed or outcome.is_error else outcome.payload
            self._answer(exchange.id, jsonrpc.result(exchange.id, payload), "yes")
        if self._is_draining:
            self._leave_if_done()

    def _as_read(self, result: Result) -> Payload:
        """A result as devices read it; nothing is made of one that is too long for them, since it is not sent.

        If the tool said no, its text stands where devices look for it, unless it does not fit twice.
        """
        payload: Payload = result.payload
        room = self._agent.settings.frame_bytes - 2 * ID_BYTES_MAX
        if len(memoryview(payload)) > self._agent.settings.frame_bytes:
            return payload
        if result.is_typed:
            payload = modern.as_legacy(payload) or payload
        told = with_error_text(payload) if result.is_error else payload
        return told if len(memoryview(told)) <= room else payload

    # -- what all servers answer -----------------------------------------------------------------------------------

    def _broadcast(self, request: Request, size: int) -> None:
        meta = object_members(request.params["_meta"]) if "_meta" in request.params else {}
        if meta is None:
            text = "_meta must be an object without repeated members"
            self._say(jsonrpc.error(request.id, jsonrpc.INVALID_PARAMS, text))
            return
        if len(self._broadcasts) >= PENDING_MAX:
            self._refuse(request.id, f"{PENDING_MAX} questions to all servers are open already; ask again later")
        elif self._held_bytes + size > HELD_BYTES_MAX:
            self._refuse(request.id, TOO_MUCH)
        else:
            params = {key: value for key, value in request.params.items() if key != "_meta"}
            asked = Asked(
                bytes(request.id),
                request.method,
                passed_extra(params, NOT_FOR_SERVERS),
                passed_meta(meta, _nobodys) if meta else {},
                size,
                self.id,
            )
            broadcast = Broadcast(self._agent, asked, self._broadcast_ended)
            self._broadcasts.add(broadcast)
            self._held_bytes += size
            broadcast.start()

    def _broadcast_ended(self, broadcast: Broadcast, answer: bytes) -> None:
        self._forget(broadcast)
        self._answer(broadcast.asked.id, answer, "yes")
        self._leave_if_done()

    def _forget(self, broadcast: Broadcast) -> None:
        self._broadcasts.discard(broadcast)
        self._held_bytes -= broadcast.asked.size

    # -- writing ---------------------------------------------------------------------------------------------------

    def report(self, message: bytes) -> None:
        """Tell the device what it can do without, unless it reads slowly or cannot take so much."""
        if self._socket.buffered_bytes() <= CROWDED_BYTES and len(message) <= self._agent.settings.frame_bytes:
            self._say(message)

    def _answer(self, id: Payload, message: bytes, executed: Executed) -> None:
        """Answer, or say that the answer would have been more than a device can take."""
        if len(message) > SHORT_ANSWER_BYTES and (details := self._excess(len(message))) is not None:
            message = refusal(id, self._agent.name, details, executed=executed)
        self._say(message)

    def _excess(self, size: int) -> str | None:
        """Why an answer of this size is too much; None if it is not."""
        limit = self._agent.settings.frame_bytes
        if size > limit:
            return f"应答过大: {size} 字节, 上限 {limit} 字节"
        unread = self._socket.buffered_bytes()
        if unread + size > UNREAD_FRAMES * limit:
            return f"未读应答过多: {unread} 字节未读, 再加 {size} 字节超过上限 {UNREAD_FRAMES * limit} 字节"
        return None

    def _refuse(self, id: Payload, details: str) -> None:
        self._say(refusal(id, self._agent.name, details))

    def _say(self, message: bytes) -> None:
        if self._is_open:
            self._socket.send(message)


def _is_refused(method: str) -> bool:
    """Whether a method goes to no server, in whatever spelling: some servers ignore case."""
    folded = method.casefold()
    return folded in REFUSED or folded in OWN_METHODS or folded.startswith(REFUSED_PREFIXES)


def _repeatable(id: msgspec.Raw | None) -> msgspec.Raw | None:
    return None if id is None or len(memoryview(id)) > ID_BYTES_MAX else id


def _forgiven(request: Request) -> CallRequest | str:
    """A call whose arguments are null, which some write for none; else what is wrong with it."""
    if not read_string(request.params.get("name")):
        return NO_NAME
    is_null = bytes(request.params.get("arguments", b"")) == b"null"
    rest = {key: value for key, value in request.params.items() if key != "arguments" or not is_null}
    return read_request(CALL, rest)
