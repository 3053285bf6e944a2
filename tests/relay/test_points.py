"""The relay's promises to its clients, point by point, as the unmodified program at the other end sees them."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.faults.watching import eventually, family
from tests.hubs import CHECKOUT, TRUSTED, HubProcess, run, serving, write_config
from tests.relay.conftest import LAG_SECONDS, WAIT_SECONDS
from tests.relay.peers import (
    INITIALIZE,
    CallFailed,
    Device,
    Ending,
    Json,
    Manner,
    RawServer,
    Wire,
    agent_call_url,
    at_once,
    child,
    device,
    device_url,
    manage,
    pipe,
    raw_server,
    server_url,
    wired,
)
from tests.relay.raw_socket import TEXT, frame, raw_socket
from tests.relay.tokens import (
    KEY,
    agent_with_plus,
    java_agent,
    java_quoted,
    java_token,
    python_quoted,
    python_token,
)

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.xdist_group("relay")]

NewAgent = Callable[[], str]
MIB = 1 << 20
REPLACED = Ending(1000, "新连接替换")


async def statistics(hub: HubProcess) -> Json:
    """The report of the health address."""
    async with httpx2.AsyncClient(timeout=20, verify=TRUSTED) as http:
        answer = await http.get(f"http://127.0.0.1:{hub.port}/mcp_endpoint/health", params={"key": KEY})
    connections: Json = answer.json()["result"]["connections"]
    return connections


async def servers_of(hub: HubProcess, agent: str) -> Json:
    """An agent's servers, as the health address reports."""
    servers: Json = (await statistics(hub))["mcp_servers"].get(agent, {})
    return servers


async def has_servers(hub: HubProcess, agent: str, *ids: str) -> bool:
    """Whether these are the servers of an agent."""
    return list(await servers_of(hub, agent)) == list(ids)


async def devices_of(hub: HubProcess, agent: str) -> int:
    """How many devices an agent has, as the health address reports."""
    return int((await statistics(hub))["robot_connections_by_agent"].get(agent, 0))


def answers(it: Wire) -> list[Json]:
    """What came that is no notification."""
    return [message for message in it.messages if "method" not in message]


# -- 1 -----------------------------------------------------------------------------------------------------------------


async def test_the_hub_owns_one_session_and_lists_every_page(hub: HubProcess, agent: str) -> None:
    names = tuple(f"tool{number}" for number in range(5))
    async with raw_server(hub.port, agent, "s1", manner=Manner(tools=names, page=2)) as server:
        async with AsyncExitStack() as stack:
            devices = [await stack.enter_async_context(device(hub.port, agent)) for _ in range(3)]
            for one in devices:
                await one.ready()
                assert tuple(one.tools) == names
                assert await one.call("tool4", {"text": "so"}) == "so"

        assert server.asked.count("initialize") == 1
        assert server.asked.count("notifications/initialized") == 1
        assert server.asked.count("tools/list") == 3


async def test_devices_are_answered_in_order_and_once(hub: HubProcess, agent: str) -> None:
    async with (
        device(hub.port, agent) as early,
        raw_server(hub.port, agent, "s1", is_awaited=False),  # still being greeted when the next one asks
        device(hub.port, agent) as it,
    ):
        await it.ready()
        await early.ready()
        assert await it.call("echo", {"text": "one"}) == "one"
        assert await it.call("echo", {"text": "two"}) == "two"

        assert [answer["id"] for answer in answers(it)] == [1, 2, 1, 2]
        assert [answer["id"] for answer in answers(early)] == [1, 2]
        assert not it.errors
        assert not early.errors


async def test_a_server_that_changes_or_returns_is_listed_again(hub: HubProcess, agent: str) -> None:
    async with device(hub.port, agent) as it:
        await it.ready()
        async with raw_server(hub.port, agent, "s1", manner=Manner(tools=("old",))) as server:
            await eventually(lambda: lists(it, "old"), "it is listed")
            await server.change("new")
            await eventually(lambda: lists(it, "new"), "it is listed again")
            assert await it.call_unlisted("new", {"text": "so"}) == "so"
            with pytest.raises(CallFailed, match="不存在"):
                await it.call_unlisted("old")
        async with raw_server(hub.port, agent, "s1", manner=Manner(tools=("newest",))):
            await eventually(lambda: lists(it, "newest"), "it is listed after its return")
            assert await it.call_unlisted("newest", {"text": "so"}) == "so"
        await it.until(lambda: "notifications/tools/list_changed" in it.notified, "the device is notified of changes")


