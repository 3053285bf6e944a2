"""MCP over Streamable HTTP: `/mcp` for all servers, `/mcp/{server}` for one under its own names.

An answer is plain JSON unless an event precedes it; then it is a stream of events. Legacy callers have sessions; a
modern caller's request stands alone and ends when its connection does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import msgspec

from isthmus.core.calls.inflight import InFlight
from isthmus.faces.http.gate import Denied, Gate, Headers
from isthmus.faces.http.turn import PEER, Message, Peer, Receive, Send
from isthmus.faces.mcp.changes import ChangeFeed
from isthmus.faces.mcp.dialogue import Answer, Dialogue, Era, answer_call, event_notification, refuse
from isthmus.faces.mcp.sessions import Session, Sessions
from isthmus.model.callers import Caller
from isthmus.model.calls import Surface
from isthmus.model.events import Event
from isthmus.model.outcomes import Outcome
from isthmus.wire import jsonrpc, sse
from isthmus.wire.jsonrpc import Batch, ErrorReply, Malformed, Notification, Request, Response
from isthmus.wire.mcp import legacy, modern
from isthmus.wire.mcp.tools import CANCELLED, TOOLS_CHANGED

RESUME_SECONDS = 30.0
"""How long a legacy caller's call goes on after its connection broke: by its protocol, that is no cancellation."""

KEEP_ALIVE_SECONDS = 15.0
"""An open stream says something at least this often, or a proxy in between may close it."""

CROWDED_BYTES = 64 * 1024
"""With this much unsent, progress is skipped: a later report replaces it anyway."""

JSON = (b"content-type", b"application/json")
STREAM = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
)

STATUS = {
    jsonrpc.PARSE_ERROR: 400,
    jsonrpc.INVALID_REQUEST: 400,
    jsonrpc.INVALID_PARAMS: 400,
    jsonrpc.METHOD_NOT_FOUND: 404,
    modern.HEADER_MISMATCH: 400,
    modern.UNSUPPORTED_VERSION: 400,
}
"""HTTP statuses of errors in the modern era; the earlier one answers 200 to what it could read."""

ROUTING = frozenset({modern.VERSION_HEADER, modern.METHOD_HEADER, modern.NAME_HEADER})
"""Headers that a middleman may route on: given twice, two readers could see two values."""


