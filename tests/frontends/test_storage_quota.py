"""How much a running hub keeps of each caller's tasks, in its file and in a database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.databases import running
from tests.faults.scripted import ReceivedRequest, Scripted, reply
from tests.faults.watching import eventually
from tests.frontends.test_a2a import SECONDS, envelope, run
from tests.hubs import NODES, PATIENT, TRUSTED, HubProcess, serving

KEEP_BYTES = 256 * 1024
RESULT_BYTES = 20_000
TASKS = 40
"""Three times as many as there is room for."""
KEYS = {"ann": "key-of-ann-who-is-busy", "ben": "key-of-ben-who-is-not"}
MCP = {"accept": "application/json, text/event-stream", "mcp-protocol-version": "2025-11-25"}
IN_POSTGRES = pytest.param("postgres", marks=pytest.mark.xdist_group("postgres"))
SOON = {"configuration": {"returnImmediately": True}}


class Server(Scripted):
    """A server that says as much as it is asked for; if that is nothing, it never answers."""

    async def on_call(self, request: ReceivedRequest, out: asyncio.StreamWriter) -> None:
        if wanted := request.message["params"]["arguments"].get("bytes", RESULT_BYTES):
            out.write(reply(request.result({"content": [{"type": "text", "text": "x" * wanted}]})))


class Caller:
    """Asks the agent, and the hub over MCP, for tasks."""

    def __init__(self, hub: HubProcess, key: str) -> None:
        headers = {"authorization": f"Bearer {key}"}
        url = f"http://127.0.0.1:{hub.port}"
        self.http = httpx2.AsyncClient(base_url=url, timeout=SECONDS, verify=TRUSTED, headers=headers)

    async def ask(self, method: str, params: Any) -> Any:
        """What the agent answers."""
        return (await self.http.post("/a2a", json=envelope(method, params))).json()

    async def run(self, **arguments: Any) -> Any:
        """The task of a tool that has run."""
        return (await self.ask("SendMessage", run("s.t", **arguments)))["result"]["task"]

    async def is_kept(self, task: str) -> bool:
        return "result" in await self.ask("GetTask", {"id": task})

    async def total(self) -> int:
        return int((await self.ask("ListTasks", {"pageSize": 1}))["result"]["totalSize"])

    async def mcp(self, method: str, params: Any) -> Any:
        """What is answered over MCP."""
        return (await self.http.post("/mcp", json=envelope(method, params), headers=MCP)).json()


@asynccontextmanager
async def called(folder: Path, where: str = "file") -> AsyncIterator[tuple[HubProcess, Caller, Caller]]:
    """A hub that keeps little, in its file or in a database, and two who call it."""
    tables: dict[str, Any] = {
        "limits": PATIENT,
        "a2a": {"keep_bytes": KEEP_BYTES},
        "callers": {name: {"key": key, "allow": ["*"]} for name, key in KEYS.items()},
    }
    with ExitStack() as databases:
        if where == "postgres":
            tables["storage"] = {"url": databases.enter_context(running()).url()}
        async with Server() as server, serving(folder, {"s": server.entry}, **tables) as hub, asyncio.timeout(SECONDS):
            ann, ben = (Caller(hub, key) for key in KEYS.values())
            async with ann.http, ben.http:
                yield hub, ann, ben


@pytest.mark.parametrize("where", ["file", IN_POSTGRES])
async def test_only_the_oldest_ended_tasks_of_the_same_caller_make_room(tmp_path: Path, where: str) -> None:
    async with called(tmp_path, where) as (hub, ann, ben):
        others = await ben.run()
        held = (await ann.ask("SendMessage", {**run("s.t", bytes=0), **SOON}))["result"]["task"]
        ended = [(await ann.run(number=number))["id"] for number in range(TASKS)]

        async def fits() -> bool:
            if await ann.total() * RESULT_BYTES <= KEEP_BYTES:
                return True
            # Several nodes together exceed it by what is stored within a second: each measures again with a later task.
            ended.append((await ann.run(number=len(ended)))["id"])
            return False

        await eventually(fits, "room was made")
        assert not await ann.is_kept(ended[0])
        newest = await ann.ask("GetTask", {"id": ended[-1]})
        assert len(newest["result"]["artifacts"][0]["parts"][0]["text"]) == RESULT_BYTES
        assert await ann.is_kept(held["id"]), "it runs, however old it is"
        assert await ben.is_kept(others["id"])
        await logged(hub, "deleted a caller's oldest tasks")
        assert "error" not in await ann.ask("CancelTask", {"id": held["id"]})


@pytest.mark.parametrize("where", ["file", IN_POSTGRES])
async def test_unfinished_tasks_beyond_the_quota_are_refused_until_one_ends(tmp_path: Path, where: str) -> None:
    async with called(tmp_path, where) as (hub, ann, ben):
        begun: list[str] = []
        while "error" not in (answer := await ann.ask("SendMessage", question(len(begun)))):
            begun.append(answer["result"]["task"]["id"])
            assert len(begun) < TASKS
        received = answer["error"]["message"]
        assert str(KEEP_BYTES // 8) in received
        assert f"{KEEP_BYTES} bytes of task storage ([a2a] keep_bytes)" in received
        await logged(hub, "a caller's task storage is full")
        assert "error" not in await ben.ask("SendMessage", question(0))

        for task in begun[: len(hub.each)]:  # each node learns within a second what the others have stored
            await ann.ask("CancelTask", {"id": task})
        assert "error" not in await ann.ask("SendMessage", question(TASKS))


async def test_a_conversation_that_grows_beyond_the_share_is_refused_and_can_be_cancelled(tmp_path: Path) -> None:
    async with called(tmp_path) as (_, ann, _):
        task = (await ann.ask("SendMessage", question(0)))["result"]["task"]["id"]
        answer: Any = {}
        for number in range(1, TASKS):
            params = question(number)
            answer = await ann.ask("SendMessage", {"message": {**params["message"], "taskId": task}})
            if "error" in answer:
                break
        assert "[a2a] keep_bytes" in answer["error"]["message"]
        assert (await ann.ask("CancelTask", {"id": task}))["result"]["status"]["state"] == "TASK_STATE_CANCELED"


@pytest.mark.parametrize("where", ["file", IN_POSTGRES])
async def test_a_result_for_which_there_is_no_room_fails_its_task_and_says_why(tmp_path: Path, where: str) -> None:
    async with called(tmp_path, where) as (_, ann, _):
        small = await ann.run()
        task = await ann.run(bytes=KEEP_BYTES)
        assert task["status"]["state"] == "TASK_STATE_FAILED"
        received = task["status"]["message"]["parts"][0]["text"]
        assert f"{KEEP_BYTES} bytes of task storage ([a2a] keep_bytes)" in received
        assert await ann.is_kept(small["id"]), "nothing had to make room for it"


@pytest.mark.parametrize("where", ["file", IN_POSTGRES])
async def test_keys_of_messages_are_refused_beyond_their_share_and_messages_without_one_are_not(
    tmp_path: Path, where: str
) -> None:
    async with called(tmp_path, where) as (_, ann, _):
        answer: Any = {}
        # Each node measures once a second what all have stored.
        for number in range(NODES * KEEP_BYTES // 2 // 512):
            headers = {"idempotency-key": f"key {number}"}
            body = envelope("SendMessage", run("s.t", number=number, bytes=1))
            answer = (await ann.http.post("/a2a", json=body, headers=headers)).json()
            if "error" in answer:
                break
        assert "Idempotency-Keys" in answer["error"]["message"]
        assert "([a2a] keep_bytes)" in answer["error"]["message"]
        assert (await ann.run(bytes=1))["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_tasks_over_mcp_have_an_allowance_of_their_own(tmp_path: Path) -> None:
    async with called(tmp_path) as (_, ann, _):
        of_agent = await ann.run()
        ids = []
        for number in range(TASKS):
            params = {"name": "s.t", "arguments": {"number": number}, "task": {}}
            ids.append((await ann.mcp("tools/call", params))["result"]["task"]["taskId"])
            assert "result" in await ann.mcp("tasks/result", {"taskId": ids[-1]})

        async def is_gone() -> bool:
            return "error" in await ann.mcp("tasks/get", {"taskId": ids[0]})

        await eventually(is_gone, "the oldest made room")
        assert (await ann.mcp("tasks/get", {"taskId": ids[-1]}))["result"]["status"] == "completed"
        assert await ann.is_kept(of_agent["id"])


async def logged(hub: HubProcess, said: str) -> None:
    """Wait until the hub has said this of Ann."""
    await eventually(lambda: any(said in line and "ann" in line for line in hub.said), said)


def question(number: int) -> dict[str, Any]:
    """Words that tell the agent nothing to do, at some length."""
    return {"message": {"messageId": f"q-{number}", "role": "ROLE_USER", "parts": [{"text": "why? " * 1000}]}}
