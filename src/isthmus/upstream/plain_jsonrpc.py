"""A link to a plain JSON-RPC 2.0 endpoint over HTTP without MCP: the method is the tool, `params` its arguments.

No handshake, no session, no notifications. The operator declares its tools, or `tools/list` is tried; without that
method the server is unlisted, and callers call its methods by name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence, Set
from functools import partial
from typing import Any

import msgspec

from isthmus.core.background import BackgroundTasks
from isthmus.core.calls.running_call import InFlight
from isthmus.core.event_loop import in_turn, offload, read_then
from isthmus.core.ports import Credentials
from isthmus.core.settings import Limits
from isthmus.model.calls import ClientCapabilities, Result
from isthmus.model.fault_table import BadReply, Fault, NotConnected, ServerError
from isthmus.model.features import Ability, Tool, Topic
from isthmus.model.names import FeatureName, ServerName
from isthmus.model.trace_context import TRACEPARENT, trace_headers
from isthmus.transport.egress import DialFailed, Egress, EgressRefused, parse_url
from isthmus.transport.http_client import ConnectionLost, header_lines
from isthmus.upstream.base_link import BaseLink
from isthmus.upstream.credential_redaction import redact_error
from isthmus.upstream.http_shared import (
    ADVICE,
    OK,
    TURNED_AWAY,
    UNAUTHORIZED,
    CallerHeaders,
    HttpEndpoint,
    HttpRequest,
    login_url,
)
from isthmus.upstream.listing import Listing, read_topic
from isthmus.upstream.response_waiters import LATER_BYTES, CallWaiter, HubRequest, Waiter, lost, turned_away
from isthmus.upstream.server_settings import DeclaredTool, Era, JsonRpcSettings
from isthmus.wire import jsonrpc
from isthmus.wire.jsonrpc import ErrorReply, Payload, Response
from isthmus.wire.lines import Collected
from isthmus.wire.mcp.forwarded_methods import (
    LegacyDialect,
    McpDialect,
    decode_untouched,
    untouched_passes,
    untouched_result,
)
from isthmus.wire.mcp.lists import TOOLS
from isthmus.wire.mcp.messages import Implementation

SPARE_CONNECTIONS = 2
"""Connections beside those for calls: a listing, a ping."""

NOT_ALLOWED = 405
NO_METHOD = (404, NOT_ALLOWED, 501)
"""Statuses that mean, without a body, that the method is unknown. With a body that is not JSON-RPC, the address itself
is wrong."""

INVALID = (400, 422)
"""Statuses of an endpoint that expects other parameters, which proves that there is one."""

_ADVICE = {
    **ADVICE,
    307: "; configure the address that it points to",
    308: "; configure the address that it points to",
    405: "; check that its address is a JSON-RPC endpoint",
}


_BY_NAME = ": nothing is listed, and callers that may use the whole server call its methods by name"


class RpcLink(BaseLink):
    """A server's endpoint, and the pending requests."""

    can_ask = False
    carrier = "rpc"
    closing_cancels = True  # JSON-RPC has no cancellation
    is_known_endpoint = True
    """The operator says that this is a JSON-RPC endpoint, so an HTTP status alone can mean an unknown method."""
    start_seconds = 20.0

    def __init__(
        self,
        server: ServerName,
        me: Implementation,
        limits: Limits,
        *,
        reach: JsonRpcSettings,
        credentials: Credentials,
        egress: Egress,
        background: BackgroundTasks,
        max_calls: int,
    ) -> None:
        super().__init__(server, me, limits)
        self.caller_headers = CallerHeaders(reach.user_headers)
        self.dialect = LegacyDialect("JSON-RPC 2.0")
        self._egress = egress
        connections = max_calls + SPARE_CONNECTIONS
        self._endpoint = HttpEndpoint(
            server, reach.url, limits, credentials, egress, background, connections=connections
        )
        self._client = self._endpoint.client
        self._head = self._new_head()
        self._declared = tuple(_described(server, tool) for tool in reach.tools)

    def _new_head(self) -> bytes:
        return self._endpoint.head("POST", {"accept": "application/json", "content-type": "application/json"})

    # -- handshake and lists ---------------------------------------------------------------------------------------

    async def handshake(self, era: Era) -> None:
        """Check that the server is reachable, unless listing its tools will show that.

        Raises:
            Fault: it is not.
        """
        if self._declared:
            await self._check_reachable(self.limits.connect_seconds)

    async def ping(self, within: float) -> None:
        """Check that the server is there, without running a tool.

        A server with declared tools may know no other method, and might run anything for an unknown one: the hub only
        connects to it. Others are asked for their tools.
        """
        if self._declared:
            await self._check_reachable(within)
            return
        try:
            await self.request(TOOLS.method, b"{}", within)
        except ServerError:
            return

    async def _check_reachable(self, within: float) -> None:
        """Connect, with TLS, and disconnect."""
        try:
            transport, _ = await self._egress.dial(
                self._endpoint.origin, asyncio.Protocol, is_configured=True, within=within
            )
        except (EgressRefused, DialFailed) as failed:
            raise NotConnected(self.server, failed.reason) from failed
        transport.close()

    def abilities(self) -> frozenset[Ability]:
        """Only tools."""
        return frozenset(("tools",))

    async def _read_lists(self, topics: Set[Topic], known: Listing | None, client_caps: ClientCapabilities) -> Listing:
        """The declared tools, or the result of `tools/list`; a server without that method is unlisted.

        Raises:
            Fault: it is unreachable, or gave no usable list.
        """
        if self._declared:
            return Listing(self._declared)
        if "tools" not in topics and known is not None:
            return known
        base = Listing() if known is None or known.is_unlisted else known
        try:
            return await read_topic(_Lister(self), "tools", base)
        except ServerError as refused:
            if base.tools:  # it has a list, and cannot give it now
                raise
            note = f"it has no {TOOLS.method} ({refused.message}){_BY_NAME}"
            return Listing(notes={"tools": (note,)}, is_unlisted=True)

    # -- sending ---------------------------------------------------------------------------------------------------

    def send(self, inflight: InFlight) -> None:
        """POST the call."""
        call = inflight.call
        lines = self.caller_headers.lines_for(inflight) if call.headers else b""
        if lines is not None:
            if TRACEPARENT in call.meta:  # plain JSON-RPC has no `_meta`
                lines += header_lines(trace_headers(call.meta))
            id = self.requests.next_id()
            inflight.carriage = self._post(id, inflight.name, call.arguments, _RpcWaiter(inflight), lines)

    def _dispatch(self, id: int, method: str, params: bytes, waiter: Waiter) -> None:
        self._post(id, method, params, waiter)

    def _post(self, id: int, method: str, params: Payload, waiter: Waiter, lines: bytes = b"") -> _Post:
        post = _Post(self, id, waiter)
        if isinstance(waiter, CallWaiter):
            post.wire_id = self.requests.caller_request_id(waiter.inflight.call) or post.wire_id
        self.requests.pending[post.id] = post
        if self._endpoint.has_new_credentials():
            self._head = self._new_head()
        post.ticket = self._client.send(self._head + lines, jsonrpc.request_as(post.wire_id, method, params), post)
        return post

    def listen(self) -> None:
        """Such a server sends no notifications."""

    async def aclose(self) -> None:
        """Close every connection; pending requests end as lost."""
        self._lose("closed by the hub")
        await self._client.aclose()


