"""Servers that have just connected, never answer, or leave: how long devices wait, and the lists that they get."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio

from tests.faults.watching import eventually
from tests.hubs import HubProcess, serving
from tests.relay.peers import Device, Json, Manner, RawServer, at_once, device, raw_server
from tests.relay.tokens import KEY

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.xdist_group("relay")]

ROUNDS = 20
CHANGED = "notifications/tools/list_changed"
SILENT = Manner(silent_at={"initialize"})


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def plain(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HubProcess]:
    """A hub whose relay waits as long as it does by default; one agent's calls wait for servers that are away."""
    relay = {"key": KEY, "agents": {"patient": {"grace": 30}}}
    async with serving(tmp_path_factory.mktemp("arrivals"), relay=relay) as running:
        yield running


async def names_for(it: Device) -> list[str]:
    return [tool["name"] for tool in (await it.ask("tools/list", id=1000))["result"]["tools"]]


async def is_empty(it: Device) -> bool:
    return not await names_for(it)


async def echo(it: Device, id: int) -> Json:
    return await it.ask("tools/call", {"name": "echo", "arguments": {"text": "so"}}, id=id)


async def until_changed(it: Device, seen: int) -> int:
    """Wait for one more word that the list has changed."""
    await it.until(lambda: it.notified.count(CHANGED) > seen, "the device is notified of the change")
    return it.notified.count(CHANGED)


@pytest.mark.one_process("the devices of each node wait for a silent server")
@pytest.mark.parametrize("server_id", [None, "mute"])
async def test_a_silent_server_delays_one_device_by_a_second_and_no_other(
    plain: HubProcess, agent: str, server_id: str | None
) -> None:
    async with raw_server(plain.port, agent, "good"):
        async with raw_server(plain.port, agent, server_id, manner=SILENT, is_awaited=False):
            async with device(plain.port, agent) as it:
                async with at_once(0.5):
                    assert (await it.answer(1))["result"]["serverInfo"]
                async with at_once(1.2):
                    await it.ready()
                assert list(it.tools) == ["echo"]
            for _ in range(2):  # the first has left, and nothing is forgotten with it
                async with at_once(0.5), device(plain.port, agent) as it:
                    await it.ready()
                    assert list(it.tools) == ["echo"]
        for _ in range(2):  # the same server again, as silent as before
            async with (
                raw_server(plain.port, agent, server_id, manner=SILENT, is_awaited=False),
                at_once(0.5),
                device(plain.port, agent) as it,
            ):
                await it.ready()


async def test_a_call_waits_for_a_server_that_comes_after_a_silent_one(plain: HubProcess, agent: str) -> None:
    """Without a `server_id` it could be the silent one again, as far as the list is concerned."""
    async with device(plain.port, agent) as it:
        await it.ready()
        async with raw_server(plain.port, agent, manner=SILENT, is_awaited=False) as mute:
            await mute.until(lambda: "initialize" in mute.asked, "the hub greets it")
            assert await names_for(it) == []
        async with raw_server(plain.port, agent, manner=SILENT, is_awaited=False) as late:
            async with at_once(0.5):
                assert await names_for(it) == []
            call = asyncio.ensure_future(echo(it, 7))
            await late.until(lambda: "initialize" in late.asked, "the hub greets it")
            await answer_greeting(late)
            assert (await call)["result"]["content"][0]["text"] == "so"


@pytest.mark.parametrize("server_id", [None, "s1"])
async def test_a_call_waits_for_a_server_that_is_being_greeted(
    plain: HubProcess, agent: str, server_id: str | None
) -> None:
    async with device(plain.port, agent) as it:
        await it.ready()
        for number in range(ROUNDS):  # unknown the first time, away every other time
            async with raw_server(plain.port, agent, server_id, is_awaited=False):
                answer = await echo(it, 5000 + number)
            assert "result" in answer, (number, answer)
            await eventually(lambda: is_empty(it), "the server has left")


async def test_a_call_waits_for_a_server_that_takes_its_time(plain: HubProcess, agent: str) -> None:
    manner = Manner()
    async with device(plain.port, agent) as it:
        async with raw_server(plain.port, agent, "s1", manner=manner):
            await until_changed(it, 0)
            assert (await echo(it, 5000))["result"]
        await it.until(lambda: it.notified.count(CHANGED) > 1, "it is notified that the server left")

        async with raw_server(plain.port, agent, "s1", manner=SILENT, is_awaited=False) as back:
            call = asyncio.ensure_future(echo(it, 5001))
            async with at_once(1.2):
                assert await names_for(it) == [], "a list waits for a second"
            assert not call.done()
            await answer_greeting(back)
            assert (await call)["result"]["content"][0]["text"] == "so"


async def answer_greeting(server: RawServer) -> None:
    """Have a server answer after all."""
    server.manner = Manner()
    for frame in list(server.frames):
        await server.on_frame(frame)


async def test_a_call_that_waits_is_withdrawn_and_counts(plain: HubProcess, agent: str) -> None:
    async with (
        raw_server(plain.port, agent, "mute", manner=SILENT, is_awaited=False),
        device(plain.port, agent) as it,
    ):
        await it.say({"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": {"name": "echo"}})
        await it.say({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 9}})
        async with at_once(0.5):
            answer = await it.answer(9)
        assert answer["error"]["data"]["executed"] == "no"
        async with at_once(1.2):
            assert (await it.ask("tools/call", {"name": "nothing"}, id=10))["error"]["code"] == -32601
        async with at_once(0.5):
            assert (await it.ask("tools/call", {"name": "nothing"}, id=11))["error"]["code"] == -32601


async def test_a_server_that_leaves_is_off_the_list_at_once(plain: HubProcess, agent: str) -> None:
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(raw_server(plain.port, agent, "stays", manner=Manner(tools=("look",))))
        it = await stack.enter_async_context(device(plain.port, agent))
        await it.ready()
        seen = 0
        for _ in range(3):
            async with raw_server(plain.port, agent, "goes"):
                seen = await until_changed(it, seen)
                assert await names_for(it) == ["look", "echo"]
            async with at_once(1.5):
                seen = await until_changed(it, seen)
            assert await names_for(it) == ["look"]
            result = (await it.ask("tools/list", id=1001))["result"]
            assert [entry["server_id"] for entry in result["missing"]] == ["goes"]
            assert (await echo(it, 5000))["error"]["code"] == -32001


async def test_within_its_grace_a_server_is_not_listed_and_calls_wait_for_it(plain: HubProcess) -> None:
    async with device(plain.port, "patient") as it:
        async with raw_server(plain.port, "patient", "s1"):
            seen = await until_changed(it, 0)
        await until_changed(it, seen)
        assert await names_for(it) == []
        call = asyncio.ensure_future(echo(it, 5000))
        async with raw_server(plain.port, "patient", "s1"):
            assert (await call)["result"]["content"][0]["text"] == "so"
