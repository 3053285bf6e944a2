"""MCP over Streamable HTTP: `/mcp` for all servers, `/mcp/{server}` for one server under its own tool names.

Legacy callers have sessions. A modern caller's request stands alone and ends with its connection. Nearly all requests
are calls; `McpHttp.take` starts those without a task. Everything else is an ASGI application (`McpHttp.serve`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from functools import partial

import msgspec

from isthmus.core.calls.result_cuts import URI as RESULTS_URI
from isthmus.core.calls.running_call import Bucket, Deadlines, InFlight
from isthmus.core.event_loop import LONG_BYTES, offload, pause_after, read_message
from isthmus.frontends.http.auth import Authenticator, Denied, Fields, Headers
from isthmus.frontends.http.nodes import ALONE, TAG_END, Nodes
from isthmus.frontends.http.request_cycle import (
    FIELDS,
    JSON,
    PEER,
    STREAM,
    IncomingRequest,
    Message,
    Peer,
    Receive,
    Send,
    header_lines,
    is_json,
    join_headers,
    read_body,
    respond,
)
from isthmus.frontends.mcp.batches import BATCH_MAX, BATCHES_VERSION, BatchReply
from isthmus.frontends.mcp.exchange import ClientInput, JsonRpcReply, McpExchange, cancelled_reply, refuse, reject
from isthmus.frontends.mcp.http_streams import (
    CallStream,
    ConnectionStream,
    HttpEventStream,
    HttpSession,
    HttpSessions,
    OpenStreams,
    set_over,
)
from isthmus.frontends.mcp.input_required import SuspendedCall
from isthmus.frontends.mcp.methods import NAMED, McpMethods, client_capabilities
from isthmus.frontends.mcp.subscriptions import CallerSubscriptions, McpClient, TaskStatusNotifier
from isthmus.frontends.mcp.tasks import is_hub_task_id, needs_session
from isthmus.model.callers import Caller
from isthmus.model.calls import NO_CAPABILITIES, Call, Event, LogLevel, Outcome, Surface
from isthmus.model.features import Topic
from isthmus.model.trace_context import PARENT_HEADER, STATE_HEADER, with_http_context
from isthmus.wire import jsonrpc, sse
from isthmus.wire.jsonrpc import Batch, ErrorReply, Malformed, Notification, Request, Response
from isthmus.wire.mcp import legacy, modern
from isthmus.wire.mcp.forwarded_methods import CALLS, STATE
from isthmus.wire.mcp.lists import PROMPTS, RESOURCES, TEMPLATES, TOOLS
from isthmus.wire.mcp.messages import CANCELLED, Era, Members, read_client_capabilities, read_string
from isthmus.wire.mcp.tasks import LEGACY_METHODS, MODERN_METHODS

SWEEP_SECONDS = 60.0
"""How often idle sessions are closed."""

RESUME_SECONDS = 30.0
"""How long a legacy caller's call continues after its connection broke: by its protocol, that is no cancellation."""

PLAIN_SECONDS = 0.1
"""A response that takes longer becomes a stream, for a caller that can resume streams."""

RETRY_SECONDS_MAX = 10.0
"""The longest pause that a caller is given; the call waits only a little longer for its return."""

STATUS = {
    jsonrpc.PARSE_ERROR: 400,
    jsonrpc.INVALID_REQUEST: 400,
    jsonrpc.INVALID_PARAMS: 400,
    jsonrpc.METHOD_NOT_FOUND: 404,
    modern.HEADER_MISMATCH: 400,
    modern.MISSING_CAPABILITY: 400,
    modern.UNSUPPORTED_VERSION: 400,
}
"""HTTP statuses of errors in the modern era. The legacy era answers 200 to every readable request."""

NOT_FOUND = "Not found: MCP is at /mcp, /mcp/{server} and /mcp/{set}"
NOT_A_PAGE = "This address is for MCP clients. A GET opens a stream of events, so it needs Accept: text/event-stream"

VERSION_HEADER = modern.VERSION_HEADER.encode()
METHOD_HEADER = modern.METHOD_HEADER.encode()
NAME_HEADER = modern.NAME_HEADER.encode()
SESSION_HEADER = legacy.SESSION_HEADER.encode()
EVENT_HEADER = legacy.EVENT_HEADER.encode()
PARAM_PREFIX = modern.PARAM_PREFIX.encode()

ROUTING = (VERSION_HEADER, METHOD_HEADER, NAME_HEADER, SESSION_HEADER)
"""Headers that a proxy may route on, besides those of arguments. Given twice, two readers could see two values."""

