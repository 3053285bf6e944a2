"""One HTTP request on the MCP face: what it brings, by which session or on its own, and the answer to it.

Calls are started without waiting for anything; streams of what belongs to no request are in `listening`. `http` makes
visits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from isthmus.core.calls.inflight import InFlight
from isthmus.core.pauses import pause_after
from isthmus.faces.http.bodies import JSON, STREAM, is_json, read_body, say
from isthmus.faces.http.gate import Fields, Headers
from isthmus.faces.http.turn import Message, Peer, Receive, header_lines
from isthmus.faces.mcp.batches import BATCH_MAX, BATCHES_VERSION, BatchReply
from isthmus.faces.mcp.dialogue import VERSIONS, Answer, profile_of, refuse, withdrawn
from isthmus.faces.mcp.exchange import HttpExchange, status_of
from isthmus.faces.mcp.faults import Era
from isthmus.faces.mcp.headers import (
    EVENT_HEADER,
    EVENTS,
    METHOD_HEADER,
    NAME_HEADER,
    SESSION_HEADER,
    VERSION_HEADER,
    accepts,
    accepts_something,
    prefers_stream,
    repeated,
    text_of,
)
from isthmus.faces.mcp.interests import Interests
from isthmus.faces.mcp.listening import Listening, set_over
from isthmus.faces.mcp.parked import Parked
from isthmus.faces.mcp.sessions import Session
from isthmus.faces.mcp.task_news import TaskNews
from isthmus.faces.mcp.tasks import is_of_session
from isthmus.model.callers import Caller
from isthmus.model.calls import Surface
from isthmus.model.events import LogLevel
from isthmus.model.features import Topic
from isthmus.model.questions import NOTHING
from isthmus.wire import jsonrpc, sse
from isthmus.wire.jsonrpc import Batch, ErrorReply, Malformed, Notification, Request, Response
from isthmus.wire.mcp import legacy, modern
from isthmus.wire.mcp.capabilities import read_profile
from isthmus.wire.mcp.lists import PROMPTS, RESOURCES, TEMPLATES, TOOLS
from isthmus.wire.mcp.messages import CANCELLED, Members
from isthmus.wire.mcp.requests import CALLS

if TYPE_CHECKING:
    from isthmus.faces.mcp.http import McpHttp

_LISTED: dict[str, Topic] = {
    TOOLS.method: "tools",
    PROMPTS.method: "prompts",
    RESOURCES.method: "resources",
    TEMPLATES.method: "resources",
}
"""Which list a caller has seen once it was answered."""

NOT_FOUND = "Not found: MCP is at /mcp and /mcp/{server}"


class Visit:
    """One HTTP request on this face."""

    __slots__ = ("_caller", "_dialogue", "_face", "_headers", "_hub", "_peer", "_raw", "_surface")

    def __init__(
        self, face: McpHttp, caller: Caller, surface: Surface, raw: Headers, fields: Fields, peer: Peer
    ) -> None:
        self._face = face
        self._hub = face.hub
        self._dialogue = face.dialogue
        self._caller = caller
        self._surface = surface
        self._peer = peer
        self._raw = raw
        self._headers = fields

    def is_welcome(self) -> bool:
        """Whether the caller may see the server that the path names; if not, there is no such path for it."""
        server = self._surface.server
        if server is None:
            return True
        # Asked about made-up names, the snapshot would keep a view for each and drop those in use.
        if server not in self._hub.lanes:
            return False
        return server in self._hub.snapshot.view(self._caller.grants, self._surface).servers

    def is_refused(self) -> bool:
        """Whether the request must be answered with a refusal, before its body is read."""
        return not is_json(self._headers) or not accepts_something(self._headers) or not self.is_welcome()

    # -- POST ------------------------------------------------------------------------------------------------------

    async def post(self, receive: Receive, scope: Message) -> None:
        """Answer a JSON-RPC message."""
        if not is_json(self._headers):
            return say(self._peer, 415, "Content-Type must be application/json")
        if not accepts_something(self._headers):
            return say(self._peer, 406, "Accept must include application/json and text/event-stream")
        body = self._peer.take_body()
        if body is None and ((body := await read_body(receive)) is None or not self._is_admitted_again(scope)):
            return None
        message = jsonrpc.decode(body, max_depth=self._hub.limits.depth)
        await pause_after(len(body))
        match message:
            case Request():
                await self._request(message)
            case Malformed():
                self._answer(refuse(message.id, message.code, message.message), 400)
            case _ if self._is_version_refused():
                pass
            case Notification():
                self._notification(message)
            case Batch():
                await self._batch(body)
            case Response() | ErrorReply():
                self._answered(message)
        return None

    def _is_admitted_again(self, scope: Message) -> bool:
        """Whether who sent the headers is let in still: a body may take its time, and a key be revoked meanwhile."""
        caller = self._face.admit(self._headers, self._peer, scope)
        if caller is None:
            return False
        self._caller = caller
        if not self.is_welcome():
            say(self._peer, 404, NOT_FOUND)
            return False
        return True

    async def _batch(self, body: bytes) -> None:
        """Answer several messages together, for a caller whose revision has such."""
        id = self._headers.get(SESSION_HEADER)
        session = None if id is None else self._session(id)
        if id is not None and session is None:
            return self._no_session(None)
        if session is None or session.version != BATCHES_VERSION:
            return self._answer(refuse(None, jsonrpc.INVALID_REQUEST, "Batches are not supported"), 400)
        await pause_after(len(body))
        if not (elements := jsonrpc.elements(body, BATCH_MAX)):
            text = f"A batch has 1 to {BATCH_MAX} messages"
            return self._answer(refuse(None, jsonrpc.INVALID_REQUEST, text), 400)
        await self._hub.settle(self._surface)
        over: asyncio.Future[None] = self._face.loop.create_future()
        reply = BatchReply(self._peer, partial(set_over, over))
        for element in elements:
            await self._element(element, reply, session)
        reply.close()
        return await over

    async def _element(self, element: bytes, reply: BatchReply, session: Session) -> None:
        await pause_after(len(element))
        message = jsonrpc.decode(element, max_depth=self._hub.limits.depth)
        await pause_after(len(element))
        match message:
            case Request(method=method) if method == "initialize" or self._is_modern(message):
                text = f"{method} must not be part of a batch"
                reply.add(refuse(message.id, jsonrpc.INVALID_REQUEST, text).body)
            case Request():
                await self._alone(reply).request_now(message)
            case Notification():
                _take_note(session, message)
            case Malformed():
                reply.add(refuse(message.id, message.code, message.message).body)
            case Batch():
                reply.add(refuse(None, jsonrpc.INVALID_REQUEST, "A batch must not hold another").body)
            case Response() | ErrorReply():
                session.asked.take(message)

    def _is_modern(self, request: Request) -> bool:
        return self._dialogue.era_of(request, text_of(self._headers, VERSION_HEADER)) == "modern"

    def _alone(self, reply: BatchReply) -> Visit:
        """This visit, as if it had brought one message only."""
        return Visit(self._face, self._caller, self._surface, self._raw, self._headers, reply.part())

    async def request_now(self, request: Request) -> None:
        """Answer a request, or start the call that it is."""
        if request.method in CALLS:
            self.start_call(request)
        else:
            await self._request(request)

    async def _request(self, request: Request) -> None:
        if request.method in CALLS:
            return await self._call_when_settled(request)
        checked = self._checked(request)
        if checked is None:
            return None
        era, session, _ = checked
        if request.method == modern.LISTEN and era == "modern":
            return await self._subscribe(request)
        if session is not None and (noted := await self._dialogue.note(request, _interests(session))) is not None:
            return self._answer(noted, 200)
        profile = NOTHING if session is None else session.profile
        own = "" if session is None else session.id
        version = text_of(self._headers, VERSION_HEADER) or "" if session is None else session.version
        answer = await self._dialogue.answer(request, self._caller, self._surface, era, profile, own, version)
        headers = self._remember(request, answer, session) if era == "legacy" else ()
        if session is not None and self._prefers_stream(session):
            return self._answer_by_stream(answer)
        return self._answer(answer, status_of(answer, era), headers)

    async def _call_when_settled(self, request: Request) -> None:
        """Start a call once servers that only start were given their moment, unless it is withdrawn meanwhile."""
        id = self._headers.get(SESSION_HEADER)
        waiting = set() if id is None or (session := self._session(id)) is None else session.waiting
        key = bytes(request.id)
        waiting.add(key)
        if self._is_modern(request):  # to an earlier caller, a broken connection is no withdrawal
            self._peer.on_disconnect(partial(waiting.discard, key))
        is_known = partial(self._dialogue.is_known, request, self._caller, self._surface)
        await self._hub.settle(self._surface, until=is_known)
        if key not in waiting:
            return self._answer(withdrawn(request.id), 200)
        waiting.discard(key)
        over: asyncio.Future[None] = self._face.loop.create_future()
        self.start_call(request, partial(set_over, over))
        return await over

    def _checked(self, request: Request) -> tuple[Era, Session | None, Members | None] | None:
        """The era of a request with its session or its envelope; None if it was refused, and answered so."""
        version = text_of(self._headers, VERSION_HEADER)
        if self._dialogue.era_of(request, version) == "modern":
            meta = self._envelope(request, version)
            if isinstance(meta, Answer):
                self._answer(meta, status_of(meta, "modern"))
                return None
            return "modern", None, meta
        id = self._headers.get(SESSION_HEADER)
        if id is None or request.method == "initialize":
            return "legacy", None, None
        session = self._session(id)
        if session is None:
            self._no_session(request.id)
            return None
        return "legacy", session, None

    def _envelope(self, request: Request, version: str | None) -> Members | Answer:
        if len(self._headers) != len(self._raw) and (twice := repeated(self._raw)) is not None:
            return refuse(request.id, modern.HEADER_MISMATCH, f"the header {twice} is given twice")
        claims = modern.Claims(version, text_of(self._headers, METHOD_HEADER), text_of(self._headers, NAME_HEADER))
        return self._dialogue.check(request, claims)

    def _remember(self, request: Request, answer: Answer, session: Session | None) -> Headers:
        """Open a session for a caller that was just greeted; note what list a session was given."""
        if request.method == "initialize" and answer.code is None:
            version = legacy.negotiate(legacy.requested_version(request.params) or "")
            opened = self._face.open_session(self._caller, self._surface, version)
            profile = opened.profile = read_profile(request.params.get("capabilities"))
            opened.interests = Interests(
                self._hub,
                self._caller,
                self._surface,
                opened.updated,
                profile=profile,
                session=opened.id,
                is_crowded=opened.is_crowded,
                on_unfollow=opened.forget,
            )
            opened.interests.attend()
            opened.news = TaskNews(
                self._hub,
                self._caller,
                self._surface,
                opened.task_told,
                opened.is_slow,
                session=opened.id,
                profile=profile,
            )
            return ((SESSION_HEADER, opened.id.encode()),)
        if session is not None and (topic := _LISTED.get(request.method)) is not None:
            self._listening().see(session, topic)
        return ()

    def _session(self, id: bytes) -> Session | None:
        found = id.decode("latin-1")
        return self._face.sessions.find(found, self._caller, self._surface, self._face.loop.time())

    def _no_session(self, id: msgspec.Raw | None) -> None:
        self._answer(refuse(id, jsonrpc.INVALID_REQUEST, "Session not found"), 404)

    def _notification(self, notification: Notification) -> None:
        id = self._headers.get(SESSION_HEADER)
        if id is not None:
            session = self._session(id)
            if session is None:
                return self._no_session(None)
            _take_note(session, notification)
        return say(self._peer, 202, "")

    def _answered(self, message: Response | ErrorReply) -> None:
        """An answer to what the hub asked; one to nothing is acknowledged all the same, as the specification wants."""
        id = self._headers.get(SESSION_HEADER)
        if id is not None:
            session = self._session(id)
            if session is None:
                return self._no_session(None)
            session.asked.take(message)
        return say(self._peer, 202, "")

    # -- calls -----------------------------------------------------------------------------------------------------

    def start_call(self, request: Request, on_end: Callable[[], None] | None = None) -> None:
        """Start a call, or refuse it; either way it is answered, and then `on_end` is called."""
        checked = self._checked(request)
        if checked is None:
            return on_end() if on_end is not None else None
        era, session, meta = checked
        exchange = self._exchange(request, session, meta)
        if isinstance(exchange, Answer):
            self._answer(exchange, status_of(exchange, era))
            return on_end() if on_end is not None else None
        exchange.on_end = on_end
        inflight = self._dialogue.start(exchange.call, exchange)
        if inflight is not None and inflight.outcome is None:
            self._peer.on_disconnect(partial(self._left, inflight, exchange, era))
            if exchange.call.profile or era == "legacy":
                exchange.inflight = inflight
            if session is not None:
                self._hold(request, inflight, exchange, session)
        return None

    def _exchange(self, request: Request, session: Session | None, meta: Members | None) -> HttpExchange | Answer:
        """The caller's side of the call that a request asks for; `meta` is the envelope of a modern one."""
        if meta is None:
            return self._earlier_exchange(request, session)
        read = self._dialogue.read_call(request, self._caller, self._surface, meta, headers=self._headers)
        if isinstance(read, Answer):
            return read
        call, token = read
        level = call.log_level
        if (token is not None or level is not None) and not accepts(self._headers, EVENTS):
            token = level = None
        asker = self._dialogue.comebacks
        return HttpExchange(self._peer, request.id, "modern", token, self._face.loop, call, level, asker)

    def _earlier_exchange(self, request: Request, session: Session | None) -> HttpExchange | Answer:
        """The same for a caller that said once for all, in a session if it has one, what it can be told and asked."""
        level, profile = (None, NOTHING) if session is None else (_interests(session).level, session.profile)
        read = self._dialogue.read_call(request, self._caller, self._surface, None, level, profile)
        if isinstance(read, Answer):
            return read
        call, token = read
        if session is not None and (call.profile or (call.extra and is_of_session(call))):
            call = msgspec.structs.replace(call, session=session.id)
        if not accepts(self._headers, EVENTS):
            return HttpExchange(self._peer, request.id, "legacy", None, self._face.loop, call)
        hears: LogLevel = level or "debug"  # who never chose hears what the server says by itself
        asker = None if session is None else session.asked
        exchange = HttpExchange(self._peer, request.id, "legacy", token, self._face.loop, call, hears, asker)
        exchange.session = session
        return exchange

    def _hold(self, request: Request, inflight: InFlight, exchange: HttpExchange, session: Session) -> None:
        """Keep a call so that the caller can cancel it by its id, and come back to it if it knows how."""
        session.hold(bytes(request.id), inflight, exchange)
        if exchange.session is not None and session.can_poll:
            self._make_resumable(exchange, session)

    def _make_resumable(self, exchange: HttpExchange, session: Session) -> None:
        """Let the answer be a stream, to which the caller can come back: at once if it likes, else if it takes long."""
        if self._prefers_stream(session):
            exchange.expire()
        else:
            exchange.hasten(self._face.slow)

    def _left(self, inflight: InFlight, exchange: HttpExchange, era: Era) -> None:
        if era == "modern":
            if inflight.exchange is exchange or _is_asking(inflight, exchange):
                inflight.cancel("the caller closed the connection")
        else:
            exchange.left(self._peer)

    # -- streams ---------------------------------------------------------------------------------------------------

    async def listen(self) -> None:
        """A legacy caller's stream for what belongs to no request."""
        if not accepts(self._headers, EVENTS):
            return say(self._peer, 406, "Accept must include text/event-stream")
        if self._is_version_refused():
            return None
        if text_of(self._headers, VERSION_HEADER) in modern.VERSIONS:
            return say(self._peer, 405, "Use subscriptions/listen", ((b"allow", b"POST"),))
        if (id := self._headers.get(SESSION_HEADER)) is None:
            return await self._listening().to_changes()
        session = self._session(id)
        if session is None:
            return self._no_session(None)
        last = text_of(self._headers, EVENT_HEADER) or None
        if last is not None and session.bulletin.after(last) is None:
            return await self._listening().resume(session, last)
        return await self._listening().attend(session, last)

    async def _subscribe(self, request: Request) -> None:
        """A modern caller's stream for what it asks to be told of."""
        profile = profile_of(request, "modern")
        wanted = self._dialogue.read_wanted(request, profile)
        if isinstance(wanted, Answer):
            return self._answer(wanted, 400)
        if not accepts(self._headers, EVENTS):
            return say(self._peer, 406, "Accept must include text/event-stream")
        return await self._listening().subscribe(request, wanted, profile)

    def _listening(self) -> Listening:
        return Listening(self._face, self._caller, self._surface, self._peer)

    # -- DELETE, and answering -------------------------------------------------------------------------------------

    def delete(self) -> None:
        """End a legacy caller's session."""
        if self._is_version_refused():
            return None
        id = self._headers.get(SESSION_HEADER)
        session = None if id is None else self._session(id)
        if session is None:
            return self._no_session(None)
        self._face.sessions.close(session)
        return say(self._peer, 204, "")

    def _answer(self, answer: Answer, status: int, headers: Headers = ()) -> None:
        self._peer.answer(status, JSON + header_lines(headers) if headers else JSON, answer.body)

    def _answer_by_stream(self, answer: Answer) -> None:
        self._peer.begin(200, STREAM)
        self._peer.end(sse.frame(answer.body))

    def _is_version_refused(self) -> bool:
        """Refuse what names a version that is not spoken; a request says its version in its body too, and is read."""
        version = text_of(self._headers, VERSION_HEADER)
        if version is None or version in VERSIONS:
            return False
        refused = modern.unsupported(version, VERSIONS)
        self._answer(refuse(None, refused.code, refused.message, refused.data), 400)
        return True

    def _prefers_stream(self, session: Session) -> bool:
        return session.can_poll and prefers_stream(self._headers)


def _interests(session: Session) -> Interests:
    assert session.interests is not None, "a session is opened with them"
    return session.interests


def _take_note(session: Session, notification: Notification) -> None:
    if notification.method == CANCELLED and "requestId" in notification.params:
        session.cancel(bytes(notification.params["requestId"]))


def _is_asking(inflight: InFlight, exchange: HttpExchange) -> bool:
    """Whether a call is parked whose caller was not told so yet; after that, it waits for its caller to come back."""
    return isinstance(inflight.exchange, Parked) and inflight.exchange.where is exchange