async def lists(it: Wire, *names: str) -> bool:
    """Whether a device is shown just these tools."""
    return [tool["name"] for tool in (await it.ask("tools/list", id=1000))["result"]["tools"]] == list(names)


# -- 2 -----------------------------------------------------------------------------------------------------------------


async def test_one_token_serves_two_pipes_without_a_server_id(hub: HubProcess, agent: str) -> None:
    async with (
        pipe(hub.port, agent, child("Calculator", "calculate")) as one,
        pipe(hub.port, agent, child("Weather", "forecast")) as other,
        device(hub.port, agent) as it,
    ):
        await eventually(lambda: lists_all(it, {"calculate", "forecast"}), "both are shown")
        assert await it.call_unlisted("calculate", {"text": "1"}) == "1"
        assert await it.call_unlisted("forecast", {"text": "2"}) == "2"
        assert set(await servers_of(hub, agent)) == {"Calculator", "Weather"}
        assert one.backoffs == other.backoffs == []


async def test_twins_without_a_server_id_stay_both(hub: HubProcess, agent: str) -> None:
    async with (
        pipe(hub.port, agent, child("Calculator", "calculate")) as one,
        pipe(hub.port, agent, child("Calculator", "calculate")) as other,
        device(hub.port, agent) as it,
    ):
        await eventually(lambda: lists_all(it, {"calculate", "Calculator_2.calculate"}), "both are shown")
        assert await it.call_unlisted("calculate", {"text": "1"}) == "1"
        assert await it.call_unlisted("Calculator_2.calculate", {"text": "2"}) == "2"
        assert one.backoffs == other.backoffs == []


async def lists_all(it: Wire, names: set[str]) -> bool:
    """Whether a device is shown just these tools, in any order."""
    return {tool["name"] for tool in (await it.ask("tools/list", id=1000))["result"]["tools"]} == names


async def test_the_newest_of_one_server_id_replaces_the_old_and_stays(hub: HubProcess, agent: str) -> None:
    async with device(hub.port, agent) as it, AsyncExitStack() as stack:
        servers: list[RawServer] = []
        for _ in range(3):
            servers.append(await stack.enter_async_context(raw_server(hub.port, agent, "same")))
            await eventually(lambda: answers_with(it, "so"), "the new one answers")
            assert [await old.ended() for old in servers[:-1]] == [REPLACED] * (len(servers) - 1)
            # Other nodes of a cluster know of a connection some milliseconds later.
            await eventually(lambda: has_servers(hub, agent, "same"), "there is one of this id")
            assert await it.call_unlisted("echo", {"text": "so"}) == "so"
        assert servers[-1].is_open


async def answers_with(it: Device, text: str) -> bool:
    """Whether a call comes back right; while a server is replaced it may fail."""
    try:
        return await it.call_unlisted("echo", {"text": text}) == text
    except CallFailed:
        return False


async def test_calls_of_a_replaced_server_end_at_once(hub: HubProcess, agent: str) -> None:
    async with (
        raw_server(hub.port, agent, "same", manner=Manner(tools=("hold",))) as old,
        device(hub.port, agent) as it,
    ):
        await it.ready()
        waiting = asyncio.ensure_future(it.call("hold", within=10))
        await old.holds()
        async with raw_server(hub.port, agent, "same", manner=Manner(tools=("hold",))), at_once():
            with pytest.raises(CallFailed, match="转发工具调用请求失败"):
                await waiting


# -- 3 -----------------------------------------------------------------------------------------------------------------


