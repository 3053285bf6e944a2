"""An agent over real sockets with scripted answers, in either generation and either binding.

It reads requests and writes answers with the hub's own dialects, which are tested against the official servers.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, Self, TypeAlias

from msgspec import Raw

from isthmus.model.tasks import (
    ABSENT,
    Artifact,
    Message,
    Part,
    Task,
    TaskArtifactUpdate,
    TaskState,
    TaskStatus,
    TaskStatusUpdate,
    TextPart,
    Update,
)
from isthmus.wire import jsonrpc
from isthmus.wire.a2a import rest, v0_3, v1_0
from isthmus.wire.a2a.operations import (
    A2aProblem,
    CancelTask,
    GetExtendedCard,
    GetTask,
    Operation,
    SendMessage,
    SubscribeToTask,
)
from isthmus.wire.a2a.streams import RestStream, RpcStream, UpdateStream
from isthmus.wire.a2a.v1_0 import Dialect
from isthmus.wire.jsonrpc import Request

EVENTS = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
TASK, CONTEXT = "t-1", "c-1"


class HangUp(Exception):
    """The agent closes the connection instead of going on."""


class Kind(NamedTuple):
    """A generation in a binding."""

    version: str = "1.0"
    binding: str = "JSONRPC"


LATEST = Kind()
KINDS = [Kind(version, binding) for version in ("1.0", "0.3") for binding in ("JSONRPC", "HTTP+JSON")]


class Out:
    """The answer to one request, as the test writes it."""

    def __init__(self, writer: asyncio.StreamWriter, stream: UpdateStream, dialect: Dialect, asked: Operation) -> None:
        self._writer = writer
        self._stream = stream
        self._dialect = dialect
        self._asked = asked
        self.envelope: Callable[[bytes], bytes] = lambda body: body
        self.refusal: Callable[[A2aProblem], tuple[int, bytes]] = lambda problem: (500, b"")

    def begin(self) -> None:
        """Begin a stream."""
        self._writer.write(EVENTS)

    def send_updates(self, *updates: Update) -> None:
        """Say something on it."""
        for update in updates:
            self._writer.write(self._stream.write(update))

    def end(self) -> None:
        """End it in good order."""
        raise HangUp

    def encoded(self, *updates: Update) -> bytes:
        """The events that say something."""
        return b"".join(self._stream.write(update) for update in updates)

    def send_some(self, *updates: Update) -> None:
        """Begin a stream that says where it ends, and say something on it."""
        events = self.encoded(*updates)
        self._writer.write(b"%b%x\r\n%b\r\n" % (CHUNKED, len(events), events))

    def answer(self, said: Task | Message) -> None:
        """Answer in one body."""
        write = self._dialect.write_sent if isinstance(self._asked, SendMessage) else self._dialect.write_task
        self.body(self.envelope(bytes(write(said, None))))  # type: ignore[arg-type]

    def refuse(self, problem: A2aProblem) -> None:
        """Answer that it is not done."""
        status, body = self.refusal(problem)
        self.body(body, status)

    def body(self, body: bytes, status: int = 200, **headers: str) -> None:
        """Answer with these bytes."""
        self._writer.write(reply(body, status, headers))

    def raw(self, data: bytes) -> None:
        """Say these bytes."""
        self._writer.write(data)


def reply(body: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> bytes:
    """A whole answer."""
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in (headers or {}).items())
    return f"HTTP/1.1 {status} X\r\ncontent-length: {len(body)}\r\n{lines}\r\n".encode() + body


Script: TypeAlias = Callable[[Any, Out], Awaitable[None]]


class ScriptedAgent:
    """Publishes a card and does with each request what the test says; without a word, it works for ever."""

    def __init__(self, kind: Kind = LATEST, *, can_stream: bool = True) -> None:
        self.kind = kind
        self.can_stream = can_stream
        self.skills: list[dict[str, Any]] = [{"id": "research", "name": "Research", "description": "Looks things up."}]
        self.more_skills: list[dict[str, Any]] | None = None
        """What is in the card for those who prove who they are."""
        self.has_extended = False
        self.extensions: list[dict[str, Any]] = []
        self.card_headers: dict[str, str] = {}
        self.tasks: dict[str, Task] = {}
        self.scripts: dict[type, Script] = {GetTask: self._get, CancelTask: self._cancel, SubscribeToTask: self._hang}
        self.asked: list[Operation] = []
        self.heads: list[str] = []
        self.fetched: list[str] = []
        self.cancelled = asyncio.Event()
        self.may_publish = asyncio.Event()
        self.may_publish.set()
        self.paths: Callable[[str], tuple[int, bytes] | None] = lambda path: None
        """What a GET of a path is answered with in the place of the card."""
        self._conversations: set[asyncio.Task[None]] = set()

    def sent(self) -> list[SendMessage]:
        """The messages that were heard."""
        return [asked for asked in self.asked if isinstance(asked, SendMessage)]

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._converse, "127.0.0.1", 0, limit=1 << 24)
        self.origin = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for conversation in self._conversations:
            conversation.cancel()
        await asyncio.gather(*self._conversations, return_exceptions=True)

    def card(self) -> dict[str, Any]:
        """The card in the words of its generation."""
        place = f"{self.origin}/a2a"
        common = {
            "name": "Agent",
            "description": "An agent.",
            "version": "1",
            "capabilities": {
                "streaming": self.can_stream,
                "extensions": self.extensions,
                "extendedAgentCard": self.has_extended,
            },
            "skills": self.skills,
        }
        version, binding = self.kind
        if version == "1.0":
            interface = {"url": place, "protocolBinding": binding, "protocolVersion": version}
            return {**common, "supportedInterfaces": [interface]}
        return {**common, "url": place, "preferredTransport": binding, "protocolVersion": "0.3.0"}

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        conversation = asyncio.current_task()
        assert conversation is not None
        self._conversations.add(conversation)
        with suppress(asyncio.IncompleteReadError, ConnectionError, HangUp, asyncio.CancelledError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                length = head.lower().partition("content-length: ")[2].partition("\r\n")[0]
                await self._on(head, await reader.readexactly(int(length or 0)), writer)
        writer.close()

    async def _on(self, head: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        verb, target, _ = head.split(" ", 2)
        if verb == "GET" and "/tasks/" not in target and not target.endswith(("/extendedAgentCard", "/v1/card")):
            self.fetched.append(head)
            await self.may_publish.wait()
            status, content = self.paths(target) or (200, json.dumps(self.card()).encode())
            writer.write(reply(content, status, self.card_headers))
            return
        self.heads.append(head)
        out, asked = self._read(verb, target, body, writer)
        if isinstance(asked, GetExtendedCard):
            await self._show_extended(out)
            return
        self.asked.append(asked)
        await self.scripts.get(type(asked), self._hang)(asked, out)

    def _read(self, verb: str, target: str, body: bytes, writer: asyncio.StreamWriter) -> tuple[Out, Operation]:
        if self.kind.binding == "JSONRPC":
            return self._read_rpc(body, writer)
        path, _, query = target.removeprefix("/a2a").partition("?")
        binding, asked = rest.read(verb, path, query, body)
        assert not isinstance(asked, A2aProblem), asked
        out = Out(writer, RestStream(binding), binding.dialect, asked)
        out.refusal = binding.write_problem
        return out, asked

    def _read_rpc(self, body: bytes, writer: asyncio.StreamWriter) -> tuple[Out, Operation]:
        request = jsonrpc.decode(body)
        assert isinstance(request, Request), request
        dialect: Dialect = v1_0.DIALECT if self.kind.version == "1.0" else v0_3.DIALECT
        asked = dialect.read(request.method, request.params)
        assert not isinstance(asked, A2aProblem), asked
        out = Out(writer, RpcStream(dialect, request.id), dialect, asked)
        out.envelope = lambda answer: jsonrpc.result(request.id, answer)
        out.refusal = lambda problem: (200, jsonrpc.error(request.id, *dialect.write_problem(problem)))
        return out, asked

    async def _show_extended(self, out: Out) -> None:
        if self.more_skills is None:
            out.refuse(A2aProblem("card_not_configured", "there is none"))
        else:
            out.body(out.envelope(json.dumps({**self.card(), "skills": self.more_skills}).encode()))

    async def _get(self, asked: GetTask, out: Out) -> None:
        if asked.task in self.tasks:
            out.answer(self.tasks[asked.task])
        else:
            out.refuse(A2aProblem("task_not_found", "there is no such task"))

    async def _cancel(self, asked: CancelTask, out: Out) -> None:
        out.answer(task("canceled"))
        self.cancelled.set()

    async def _hang(self, asked: Operation, out: Out) -> None:
        await asyncio.Event().wait()


# -- what agents say ---------------------------------------------------------------------------------------------------


def says(*parts: Part, id: str = "m") -> Message:
    """A message of the agent's."""
    return Message(id, "agent", parts)


