"""The list of a caller's tasks, and hearing how they stand: each caller its own, whatever ids its servers count."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fork_server import quick_isthmus
from tests.frontends import task_server
from tests.frontends.wire import (
    BASE,
    SECONDS,
    Wire,
    connected,
    encoded,
    key_header,
    legacy,
    modern_headers,
    rendered,
    until,
)
from tests.hubs import META, PATIENT, HubProcess, environment, serving, stdio, write_config

ONE, OTHER, SOME = "key-of-one-who-may-everything", "key-of-another-who-may-too", "key-of-one-who-may-one"
CALLERS = {
    "one": {"key": ONE, "allow": ["*"]},
    "other": {"key": OTHER, "allow": ["*"]},
    "some": {"key": SOME, "allow": ["a.*"]},
}
RELATED = task_server.RELATED
STATUS = task_server.STATUS
VERSION = "2025-11-25"
SHARED_PROCESS = pytest.mark.one_process("two callers use one process of the server; each node has its own")
HELLO = {"protocolVersion": VERSION, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}


def server(era: str = "legacy", **more: Any) -> dict[str, Any]:
    return stdio([sys.executable, task_server.__file__, era], placement="node", **more)


@asynccontextmanager
async def hub_with(folder: Path, **servers: Any) -> AsyncIterator[HubProcess]:
    async with serving(folder, servers, callers=CALLERS, limits=PATIENT) as hub:
        yield hub
    assert not [line for line in hub.said if "Traceback" in line]


class SessionClient:
    """A caller of the earlier era in a session over Streamable HTTP."""

    def __init__(self, wire: Wire, ear: Wire, key: str, path: str) -> None:
        self._wire = wire
        self._ear = ear
        self._heard = events(ear)
        self._path = path
        self.headers = [*BASE, *key_header(key)]

    async def open(self) -> None:
        """Begin the session."""
        reply = await self._wire.request(encoded(legacy("initialize", HELLO)), self.headers, path=self._path)
        self.headers.append(("mcp-session-id", reply.headers["mcp-session-id"]))

    async def listen(self) -> None:
        """Open the stream for what belongs to no request; when this returns, it is."""
        await self._ear.say(rendered("GET", self._path, self.headers))
        assert (await self._ear.head())[0] == 200

    async def ask(self, method: str, params: dict[str, Any] | None = None) -> Any:
        """Ask, and return the answer."""
        return (await self.ask_all(method, params))[-1]

    async def ask_all(self, method: str, params: dict[str, Any] | None = None) -> list[Any]:
        """Ask, and return what preceded the answer as well."""
        reply = await self._wire.request(encoded(legacy(method, params or {})), self.headers, path=self._path)
        return reply.events if "event-stream" in reply.headers["content-type"] else [reply.json]

    async def create(self, tool: str = "a.slow") -> str:
        """Have a tool run as a task; returns the id."""
        params = {"name": tool, "arguments": {}, "task": {"ttl": 600_000}}
        id: str = (await self.ask("tools/call", params))["result"]["task"]["taskId"]
        return id

    async def do(self, server: str, what: str, **more: Any) -> Any:
        """Have a server do something."""
        return await self.ask("tools/call", {"name": f"{server}.do", "arguments": {"what": what, **more}})

    async def set_status(self, id: str, status: str) -> None:
        """Make the server report this status of a task."""
        await self.do(id.rpartition("~")[2].partition(".")[0], "tell", taskId=own(id), status=status)

    async def listed(self) -> list[tuple[str, str]]:
        """What is on the first page."""
        page = (await self.ask("tasks/list"))["result"]
        return [(task["taskId"], task["status"]) for task in page["tasks"]]

    async def receive(self) -> Any:
        """The next message on the stream."""
        async with asyncio.timeout(SECONDS):
            return await anext(self._heard)


async def data(wire: Wire) -> AsyncIterator[bytes]:
    """What the events of a stream say."""
    async for chunk in wire.chunks():
        for line in chunk.splitlines():
            if line.startswith(b"data:") and (said := line[5:].strip()):
                yield said


async def events(wire: Wire) -> AsyncIterator[Any]:
    """The messages of a stream."""
    async for said in data(wire):
        yield json.loads(said)


@asynccontextmanager
async def open_client(
    hub: HubProcess, key: str, path: str = "/mcp", *, listens: bool = True
) -> AsyncIterator[SessionClient]:
    async with connected(hub.port) as wire, connected(hub.port) as ear:
        session_client = SessionClient(wire, ear, key, path)
        await session_client.open()
        if listens:
            await session_client.listen()
        yield session_client


def own(id: str) -> str:
    """What a task's server calls it."""
    text = id.split(".")[1]
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()


