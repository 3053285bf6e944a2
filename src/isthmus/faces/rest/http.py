"""REST over HTTP: `/v1` and `/openapi.json`. Names are the canonical ones, whatever `/mcp` shows.

What is asked of a server becomes a call like any other, and a caller that goes away cancels it there. Calls with a
whole short body, which are nearly all, are taken without a task (`take`); the rest is an ASGI application (`serve`).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeAlias
from urllib.parse import parse_qsl

import msgspec

from isthmus.core.calls.hub import Hub
from isthmus.core.catalog.view import View
from isthmus.core.pauses import pause_after
from isthmus.core.ports.relay import RelayBook
from isthmus.faces.http.bodies import JSON, is_json, joined, named_types, read_body
from isthmus.faces.http.gate import Denied, Fields, Gate
from isthmus.faces.http.turn import PEER, Arrival, Message, Peer, Receive, Send
from isthmus.faces.rest import openapi
from isthmus.faces.rest.exchange import RestExchange, answer_problem
from isthmus.faces.rest.faults import Problem, denial, problem_of, refusal
from isthmus.faces.rest.listings import entry_document, list_document, server_document, servers_document
from isthmus.faces.rest.operations import ROUTER, Operation, Place
from isthmus.faces.rest.relay import Query, Seen
from isthmus.model.callers import Caller
from isthmus.model.calls import EVERYTHING, Call, Surface
from isthmus.model.events import LOG_LEVELS, LogLevel
from isthmus.model.faults import Fault, UnknownPrompt, UnknownTool
from isthmus.model.names import ServerName
from isthmus.wire.jsonrpc import Malformed, decode_object, object_members
from isthmus.wire.mcp.lists import PROMPTS, RESOURCES, TEMPLATES, TOOLS, ListShape
from isthmus.wire.mcp.requests import EMPTY_OBJECT, read_request

PARAMETERS_MAX = 16
"""Far more parameters than any operation has."""

DEFAULT_LEVEL: LogLevel = "info"

Answered: TypeAlias = "bytes | Problem"


def is_rest(path: str) -> bool:
    """Whether a path belongs to this face, whatever it finds there."""
    return path.startswith("/v1/") or path in ("/v1", "/openapi.json")


class RestHttp:
    """The face over HTTP."""

    def __init__(
        self, hub: Hub, gate: Gate, relay: RelayBook | None = None, loop_figures: Callable[[], object] = dict
    ) -> None:
        """Without a `relay` there is nothing to be found of one. `loop_figures` tells how late the event loop runs."""
        self.hub = hub
        self.relay = relay
        self.loop_figures = loop_figures
        self.loop = asyncio.get_running_loop()
        self._gate = gate

    def take(self, arrival: Arrival) -> bool:
        """Start a call at once, if the request is one and nothing has to be waited for."""
        scope = arrival.scope
        place = ROUTER.find(scope["path"])
        operation = None if place is None else place.methods.get(scope["method"])
        if place is None or operation is None or not operation.is_call or self.hub.is_settling():
            return False
        fields = joined(scope["headers"])
        caller = self._gate.admit(fields, "rest", scope)
        if isinstance(caller, Denied):
            return False
        visit = _Visit(self, caller, operation, place, scope, fields, arrival)
        if (problem := visit.check()) is not None:
            answer_problem(arrival, problem)
        else:
            visit.start_call(arrival.body, None)
        return True

    async def serve(self, scope: Message, receive: Receive, _: Send) -> None:
        """Answer one request."""
        peer: Peer = scope["extensions"][PEER]
        problem = await self._serve(scope, receive, peer)
        if problem is not None:
            answer_problem(peer, problem)

    def admit(self, fields: Fields, scope: Message) -> Caller | Denied:
        """Who sent these headers; book is kept of who is not let in."""
        caller = self._gate.admit(fields, "rest", scope)
        if isinstance(caller, Denied):
            self._gate.on_turned_away("rest", caller.status)
        return caller

    async def _serve(self, scope: Message, receive: Receive, peer: Peer) -> Problem | None:
        fields = joined(scope["headers"])
        caller = self.admit(fields, scope)
        if isinstance(caller, Denied):
            return denial(caller)
        place = ROUTER.find(scope["path"])
        if place is None:
            return refusal("unknown_path", "Nothing is at this path: /openapi.json says what there is")
        operation = place.methods.get("GET" if scope["method"] == "HEAD" else scope["method"])
        if operation is None:
            text = f"Use {place.allow.decode()}"
            return refusal("method_not_allowed", text, ((b"allow", place.allow),))
        visit = _Visit(self, caller, operation, place, scope, fields, peer)
        if (problem := visit.check()) is not None:
            return problem
        if operation.is_call:
            await visit.call(receive, scope)
            return None
        return await visit.tell()


class _Visit:
    """One HTTP request on this face, to a place that exists."""

    __slots__ = ("_face", "_headers", "_hub", "_is_head", "_peer", "_query", "argument", "caller", "operation")

    def __init__(
        self,
        face: RestHttp,
        caller: Caller,
        operation: Operation,
        place: Place,
        scope: Message,
        fields: Fields,
        peer: Peer,
    ) -> None:
        self._face = face
        self._hub = face.hub
        self._peer = peer
        self._headers = fields
        self._is_head = scope["method"] == "HEAD"
        self._query = _read_query(scope["query_string"], operation)
        self.caller = caller
        self.operation = operation
        self.argument = place.argument

    def check(self) -> Problem | None:
        """Refuse what can be refused before the body is read."""
        if isinstance(self._query, str):
            return refusal("bad_request", self._query)
        has_body = self._headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in self._headers
        if self.operation.body is not None and has_body and not is_json(self._headers):
            return refusal("not_json", "Content-Type must be application/json")
        return None

    def given(self, name: str) -> str | None:
        """A parameter of the query."""
        assert isinstance(self._query, dict), "what has a wrong query was refused"
        return self._query.get(name)

    # -- what the hub itself can tell ------------------------------------------------------------------------------

    async def tell(self) -> Problem | None:
        """Answer from what the hub knows, or say why not."""
        answer = await TELLERS[self.operation.id](self)
        if isinstance(answer, Problem):
            return answer
        self._peer.answer(200, JSON, answer)
        return None

    async def list(self, shape: ListShape) -> Answered:
        """One of the lists, whole or one server's part of it."""
        server = self.given("server")
        if server is None:
            return list_document(await self.view(), shape, is_operator=self.caller.is_operator)
        # Asked about made-up names, the snapshot would keep a view for each and drop those in use.
        if server in self._hub.lanes:
            view = await self._hub.view(self.caller.grants, Surface("canonical", ServerName(server)))
            if view.servers:
                return list_document(view, shape, is_operator=self.caller.is_operator)
        return _unknown_server(server)

    async def entry(self, shape: ListShape, unknown: Callable[[str], Fault]) -> Answered:
        """One entry of a list."""
        document = entry_document(await self.view(), shape, self.argument)
        if document is not None:
            return document
        down = self._hub.unreached(self.caller.grants, EVERYTHING, self.argument) if shape is TOOLS else None
        return problem_of(down or unknown(self.argument))

    async def view(self) -> View:
        """Everything that the caller sees."""
        return await self._hub.view(self.caller.grants, EVERYTHING)

    async def hub(self) -> Answered:
        """How the hub itself does."""
        if not self.caller.is_operator:
            return refusal("forbidden", "Only operators see this: set `operator = true` for the caller")
        return msgspec.json.encode({"event_loop": self._face.loop_figures()})

    async def servers(self) -> Answered:
        """All servers; this one does not wait for any."""
        return servers_document(self._hub, self.caller)

    async def server(self) -> Answered:
        """One server."""
        return server_document(self._hub, self.caller, self.argument) or _unknown_server(self.argument)

    async def relay(self, tell: Callable[[Seen, Query], bytes | None]) -> Answered:
        """Something of the relay."""
        if self._face.relay is None:
            return _no_relay()
        assert isinstance(self._query, dict), "what has a wrong query was refused"
        told = tell(Seen(self._hub, self._face.relay, self.caller), self._query)
        return refusal("unknown_agent", f"Unknown agent: {self.argument}") if told is None else told

    async def relay_agent(self) -> Answered:
        """One agent."""
        return await self.relay(lambda seen, _: seen.show_agent(self.argument))

    async def forget(self) -> Answered:
        """Have a server that dialled in forgotten."""
        relay, name = self._face.relay, ServerName(self.argument)
        if not self.caller.is_operator:
            return refusal("forbidden", "Only an operator may have a server forgotten: see operator = true of a caller")
        if relay is None:
            return _no_relay()
        known = Seen(self._hub, relay, self.caller).show_server(name)
        match relay.forget(name):
            case "forgotten":
                assert known is not None, "what could be forgotten was there"
                return known
            case "connected":
                return refusal("not_away", f"{name} is connected: only a server that is away can be forgotten")
            case "unknown":
                return refusal("unknown_server", f"No server of this name has dialled in: {name}")

    # -- calls -----------------------------------------------------------------------------------------------------

    async def call(self, receive: Receive, scope: Message) -> None:
        """Start a call once its body is here and servers that only start were given their moment; wait for its end.

        Who has gone by then is not served: nobody would hear what was done.
        """
        body = self._peer.take_body()
        if body is None and ((body := await read_body(receive)) is None or not self._is_admitted_again(scope)):
            return
        left = asyncio.Event()
        self._peer.on_disconnect(left.set)
        await self._hub.settle(EVERYTHING, until=self._is_known)
        if left.is_set():
            return
        over: asyncio.Future[None] = self._face.loop.create_future()
        call = self._read_call(body)
        await pause_after(len(body))
        self._begin(call, partial(_set, over))
        await over

    def _is_known(self) -> bool:
        """Whether the caller sees what the call names, so that it need not wait for servers that are starting."""
        call = self._call_of(EMPTY_OBJECT)
        view = self._hub.snapshot.view(self.caller.grants, EVERYTHING)
        return isinstance(call, Call) and view.find(call.kind, call.name) is not None

    def _is_admitted_again(self, scope: Message) -> bool:
        """Whether who sent the headers is let in still: a body may take its time, and a key be revoked meanwhile."""
        caller = self._face.admit(self._headers, scope)
        if isinstance(caller, Denied):
            answer_problem(self._peer, denial(caller))
            return False
        self.caller = caller
        return True

    def start_call(self, body: bytes, on_end: Callable[[], None] | None) -> None:
        """Start a call, or refuse it; either way it is answered, and then `on_end` is called."""
        self._begin(self._read_call(body), on_end)

    def _begin(self, call: Call | Problem, on_end: Callable[[], None] | None) -> None:
        if isinstance(call, Problem):
            answer_problem(self._peer, call)
            return on_end() if on_end is not None else None
        exchange = RestExchange(self._peer, call.log_level, self._face.loop)
        exchange.on_end = on_end
        inflight = self._hub.start(call, exchange)
        if inflight.outcome is None:
            self._peer.on_disconnect(partial(inflight.cancel, "the caller closed the connection"))
            exchange.open()
        return None

    def _read_call(self, body: bytes) -> Call | Problem:
        timeout, level = self._timeout(), self._level()
        if isinstance(timeout, Problem):
            return timeout
        if isinstance(level, Problem):
            return level
        arguments = EMPTY_OBJECT
        if self.operation.body is not None and body:
            read = decode_object(body, max_depth=self._hub.limits.depth)
            if isinstance(read, Malformed):
                return refusal("bad_request", read.message[0].upper() + read.message[1:])
            arguments = read
        call = self._call_of(arguments)
        if isinstance(call, Problem):
            return call
        if level is not None:
            self._hub.levels.call(level)
        heard = level is not None
        return msgspec.structs.replace(call, timeout=timeout, log_level=level, wants_progress=heard, face="rest")

    def _call_of(self, arguments: msgspec.Raw) -> Call | Problem:
        match self.operation.id:
            case "call_tool":
                return Call(self.caller, EVERYTHING, self.argument, arguments)
            case "write_prompt":
                return Call(self.caller, EVERYTHING, self.argument, arguments, kind="prompt")
            case "read_resource":
                return Call(self.caller, EVERYTHING, self.given("uri") or "", arguments, kind="resource")
            case _:
                return self._completion(arguments)

    def _completion(self, arguments: msgspec.Raw) -> Call | Problem:
        asked = read_request("completion/complete", object_members(arguments) or {}, {})
        if isinstance(asked, str):
            return refusal("bad_request", asked)
        return Call(self.caller, EVERYTHING, asked.name, asked.arguments, extra=asked.extra, kind=asked.kind)

    def _timeout(self) -> float | Problem | None:
        given = self.given("timeout")
        if given is None:
            return None
        try:
            seconds = float(given)
        except ValueError:
            seconds = math.nan
        if 0 < seconds < math.inf:
            return seconds
        return refusal("bad_request", "timeout must be a number of seconds above 0")

    def _level(self) -> LogLevel | Problem | None:
        """From which level on the log is streamed; None if no stream is wanted."""
        given = self.given("log") or DEFAULT_LEVEL
        level = next((level for level in LOG_LEVELS if level == given), None)
        if level is None:
            return refusal("bad_request", f"log must be one of {', '.join(LOG_LEVELS)}")
        return level if self._wants_stream() else None

    def _wants_stream(self) -> bool:
        """Only who asks for events by name gets them; `*/*` is what everybody sends."""
        return b"text/event-stream" in named_types(self._headers) and not self._is_head


