"""Requests that belong to another node: they are forwarded whole to it, and its response is streamed back.

Sessions, open questions, suspended calls and the like live in the memory of one node, and their ids name that node. A
load balancer may send a request with such an id to any node. `Forwarder` is in front of `Routes`: it finds the id in
the request's head (frontends find it in the body, see `frontends.http.nodes`) and passes the request to its node over
a channel of the bus. There the same frontends answer it, with the caller's own credential, as if it had arrived there.

A channel carries one request at a time, and is kept for the next one. The client's node sends the request; the other
sends back what its frontend does to the `Peer`. Each side feels the other's slow reader: channels have flow control.
A client that disconnects breaks the channel, and so does a node that dies.

    to the node                                      back
    R head and body, or the beginning of the body    A a whole response      S the head of a stream
    B a piece of the body    E the end of the body   D a piece of it         F its last piece
    t the client has taken everything                T say when the client has taken everything     X abort
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import struct
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, Literal, TypeAlias, cast
from urllib.parse import parse_qs

import msgspec
import structlog

from isthmus.app.routes import is_rest
from isthmus.cluster.bus import Bus, BusChannel, BusFault, ChannelEnd, ChannelFull, NodeId
from isthmus.core.background import BackgroundTasks
from isthmus.core.calls.result_cuts import URI as RESULTS_URI
from isthmus.frontends.console.http import SESSION_PATH
from isthmus.frontends.http.auth import Authenticator, Fields, Headers
from isthmus.frontends.http.connection import READ_BUFFER_BYTES
from isthmus.frontends.http.nodes import FORWARDED, TAG_END
from isthmus.frontends.http.request_cycle import (
    CROWDED_BYTES,
    FIELDS,
    JSON,
    PEER,
    App,
    DrainAwarePeer,
    IncomingRequest,
    Message,
    Peer,
    Receive,
    RequestCycle,
    Send,
    SyncHandler,
    header_lines,
    join_headers,
)
from isthmus.frontends.mcp.exchange import code_of, data_of
from isthmus.frontends.mcp.http import SESSION_HEADER
from isthmus.frontends.mcp.sse import MESSAGES_PATH, SESSION_PARAMETERS
from isthmus.frontends.rest.http import answer_problem
from isthmus.frontends.rest.problem_details import problem_of
from isthmus.model.callers import Caller
from isthmus.model.fault_table import Executed, NodeLost
from isthmus.wire import jsonrpc, sse
from isthmus.wire.jsonrpc import Text

log = structlog.get_logger(__name__)

SERVICE: Final = "http"

CONNECT_SECONDS = 3.0
"""How long a node may take to accept a channel."""

KEPT_CHANNELS_MAX = 64
"""Channels to one node that are kept for later requests while none uses them."""

TAKERS_MAX = 16
"""Responses on one channel that wait for their clients to read. A client that disconnects never reads."""

PRESENCE_SECONDS = 3.0
"""How long after joining the bus a node may not know all others: noticing them takes at most one lease."""

UNKNOWN: Final = NodeId("")
"""A node that is not known yet, or not known while the bus is disconnected."""

LEASE: Final = "lease"
"""The attribute in which nodes announce the number under which they hold tasks."""

_END: Final = TAG_END.encode()
_QUESTIONS: Final = "/v1/questions/"
_MESSAGES: Final = (MESSAGES_PATH, MESSAGES_PATH + "/")

Kind: TypeAlias = Literal[b"R", b"B", b"E", b"t", b"A", b"S", b"D", b"F", b"T", b"X"]
_MARK = struct.Struct(">II")
"""The number of a request on its channel, and a number of the waiter for its response."""
_HEAD = struct.Struct(">HI")
"""Of a response: its status, and the length of its header lines."""


def tag_of(node: str) -> str:
    """The tag of a node in ids: short, and the same after a restart."""
    return base64.b32encode(hashlib.blake2b(node.encode(), digest_size=5).digest()).decode().lower()


def prefix_of(node: str) -> str:
    """What ids of a node begin with."""
    return f"{tag_of(node)}{TAG_END}"


class RequestHead(msgspec.Struct):
    """What a forwarded request begins with. Members have names on the wire, so that later versions may add some."""

    method: str
    path: str
    raw_path: bytes
    query: bytes
    http_version: str
    scheme: str
    headers: list[tuple[bytes, bytes]]
    client: tuple[str, int] | None
    body: bytes
    is_whole: bool
    """Whether `body` is the whole body."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(RequestHead).decode


