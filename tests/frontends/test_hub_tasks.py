"""Tasks that the hub keeps itself, for servers that have none, in both eras and beside those of servers."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from tests.frontends import plain_server, task_server
from tests.frontends.test_task_lists import SessionClient, events
from tests.frontends.wire import (
    BASE,
    SECONDS,
    Reply,
    connected,
    encoded,
    key_header,
    legacy,
    modern_headers,
    rendered,
    until,
)
from tests.hubs import META, NODES, PATIENT, HubProcess, serving, stdio, write_config

pytestmark = pytest.mark.asyncio(loop_scope="module")

ONE, OTHER, SOME = "key-of-one-who-may-everything", "key-of-another-who-may-too", "key-of-one-who-may-one"
LISTENER = "key-of-one-who-listens"
"""For one test alone: a conversation hears of all its caller's tasks, also of what another test left running."""
CALLERS = {
    "one": {"key": ONE, "allow": ["*"]},
    "listener": {"key": LISTENER, "allow": ["*"]},
    "other": {"key": OTHER, "allow": ["*"]},
    "some": {"key": SOME, "allow": ["old.*"]},
}
RELATED, STATUS, TASKS = task_server.RELATED, task_server.STATUS, task_server.TASKS
CLAIMED: dict[str, Any] = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
AFTER = 0.2
"""Seconds after which a modern call becomes a task here."""


class Place:
    """A hub with a plain server, and the folder in which that leaves its traces."""

    def __init__(self, hub: HubProcess, folder: Path) -> None:
        self.hub = hub
        self.folder = folder

    def release(self, nonce: str) -> None:
        """Let a tool that waits go on."""
        (self.folder / f"release-{nonce}").touch()

    def ledger(self) -> list[str]:
        """What the server was asked to do."""
        file = self.folder / "ledger"
        return file.read_text().splitlines() if file.exists() else []

    async def noted(self, line: str) -> None:
        """Wait until the server has noted something."""

        async def is_noted() -> bool:
            return line in self.ledger()

        await until(is_noted)

    async def ask(self, method: str, params: dict[str, Any], *, key: str = ONE, path: str = "/mcp") -> Any:
        """Ask in the earlier era, outside of any conversation."""
        async with connected(self.hub.port) as wire:
            return (await wire.request(encoded(legacy(method, params)), [*BASE, *key_header(key)], path=path)).json

    async def create(self, tool: str, nonce: str, **task: Any) -> str:
        """Have a tool run as a task."""
        params = {"name": f"plain.{tool}", "arguments": {"nonce": nonce}, "task": task}
        state = (await self.ask("tools/call", params))["result"]["task"]
        assert state["status"] == "working"
        id: str = state["taskId"]
        return id

    async def modern(
        self, method: str, params: dict[str, Any], *, key: str = ONE, path: str = "/mcp", can: Any = None
    ) -> Reply:
        """Ask in the modern era, as one that knows tasks unless it `can` do something else."""
        received = {"extensions": {TASKS: {}}} if can is None else can
        meta = {**META, "io.modelcontextprotocol/clientCapabilities": received}
        headers = [*modern_headers(method, params.get("taskId", params.get("name"))), *key_header(key)]
        async with connected(self.hub.port) as wire:
            return await wire.request(encoded(legacy(method, {**params, "_meta": meta})), headers, path=path)

    async def become(self, tool: str, nonce: str, *, can: Any = None) -> str:
        """Have a call become a task."""
        params = {"name": f"plain.{tool}", "arguments": {"nonce": nonce}}
        id: str = (await self.modern("tools/call", params, can=can)).json["result"]["taskId"]
        return id

    async def task_with_status(self, id: str, status: str) -> Any:
        """Poll a task of the modern era until it has this status."""
        found: Any = None

        async def is_so() -> bool:
            nonlocal found
            found = (await self.modern("tasks/get", {"taskId": id})).json["result"]
            return bool(found["status"] == status)

        await until(is_so)
        return found