EVENTS = b"text/event-stream"

TASK_METHODS = LEGACY_METHODS | MODERN_METHODS
HELD_METHODS = frozenset({"tasks/result", "tasks/update"})
"""What only the node that runs a task can answer; a task's state is in the database."""

_TOPIC_OF_LIST: dict[str, Topic] = {
    TOOLS.method: "tools",
    PROMPTS.method: "prompts",
    RESOURCES.method: "resources",
    TEMPLATES.method: "resources",
}


# -- headers -------------------------------------------------------------------------------------------------------


def text_of(fields: Fields, name: bytes) -> str | None:
    """A header's value as text; None if it is absent."""
    value = fields.get(name)
    return None if value is None else value.decode("latin-1")


def accepts(fields: Fields, kind: bytes) -> bool:
    """Whether the `Accept` header allows this media type."""
    accept = fields.get(b"accept", b"*/*")
    if kind in accept or b"*/*" in accept:  # as most clients write it
        return True
    wanted = (kind, kind.partition(b"/")[0] + b"/*")
    return any(part.partition(b";")[0].strip().lower() in wanted for part in accept.split(b","))


def accepts_something(fields: Fields) -> bool:
    """Whether the `Accept` header allows JSON or event streams."""
    return accepts(fields, b"application/json") or accepts(fields, EVENTS)


def repeated_header(headers: Headers) -> str | None:
    """The name of a routing header that is given twice."""
    counts = Counter(name for name, _ in headers if name in ROUTING or name.startswith(PARAM_PREFIX))
    return next((name.decode() for name, count in counts.items() if count > 1), None)


def status_of(reply: JsonRpcReply, era: Era) -> int:
    """The HTTP status of a response."""
    return STATUS.get(reply.code, 200) if era == "modern" and reply.code is not None else 200


# -- calls ---------------------------------------------------------------------------------------------------------


class McpHttpExchange(McpExchange):
    """One call's caller. It responds as soon as the call ends, without a task waiting for that.

    The response is plain JSON unless an event or a request precedes it; then it is an event stream.
    """

    __slots__ = ("_bucket", "_loop", "_peer", "_resume_timer", "_stream", "on_end", "session")

    def __init__(
        self,
        peer: Peer,
        id: msgspec.Raw,
        era: Era,
        token: msgspec.Raw | None,
        loop: asyncio.AbstractEventLoop,
        call: Call,
        level: LogLevel | None = None,
        client_input: ClientInput | None = None,
    ) -> None:
        """See the attributes of `McpExchange`."""
        self._peer = peer
        self._id = id
        self._era = era
        self._token = token
        self._level = level
        self._client_input = client_input
        self._loop = loop
        self.call = call
        self.session: HttpSession | None = None
        """Stores the call's stream, if the caller can resume it."""
        self.inflight = None
        self.on_end: Callable[[], None] | None = None
        self._stream: CallStream | None = None
        self._bucket: Bucket | None = None
        self._resume_timer: asyncio.TimerHandle | None = None
        """Runs while the caller is disconnected and may resume."""

    def emit(self, event: Event) -> None:
        """Send an event, if the caller asked for such events. The first one makes the response a stream."""
        message = self._render_event(event)
        if message is not None:
            self._open_stream().send_report(message)

    def send(self, message: bytes) -> None:
        """Send a message on the call's stream; after the call on the session's stream."""
        stream = self._open_stream()
        if not stream.is_done:
            stream.send(message)
        elif self.session is not None:
            self.session.send(message)

    def send_request(self, id: bytes, message: bytes) -> None:
        """See `AskableExchange`."""
        stream = self._open_stream()
        if stream.is_done:
            self.send(message)
        else:
            stream.send_request(id, message)

    def settle_request(self, id: bytes) -> None:
        """See `AskableExchange`."""
        if self._stream is not None:
            self._stream.settle_request(id)

    def _late_send(self) -> Callable[[bytes], None] | None:
        return None if self.session is None else self.session.send_report

    def tools_found(self, names: Sequence[str]) -> None:
        """See `FindingExchange`; only a session has a list that can grow."""
        if self.session is not None:
            self.session.found.add(names)

    @property
    def session_id(self) -> str:
        """See `SessionExchange`."""
        return "" if self.session is None else self.session.id

    def pause(self, seconds: float) -> None:
        """The server closed its stream of this call for a while: close the caller's too, if it can resume."""
        if self.session is None or not self.session.can_resume:
            return
        if self._open_stream().pause(int(min(seconds, RETRY_SECONDS_MAX) * 1000)):
            self._cancel_unless_resumed()

    def end(self, outcome: Outcome) -> None:
        """Send the response."""
        if self._resume_timer is not None:
            self.reconnected()
        if self._bucket is not None:
            self._bucket.pop(self, None)
        reply = self._reply_to(outcome)
        if self._stream is None:
            status = 200 if reply.code is None else status_of(reply, self._era)
            self._peer.answer(status, JSON, reply.text)
        else:
            self._stream.end(reply.body)
        on_end, self.on_end = self.on_end, None  # it may hold this call, which holds this exchange
        if on_end is not None:
            on_end()

    def _open_stream(self) -> CallStream:
        if self._stream is None:
            if self.session is None:
                self._stream = ConnectionStream(self._peer, self._loop)
            else:
                log = self._stream = self.session.store.open(self.session.id, self)
                log.start(self._peer, is_primed=self.session.can_resume)
        return self._stream

    def stream_when_slow(self, deadlines: Deadlines) -> None:
        """Make the response a stream if it does not come soon, so that the caller can resume it."""
        self._bucket = deadlines.add(self, PLAIN_SECONDS)

    def expire(self) -> None:
        """Open the stream. A caller that has disconnected already could not learn how to resume it."""
        if self._resume_timer is None:
            self._open_stream()

    def cancel(self, why: str) -> None:
        """See `core.calls.running_call.Expiring`; a stream that is not open needs no end."""

    def disconnected(self, peer: Peer) -> None:
        """A legacy caller's connection broke; it may resume its stream for a while."""
        if self._stream is None or self._stream.disconnected(peer):
            self._cancel_unless_resumed()

    def _cancel_unless_resumed(self) -> None:
        if self.inflight is not None and self._resume_timer is None:
            why = "the caller's connection broke"
            self._resume_timer = self._loop.call_later(RESUME_SECONDS, self.inflight.cancel, why)

    def reconnected(self) -> None:
        """The caller resumed its stream, or the call has ended."""
        if self._resume_timer is not None:
            self._resume_timer.cancel()
            self._resume_timer = None