class Forwarder:
    """The other nodes, for the frontends of this one (see `frontends.http.nodes.Nodes`).

    `take` and `__call__` are in front of the routes, which `serve` sets before the first request.
    """

    def __init__(
        self, bus: Bus, auth: Authenticator, background: BackgroundTasks, stall_bytes: int, local_key: str = ""
    ) -> None:
        """A client may have `stall_bytes` unread. `local_key`, if there is one, is valid at this node alone."""
        self.prefix = prefix_of(bus.node)
        self.bus = bus
        self.stall_bytes = stall_bytes
        self.loop = asyncio.get_running_loop()
        self.at_once: SyncHandler = lambda _: False
        self.app_for_others: App = _unset
        self._app: App = _unset
        self._auth = auth
        self._background = background
        self._local_authorization = b"Bearer " + local_key.encode() if local_key else None
        self.cookie = ""
        """The name of the console's session cookie; empty without a console."""
        self._own = tag_of(bus.node).encode()
        self._nodes: dict[bytes, NodeId] = {}
        self._idle: dict[NodeId, list[_Outgoing]] = {}
        self._streams: set[_Outgoing] = set()
        self.running: set[_Incoming] = set()
        """Channels with a request of another node that this node answers now."""
        self._emptied: asyncio.Future[None] | None = None
        self._unsubscribe = [bus.on_peers_changed(self._peers_changed)]
        self._peers_changed()

    def serve(self, at_once: SyncHandler, app: App, app_for_others: App) -> None:
        """Set the handlers for requests that this node answers: at once, of its own clients, and of other nodes."""
        self.at_once, self._app, self.app_for_others = at_once, app, app_for_others
        self._unsubscribe.append(self.bus.serve(SERVICE, self._accept))

    def _peers_changed(self) -> None:
        self._nodes = {tag_of(node).encode(): node for node in self.bus.peers()}
        self.has_others = bool(self._nodes)
        for node in self._idle.keys() - self._nodes.values():
            del self._idle[node]  # the bus has broken these channels, or soon will

    # -- which node ------------------------------------------------------------------------------------------------

    def take(self, arrival: IncomingRequest) -> bool:
        """See `SyncHandler`."""
        scope = arrival.scope
        fields: Fields | None = scope.get(FIELDS)
        has_proof = b"dpop" in fields if fields is not None else _has_proof(scope)
        if has_proof and self._auth.claim_proof is not None:
            return False  # the database is asked first
        if fields is not None and SESSION_HEADER not in fields and scope["path"].startswith("/mcp"):
            return self.at_once(arrival)  # nearly all requests: nothing in the head names a node
        id = self._named_in_head(scope)
        node = None if id is None else self._find(id, scope)
        if node is None:
            return self.at_once(arrival)
        self._start(node, ForwardedRequest(self, arrival, scope, arrival.body))
        return True

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if self._auth.claim_proof is not None and _has_proof(scope):
            await self._auth.claim_proof(scope.get(FIELDS) or join_headers(scope["headers"]), scope)
        id = self._named_in_head(scope)
        node = None if id is None else self._find(id, scope)
        if node is None:
            return await self._app(scope, receive, send)
        peer: Peer = scope["extensions"][PEER]
        request = ForwardedRequest(self, peer, scope, peer.take_body(), receive)
        self._start(node, request)
        return await request.over

    def forward(self, id: str, peer: Peer, scope: Message, body: bytes) -> asyncio.Future[None] | None:
        """See `Nodes`."""
        node = None if FORWARDED in scope else self._find(id.encode("utf-8", "surrogatepass"), scope)
        return None if node is None else self._forward_body(node, peer, scope, body)

    def forward_to(self, holder: str, peer: Peer, scope: Message, body: bytes) -> asyncio.Future[None] | None:
        """See `Nodes`."""
        node = None if FORWARDED in scope else self.node_of(holder)
        return None if node is None else self._forward_body(node, peer, scope, body)

    def forward_conversation(self, id: str, peer: Peer, scope: Message, body: bytes) -> asyncio.Future[None] | None:
        """See `Nodes`."""
        if FORWARDED in scope or not self.bus.state.is_connected or not self._is_admitted(scope):
            return None
        tag = id.partition(TAG_END)[0].encode("utf-8", "surrogatepass")
        node = self.bus.node if tag == self._own else self._nodes.get(tag)
        node = node or self._chosen_for(id)
        return None if node == self.bus.node else self._forward_body(node, peer, scope, body)

    def forward_caller(self, caller: Caller, peer: Peer, scope: Message, body: bytes) -> asyncio.Future[None] | None:
        """See `Nodes`."""
        if FORWARDED in scope or not self.bus.state.is_connected:
            return None
        node = self._chosen_for(f"{caller.tenant}\0{caller.name}")
        return (
            None
            if node == self.bus.node or not self._is_admitted(scope)
            else self._forward_body(node, peer, scope, body)
        )

    def _chosen_for(self, key: str) -> NodeId:
        """The node that all nodes choose. By rendezvous hashing, only the keys of a node that leaves move."""
        nodes = [self.bus.node, *self._nodes.values()]
        return max(nodes, key=lambda each: hashlib.blake2b(f"{each}\0{key}".encode(errors="replace")).digest())

    def node_of(self, holder: str) -> NodeId | None:
        """The node that holds tasks under this number; None if it is gone, or not known here."""
        return next((node for node, peer in self.bus.peers().items() if peer.attributes.get(LEASE) == holder), None)

    def _forward_body(self, node: NodeId, peer: Peer, scope: Message, body: bytes) -> asyncio.Future[None]:
        # The caller's session is not there, and the request concerns the caller, not a session.
        scope = {**scope, "headers": [header for header in scope["headers"] if header[0] != SESSION_HEADER]}
        request = ForwardedRequest(self, peer, scope, body)
        self._start(node, request)
        return request.over

    def _named_in_head(self, scope: Message) -> bytes | None:
        """The id in a request's head that names its node; None without one, or if it is this node's own."""
        path: str = scope["path"]
        id: bytes | None = None
        if path.startswith("/mcp"):
            fields: Fields | None = scope.get(FIELDS)
            headers: Headers = scope["headers"]
            if fields is not None:
                id = fields.get(SESSION_HEADER)
            else:
                for name, value in headers:
                    if name == SESSION_HEADER:
                        id = value
                        break
        elif path.startswith("/v1/"):
            id = self._named_in_rest(path, scope)
        elif path in _MESSAGES:
            query = parse_qs(scope["query_string"].decode("latin-1"))
            ids = [id for name in SESSION_PARAMETERS for id in query.get(name, ())]
            id = ids[0].encode("utf-8", "surrogatepass") if len(ids) == 1 else None
        elif path == SESSION_PATH:
            id = self._cookie_in(scope)
        return id if id is not None and _END in id and not id.startswith(self._own) else None

    def _named_in_rest(self, path: str, scope: Message) -> bytes | None:
        if path.startswith(_QUESTIONS):
            return path.removeprefix(_QUESTIONS).encode("utf-8", "surrogatepass")
        if path == "/v1/resources/read" and b"results" in scope["query_string"]:
            uri: str = parse_qs(scope["query_string"].decode("latin-1")).get("uri", [""])[0]
            if uri.startswith(RESULTS_URI):
                return uri.removeprefix(RESULTS_URI).encode("utf-8", "surrogatepass")
        if b"cursor=" in scope["query_string"]:
            cursor: str = parse_qs(scope["query_string"].decode("latin-1")).get("cursor", [""])[0]
            if TAG_END in cursor:  # the order of a list that is the node's own
                return cursor.encode("utf-8", "surrogatepass")
        return self._cookie_in(scope)

    def _cookie_in(self, scope: Message) -> bytes | None:
        """The session of a signed-in page. A key counts more, as in `Authenticator.admit`."""
        if not self.cookie:
            return None
        start, found = f"{self.cookie}=".encode(), None
        headers: Headers = scope["headers"]
        for name, value in headers:
            if name == b"cookie" and start in value:
                found = value.partition(start)[2].partition(b";")[0].strip()
            elif name in (b"authorization", b"x-api-key"):
                return None
        return found

    def _find(self, id: bytes, scope: Message) -> NodeId | None:
        """The node that made an id; None if this node answers: it made the id, or nobody did, or that node is gone."""
        tag, end, _ = id.partition(_END)
        if not end or tag == self._own:
            return None
        node = self._nodes.get(tag, UNKNOWN)
        if (node is UNKNOWN and self._knows_all()) or not self._is_admitted(scope):
            return None
        return node

    def _start(self, node: NodeId, request: ForwardedRequest) -> None:
        """Forward a request."""
        if node is UNKNOWN:
            request.lost("no", "this node is not connected to the others")
            return
        # A body that arrives in pieces would have to be held, too; a new channel shows that the node lives.
        idle = None if request.body is None else self._idle.get(node)
        while idle:
            outgoing = idle.pop()
            if outgoing.channel.is_open:
                outgoing.begin(request)
                return
        self.spawn(self._connect(node, request), request.failed)

    def _knows_all(self) -> bool:
        """Whether a node that this one does not know is gone."""
        state = self.bus.state
        return state.is_connected and time.time() - state.since > PRESENCE_SECONDS

    def _is_admitted(self, scope: Message) -> bool:
        """Whether the caller is known here; other requests are refused here, and cost the other node nothing.

        Only the node that began it knows the session of a signed-in page. The key that commands of this machine use
        is valid at this node alone.
        """
        fields = scope.get(FIELDS) or join_headers(scope["headers"])
        is_local = self._local_authorization is not None and fields.get(b"authorization") == self._local_authorization
        if self._auth.place(fields) is not None or is_local:
            return False
        return self._cookie_in(scope) is not None or self._auth.caller_of(fields, scope) is not None

    # -- to another node -------------------------------------------------------------------------------------------

    async def _connect(self, node: NodeId, request: ForwardedRequest) -> None:
        try:
            channel = await self.bus.connect(node, SERVICE, within=CONNECT_SECONDS)
        except BusFault as fault:  # no request was sent
            request.lost("no", str(fault))
            return
        outgoing = _Outgoing(self, channel)
        channel.start(outgoing)
        outgoing.begin(request)
        if request.body is None:
            await request.send_body(outgoing)

    def keep_channel(self, outgoing: _Outgoing) -> None:
        """Keep a channel for a later request."""
        idle = self._idle.setdefault(outgoing.channel.peer, [])
        if len(idle) < KEPT_CHANNELS_MAX and outgoing.channel.is_open:
            idle.append(outgoing)
        else:
            outgoing.channel.close()

    def note_stream(self, outgoing: _Outgoing, *, is_open: bool) -> None:
        """A response that belongs to no call has begun, or has ended."""
        if is_open:
            self._streams.add(outgoing)
        else:
            self._streams.discard(outgoing)

    def end_streams(self) -> None:
        """This node stops: its clients open their streams at another one."""
        for outgoing in tuple(self._streams):
            outgoing.end_stream()

    # -- from another node -----------------------------------------------------------------------------------------

    def _accept(self, channel: BusChannel) -> None:
        channel.start(_Incoming(self, channel))

    def note_running(self, incoming: _Incoming, *, is_running: bool) -> None:
        """A request of another node begins or ends."""
        if is_running:
            self.running.add(incoming)
            return
        self.running.discard(incoming)
        if not self.running and self._emptied is not None and not self._emptied.done():
            self._emptied.set_result(None)

    async def wait_idle(self) -> None:
        """Wait until this node answers no request of another."""
        if self.running:
            self._emptied = self.loop.create_future()
            await self._emptied

    def spawn(self, work: Coroutine[None, None, None], on_crash: Callable[[], None]) -> None:
        """Run a coroutine that belongs to one request."""
        try:
            self._background.spawn("a forwarded request", work, on_crash=lambda _: on_crash())
        except RuntimeError:  # the hub is closing
            on_crash()

    def close(self) -> None:
        """Stop. Requests that are under way end with the bus."""
        for unsubscribe in self._unsubscribe:
            unsubscribe()