def servers(folder: Path) -> dict[str, Any]:
    return {
        "plain": stdio([sys.executable, plain_server.__file__, str(folder)], placement="node"),
        "old": stdio([sys.executable, task_server.__file__, "legacy"], placement="node"),
    }


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def place(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Place]:
    folder = tmp_path_factory.mktemp("hub")
    async with serving(folder, servers(folder), callers=CALLERS, limits=PATIENT, tasks={"after": AFTER}) as hub:
        yield Place(hub, folder)
    assert not [line for line in hub.said if "Traceback" in line]


class Guest(SessionClient):
    """A caller of the earlier era in a session, which can be asked."""

    async def open(self, version: str = "2025-11-25", capabilities: Any = None) -> Any:
        """Begin the session; returns what it was greeted with."""
        info = {"name": "t", "version": "1"}
        hello = {"protocolVersion": version, "capabilities": capabilities or {}, "clientInfo": info}
        reply = await self._wire.request(encoded(legacy("initialize", hello)), self.headers, path=self._path)
        self.headers.append(("mcp-session-id", reply.headers["mcp-session-id"]))
        return reply.json["result"]


@asynccontextmanager
async def guest(place: Place, key: str = ONE) -> AsyncIterator[Guest]:
    async with connected(place.hub.port) as wire, connected(place.hub.port) as ear:
        yield Guest(wire, ear, key, "/mcp")


def begun(tool: str, nonce: str) -> dict[str, Any]:
    return {"name": f"plain.{tool}", "arguments": {"nonce": nonce}, "task": {"ttl": 600_000}}


# -- before 2026-07-28 ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "is_offered"), [("2025-11-25", True), ("2025-06-18", False)])
async def test_tools_are_listed_as_tasks_for_clients_with_tasks(
    place: Place, version: str, *, is_offered: bool
) -> None:
    async with guest(place) as one:
        greeted = await one.open(version)
        tools = {tool["name"]: tool for tool in (await one.ask("tools/list"))["result"]["tools"]}
    assert greeted["capabilities"]["tasks"] == CLAIMED  # of the server that has them, if of no other
    assert tools["plain.hold"].get("execution") == ({"taskSupport": "optional"} if is_offered else None)
    assert tools["old.slow"]["execution"] == {"taskSupport": "optional"}
    assert "execution" not in tools["old.do"]  # its server's own word counts


async def test_claimed_task_capabilities_work(place: Place) -> None:
    for version, tasks in (("2025-11-25", CLAIMED), ("2025-06-18", None)):
        hello = {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        response = (await place.ask("initialize", hello, path="/mcp/plain"))["result"]["capabilities"]
        assert response.get("tasks") == tasks
    response = (await place.modern("server/discover", {}, path="/mcp/plain")).json["result"]["capabilities"]
    assert response["extensions"] == {TASKS: {}}


async def test_a_task_is_asked_for_and_comes_to_its_result(place: Place) -> None:
    id = await place.create("hold", "a", ttl=120_000)
    assert len(id) == 32
    state = (await place.ask("tasks/get", {"taskId": id}))["result"]
    assert (state["taskId"], state["status"], state["ttl"]) == (id, "working", 120_000)
    waiting = asyncio.ensure_future(place.ask("tasks/result", {"taskId": id}))
    place.release("a")
    result = (await waiting)["result"]
    assert result == {"content": [{"type": "text", "text": "a"}], "_meta": {RELATED: {"taskId": id}}}
    state = (await place.ask("tasks/get", {"taskId": id}))["result"]
    assert state["status"] == "completed"
    assert state["createdAt"] <= state["lastUpdatedAt"]
    assert (await place.ask("tasks/result", {"taskId": id}))["result"] == result
    assert place.ledger().count("hold a") == 1


async def test_a_failed_task_reports_the_same_error_as_the_call(place: Place) -> None:
    said_no, refused = await place.create("fail", "b"), await place.create("refuse", "b")
    result = (await place.ask("tasks/result", {"taskId": said_no}))["result"]
    assert (result["isError"], result["_meta"]) == (True, {RELATED: {"taskId": said_no}})
    error = (await place.ask("tasks/result", {"taskId": refused}))["error"]
    alike = (await place.ask("tools/call", {"name": "plain.refuse", "arguments": {}}))["error"]
    assert error == alike
    states = [(await place.ask("tasks/get", {"taskId": id}))["result"] for id in (said_no, refused)]
    assert [(state["status"], state.get("statusMessage")) for state in states] == [
        ("failed", None),
        ("failed", "not today"),
    ]
    received = [(await place.modern("tasks/get", {"taskId": id})).json["result"] for id in (said_no, refused)]
    assert [state["status"] for state in received] == ["completed", "failed"]
    assert received[0]["result"]["isError"] is True
    assert received[1]["error"] == error


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        ({"name": "plain.strict", "arguments": {}, "task": {}}, "bad_arguments"),
        ({"name": "plain.nothing", "arguments": {}, "task": {}}, "unknown_tool"),
        ({"name": "plain.echo", "arguments": {}, "task": 5}, None),
        ({"name": "plain.echo", "arguments": {}, "task": {"ttl": "long"}}, None),
        ({"name": "plain.echo", "arguments": {}, "task": {"ttl": -1}}, None),
    ],
)
async def test_a_call_that_cannot_begin_becomes_no_task(
    place: Place, params: dict[str, Any], reason: str | None
) -> None:
    before = (await place.ask("tasks/list", {}, key=OTHER))["result"]["tasks"]
    error = (await place.ask("tools/call", params, key=OTHER))["error"]
    assert error["code"] == -32602
    assert error.get("data", {}).get("reason") == reason
    assert (await place.ask("tasks/list", {}, key=OTHER))["result"]["tasks"] == before