async def test_initialize_and_lists_are_genuine_and_name_the_servers_that_answered(hub: HubProcess, agent: str) -> None:
    async with (
        raw_server(hub.port, agent, "s1", manner=Manner(name="first", tools=("one",), definition={"title": "T"})),
        raw_server(hub.port, agent, "s2", manner=Manner(name="second", tools=("two",))),
        wired(agent_call_url(hub.port, agent)) as wire,
    ):
        await eventually(lambda: lists_all(wire, {"one", "two"}), "both are listed")
        await wire.say(INITIALIZE)
        welcome = (await wire.answer(1))["result"]
        listed = (await wire.ask("tools/list"))["result"]

        assert welcome["protocolVersion"] == "2024-11-05"
        assert "tools" in welcome["capabilities"]
        assert isinstance(welcome["serverInfo"]["name"], str)
        received = {one["server_id"]: one["serverInfo"]["name"] for one in welcome["responses"]}
        assert received == {"s1": "first", "s2": "second"}
        assert (welcome["total_servers"], welcome["responded_servers"]) == (2, 2)
        assert [(tool["name"], tool["server_id"], tool.get("title")) for tool in listed["tools"]] == [
            ("one", "s1", "T"),
            ("two", "s2", None),
        ]
        assert (listed["total_servers"], listed["responded_servers"]) == (2, 2)
        assert "nextCursor" not in listed


async def test_the_manager_gets_the_tools_it_waits_for(hub: HubProcess, agent: str) -> None:
    async with raw_server(hub.port, agent, manner=Manner(tools=("one", "two"), is_terminated=True)):
        assert await manage(hub.port, agent) == ["one", "two"]


async def test_another_method_is_asked_of_all_and_the_silent_one_is_named(hub: HubProcess, agent: str) -> None:
    manner = Manner(results={"weather/now": {"sky": "blue"}})
    async with (
        raw_server(hub.port, agent, "good", manner=manner),
        raw_server(hub.port, agent, "mute", manner=Manner(tools=("mute",), silent_at={"weather/now"})) as mute,
        device(hub.port, agent) as it,
    ):
        await it.ready()
        await eventually(lambda: lists_all(it, {"echo", "mute"}), "both are listed")
        async with at_once(5.0):
            result = (await it.ask("weather/now", {}, id=3000))["result"]

        assert result["responses"] == [{"sky": "blue", "server_id": "good"}]
        assert (result["total_servers"], result["responded_servers"]) == (2, 1)
        assert "mute" in json.dumps(result["missing"])
        assert "weather/now" in mute.asked
        assert (await it.ask("ping", id=3001))["result"]["responses"]


async def test_a_server_that_is_silent_at_first_delays_no_other(hub: HubProcess, agent: str) -> None:
    async with (
        raw_server(hub.port, agent, "good"),
        raw_server(hub.port, agent, "mute", manner=Manner(silent_at={"initialize"}), is_awaited=False),
        device(hub.port, agent) as it,
    ):
        async with at_once(5.0):
            await it.ready()
        assert list(it.tools) == ["echo"]
        assert "mute" in json.dumps(answers(it)[1]["result"]["missing"])
        assert await it.call("echo", {"text": "so"}) == "so"
        async with at_once(5 * WAIT_SECONDS):
            for id in range(1000, 1010):  # it is not waited for each time
                assert "mute" in json.dumps((await it.ask("tools/list", id=id))["result"]["missing"])


# -- 4 -----------------------------------------------------------------------------------------------------------------