# -- requests ------------------------------------------------------------------------------------------------------


class McpHttp:
    """The frontend. The surface argument says which path a request came by."""

    def __init__(self, mcp_methods: McpMethods, auth: Authenticator, nodes: Nodes = ALONE) -> None:
        self.mcp_methods = mcp_methods
        self.hub = mcp_methods.hub
        self.nodes = nodes
        self.sessions = HttpSessions(mcp_methods.hub.session_ended, nodes)
        self.loop = asyncio.get_running_loop()
        self.streams = OpenStreams(self.loop)
        self.slow = Deadlines(self.loop)
        """Calls whose response becomes a stream if it does not come soon."""
        self._auth = auth
        self._sweeping: asyncio.TimerHandle | None = None

    def end_streams(self) -> None:
        """End every stream that belongs to no call, because the hub stops. Running calls continue."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        self.streams.end_all()

    def retain(self, callers: Container[Caller]) -> None:
        """End sessions, suspended calls and streams of all other callers: those removed, or with other permissions."""
        self.sessions.retain(callers)
        if self.mcp_methods.client_input is not None:
            self.mcp_methods.client_input.retain(callers)
        self.streams.retain(callers)

    def open_session(self, caller: Caller, surface: Surface, version: str) -> HttpSession:
        """Open a session; idle ones are closed from time to time while there are any."""
        if self._sweeping is None:
            self._sweeping = self.loop.call_later(SWEEP_SECONDS, self._sweep)
        return self.sessions.open(caller, surface, self.loop.time(), version)

    def _sweep(self) -> None:
        self.sessions.sweep(self.loop.time())
        self._sweeping = self.loop.call_later(SWEEP_SECONDS, self._sweep) if len(self.sessions) else None

    def take(self, surface: Surface, arrival: IncomingRequest) -> bool:
        """Start a call at once, if the request is a call that needs no waiting; False leaves it to `serve`."""
        scope = arrival.scope
        if scope["method"] != "POST" or self.hub.settling:
            return False
        fields, body = scope.get(FIELDS) or join_headers(scope["headers"]), arrival.body
        if not is_json(fields) or isinstance(caller := self._auth.admit(fields, "mcp", scope), Denied):
            return False
        request = McpHttpRequest(self, caller, surface, scope["headers"], fields, arrival)
        if not accepts_something(fields) or not request.is_path_visible():
            return False
        message = jsonrpc.decode(body, max_depth=self.hub.limits.depth)
        if not isinstance(message, Request) or message.method not in CALLS:
            return False
        if self.nodes.prefix:
            if message.method in HELD_METHODS:
                return False
            # An id may name a node that is gone; nothing else of a node that is alone can be elsewhere.
            is_plain = message.method == "tools/call" and STATE not in message.params
            if (not is_plain or self.nodes.has_others) and request.forward(message, scope, body) is not None:
                return True
        request.start_call(message)
        return True

    async def serve(self, surface: Surface, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request."""
        peer: Peer = scope["extensions"][PEER]
        fields = join_headers(scope["headers"])
        caller = self.admit(fields, peer, scope)
        if caller is None:
            return
        request = McpHttpRequest(self, caller, surface, scope["headers"], fields, peer)
        if not request.is_path_visible():
            respond(peer, 404, NOT_FOUND)
            return
        match scope["method"]:
            case "POST":
                await request.post(receive, scope)
            case "GET":
                await request.get()
            case "DELETE":
                request.delete()
            case _:
                respond(peer, 405, "Use POST, GET or DELETE", ((b"allow", b"GET, POST, DELETE"),))

    def admit(self, fields: Fields, peer: Peer, scope: Message) -> Caller | None:
        """Authenticate a request; None if it was denied and answered so."""
        caller = self._auth.admit(fields, "mcp", scope)
        if not isinstance(caller, Denied):
            return caller
        self._auth.on_turned_away("mcp", caller.status)
        respond(peer, caller.status, caller.message, caller.headers)
        return None