async def test_a_cancelled_task_ends_and_its_server_learns_of_it(place: Place) -> None:
    id = await place.create("hold", "c")
    await place.noted("hold c")
    state = (await place.ask("tasks/cancel", {"taskId": id}))["result"]
    assert (state["taskId"], state["status"]) == (id, "cancelled")
    await place.noted("cancelled the caller cancelled the task")
    again = (await place.ask("tasks/cancel", {"taskId": id}))["error"]
    assert (again["code"], again["message"]) == (-32602, "Cannot cancel the task: it has ended (cancelled)")
    assert (await place.ask("tasks/result", {"taskId": id}))["error"]["data"]["reason"] == "cancelled"


async def test_a_task_is_its_callers_alone(place: Place) -> None:
    id = await place.create("hold", "d")
    strangers = [(OTHER, id, "/mcp"), (SOME, id, "/mcp"), (ONE, id, "/mcp/old"), (ONE, id[:-1] + "g", "/mcp")]
    for key, wrong, path in [*strangers, (ONE, "0" * 32, "/mcp")]:
        for method in ("tasks/get", "tasks/result", "tasks/cancel"):
            error = (await place.ask(method, {"taskId": wrong}, key=key, path=path))["error"]
            assert (error["code"], error["message"]) == (-32602, "Task not found")
        for method in ("tasks/get", "tasks/update", "tasks/cancel"):
            params = {"taskId": wrong, "inputResponses": {}}
            assert (await place.modern(method, params, key=key, path=path)).code == -32602
    listed = (await place.ask("tasks/list", {}, key=SOME))["result"]["tasks"]
    assert listed == []
    state = (await place.ask("tasks/get", {"taskId": id}, path="/mcp/plain"))["result"]
    assert state["status"] == "working"
    place.release("d")


async def test_both_kinds_are_listed_together_and_page_by_page(tmp_path: Path) -> None:
    async with serving(tmp_path, servers(tmp_path), callers=CALLERS, limits=PATIENT) as hub:
        place = Place(hub, tmp_path)
        mine = [await place.create("echo", str(number)) for number in range(60)]
        params = {"name": "old.slow", "arguments": {}, "task": {}}
        theirs = [(await place.ask("tools/call", params))["result"]["task"]["taskId"] for _ in range(50)]
        pages = [page async for page in listed(place, {})]
        assert [len(page) for page in pages] == [50, 50, 10]
        found = [task["taskId"] for page in pages for task in page]
        assert (set(found[:60]), set(found[60:])) == (set(mine), set(theirs))
        # Nodes start the tasks of a cluster within the same millisecond.
        most = 0 if NODES == 1 else 3
        assert all(abs(found.index(task) - 60 - number) <= most for number, task in enumerate(theirs))
        assert {task["status"] for task in pages[0]} <= {"completed", "working"}
        for wrong in ("", "IngiCg==", "eyJ9", "Mg"):
            assert (await place.ask("tasks/list", {"cursor": wrong}))["error"]["code"] == -32602