class _Post(HttpRequest):
    """One POST and its JSON response; reports the end to the waiter."""

    __slots__ = ("_body", "_link", "_login", "_size", "_status", "is_done")

    wire_id: bytes

    def __init__(self, link: RpcLink, id: int, waiter: Waiter) -> None:
        super().__init__(id, waiter)
        self.wire_id = b"%d" % id
        self._link = link
        self.is_done = False
        self._status = 0
        self._login: str | None = None
        self._body = Collected()
        self._size = 0

    def abandon(self) -> None:
        """Close the connection of this request, unless the request is done."""
        self._finish()
        super().abandon()

    def _fail(self, fault: Fault) -> None:
        if not self.is_done:
            self._finish()
            self.waiter.fail(fault)

    def _finish(self) -> None:
        self.is_done = True
        self._link.requests.pending.pop(self.id, None)

    # -- the reply, as the client hands it over --------------------------------------------------------------------

    def on_head(self, status: int, headers: Mapping[str, str]) -> None:
        """Read the status; the content type is ignored, only JSON is accepted."""
        self._status = status
        self._login = login_url(status, headers)

    def on_body(self, chunk: bytes) -> None:
        """Read a part of the body."""
        limit = self._link.limits.reply_bytes
        self._size += len(chunk)
        if self._size <= limit:
            self._body.add(chunk)
        elif not self.is_done:
            self._fail(BadReply(self._link.server, f"an answer of over {limit} bytes"))
            self.abandon()

    def on_lost(self, lost_: ConnectionLost) -> None:
        """The connection broke."""
        if not self.is_done:
            self._link.on_doubt()
            self._fail(lost(self._link.server, lost_.reason, may_have_left=lost_.may_have_left))

    def on_end(self) -> None:
        """The response is complete."""
        if self.is_done:
            return
        body = self._body.take()
        depth = self._link.limits.depth
        if len(body) > LATER_BYTES:
            whole = partial(decode_untouched, body, max_depth=depth)
            then, owner = partial(self._receive_late, body), self._link.server
            read_then(whole, untouched_passes, then, _unreadable, owner, over=LATER_BYTES)
        else:
            self._receive(body, jsonrpc.decode_reply(bytes(body), max_depth=depth) if body else None)

    def _receive_late(self, body: bytes | memoryview, read: tuple[jsonrpc.Message, Result | None]) -> None:
        if not self.is_done:
            self._receive(body, *read)

    def _receive(self, body: bytes | memoryview, message: jsonrpc.Message | None, result: Result | None = None) -> None:
        if isinstance(message, Response) and self._status == OK and jsonrpc.same_id(message.id, self.wire_id):
            self._finish()
            if result is not None and isinstance(self.waiter, _RpcWaiter):
                self.waiter.end_with(result)
            else:
                self.waiter.result(message.result)
        elif isinstance(self.waiter, HubRequest) and self._says_no_method(body, message):
            self._fail(ServerError(self._link.server, jsonrpc.METHOD_NOT_FOUND, f"it answered HTTP {self._status}"))
        elif self._status in TURNED_AWAY:
            words = f" ({message.message})" if isinstance(message, ErrorReply) and message.message else ""
            detail = self._link.redact(f"it answered HTTP {self._status}{words}{_ADVICE.get(self._status, '')}")
            if self._status == UNAUTHORIZED:
                self._link.on_unauthorized()
            self._fail(turned_away(self._link.server, detail, self._status, self._login))
        elif isinstance(message, ErrorReply) and (message.id is None or jsonrpc.same_id(message.id, self.wire_id)):
            self._finish()
            self.waiter.error(redact_error(message, self._link.redact))
        elif self._status == OK and isinstance(message, Response | ErrorReply):
            self._fail(BadReply(self._link.server, "the answer to another request"))
        else:
            self._fail(BadReply(self._link.server, f"HTTP {self._status} without a usable JSON-RPC answer"))

    def _says_no_method(self, body: bytes | memoryview, message: object) -> bool:
        """Whether the status alone means that the method is unknown; a JSON-RPC body takes precedence."""
        if not self._link.is_known_endpoint or isinstance(message, Response):
            return False
        if isinstance(message, ErrorReply):
            return self._status == NOT_ALLOWED and message.code == jsonrpc.METHOD_NOT_FOUND
        return self._status in INVALID or (self._status in NO_METHOD and not body)


