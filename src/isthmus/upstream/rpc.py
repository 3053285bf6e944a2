"""A plain JSON-RPC 2.0 endpoint over HTTP, which knows nothing of MCP: the method is the tool, `params` its arguments.

No handshake, no session, no notification. Its tools are declared by the operator, or learned if it answers
`tools/list`; if it has no such method, it is unlisted, and callers name its methods. The supervisor owns such links;
lanes send calls on them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Set
from functools import partial
from typing import Any

import msgspec

from isthmus.core.calls.inflight import InFlight
from isthmus.core.crew import Crew
from isthmus.core.pauses import in_turn
from isthmus.core.ports.credentials import Credentials
from isthmus.core.settings import Limits
from isthmus.model.faults import BadReply, Fault, NotConnected, ServerError
from isthmus.model.features import TOPICS, Ability, Tool, Topic
from isthmus.model.names import FeatureName, ServerName
from isthmus.model.questions import NOTHING, Profile
from isthmus.transport.egress import DialFailed, Egress, EgressRefused, parse_url
from isthmus.transport.http import Lost, Ticket, client_for, request_head
from isthmus.upstream.dialect import Dialect, LegacyDialect
from isthmus.upstream.hiding import hide_error
from isthmus.upstream.link import BaseLink
from isthmus.upstream.listing import PAGE_BYTES_MAX, Listing, read_topic
from isthmus.upstream.replies import ADVICE, OK, UNAUTHORIZED, login_place
from isthmus.upstream.settings import DeclaredTool, Era, RpcSettings
from isthmus.upstream.user_headers import UserHeaders
from isthmus.upstream.waiters import LATER_BYTES, CallWaiter, Inquiry, Waiter, lost, turned_away
from isthmus.wire import jsonrpc
from isthmus.wire.jsonrpc import ErrorReply, Payload, Response
from isthmus.wire.mcp.lists import TOOLS
from isthmus.wire.mcp.messages import Implementation
from isthmus.wire.mcp.results import verbatim

SPARE_CONNECTIONS = 2
"""Connections beside those for calls: a listing, a ping."""

TURNED_AWAY = (307, 308, 401, 403, 405, 406, 415)
"""Statuses with which a server says that it did not run the request; the same as with MCP over HTTP."""

NOT_ALLOWED = 405
NO_METHOD = (404, NOT_ALLOWED, 501)
"""Statuses with which a server says, without a body, that it does not know a method. With a body that is no JSON-RPC
they come from somebody who does not know the address."""

INVALID = (400, 422)
"""Statuses with which a server says that its endpoint takes other parameters, which it only does if there is one."""

_ADVICE = {
    **ADVICE,
    307: "; configure the address that it points to",
    308: "; configure the address that it points to",
    405: "; check that its address is a JSON-RPC endpoint",
}


_BY_NAME = ": nothing is listed, and callers that may use all of it call its methods by name"


class RpcLink(BaseLink):
    """A server's endpoint, and the requests on their way."""

    can_ask = False
    carrier = "rpc"
    is_known_endpoint = True
    """The operator says that JSON-RPC is spoken there, so that an HTTP status alone can mean that it lacks a method."""
    start_seconds = 20.0

    def __init__(
        self,
        server: ServerName,
        me: Implementation,
        limits: Limits,
        *,
        reach: RpcSettings,
        credentials: Credentials,
        egress: Egress,
        crew: Crew,
        max_calls: int,
    ) -> None:
        super().__init__(server, me, limits)
        self.user_headers = UserHeaders(reach.user_headers)
        self.dialect = LegacyDialect("JSON-RPC 2.0")
        self._egress = egress
        self._origin, target = parse_url(reach.url)
        self._client = client_for(
            credentials.signer,
            self._origin,
            egress,
            crew,
            is_configured=True,
            limit=max_calls + SPARE_CONNECTIONS,
            connect_seconds=limits.connect_seconds,
        )
        self._target = target
        self._credentials = credentials
        self._generation = credentials.generation
        self._head = self._new_head()
        self._declared = tuple(_described(server, tool) for tool in reach.tools)
        self._inquiries: dict[Waiter, _Post] = {}
        self.callers_ids: set[bytes] = set()
        """Ids of requests on their way, where callers choose them."""

    def _new_head(self) -> bytes:
        own = {name.lower(): value for name, value in self._credentials.headers_for(self.server).items()}
        fixed = {"accept": "application/json", "content-type": "application/json"}
        return request_head("POST", self._target, self._origin, {**own, **fixed})

    def _present_head(self) -> bytes:
        """The head of every POST, with what the server is shown now."""
        if self._generation != self._credentials.generation:
            self._generation = self._credentials.generation
            self._head = self._new_head()
        return self._head

    # -- greeting and listing --------------------------------------------------------------------------------------

    async def greet(self, era: Era) -> None:
        """There is nothing to say; but see whether somebody is there, unless asking for the tools will show it.

        Raises:
            Fault: nobody is.
        """
        if self._declared:
            await self._knock(self.limits.connect_seconds)

    async def ping(self, within: float) -> None:
        """See whether the server is there, without running any tool of its.

        One whose tools are declared may know no other method, and what it does with an unknown one is its own
        affair: it is only connected to. Another is asked for its tools.
        """
        if self._declared:
            await self._knock(within)
            return
        try:
            await self.ask(TOOLS.method, b"{}", within)
        except ServerError:
            return

    async def _knock(self, within: float) -> None:
        """Connect, TLS included, and hang up."""
        try:
            transport, _ = await self._egress.dial(self._origin, asyncio.Protocol, is_configured=True, within=within)
        except (EgressRefused, DialFailed) as failed:
            raise NotConnected(self.server, failed.reason) from failed
        transport.close()

    def abilities(self) -> frozenset[Ability]:
        """Tools, and nothing else."""
        return frozenset(("tools",))

    async def list_features(
        self, topics: Set[Topic] = frozenset(TOPICS), known: Listing | None = None, profile: Profile = NOTHING
    ) -> Listing:
        """The declared tools, or those that the server tells of; a server without `tools/list` is unlisted.

        Raises:
            Fault: it is not there, or gave no usable list.
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
        lines = self.user_headers.lines_for(inflight) if call.headers else b""
        if lines is not None:
            wire_id = None if call.request_id is None else self.callers_id(call, self.callers_ids)
            waiter = _RpcWaiter(inflight)
            inflight.carriage = self._post(inflight.name, call.arguments, waiter, lines=lines, wire_id=wire_id)

    def _dispatch(self, id: int, method: str, params: bytes, waiter: Waiter) -> None:
        self._inquiries[waiter] = self._post(method, params, waiter, wire_id=b"%d" % id)

    def _post(
        self, method: str, params: Payload, waiter: Waiter, lines: bytes = b"", wire_id: bytes | None = None
    ) -> _Post:
        post = _Post(self, b"%d" % self.next_id() if wire_id is None else wire_id, waiter)
        if self.is_callers_own:
            self.callers_ids.add(post.id)
        post.ticket = self._client.send(self._present_head() + lines, jsonrpc.request_as(post.id, method, params), post)
        return post

    def _notify(self, method: str, params: Payload | None) -> None:
        """Such a server is told nothing."""

    def listen(self) -> None:
        """Such a server tells nothing."""

    # -- giving up -------------------------------------------------------------------------------------------------

    def may_have_run(self, inflight: InFlight) -> bool:
        """What waits for a connection has not left."""
        post = inflight.carriage
        return not isinstance(post, _Post) or post.ticket is None or post.ticket.may_have_left

    def withdraw(self, inflight: InFlight, reason: str) -> None:
        """Close the connection: there are no words for it."""
        if isinstance(inflight.carriage, _Post):
            inflight.carriage.abandon()

    def _forget(self, waiter: Waiter) -> None:
        post = self._inquiries.pop(waiter, None)
        if post is not None:
            post.abandon()

    async def aclose(self) -> None:
        """Close every connection; whatever is still on one ends as lost."""
        self._lose("closed by the hub")
        await self._client.aclose()


class _Post:
    """One POST and its reply, which is JSON; tells the waiter how it ended."""

    __slots__ = ("_chunks", "_link", "_login", "_size", "_status", "id", "is_over", "ticket", "waiter")

    def __init__(self, link: RpcLink, id: bytes, waiter: Waiter) -> None:
        self._link = link
        self.id = id
        self.waiter = waiter
        self.ticket: Ticket | None = None
        self.is_over = False
        self._status = 0
        self._login: str | None = None
        self._chunks: list[bytes] = []
        self._size = 0

    def abandon(self) -> None:
        """Nobody waits any more: close the connection that serves this, unless it is done with it."""
        self._finish()
        if self.ticket is not None:
            self.ticket.abort()

    def _fail(self, fault: Fault) -> None:
        if not self.is_over:
            self._finish()
            self.waiter.fail(fault)

    def _finish(self) -> None:
        self.is_over = True
        self._link.callers_ids.discard(self.id)

    # -- the reply, as the client hands it over --------------------------------------------------------------------

    def on_head(self, status: int, headers: Mapping[str, str]) -> None:
        """Take the status; whatever kind of content is announced, only JSON is of use."""
        self._status = status
        self._login = login_place(status, headers)

    def on_body(self, chunk: bytes) -> None:
        """Take a part of the reply."""
        limit = self._link.limits.reply_bytes
        self._size += len(chunk)
        if self._size <= limit:
            self._chunks.append(chunk)
        elif not self.is_over:
            self._fail(BadReply(self._link.server, f"an answer of over {limit} bytes"))
            self.abandon()

    def on_end(self) -> None:
        """The reply is whole."""
        if not self.is_over:
            self._read(b"".join(self._chunks))

    def on_lost(self, lost_: Lost) -> None:
        """The reply never became whole."""
        if not self.is_over:
            self._link.on_doubt()
            self._fail(lost(self._link.server, lost_.reason, may_have_left=lost_.may_have_left))

    def _read(self, body: bytes) -> None:
        message = jsonrpc.decode_reply(body, max_depth=self._link.limits.depth) if body else None
        if isinstance(self.waiter, Inquiry) and self._says_no_method(body, message):
            self._fail(ServerError(self._link.server, jsonrpc.METHOD_NOT_FOUND, f"it answered HTTP {self._status}"))
        elif self._status in TURNED_AWAY:
            detail = self._link.hide(f"it answered HTTP {self._status}{_words(message)}{_ADVICE.get(self._status, '')}")
            if self._status == UNAUTHORIZED:
                self._link.on_shut_out()
            self._fail(turned_away(self._link.server, detail, self._status, self._login))
        elif isinstance(message, ErrorReply) and (message.id is None or self._is_own(message.id)):
            self._finish()
            self.waiter.error(hide_error(message, self._link.hide))
        elif isinstance(message, Response) and self._status == OK and self._is_own(message.id):
            self._finish()
            self.waiter.result(message.result)
        else:
            self._fail(BadReply(self._link.server, self._complaint(message)))

    def _says_no_method(self, body: bytes, message: object) -> bool:
        """Whether a status alone says that the method is unknown; what the server said in JSON-RPC counts first."""
        if not self._link.is_known_endpoint or isinstance(message, Response):
            return False
        if isinstance(message, ErrorReply):
            return self._status == NOT_ALLOWED and message.code == jsonrpc.METHOD_NOT_FOUND
        return self._status in INVALID or (self._status in NO_METHOD and not body)

    def _is_own(self, id: msgspec.Raw) -> bool:
        return jsonrpc.same_id(id, self.id)

    def _complaint(self, message: object) -> str:
        if self._status == OK and isinstance(message, Response | ErrorReply):
            return "the answer to another request"
        return f"HTTP {self._status} without a usable JSON-RPC answer"


def _words(message: object) -> str:
    return f" ({message.message})" if isinstance(message, ErrorReply) and message.message else ""


class _RpcWaiter(CallWaiter):
    """A caller's call: whatever the method returned is its result."""

    __slots__ = ()

    def result(self, payload: msgspec.Raw, *, is_later: bool = False) -> None:
        """End the call with the value as it is; one that says that it is an error is one."""
        if not is_later and len(memoryview(payload)) > LATER_BYTES:
            in_turn(partial(self.result, payload, is_later=True))
        elif is_later:
            self._end_soon(verbatim(payload))
        else:
            self._end(verbatim(payload))


