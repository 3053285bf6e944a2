"""A2A towards agents: requests written and responses read, for every generation and binding that agents use.

A client (`ClientV10`, `ClientV03`, `RestClientV03`) knows the objects of one generation. A binding puts requests into
JSON-RPC or plain HTTP. The hub does not trust agents: a response that does not fit becomes an `A2aProblem`, and nothing
raises. A problem has the detail `code` only if the agent itself reported it. Called by the links to agents, which
own connections and headers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol, TypeAlias, TypeVar
from urllib.parse import quote

import msgspec
from msgspec import Raw, Struct

from isthmus.model.tasks import Message, Task, Update
from isthmus.wire import jsonrpc
from isthmus.wire.a2a import v0_3, v0_3_rest, v1_0
from isthmus.wire.a2a.operations import (
    KINDS_1_0,
    PROBLEMS,
    REASONS_1_0,
    A2aProblem,
    CancelTask,
    GetTask,
    SendMessage,
    SubscribeToTask,
)
from isthmus.wire.a2a.v1_0 import WORDS_MAX, Dialect, encode, is_null
from isthmus.wire.jsonrpc import MAX_DEPTH, ErrorReply, Malformed, Payload, Response, render
from isthmus.wire.sse import SseEvent

ClientOperation: TypeAlias = SendMessage | GetTask | CancelTask | SubscribeToTask
"""The operations that the hub requests from agents."""

CODE = "code"
"""The detail of a problem that an agent reported: the agent's own error code."""

OK = 200

_T = TypeVar("_T")
_U = TypeVar("_U")
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


# -- problems ----------------------------------------------------------------------------------------------------------


def read_problem(code: int, message: str, data: Raw | None) -> A2aProblem:
    """Read a JSON-RPC error of an agent. All generations use the same codes."""
    details = {} if data is None or is_null(data) else {"data": bytes(data).decode(errors="replace")[:WORDS_MAX]}
    kind = KINDS_1_0.get(code, "internal")
    return A2aProblem(kind, message[:WORDS_MAX] or f"error {code}", {CODE: str(code), **details})


class _ErrorDetail(Struct):
    reason: str = ""


class _RpcStatus(Struct):
    code: int = 0
    message: str = ""
    details: list[_ErrorDetail] | None = None


class _HttpErrorBody(Struct):
    error: _RpcStatus | str = ""
    code: int = 0
    message: str = ""


_HTTP_ERROR = msgspec.json.Decoder(_HttpErrorBody)


def read_http_error(body: Payload) -> A2aProblem:
    """Read the body of an agent's HTTP error: a `google.rpc.Status` in 1.0, a code and a message in 0.3."""
    try:
        wire = _HTTP_ERROR.decode(body)
    except _UNREADABLE as error:
        return _unexpected(str(error))
    if isinstance(wire.error, _RpcStatus):
        reasons = [detail.reason for detail in wire.error.details or () if detail.reason in REASONS_1_0]
        kind = REASONS_1_0[reasons[0]] if reasons else "internal"
        return A2aProblem(kind, wire.error.message[:WORDS_MAX], {CODE: str(wire.error.code)})
    if not wire.message:
        return _unexpected("an error without a message")
    return A2aProblem(KINDS_1_0.get(wire.code, "internal"), wire.message[:WORDS_MAX], {CODE: str(wire.code)})


def unusable(why: str) -> A2aProblem:
    """The problem of a response that the hub cannot use."""
    return A2aProblem("invalid_agent_response", why[:WORDS_MAX])


def _unexpected(why: str) -> A2aProblem:
    return unusable(f"the agent sent an unexpected response: {why}")


def code_of(problem: A2aProblem) -> int | None:
    """The agent's error code; None if the agent reported no error, but its response is unusable."""
    return int(problem.details[CODE]) if CODE in problem.details else None


def _read_as(decoder: msgspec.json.Decoder[_T], result: Payload, read: Callable[[_T], _U]) -> _U | A2aProblem:
    """Decode and read a response; a problem if it does not fit."""
    try:
        return read(decoder.decode(result))
    except _UNREADABLE as error:
        return _unexpected(str(error))


# -- clients -----------------------------------------------------------------------------------------------------------


class _MethodNames(NamedTuple):
    send: str
    stream: str
    get: str
    cancel: str
    subscribe: str


def _params(members: Mapping[str, Payload]) -> bytes:
    """A JSON object without the members that are empty."""
    return render({name: value for name, value in members.items() if value})


def _number(count: int | None) -> bytes:
    return b"" if count is None else b"%d" % count