async def test_results_and_errors_arrive_as_they_were(hub: HubProcess, agent: str) -> None:
    tools = ("rich", "fail", "refuse")
    async with raw_server(hub.port, agent, manner=Manner(tools=tools)), device(hub.port, agent) as it:
        await it.ready()
        rich = await it.ask("tools/call", {"name": "rich", "arguments": {"text": "hello"}})
        assert rich["result"]["content"] == [{"type": "text", "text": "hello"}]
        assert rich["result"]["structuredContent"] == {"said": "hello"}
        assert rich["result"]["_meta"] == {"a/b": 1}
        assert "isError" not in rich["result"]
        assert "error" not in rich["result"]

        failed = await it.ask("tools/call", {"name": "fail", "arguments": {"text": "no such city"}})
        assert failed["result"]["isError"] is True
        assert failed["result"]["content"] == [{"type": "text", "text": "no such city"}]
        assert failed["result"]["error"] == "no such city"

        refused = await it.ask("tools/call", {"name": "refuse", "arguments": {"text": "I would not"}})
        assert "result" not in refused
        assert (refused["error"]["code"], refused["error"]["message"]) == (-32050, "I would not")
        assert refused["error"]["data"]["why"] == "it would not"

        with pytest.raises(CallFailed, match=r"^no such city$"):
            await it.call("fail", {"text": "no such city"})
        with pytest.raises(CallFailed, match=r"^I would not$"):
            await it.call("refuse", {"text": "I would not"})


# -- 5 -----------------------------------------------------------------------------------------------------------------

IDS = [
    "0",
    '""',
    '"null"',
    "1.5",
    "1.50",
    "1e3",
    "-0",
    "12345678901234567890123",
    '"1"',
    '"a_n_1"',
    '"é\\u0041"',
    "1",
    "2",
]


@pytest.mark.parametrize("id", IDS)
async def test_ids_come_back_exactly_as_sent(hub: HubProcess, agent: str, id: str) -> None:
    async with raw_server(hub.port, agent), wired(agent_call_url(hub.port, agent)) as wire:
        requests = {
            "initialize": INITIALIZE.replace('"id": 1', f'"id": {id}'),
            "list": f'{{"jsonrpc": "2.0", "id": {id}, "method": "tools/list"}}',
            "call": f'{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":'
            '{"name":"echo","arguments":{"text":"so"}}}',
            "unknown tool": f'{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"nix"}}}}',
            "ping": f'{{"jsonrpc": "2.0", "id": {id}, "method": "ping"}}',
        }
        for number, (what, request) in enumerate(requests.items()):
            await wire.say(request)
            await wire.frame(number)
            found = re.search(r'"id":\s*("(?:[^"\\]|\\.)*"|[^,}\s]+)', str(wire.frames[number]))
            assert found is not None
            assert found[1] == id, what


async def test_an_error_has_no_result_beside_it(hub: HubProcess, agent: str) -> None:
    async with wired(agent_call_url(hub.port, agent)) as wire:
        wrong: list[tuple[str, Any, int]] = [
            ("tools/call", {"name": "nix"}, -32601),
            ("tools/call", {}, -32602),
            ("tools/call", None, -32602),
            ("resources/list", None, -32001),
        ]
        for method, params, code in wrong:
            answer = await wire.ask(method, params)
            assert answer["error"]["code"] == code, answer
            assert "result" not in answer


async def test_ids_that_are_used_again_have_one_answer_each(hub: HubProcess, agent: str) -> None:
    async with raw_server(hub.port, agent), device(hub.port, agent) as it:
        await it.ready()
        texts = [await it.call("echo", {"text": str(number)}) for number in range(3)]
        assert texts == ["0", "1", "2"]
        assert [answer["id"] for answer in answers(it)] == [1, 2, 1, 2, 3]


# -- 6 -----------------------------------------------------------------------------------------------------------------


async def test_a_device_is_ready_without_servers_and_needs_no_second_list(hub: HubProcess, agent: str) -> None:
    async with device(hub.port, agent) as it:
        await it.ready()
        assert not it.tools
        with pytest.raises(CallFailed, match="不存在"):
            await it.call_unlisted("echo", {"text": "so"})
        for _ in range(2):
            async with pipe(hub.port, agent, child("Calculator", "echo")):
                await eventually(lambda: answers_with(it, "so"), "calls work")
            with pytest.raises(CallFailed, match="工具端未连接"):
                await until_away(it)
        assert it.is_ready
        assert not it.errors


async def until_away(it: Device) -> None:
    """Call until it fails: that the server has gone is heard a moment later."""
    async with asyncio.timeout(10):
        while True:
            await it.call_unlisted("echo", {"text": "so"})


# -- 7 -----------------------------------------------------------------------------------------------------------------


