"""One conversation, one process: all calls of a conversation reach the same process of a stateful server over stdio."""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import httpx2
import pytest

from tests.frontends import counting_server
from tests.hubs import PATIENT, TRUSTED, HubProcess, serving, stdio
from tests.relay.peers import device
from tests.relay.tokens import KEY

SECONDS = 60.0
COUNTING = stdio([sys.executable, str(Path(counting_server.__file__))])
ACCEPT = {"action": "accept", "content": {"ok": True}}
HELLO = {
    "protocolVersion": "2025-06-18",
    "capabilities": {"elicitation": {}},
    "clientInfo": {"name": "test", "version": "1"},
}
Json = dict[str, Any]


@asynccontextmanager
async def hub_with_counting(folder: Path, **tables: Any) -> AsyncIterator[tuple[HubProcess, httpx2.AsyncClient]]:
    limits = httpx2.Limits(max_connections=100)
    async with serving(folder, {"s": COUNTING}, limits=PATIENT, **tables) as hub:
        base = f"http://127.0.0.1:{hub.port}"
        async with httpx2.AsyncClient(base_url=base, timeout=SECONDS, verify=TRUSTED, limits=limits) as http:
            yield hub, http


# -- A2A ---------------------------------------------------------------------------------------------------------------


class Agent:
    """A client of the agent, of one of two generations."""

    def __init__(self, http: httpx2.AsyncClient, version: Literal["1.0", "0.3"]) -> None:
        self.http = http
        self.is_latest = version == "1.0"
        self.headers = {"A2A-Version": version}
        self._numbers = itertools.count()

    async def send(self, data: Json, context: str | None = None, task: str | None = None) -> Json:
        """Say something in a context, or in a new one, and return the task when it has ended or asks."""
        part: Json = {"data": data} if self.is_latest else {"kind": "data", "data": data}
        role = "ROLE_USER" if self.is_latest else "user"
        named = {key: value for key, value in (("contextId", context), ("taskId", task)) if value is not None}
        message: Json = {"messageId": f"m{next(self._numbers)}", "role": role, "parts": [part], **named}
        params: Json = {"message": message}
        if not self.is_latest:
            message["kind"], params["configuration"] = "message", {"blocking": True}
        method = "SendMessage" if self.is_latest else "message/send"
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        result = (await self.http.post("/a2a", json=body, headers=self.headers)).json()["result"]
        return dict(result["task"] if self.is_latest else result)

    async def call(self, tool: str, context: str | None = None, **arguments: Any) -> tuple[str, Json]:
        """Have a tool run, and accept what it asks; the context, and what the server said."""
        task = await self.send({"tool": f"s.{tool}", "arguments": arguments}, context)
        if tool == "confirm":
            assert "artifacts" not in task, "it is to ask first"
            task = await self.send(ACCEPT, task["contextId"], task["id"])
        parts = [part for artifact in task["artifacts"] for part in artifact["parts"]]
        (received,) = [part["data"] for part in parts if "pid" in part.get("data", {})]
        return task["contextId"], received


@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_a_context_always_reaches_one_process(tmp_path: Path, version: Literal["1.0", "0.3"]) -> None:
    async with hub_with_counting(tmp_path) as (_, http):
        agent = Agent(http, version)
        context, first = await agent.call("count")
        _, confirmed = await agent.call("confirm", context)
        assert confirmed["answered"] == ACCEPT
        together = await asyncio.gather(*(agent.call("meet", context, calls=20) for _ in range(20)))
        later = [(await agent.call("count", context))[1] for _ in range(5)]
        received = [first, confirmed, *(each for _, each in together), *later]
        assert {each["pid"] for each in received} == {first["pid"]}
        assert [each["count"] for each in later] == list(range(24, 29)), "and it has its state"