def status_of(message: Any) -> tuple[str, str, str]:
    return message["method"], message["params"]["taskId"], message["params"]["status"]


# -- the list ------------------------------------------------------------------------------------------------------


async def test_everybody_is_listed_its_own_tasks_as_they_stand_now(tmp_path: Path) -> None:
    async with (
        hub_with(tmp_path, a=server(), b=server()) as hub,
        open_client(hub, ONE) as one,
        open_client(hub, OTHER) as other,
        open_client(hub, ONE, "/mcp/b") as at_b,
    ):
        first, second = await one.create("a.slow"), await one.create("b.slow")
        others = await other.create("a.slow")
        assert await one.listed() == [(first, "working"), (second, "working")]
        assert await other.listed() == [(others, "working")]
        assert await at_b.listed() == [(second, "working")]
        await one.ask("tasks/cancel", {"taskId": first})
        asked = await one.ask("tools/call", {"name": "a.seen", "arguments": {}})
        assert await one.listed() == [(first, "cancelled"), (second, "working")]
        assert await one.ask("tools/call", {"name": "a.seen", "arguments": {}}) == asked


async def test_tasks_that_the_server_forgot_are_not_listed(tmp_path: Path) -> None:
    async with hub_with(tmp_path, a=server(), b=server()) as hub, open_client(hub, ONE) as one:
        await one.create("a.slow")
        kept = await one.create("b.slow")
        await one.do("a", "forget")
        assert await one.listed() == [(kept, "working")]


async def test_a_silent_server_does_not_spoil_the_page(tmp_path: Path) -> None:
    async with hub_with(tmp_path, a=server(), b=server()) as hub, open_client(hub, ONE) as one:
        silent, other = await one.create("a.slow"), await one.create("b.slow")
        await one.do("a", "hush")
        await one.ask("tasks/cancel", {"taskId": other})
        assert await one.listed() == [(silent, "working"), (other, "cancelled")]


async def test_pages_follow_one_another_to_the_end(tmp_path: Path) -> None:
    async with hub_with(tmp_path, a=server()) as hub, open_client(hub, ONE) as one:
        ids = [await one.create() for _ in range(70)]
        pages: list[list[str]] = []
        params: dict[str, Any] = {}
        while True:
            page = (await one.ask("tasks/list", params))["result"]
            pages.append([task["taskId"] for task in page["tasks"]])
            if "nextCursor" not in page:
                break
            params = {"cursor": page["nextCursor"]}
        assert [len(page) for page in pages] == [50, 20]
        assert [id for page in pages for id in page] == ids
        for wrong in ("", "x", "MTA", 7, "eyJ9"):
            assert (await one.ask("tasks/list", {"cursor": wrong}))["error"]["code"] == -32602


async def test_the_list_and_its_ids_outlive_a_reload(tmp_path: Path) -> None:
    servers = {"a": server()}
    async with hub_with(tmp_path, **servers) as hub, open_client(hub, ONE) as one:
        id = await one.create()
        write_config(tmp_path, {**servers, "b": server()}, callers=CALLERS, limits=PATIENT)
        assert (await one.receive())["method"] == "notifications/tools/list_changed"
        assert await one.listed() == [(id, "working")]
        assert (await one.ask("tasks/get", {"taskId": id}))["result"]["taskId"] == id


# -- announcements -------------------------------------------------------------------------------------------------


@SHARED_PROCESS
async def test_only_its_own_caller_gets_the_status_of_a_task(tmp_path: Path) -> None:
    async with hub_with(tmp_path, a=server()) as hub, open_client(hub, ONE) as one, open_client(hub, OTHER) as other:
        mine, others = await one.create(), await other.create()
        await other.set_status(mine, "input_required")
        assert status_of(await one.receive()) == (STATUS, mine, "input_required")
        await one.set_status(others, "completed")
        assert status_of(await other.receive()) == (STATUS, others, "completed")
        await one.set_status(mine, "completed")
        assert status_of(await one.receive()) == (STATUS, mine, "completed")


async def test_processes_that_count_alike_are_not_confused(tmp_path: Path) -> None:
    async with (
        hub_with(tmp_path, a=server(isolation="caller")) as hub,
        open_client(hub, ONE) as one,
        open_client(hub, OTHER) as other,
    ):
        mine, others = await one.create(), await other.create()
        assert (own(mine), own(others)) == ("task-1", "task-1")
        await one.set_status(mine, "input_required")
        await other.set_status(others, "failed")
        assert status_of(await one.receive()) == (STATUS, mine, "input_required")
        assert status_of(await other.receive()) == (STATUS, others, "failed")
        assert await one.listed() == [(mine, "input_required")]
        assert await other.listed() == [(others, "failed")]