class McpHttpRequest:
    """One authenticated HTTP request."""

    __slots__ = ("_caller", "_frontend", "_headers", "_hub", "_methods", "_peer", "_raw_headers", "_surface")

    def __init__(
        self, frontend: McpHttp, caller: Caller, surface: Surface, raw_headers: Headers, fields: Fields, peer: Peer
    ) -> None:
        self._frontend = frontend
        self._hub = frontend.hub
        self._methods = frontend.mcp_methods
        self._caller = caller
        self._surface = surface
        self._peer = peer
        self._raw_headers = raw_headers
        self._headers = fields

    def is_path_visible(self) -> bool:
        """Whether the caller may see the server or the set that the path names."""
        if self._surface.set is not None:
            view = self._hub.snapshot.view(self._caller.grants, self._surface)
            return bool(view.servers)
        server = self._surface.server
        if server is None:
            return True
        # For invented names the snapshot would store a view each and drop those in use.
        if server not in self._hub.server_queues:
            return False
        return server in self._hub.snapshot.view(self._caller.grants, self._surface).servers

    # -- POST ------------------------------------------------------------------------------------------------------

    async def post(self, receive: Receive, scope: Message) -> None:
        """Answer a JSON-RPC message."""
        if not is_json(self._headers):
            return respond(self._peer, 415, "Content-Type must be application/json")
        if not accepts_something(self._headers):
            return respond(self._peer, 406, "Accept must include application/json and text/event-stream")
        body = self._peer.take_body()
        depth = self._hub.limits.depth
        if body is not None and len(body) <= LONG_BYTES:
            message = jsonrpc.decode(body, max_depth=depth)
        else:
            read = await self._read_long(body, receive, scope)
            if read is None:
                return None
            body, message = read
        match message:
            case Request():
                over = self.forward(message, scope, body)
                if over is None and message.method in HELD_METHODS:
                    over = await self._forward_to_holder(message, scope, body)
                await (self._request(message) if over is None else over)
            case Malformed():
                self._reply(refuse(message.id, message.code, message.message), 400)
            case _ if self._refuse_unsupported_version():
                pass
            case Batch():
                await self._batch(body)
            case Notification() | Response() | ErrorReply():
                session_id = self._headers.get(SESSION_HEADER)
                session = None if session_id is None else self._find_session(session_id)
                if session_id is not None and session is None:
                    return self._session_not_found(None)
                if session is not None:
                    self._receive(session, message)
                respond(self._peer, 202, "")  # also for an unexpected answer, as the specification says
        return None

    def forward(self, request: Request, scope: Message, body: bytes) -> asyncio.Future[None] | None:
        """Forward a request to another node, if its body names what that has, or its caller has a process there."""
        nodes = self._frontend.nodes
        if not nodes.prefix:
            return None
        # A tool call without a state, as nearly all are, names nothing that another node may have.
        if request.method != "tools/call" or STATE in request.params:
            id = _named_by(request)
            if id is not None:
                return nodes.forward(id, self._peer, scope, body)
        if not nodes.has_others or SESSION_HEADER in self._headers or not self._has_own_process(request):
            return None
        return nodes.forward_caller(self._caller, self._peer, scope, body)

    def _has_own_process(self, request: Request) -> bool:
        """Whether what a request without a session is about may be in a process that its caller has for itself."""
        hub, view = self._hub, self._hub.snapshot.view(self._caller.grants, self._surface)
        if request.method == "initialize":  # the session shares its caller's process
            return hub.has_link_per_caller(view.servers, NO_CAPABILITIES)
        is_list = request.method in _TOPIC_OF_LIST
        if not is_list and request.method != modern.LISTEN and request.method not in NAMED:
            return False
        client_caps = client_capabilities(request, "modern")
        if request.method not in NAMED:  # lists of clients that cannot be asked are the same for all callers
            return bool(client_caps or not is_list) and hub.has_link_per_caller(view.servers, client_caps)
        kind = NAMED[request.method]
        name = read_string(request.params.get("uri" if kind == "resource" else "name"))
        if client_caps:
            view = hub.snapshot.view(self._caller.grants, self._surface, client_caps)
        found = None if name is None else view.find(kind, name)
        return found is not None and hub.has_link_per_caller((found.route.feature.server,), client_caps)

    async def _forward_to_holder(self, request: Request, scope: Message, body: bytes) -> asyncio.Future[None] | None:
        """Forward a request about a task to the node that runs it: only that one has the task's questions."""
        nodes, hub_tasks = self._frontend.nodes, self._methods.hub_tasks
        id = read_string(request.params.get("taskId"))
        if not nodes.prefix or hub_tasks is None or id is None or not is_hub_task_id(id):
            return None
        holder = await hub_tasks.holder_of(self._caller, id)
        return nodes.forward_to(holder, self._peer, scope, body) if holder else None

    async def _read_long(
        self, body: bytes | None, receive: Receive, scope: Message
    ) -> tuple[bytes, jsonrpc.Message] | None:
        """Read a message that takes several turns of the event loop; None if it was answered or needs no answer.

        The caller may cancel it meanwhile.
        """
        id = self._headers.get(SESSION_HEADER)
        session = None if id is None else self._find_session(id)
        if session is not None:
            session.reading += 1
        try:
            if body is None and ((body := await read_body(receive)) is None or not self._is_still_admitted(scope)):
                return None
            depth = self._hub.limits.depth
            if len(body) <= LONG_BYTES:
                message = jsonrpc.decode(body, max_depth=depth)
            else:
                whole = partial(jsonrpc.decode, body, max_depth=depth)
                message = await read_message(whole, jsonrpc.decode_passes, jsonrpc.unreadable, self._caller)
                await pause_after(len(body))
            if session is not None and isinstance(message, Request) and self._was_cancelled(message, session):
                return None
            return body, message
        finally:
            if session is not None:
                session.reading -= 1

    def _is_still_admitted(self, scope: Message) -> bool:
        """Authenticate again after a slow body: the key may have been revoked meanwhile."""
        caller = self._frontend.admit(self._headers, self._peer, scope)
        if caller is None:
            return False
        self._caller = caller
        if not self.is_path_visible():
            respond(self._peer, 404, NOT_FOUND)
            return False
        return True

    async def _batch(self, body: bytes) -> None:
        """Answer a batch, for a caller whose protocol version has batches."""
        id = self._headers.get(SESSION_HEADER)
        session = None if id is None else self._find_session(id)
        if id is not None and session is None:
            return self._session_not_found(None)
        if session is None or session.version != BATCHES_VERSION:
            return self._reply(refuse(None, jsonrpc.INVALID_REQUEST, "Batches are not supported"), 400)
        if not (elements := await offload(len(body), partial(jsonrpc.elements, body, BATCH_MAX), owner=self._caller)):
            text = f"A batch has 1 to {BATCH_MAX} messages"
            return self._reply(refuse(None, jsonrpc.INVALID_REQUEST, text), 400)
        await self._hub.wait_connected(self._surface)
        over: asyncio.Future[None] = self._frontend.loop.create_future()
        reply = BatchReply(self._peer, partial(set_over, over))
        for element in elements:
            await self._batch_element(element, reply, session)
        reply.close()
        return await over

    async def _batch_element(self, element: bytes, reply: BatchReply, session: HttpSession) -> None:
        await pause_after(len(element))
        depth = self._hub.limits.depth
        if len(element) <= LONG_BYTES:
            message = jsonrpc.decode(element, max_depth=depth)
        else:
            whole = partial(jsonrpc.decode, element, max_depth=depth)
            message = await read_message(whole, jsonrpc.decode_passes, jsonrpc.unreadable, self._caller)
            await pause_after(len(element))
        match message:
            case Request(method=method) if method == "initialize" or self._is_modern(message):
                text = f"{method} must not be part of a batch"
                reply.add(refuse(message.id, jsonrpc.INVALID_REQUEST, text).body)
            case Request():
                part = reply.part()
                alone = McpHttpRequest(
                    self._frontend, self._caller, self._surface, self._raw_headers, self._headers, part
                )
                if message.method in CALLS:
                    alone.start_call(message)
                else:
                    await alone._request(message)
            case Malformed():
                reply.add(refuse(message.id, message.code, message.message).body)
            case Batch():
                reply.add(refuse(None, jsonrpc.INVALID_REQUEST, "A batch must not contain another batch").body)
            case Notification() | Response() | ErrorReply():
                self._receive(session, message)

    def _receive(self, session: HttpSession, message: Notification | Response | ErrorReply) -> None:
        if not isinstance(message, Notification):
            session.client_input.receive(message)
        elif message.method == CANCELLED and "requestId" in message.params:
            session.cancel(bytes(message.params["requestId"]), self._frontend.loop.time())

    def _is_modern(self, request: Request) -> bool:
        return modern.is_modern(request, text_of(self._headers, VERSION_HEADER))

    async def _request(self, request: Request) -> None:
        if request.method in CALLS:
            return await self._call_when_settled(request)
        checked = self._check(request)
        if checked is None:
            return None
        era, session, _ = checked
        if request.method == modern.LISTEN and era == "modern":
            return await self._listen(request)
        if session is not None:
            reply = await self._methods.change_subscription(request, _subscriptions(session))
            if reply is not None:
                return self._reply(reply, 200)
        version = text_of(self._headers, VERSION_HEADER) or "" if session is None else session.version
        reply = await self._methods.answer(request, self._client(session), era, version)
        headers: Headers = ()
        if era == "legacy" and request.method == "initialize" and reply.code is None:
            headers = ((SESSION_HEADER, self._open_session(request).encode()),)
        elif session is not None and (topic := _TOPIC_OF_LIST.get(request.method)) is not None:
            self._event_stream(session).list_returned(session, topic)
        if session is not None and self._prefers_stream(session):
            self._peer.begin(200, STREAM)
            return self._peer.end(sse.frame(reply.body))
        return self._reply(reply, status_of(reply, era), headers)

    def _open_session(self, request: Request) -> str:
        """Open a session for an `initialize` request and return its id."""
        version = legacy.negotiate(legacy.requested_version(request.params) or "")
        session = self._frontend.open_session(self._caller, self._surface, version)
        session.client_caps = read_client_capabilities(request.params.get("capabilities"))
        session.client_info = legacy.read_client_info(request.params.get("clientInfo"))
        client = self._client(session)
        session.subscriptions = CallerSubscriptions(
            client,
            session.resource_updated,
            is_crowded=session.is_crowded,
            on_unsubscribe=session.forget_resource,
        )
        session.subscriptions.receive_default_logs()
        session.task_status = TaskStatusNotifier(client, session.task_changed, session.is_slow)
        return session.id

    def _check(self, request: Request) -> tuple[Era, HttpSession | None, Members | None] | None:
        """A request's era with its session, or its `_meta` if it is modern; None if it was refused."""
        fields = self._headers
        headers = modern.read_routing_headers(
            fields.get(VERSION_HEADER), fields.get(METHOD_HEADER), fields.get(NAME_HEADER)
        )
        meta = modern.check(request, headers)
        if meta is not None and len(fields) != len(self._raw_headers) and (twice := repeated_header(self._raw_headers)):
            meta = modern.Rejection(modern.HEADER_MISMATCH, f"the header {twice} is given twice")
        if isinstance(meta, modern.Rejection):
            rejected = reject(request.id, meta)
            self._reply(rejected, status_of(rejected, "modern"))
            return None
        if meta is not None:
            return "modern", None, meta
        id = self._headers.get(SESSION_HEADER)
        if id is None or request.method == "initialize":
            return "legacy", None, None
        session = self._find_session(id)
        if session is None:
            self._session_not_found(request.id)
            return None
        return "legacy", session, None

    def _find_session(self, id: bytes) -> HttpSession | None:
        frontend = self._frontend
        return frontend.sessions.find(id.decode("latin-1"), self._caller, self._surface, frontend.loop.time())

    def _session_not_found(self, id: msgspec.Raw | None) -> None:
        self._reply(refuse(id, jsonrpc.INVALID_REQUEST, "Session not found"), 404)

    # -- calls -----------------------------------------------------------------------------------------------------

    async def _call_when_settled(self, request: Request) -> None:
        """Start a call after giving starting servers their time, unless the caller cancels it meanwhile."""
        id = self._headers.get(SESSION_HEADER)
        waiting = set() if id is None or (session := self._find_session(id)) is None else session.waiting
        key = bytes(request.id)
        waiting.add(key)
        if self._is_modern(request):  # in the legacy era a broken connection does not cancel
            self._peer.on_disconnect(partial(waiting.discard, key))
        is_known = partial(self._methods.is_known, request, self._caller, self._surface)
        await self._hub.wait_connected(self._surface, until=is_known)
        if key not in waiting:
            return self._reply(cancelled_reply(request.id), 200)
        waiting.discard(key)
        over: asyncio.Future[None] = self._frontend.loop.create_future()
        self.start_call(request, partial(set_over, over))
        return await over

    def _was_cancelled(self, request: Request, session: HttpSession) -> bool:
        """Whether the caller cancelled a request before it was read; it is answered then."""
        if not session.was_cancelled(bytes(request.id), self._frontend.loop.time()):
            return False
        self._reply(cancelled_reply(request.id), 200)
        return True

    def start_call(self, request: Request, on_end: Callable[[], None] | None = None) -> None:
        """Start a call or refuse it. `on_end` is called when it was answered."""
        checked = self._check(request)
        if checked is None:
            return on_end() if on_end is not None else None
        era, session, meta = checked
        if session is not None and session.cancelled and self._was_cancelled(request, session):
            return on_end() if on_end is not None else None
        exchange = self._legacy_exchange(request, session) if meta is None else self._modern_exchange(request, meta)
        if isinstance(exchange, JsonRpcReply):
            self._reply(exchange, status_of(exchange, era))
            return on_end() if on_end is not None else None
        exchange.on_end = on_end
        inflight = self._methods.start(exchange.call, exchange)
        if inflight is not None and inflight.outcome is None:
            self._peer.on_disconnect(partial(self._disconnected, inflight, exchange, era))
            if exchange.call.client_caps or era == "legacy":
                exchange.inflight = inflight
            if session is not None:
                # The caller can cancel the call by its request id, and resume its stream if it knows how.
                exchange.on_end = session.track(bytes(request.id), inflight, on_end)
                if exchange.session is not None and session.can_resume:
                    if self._prefers_stream(session):
                        exchange.expire()
                    else:
                        exchange.stream_when_slow(self._frontend.slow)
        return None

    def _modern_exchange(self, request: Request, meta: Members) -> McpHttpExchange | JsonRpcReply:
        read = self._methods.read_call(request, self._caller, self._surface, meta, headers=self._headers)
        if isinstance(read, JsonRpcReply):
            return read
        call, token = read
        if PARENT_HEADER in self._headers:
            call = with_http_context(call, self._headers[PARENT_HEADER], self._headers.get(STATE_HEADER))
        level = call.log_level
        if (token is not None or level is not None) and not accepts(self._headers, EVENTS):
            token = level = None
        loop, client_input = self._frontend.loop, self._methods.client_input
        return McpHttpExchange(self._peer, request.id, "modern", token, loop, call, level, client_input)

    def _legacy_exchange(self, request: Request, session: HttpSession | None) -> McpHttpExchange | JsonRpcReply:
        """A legacy caller gave its log level and capabilities once, in its session."""
        level, client_caps = (
            (None, NO_CAPABILITIES) if session is None else (_subscriptions(session).level, session.client_caps)
        )
        read = self._methods.read_call(request, self._caller, self._surface, None, level, client_caps)
        if isinstance(read, JsonRpcReply):
            return read
        call, token = read
        if PARENT_HEADER in self._headers:
            call = with_http_context(call, self._headers[PARENT_HEADER], self._headers.get(STATE_HEADER))
        if self._methods.hub.is_cutting and session is not None and session.version in legacy.LINKLESS:
            call = msgspec.structs.replace(call, knows_links=False)
        if session is not None and (call.client_caps or (call.extra and needs_session(call))):
            call = msgspec.structs.replace(call, session=session.id)
        loop = self._frontend.loop
        if not accepts(self._headers, EVENTS):
            return McpHttpExchange(self._peer, request.id, "legacy", None, loop, call)
        # A caller that never chose a level gets whatever the server logs.
        sent_level: LogLevel = level or "debug"
        client_input = None if session is None else session.client_input
        exchange = McpHttpExchange(self._peer, request.id, "legacy", token, loop, call, sent_level, client_input)
        exchange.session = session
        return exchange

    def _disconnected(self, inflight: InFlight, exchange: McpHttpExchange, era: Era) -> None:
        if era == "legacy":
            exchange.disconnected(self._peer)
            return
        current = inflight.exchange
        # A suspended call whose questions were sent waits for its caller; before that, the caller has left.
        is_asking = isinstance(current, SuspendedCall) and current.waiting_exchange is exchange
        if current is exchange or is_asking:
            inflight.cancel("the caller closed the connection")

    # -- GET and subscriptions/listen ------------------------------------------------------------------------------

    async def get(self) -> None:
        """Serve a legacy caller's stream for messages that belong to no request."""
        if not accepts(self._headers, EVENTS):
            return respond(self._peer, 406, NOT_A_PAGE)
        if self._refuse_unsupported_version():
            return None
        if text_of(self._headers, VERSION_HEADER) in modern.VERSIONS:
            return respond(self._peer, 405, "Use subscriptions/listen", ((b"allow", b"POST"),))
        if (id := self._headers.get(SESSION_HEADER)) is None:
            return await self._event_stream().notify_list_changes()
        session = self._find_session(id)
        if session is None:
            return self._session_not_found(None)
        last = text_of(self._headers, EVENT_HEADER) or None
        if last is not None and session.notifications.after(last) is None:
            return await self._event_stream(session).resume_call(session, last)
        return await self._event_stream(session).serve_session(session, last)

    async def _listen(self, request: Request) -> None:
        client_caps = client_capabilities(request, "modern")
        wanted = self._methods.read_listen_filter(request, client_caps)
        if isinstance(wanted, JsonRpcReply):
            return self._reply(wanted, 400)
        if not accepts(self._headers, EVENTS):
            return respond(self._peer, 406, "Accept must include text/event-stream")
        client = McpClient(self._hub, self._caller, self._surface, client_caps)
        stream = HttpEventStream(self._frontend.streams, client, self._peer)
        return await stream.serve_subscription(request, wanted, self._methods.hub_tasks)

    def _client(self, session: HttpSession | None) -> McpClient:
        if session is None:
            return McpClient(self._hub, self._caller, self._surface)
        return McpClient(self._hub, self._caller, self._surface, session.client_caps, session.id, session.found)

    def _event_stream(self, session: HttpSession | None = None) -> HttpEventStream:
        return HttpEventStream(self._frontend.streams, self._client(session), self._peer)

    # -- DELETE, and replies ---------------------------------------------------------------------------------------

    def delete(self) -> None:
        """Close a legacy caller's session."""
        if self._refuse_unsupported_version():
            return None
        id = self._headers.get(SESSION_HEADER)
        session = None if id is None else self._find_session(id)
        if session is None:
            return self._session_not_found(None)
        self._frontend.sessions.close(session)
        return respond(self._peer, 204, "")

    def _reply(self, reply: JsonRpcReply, status: int, headers: Headers = ()) -> None:
        self._peer.answer(status, JSON + header_lines(headers) if headers else JSON, reply.body)

    def _refuse_unsupported_version(self) -> bool:
        """Refuse an unsupported version header; requests are checked by the version in their body."""
        version = text_of(self._headers, VERSION_HEADER)
        if version is None or version in modern.SUPPORTED:
            return False
        self._reply(reject(None, modern.unsupported(version)), 400)
        return True

    def _prefers_stream(self, session: HttpSession) -> bool:
        """Whether `Accept` names streams first, and the caller can resume them."""
        return session.can_resume and self._headers.get(b"accept", b"").startswith(EVENTS)


def _named_by(request: Request) -> str | None:
    """What a request's body names that may be on another node: a state, a server's task, or a result that was cut."""
    params = request.params
    if STATE in params:
        return read_string(params[STATE])
    if request.method in TASK_METHODS:
        return read_string(params.get("taskId"))
    if request.method == "resources/read":
        uri = read_string(params.get("uri")) or ""
        return uri.removeprefix(RESULTS_URI) if uri.startswith(RESULTS_URI) else None
    if request.method == modern.LISTEN and "notifications" in params:
        # Everything else that may be followed is the same at all nodes.
        with suppress(msgspec.MsgspecError):
            ids = msgspec.json.decode(params["notifications"], type=_FollowedTasks).taskIds
            return next((id for id in ids if TAG_END in id), None)
    return None


class _FollowedTasks(msgspec.Struct):
    taskIds: list[str] = []  # noqa: N815 - as the specification spells it


def _subscriptions(session: HttpSession) -> CallerSubscriptions:
    assert session.subscriptions is not None, "set when the session is opened"
    return session.subscriptions