def stands(state: TaskState, *parts: Part, at: float = 1.0) -> TaskStatusUpdate:
    """The task stands so."""
    status = TaskStatus(state, at, says(*parts, id=f"m-{at}") if parts else None)
    return TaskStatusUpdate(TASK, CONTEXT, status, state not in ("submitted", "working"))


def task(state: TaskState, *artifacts: Artifact, message: Message | None = None, **more: Any) -> Task:
    """The whole task."""
    return Task(TASK, CONTEXT, TaskStatus(state, 1.0, message), 1.0, artifacts, **more)


def made(*parts: Part, id: str = "a", is_more: bool = False, metadata: Raw = ABSENT) -> TaskArtifactUpdate:
    """An artifact, or more of one."""
    return TaskArtifactUpdate(TASK, CONTEXT, Artifact(id, parts, metadata=metadata), is_more, is_complete=False)


WORKING = task("working")
DONE = stands("completed")
HELLO = made(TextPart("hello"))


def streaming(*updates: Update) -> Script:
    """Say these on a stream, and end it."""

    async def script(_: Any, out: Out) -> None:
        out.begin()
        out.send_updates(*updates)
        out.end()

    return script


def answering(said: Task | Message) -> Script:
    """Answer so, in one body."""

    async def script(_: Any, out: Out) -> None:
        out.answer(said)

    return script