async def listed(place: Place, params: dict[str, Any]) -> AsyncIterator[list[Any]]:
    """The pages of a caller's tasks."""
    while True:
        page = (await place.ask("tasks/list", params))["result"]
        yield page["tasks"]
        if "nextCursor" not in page:
            return
        params = {"cursor": page["nextCursor"]}


# -- conversations -------------------------------------------------------------------------------------------------


async def test_a_tasks_question_reaches_the_caller_that_waits_for_its_result(place: Place) -> None:
    async with guest(place) as one, connected(place.hub.port) as first, connected(place.hub.port) as second:
        await one.open(capabilities={"elicitation": {}})
        id = (await one.ask("tools/call", begun("ask", "e")))["result"]["task"]["taskId"]
        await until_status(one, id, "input_required")
        body = encoded(legacy("tasks/result", {"taskId": id}, id=7))
        headers = [*one.headers, ("content-length", str(len(body)))]
        # The first who waits is asked, and gone before it answers.
        await first.say(rendered("POST", "/mcp", headers, body))
        assert (await first.head())[0] == 200
        question = await anext(events(first))
        assert (question["method"], question["params"]["_meta"]) == ("elicitation/create", {RELATED: {"taskId": id}})
        cancelled = legacy("notifications/cancelled", {"requestId": 7}, id=None)
        assert (await one._wire.request(encoded(cancelled), one.headers)).status == 202
        assert (await one.ask("tasks/get", {"taskId": id}))["result"]["status"] == "input_required"
        # The next is asked again.
        await second.say(rendered("POST", "/mcp", headers, body))
        assert (await second.head())[0] == 200
        received = events(second)
        question = await anext(received)
        assert question["params"]["message"] == "go on, e?"
        answer = {"jsonrpc": "2.0", "id": question["id"], "result": {"action": "accept", "content": {"ok": True}}}
        assert (await one._wire.request(encoded(answer), one.headers)).status == 202
        result = (await anext(received))["result"]
    assert result["structuredContent"] == {"heard": {"action": "accept", "content": {"ok": True}}}
    assert result["_meta"] == {RELATED: {"taskId": id}}
    assert place.ledger().count("ask e") == 1


async def test_a_wait_for_a_waiting_task_does_not_delay_the_shutdown(tmp_path: Path) -> None:
    limits = {**PATIENT, "drain_seconds": 600.0}
    async with (
        asyncio.timeout(60),
        serving(tmp_path, servers(tmp_path), callers=CALLERS, limits=limits) as hub,
        guest(Place(hub, tmp_path)) as one,
        connected(hub.port) as wire,
    ):
        await one.open(capabilities={"elicitation": {}})
        id = (await one.ask("tools/call", begun("ask", "w")))["result"]["task"]["taskId"]
        body = encoded(legacy("tasks/result", {"taskId": id}, id=7))
        await wire.say(rendered("POST", "/mcp", [*one.headers, ("content-length", str(len(body)))], body))
        await wire.head()
        received = events(wire)
        assert (await anext(received))["method"] == "elicitation/create"
        hub.terminate()
        (error,) = [said["error"] async for said in received if "error" in said]
        assert error["data"]["reason"] == "cancelled"


async def until_status(one: Guest, id: str, status: str) -> None:
    async def is_so() -> bool:
        state = (await one.ask("tasks/get", {"taskId": id}))["result"]
        return bool(state["status"] == status)

    await until(is_so)


