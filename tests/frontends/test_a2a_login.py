"""A server that requires a login: the task shows the address, waits, and continues."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import Any

import pytest

from tests.faults.scripted import ReceivedRequest, Scripted, reply
from tests.frontends.test_a2a import SECONDS, Agent, run
from tests.hubs import PATIENT, serving

PLACE = "https://bank.example/.well-known/oauth-protected-resource"
VISIT = {"mode": "url", "elicitationId": "e1", "message": "Please log in", "url": PLACE}


CHALLENGE = {"www-authenticate": f'Bearer realm="bank", resource_metadata="{PLACE}", scope="all"'}


class Closed(Scripted):
    """A server that rejects calls until a user has logged in."""

    def __init__(self) -> None:
        super().__init__()
        self.is_open = False

    async def on_call(self, request: ReceivedRequest, out: asyncio.StreamWriter) -> None:
        if self.is_open:
            out.write(reply(request.result({"content": [{"type": "text", "text": "welcome"}]})))
        elif request.arguments["how"] == "status":
            out.write(reply(None, status=401, headers=CHALLENGE))
        else:
            error = {"code": -32042, "message": "Log in first", "data": {"elicitations": [VISIT]}}
            out.write(reply({"jsonrpc": "2.0", "id": request.message["id"], "error": error}))


@pytest.mark.parametrize("how", ["status", "error"])
async def test_a_caller_that_needs_a_login_learns_where_and_continues_afterwards(tmp_path: Path, how: str) -> None:
    async with (
        Closed() as server,
        serving(tmp_path, {"s": server.entry}, limits=PATIENT) as hub,
        Agent(hub) as agent,
        asyncio.timeout(SECONDS),
    ):
        task: Any = (await agent.ask("SendMessage", run("s.t", how=how)))["task"]
        assert task["status"]["state"] == "TASK_STATE_AUTH_REQUIRED"
        words, data = task["status"]["message"]["parts"]
        assert PLACE in words["text"]
        assert data["data"]["params"]["url"] == PLACE
        server.is_open = True
        said = {"messageId": "m2", "role": "ROLE_USER", "taskId": task["id"], "parts": [{"text": "done"}]}
        done = (await agent.ask("SendMessage", {"message": said}))["task"]
        assert done["status"]["state"] == "TASK_STATE_COMPLETED"
        assert done["artifacts"][0]["parts"] == [{"text": "welcome"}]
        assert server.count("tools/call") == 2


class Shut(Closed):
    """A server that requires a login even for `initialize`."""

    async def on(self, request: ReceivedRequest, out: asyncio.StreamWriter) -> None:
        if self.is_open:
            await super().on(request, out)
        else:
            out.write(reply(None, status=401, headers=CHALLENGE))


COMMAND = {"mcp_method": "tools/call", "mcp_params": {"name": "t", "arguments": {"how": "any"}}}


async def gone_on(agent: Agent, task: Any) -> str:
    """How a task stands after as many messages as it takes until the hub has been let in."""
    for number in itertools.count():
        said = {"messageId": f"done {number}", "role": "ROLE_USER", "taskId": task["id"], "parts": [{"text": "done"}]}
        state = str((await agent.ask("SendMessage", {"message": said}))["task"]["status"]["state"])
        if state != "TASK_STATE_AUTH_REQUIRED":
            return state
        await asyncio.sleep(0.05)
    raise AssertionError


@pytest.mark.parametrize("entry", [{}, {"type": "sse"}])
async def test_a_server_that_lists_nothing_before_is_waited_for_too(tmp_path: Path, entry: dict[str, str]) -> None:
    async with (
        Shut() as server,
        serving(tmp_path, {"s": {**server.entry, **entry}}, limits=PATIENT) as hub,
        Agent(hub) as agent,
        asyncio.timeout(SECONDS),
    ):
        wishes: list[Any] = [
            {"tool": "s.t", "arguments": {"how": "any"}},
            {"target_mcp_server_id": "s", "tool_name": "t", "arguments": {"how": "any"}},
            {"mcp_target_url": "s", **COMMAND},
            {"mcp_target_url": server.entry["url"], **COMMAND},
        ]
        tasks = []
        for number, wish in enumerate(wishes):
            said = {"messageId": f"m{number}", "role": "ROLE_USER", "parts": [{"data": wish}]}
            tasks.append((await agent.ask("SendMessage", {"message": said}))["task"])
            assert tasks[-1]["status"]["state"] == "TASK_STATE_AUTH_REQUIRED"
            assert tasks[-1]["status"]["message"]["parts"][1]["data"]["params"]["url"] == PLACE
        if entry.get("type") == "sse":
            return
        server.is_open = True
        assert [await gone_on(agent, task) for task in tasks] == ["TASK_STATE_COMPLETED"] * 4
        assert server.count("tools/call") == 4
