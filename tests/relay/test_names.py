"""A name that the servers of two agents could have is never had by the one that it does not mean."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from tests.faults.watching import eventually
from tests.hubs import HubProcess, Raw, serving
from tests.relay.peers import Manner, device, raw_server
from tests.relay.tokens import KEY

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.xdist_group("relay")]

SECRET = "bobs-long-secret-of-0123456789abcdef"
TOOLS = ("throw", "cut")
CONFIGURED, OTHERS = ("my_kitchen", "my_hall"), ("old_cellar", "old_attic")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def guarded(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HubProcess]:
    """A hub whose caller bob may use some servers by name; the agents of the first half of them are configured."""
    agents = {agent: {"deny": [f"{agent}_knives.throw"]} for agent in CONFIGURED}
    bob = {"key": SECRET, "allow": [f"{agent}_knives.*" for agent in (*CONFIGURED, *OTHERS)]}
    root = {"key": f"root-{SECRET}", "allow": ["*"]}
    folder = tmp_path_factory.mktemp("names")
    async with serving(folder, relay={"key": KEY, "agents": agents}, callers={"bob": bob, "root": root}) as running:
        yield running


async def names_of(hub: HubProcess, agent: str) -> list[str]:
    """The names of an agent's servers, as shown to a caller that may see everything."""
    headers = {"Authorization": f"Bearer root-{SECRET}"}
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{hub.port}", headers=headers) as rest:
        found: list[dict[str, Any]] = (await rest.get("/v1/relay/servers", params={"agent": agent})).json()["servers"]
    return [each["name"] for each in found if each["state"] == "ready"]


@pytest.mark.parametrize(
    ("agent", "is_squatter_first"),
    [*zip(CONFIGURED, (True, False), strict=True), *zip(OTHERS, (True, False), strict=True)],
)
async def test_a_permission_reaches_the_server_that_it_names_in_any_order_of_arrival(
    guarded: HubProcess, agent: str, *, is_squatter_first: bool
) -> None:
    hub, name = guarded, f"{agent}_knives"
    prefix, _, rest = agent.partition("_")
    honest = raw_server(hub.port, agent, "knives", manner=Manner("honest", TOOLS))
    squatter = raw_server(hub.port, prefix, f"{rest}_knives", manner=Manner("squatter", TOOLS))
    async with AsyncExitStack() as stack:
        order = [("squatter", squatter), ("honest", honest)]
        here = {}
        for who, server in order if is_squatter_first else order[::-1]:
            here[who] = await stack.enter_async_context(server)

        async def have_come() -> bool:
            return len(await names_of(hub, agent)) == len(await names_of(hub, prefix)) == 1

        await eventually(have_come, "both are there")
        assert await names_of(hub, agent) == [name]
        assert (await names_of(hub, prefix))[0].startswith(f"{name}_")
        async with Raw(hub.url, key=SECRET) as bob:
            assert {each for each in await bob.names() if each.startswith(name)} == {f"{name}.{tool}" for tool in TOOLS}
            await bob.call(f"{name}.cut", {"text": "a secret"})
        called = {who: "tools/call" in server.asked for who, server in here.items()}
        assert called == {"honest": True, "squatter": False}
        async with device(hub.port, agent) as robot:
            await robot.ready()
            listed = {tool["name"] for tool in (await robot.ask("tools/list", id=7))["result"]["tools"]}
            assert listed == ({"cut"} if agent in CONFIGURED else {*TOOLS})