async def test_a_child_that_dies_during_a_call_is_reported_within_a_second(hub: HubProcess, agent: str) -> None:
    async with pipe(hub.port, agent, child("Frail", "die", "echo")) as it, device(hub.port, agent) as caller:
        await eventually(lambda: lists_all(caller, {"die", "echo"}), "it is listed")
        async with at_once():
            with pytest.raises(CallFailed, match="转发工具调用请求失败"):
                await caller.call_unlisted("die", within=10)
        await eventually(lambda: it.endings == [Ending(1011, "")], "the pipe has closed its socket")

        it.again.set()
        await eventually(lambda: answers_with(caller, "so"), "the next child answers")
        assert it.backoffs == [2]


async def test_a_child_that_had_died_before_is_reported_within_a_second(hub: HubProcess, agent: str) -> None:
    async with pipe(hub.port, agent, child("Frail", "echo")) as it, device(hub.port, agent) as caller:
        await eventually(lambda: answers_with(caller, "so"), "it answers")
        assert it.process is not None
        it.process.kill()
        await asyncio.to_thread(it.process.wait)
        async with at_once():
            with pytest.raises(CallFailed, match=r"转发工具调用请求失败|工具端未连接"):
                await caller.call_unlisted("echo", within=10)


# -- 8 -----------------------------------------------------------------------------------------------------------------


@pytest.mark.one_process("the load balancer reads some of what the device does not")
async def test_a_device_that_does_not_read_is_disconnected_and_no_other_is_affected(
    hub: HubProcess, new_agent: NewAgent
) -> None:
    stalled, other = new_agent(), new_agent()
    call = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": "huge", "arguments": {"text": "900000"}},
    }
    huge = frame(TEXT, json.dumps(call).encode())
    async with (
        raw_server(hub.port, stalled, manner=Manner(tools=("huge",))) as asked,
        raw_server(hub.port, other) as good,
        device(hub.port, other) as neighbour,
        raw_socket(agent_call_url(hub.port, stalled), is_small=True) as mute,
    ):
        await neighbour.ready()
        before = len(hub.said)
        for _ in range(30):
            await mute.send(huge)
            assert await neighbour.call("echo", {"text": "so"}, within=5) == "so"
        await eventually(lambda: has_no_device(hub, stalled), "it is cut", within=20)
        assert await neighbour.call("echo", {"text": "so"}, within=5) == "so"
        assert "does not read" in "".join(hub.said[before:])
        assert asked.asked.count("tools/call") < 30, "what it does not read is kept within bounds"
        assert good.is_open


async def has_no_device(hub: HubProcess, agent: str) -> bool:
    return await devices_of(hub, agent) == 0


async def test_a_server_that_does_not_read_is_disconnected_and_no_other_is_affected(
    hub: HubProcess, new_agent: NewAgent
) -> None:
    stalled, other = new_agent(), new_agent()
    async with (
        raw_server(hub.port, stalled, "slow") as mute,
        raw_server(hub.port, stalled, "quick", manner=Manner(tools=("quick",))) as sibling,
        raw_server(hub.port, other),
        device(hub.port, stalled) as caller,
        device(hub.port, other) as neighbour,
    ):
        await neighbour.ready()
        await eventually(lambda: lists_all(caller, {"echo", "quick"}), "both are listed")
        # For good: the library goes on to read by itself once what it has was taken.
        mute.socket.transport.pause_reading()
        mute.socket.transport.resume_reading = lambda: None  # type: ignore[method-assign]
        calls = [asyncio.ensure_future(caller.call("echo", {"text": "x" * 900_000})) for _ in range(24)]
        for _ in range(20):
            assert await neighbour.call("echo", {"text": "so"}, within=5) == "so"
        assert await caller.call("quick", {"text": "so"}, within=5) == "so"
        async with at_once(LAG_SECONDS + 5.0):  # long before the calls would have run out of time
            ends = await asyncio.gather(*calls, return_exceptions=True)
        assert [end for end in ends if not isinstance(end, CallFailed)] == [], "nothing of it was a success"
        assert sibling.is_open
        assert await caller.call("quick", {"text": "so"}, within=5) == "so"
        mute.socket.transport.abort()