class McpHttp:
    """The face over HTTP. `serve` is called with the surface that the path stands for."""

    def __init__(self, dialogue: Dialogue, gate: Gate) -> None:
        self._dialogue = dialogue
        self._hub = dialogue.hub
        self._gate = gate
        self._sessions = Sessions()
        self._streams: set[asyncio.Future[None]] = set()
        self._loop = asyncio.get_running_loop()

    def end_streams(self) -> None:
        """Let every stream of changes end, because the hub goes away; running calls are not touched."""
        for stream in list(self._streams):
            _set(stream)

    async def serve(self, surface: Surface, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request."""
        caller = self._gate.admit(scope["headers"])
        if isinstance(caller, Denied):
            await _say(send, caller.status, caller.message, caller.headers)
            return
        match scope["method"]:
            case "POST":
                await _Turn(self, caller, surface, scope, send).post(receive)
            case "GET":
                await _Turn(self, caller, surface, scope, send).listen()
            case "DELETE":
                await _Turn(self, caller, surface, scope, send).delete()
            case _:
                await _say(send, 405, "Use POST, GET or DELETE", ((b"allow", b"GET, POST, DELETE"),))


class _Turn:
    """One HTTP request on this face."""

    __slots__ = (
        "_accepts_json",
        "_accepts_stream",
        "_caller",
        "_dialogue",
        "_face",
        "_headers",
        "_hub",
        "_peer",
        "_repeated",
        "_send",
        "_surface",
    )

    def __init__(self, face: McpHttp, caller: Caller, surface: Surface, scope: Message, send: Send) -> None:
        self._face = face
        self._hub = face._hub
        self._dialogue = face._dialogue
        self._caller = caller
        self._surface = surface
        self._send = send
        self._peer: Peer = scope["extensions"][PEER]
        self._headers, self._repeated = _read_headers(scope["headers"])
        accept = self._headers.get("accept", "*/*")
        self._accepts_json = "application/json" in accept or "*/*" in accept
        self._accepts_stream = "text/event-stream" in accept or "*/*" in accept

    # -- POST ------------------------------------------------------------------------------------------------------

    async def post(self, receive: Receive) -> None:
        """Answer a JSON-RPC message."""
        if not _is_json(self._headers.get("content-type", "")):
            return await _say(self._send, 415, "Content-Type must be application/json")
        if not self._accepts_json and not self._accepts_stream:
            return await _say(self._send, 406, "Accept must include application/json and text/event-stream")
        body = self._peer.take_body()
        if body is None and (body := await _read_body(receive)) is None:
            return None
        message = jsonrpc.decode(body, max_depth=self._hub.limits.depth)
        match message:
            case Request():
                await self._request(message)
            case Notification():
                await self._notification(message)
            case Malformed():
                await self._answer(refuse(message.id, message.code, message.message), 400)
            case Batch():
                await self._answer(refuse(None, jsonrpc.INVALID_REQUEST, "Batches are not supported"), 400)
            case Response() | ErrorReply():
                # The hub asked nothing of this caller; the specification wants an acknowledgement all the same.
                await _say(self._send, 202, "")

    async def _request(self, request: Request) -> None:
        era = self._dialogue.era_of(request, self._headers.get(modern.VERSION_HEADER))
        session: Session | None = None
        if era == "modern":
            refusal = self._check(request)
            if refusal is not None:
                return await self._answer(refusal, STATUS.get(refusal.code or 0, 200))
        elif (id := self._headers.get(legacy.SESSION_HEADER)) is not None and request.method != "initialize":
            session = self._session(id)
            if session is None:
                return await self._no_session(request)
        if request.method == "tools/call":
            return await self._call(request, era, session)
        if request.method == modern.LISTEN and era == "modern":
            return await self._subscribe(request)
        answer = await self._dialogue.answer(request, self._caller, self._surface, era)
        headers = self._remember(request, answer, session) if era == "legacy" else ()
        return await self._answer(answer, _status(answer, era), headers)

    def _check(self, request: Request) -> Answer | None:
        if self._repeated is not None:
            return refuse(request.id, modern.HEADER_MISMATCH, f"the header {self._repeated} is given twice")
        return self._dialogue.check(request, self._headers)

    def _remember(self, request: Request, answer: Answer, session: Session | None) -> Headers:
        """Open a session for a caller that was just greeted; note what list a session was given."""
        if request.method == "initialize" and answer.code is None:
            opened = self._face._sessions.open(self._caller, self._surface, self._face._loop.time())
            return ((legacy.SESSION_HEADER.encode(), opened.id.encode()),)
        if request.method == "tools/list" and session is not None:
            session.seen = self._hub.snapshot.view(self._caller.grants, self._surface).digest
        return ()

    def _session(self, id: str) -> Session | None:
        return self._face._sessions.find(id, self._caller, self._surface, self._face._loop.time())

    async def _no_session(self, request: Request | None) -> None:
        id = None if request is None else request.id
        await self._answer(refuse(id, jsonrpc.INVALID_REQUEST, "Session not found"), 404)

    async def _notification(self, notification: Notification) -> None:
        id = self._headers.get(legacy.SESSION_HEADER)
        if id is not None:
            session = self._session(id)
            if session is None:
                return await self._no_session(None)
            if notification.method == CANCELLED and "requestId" in notification.params:
                inflight = session.calls.get(bytes(notification.params["requestId"]))
                if inflight is not None:
                    inflight.cancel("by the caller")
        return await _say(self._send, 202, "")

    # -- calls -----------------------------------------------------------------------------------------------------

    async def _call(self, request: Request, era: Era, session: Session | None) -> None:
        read = self._dialogue.read_call(request, self._caller, self._surface)
        if isinstance(read, Answer):
            return await self._answer(read, _status(read, era))
        call, token = read
        if self._hub.is_settling():
            await self._hub.settle(self._surface)
        exchange = _Exchange(self._peer, self._face._loop, token if self._accepts_stream else None)
        inflight = self._hub.start(call, exchange)
        if exchange.outcome is None:
            await self._follow(request, inflight, exchange, era, session)
        if exchange.outcome is None:
            await self._stream(exchange)
        assert exchange.outcome is not None
        answer = answer_call(request.id, exchange.outcome, era)
        if exchange.is_live:
            final = sse.frame(answer.body)
            return await self._send({"type": "http.response.body", "body": final, "more_body": False})
        return await self._answer(answer, _status(answer, era))

    async def _follow(
        self, request: Request, inflight: InFlight, exchange: _Exchange, era: Era, session: Session | None
    ) -> None:
        """Wait for the first news of a call that is on its way, and see to it that it can be cancelled."""
        self._peer.on_disconnect(partial(self._left, inflight, era))
        if session is not None:
            key = bytes(request.id)
            session.calls[key] = inflight
            exchange.on_end = lambda: session.calls.pop(key, None) if session.calls.get(key) is inflight else None
        await exchange.news

    def _left(self, inflight: InFlight, era: Era) -> None:
        if era == "modern":
            inflight.cancel("the caller closed the connection")
        else:
            self._face._loop.call_later(RESUME_SECONDS, inflight.cancel, "the caller's connection broke")

    async def _stream(self, exchange: _Exchange) -> None:
        await self._send({"type": "http.response.start", "status": 200, "headers": list(STREAM)})
        await self._send({"type": "http.response.body", "body": exchange.take_early(), "more_body": True})
        await exchange.go_live()

    # -- streams of changes ----------------------------------------------------------------------------------------

    async def listen(self) -> None:
        """A legacy caller's stream for what belongs to no request."""
        if not self._accepts_stream:
            return await _say(self._send, 406, "Accept must include text/event-stream")
        session: Session | None = None
        if (id := self._headers.get(legacy.SESSION_HEADER)) is not None:
            session = self._session(id)
            if session is None:
                return await self._no_session(None)
        if self._headers.get(modern.VERSION_HEADER) in modern.VERSIONS:
            return await _say(self._send, 405, "Use subscriptions/listen", ((b"allow", b"POST"),))
        tell = partial(self._peer.push, sse.frame(jsonrpc.notification(TOOLS_CHANGED, None)))
        await self._hold_open(b"", tell, b"", None if session is None else session.seen)
        return None

    async def _subscribe(self, request: Request) -> None:
        """A modern caller's stream: acknowledged first, every message marked with the subscription's id."""
        wanted = modern.wants_tool_changes(request.params)
        if wanted is None:
            text = "subscriptions/listen needs notifications, an object"
            return await self._answer(refuse(request.id, jsonrpc.INVALID_PARAMS, text), 400)
        if not self._accepts_stream:
            return await _say(self._send, 406, "Accept must include text/event-stream")
        params = modern.acknowledged_params(request.id, tools=wanted)
        marked = b'{"_meta":' + modern.subscription_meta(request.id) + b"}"
        news = sse.frame(jsonrpc.notification(TOOLS_CHANGED, marked))
        last = sse.frame(jsonrpc.result(request.id, modern.listen_result(request.id)))
        tell: Callable[[], None] = partial(self._peer.push, news) if wanted else lambda: None
        return await self._hold_open(sse.frame(jsonrpc.notification(modern.ACKNOWLEDGED, params)), tell, last, None)

    async def _hold_open(self, first: bytes, tell: Callable[[], None], last: bytes, seen: bytes | None) -> None:
        """Keep a stream open until the caller leaves or the hub does."""
        over = self._face._loop.create_future()
        self._face._streams.add(over)
        self._peer.on_disconnect(partial(_set, over))
        await self._send({"type": "http.response.start", "status": 200, "headers": list(STREAM)})
        await self._send({"type": "http.response.body", "body": first or sse.comment(), "more_body": True})
        feed = ChangeFeed(self._hub, self._caller.grants, self._surface, tell, seen=seen)
        alive = _KeepAlive(self._peer, self._face._loop)
        try:
            await over
        finally:
            alive.stop()
            feed.close()
            self._face._streams.discard(over)
        await self._send({"type": "http.response.body", "body": last, "more_body": False})

    # -- DELETE, and answering -------------------------------------------------------------------------------------

    async def delete(self) -> None:
        """End a legacy caller's session."""
        id = self._headers.get(legacy.SESSION_HEADER)
        session = None if id is None else self._session(id)
        if session is None:
            return await self._no_session(None)
        self._face._sessions.close(session)
        return await _say(self._send, 204, "")

    async def _answer(self, answer: Answer, status: int, headers: Headers = ()) -> None:
        length = (b"content-length", str(len(answer.body)).encode())
        await self._send({"type": "http.response.start", "status": status, "headers": [JSON, length, *headers]})
        await self._send({"type": "http.response.body", "body": answer.body})


class _Exchange:
    """The caller's side of a call over HTTP: silent until the end, unless the caller asked for progress."""

    __slots__ = ("_alive", "_early", "_loop", "_peer", "_token", "is_live", "news", "on_end", "outcome")

    def __init__(self, peer: Peer, loop: asyncio.AbstractEventLoop, token: msgspec.Raw | None) -> None:
        self._peer = peer
        self._loop = loop
        self._token = token
        self._early = b""
        self._alive: _KeepAlive | None = None
        self.is_live = False
        self.outcome: Outcome | None = None
        self.news: asyncio.Future[None] = loop.create_future()
        self.on_end: Callable[[], object] | None = None

    def emit(self, event: Event) -> None:
        """Pass progress on, if the caller asked for it; before the stream is open only the latest is kept."""
        if self._token is None:
            return
        frame = sse.frame(event_notification(event, self._token))
        if self.is_live:
            if self._peer.buffered_bytes() < CROWDED_BYTES:
                self._peer.push(frame)
        else:
            self._early = frame
            self._wake()

    def end(self, outcome: Outcome) -> None:
        """Take the outcome."""
        self.outcome = outcome
        if self._alive is not None:
            self._alive.stop()
        if self.on_end is not None:
            self.on_end()
        self._wake()

    def take_early(self) -> bytes:
        """What came before the stream was open; from here on events are written as they come."""
        self.is_live = True
        return self._early

    async def go_live(self) -> None:
        """Wait for the end, writing events meanwhile."""
        if self.outcome is None:
            self.news = self._loop.create_future()
            self._alive = _KeepAlive(self._peer, self._loop)
            await self.news

    def _wake(self) -> None:
        _set(self.news)


class _KeepAlive:
    """Says nothing, audibly and regularly, on an open stream."""

    def __init__(self, peer: Peer, loop: asyncio.AbstractEventLoop) -> None:
        self._peer = peer
        self._loop = loop
        self._timer = loop.call_later(KEEP_ALIVE_SECONDS, self._beat)

    def _beat(self) -> None:
        self._peer.push(sse.comment())
        self._timer = self._loop.call_later(KEEP_ALIVE_SECONDS, self._beat)

    def stop(self) -> None:
        self._timer.cancel()


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _read_headers(raw: Headers) -> tuple[dict[str, str], str | None]:
    """The headers by name, and the name of a routing header that is given twice."""
    headers: dict[str, str] = {}
    repeated: str | None = None
    for name, value in raw:
        key = name.decode("latin-1")
        if key in headers and key in ROUTING:
            repeated = key
        headers[key] = value.decode("latin-1")
    return headers, repeated


def _is_json(content_type: str) -> bool:
    return content_type.partition(";")[0].strip().lower() == "application/json"


def _status(answer: Answer, era: Era) -> int:
    return STATUS.get(answer.code, 200) if era == "modern" and answer.code is not None else 200


async def _read_body(receive: Receive) -> bytes | None:
    """The rest of the body as it arrives; None if the caller left meanwhile. The door limits its size."""
    chunks: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        chunks.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(chunks)


async def _say(send: Send, status: int, text: str, headers: Headers = ()) -> None:
    """Answer with a status and a sentence."""
    body = msgspec.json.encode({"error": text}) if text else b""
    kind = [JSON] if text else []
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*kind, length, *headers]})
    await send({"type": "http.response.body", "body": body})