async def test_a_conversation_receives_the_status_of_its_task(place: Place) -> None:
    async with guest(place, LISTENER) as one, guest(place, OTHER) as other:
        await one.open()
        await one.listen()
        await other.open()
        await other.listen()
        params = {**begun("step", "f"), "_meta": {"progressToken": "mine"}}
        id = (await one.ask("tools/call", params))["result"]["task"]["taskId"]
        received = [await one.receive()]
        place.release("f")
        received.append(await one.receive())
        theirs = (await other.ask("tools/call", begun("echo", "f")))["result"]["task"]["taskId"]
        assert (await other.receive())["params"]["taskId"] == theirs
    progress, status = received
    assert progress["method"] == "notifications/progress"
    assert progress["params"] == {
        "progressToken": "mine",
        "progress": 1,
        "total": 2,
        "_meta": {RELATED: {"taskId": id}},
    }
    assert (status["method"], status["params"]["taskId"], status["params"]["status"]) == (STATUS, id, "completed")


@pytest.mark.parametrize("capabilities", [{}, {"elicitation": {}}])
async def test_a_task_outlasts_the_conversation_that_asked_for_it(place: Place, capabilities: Any) -> None:
    nonce = f"g{len(capabilities)}"
    async with guest(place) as one:
        await one.open(capabilities=capabilities)
        id = (await one.ask("tools/call", begun("hold", nonce)))["result"]["task"]["taskId"]
        await place.noted(f"hold {nonce}")
        assert (await one._wire.request(b"", one.headers, method="DELETE")).status == 204
    place.release(nonce)
    assert (await place.ask("tasks/result", {"taskId": id}))["result"]["content"][0]["text"] == nonce


# -- 2026-07-28 ----------------------------------------------------------------------------------------------------


async def test_a_call_that_takes_long_becomes_a_task(place: Place) -> None:
    made = (await place.modern("tools/call", {"name": "plain.hold", "arguments": {"nonce": "h"}})).json["result"]
    assert (made["resultType"], made["status"]) == ("task", "working")
    id = made["taskId"]
    state = (await place.modern("tasks/get", {"taskId": id})).json["result"]
    assert (state["resultType"], state["status"], state["ttlMs"]) == ("complete", "working", made["ttlMs"])
    place.release("h")
    ended = await place.task_with_status(id, "completed")
    assert ended["result"] == {"resultType": "complete", "content": [{"type": "text", "text": "h"}]}
    assert place.ledger().count("hold h") == 1
    assert (await place.ask("tasks/get", {"taskId": id}))["result"]["status"] == "completed"


async def test_a_call_that_is_over_soon_does_not(tmp_path: Path) -> None:
    async with serving(tmp_path, servers(tmp_path), callers=CALLERS, limits=PATIENT, tasks={"after": 600}) as hub:
        place = Place(hub, tmp_path)
        done = (await place.modern("tools/call", {"name": "plain.echo", "arguments": {"nonce": "i"}})).json["result"]
        assert done["resultType"] == "complete"
        assert (await place.ask("tasks/list", {}))["result"]["tasks"] == []


async def test_a_client_without_tasks_waits_for_the_result(place: Place) -> None:
    called = place.modern("tools/call", {"name": "plain.hold", "arguments": {"nonce": "j"}}, can={})
    waiting = asyncio.ensure_future(called)
    await place.noted("hold j")
    knowing = (await place.modern("tools/call", {"name": "plain.hold", "arguments": {"nonce": "j"}})).json["result"]
    assert knowing["resultType"] == "task"  # so that the other call has waited for as long
    assert not waiting.done()
    place.release("j")
    assert (await waiting).json["result"]["content"] == [{"type": "text", "text": "j"}]
    refused = await place.modern("tasks/get", {"taskId": knowing["taskId"]}, can={})
    assert (refused.status, refused.code) == (400, -32021)