class A2aClient:
    """The requests and results of one generation. Its class attributes are the differences between the generations."""

    dialect: Dialect
    version = ""
    """The value of the version header."""
    card_method = ""
    """The method that returns the extended card."""
    prefix = ""
    """The part of every path of plain HTTP that names the generation."""
    card_path = ""
    _methods: _MethodNames | None = None
    """None over plain HTTP, where the path names the operation."""
    _wait: Mapping[bool, Mapping[str, bytes]] = {True: {"blocking": b"true"}, False: {"blocking": b"false"}}
    """How a message requests to wait or not. Always written before 1.0, because agents differ in their default."""

    def write(self, operation: ClientOperation) -> tuple[str, bytes]:
        """The method and the parameters of a request; over plain HTTP, no method and the body."""
        match operation:
            case SendMessage():
                message = self.dialect.message_object(operation.message, operation.context, operation.task)
                configuration = _params(
                    {
                        "acceptedOutputModes": encode(operation.output_modes) if operation.output_modes else b"",
                        "historyLength": _number(operation.history_length),
                        **self._wait[operation.waits],
                    }
                )
                params: dict[str, Payload] = {
                    "message": encode(message),
                    "configuration": configuration if configuration != b"{}" else b"",
                    "metadata": operation.metadata,
                }
                method = "stream" if operation.is_stream else "send"
            case GetTask():
                params = {"id": encode(operation.task), "historyLength": _number(operation.history_length)}
                method = "get"
            case CancelTask():
                params, method = {"id": encode(operation.task), "metadata": operation.metadata}, "cancel"
            case _:
                params, method = {"id": encode(operation.task)}, "subscribe"
        if self._methods is None:
            return "", _params(params) if isinstance(operation, SendMessage) else b"{}"
        return getattr(self._methods, method), _params(params)

    def read_task(self, result: Payload) -> Task | A2aProblem:
        """Read the result of `GetTask` and `CancelTask`."""
        return _read_as(self.dialect.task_decoder, result, self.dialect.read_task)

    def read_update(self, result: Payload) -> Update | A2aProblem:
        """Read a stream event."""
        return _read_as(self.dialect.update_decoder, result, self.dialect.read_update) or _unexpected("it is empty")


class ClientV10(A2aClient):
    """1.0, over JSON-RPC and plain HTTP."""

    version = "1.0"
    card_method = "GetExtendedAgentCard"
    card_path = "/extendedAgentCard"
    _methods = _MethodNames("SendMessage", "SendStreamingMessage", "GetTask", "CancelTask", "SubscribeToTask")
    dialect = v1_0.DIALECT
    _wait: Mapping[bool, Mapping[str, bytes]] = {True: {}, False: {"returnImmediately": b"true"}}


class ClientV03(A2aClient):
    """0.3 over JSON-RPC; agents of 0.2 understand it, too."""

    version = "0.3"
    card_method = "agent/getAuthenticatedExtendedCard"
    _methods = _MethodNames("message/send", "message/stream", "tasks/get", "tasks/cancel", "tasks/resubscribe")
    dialect = v0_3.DIALECT


class RestClientV03(A2aClient):
    """0.3 over plain HTTP, with the objects of its protobuf."""

    version = "0.3"
    prefix = "/v1"
    card_path = "/card"
    dialect = v0_3_rest.DIALECT


def client_of(version: str) -> ClientV10 | ClientV03 | None:
    """The JSON-RPC client for agents of this version; None if the hub does not speak it."""
    generation = ".".join(version.split(".")[:2])
    if generation == "1.0":
        return ClientV10()
    return ClientV03() if generation in ("0.3", "0.2") else None


def read_sent(client: A2aClient, result: Payload) -> Task | Message | A2aProblem:
    """Read the result of `SendMessage`."""
    update = client.read_update(result)
    return update if isinstance(update, Task | Message | A2aProblem) else _unexpected("it is neither task nor message")


# -- bindings ----------------------------------------------------------------------------------------------------------


class ClientRequest(NamedTuple):
    """A request: its HTTP method, the path below the agent's URL, and its body."""

    verb: str
    path: str
    body: bytes | None


class ClientBinding(Protocol):
    """The requests and responses of one generation over one kind of interface."""

    version: str
    """The value of the version header."""

    def write(self, id: int, operation: ClientOperation) -> ClientRequest:
        """The request for an operation."""

    def read(self, id: int, operation: ClientOperation, status: int, body: bytes) -> Task | Message | A2aProblem:
        """Read the response to an operation."""

    def read_event(self, id: int, event: SseEvent) -> Update | A2aProblem:
        """Read an event of a stream."""

    def write_card(self, id: int) -> ClientRequest:
        """The request for the extended card."""

    def read_card(self, id: int, status: int, body: bytes) -> Payload | A2aProblem:
        """The JSON of the extended card."""


def _read_result(
    client: A2aClient, operation: ClientOperation, result: Payload | A2aProblem
) -> Task | Message | A2aProblem:
    if isinstance(result, A2aProblem):
        return result
    return read_sent(client, result) if isinstance(operation, SendMessage) else client.read_task(result)


