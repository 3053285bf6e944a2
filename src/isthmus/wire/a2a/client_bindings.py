"""How agents are spoken to over HTTP: what is asked as a request, and what comes back as updates or a problem.

JSON-RPC posts everything to one address; plain HTTP has a verb and a path for each operation. An agent's word is not
trusted: what cannot be read is a `A2aProblem` without a code, what the agent itself refused has one. Connections and
headers are not its business, but for the version's. Called by the links to agents.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import msgspec

from isthmus.model.conversation import Message, Task, Update
from isthmus.wire import jsonrpc
from isthmus.wire.a2a.client import ClientOperation, A2aClient, RestClient, read_problem, read_status, segment_of
from isthmus.wire.a2a.operations import A2aProblem, SendMessage
from isthmus.wire.a2a.parts import WORDS_MAX
from isthmus.wire.a2a.problems import PROBLEMS
from isthmus.wire.jsonrpc import MAX_DEPTH, ErrorReply, Malformed, Payload, Response
from isthmus.wire.sse import SseEvent

CODE = "code"
"""The detail of a problem that an agent told of: its own number for it."""

OK = 200


class ClientRequest(NamedTuple):
    """A request: its verb, the path behind the interface's own, and its body."""

    verb: str
    path: str
    body: bytes | None


class ClientBinding(Protocol):
    """One generation's words on one kind of interface."""

    version: str
    """What the header says that names it."""

    def write(self, id: int, asked: ClientOperation) -> ClientRequest:
        """The request."""

    def read(self, id: int, asked: ClientOperation, status: int, body: bytes) -> Task | Message | A2aProblem:
        """What it was answered with, if that is one body."""

    def read_event(self, id: int, event: SseEvent) -> Update | A2aProblem:
        """What an event of the stream says that it was answered with."""

    def write_card(self, id: int) -> ClientRequest:
        """The request for the card that those see who prove who they are."""

    def read_card(self, id: int, status: int, body: bytes) -> Payload | A2aProblem:
        """The text of that card."""


class RpcClientBinding:
    """JSON-RPC: the same address for everything, and the same answers in a body and in a stream."""

    def __init__(self, client: A2aClient, tenant: str = "", max_depth: int = MAX_DEPTH) -> None:
        self.version = client.version
        self._client = client
        self._tenant = msgspec.json.encode(tenant) if tenant else b""
        self._max_depth = max_depth

    def write(self, id: int, asked: ClientOperation) -> ClientRequest:
        """The request."""
        method, params = self._client.write(asked)
        if self._tenant:
            params = b'{"tenant":%b,%b' % (self._tenant, params.removeprefix(b"{"))
        return ClientRequest("POST", "", jsonrpc.request(id, method, params))

    def read(self, id: int, asked: ClientOperation, status: int, body: bytes) -> Task | Message | A2aProblem:
        """What it was answered with, if that is one body."""
        result = self._result(id, status, body)
        if isinstance(result, A2aProblem):
            return result
        return self._client.read_sent(result) if isinstance(asked, SendMessage) else self._client.read_task(result)

    def read_event(self, id: int, event: SseEvent) -> Update | A2aProblem:
        """What an event of the stream says that it was answered with."""
        result = self._result(id, OK, event.data)
        return result if isinstance(result, A2aProblem) else self._client.read_update(result)

    def write_card(self, id: int) -> ClientRequest:
        """The request for the card that those see who prove who they are."""
        params = b'{"tenant":%b}' % self._tenant if self._tenant else b"{}"
        return ClientRequest("POST", "", jsonrpc.request(id, self._client.card_method, params))

    def read_card(self, id: int, status: int, body: bytes) -> Payload | A2aProblem:
        """The text of that card."""
        return self._result(id, status, body)

    def _result(self, id: int, status: int, body: bytes) -> Payload | A2aProblem:
        message = jsonrpc.decode_reply(body, max_depth=self._max_depth)
        own = b"%d" % id
        if isinstance(message, ErrorReply) and (message.id is None or bytes(message.id) == own):
            return read_problem(message.code, message.message, message.data)
        if not isinstance(message, Response):
            return unusable(f"HTTP {status} without a usable JSON-RPC answer")
        return message.result if bytes(message.id) == own else unusable("the answer to another request")


class RestClientBinding:
    """HTTP+JSON: a verb and a path for each operation, bodies and events without an envelope."""

    def __init__(self, client: RestClient, tenant: str = "", max_depth: int = MAX_DEPTH) -> None:
        self.version = client.version
        self._client = client
        self._prefix = f"/{segment_of(tenant)}" if tenant else ""
        self._max_depth = max_depth

    def write(self, id: int, asked: ClientOperation) -> ClientRequest:
        """The request."""
        verb, path = self._client.locate(asked)
        body = self._client.write(asked)[1] if verb == "POST" else None
        return ClientRequest(verb, self._prefix + path, body)

    def read(self, id: int, asked: ClientOperation, status: int, body: bytes) -> Task | Message | A2aProblem:
        """What it was answered with, if that is one body."""
        value = self._checked(body)
        if status != OK:
            return _refusal(status, body)
        if isinstance(value, A2aProblem):
            return value
        return self._client.read_sent(value) if isinstance(asked, SendMessage) else self._client.read_task(value)

    def read_event(self, id: int, event: SseEvent) -> Update | A2aProblem:
        """What an event of the stream says that it was answered with."""
        if event.event == "error":
            return _refusal(OK, event.data)
        value = self._checked(event.data)
        return value if isinstance(value, A2aProblem) else self._client.read_update(value)

    def write_card(self, id: int) -> ClientRequest:
        """The request for the card that those see who prove who they are."""
        return ClientRequest("GET", self._prefix + self._client.card_path, None)

    def read_card(self, id: int, status: int, body: bytes) -> Payload | A2aProblem:
        """The text of that card."""
        return self._checked(body) if status == OK else _refusal(status, body)

    def _checked(self, body: bytes) -> Payload | A2aProblem:
        value = jsonrpc.decode_object(body, max_depth=self._max_depth, max_values=None)
        return unusable(value.message) if isinstance(value, Malformed) else value


def _refusal(status: int, body: bytes) -> A2aProblem:
    """An agent's error; without a word that is known, what its HTTP status says."""
    problem = read_status(body)
    if problem.kind == "invalid_agent_response" and CODE not in problem.details:
        return unusable(f"HTTP {status} without a usable answer")
    return msgspec.structs.replace(problem, details={**problem.details, CODE: str(PROBLEMS[problem.kind].code)})


def unusable(why: str) -> A2aProblem:
    """An answer that is none."""
    return A2aProblem("invalid_agent_response", why[:WORDS_MAX])


def code_of(problem: A2aProblem) -> int | None:
    """The number that an agent gave its refusal; None if it is no refusal, but an answer that cannot be read."""
    return int(problem.details[CODE]) if CODE in problem.details else None