async def test_a_tasks_question_is_part_of_its_state_and_answered_by_an_update(place: Place) -> None:
    id = await place.become("late", "k", can={"elicitation": {}, "extensions": {TASKS: {}}})
    place.release("k")
    asking = await place.task_with_status(id, "input_required")
    ((key, question),) = asking["inputRequests"].items()
    assert (question["method"], question["params"]["message"]) == ("elicitation/create", "go on, k?")
    for nothing in ({}, {"another": {"action": "accept"}}, {key: 5}):
        answered = await place.modern("tasks/update", {"taskId": id, "inputResponses": nothing})
        assert answered.json["result"] == {"resultType": "complete"}
    answer = {key: {"action": "accept", "content": {"ok": True}}}
    await place.modern("tasks/update", {"taskId": id, "inputResponses": answer})
    ended = await place.task_with_status(id, "completed")
    assert ended["result"]["structuredContent"] == {"heard": {"action": "accept", "content": {"ok": True}}}
    assert "inputRequests" not in ended


async def test_a_modern_task_is_given_up(place: Place) -> None:
    id = await place.become("hold", "l")
    for _ in range(2):
        assert (await place.modern("tasks/cancel", {"taskId": id})).json["result"] == {"resultType": "complete"}
    assert (await place.task_with_status(id, "cancelled"))["taskId"] == id


async def test_a_caller_that_leaves_after_it_got_a_task_ends_nothing_and_can_follow_it(place: Place) -> None:
    id = await place.become("hold", "n")
    meta = {**META, "io.modelcontextprotocol/clientCapabilities": {"extensions": {TASKS: {}}}}
    wanted = {"notifications": {"taskIds": [id, "0" * 32]}, "_meta": meta}
    body = encoded(legacy("subscriptions/listen", wanted, id="s"))
    headers = [*modern_headers("subscriptions/listen"), *key_header(ONE), ("content-length", str(len(body)))]
    async with connected(place.hub.port) as wire, asyncio.timeout(SECONDS):
        await wire.say(rendered("POST", "/mcp", headers, body))
        assert (await wire.head())[0] == 200
        received = events(wire)
        assert (await anext(received))["params"]["notifications"]["taskIds"] == [id]
        first = await anext(received)
        place.release("n")
        last = await anext(received)
    assert (first["method"], first["params"]["status"]) == ("notifications/tasks", "working")
    assert last["params"]["status"] == "completed"
    assert last["params"]["result"]["content"] == [{"type": "text", "text": "n"}]


# -- beside other frontends, and switched off ----------------------------------------------------------------------


async def test_tasks_of_the_agent_are_not_shown_here_nor_the_other_way_round(place: Place) -> None:
    here = await place.create("echo", "o")
    data = {"tool": "plain.echo", "arguments": {"nonce": "o"}}
    message = {"messageId": "o", "role": "ROLE_USER", "parts": [{"data": data}]}
    headers = {"authorization": f"Bearer {ONE}", "a2a-version": "1.0"}
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{place.hub.port}", headers=headers) as agent:

        async def ask(method: str, params: Any) -> Any:
            body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
            return (await agent.post("/a2a", json=body)).json()

        there = (await ask("SendMessage", {"message": message}))["result"]["task"]["id"]
        assert [task["id"] for task in (await ask("ListTasks", {}))["result"]["tasks"]] == [there]
        assert "error" in await ask("GetTask", {"id": here})
    assert (await place.ask("tasks/get", {"taskId": there}))["error"]["code"] == -32602
    assert there not in [task["taskId"] for task in (await place.ask("tasks/list", {}))["result"]["tasks"]]


async def test_a_reload_can_switch_it_off(tmp_path: Path) -> None:
    async with serving(tmp_path, servers(tmp_path), callers=CALLERS, limits=PATIENT) as hub:
        place = Place(hub, tmp_path)
        id = await place.create("echo", "p")
        write_config(tmp_path, servers(tmp_path), callers=CALLERS, limits=PATIENT, tasks={"provide": False})

        async def is_reloaded() -> bool:
            return any("configuration reloaded" in line for line in hub.said)

        await until(is_reloaded)
        params = {"name": "plain.echo", "arguments": {"nonce": "p"}, "task": {}}
        assert "content" in (await place.ask("tools/call", params))["result"]
        assert (await place.ask("tasks/get", {"taskId": id}))["error"]["code"] == -32602
        assert (await place.ask("tasks/get", {"taskId": id}, path="/mcp/plain"))["error"]["code"] == -32601
