"""The hub ends while tasks wait for a server that is away: the next hub has them run once that server is back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.faults.test_hub_tasks_crash import Caller
from tests.faults.test_tasks_crash import killed
from tests.faults.watching import eventually
from tests.frontends.test_a2a import Agent, run
from tests.hubs import HubProcess, started, write_config
from tests.relay.peers import RawServer, raw_server
from tests.relay.tokens import KEY

SECONDS = 30.0
GRACE = 60.0
LEAVING_SECONDS = 10.0
"""A third of what a hub waits at most for what is under way."""

How = Literal["killed", "terminated"]


@asynccontextmanager
async def ending(how: How, config: Path) -> AsyncIterator[HubProcess]:
    """Run a hub that ends so."""
    runs = killed(config) if how == "killed" else started(config.parent, "--config", str(config))
    async with runs as hub, asyncio.timeout(SECONDS):
        yield hub
        began = time.monotonic()
    assert time.monotonic() - began < LEAVING_SECONDS


async def has_left(hub: HubProcess) -> None:
    """Have a server dial in and go."""
    async with Agent(hub) as agent:
        async with raw_server(hub.port, "robot", "arm"):
            await eventually_stands(agent, "ready")
        await eventually_stands(agent, "away")


async def eventually_stands(agent: Agent, state: str) -> None:
    async def stands() -> bool:
        return bool((await agent.http.get("/v1/servers/robot_arm")).json().get("state") == state)

    await eventually(stands, f"the server is {state}")


async def ask_for_task(caller: Caller, text: str) -> str:
    """Have a tool run as a task, by MCP."""
    params = {"name": "robot_arm.echo", "arguments": {"text": text}, "task": {"ttl": 600_000}}
    answer: Any = await caller.ask("tools/call", params)
    return str(answer["result"]["task"]["taskId"])


@pytest.mark.parametrize("how", ["killed", "terminated"])
async def test_tasks_that_were_not_sent_outlast_the_hub_and_run_once(tmp_path: Path, how: How) -> None:
    config = write_config(tmp_path, {}, relay={"key": KEY, "grace": GRACE})
    async with ending(how, config) as hub, Agent(hub) as agent, Caller(hub, 0) as caller:
        await has_left(hub)
        first = await agent.begin("robot_arm.echo", text="first")
        second = await ask_for_task(caller, "second")
        third = await agent.begin("robot_arm.echo", text="third")
        if how == "terminated":  # who stands and waits is not kept
            server_status = asyncio.ensure_future(agent.ask("SendMessage", run("robot_arm.echo", text="fourth")))
            following = asyncio.ensure_future(caller.ask("tasks/result", {"taskId": second}))
            await eventually(lambda: has_another(agent), "it is there")
            hub.terminate()
            assert (await server_status)["task"]["status"]["state"] == "TASK_STATE_SUBMITTED"
            assert (await following)["error"]["data"]["executed"] == "no"
    async with ending("killed", config) as hub, Agent(hub) as agent, Caller(hub, 0) as caller:
        assert await agent.state(first) == "TASK_STATE_SUBMITTED"
        async with raw_server(hub.port, "robot", "arm") as server:
            response: Any = await caller.ask("tasks/result", {"taskId": second})
            assert response["result"]["content"][0]["text"] == "second"
            await eventually(lambda: has_completed(agent, third), "the third has completed")
            assert await agent.state(first) == "TASK_STATE_COMPLETED"
            begun = ["first", "second", "third", *(["fourth"] if how == "terminated" else [])]
            await eventually(lambda: len(sent_to(server)) >= len(begun), "all are sent")
            assert sent_to(server) == begun


def sent_to(server: RawServer) -> list[str]:
    """What a server was called with."""
    calls = [message for message in server.messages if message.get("method") == "tools/call"]
    return [message["params"]["arguments"]["text"] for message in calls]


async def has_another(agent: Agent) -> bool:
    return bool((await agent.ask("ListTasks", {}))["totalSize"] == 3)


async def has_completed(agent: Agent, task: str) -> bool:
    return await agent.state(task) == "TASK_STATE_COMPLETED"