def _has_proof(scope: Message) -> bool:
    """Whether a request has a DPoP proof."""
    fields: Fields | None = scope.get(FIELDS)
    headers: Headers = scope["headers"]
    return b"dpop" in fields if fields is not None else any(name == b"dpop" for name, _ in headers)


async def _unset(_scope: Message, _receive: Receive, _send: Send) -> None:
    raise RuntimeError("the routes are not set")


# -- the client's node ---------------------------------------------------------------------------------------------


class ForwardedRequest:
    """A request of a client of this node that another node answers."""

    def __init__(
        self, forwarder: Forwarder, peer: Peer, scope: Message, body: bytes | None, receive: Receive | None = None
    ) -> None:
        """`body` is the whole body; None if `receive` brings it."""
        self.peer = cast("DrainAwarePeer", peer)  # as the listener's all are
        self.scope = scope
        self.body = body
        self.over: asyncio.Future[None] = forwarder.loop.create_future()
        """Done when the response has ended."""
        self.is_stream = False
        """Whether a response has begun as a stream of events."""
        self.is_begun = False
        self.is_sent = body is not None
        """Whether the whole body was sent."""
        self._receive = receive

    def head(self) -> bytes:
        """The first message."""
        scope, body = self.scope, self.body
        headers = scope["headers"]
        if FIELDS in scope and body is not None:  # requests that share a head have its first one's length
            length = b"%d" % len(body)
            headers = [(name, length if name == b"content-length" else value) for name, value in headers]
        client = scope["client"]
        return b"R" + _encode(
            RequestHead(
                scope["method"],
                scope["path"],
                scope["raw_path"],
                scope["query_string"],
                scope["http_version"],
                scope["scheme"],
                headers,
                client and (client[0], client[1]),
                body or b"",
                body is not None,
            )
        )

    async def send_body(self, outgoing: _Outgoing) -> None:
        """Send the body as it arrives, no faster than the other node reads it."""
        assert self._receive is not None, "a request without its body has a `receive`"
        while not self.over.done():
            message = await self._receive()
            if message["type"] == "http.disconnect" or self.over.done():
                return  # the client has left, or has its response already
            try:
                if message.get("body"):
                    outgoing.channel.send(b"B" + message["body"])
                if not message.get("more_body", False):
                    self.is_sent = True
                    outgoing.channel.send(b"E")
                    return
                await outgoing.channel.drain()
            except BusFault:
                return  # `closed` tells the client

    def lost(self, executed: Executed, detail: str) -> None:
        """The other node does not answer: tell the client, unless it has left."""
        self.end()
        fault = NodeLost(detail, executed=executed)
        log.info("a forwarded request was lost", path=self.scope["path"], executed=executed, reason=detail)
        is_call = self.scope["method"] == "POST"
        if self.is_begun and not (self.is_stream and is_call):
            self.peer.abort()  # an unfinished response: the client sees that it does not end
            return
        if is_rest(self.scope["path"]):
            problem = problem_of(fault)
            if self.is_begun:
                self.peer.end(sse.frame(problem.body(), event="error"))
            else:
                answer_problem(self.peer, problem)
            return
        read = None if self.body is None or not is_call else jsonrpc.decode(self.body)
        id = read.id if isinstance(read, jsonrpc.Request) else None
        error = jsonrpc.error(id, code_of(fault), fault.message, data_of(fault))
        if not self.is_begun:
            # As all faults of calls. What has no id gets no JSON-RPC response, so the status says it.
            status = 502 if id is None else 200
            self.peer.answer(status, JSON + header_lines([(b"retry-after", b"1")]), error)
        elif id is not None:
            self.peer.end(sse.frame(error))
        else:
            self.peer.abort()

    def failed(self) -> None:
        """Forwarding it failed."""
        self.lost("unknown", "this node failed to forward the request, or is shutting down")

    def end(self) -> None:
        """The response has ended."""
        if not self.over.done():
            self.over.set_result(None)


