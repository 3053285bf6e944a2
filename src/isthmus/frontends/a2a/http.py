"""The A2A agent over HTTP: JSON-RPC of every generation at one URL, plain HTTP beside it, and the agent card.

Reads requests and writes responses; `service` does the work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container
from functools import partial
from typing import TypeAlias
from urllib.parse import parse_qsl

import structlog

from isthmus.core.event_loop import DECODED_BYTES, offload, read_message
from isthmus.core.tasks.live_task import LiveTask
from isthmus.core.tasks.record import TaskRecord
from isthmus.frontends.a2a.cards import CARD_PATHS, SETS_PATH, AgentCards
from isthmus.frontends.a2a.planning import REQUEST_SET
from isthmus.frontends.a2a.service import UNKNOWN_IF_RUN, A2aService
from isthmus.frontends.a2a.settings import A2aSettings
from isthmus.frontends.a2a.task_stream import IsLast, TaskStream, is_settled, is_terminal, number_in, until_settled
from isthmus.frontends.a2a.task_view import direct_answer, record_bytes, task_bytes, whole_task
from isthmus.frontends.http.auth import TOO_MANY, Authenticator, Denied, Fields
from isthmus.frontends.http.nodes import ALONE, Nodes
from isthmus.frontends.http.request_cycle import (
    JSON,
    PEER,
    STREAM,
    DrainAwarePeer,
    Message,
    Peer,
    Receive,
    Send,
    accepted_types,
    header_lines,
    join_headers,
    read_body,
)
from isthmus.model.callers import Caller
from isthmus.model.calls import EVERYTHING, NO_CAPABILITIES, Surface
from isthmus.model.names import legal_server_name
from isthmus.model.tasks import Task
from isthmus.model.trace_context import PARENT_HEADER, REQUEST_TRACE, STATE_HEADER
from isthmus.wire import jsonrpc
from isthmus.wire.a2a import rest
from isthmus.wire.a2a.negotiate import (
    DIALECTS,
    VERSION_HEADER,
    VERSION_PARAMETER,
    AmbiguousDialect,
    error_dialect,
    recognize_dialect,
    version_of,
)
from isthmus.wire.a2a.operations import (
    A2aProblem,
    CancelTask,
    CreatePushConfig,
    DeletePushConfig,
    DialectName,
    GetExtendedCard,
    GetPushConfig,
    GetTask,
    ListPushConfigs,
    ListTasks,
    Operation,
    PushOperation,
    SendMessage,
    SubscribeToTask,
)
from isthmus.wire.a2a.streams import RestStream, UpdateStream, rpc_stream
from isthmus.wire.a2a.v1_0 import Dialect
from isthmus.wire.jsonrpc import Malformed, Notification, Payload, Request

log = structlog.get_logger(__name__)

RPC_PATHS = frozenset({"/", "/a2a", "/a2a/"})
REST_PATH = "/a2a/rest/"
ODD_BODY_BYTES = 64 * 1024
"""A longer invalid body is not read a second time."""


KEYS_PATH = "/.well-known/jwks.json"
"""Where receivers of 0.1 find the keys that sign push notifications."""

KEY_HEADER = b"idempotency-key"

FRESH = header_lines([(b"cache-control", b"public, max-age=60")])

MEDIA_TYPES = (b"application/json", b"application/a2a+json")
EVENTS = b"text/event-stream"

WAIT_SECONDS = 600.0
"""How long a response may wait for the end of a task; then it has the current state."""

FIRST_WAIT_SECONDS = 25.0
"""The same for 0.1, whose client gives up after 30 seconds."""

LAST_HEADER = b"last-event-id"
VERSION_FIELD = VERSION_HEADER.encode()

DIRECT = frozenset[DialectName]({"1.0", "0.3"})
"""Generations that have responses without a task, and that refuse to follow an ended task."""

NOT_JSON = A2aProblem("not_json", "Content-Type must be application/json")

Answered: TypeAlias = Payload | A2aProblem
HELD_OPERATIONS = (
    SendMessage,
    SubscribeToTask,
    CreatePushConfig,
    GetPushConfig,
    ListPushConfigs,
    DeletePushConfig,
)
"""Operations that are forwarded to the node that runs the task: other nodes cannot do them, or see its events later."""

OtherOperation: TypeAlias = GetTask | ListTasks | CancelTask | SubscribeToTask | GetExtendedCard | PushOperation


class A2aHttp:
    """The A2A frontend over HTTP."""

    def __init__(self, service: A2aService, auth: Authenticator, cards: AgentCards, nodes: Nodes = ALONE) -> None:
        self.service = service
        self.nodes = nodes
        service.context_prefix = nodes.prefix
        self._auth = auth
        self.cards = cards
        self._streams: set[TaskStream] = set()
        self._callers: Container[Caller] | None = None
        """Callers whose streams may stay open; None for all."""
        self._is_draining = False

    def is_at(self, path: str) -> bool:
        """Whether a path belongs to the A2A frontend."""
        known = path in CARD_PATHS or path in RPC_PATHS or path == KEYS_PATH
        return known or path.startswith((REST_PATH, SETS_PATH))

    async def serve(self, scope: Message, receive: Receive, _: Send) -> None:
        """Serve one request."""
        peer: DrainAwarePeer = scope["extensions"][PEER]
        fields = join_headers(scope["headers"])
        if PARENT_HEADER in fields:
            REQUEST_TRACE.set((fields[PARENT_HEADER], fields.get(STATE_HEADER)))
        admitted = self._auth.admit(fields, "a2a", scope)
        path: str = scope["path"]
        name, path = _set_of(path)
        REQUEST_SET.set(name)
        if name is not None and not (self._is_below_set(path) and self._is_set_visible(name, admitted)):
            peer.answer(404, b"", b"")
        elif isinstance(admitted, Denied) and admitted.status == TOO_MANY:
            self._refuse_caller(peer, path, admitted)
        elif scope["method"] in ("GET", "HEAD") and (path in CARD_PATHS or path in RPC_PATHS):
            query = dict(parse_qsl(scope["query_string"].decode("latin-1")))
            await self.cards.send(peer, path, query, fields, admitted)
        elif scope["method"] in ("GET", "HEAD") and path == KEYS_PATH:
            peer.answer(200, JSON + FRESH, await self.service.pushing.key_set())
        elif path in CARD_PATHS or path == KEYS_PATH:
            peer.answer(405, header_lines([(b"allow", b"GET, HEAD")]), b"")
        elif isinstance(admitted, Denied):
            self._refuse_caller(peer, path, admitted)
        else:
            body = peer.take_body()
            if body is None:
                if (body := await read_body(receive)) is None:
                    return
                # The key may have been revoked while the body arrived.
                if isinstance(admitted := self._auth.admit(fields, "a2a", scope), Denied):
                    self._refuse_caller(peer, path, admitted)
                    return
            if path.startswith(REST_PATH):
                query = scope["query_string"].decode("latin-1")
                marker = REST_PATH if name is None else f"{SETS_PATH}{name}/rest/"
                raw_path = scope["raw_path"].decode("latin-1").partition(marker)[2]
                request = _A2aRestRequest(self, admitted, peer, fields, scope)
                await request.serve(scope["method"], raw_path, query, body)
            elif scope["method"] != "POST":
                peer.answer(405, header_lines([(b"allow", b"GET, POST")]), b"")
            else:
                query = scope["query_string"].decode("latin-1")
                named = dict(parse_qsl(query)).get(VERSION_PARAMETER) if query else None
                await _A2aRpcRequest(self, admitted, peer, fields, scope).serve(body, named)

    def _is_below_set(self, path: str) -> bool:
        """Whether a set has this path, too."""
        return self.is_at(path) and not path.startswith(SETS_PATH)

    def _is_set_visible(self, name: str, admitted: Caller | Denied) -> bool:
        """Whether a set exists for this caller.

        Without a key, every name has a card without tools, so that names of sets do not leak.
        """
        if isinstance(admitted, Denied):
            return legal_server_name(name) == name
        hub = self.service.hub
        return name in hub.sets and bool(hub.snapshot.view(admitted.grants, Surface(set=name)).servers)

    def _refuse_caller(self, peer: DrainAwarePeer, path: str, denied: Denied) -> None:
        self._auth.on_turned_away("a2a", denied.status)
        body = jsonrpc.error(None, jsonrpc.INVALID_REQUEST, denied.message)
        if path.startswith(REST_PATH):
            body = rest.write_denial(path.removeprefix(REST_PATH), denied.status, denied.message)
        peer.answer(denied.status, JSON + header_lines(denied.headers), body)

    def change(self, settings: A2aSettings) -> None:
        """Apply new settings."""
        self.service.settings = settings
        self.cards.settings = settings

    def follow(self, stream: TaskStream) -> None:
        """Begin a stream; `end_streams` and `retain` can end it."""
        self._streams.add(stream)
        stream.over.add_done_callback(lambda _: self._streams.discard(stream))
        stream.begin()
        if self._is_draining:
            stream.wind_up()
        if self._callers is not None and stream.caller not in self._callers:
            stream.cut_off()

    def stream_callers(self) -> list[Caller]:
        """The caller of each open stream."""
        return [stream.caller for stream in self._streams]

    def retain(self, callers: Container[Caller]) -> None:
        """End the streams of all other callers, also streams that are just beginning."""
        self._callers = callers
        for stream in tuple(self._streams):
            if stream.caller not in callers:
                stream.cut_off()

    def end_streams(self) -> None:
        """The hub is shutting down: end each stream as soon as its task has no running call."""
        self._is_draining = True
        for stream in tuple(self._streams):
            stream.wind_up()


def _set_of(path: str) -> tuple[str | None, str]:
    """The set that a path names, and the path that it stands for."""
    if not path.startswith(SETS_PATH):
        return None, path
    name, slash, rest = path.removeprefix(SETS_PATH).partition("/")
    below = f"/{rest}" if slash and rest else ""
    return name, below if below in CARD_PATHS else f"/a2a{below}"


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("latin-1")


def _has_invalid_method(malformed: Malformed, body: bytes) -> bool:
    """Whether the only error of a request is that its method is not a string."""
    is_worth_a_look = malformed.code == jsonrpc.INVALID_REQUEST and len(body) <= ODD_BODY_BYTES
    members = jsonrpc.object_members(body) if is_worth_a_look else None
    return members is not None and "method" in members and not bytes(members["method"]).startswith(b'"')


def is_json(fields: Fields) -> bool:
    """Whether the content type of a request is JSON."""
    return fields.get(b"content-type", b"").partition(b";")[0].strip().lower() in MEDIA_TYPES


def final_state_for(dialect: Dialect, operation: Operation | A2aProblem) -> IsLast:
    """The task states that end a stream: in 1.0, `SubscribeToTask` stays open while the task waits for input."""
    return is_terminal if dialect.name == "1.0" and isinstance(operation, SubscribeToTask) else is_settled


class A2aRequest:
    """One request, in any binding."""

    def __init__(self, frontend: A2aHttp, caller: Caller, peer: Peer, fields: Fields) -> None:
        self._frontend = frontend
        self._service = frontend.service
        self._caller = caller
        self._peer = peer
        self._fields = fields
        self._is_0_1 = False
        self._reported: TaskRecord | None = None
        """The state of a 0.1 task in the response: the next message of the caller refers to it."""

    async def _do(self, dialect: Dialect, operation: Operation) -> Answered | LiveTask:
        """Run an operation.

        A streaming operation returns its task; a failure of the journal becomes a problem response.
        """
        try:
            if isinstance(operation, SendMessage):
                return await self._send(dialect, operation)
            return await self._do_other(dialect, operation)
        except OSError:
            log.exception("task could not be read", caller=self._caller.name)
            if isinstance(operation, SendMessage):
                return UNKNOWN_IF_RUN
            return A2aProblem("internal", "The hub cannot read its tasks now; try again later")

    async def _do_other(self, dialect: Dialect, operation: OtherOperation) -> Answered | LiveTask:
        match operation:
            case GetTask():
                record = await self._service.get(self._caller, operation)
                if isinstance(record, A2aProblem):
                    return record
                if record.origin == "0.1":
                    self._reported = record
                return await self._written(record, partial(dialect.write_task, history_length=operation.history_length))
            case ListTasks():
                page = await self._service.list(self._caller, operation)
                if isinstance(page, A2aProblem):
                    return page
                size = sum(task_bytes(task) for task in page.tasks)
                return await offload(size, partial(dialect.write_tasks, page, operation))
            case CancelTask():
                live = await self._service.cancel(self._caller, operation)
                if isinstance(live, A2aProblem):
                    return live
                return await self._written(await until_settled(live, self._peer, WAIT_SECONDS), dialect.write_cancelled)
            case SubscribeToTask():
                live = await self._service.find(self._caller, operation.task)
                if not isinstance(live, A2aProblem) and live.record.is_terminal and dialect.name in DIRECT:
                    return A2aProblem("unsupported_operation", f"task {operation.task} has ended ({live.record.state})")
                return live
            case GetExtendedCard():
                return await self._frontend.cards.extended(self._caller, dialect.name)
            case _:
                return await self._push(dialect, operation)

    async def _push(self, dialect: Dialect, operation: PushOperation) -> Answered:
        pushing = self._service.pushing
        match operation:
            case CreatePushConfig():
                target = await pushing.set(self._caller, dialect.name, operation)
                return target if isinstance(target, A2aProblem) else dialect.write_push(operation.task, target)
            case GetPushConfig():
                target = await pushing.get(self._caller, operation)
                return target if isinstance(target, A2aProblem) else dialect.write_push(operation.task, target)
            case ListPushConfigs():
                page = await pushing.list(self._caller, operation)
                return page if isinstance(page, A2aProblem) else dialect.write_pushes(page)
            case DeletePushConfig():
                return await pushing.delete(self._caller, operation) or dialect.write_deleted()

    async def _send(self, dialect: Dialect, operation: SendMessage) -> Answered | LiveTask:
        key = _text(self._fields.get(KEY_HEADER))
        live = await self._service.send(self._caller, dialect.name, operation, key)
        if isinstance(live, A2aProblem) or operation.is_stream:
            return live
        record = live.stored or live.record
        if operation.waits:
            seconds = FIRST_WAIT_SECONDS if dialect.name == "0.1" else WAIT_SECONDS
            record = await until_settled(live, self._peer, seconds)
        if record.origin == "0.1":
            self._reported = record
        if operation.waits and dialect.name in DIRECT and (message := direct_answer(record)) is not None:
            return dialect.write_sent(message, None)
        length = operation.history_length
        return await offload(live.size_bytes, partial(_write_sent, dialect, record, length), owner=self._caller)

    async def _other_holder(self, operation: Operation | A2aProblem) -> str | None:
        """The node that holds the task of an operation (`LiveTask.holder`); None if this node runs the operation."""
        held = (*HELD_OPERATIONS, GetTask) if self._is_0_1 else HELD_OPERATIONS
        if not isinstance(operation, held) or operation.task is None:
            return None
        try:
            live = await self._service.find(self._caller, operation.task)
        except OSError:
            return None  # the operation reports it
        if isinstance(live, A2aProblem) or live.record.is_terminal:
            return None
        return live.holder or None

    async def _forward(
        self, operation: Operation | A2aProblem, peer: Peer, scope: Message, body: bytes
    ) -> asyncio.Future[None] | None:
        """Forward a request to the node with its task, its context, or the processes of its caller; see `Nodes`."""
        nodes, hub = self._frontend.nodes, self._service.hub
        if not nodes.prefix:
            return None
        if (holder := await self._other_holder(operation)) is not None:
            return nodes.forward_to(holder, peer, scope, body)
        if self._is_0_1 and (place := await self._place_in_0_1(operation)) is not None:
            return nodes.forward_conversation(place, peer, scope, body)
        if not isinstance(operation, SendMessage) or operation.task is not None:
            return None
        if nodes.has_others and hub.has_link_per_caller(
            hub.snapshot.view(self._caller.grants, EVERYTHING).servers, NO_CAPABILITIES
        ):
            return nodes.forward_caller(self._caller, peer, scope, body)
        return nodes.forward_conversation(operation.context, peer, scope, body) if operation.context else None

    async def _place_in_0_1(self, operation: Operation | A2aProblem) -> str | None:
        """The conversation of a task that no node holds: its node knows which response the caller has received.

        Without a conversation, the id that the caller has chosen for its new task counts.
        """
        if not isinstance(operation, SendMessage | GetTask) or operation.task is None:
            return None
        try:
            live = await self._service.find(self._caller, operation.task)
        except OSError:
            return None  # the operation reports it
        if isinstance(live, A2aProblem):
            return (operation.context or operation.task) if isinstance(operation, SendMessage) else None
        return live.record.context if live.record.is_terminal else None

    async def _written(self, record: TaskRecord, write: Callable[[Task], Payload]) -> Payload:
        """Write a task for its caller, on a thread if it is long."""
        return await offload(record_bytes(record), partial(_write_shown, write, record), owner=self._caller)

    def _after(self, live: LiveTask, operation: Operation | A2aProblem) -> int:
        """The number of the last report that the caller has received."""
        last_event = number_in(_text(self._fields.get(LAST_HEADER)))
        if last_event is not None:
            return last_event
        return live.reports.turn if isinstance(operation, SendMessage) else 0

    async def _stream(
        self, live: LiveTask, events: UpdateStream, dialect: Dialect, operation: Operation | A2aProblem
    ) -> None:
        after, is_last = self._after(live, operation), final_state_for(dialect, operation)
        stream = TaskStream(self._caller, live, self._peer, events, after, is_last)
        stream.has_final = dialect.name == "0.3"
        stream.is_for_sender = isinstance(operation, SendMessage)
        self._frontend.follow(stream)
        delivered = await stream.over
        if delivered is not None:
            self._service.delivered(delivered)


def _write_sent(dialect: Dialect, record: TaskRecord, history_length: int | None) -> Payload:
    return dialect.write_sent(whole_task(record), history_length)


def _write_shown(write: Callable[[Task], Payload], record: TaskRecord) -> Payload:
    return write(whole_task(record))


class _A2aHttpRequest(A2aRequest):
    """One request over HTTP."""

    def __init__(self, frontend: A2aHttp, caller: Caller, peer: DrainAwarePeer, fields: Fields, scope: Message) -> None:
        super().__init__(frontend, caller, peer, fields)
        self._http_peer = peer
        self._scope = scope

    async def _forwarded(self, operation: Operation | A2aProblem, body: bytes) -> bool:
        """Whether another node has answered the request."""
        over = await self._forward(operation, self._peer, self._scope, body)
        if over is not None:
            await over
        return over is not None

    def _send_response(self, status: int, lines: bytes, body: bytes) -> None:
        """Send a response. Once a 0.1 caller has read it, the same text is a new message."""
        self._http_peer.answer(status, lines, body)
        if self._reported is not None:
            self._http_peer.on_taken(partial(self._service.delivered, self._reported))


class _A2aRpcRequest(_A2aHttpRequest):
    """One JSON-RPC request."""

    async def serve(self, body: bytes, named_version: str | None) -> None:
        """Serve it. The query may name a version; the header counts more."""
        if not is_json(self._fields):
            return self._refuse(DIALECTS["1.0"], None, NOT_JSON)
        is_long = len(body) > DECODED_BYTES
        if not is_long:
            request = jsonrpc.decode(body)
        else:
            whole = partial(jsonrpc.decode, body)
            request = await read_message(whole, jsonrpc.decode_passes, jsonrpc.unreadable, self._caller)
        if isinstance(request, Malformed):
            if _has_invalid_method(request, body):
                return self._answer(jsonrpc.error(request.id, jsonrpc.METHOD_NOT_FOUND, "method must be a string"))
            return self._answer(jsonrpc.error(request.id, request.code, request.message))
        if not isinstance(request, Request | Notification):
            return self._answer(jsonrpc.error(None, jsonrpc.INVALID_REQUEST, "the body must be one request"))
        version = version_of(_text(self._fields.get(VERSION_FIELD)), named_version)
        if isinstance(request, Notification):
            return self._refuse_notification(request, version)
        recognized = recognize_dialect(request.method, request.params, version)
        if isinstance(recognized, A2aProblem):
            return self._refuse(DIALECTS[error_dialect(request.method)], request.id, recognized)
        if isinstance(recognized, AmbiguousDialect):
            recognized = recognized.resolve(await self._recorded(recognized.task))
        dialect = DIALECTS[recognized]
        self._is_0_1 = recognized == "0.1"
        reading = partial(dialect.read, request.method, request.params)
        operation = await offload(len(body), reading, over=DECODED_BYTES, owner=self._caller) if is_long else reading()
        if await self._forwarded(operation, body):
            return None
        done = operation if isinstance(operation, A2aProblem) else await self._do(dialect, operation)
        if isinstance(done, A2aProblem):
            return self._refuse(dialect, request.id, done)
        if isinstance(done, LiveTask):
            return await self._stream(done, rpc_stream(dialect, request.id, done.record.id), dialect, operation)
        return self._answer(jsonrpc.result(request.id, done))

    def _refuse_notification(self, note: Notification, version: str | None) -> None:
        """Refuse a request without an id, or report another error in it."""
        found = recognize_dialect(note.method, note.params, version)
        name = found.resolve(None) if isinstance(found, AmbiguousDialect) else found
        dialect = DIALECTS[error_dialect(note.method) if isinstance(name, A2aProblem) else name]
        read = name if isinstance(name, A2aProblem) else dialect.read(note.method, note.params)
        if not isinstance(read, A2aProblem):
            read = A2aProblem("invalid_request", "the request needs an id")
        self._refuse(dialect, None, read)

    async def _recorded(self, task: str | None) -> DialectName | None:
        """The dialect that created a task."""
        try:
            live = None if task is None else await self._service.find(self._caller, task)
        except OSError:
            return None  # the operation reports it
        if live is None or isinstance(live, A2aProblem):
            return None
        return next((name for name in DIALECTS if name == live.record.origin), None)

    def _refuse(self, dialect: Dialect, id: Payload | None, problem: A2aProblem) -> None:
        # Before 1.0, clients that open a stream cannot read an error outside a stream. They accept only streams; the
        # Python SDK adds `*/*` in a header of its own.
        named = accepted_types(self._fields)
        if id is not None and dialect.name != "1.0" and EVENTS in named and MEDIA_TYPES[0] not in named:
            self._send_response(200, STREAM, rpc_stream(dialect, id, "").fail(problem))
        else:
            self._answer(jsonrpc.error(id, *dialect.write_problem(problem)))

    def _answer(self, body: bytes) -> None:
        self._send_response(200, JSON, body)


class _A2aRestRequest(_A2aHttpRequest):
    """One request over HTTP+JSON."""

    async def serve(self, verb: str, path: str, query: str, body: bytes) -> None:
        """Serve it."""
        reading = partial(rest.read, verb, path, query, body, _text(self._fields.get(VERSION_FIELD)))
        binding, operation = await offload(len(body), reading, over=DECODED_BYTES, owner=self._caller)
        if body and not is_json(self._fields):
            operation = NOT_JSON
        if await self._forwarded(operation, body):
            return
        done = operation if isinstance(operation, A2aProblem) else await self._do(binding.dialect, operation)
        if isinstance(done, A2aProblem):
            status, refusal = binding.write_problem(done)
            self._send_response(status, self._type(), refusal)
        elif isinstance(done, LiveTask):
            await self._stream(done, RestStream(binding), binding.dialect, operation)
        else:
            self._send_response(200, self._type(), bytes(done))

    def _type(self) -> bytes:
        """The content type that the caller uses itself."""
        named = self._fields.get(b"accept", b"") + self._fields.get(b"content-type", b"")
        kind = MEDIA_TYPES[1] if MEDIA_TYPES[1] in named else MEDIA_TYPES[0]
        return header_lines([(b"content-type", kind)])