@SHARED_PROCESS
async def test_a_task_id_does_not_match_a_task_of_a_new_process(tmp_path: Path) -> None:
    async with hub_with(tmp_path, a=server()) as hub, open_client(hub, ONE) as one, open_client(hub, OTHER) as other:
        mine = await one.create()
        assert "error" in await one.do("a", "die")

        async def is_back() -> bool:
            asked = [await client.ask("tools/call", {"name": "a.seen", "arguments": {}}) for client in (one, other)]
            return all("result" in answer for answer in asked)

        await until(is_back)
        others = await other.create()
        assert own(mine) == own(others)
        for method in ("tasks/get", "tasks/cancel", "tasks/result"):
            assert (await one.ask(method, {"taskId": mine}))["error"]["message"] == "Task not found"
        assert (await one.listed(), await other.listed()) == ([], [(others, "working")])
        await other.set_status(others, "completed")
        assert status_of(await other.receive()) == (STATUS, others, "completed")
        again = await one.create()
        await one.set_status(again, "completed")
        assert status_of(await one.receive()) == (STATUS, again, "completed")


async def test_a_session_gets_missed_notifications_when_it_listens(tmp_path: Path) -> None:
    async with hub_with(tmp_path, a=server()) as hub, open_client(hub, ONE, listens=False) as one:
        id = await one.create()
        await one.set_status(id, "input_required")
        await one.set_status(id, "completed")
        await one.listen()
        assert status_of(await one.receive()) == (STATUS, id, "completed")


async def test_on_the_stream_of_the_earlier_transport_a_caller_gets_it_too(tmp_path: Path) -> None:
    async with hub_with(tmp_path, a=server()) as hub, connected(hub.port) as wire, connected(hub.port) as back:
        headers = [*BASE, *key_header(ONE)]
        await wire.say(rendered("GET", "/sse", headers))
        assert (await wire.head())[0] == 200
        said = data(wire)
        path = (await anext(said)).decode()

        async def ask(message: dict[str, Any]) -> Any:
            assert (await back.request(encoded(message), headers, path=path)).status == 202
            async with asyncio.timeout(SECONDS):
                return json.loads(await anext(said)) if "id" in message else None

        await ask(legacy("initialize", HELLO))
        await ask(legacy("notifications/initialized", id=None))
        created = await ask(legacy("tools/call", {"name": "a.slow", "arguments": {}, "task": {}}))
        id = created["result"]["task"]["taskId"]
        arguments = {"what": "tell", "taskId": own(id), "status": "completed"}
        response = await ask(legacy("tools/call", {"name": "a.do", "arguments": arguments}))
        assert status_of(response) == (STATUS, id, "completed")


async def test_over_standard_streams_a_caller_gets_it_too(tmp_path: Path) -> None:
    config = write_config(tmp_path, {"a": server()}, limits=PATIENT)
    process = await asyncio.create_subprocess_exec(
        *quick_isthmus("stdio", "--config", str(config)),
        stdin=-1,
        stdout=-1,
        stderr=-3,
        env=environment(),
        cwd=tmp_path,
    )
    assert process.stdin is not None
    assert process.stdout is not None

    def say(message: dict[str, Any]) -> None:
        assert process.stdin is not None
        process.stdin.write(encoded(message) + b"\n")

    async def hear() -> Any:
        assert process.stdout is not None
        async with asyncio.timeout(SECONDS):
            return json.loads(await process.stdout.readline())

    try:
        say(legacy("initialize", HELLO))
        assert (await hear())["result"]["capabilities"]["tasks"]["list"] == {}
        say(legacy("notifications/initialized", id=None))
        say(legacy("tools/call", {"name": "a.slow", "arguments": {}, "task": {}}))
        id = (await hear())["result"]["task"]["taskId"]
        arguments = {"what": "tell", "taskId": own(id), "status": "completed"}
        say(legacy("tools/call", {"name": "a.do", "arguments": arguments}))
        assert status_of(await hear()) == (STATUS, id, "completed")
    finally:
        process.stdin.close()
        await asyncio.wait_for(process.wait(), SECONDS)