def _unreadable(why: str) -> tuple[jsonrpc.Message, Result | None]:
    return jsonrpc.unreadable(why), None


class _RpcWaiter(CallWaiter):
    """A caller's call: its result is whatever the method returned."""

    __slots__ = ()

    def result(self, payload: msgspec.Raw, *, is_later: bool = False) -> None:
        """End the call with the value as it is; a value that says it is an error is one."""
        if not is_later and len(memoryview(payload)) > LATER_BYTES:
            in_turn(partial(self.result, payload, is_later=True))
        elif is_later:
            self.end_with(untouched_result(payload))
        else:
            self._end(untouched_result(payload))

    def end_with(self, result: Result) -> None:
        """End the call with a long value that was read already."""
        self._end_soon(result)


# -- tools ---------------------------------------------------------------------------------------------------------


def _described(server: ServerName, tool: DeclaredTool) -> Tool:
    members: dict[str, Any] = {"name": tool.name, "description": tool.description, "inputSchema": tool.input_schema}
    definition = {key: msgspec.Raw(msgspec.json.encode(value)) for key, value in members.items() if value != ""}
    return Tool.of(server, FeatureName(tool.name), definition)


class _Lister:
    """Lists tools with `tools/list`, and converts what such servers answer to MCP's form."""

    def __init__(self, link: RpcLink) -> None:
        self._link = link
        self.server = link.server
        self.limits = link.limits
        self.dialect: McpDialect = link.dialect

    async def request(self, method: str, params: bytes) -> msgspec.Raw:
        """Send a request and wait for the result; raises `Fault`."""
        answer = await self._link.request(method, params)
        if untouched_result(answer).is_error:  # how some servers answer if the tool does not exist
            raise ServerError(self.server, jsonrpc.METHOD_NOT_FOUND, "it answered with a tool's error")
        return await offload(len(memoryview(answer)), partial(in_mcp_shape, answer), owner=self.server)


