"""A hub with approvals is behind a node: callers at every node learn from it for which approval their call waits."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.cluster_hubs.nodes import cluster, stands
from tests.frontends.test_approvals import CALLERS, KEYS, RULES, client
from tests.hubs import PATIENT, HubProcess, Raw, serving, stdio
from tests.property.echo_server import command
from tests.relay.dialling import dialling
from tests.relay.peers import agent_url

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("hubs_behind_nodes")]

AGENT = "robot"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def behind(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HubProcess]:
    """The hub with approvals."""
    folder = tmp_path_factory.mktemp("behind")
    servers = {"bank": stdio(command(), timeout=1)}
    async with serving(folder, servers, callers=CALLERS, approvals=RULES, limits=PATIENT) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def nodes(tmp_path_factory: pytest.TempPathFactory, behind: HubProcess) -> AsyncIterator[list[HubProcess]]:
    """Two nodes; `isthmus dial` connects the hub to the first."""
    folder = tmp_path_factory.mktemp("nodes")
    entry = {"url": behind.url_of("bank"), "headers": {"Authorization": f"Bearer {KEYS['agent']}"}}
    file = folder / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"hub": entry}}))
    async with (
        cluster(folder, "a", "b") as (_, (a, b)),
        dialling(agent_url(a.port, AGENT), "--config", str(file)),
    ):
        for hub in (a, b):
            await stands(hub, f"{AGENT}_hub", "ready")
        yield [a, b]


@pytest.mark.parametrize("number", [0, 1])
async def test_a_call_names_the_approval_that_it_waits_for(
    nodes: list[HubProcess], behind: HubProcess, number: int
) -> None:
    arguments = {"asked": number}
    async with Raw(nodes[number].url) as caller, client(behind, "boss") as boss:
        error = (await caller.call(f"{AGENT}_hub.echo", arguments))["error"]
        waiting = await boss.id_of(arguments)
        assert (error["code"], error["data"]["executed"], error["data"]["reason"]) == (-32010, "no", "approval_pending")
        assert error["data"]["approval"] == waiting
        assert (await boss.decide("allow", waiting)).status_code == 200
        assert (await caller.call(f"{AGENT}_hub.echo", arguments))["result"]["structuredContent"] == arguments


@pytest.mark.parametrize("number", [0, 1])
async def test_a_denied_call_says_so(nodes: list[HubProcess], behind: HubProcess, number: int) -> None:
    arguments = {"denied": number}
    async with Raw(nodes[number].url) as caller, client(behind, "boss") as boss:
        call = asyncio.ensure_future(caller.call(f"{AGENT}_hub.echo", arguments))
        waiting = await boss.id_of(arguments)
        assert (await boss.decide("deny", waiting, reason="ask Bob first")).status_code == 200
        error = (await call)["error"]
        assert (error["code"], error["data"]["executed"], error["data"]["reason"]) == (-32010, "no", "approval_denied")
        assert error["data"]["approval"] == waiting
        assert "ask Bob first" in error["message"]
