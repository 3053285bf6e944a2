"""The A2A agent over gRPC: 1.0 on its own port, with the extra `isthmus[grpc]`.

Reads and writes protobuf; `service` does the work. If a client disconnects or its deadline passes, its task continues.
`app` opens, drains and closes the server.

A call about a task that another node holds is forwarded there as an HTTP request with the call's path, its metadata as
headers, and its message as the body (see `frontends.http.nodes`). Each piece of the response is one message after
`MESSAGE`, or the status that ends the call after `STATUS`.
"""

from __future__ import annotations

import asyncio
import base64
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from http import HTTPStatus
from typing import Any, Final, NoReturn
from urllib.parse import unquote

import grpc
import msgspec
from msgspec import Struct

from isthmus.core.access.bytes_in_flight import COUNTED_BYTES, BytesInFlight
from isthmus.core.background import BackgroundTasks
from isthmus.core.event_loop import PROTOBUF_BYTES, offload
from isthmus.core.tasks.live_task import LiveTask
from isthmus.frontends.a2a.http import A2aHttp, A2aRequest, Answered
from isthmus.frontends.a2a.task_stream import IsLast, TaskStream, is_settled, is_terminal
from isthmus.frontends.http.auth import BASES, COMING_FROM, Authenticator, Denied, Fields, Request
from isthmus.frontends.http.listener import ListenError
from isthmus.frontends.http.nodes import FORWARDED
from isthmus.frontends.http.request_cycle import (
    PEER,
    DrainAwarePeer,
    Message,
    Receive,
    Send,
    join_headers,
    read_body,
)
from isthmus.model.callers import Caller
from isthmus.model.tasks import DataPart, FilePart, Part, Update
from isthmus.model.trace_context import PARENT_HEADER, REQUEST_TRACE, STATE_HEADER
from isthmus.wire.a2a import protobuf, v1_0
from isthmus.wire.a2a.negotiate import VERSION_HEADER, dialect_of, unsupported_version, version_of
from isthmus.wire.a2a.operations import A2aProblem, Operation, SendMessage
from isthmus.wire.a2a.protobuf import METHODS, SERVICE, STREAMS, Unwritable
from isthmus.wire.jsonrpc import Payload, Text, joined

DETAILS = "grpc-status-details-bin"
"""The trailer with the error details for programs."""

CODES = {code.value[0]: code for code in grpc.StatusCode}

DENIALS: Mapping[int, grpc.StatusCode] = {
    HTTPStatus.FORBIDDEN: grpc.StatusCode.PERMISSION_DENIED,
    HTTPStatus.TOO_MANY_REQUESTS: grpc.StatusCode.RESOURCE_EXHAUSTED,
    HTTPStatus.SERVICE_UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
}
"""The gRPC status of refusals by the authenticator; all others are UNAUTHENTICATED."""

MESSAGE_LENGTH_MAX = 1_000
"""Errors are trailers, and clients accept 8 KiB of them."""

KEEP_ALIVE_MILLISECONDS = 60_000
"""How often a silent client is pinged. Without that, a client that vanished would hold its streams until a restart."""

STREAMS_MAX = 100
"""Concurrent calls of one connection, each of which may hold a whole request. Clients queue further calls."""


JSON_MAX_BYTES = 3 * 1024 * 1024
"""Streams send longer JSON as a file: by default, clients refuse messages over 4 MiB."""

JSON_TYPE = "application/json"

PATHS: Final = {f"/{SERVICE}/{name}": name for name in METHODS}
"""The methods by the paths of their requests."""

MESSAGE: Final = b"m"
STATUS: Final = b"s"


class GrpcStatus(Struct, frozen=True):
    """How a call ends that does not succeed."""

    code: int
    message: str
    details: bytes = b""
    """A `google.rpc.Status`; empty without one."""


