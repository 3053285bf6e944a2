"""Every way to call a tool, as one function each, with the names listed there and answers without random parts."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import grpc
from google.protobuf import json_format

from isthmus.model.callers import FrontendName
from tests.frontends.test_a2a_grpc import address, call
from tests.frontends.wire import (
    BASE,
    Reply,
    Wire,
    connected,
    encoded,
    key_header,
    legacy,
    modern,
    modern_headers,
    until,
)
from tests.hubs import HubProcess
from tests.security.permitted import SERVERS, TOOLS, key_of


@dataclass(frozen=True, slots=True)
class VisibleReply:
    """An answer as its caller sees it, without what is chance and without the name that it asked for."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: str
    meant: frozenset[str] = field(default=frozenset(), compare=False)
    """Other names that the answer offers instead."""

    @property
    def has_run(self) -> bool:
        """Whether a server did something for it."""
        return "ran NAME" in self.body


_CHANCE = re.compile(
    r"[0-9a-f]{8}-[0-9a-f-]{27}|[0-9a-f]{32}|\b[0-9a-f]{16}\b|\d{4}-\d\d-\d\dT[\d:.]+(?:Z|\+00:00)"
    r"|the-\w+-\d{6}|[\w-]{32}\b"
)


_MEANT = re.compile(r"; did you mean (.*?)\?")


def visible_reply(reply: Reply, *names: str) -> VisibleReply:
    text = reply.body.decode()
    # What was meant instead is guessed from the caller's own list and from what it wrote, and is as long as that.
    told_apart = ("date", "content-length") if _MEANT.search(text) else ("date",)
    headers = {name: value for name, value in reply.headers.items() if name not in told_apart}
    return VisibleReply(reply.status, tuple(sorted(headers.items())), cleaned(text, *names), suggested(text))


def lengthless(answer: VisibleReply) -> VisibleReply:
    """The same answer whether or not something could have been meant instead."""
    return replace(answer, headers=tuple(pair for pair in answer.headers if pair[0] != "content-length"))


def suggested(text: str) -> frozenset[str]:
    return frozenset(name for found in _MEANT.findall(text) for name in found.split(" or "))


def cleaned(text: str, *names: str) -> str:
    text = _MEANT.sub("", text)
    for name in sorted(names, key=len, reverse=True):
        text = text.replace(name, "NAME")
    return _CHANCE.sub("CHANCE", text)


class CallerConnection:
    """One caller at the hub, with a connection for everything but streams."""

    def __init__(self, hub: HubProcess, wire: Wire, caller: str, channel: Any) -> None:
        self.hub = hub
        self.wire = wire
        self.caller = caller
        self.channel = channel
        self.key = key_header(key_of(caller))
        self._ids = itertools.count()
        self.session: list[tuple[str, str]] = []
        self.sse: Sse | None = None

    @property
    def id(self) -> str:
        return f"the-{'message'}-{next(self._ids):06d}"

    async def post(self, body: Any, path: str = "/mcp", headers: Any = BASE, method: str = "POST") -> Reply:
        content = b"" if body is None else encoded(body)
        return await self.wire.request(content, [*headers, *self.key], path=path, method=method)

    async def get(self, path: str) -> Reply:
        return await self.wire.request(b"", [*BASE, *self.key], path=path, method="GET")

    async def begin_session(self) -> None:
        client = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        reply = await self.post(legacy("initialize", client))
        self.session = [*BASE, ("mcp-session-id", reply.headers["mcp-session-id"])]
        await self.post(legacy("notifications/initialized", id=None), headers=self.session)