class _Outgoing:
    """The end of a channel at the client's node: writes the other node's response to the client."""

    __slots__ = ("_forwarder", "_is_held", "_is_waiting", "_last", "_number", "_offset", "_request", "channel")

    def __init__(self, forwarder: Forwarder, channel: BusChannel) -> None:
        self.channel = channel
        self._forwarder = forwarder
        self._request: ForwardedRequest | None = None
        self._offset = 0
        self._is_held = False
        self._is_waiting = False
        """A request that is held until the node has sent something."""
        self._number = 0
        self._last: DrainAwarePeer | None = None
        """The client of the request with this number."""

    def begin(self, request: ForwardedRequest) -> None:
        """Send a request, or hold it until the node is known to live."""
        self._request, self._last = request, request.peer
        self._number += 1
        self._is_waiting = not self.channel.is_confirmed()
        if self._is_waiting or self._send(request):
            request.peer.on_disconnect(partial(self._client_left, request))

    def _send(self, request: ForwardedRequest) -> bool:
        try:
            self._offset = self.channel.send(request.head())
        except BusFault as fault:
            self._request = None
            request.lost("no", str(fault))
            return False
        return True

    def _client_left(self, request: ForwardedRequest) -> None:
        if self._request is request:
            self._request = None
            self._forwarder.note_stream(self, is_open=False)
            self.channel.abort("the client disconnected")
        request.end()

    def message(self, message: bytes) -> None:
        """See `ChannelReceiver`."""
        request = self._request
        if message[:1] == b"T":
            number, mark = _MARK.unpack_from(message, 1)
            if number == self._number and self._last is not None:
                self._last.on_taken(partial(self._taken, mark))
            return
        if request is None:
            return
        peer = request.peer
        match message[:1]:
            case b"A":
                status, length = _HEAD.unpack_from(message, 1)
                start = 1 + _HEAD.size + length
                self._ended(request)
                peer.answer(status, message[1 + _HEAD.size : start], message[start:])
            case b"S":
                status, length = _HEAD.unpack_from(message, 1)
                lines = message[1 + _HEAD.size : 1 + _HEAD.size + length]
                request.is_begun, request.is_stream = True, b"text/event-stream" in lines
                if request.scope["method"] == "GET":
                    self._forwarder.note_stream(self, is_open=True)
                peer.begin(status, lines)
            case b"D":
                peer.push(message[1:])
                if not self._is_held and peer.buffered_bytes() > CROWDED_BYTES:
                    self._is_held = True
                    self.channel.pause()
                    peer.on_taken(self._resume)
            case b"F":
                self._ended(request)
                peer.end(message[1:])
            case b"X":
                self._request = None
                self.channel.close()
                request.end()
                peer.abort()
            case _:
                self.channel.abort("an unknown message")
                self.closed(ChannelEnd("broken", "an unknown message"))

    def _resume(self) -> None:
        self._is_held = False
        if self.channel.is_open:
            self.channel.resume()

    def _taken(self, mark: int) -> None:
        if self.channel.is_open:
            self.channel.send(b"t" + _MARK.pack(0, mark))

    def _ended(self, request: ForwardedRequest) -> None:
        self._request = None
        self._forwarder.note_stream(self, is_open=False)
        if request.is_sent and not self._is_held:
            self._forwarder.keep_channel(self)
        else:  # the rest of the body is not wanted
            self.channel.close()
        request.end()

    def end_stream(self) -> None:
        """End the response, because this node stops."""
        request, self._request = self._request, None
        self._forwarder.note_stream(self, is_open=False)
        self.channel.abort("the client's node stops")
        if request is not None:
            request.peer.end(b"")
            request.end()

    def writable(self) -> None:
        """See `ChannelReceiver`; `send_body` waits for it, too."""
        if self._is_waiting and self._request is not None:
            self._is_waiting = False
            self._send(self._request)

    def silent(self, confirmed: int) -> None:
        """See `ChannelReceiver`."""
        request = self._request
        if request is not None and not request.is_begun and (self._is_waiting or self._offset > confirmed):
            self.channel.abort("the client was told that this node is silent")
            self.closed(ChannelEnd("broken", f"node {self.channel.peer} does not respond"))

    def closed(self, end: ChannelEnd) -> None:
        """See `ChannelReceiver`."""
        request, self._request = self._request, None
        self._forwarder.note_stream(self, is_open=False)
        if request is not None:
            # A request whose response has begun has reached a frontend.
            is_unsent = self._is_waiting or (not request.is_begun and not self.channel.has_left(self._offset))
            request.lost("no" if is_unsent else "unknown", end.reason or "its connection broke")