def in_mcp_shape(answer: msgspec.Raw) -> msgspec.Raw:
    """A tools list in MCP's form, from a list of names or a table by name; anything else unchanged."""
    members = jsonrpc.object_members(answer)
    tools = answer if members is None else members.get("tools")
    raws = None if tools is None else _entries(tools)
    if raws is None:
        return answer
    entries = [b'{"name":%b}' % bytes(raw) if _is_string(raw) else raw for raw in raws]
    rest = {name: value for name, value in (members or {}).items() if name != "tools"}
    return msgspec.Raw(jsonrpc.render({**rest, "tools": b"[%b]" % b",".join(entries)}))


def _entries(tools: msgspec.Raw) -> list[Payload] | None:
    """The entries of a list, or of a table with their names added; None if it is neither."""
    try:
        table = msgspec.json.decode(tools, type=list[msgspec.Raw] | dict[str, msgspec.Raw])
    except msgspec.MsgspecError:
        return None
    if isinstance(table, list):
        return list(table)
    entries: list[Payload] = []
    for name, raw in table.items():  # the value is a definition or a description
        members: Mapping[str, Payload] | None = jsonrpc.object_members(raw)
        if members is None:
            members = {"description": raw} if _is_string(raw) else {}
        entries.append(jsonrpc.render({**members, "name": msgspec.json.encode(name)}))
    return entries


def _is_string(raw: Payload) -> bool:
    return bytes(memoryview(raw)[:1]) == b'"'


class CallerNamedRpcLink(RpcLink):
    """A JSON-RPC endpoint at an address that a caller named.

    It is unlisted, and no operator says that it is JSON-RPC: that is checked first.
    """

    is_known_endpoint = False
    places: Sequence[str] = ()
    """Other URLs of the same origin to try."""

    async def handshake(self, era: Era) -> None:
        """Find the endpoint: any JSON-RPC response to `tools/list` proves it.

        Raises:
            Fault: no address answers so.
        """
        for place in (None, *self.places):
            if place is not None:
                self._endpoint.target = parse_url(place)[1]
                self._head = self._new_head()
            try:
                await self.request(TOOLS.method, b"{}", self.start_seconds)
            except ServerError:
                return
            except (BadReply, NotConnected) as failed:
                is_answer = isinstance(failed, BadReply) or failed.status is not None
                if not is_answer or place == (self.places or (None,))[-1]:
                    raise
            else:
                return

    async def _read_lists(self, topics: Set[Topic], known: Listing | None, client_caps: ClientCapabilities) -> Listing:
        """Nothing: the caller names the methods."""
        return Listing(is_unlisted=True)