async def test_a_question_in_one_context_is_not_about_another(tmp_path: Path) -> None:
    async with hub_with_counting(tmp_path) as (_, http):
        agent = Agent(http, "1.0")
        await agent.call("confirm")  # from here on it is known that this server asks
        asked = [await agent.send({"tool": "s.confirm", "arguments": {"message": text}}) for text in ("one", "two")]
        for task, text in zip(asked, ("one", "two"), strict=True):
            assert text in json.dumps(task["status"])
        for task in reversed(asked):
            answered = await agent.send(ACCEPT, task["contextId"], task["id"])
            assert answered["id"] == task["id"]
            assert "artifacts" in answered
        first, second = [await agent.call("count", task["contextId"]) for task in asked]
        assert first[1]["pid"] != second[1]["pid"]


async def test_contexts_of_one_call_each_share_a_process(tmp_path: Path) -> None:
    async with hub_with_counting(tmp_path) as (_, http):
        agent = Agent(http, "1.0")
        before = await asyncio.gather(*(agent.call("meet", calls=20) for _ in range(20)))
        await agent.call("confirm")
        after = [await agent.call("count") for _ in range(3)]
        assert len({context for context, _ in before}) == 20
        assert len({received["pid"] for _, received in (*before, *after)}) == 1


# -- MCP ---------------------------------------------------------------------------------------------------------------


class SessionClient:
    """A program with a session of the earlier era over Streamable HTTP, which accepts whatever it is asked."""

    def __init__(self, http: httpx2.AsyncClient) -> None:
        self.http = http
        self.headers = {"accept": "application/json, text/event-stream"}
        self._numbers = itertools.count(1)

    async def open(self) -> SessionClient:
        answer = await self.http.post("/mcp", json=self._request("initialize", HELLO), headers=self.headers)
        self.headers["mcp-session-id"] = answer.headers["mcp-session-id"]
        return self

    async def ask(self, method: str, params: Json) -> Json:
        """Ask, and return the result."""
        async with self.http.stream("POST", "/mcp", json=self._request(method, params), headers=self.headers) as answer:
            if "event-stream" not in answer.headers["content-type"]:
                return dict(json.loads(await answer.aread())["result"])
            async for line in answer.aiter_lines():
                message = json.loads(line[5:]) if line.startswith("data:") and line[5:].strip() else {}
                if "result" in message:
                    return dict(message["result"])
                if "method" in message and "id" in message:
                    accepted = {"jsonrpc": "2.0", "id": message["id"], "result": ACCEPT}
                    await self.http.post("/mcp", json=accepted, headers=self.headers)
        raise AssertionError("the stream ended without an answer")

    async def call(self, tool: str, **more: Any) -> Json:
        return await self.ask("tools/call", {"name": f"s.{tool}", "arguments": {}, **more})

    async def pid(self, tool: str) -> int:
        return int((await self.call(tool))["structuredContent"]["pid"])

    def _request(self, method: str, params: Json) -> Json:
        return {"jsonrpc": "2.0", "id": next(self._numbers), "method": method, "params": params}


async def test_a_session_reaches_one_process_also_by_its_tasks(tmp_path: Path) -> None:
    async with hub_with_counting(tmp_path) as (_, http):
        one, other = await SessionClient(http).open(), await SessionClient(http).open()
        pids = [await one.pid(tool) for tool in ("count", "confirm", "count")]
        others = [await other.pid(tool) for tool in ("count", "confirm", "count")]
        task = (await one.call("confirm", task={}))["task"]["taskId"]
        result = await one.ask("tasks/result", {"taskId": task})
        assert result["structuredContent"]["answered"] == ACCEPT
        assert {*pids, result["structuredContent"]["pid"]} == {pids[0]}
        assert {*others} == {others[0]} != {pids[0]}


# -- the relay ---------------------------------------------------------------------------------------------------------


async def test_devices_reach_one_process(tmp_path: Path) -> None:
    relay = {"key": KEY, "agents": {"kitchen": {"allow": ["s.count"]}}}
    async with hub_with_counting(tmp_path, relay=relay) as (hub, _), device(hub.port, "kitchen") as it:
        await it.ready()
        received = [json.loads(await it.call_unlisted("count")) for _ in range(3)]
        assert len({each["pid"] for each in received}) == 1
        assert [each["count"] for each in received] == [1, 2, 3]