# -- tools ---------------------------------------------------------------------------------------------------------


def _described(server: ServerName, tool: DeclaredTool) -> Tool:
    members: dict[str, Any] = {"name": tool.name, "description": tool.description, "inputSchema": tool.input_schema}
    definition = {key: msgspec.Raw(msgspec.json.encode(value)) for key, value in members.items() if value != ""}
    return Tool.of(server, FeatureName(tool.name), definition)


class _Lister:
    """Asks for the tools as an MCP server is asked, and brings what such a server answers into MCP's shape."""

    def __init__(self, link: RpcLink) -> None:
        self._link = link
        self.server = link.server
        self.limits = link.limits
        self.dialect: Dialect = link.dialect

    async def ask(self, method: str, params: bytes) -> msgspec.Raw:
        """Ask and wait for the result; raises `Fault`."""
        answer = await self._link.ask(method, params)
        if verbatim(answer).is_error:  # as some say that there is no such tool
            raise ServerError(self.server, jsonrpc.METHOD_NOT_FOUND, "it answered with a tool's error")
        # What is too large for a page is refused by whoever reads it.
        return answer if len(memoryview(answer)) > PAGE_BYTES_MAX else in_mcp_shape(answer)


def in_mcp_shape(answer: msgspec.Raw) -> msgspec.Raw:
    """A list of tools as MCP writes it, of a list of names or a table of tools by name; anything else as it is."""
    members = jsonrpc.object_members(answer)
    tools = answer if members is None else members.get("tools")
    raws = None if tools is None else _entries(tools)
    if raws is None:
        return answer
    rest = {name: value for name, value in (members or {}).items() if name != "tools"}
    return msgspec.Raw(jsonrpc.render({**rest, "tools": b"[%b]" % b",".join(map(_entry, raws))}))


def _entries(tools: msgspec.Raw) -> list[Payload] | None:
    """The entries of a list, or of a table with their names put in; None if it is neither."""
    try:
        table = msgspec.json.decode(tools, type=list[msgspec.Raw] | dict[str, msgspec.Raw])
    except msgspec.MsgspecError:
        return None
    if isinstance(table, list):
        return list(table)
    return [_named(name, raw) for name, raw in table.items()]


def _named(name: str, raw: msgspec.Raw) -> Payload:
    """An entry of a table by name, whose value describes the tool in full or in words."""
    members = jsonrpc.object_members(raw)
    if members is None:
        members = {"description": raw} if _is_string(raw) else {}
    return jsonrpc.render({**members, "name": msgspec.json.encode(name)})


def _entry(raw: Payload) -> Payload:
    return b'{"name":%b}' % bytes(raw) if _is_string(raw) else raw


def _is_string(raw: Payload) -> bool:
    return bytes(memoryview(raw)[:1]) == b'"'