# -- the node that answers -----------------------------------------------------------------------------------------


class _Incoming:
    """The answering end of a channel: runs one request at a time.

    For a `RequestCycle` it takes the place of a connection.
    """

    def __init__(self, forwarder: Forwarder, channel: BusChannel) -> None:
        self.channel = channel
        self.loop = forwarder.loop
        self.flow = _NeverPaused()
        self.transport = cast("asyncio.Transport", None)  # only `put` and ASGI's `send` need one
        self._forwarder = forwarder
        self._cycle: ForwardedCycle | None = None
        self._is_paused = False
        self._number = 0
        self._marks = 0
        self._takers: dict[int, Callable[[], None]] = {}

    # -- from the client's node ------------------------------------------------------------------------------------

    def message(self, message: bytes) -> None:
        """See `ChannelReceiver`."""
        cycle = self._cycle
        match message[:1]:
            case b"R" if cycle is None:
                self._begin(_decode(memoryview(message)[1:]))
            case b"B":
                if cycle is not None and not cycle.is_done:
                    cycle.add_body(message[1:])
                    if cycle.pending_bytes > READ_BUFFER_BYTES and not self._is_paused:
                        self._is_paused = True
                        self.channel.pause()
            case b"E":
                if cycle is not None:
                    cycle.end_body()
            case b"t":
                taker = self._takers.pop(_MARK.unpack_from(message, 1)[1], None)
                if taker is not None:
                    taker()
            case _:
                self.channel.abort("an unexpected message")
                self.closed(ChannelEnd("broken", "an unexpected message"))

    def _begin(self, head: RequestHead) -> None:
        scope: Message = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": head.http_version,
            "method": head.method,
            "scheme": head.scheme,
            "path": head.path,
            "raw_path": head.raw_path,
            "query_string": head.query,
            "root_path": "",
            "headers": head.headers,
            "client": head.client,
            "server": None,
            FORWARDED: self.channel.peer,
        }
        body = head.body if head.is_whole else None
        cycle = self._cycle = ForwardedCycle(self, scope, is_kept_alive=True, body=body)
        self._number += 1
        self._forwarder.note_running(self, is_running=True)
        if head.is_whole:
            try:
                if self._forwarder.at_once(cycle):
                    return
            except Exception:  # it affects only this request
                log.exception("the sync handler failed", path=head.path)
                cycle.fail()
                return
        elif head.body:
            cycle.add_body(head.body)
        self._forwarder.spawn(cycle.run(self._forwarder.app_for_others), cycle.fail)

    def writable(self) -> None:
        """See `ChannelReceiver`; frontends look at `buffered_bytes`."""

    def silent(self, confirmed: int) -> None:
        """See `ChannelReceiver`; nothing is awaited here."""

    def closed(self, end: ChannelEnd) -> None:
        """The client disconnected, or its node is gone."""
        self._takers.clear()
        cycle, self._cycle = self._cycle, None
        self._forwarder.note_running(self, is_running=False)
        if cycle is not None:
            cycle.leave()

    # -- from the request cycle (see `ConnectionWriter`) -----------------------------------------------------------

    def send(self, *pieces: bytes | memoryview) -> None:
        """Send a message to the client's node; give up on a client that reads too slowly."""
        if not self.channel.is_open:
            return
        if self.channel.buffered_bytes() > self._forwarder.stall_bytes:
            self._give_up("the client holds too much unsent output")
            return
        try:
            self.channel.send(b"".join(pieces))
        except (ChannelFull, ValueError) as fault:
            self._give_up(str(fault))

    def _give_up(self, reason: str) -> None:
        self.channel.abort(reason)
        self.loop.call_soon(self.closed, ChannelEnd("broken", reason))

    def put(self, pieces: Any) -> None:
        """A forwarded request is never asked to continue, and its response is not framed here."""

    def buffered_bytes(self) -> int:
        """See `ConnectionWriter`. The client's node stops reading while the client does not read."""
        return self.channel.buffered_bytes()

    def on_taken(self, callback: Callable[[], None]) -> None:
        """See `ConnectionWriter`."""
        if self.channel.is_open:
            self._marks += 1
            self._takers[self._marks] = callback
            if len(self._takers) > TAKERS_MAX:
                del self._takers[next(iter(self._takers))]
            self.send(b"T", _MARK.pack(self._number, self._marks))

    def read_on(self) -> None:
        """See `ConnectionWriter`."""
        if self._is_paused:
            self._is_paused = False
            self.channel.resume()

    def on_response_complete(self) -> None:
        """The response is sent: the next request may come."""
        self._cycle = None
        self._forwarder.note_running(self, is_running=False)
        self.read_on()

    def abort(self) -> None:
        """Break the connection to the client."""
        self.send(b"X")
        self.channel.close()
        self.loop.call_soon(self.closed, ChannelEnd("here", "aborted"))