class Sse:
    """The stream of the earlier transport."""

    def __init__(self, wire: Wire, chunks: AsyncIterator[bytes]) -> None:
        self.wire = wire
        self._chunks = chunks
        self._rest = b""
        self.endpoint = ""

    async def event(self) -> str:
        while b"\n\n" not in self._rest.replace(b"\r\n", b"\n"):
            async with asyncio.timeout(20):
                self._rest += await anext(self._chunks)
        event, _, self._rest = self._rest.replace(b"\r\n", b"\n").partition(b"\n\n")
        data = [line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:")]
        return b"".join(data).decode() if data else await self.event()


@asynccontextmanager
async def sse_of(connection: CallerConnection) -> AsyncIterator[Sse]:
    async with connected(connection.hub.port) as wire:
        headers = [("host", "localhost"), ("accept", "text/event-stream"), *connection.key, ("content-length", "0")]
        lines = "\r\n".join(["GET /sse HTTP/1.1", *(f"{name}: {value}" for name, value in headers), "", ""])
        await wire.say(lines.encode())
        await wire.head()
        stream = Sse(wire, wire.chunks())
        stream.endpoint = await stream.event()
        yield stream


Calling: TypeAlias = Callable[[CallerConnection, str, str], Awaitable[VisibleReply]]
"""Calls a tool of a server by a connection."""
Listing: TypeAlias = Callable[[CallerConnection], Awaitable[set[str]]]


def names_in(reply: Reply, member: str = "tools", key: str = "name") -> set[str]:
    body = reply.json.get("result", reply.json)
    return {each[key] for each in body[member] if not each[key].startswith("builtin.")}


async def modern_call(connection: CallerConnection, server: str, tool: str) -> VisibleReply:
    name = f"{server}.{tool}"
    body = modern("tools/call", {"name": name, "arguments": {}})
    return visible_reply(await connection.post(body, headers=modern_headers("tools/call", name)), name)


async def modern_list(connection: CallerConnection) -> set[str]:
    return names_in(await connection.post(modern("tools/list"), headers=modern_headers("tools/list")))


async def legacy_call(connection: CallerConnection, server: str, tool: str) -> VisibleReply:
    name = f"{server}.{tool}"
    return visible_reply(await connection.post(legacy("tools/call", {"name": name, "arguments": {}})), name)


async def legacy_list(connection: CallerConnection) -> set[str]:
    return names_in(await connection.post(legacy("tools/list")))


async def own_call(connection: CallerConnection, server: str, tool: str) -> VisibleReply:
    body = legacy("tools/call", {"name": tool, "arguments": {}})
    return visible_reply(await connection.post(body, path=f"/mcp/{server}"), f"{server}.{tool}", tool)


async def own_list(connection: CallerConnection) -> set[str]:
    found: set[str] = set()
    for server in SERVERS:
        reply = await connection.post(legacy("tools/list"), path=f"/mcp/{server}")
        found |= {f"{server}.{tool}" for tool in names_in(reply)} if reply.status == 200 else set()
    return found


async def session_call(connection: CallerConnection, server: str, tool: str) -> VisibleReply:
    name = f"{server}.{tool}"
    reply = await connection.post(legacy("tools/call", {"name": name, "arguments": {}}), headers=connection.session)
    return visible_reply(reply, name)


async def session_list(connection: CallerConnection) -> set[str]:
    return names_in(await connection.post(legacy("tools/list"), headers=connection.session))


async def task_call(connection: CallerConnection, server: str, tool: str) -> VisibleReply:
    """The same as a task of the earlier era, and then its result."""
    name = f"{server}.{tool}"
    body = legacy("tools/call", {"name": name, "arguments": {}, "task": {"ttl": 60_000}})
    reply = await connection.post(body, headers=connection.session)
    made = reply.json.get("result", {}).get("task")
    if made is None:
        return visible_reply(reply, name)
    asked = legacy("tasks/result", {"taskId": made["taskId"]})
    return visible_reply(await connection.post(asked, headers=connection.session), name)


async def sse_call(connection: CallerConnection, server: str, tool: str) -> VisibleReply:
    assert connection.sse is not None
    name = f"{server}.{tool}"
    body = legacy("tools/call", {"name": name, "arguments": {}})
    reply = await connection.post(body, path=connection.sse.endpoint)
    return VisibleReply(reply.status, (), cleaned(await connection.sse.event(), name))


async def sse_list(connection: CallerConnection) -> set[str]:
    assert connection.sse is not None
    await connection.post(legacy("tools/list"), path=connection.sse.endpoint)
    listed = json.loads(await connection.sse.event())["result"]["tools"]
    return {each["name"] for each in listed if not each["name"].startswith("builtin.")}


async def rest_call(connection: CallerConnection, server: str, tool: str) -> VisibleReply:
    name = f"{server}.{tool}"
    return visible_reply(await connection.post({}, path=f"/v1/tools/{name}"), name)


async def rest_list(connection: CallerConnection) -> set[str]:
    return names_in(await connection.get("/v1/tools"))


async def rest_shown(connection: CallerConnection) -> set[str]:
    """What is shown one by one, by every name that there is."""
    shown = [tool for tool in TOOLS if (await connection.get(f"/v1/tools/{tool.server}.{tool.name}")).status == 200]
    return {f"{tool.server}.{tool.name}" for tool in shown}


async def rest_by_server(connection: CallerConnection) -> set[str]:
    found: set[str] = set()
    for server in SERVERS:
        reply = await connection.get(f"/v1/tools?server={server}")
        found |= names_in(reply) if reply.status == 200 else set()
    return found


V1 = [*BASE, ("a2a-version", "1.0")]


async def card_list(connection: CallerConnection) -> set[str]:
    """The skills on the agent's card."""
    card = (await connection.get("/.well-known/agent-card.json")).json
    found = {skill["id"] for skill in card["skills"]}
    return {name for name in found if name.partition(".")[0] in SERVERS}


def a2a(form: str) -> Calling:
    """A message with an instruction in one of its forms, as the newest generation writes it."""

    async def run(connection: CallerConnection, server: str, tool: str) -> VisibleReply:
        name = f"{server}.{tool}"
        forms: dict[str, dict[str, Any]] = {
            "tool": {"parts": [{"data": {"tool": name, "arguments": {}}}]},
            "text": {"parts": [{"text": json.dumps({"tool": name, "arguments": {}})}]},
            "skill": {"parts": [{"data": {}}], "metadata": {"skill": name}},
            "execute": {"parts": [{"data": {"target_mcp_server_id": server, "tool_name": tool, "arguments": {}}}]},
            "command": {
                "parts": [
                    {"data": {"mcp_target_url": server, "mcp_method": "tools/call", "mcp_params": {"name": tool}}}
                ]
            },
        }
        message = {"messageId": connection.id, "role": "ROLE_USER", **forms[form]}
        reply = await connection.post(legacy("SendMessage", {"message": message}), path="/a2a", headers=V1)
        return visible_reply(reply, name, *([server, tool] if form in ("execute", "command") else []))

    return run


async def a2a_plain(connection: CallerConnection, server: str, tool: str) -> VisibleReply:
    name = f"{server}.{tool}"
    message = {"messageId": connection.id, "role": "ROLE_USER", "parts": [{"data": {"tool": name, "arguments": {}}}]}
    return visible_reply(await connection.post({"message": message}, path="/a2a/rest/message:send", headers=V1), name)


async def a2a_0_3(connection: CallerConnection, server: str, tool: str) -> VisibleReply:
    name = f"{server}.{tool}"
    part = {"kind": "data", "data": {"tool": name, "arguments": {}}}
    message = {"kind": "message", "messageId": connection.id, "role": "user", "parts": [part]}
    body = legacy("message/send", {"message": message, "configuration": {"blocking": True}})
    return visible_reply(await connection.post(body, path="/a2a"), name)


async def a2a_0_1(connection: CallerConnection, server: str, tool: str) -> VisibleReply:
    name = f"{server}.{tool}"
    message = {"role": "user", "parts": [{"type": "data", "data": {"tool": name, "arguments": {}}}]}
    return visible_reply(
        await connection.post(legacy("tasks/send", {"id": connection.id, "message": message}), path="/a2a"), name
    )


async def agentvault(connection: CallerConnection, server: str, tool: str) -> VisibleReply:
    """Its answer is an id; how the task went is asked for."""
    name = f"{server}.{tool}"
    message = {"role": "user", "parts": [{"type": "data", "content": {"tool": name, "arguments": {}}}]}
    sent = await connection.post(legacy("tasks/send", {"message": message}), path="/a2a")
    reply = sent

    async def is_done() -> bool:
        nonlocal reply
        reply = await connection.post(legacy("tasks/get", {"id": sent.json["result"]["id"]}), path="/a2a")
        return reply.json["result"]["state"] in ("COMPLETED", "FAILED")

    await until(is_done)
    return visible_reply(reply, name)


async def by_grpc(connection: CallerConnection, server: str, tool: str) -> VisibleReply:
    name = f"{server}.{tool}"
    message = {"messageId": connection.id, "role": "ROLE_USER", "parts": [{"data": {"tool": name, "arguments": {}}}]}
    answer = await call(connection.channel, "SendMessage", {"message": message}, key_of(connection.caller))
    text = json_format.MessageToJson(answer)
    return VisibleReply(0, (), cleaned(text, name), suggested(text))


ENTRIES: dict[str, tuple[FrontendName, Calling, Listing]] = {
    "MCP, modern": ("mcp", modern_call, modern_list),
    "MCP, legacy": ("mcp", legacy_call, legacy_list),
    "MCP, a session": ("mcp", session_call, session_list),
    "MCP, a task": ("mcp", task_call, session_list),
    "MCP, one server": ("mcp", own_call, own_list),
    "SSE": ("sse", sse_call, sse_list),
    "REST": ("rest", rest_call, rest_list),
    "REST, one by one": ("rest", rest_call, rest_shown),
    "REST, by server": ("rest", rest_call, rest_by_server),
    "A2A 1.0": ("a2a", a2a("tool"), card_list),
    "A2A 1.0, as text": ("a2a", a2a("text"), card_list),
    "A2A 1.0, a skill": ("a2a", a2a("skill"), card_list),
    "A2A 1.0, execute": ("a2a", a2a("execute"), card_list),
    "A2A 1.0, command": ("a2a", a2a("command"), card_list),
    "A2A 1.0, plain": ("a2a", a2a_plain, card_list),
    "A2A 0.3": ("a2a", a2a_0_3, card_list),
    "A2A 0.1": ("a2a", a2a_0_1, card_list),
    "AgentVault": ("a2a", agentvault, card_list),
    "gRPC": ("a2a", by_grpc, card_list),
}


@asynccontextmanager
async def connected_caller(hub: HubProcess, caller: str) -> AsyncIterator[CallerConnection]:
    async with AsyncExitStack() as stack:
        wire = await stack.enter_async_context(connected(hub.port))
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(await address(hub)))
        connection = CallerConnection(hub, wire, caller, channel)
        await connection.begin_session()
        connection.sse = await stack.enter_async_context(sse_of(connection))
        yield connection