async def _describe(_: _Visit) -> Answered:
    return openapi.document()


TELLERS: dict[str, Callable[[_Visit], Awaitable[Answered]]] = {
    "list_tools": lambda visit: visit.list(TOOLS),
    "get_tool": lambda visit: visit.entry(TOOLS, UnknownTool),
    "list_resources": lambda visit: visit.list(RESOURCES),
    "list_templates": lambda visit: visit.list(TEMPLATES),
    "list_prompts": lambda visit: visit.list(PROMPTS),
    "get_prompt": lambda visit: visit.entry(PROMPTS, UnknownPrompt),
    "get_hub": _Visit.hub,
    "list_servers": _Visit.servers,
    "get_server": _Visit.server,
    "list_relay_agents": lambda visit: visit.relay(Seen.list_agents),
    "get_relay_agent": _Visit.relay_agent,
    "list_relay_servers": lambda visit: visit.relay(Seen.list_servers),
    "forget_relay_server": _Visit.forget,
    "list_relay_tools": lambda visit: visit.relay(Seen.list_tools),
    "list_relay_devices": lambda visit: visit.relay(Seen.list_devices),
    "describe": _describe,
}
"""Who answers each operation that is no call."""


def _read_query(query: bytes, operation: Operation) -> dict[str, str] | str:
    """The parameters of a query, or what is wrong with them: one that is not known was meant to do something."""
    try:
        pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True, max_num_fields=PARAMETERS_MAX)
    except ValueError:
        return f"The query has over {PARAMETERS_MAX} parameters"
    known = {parameter.name for parameter in operation.query}
    given = dict(pairs)
    if len(given) != len(pairs):
        return "A parameter of the query is given twice"
    if unknown := sorted(given.keys() - known):
        told = ", ".join(sorted(known)) or "none"
        return f"There is no parameter {unknown[0]!r} here; known: {told}"
    absent = [
        parameter.name for parameter in operation.query if parameter.is_required and not given.get(parameter.name)
    ]
    return f"The parameter {absent[0]} is needed" if absent else given


def _no_relay() -> Problem:
    return refusal("unknown_path", "This hub has no relay: [relay] enabled says so")


def _unknown_server(name: str) -> Problem:
    return refusal("unknown_server", f"Unknown server: {name}")


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