async def test_related_messages_use_each_ends_own_task_id(tmp_path: Path) -> None:
    async with hub_with(tmp_path, a=server()) as hub, open_client(hub, ONE) as one:
        id = await one.create()
        meta = {"progressToken": 5, RELATED: {"taskId": id, "x": 1}}
        params = {"name": "a.do", "arguments": {"what": "tell", "taskId": own(id), "status": "working"}, "_meta": meta}
        progress, answer = await one.ask_all("tools/call", params)
        assert progress["params"]["_meta"] == {RELATED: {"taskId": id}}
        seen = answer["result"]["structuredContent"]["meta"]
        assert seen[RELATED] == {"taskId": own(id), "x": 1}
        meta[RELATED] = {"taskId": "made up"}
        answer = await one.ask("tools/call", params)
        assert RELATED not in answer["result"]["structuredContent"]["meta"]


async def test_progress_of_a_task_reaches_the_conversation_that_asked_for_it_under_its_token(tmp_path: Path) -> None:
    async with hub_with(tmp_path, a=server()) as hub, open_client(hub, ONE) as one, open_client(hub, ONE) as another:
        params = {"name": "a.slow", "arguments": {}, "task": {}, "_meta": {"progressToken": "mine"}}
        id = (await one.ask("tools/call", params))["result"]["task"]["taskId"]
        await one.set_status(id, "input_required")
        assert status_of(await one.receive()) == (STATUS, id, "input_required")
        progress = await one.receive()
        assert progress["method"] == "notifications/progress"
        assert progress["params"] == {"progressToken": "mine", "progress": 1, "_meta": {RELATED: {"taskId": id}}}
        await one.set_status(id, "completed")
        assert [status_of(await another.receive())[2] for _ in range(2)] == ["input_required", "completed"]


# -- 2026-07-28 ----------------------------------------------------------------------------------------------------

KNOWS = {**META, "io.modelcontextprotocol/clientCapabilities": {"extensions": {task_server.TASKS: {}}}}


async def ask_modern(hub: HubProcess, method: str, params: dict[str, Any], key: str, name: str) -> Any:
    async with connected(hub.port) as wire:
        headers = [*modern_headers(method, name), *key_header(key)]
        return (await wire.request(encoded(legacy(method, {**params, "_meta": KNOWS})), headers)).json


async def create_modern(hub: HubProcess, key: str) -> str:
    created = await ask_modern(hub, "tools/call", {"name": "new.slow", "arguments": {}}, key, "new.slow")
    id: str = created["result"]["taskId"]
    return id


@asynccontextmanager
async def following(hub: HubProcess, key: str, ids: list[str]) -> AsyncIterator[AsyncIterator[Any]]:
    """A subscription to tasks: its messages, the acknowledgement first."""
    body = encoded(legacy("subscriptions/listen", {"notifications": {"taskIds": ids}, "_meta": KNOWS}, id="s"))
    headers = [*modern_headers("subscriptions/listen"), *key_header(key), ("content-length", str(len(body)))]
    async with connected(hub.port) as wire:
        await wire.say(rendered("POST", "/mcp", headers, body))
        assert (await wire.head())[0] == 200
        yield events(wire)


@SHARED_PROCESS
async def test_a_modern_caller_gets_the_status_of_its_own_tasks_that_it_follows(tmp_path: Path) -> None:
    async with hub_with(tmp_path, new=server("modern")) as hub:
        mine, others = await create_modern(hub, ONE), await create_modern(hub, OTHER)
        async with following(hub, ONE, [mine, others, "made up"]) as received, asyncio.timeout(SECONDS):
            assert (await anext(received))["params"]["notifications"]["taskIds"] == [mine]
            first = await anext(received)
            assert status_of(first) == ("notifications/tasks", mine, "working")
            assert first["params"]["_meta"] == {"io.modelcontextprotocol/subscriptionId": "s"}
            assert "resultType" not in first["params"]
            arguments = {"what": "tell", "taskId": own(mine), "status": "completed"}
            await ask_modern(hub, "tools/call", {"name": "new.do", "arguments": arguments}, OTHER, "new.do")
            last = await anext(received)
            assert status_of(last) == ("notifications/tasks", mine, "completed")
            assert last["params"]["result"]["content"] == task_server.DONE["content"]


async def test_a_client_without_the_extension_cannot_follow_tasks(tmp_path: Path) -> None:
    async with hub_with(tmp_path, new=server("modern")) as hub, connected(hub.port) as wire:
        params = {"notifications": {"taskIds": ["x"]}, "_meta": META}
        headers = [*modern_headers("subscriptions/listen"), *key_header(ONE)]
        reply = await wire.request(encoded(legacy("subscriptions/listen", params)), headers)
        assert (reply.status, reply.code) == (400, -32021)
        assert reply.json["error"]["data"] == {"requiredCapabilities": {"extensions": {task_server.TASKS: {}}}}