# -- 9 -----------------------------------------------------------------------------------------------------------------


async def test_a_reply_of_over_a_mebibyte_is_an_error_and_not_the_end(hub: HubProcess, agent: str) -> None:
    async with raw_server(hub.port, agent, manner=Manner(tools=("huge", "echo"))), device(hub.port, agent) as it:
        await it.ready()
        for size in (MIB, 4 * MIB):
            with pytest.raises(CallFailed):
                await it.call("huge", {"text": str(size)})
        assert len(await it.call("huge", {"text": str(MIB - 300)})) == MIB - 300
        assert await it.call("echo", {"text": "so"}) == "so"
        assert it.is_open


async def test_a_list_of_over_a_mebibyte_comes_in_pages(hub: HubProcess, agent: str) -> None:
    names = tuple(f"tool{number}" for number in range(40))
    manner = Manner(tools=names, definition={"description": "long " * 8000})
    async with raw_server(hub.port, agent, manner=manner), device(hub.port, agent) as it:
        await it.ready()
        assert tuple(it.tools) == names
        assert max(len(str(one).encode()) for one in it.frames) <= MIB
        assert await it.call("tool39", {"text": "so"}) == "so"


# -- 10 ----------------------------------------------------------------------------------------------------------------


async def test_tokens_of_both_sides_are_accepted_with_a_bare_plus_too(hub: HubProcess) -> None:
    agent, manager_agent = agent_with_plus("python"), agent_with_plus("java")
    ways: list[tuple[str, str, Callable[[str], str]]]
    ways = [(agent, python_token(agent), python_quoted), (agent, python_token(agent), str)]
    java = java_token(manager_agent)
    ways += [(java_agent(manager_agent), java, java_quoted), (java_agent(manager_agent), java, str)]
    assert "+" in python_token(agent)
    for known_as, token, quoted in ways:
        async with raw_server(hub.port, "", url=server_url(hub.port, quoted(token))) as server:
            async with device(hub.port, "", url=device_url(hub.port, quoted(token))) as it:
                await it.ready()
                assert await it.call("echo", {"text": "so"}) == "so"
            assert list(await servers_of(hub, known_as)) == ["raw"]
            assert server.is_open
    said = "".join(hub.said)
    assert python_token(agent)[:20] not in said
    assert java[:20] not in said


@pytest.mark.parametrize("kind", [(), ("--compatible",)], ids=["ours", "compatible"])
async def test_tokens_that_are_made_pass_the_devices_guard_and_open_both_ends(
    hub: HubProcess, agent: str, kind: tuple[str, ...], tmp_path: Path
) -> None:
    config = write_config(tmp_path, {}, relay={"key": KEY})
    options = ("--config", str(config), "--url", f"ws://127.0.0.1:{hub.port}", "--json")
    ended = await run("token", "relay", agent, *kind, *options, folder=CHECKOUT)
    assert ended.code == 0, ended
    made = json.loads(ended.out)
    text = json.dumps(made)
    servers, devices = (next(iter(re.findall(rf'"(ws://[^"]*/{end}/[^"]*)"', text))) for end in ("mcp", "call"))
    assert servers.startswith("ws")
    assert not re.search("key|call", servers, re.IGNORECASE)
    async with raw_server(hub.port, agent, url=servers), device(hub.port, agent, url=devices) as it:
        await it.ready()
        assert await it.call("echo", {"text": "so"}) == "so"
    token = servers.partition("token=")[2]
    assert token[:20] not in "".join(hub.said)
    assert token[:20] not in " ".join(family(os.getpid()).values())


# -- 11 ----------------------------------------------------------------------------------------------------------------


