"""A request of a device to all servers of its agent: one call for each server, and one response from all of them.

No asyncio task waits: each call ends at the latest when its time is over, and the end of the last one sends the
response. Used by `device_connection`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec

from isthmus.core.calls.running_call import InFlight
from isthmus.core.ports import DialledInServer
from isthmus.frontends.relay.agents import REASON_LENGTH, RelayAgent
from isthmus.frontends.relay.faults import BROADCAST_WORDS, fault_reply, no_such_method, not_connected, refusal
from isthmus.model.calls import NOT_ASKED, Call, Event, OnReply, Outcome, Question, Result, Surface
from isthmus.model.fault_table import BadReply, Fault, ServerError, UnknownTool
from isthmus.wire import jsonrpc
from isthmus.wire.jsonrpc import Payload, object_members
from isthmus.wire.mcp import modern
from isthmus.wire.mcp.messages import Members
from isthmus.wire.relay.device_messages import (
    LIST_MEMBERS,
    MissingServer,
    add_server_id,
    broadcast_result,
    error_entry,
    list_result,
    read_entries,
    server_counts,
)

PAGES_MAX = 100
"""Pages that are fetched of one server's list. If there are more, the response names the server as incomplete."""

SHORTEST_SECONDS = 0.001
"""The timeout of a call when no time is left."""

TOO_MANY_PAGES = f"its list has more than {PAGES_MAX} pages"
NOT_ALLOWED = "a rule denies some of its tools, so only its tools can be called"


Done: TypeAlias = "Callable[[Broadcast, bytes], None]"


class _ServerCall:
    """The call to one server, and its result. It is the caller's side of the call."""

    __slots__ = ("_broadcast", "agent_server", "entries", "fault", "has_answered", "inflight", "pages")

    def __init__(self, broadcast: Broadcast, agent_server: DialledInServer) -> None:
        self._broadcast = broadcast
        self.agent_server = agent_server
        self.inflight: InFlight | None = None
        self.has_answered = False
        self.fault: Fault | None = None
        self.entries: list[bytes] = []
        """The entries of its list, or its one response, each with the server's id."""
        self.pages = 0

    def emit(self, event: Event) -> None:
        """Ignore events: there is only one response."""

    def ask(self, question: Question, reply: OnReply) -> None:
        """Decline input requests: devices do not support them."""
        reply(NOT_ASKED)

    def end(self, outcome: Outcome) -> None:
        """The call has ended."""
        self.inflight = None
        self._broadcast.call_ended(self, outcome)


class BroadcastRequest(msgspec.Struct, frozen=True):
    """The request of a device. `size` is the length of its message."""

    id: bytes
    method: str
    params: Members
    meta: Members
    size: int
    device: str