class RpcClientBinding:
    """JSON-RPC: every request goes to one URL, and results are the same in responses and streams."""

    def __init__(self, client: A2aClient, tenant: str = "", max_depth: int = MAX_DEPTH) -> None:
        self.version = client.version
        self._client = client
        self._tenant = msgspec.json.encode(tenant) if tenant else b""
        self._max_depth = max_depth

    def write(self, id: int, operation: ClientOperation) -> ClientRequest:
        """The request for an operation."""
        method, params = self._client.write(operation)
        if self._tenant:
            params = b'{"tenant":%b,%b' % (self._tenant, params.removeprefix(b"{"))
        return ClientRequest("POST", "", jsonrpc.request(id, method, params))

    def read(self, id: int, operation: ClientOperation, status: int, body: bytes) -> Task | Message | A2aProblem:
        """Read the response to an operation."""
        return _read_result(self._client, operation, self._result(id, status, body))

    def read_event(self, id: int, event: SseEvent) -> Update | A2aProblem:
        """Read an event of a stream."""
        result = self._result(id, OK, event.data)
        return result if isinstance(result, A2aProblem) else self._client.read_update(result)

    def write_card(self, id: int) -> ClientRequest:
        """The request for the extended card."""
        params = b'{"tenant":%b}' % self._tenant if self._tenant else b"{}"
        return ClientRequest("POST", "", jsonrpc.request(id, self._client.card_method, params))

    def read_card(self, id: int, status: int, body: bytes) -> Payload | A2aProblem:
        """The JSON of the extended card."""
        return self._result(id, status, body)

    def _result(self, id: int, status: int, body: bytes) -> Payload | A2aProblem:
        message = jsonrpc.decode_reply(body, max_depth=self._max_depth)
        own_id = b"%d" % id
        if isinstance(message, ErrorReply) and (message.id is None or bytes(message.id) == own_id):
            return read_problem(message.code, message.message, message.data)
        if not isinstance(message, Response):
            return unusable(f"HTTP {status} without a usable JSON-RPC answer")
        return message.result if bytes(message.id) == own_id else unusable("the response has the id of another request")


class RestClientBinding:
    """Plain HTTP: each operation has its own method and path."""

    def __init__(self, client: A2aClient, tenant: str = "", max_depth: int = MAX_DEPTH) -> None:
        self.version = client.version
        self._client = client
        self._prefix = (f"/{escape_segment(tenant)}" if tenant else "") + client.prefix
        self._max_depth = max_depth

    def write(self, id: int, operation: ClientOperation) -> ClientRequest:
        """The request for an operation."""
        if isinstance(operation, SendMessage):
            verb, path = "POST", "/message:stream" if operation.is_stream else "/message:send"
        else:
            task = f"/tasks/{escape_segment(operation.task)}"
            match operation:
                case GetTask(history_length=None):
                    verb, path = "GET", task
                case GetTask(history_length=length):
                    verb, path = "GET", f"{task}?historyLength={length}"
                case CancelTask():
                    verb, path = "POST", f"{task}:cancel"
                case _:
                    verb, path = "GET", f"{task}:subscribe"
        body = self._client.write(operation)[1] if verb == "POST" else None
        return ClientRequest(verb, self._prefix + path, body)

    def read(self, id: int, operation: ClientOperation, status: int, body: bytes) -> Task | Message | A2aProblem:
        """Read the response to an operation."""
        value = self._checked(body) if status == OK else _refusal(status, body)
        return _read_result(self._client, operation, value)

    def read_event(self, id: int, event: SseEvent) -> Update | A2aProblem:
        """Read an event of a stream."""
        if event.event == "error":
            return _refusal(OK, event.data)
        value = self._checked(event.data)
        return value if isinstance(value, A2aProblem) else self._client.read_update(value)

    def write_card(self, id: int) -> ClientRequest:
        """The request for the extended card."""
        return ClientRequest("GET", self._prefix + self._client.card_path, None)

    def read_card(self, id: int, status: int, body: bytes) -> Payload | A2aProblem:
        """The JSON of the extended card."""
        return self._checked(body) if status == OK else _refusal(status, body)

    def _checked(self, body: bytes) -> Payload | A2aProblem:
        value = jsonrpc.decode_object(body, max_depth=self._max_depth, max_values=None)
        return unusable(value.message) if isinstance(value, Malformed) else value


def escape_segment(text: str) -> str:
    """Escape one segment of a path, so that an id from an agent cannot point outside the agent's URL.

    `.` and `..` would be steps in the path even if they were escaped once. No task has such an id.
    """
    return text.replace(".", "%252E") if text in (".", "..") else quote(text, safe="")


def _refusal(status: int, body: bytes) -> A2aProblem:
    """An agent's HTTP error. Its code is that of 1.0 for the kind of problem."""
    problem = read_http_error(body)
    if problem.kind == "invalid_agent_response" and CODE not in problem.details:
        return unusable(f"HTTP {status} without a usable answer")
    return msgspec.structs.replace(problem, details={**problem.details, CODE: str(PROBLEMS[problem.kind].code)})