async def test_at_the_end_calls_are_finished_and_each_socket_is_closed_once(tmp_path: Path) -> None:
    agents = {"c": {"grace": 600}}
    async with serving(tmp_path, relay={"key": KEY, "agents": agents}) as own:  # noqa: SIM117 (its last words come after)
        async with (
            raw_server(own.port, "a", manner=Manner(tools=("hold",))) as server,
            pipe(own.port, "a", child("Calculator", "echo")) as piped,
            device(own.port, "a") as busy,
            device(own.port, "b") as idle,
            device(own.port, "c") as patient,
        ):
            async with raw_server(own.port, "c"):
                await eventually(lambda: lists_all(patient, {"echo"}), "it is listed")
            waiting = asyncio.ensure_future(patient.ask("tools/call", {"name": "echo", "arguments": {}}, id=9))
            await eventually(lambda: lists_all(busy, {"hold", "echo"}), "both are listed")
            await idle.ready()
            call = asyncio.ensure_future(busy.call_unlisted("hold", {"text": "done"}))
            await server.holds()
            own.terminate()
            assert (await idle.ended()).code == 1012
            assert "shutting down" in (await waiting)["error"]["data"]["details"]  # new peers are refused
            assert (await patient.ended()).code == 1012
            assert (busy.is_open, server.is_open, call.done()) == (True, True, False)
            await server.release()

            assert await call == "done"
            assert (await busy.ended()).code == 1012
            assert (await server.ended()).code == 1012
            await eventually(lambda: len(piped.endings) == 1, "the pipe is told too")
            assert piped.endings[0].code == 1012
            assert piped.backoffs == [2]
            assert not busy.errors
            assert await asyncio.wait_for(own.process.wait(), 20) == 0
    assert "Traceback" not in "".join(own.said)


# -- 12 ----------------------------------------------------------------------------------------------------------------

BAD_MESSAGES: list[tuple[str | bytes, int]] = [
    ("this is not JSON", -32700),
    ('{"jsonrpc": "2.0", "id": 1', -32700),
    ("", -32700),
    ('[{"jsonrpc": "2.0", "id": 1, "method": "ping"}]', -32600),
    ("[]", -32600),
    ("1", -32600),
    ("null", -32600),
    ('"ping"', -32600),
    (b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}', -32600),
    (b"\xff\xfe\x00", -32600),
    ('{"jsonrpc": "2.0", "id": {}, "method": "ping"}', -32600),
    ('{"jsonrpc": "2.0", "id": 1, "method": 5}', -32600),
    ("[" * 5000 + "]" * 5000, -32700),
]


async def test_invalid_messages_are_answered_and_the_connection_stays_open(hub: HubProcess, agent: str) -> None:
    async with raw_server(hub.port, agent), device(hub.port, agent) as it:
        await it.ready()
        for message, code in BAD_MESSAGES:
            count = len(it.frames)
            await it.say(message)
            answer = await it.frame(count)
            assert answer["error"]["code"] in {code, -32600}, (message, answer)
            assert "result" not in answer, message
            assert await it.call("echo", {"text": "so"}) == "so"
        assert it.is_open


async def test_messages_with_a_newline_and_null_params_are_fine(hub: HubProcess, agent: str) -> None:
    async with raw_server(hub.port, agent), wired(agent_call_url(hub.port, agent)) as wire:
        await wire.say('{"jsonrpc":"2.0","id":1,"method":"tools/list","params":null}\n')
        assert [tool["name"] for tool in (await wire.answer(1))["result"]["tools"]] == ["echo"]


async def test_a_raw_newline_never_becomes_a_second_message(hub: HubProcess, agent: str) -> None:
    smuggled = '{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"echo","arguments":\n{"text":\n"so"}}}'
    async with raw_server(hub.port, agent) as server, wired(agent_call_url(hub.port, agent)) as wire:
        await wire.say(smuggled)
        assert (await wire.answer(5))["result"]["content"][0]["text"] == "so"
        assert not [one for one in server.frames if "\n" in str(one)]


async def test_bad_messages_of_a_server_affect_no_other(hub: HubProcess, agent: str) -> None:
    async with raw_server(hub.port, agent) as server, device(hub.port, agent) as it:
        await it.ready()
        for message, _ in BAD_MESSAGES:
            await server.say(message)
            assert await it.call("echo", {"text": "so"}) == "so"
        assert server.is_open