class Broadcast:
    """One request to all connected servers. `done` gets the response once, unless the broadcast is cancelled."""

    def __init__(self, agent: RelayAgent, request: BroadcastRequest, done: Done) -> None:
        """Call `start` next."""
        self.request = request
        self._agent = agent
        self._member = LIST_MEMBERS.get(request.method)
        self._done: Done | None = done
        self._until = agent.hub.now() + agent.settings.wait
        self._calls = [_ServerCall(self, agent_server) for agent_server in agent.servers() if agent_server.is_here]
        self._absent = agent.absent()
        self._open = len(self._calls)
        self._room_bytes = agent.settings.frame_bytes
        """Bytes that may still be added. A longer response is not sent, and must not be kept in memory."""

    @property
    def is_finished(self) -> bool:
        """Whether it was answered or cancelled."""
        return self._done is None

    def start(self) -> None:
        """Call every server. Without connected servers the response is an error at once."""
        if not self._calls:
            self._respond(not_connected(self.request.id, self._agent.name, "没有已连接的MCP服务器"))
        params = msgspec.Raw(jsonrpc.render(self.request.params))  # shared by all calls
        for call in self._calls:
            if not self.is_finished:
                self._call(call, params, self._agent.settings.wait)

    def finish_now(self, why: str) -> None:
        """Respond now with the results so far: cancel the calls that are still running."""
        for call in self._calls:
            if call.inflight is not None:
                call.inflight.cancel(why)

    def cancel(self, why: str) -> None:
        """Cancel it without a response."""
        self._done = None
        self.finish_now(why)

    def _call(self, server_call: _ServerCall, params: msgspec.Raw, seconds: float) -> None:
        call = Call(
            self._agent.caller,
            Surface("own", server_call.agent_server.server),
            self.request.method,
            params,
            self.request.meta,
            kind="method",
            frontend="relay",
            timeout=seconds,
            sharer=self.request.device,
        )
        inflight = self._agent.hub.start(call, server_call)
        if inflight.outcome is None:
            server_call.inflight = inflight

    def call_ended(self, call: _ServerCall, outcome: Outcome) -> None:
        """The call to a server has ended."""
        if self.is_finished:
            return
        if isinstance(outcome, Fault):
            call.fault = outcome
        elif not self._store(call, outcome):
            return
        self._open -= 1
        is_enough = call.has_answered and self._agent.settings.aggregate == "first"
        if self._room_bytes < 0:
            details = f"应答过大: 上限 {self._agent.settings.frame_bytes} 字节"
            self._respond(refusal(self.request.id, self._agent.name, details, executed="yes"))
        elif is_enough or not self._open:
            self._respond(self._response([call] if is_enough else self._calls))

    def _store(self, call: _ServerCall, result: Result) -> bool:
        """Store the result of a server; False if the next page is requested, so that the server is not done."""
        if len(memoryview(result.payload)) > self._room_bytes:
            self._room_bytes = -1
            return True
        payload = (modern.as_legacy(result.payload) or result.payload) if result.is_typed else result.payload
        page: tuple[Sequence[Payload], str | None] | None
        if self._member is not None:
            page = read_entries(payload, self._member)
        else:  # a result that is not a list is a page with one entry
            page = None if object_members(payload) is None else ([payload], None)
        if page is None:
            call.fault = BadReply(
                call.agent_server.server, f"it has no {self._member or 'members'}, too many of them, or a member twice"
            )
            return True
        entries, cursor = page
        tags = [text for entry in entries if (text := add_server_id(entry, call.agent_server.server_id)) is not None]
        call.entries += tags
        call.pages += 1
        self._room_bytes -= sum(map(len, tags))
        is_last = cursor is None or "cursor" in self.request.params or call.pages >= PAGES_MAX or self._room_bytes < 0
        if not is_last:
            left = max(self._until - self._agent.hub.now(), SHORTEST_SECONDS)
            params = jsonrpc.render({**self.request.params, "cursor": msgspec.json.encode(cursor)})
            self._call(call, msgspec.Raw(params), left)
            return False
        if call.pages >= PAGES_MAX:
            self._absent.append(MissingServer(call.agent_server.server_id, TOO_MANY_PAGES))
        call.has_answered = True
        return True

    def _respond(self, answer: bytes) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(self, answer)
        self.cancel("the response is complete without it")

    # -- the response ----------------------------------------------------------------------------------------------

    def _response(self, calls: Sequence[_ServerCall]) -> bytes:
        """One list with the entries of all servers, or one response of each server."""
        responded = [call for call in calls if call.has_answered]
        if not responded:
            return self._failure(calls)
        if self._member is not None:  # servers with an error are named as missing
            entries = [entry for call in responded for entry in call.entries]
            return jsonrpc.result(self.request.id, list_result(self._member, entries, self._totals(responded, calls)))
        responded = [call for call in calls if call.has_answered or isinstance(call.fault, ServerError)]
        entries = []
        for call in responded:
            if isinstance(error := call.fault, ServerError):
                entries.append(error_entry(error.code, error.message, error.data, call.agent_server.server_id))
            else:
                entries += call.entries
        return jsonrpc.result(self.request.id, broadcast_result(entries, self._totals(responded, calls)))

    def _totals(self, responded: Sequence[_ServerCall], calls: Sequence[_ServerCall]) -> dict[str, Payload]:
        if len(calls) < len(self._calls):  # the first response is enough, so no server is missing
            total = len(self._calls) + len(self._absent)
            return {**server_counts(len(responded), ()), "total_servers": b"%d" % total}
        return server_counts(len(responded), self._missing([call for call in calls if call not in responded]))

    def _missing(self, silent: Sequence[_ServerCall]) -> list[MissingServer]:
        """The servers without a response, and those that are away."""
        failed = [(call.agent_server.server_id, call.fault) for call in silent if call.fault is not None]
        return [
            *(
                MissingServer(id, NOT_ALLOWED if isinstance(fault, UnknownTool) else fault.message[:REASON_LENGTH])
                for id, fault in failed
            ),
            *self._absent,
        ]

    def _failure(self, calls: Sequence[_ServerCall]) -> bytes:
        """The response if all servers failed: a server's own error, else another fault, else an unknown method."""
        fault = min(
            (call.fault for call in calls if call.fault is not None),
            key=lambda fault: 0 if isinstance(fault, ServerError) else 2 if isinstance(fault, UnknownTool) else 1,
        )
        if isinstance(fault, UnknownTool):  # the device may not call arbitrary methods of any server
            return no_such_method(self.request.id, self.request.method)
        silent = [call for call in calls if not isinstance(call.fault, ServerError)]
        return fault_reply(
            self.request.id, fault, self._agent.name, self.request.method, BROADCAST_WORDS, self._missing(silent)
        )
