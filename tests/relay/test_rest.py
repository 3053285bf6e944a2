"""The relay over REST at a running hub: connected servers, their tools, and devices."""

from __future__ import annotations

import asyncio
import sys
import time
from functools import partial
from typing import Any

import httpx2
import pytest

from tests.faults.watching import eventually
from tests.hubs import NODES, TRUSTED, HubProcess, at_all_nodes, environment, serving
from tests.relay.peers import Manner, device, raw_server
from tests.relay.tokens import KEY

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.xdist_group("relay")]

PLANNER_KEY = "k3y-of-the-planner-0123456789"
OPERATOR_KEY = "k3y-of-the-operator-012345678"
ALL_KEY = "k3y-of-who-calls-everything-01"


async def shown(hub: HubProcess, what: str, key: str = "", **query: str) -> Any:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with httpx2.AsyncClient(
        base_url=f"http://127.0.0.1:{hub.port}", timeout=20, headers=headers, verify=TRUSTED
    ) as http:
        answer = await http.get(f"/v1/relay/{what}", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_a_server_that_dials_in_is_shown_until_it_is_away_and_then_as_that(hub: HubProcess, agent: str) -> None:
    async with raw_server(hub.port, agent, "oven", manner=Manner(name="Oven", tools=("heat", "look"))):
        await eventually(partial(is_shown, hub, agent, "oven", "ready"), "the server is ready")
        (received,) = (await shown(hub, "servers", agent=agent, tool="look"))["servers"]
        assert (received["serverId"], received["name"], received["tools"]) == (
            "oven",
            f"{agent}_oven",
            ["heat", "look"],
        )
        assert received["client"].startswith("127.0.0.1" if NODES == 1 else ("127.0.0.1", "node "))
        assert abs(received["since"] - time.time()) < 60
        tools = (await shown(hub, "tools", agent=agent, server="oven"))["tools"]
        assert [tool["name"] for tool in tools] == [f"{agent}_oven.heat", f"{agent}_oven.look"]
        assert (await shown(hub, "servers", agent=agent, tool="bake"))["servers"] == []

    await eventually(partial(is_shown, hub, agent, "oven", "away"), "the server is away")
    (received,) = (await shown(hub, f"agents/{agent}"))["servers"]
    assert (received["state"], received["tools"], bool(received["reason"])) == ("away", ["heat", "look"], True)


async def test_a_server_that_is_away_is_forgotten_when_an_operator_says_so(hub: HubProcess, agent: str) -> None:
    async with (
        raw_server(hub.port, agent, "oven", manner=Manner(tools=("heat",))),
        device(hub.port, agent) as it,
    ):
        await it.ready()
        async with raw_server(hub.port, agent, "old", manner=Manner(tools=("burn",))):
            await eventually(partial(is_shown, hub, agent, "old", "ready"), "the other is ready")
            async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{hub.port}", verify=TRUSTED) as http:
                assert (await http.delete(f"/v1/relay/servers/{agent}_old")).status_code == 409
        await eventually(partial(is_shown, hub, agent, "old", "away"), "the other is away")
        assert await forget(hub, agent) == (0, f"forgot {agent}_old\n")
        assert [received["serverId"] for received in (await shown(hub, "servers", agent=agent))["servers"]] == ["oven"]
        listed = (await it.ask("tools/list", id=7))["result"]
        assert [tool["name"] for tool in listed["tools"]] == ["heat"]


async def is_shown(hub: HubProcess, agent: str, server_id: str, state: str) -> bool:
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{hub.port}", verify=TRUSTED) as http:
        response = await at_all_nodes(http, "/v1/relay/servers", params={"agent": agent, "state": state})
    return all(server_id in [server["serverId"] for server in each["servers"]] for each in response)


async def forget(hub: HubProcess, *words: str) -> tuple[int | None, str]:
    """What `isthmus relay forget` ends with and prints."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "isthmus", "relay", "forget", "--hub", f"http://127.0.0.1:{hub.port}", *words),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=environment(),
    )
    said, _ = await process.communicate()
    return process.returncode, said.decode()


async def test_a_device_is_shown_while_it_is_connected(hub: HubProcess, agent: str) -> None:
    async with raw_server(hub.port, agent, "oven", manner=Manner(tools=("hold", "echo"))) as server:
        async with device(hub.port, agent) as it:
            await it.ready()
            await it.call("echo", {"text": "hi"})
            (received,) = (await shown(hub, "devices", agent=agent))["devices"]
            assert (received["agent"], received["answered"] > 0) == (agent, True)
            assert received["client"].startswith("127.0.0.1")
            assert "XiaozhiMCPEndpointClient" in received["title"]
            await it.say({"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": {"name": "hold"}})
            await server.holds()
            (counted,) = (await shown(hub, "agents", agent=agent))["agents"]
            assert (counted["states"]["ready"], counted["tools"], counted["devices"]) == (1, 2, 1)
            assert (await shown(hub, "devices", agent=agent))["devices"][0]["calls"] == 1
            await server.release()

        async def is_gone() -> bool:
            return not (await shown(hub, "devices", agent=agent))["devices"]

        await eventually(is_gone, "the device is gone")


async def test_callers_see_their_own_agent_without_addresses(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    callers = {
        "planner": {"key": PLANNER_KEY, "allow": ["agent:kitchen"]},
        "operator": {"key": OPERATOR_KEY, "operator": True},
        "all": {"key": ALL_KEY, "allow": ["*"]},
    }
    folder = tmp_path_factory.mktemp("callers")
    async with (
        serving(folder, relay={"key": KEY}, callers=callers) as hub,
        raw_server(hub.port, "kitchen", "oven"),
        raw_server(hub.port, "cellar", "rack"),
        device(hub.port, "cellar") as it,
    ):
        await it.ready()

        async def are_ready() -> bool:
            return len((await shown(hub, "servers", OPERATOR_KEY, state="ready"))["servers"]) == 2

        await eventually(are_ready, "both are ready")
        (received,) = (await shown(hub, "servers", PLANNER_KEY))["servers"]
        assert (received["name"], received["client"]) == ("kitchen_oven", None)
        assert (await shown(hub, "devices", PLANNER_KEY))["devices"] == []
        assert [entry["agent"] for entry in (await shown(hub, "agents", OPERATOR_KEY))["agents"]] == [
            "cellar",
            "kitchen",
        ]
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{hub.port}", verify=TRUSTED) as http:
            assert (await http.get("/v1/relay/agents")).status_code == 401
            refused = await http.delete("/v1/relay/servers/cellar_rack", headers={"x-api-key": ALL_KEY})
            assert (refused.status_code, refused.json()["reason"]) == (403, "forbidden")
        assert {received["client"] for received in (await shown(hub, "servers", ALL_KEY))["servers"]} == {None}
        assert (await shown(hub, "devices", ALL_KEY))["devices"][0]["client"] is None