NODE_LOST = A2aProblem(
    "internal",
    "The node that holds the task does not answer; whether it has run this is not known",
    {"executed": "unknown"},
)
NODE_AWAY = A2aProblem(
    "internal", "The node that holds the task cannot be reached; try again later", {"executed": "no"}
)

_encode_status = msgspec.msgpack.Encoder().encode
_decode_status = msgspec.msgpack.Decoder(GrpcStatus).decode


class GrpcSettings(Struct, frozen=True):
    """Settings of the gRPC server."""

    host: str
    port: int
    """0 lets the system choose."""
    max_bytes: int
    """The longest request."""
    stall_seconds: float = 10.0
    """How long a client may take for one item of a stream before it is cut."""
    message_seconds: float = 30.0
    """How long a request may take to arrive; what has arrived is held in memory."""
    connections: int = 4096
    """Concurrent connections in all; gRPC does not count them by address."""
    greeting_seconds: float = 10.0
    """How long a client may take for the HTTP/2 handshake."""
    idle_seconds: float = 300.0
    """How long a connection without requests stays open; clients reconnect by themselves."""
    shares_port: bool = False
    """Whether other workers of this hub listen on the same port."""


class A2aGrpc:
    """The gRPC server. Call `close` after `open`."""

    def __init__(
        self, frontend: A2aHttp, auth: Authenticator, background: BackgroundTasks, settings: GrpcSettings
    ) -> None:
        self._frontend = frontend
        self._auth = auth
        self._background = background
        self._settings = settings
        self._server: Any = None
        self.in_flight: BytesInFlight | None = None
        """Bounds the bytes of long requests, together with those over HTTP."""
        self.bases: tuple[str, ...] = ()
        """The addresses that DPoP proofs may name; set once it listens."""

    async def open(self) -> int:
        """Start serving and return the port.

        Raises:
            ListenError: the address cannot be listened on.
        """
        host, port = self._settings.host, self._settings.port
        self._server = grpc.aio.server(options=_options(self._settings))
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, self._handlers()),))
        try:
            bound = self._server.add_insecure_port(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        except RuntimeError as error:
            raise ListenError(host, port, "gRPC cannot have it; choose another a2a.grpc_port") from error
        await self._server.start()
        return int(bound)

    async def drain(self, within: float) -> None:
        """Refuse new calls, and let running ones finish."""
        await self._server.stop(within)

    async def close(self) -> None:
        """Cancel running calls."""
        await self._server.stop(None)

    def _handlers(self) -> dict[str, Any]:
        # Declared as streams, which looks the same to clients: gRPC reads other requests before they are authenticated.
        return {
            name: grpc.stream_stream_rpc_method_handler(partial(self._stream, name))
            if name in STREAMS
            else grpc.stream_unary_rpc_method_handler(partial(self._answer, name))
            for name in METHODS
        }

    async def serve(self, scope: Message, receive: Receive, _: Send) -> None:
        """Serve a call that was made at another node, which forwards it; other HTTP requests find nothing here."""
        peer: DrainAwarePeer = scope["extensions"][PEER]
        if FORWARDED not in scope:
            peer.answer(404, b"", b"")
            return
        method, fields = PATHS[scope["path"]], join_headers(scope["headers"])
        if PARENT_HEADER in fields:
            REQUEST_TRACE.set((fields[PARENT_HEADER], fields.get(STATE_HEADER)))
        caller = self._auth.identify(fields, "a2a", {**scope, BASES: self.bases})
        if isinstance(caller, Denied):
            self._auth.on_turned_away("a2a", caller.status)
            status = GrpcStatus(DENIALS.get(caller.status, grpc.StatusCode.UNAUTHENTICATED).value[0], caller.message)
            peer.answer(200, b"", STATUS + _encode_status(status))
            return
        body = peer.take_body()
        if body is None and (body := await read_body(receive)) is None:
            return
        client = _ClientOfOtherNode(peer)
        call = _A2aGrpcRequest(self._frontend, caller, client, fields)
        done = await call.do(method, body)
        assert done is not None, "a call is forwarded once"
        if isinstance(done, LiveTask):
            assert call.task_stream is not None, "a stream follows a task"
            await call.task_stream.over
            return
        written = done if isinstance(done, A2aProblem) else await _write(method, done)
        if isinstance(written, A2aProblem):
            client.fail(_status_of(written))
        else:
            peer.answer(200, b"", MESSAGE + written)

    async def _answer(self, method: str, _: object, context: Any) -> bytes:
        client, done = await self._run(method, context)
        assert not isinstance(done, LiveTask), "only streams follow a task"
        if done is None:
            try:
                written = await client.next_piece() or b""  # an empty message is no piece
            finally:
                client.leave()
            if client.status is not None:
                await _abort_with(context, client.status)
            return written
        answer = await _write(method, done)
        if isinstance(answer, A2aProblem):
            await _abort_with(context, _status_of(answer))
        return answer

    async def _stream(self, method: str, _: object, context: Any) -> None:
        client = (await self._run(method, context))[0]
        try:
            while (piece := await client.next_piece()) is not None:
                async with asyncio.timeout(self._settings.stall_seconds):
                    await context.write(piece)
        except TimeoutError:
            await _abort(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "The stream is not read")
        finally:
            client.leave()
        if client.status is not None:
            await _abort_with(context, client.status)

    async def _run(self, method: str, context: Any) -> tuple[_Client, Payload | LiveTask | None]:
        """Run the operation of a call; None if another node does. Aborts the call, which raises, if it fails."""
        headers = _headers(context)
        fields, address = join_headers(headers), _address(context.peer())
        COMING_FROM.set(address)
        if PARENT_HEADER in fields:
            REQUEST_TRACE.set((fields[PARENT_HEADER], fields.get(STATE_HEADER)))
        # DPoP proofs name an HTTP request: this is the one that carries the gRPC call.
        path = f"/{SERVICE}/{method}"
        scope = {"method": "POST", "raw_path": path.encode(), "headers": [], BASES: self.bases}
        await self._caller(fields, context, scope)
        request = await self._request(context)
        # The key may have been revoked while the request arrived.
        caller = await self._caller(fields, context, scope)
        counted = self.in_flight if len(request) > COUNTED_BYTES else None
        if counted is not None and (refused := counted.enter(caller, len(request))) is not None:
            await _abort(context, grpc.StatusCode.RESOURCE_EXHAUSTED, f"{refused.reason}: {refused.message}")
        client = _Client()
        call = _A2aGrpcRequest(self._frontend, caller, client, fields)
        http = {"path": path, "query_string": b"", "http_version": "2", "scheme": "http", "client": (address, 0)}
        call.forwardable = {**scope, **http, "headers": headers}
        # The work continues when the client leaves: a task may be stored and not yet known as begun.
        work = self._background.spawn("a call over gRPC", call.do(method, request))
        if counted is not None:
            size = len(request)
            work.add_done_callback(lambda _: counted.leave(caller, size))
        try:
            done = await asyncio.shield(work)
        except asyncio.CancelledError:
            client.leave()
            raise
        except Exception:  # noqa: BLE001 - logged already, and the client gets no details
            done = A2aProblem("internal", "Internal error")
        if isinstance(done, A2aProblem):
            await _abort_with(context, _status_of(done))
        return client, done

    async def _caller(self, fields: Fields, context: Any, scope: Request) -> Caller:
        """The caller that this metadata authenticates; otherwise the call is refused, which raises."""
        if self._auth.claim_proof is not None and b"dpop" in fields:
            await self._auth.claim_proof(fields, scope)
        caller = self._auth.identify(fields, "a2a", scope)
        if isinstance(caller, Denied):
            self._auth.on_turned_away("a2a", caller.status)
            _send_nonce(context, caller)
            await _abort(context, DENIALS.get(caller.status, grpc.StatusCode.UNAUTHENTICATED), caller.message)
        return caller

    async def _request(self, context: Any) -> bytes:
        """The request message of an authenticated call."""
        seconds = self._settings.message_seconds
        try:
            async with asyncio.timeout(seconds):
                request = await context.read()
        except TimeoutError:
            await _abort(context, grpc.StatusCode.DEADLINE_EXCEEDED, f"The request did not arrive within {seconds:g} s")
        if request is grpc.aio.EOF:
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, "The call has no request message")
        read: bytes = request
        return read


