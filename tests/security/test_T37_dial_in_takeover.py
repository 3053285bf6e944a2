"""T37: a stranger dials in as a known server, and receives its calls.

Who a server is, its token says. With the same token and id the newer socket takes the seat (a half-open one may
linger), the older is told and closed, and what was under way on it is honestly unknown. Another agent's token opens
another agent's seats, whatever name or id it claims there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from tests.faults.watching import eventually
from tests.hubs import TRUSTED, HubProcess, serving
from tests.relay.peers import Manner, device, raw_server
from tests.relay.tokens import KEY

pytestmark = pytest.mark.asyncio(loop_scope="module")

FLAPS = 100


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hub(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HubProcess]:
    async with serving(tmp_path_factory.mktemp("relay"), relay={"key": KEY}) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def rest(hub: HubProcess) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{hub.port}", timeout=20, verify=TRUSTED) as client:
        yield client


async def has_tool(rest: httpx2.AsyncClient, name: str) -> bool:
    return (await rest.get(f"/v1/tools/{name}")).status_code == 200


async def test_the_newest_of_one_identity_takes_over_and_no_caller_gets_a_false_answer(
    hub: HubProcess, rest: httpx2.AsyncClient
) -> None:
    async with raw_server(hub.port, "one", "lamp", manner=Manner("lamp", ("hold",))) as older:
        await eventually(lambda: has_tool(rest, "one_lamp.hold"), "the first is listed")
        call = asyncio.create_task(rest.post("/v1/tools/one_lamp.hold", json={"text": "x"}))
        await older.holds()
        async with raw_server(hub.port, "one", "lamp", manner=Manner("lamp", ("shine",))) as newer:
            assert (await older.ended()).reason == "新连接替换"  # in the original's words: replaced by a new one
            answer: dict[str, Any] = (await call).json()
            assert answer["executed"] == "unknown"
            await eventually(lambda: has_tool(rest, "one_lamp.shine"), "the second is listed")
            assert not await has_tool(rest, "one_lamp.hold")
            assert newer.is_open


async def test_another_token_cannot_have_the_seat(hub: HubProcess, rest: httpx2.AsyncClient) -> None:
    async with raw_server(hub.port, "owner", "safe", manner=Manner("safe", ("echo",))) as owner:
        await eventually(lambda: has_tool(rest, "owner_safe.echo"), "the owner is listed")
        for agent in ("thief", "owner_safe"):
            async with raw_server(hub.port, agent, "safe", manner=Manner("owner_safe", ("echo", "steal"))) as thief:
                await eventually(partial(has_tool, rest, f"{agent}_safe.steal"), "it has a seat of its own")
                said = (await rest.post("/v1/tools/owner_safe.echo", json={"text": "mine"})).json()
                assert said["content"][0]["text"] == "mine"
                assert "tools/call" not in thief.asked
                assert not await has_tool(rest, "owner_safe.steal")
        assert owner.is_open


async def test_two_that_take_turns_harm_only_themselves(hub: HubProcess) -> None:
    """Each throws the other out, as two pipes with one address would."""
    async with raw_server(hub.port, "calm"), device(hub.port, "calm") as neighbour:
        await neighbour.ready()
        for number in range(FLAPS):
            async with raw_server(hub.port, "restless", "same", is_awaited=number % 10 == 0):
                if number % 10 == 0:
                    assert await neighbour.call("echo", {"text": str(number)}) == str(number)
        assert neighbour.is_open