class _NeverPaused:
    """The flow of a channel, for ASGI's `send`, which frontends with forwarded requests do not use."""

    write_paused = False

    async def drain(self) -> None:
        """Nothing to wait for."""


class ForwardedCycle(RequestCycle):
    """A request of another node's client. It sends the frontend's calls of `Peer` to that node, which executes them."""

    __slots__ = ()
    _connection: _Incoming

    def answer(self, status: int, lines: bytes, body: Text) -> None:
        """See `Peer`."""
        if self.is_done:
            return
        self.is_started = True
        pieces = (body,) if isinstance(body, bytes) else body
        self._complete()
        self._connection.send(b"A", _HEAD.pack(status, len(lines)), lines, *pieces)
        self._connection.on_response_complete()

    def begin(self, status: int, lines: bytes) -> None:
        """See `Peer`."""
        if not self.is_done:
            self.is_started = True
            self._connection.send(b"S", _HEAD.pack(status, len(lines)), lines)

    def _write(self, body: bytes, *, is_last: bool) -> None:
        if not is_last:
            self._connection.send(b"D", body)
            return
        self._complete()
        self._connection.send(b"F", body)
        self._connection.on_response_complete()

    def abort(self) -> None:
        """See `Peer`."""
        if not self.is_done:
            self._connection.abort()

    def fail(self) -> None:
        """Answer 500, or abort the connection if the response has begun."""
        if self.is_started:
            self.abort()
        else:
            problem = {"title": "Internal Server Error", "status": 500, "executed": "unknown"}
            lines = header_lines([(b"content-type", b"application/problem+json")])
            self.answer(500, lines, msgspec.json.encode(problem))

    async def send(self, message: Message) -> None:
        """Only probes use ASGI's `send`, and they are not forwarded."""
        raise RuntimeError("a forwarded request is answered through its peer")