def _send_nonce(context: Any, denied: Denied) -> None:
    """Send the nonce that the next proof must have (RFC 9449); over HTTP it is a header."""
    nonces = tuple((name.decode(), value.decode()) for name, value in denied.headers if name == b"dpop-nonce")
    if nonces:
        context.set_trailing_metadata(nonces)


def _options(settings: GrpcSettings) -> list[tuple[str, int]]:
    return [
        # Otherwise a second hub could listen on the same port, and each would get some of the calls.
        ("grpc.so_reuseport", int(settings.shares_port)),
        ("grpc.max_receive_message_length", settings.max_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_concurrent_streams", STREAMS_MAX),
        ("grpc.keepalive_time_ms", KEEP_ALIVE_MILLISECONDS),
        ("grpc.max_allowed_incoming_connections", settings.connections),
        ("grpc.server_handshake_timeout_ms", round(settings.greeting_seconds * 1000)),
        ("grpc.max_connection_idle_ms", round(settings.idle_seconds * 1000)),
    ]


def _address(peer: str) -> str:
    """The IP address in gRPC's name of a peer: `ipv4:192.0.2.1:50000`, `ipv6:%5B2001:db8::1%5D:50000`."""
    return unquote(peer).partition(":")[2].rpartition(":")[0].strip("[]")


def _headers(context: Any) -> list[tuple[bytes, bytes]]:
    """A call's metadata, in the form of HTTP headers."""
    given = [(name, value) for name, value in context.invocation_metadata() or ()]
    return [(name.encode(), value if isinstance(value, bytes) else value.encode()) for name, value in given]


async def _write(method: str, done: Payload) -> bytes | A2aProblem:
    """The message of a result."""
    try:
        return await offload(len(memoryview(done)), partial(protobuf.write, method, done), over=PROTOBUF_BYTES)
    except Unwritable as error:
        return A2aProblem("invalid_agent_response", str(error))


def _status_of(problem: A2aProblem) -> GrpcStatus:
    message = problem.message[:MESSAGE_LENGTH_MAX]
    code, details = protobuf.write_problem(A2aProblem(problem.kind, message, problem.details))
    return GrpcStatus(code, message, details)


async def _abort_with(context: Any, status: GrpcStatus) -> NoReturn:
    if status.details:
        context.set_trailing_metadata(((DETAILS, status.details),))
    await _abort(context, CODES[status.code], status.message)


async def _abort(context: Any, code: grpc.StatusCode, message: str) -> NoReturn:
    await context.abort(code, message)
    raise AssertionError("an abort raises")


def _read(method: str, request: bytes) -> Operation | A2aProblem:
    members = protobuf.read(method, request)
    return members if isinstance(members, A2aProblem) else v1_0.DIALECT.read(method, members)


class _A2aGrpcRequest(A2aRequest):
    """One call."""

    def __init__(self, frontend: A2aHttp, caller: Caller, client: _Client | _ClientOfOtherNode, fields: Fields) -> None:
        super().__init__(frontend, caller, client, fields)
        self.client = client
        self.task_stream: TaskStream | None = None
        """The stream of the task, if the request opened one."""
        self.forwardable: Message | None = None
        """The call as an HTTP request without its body; None if it came from another node."""

    async def do(self, method: str, request: bytes) -> Answered | LiveTask | None:
        """Run the operation of a request; None if another node does, whose response goes to the client."""
        given = self._fields.get(VERSION_HEADER.encode())
        version = version_of(None if given is None else given.decode("latin-1"), None)
        if version is not None and dialect_of(version) != "1.0":
            return unsupported_version(version)
        reading = partial(_read, method, request)
        operation = await offload(len(request), reading, over=PROTOBUF_BYTES, owner=self._caller)
        if self.forwardable is not None and self._frontend.nodes.prefix:
            assert isinstance(self.client, _Client), "a call is forwarded once"
            into = _ForwardedResponse(self.client)
            if await self._forward(operation, into, self.forwardable, request) is not None:
                return None
        done = operation if isinstance(operation, A2aProblem) else await self._do(v1_0.DIALECT, operation)
        if isinstance(done, LiveTask):
            # At once: after the first await, the first events of a quick server would be missed.
            self._follow(done, operation, is_terminal if method == "SubscribeToTask" else is_settled)
        return done

    def _follow(self, live: LiveTask, operation: Operation | A2aProblem, is_last: IsLast) -> None:
        stream = _ProtoStream(self.client)
        after = self._after(live, operation)
        self.task_stream = TaskStream(
            self._caller, live, self.client, stream, after, is_last, form=_form, is_kept_alive=False
        )
        self.task_stream.is_for_sender = isinstance(operation, SendMessage)
        self._frontend.follow(self.task_stream)


class _Client:
    """The client of one call, as a `Peer`. Messages wait here until gRPC takes them."""

    def __init__(self) -> None:
        self.status: GrpcStatus | None = None
        """How the call ends, if it does not succeed."""
        self._pieces: deque[bytes] = deque()
        self._size_bytes = 0
        self._wake = asyncio.Event()
        self._is_done = False
        self._has_left = False
        self._on_leave: list[Callable[[], None]] = []
        self._on_taken: list[Callable[[], None]] = []

    async def next_piece(self) -> bytes | None:
        """Wait for the next item; None after the last."""
        while not self._pieces:
            if self._is_done:
                return None
            self._wake.clear()
            await self._wake.wait()
        piece = self._pieces.popleft()
        self._size_bytes -= len(piece)
        if not self._pieces:
            callbacks, self._on_taken = self._on_taken, []
            for callback in callbacks:
                callback()
        return piece

    def leave(self) -> None:
        """The client has disconnected, or has received everything."""
        self._is_done = self._has_left = True
        self._wake.set()
        callbacks, self._on_leave = self._on_leave, []
        for callback in callbacks:
            callback()

    def fail(self, status: GrpcStatus) -> None:
        """End the call so."""
        self.status = status
        self.end(b"")

    def on_taken(self, callback: Callable[[], None]) -> None:
        """See `DrainAwarePeer`."""
        if self._pieces:
            self._on_taken.append(callback)
        elif not self._has_left:
            asyncio.get_running_loop().call_soon(callback)

    def on_disconnect(self, callback: Callable[[], None]) -> None:
        """See `Peer`."""
        if self._has_left:
            asyncio.get_running_loop().call_soon(callback)
        else:
            self._on_leave.append(callback)

    def take_body(self) -> bytes | None:
        """See `Peer`; gRPC passes the request separately."""
        return None

    def answer(self, status: int, lines: bytes, body: Text) -> None:
        """See `Peer`; gRPC has no HTTP status or headers in a response."""
        self.end(joined(body))

    def begin(self, status: int, lines: bytes) -> None:
        """See `Peer`; the first item begins the stream."""

    def push(self, chunk: bytes) -> None:
        """See `Peer`."""
        if chunk and not self._is_done:
            self._pieces.append(chunk)
            self._size_bytes += len(chunk)
            self._wake.set()

    def end(self, chunk: bytes) -> None:
        """See `Peer`."""
        self.push(chunk)
        self._is_done = True
        self._wake.set()

    def buffered_bytes(self) -> int:
        """See `Peer`."""
        return self._size_bytes

    def abort(self) -> None:
        """See `Peer`."""
        self._pieces.clear()
        self.end(b"")


class _ForwardedResponse:
    """The client of a call that another node answers, as the `Peer` of the HTTP request that carries it."""

    def __init__(self, client: _Client) -> None:
        self._client = client
        self.on_disconnect = client.on_disconnect
        self.on_taken = client.on_taken
        self.take_body = client.take_body
        self.begin = client.begin
        self.buffered_bytes = client.buffered_bytes

    def answer(self, status: int, lines: bytes, body: Text) -> None:
        """See `Peer`. Another status says that the other node does not answer, and is a JSON-RPC error."""
        if status == HTTPStatus.OK:
            self.end(joined(body))
        else:
            is_unsent = b'"executed":"no"' in joined(body)
            self._client.fail(_status_of(NODE_AWAY if is_unsent else NODE_LOST))

    def push(self, chunk: bytes) -> None:
        """See `Peer`."""
        if chunk[:1] == MESSAGE:
            self._client.push(chunk[1:])
        elif chunk:
            self._client.fail(_decode_status(chunk[1:]))

    def end(self, chunk: bytes) -> None:
        """See `Peer`."""
        self.push(chunk)
        self._client.end(b"")

    def abort(self) -> None:
        """See `Peer`: the response does not end as it should."""
        self._client.fail(_status_of(NODE_LOST))


class _ClientOfOtherNode:
    """The client of a call that was made at another node, as a `Peer`: what it gets is sent there."""

    def __init__(self, peer: DrainAwarePeer) -> None:
        self._peer = peer
        self._is_begun = False
        self.on_disconnect = peer.on_disconnect
        self.take_body = peer.take_body
        self.buffered_bytes = peer.buffered_bytes
        self.abort = peer.abort

    def begin(self, status: int, lines: bytes) -> None:
        """See `Peer`."""
        self._is_begun = True
        self._peer.begin(status, b"")

    def answer(self, status: int, lines: bytes, body: Text) -> None:
        """See `Peer`; gRPC has no HTTP status or headers in a response."""
        self._peer.answer(HTTPStatus.OK, b"", MESSAGE + joined(body))

    def push(self, chunk: bytes) -> None:
        """See `Peer`."""
        if chunk:
            self._peer.push(MESSAGE + chunk)

    def end(self, chunk: bytes) -> None:
        """See `Peer`."""
        self._peer.end(MESSAGE + chunk if chunk else b"")

    def fail(self, status: GrpcStatus) -> None:
        """End the call so."""
        piece = STATUS + _encode_status(status)
        if self._is_begun:
            self._peer.end(piece)
        else:
            self._peer.answer(HTTPStatus.OK, b"", piece)


def _form(part: Part) -> Part:
    """Convert JSON that is too long for one message to a file, which can be cut."""
    if not isinstance(part, DataPart) or protobuf.size_max(part.data) <= JSON_MAX_BYTES:
        return part
    content = base64.b64encode(part.data).decode()
    return FilePart(content, media_type=part.media_type or JSON_TYPE, metadata=part.metadata)


class _ProtoStream:
    """Items as messages; see `wire.a2a.streams.UpdateStream`."""

    def __init__(self, client: _Client | _ClientOfOtherNode) -> None:
        self._client = client

    def write(self, update: Update, event_id: str | None = None) -> bytes:
        """The item of an update. If protobuf cannot represent it, the stream ends with a problem."""
        try:
            return protobuf.write("SubscribeToTask", v1_0.DIALECT.write_update(update))
        except Unwritable as error:
            self.fail(A2aProblem("invalid_agent_response", str(error)))
            return b""

    def fail(self, problem: A2aProblem) -> bytes:
        """Report it by the call's status."""
        self._client.fail(_status_of(problem))
        return b""
