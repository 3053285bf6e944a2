"""The relay when its peers or connections fail: others are unaffected, and nothing leaks."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio

from isthmus.identity.relay_tokens import RelayTokens, TokenSettings
from isthmus.model.relay import Claim
from tests.faults.watching import eventually, open_descriptors, watches_files
from tests.hubs import HubProcess, run, serving, write_config
from tests.relay.peers import (
    CallFailed,
    Device,
    Json,
    Manner,
    agent_call_url,
    agent_url,
    at_once,
    child,
    device,
    device_url,
    pipe,
    raw_server,
    server_url,
    wired,
)
from tests.relay.raw_socket import TEXT, frame, raw_socket
from tests.relay.test_points import lists_all, servers_of, statistics
from tests.relay.tokens import KEY, python_quoted, python_token

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.xdist_group("relay")]

MIB = 1 << 20
CALL_SECONDS = 1.5
RECONNECTIONS = 100
FLOOD = 3000
NO_LONGER_GOOD = "token已失效"


class Strict:
    """A hub with little patience and little room."""

    def __init__(self, hub: HubProcess, folder: Path) -> None:
        self.hub = hub
        self.port = hub.port
        self.config = folder / "isthmus.json"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def strict(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Strict]:
    folder = tmp_path_factory.mktemp("strict")
    relay = {
        "key": KEY,
        "wait": 0.3,
        "timeout": CALL_SECONDS,
        "max_agent_connections": 6,
        "max_servers": 3,
        "max_tools": 20,
        "agents": {"patient": {"grace": 15}},
    }
    async with serving(folder, relay=relay) as hub:
        yield Strict(hub, folder)
    received = "".join(hub.said)
    assert "Traceback" not in received, received
    assert python_token("a")[:20] not in received


async def is_right(it: Device) -> bool:
    """Whether a neighbour's call comes back right."""
    return await it.call("echo", {"text": "so"}, within=5) == "so"


# -- too much ----------------------------------------------------------------------------------------------------------


async def test_a_device_that_floods_has_one_answer_each_and_delays_no_other(strict: Strict) -> None:
    call = '{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"echo","arguments":{"text":"%d"}}}'
    async with (
        raw_server(strict.port, "flooded"),
        raw_server(strict.port, "quiet"),
        device(strict.port, "quiet") as neighbour,
        device(strict.port, "flooded") as flooder,
    ):
        await neighbour.ready()
        await flooder.ready()
        before = len(flooder.frames)
        for id in range(FLOOD):
            await flooder.say(call % (id, id))
            if id % 300 == 0:
                assert await is_right(neighbour)
        await flooder.until(lambda: len(flooder.frames) >= before + FLOOD, "every call is answered")
        assert await is_right(neighbour)
        answers = [message for message in flooder.messages[before:] if "method" not in message]
        assert sorted(answer["id"] for answer in answers) == list(range(FLOOD))
        for answer in answers:
            if "result" in answer:
                assert answer["result"]["content"][0]["text"] == str(answer["id"])
            else:
                assert answer["error"]["code"] == -32002


async def test_a_server_that_floods_delays_no_other(strict: Strict) -> None:
    noise = [
        '{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}',
        '{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}',
        '{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1}}',
        '{"jsonrpc":"2.0","id":99999,"result":{}}',
        '{"jsonrpc":"2.0","id":"x","method":"ping"}',
        "no JSON",
    ]
    async with (
        raw_server(strict.port, "noisy") as flooder,
        raw_server(strict.port, "quiet"),
        device(strict.port, "quiet") as neighbour,
        device(strict.port, "noisy") as caller,
    ):
        await neighbour.ready()
        await caller.ready()
        for number in range(FLOOD):
            await flooder.say(noise[number % len(noise)])
            if number % 300 == 0:
                assert await is_right(neighbour)
        assert await is_right(caller)
        assert await is_right(neighbour)
        assert flooder.asked.count("tools/list") < 20, "a change is asked for at most once a second"


@pytest.mark.parametrize("end", ["server", "device"])
async def test_a_frame_that_is_too_long_ends_its_own_connection(strict: Strict, end: str) -> None:
    url = agent_url(strict.port, "long") if end == "server" else agent_call_url(strict.port, "long")
    size = 17 * MIB if end == "server" else 5 * MIB
    async with raw_server(strict.port, "quiet"), device(strict.port, "quiet") as neighbour:
        await neighbour.ready()
        async with raw_socket(url) as it:
            await it.send(frame(TEXT, b'"' + b"x" * size + b'"'))
            closing = await it.closing()
            assert closing is None or closing[0] == 1009
        assert await is_right(neighbour)


async def test_a_long_answer_costs_its_call_only(strict: Strict) -> None:
    async with (
        raw_server(strict.port, "long", manner=Manner(tools=("huge", "echo"))) as server,
        device(strict.port, "long") as it,
    ):
        await it.ready()
        with pytest.raises(CallFailed):
            await it.call("huge", {"text": str(5 * MIB)})
        assert await is_right(it)
        assert server.is_open


# -- too odd ----------------------------------------------------------------------------------------------------------

ODD: list[Json] = [
    {"description": None},
    {"description": 5},
    {"inputSchema": {"type": "object", "required": None, "properties": None}},
    {"inputSchema": {"type": "object", "required": 7, "properties": []}},
    {"inputSchema": {}},
    {"title": None, "annotations": None, "outputSchema": None, "_meta": None},
]


async def test_a_device_that_reads_late_has_every_answer(strict: Strict) -> None:
    ids = set(range(20))
    params = {"name": "huge", "arguments": {"text": "100000"}}
    calls = [{"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params} for id in ids]
    async with (
        raw_server(strict.port, "late", manner=Manner(tools=("huge",))) as server,
        raw_socket(agent_call_url(strict.port, "late"), is_small=True) as reader,
    ):
        await reader.send(b"".join(frame(TEXT, json.dumps(call).encode()) for call in calls))
        await eventually(lambda: server.asked.count("tools/call") == len(ids), "all are called")
        while ids:
            opcode, answer = await reader.read_frame() or (None, b"")
            assert opcode == TEXT
            response = json.loads(answer)
            assert len(response["result"]["content"][0]["text"]) == 100_000
            ids.remove(response["id"])


async def test_a_tool_on_which_devices_give_up_costs_no_other(strict: Strict) -> None:
    for number, definition in enumerate(ODD):
        manner = Manner(tools=(f"odd{number}",), definition=definition)
        async with (
            raw_server(strict.port, "odd", "good"),
            raw_server(strict.port, "odd", f"odd{number}", manner=manner),
            device(strict.port, "odd") as it,
        ):
            await it.ready(within=5)
            assert {"echo", f"odd{number}"} <= set(it.tools)
            assert not it.errors
            assert await is_right(it)


async def test_methods_that_a_device_makes_up_close_the_way_to_no_tool(strict: Strict) -> None:
    async with (
        raw_server(strict.port, "inventive", manner=Manner(silent_at={"foo/bar"})),
        device(strict.port, "inventive") as inventor,
        device(strict.port, "inventive") as it,
    ):
        await it.ready()
        await inventor.ready()
        before = len(inventor.frames)
        for id in range(100, 112):
            await inventor.say({"jsonrpc": "2.0", "id": id, "method": "foo/bar"})

        def answers() -> list[Json]:
            return [message for message in inventor.messages[before:] if "id" in message]

        await inventor.until(lambda: len(answers()) >= 12, "all are answered")
        assert all("error" in answer for answer in answers())
        assert await is_right(it)


async def test_one_device_cannot_keep_a_server_to_itself(strict: Strict) -> None:
    async with (
        raw_server(strict.port, "greedy", manner=Manner(tools=("echo", "hold"))) as server,
        device(strict.port, "greedy") as greedy,
        device(strict.port, "greedy") as it,
    ):
        await it.ready()
        await greedy.ready()
        before = len(greedy.frames)
        for id in range(100, 164):
            await greedy.say({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": "hold"}})
        await server.holds(16)
        assert await is_right(it)
        assert len(server.held) == 16
        for _ in range(4):
            await server.holds(16)
            await server.release()
        await greedy.until(lambda: len(greedy.frames) >= before + 64, "all are answered")
        answers = greedy.messages[before:]
        assert sorted(answer["id"] for answer in answers) == list(range(100, 164))


# -- too slow ----------------------------------------------------------------------------------------------------------


async def test_a_child_that_hangs_is_named_and_the_others_answer(strict: Strict) -> None:
    async with (
        pipe(strict.port, "hanging", child("Stuck", "stuck"), server_id="stuck") as hung,
        pipe(strict.port, "hanging", child("Good", "echo"), server_id="good"),
        device(strict.port, "hanging") as it,
    ):
        await eventually(lambda: lists_all(it, {"stuck", "echo"}), "both are listed")
        assert hung.process is not None
        os.kill(hung.process.pid, signal.SIGSTOP)
        async with at_once(CALL_SECONDS):
            result = (await it.ask("things/list", {}, id=4000))["result"]
        assert (result["total_servers"], result["responded_servers"]) == (2, 1)
        assert "stuck" in json.dumps(result["missing"])
        assert await is_right(it)

        answer = await it.ask("tools/call", {"name": "stuck"}, id=4001)
        assert answer["error"]["code"] == -32002
        assert answer["error"]["data"]["executed"] == "unknown"
        async with device(strict.port, "hanging") as late:
            await late.ready()
            assert set(late.tools) == {"stuck", "echo"}
        os.kill(hung.process.pid, signal.SIGCONT)
        await eventually(lambda: comes_back(it), "it answers again")
        assert hung.backoffs == []


async def comes_back(it: Device) -> bool:
    try:
        return await it.call_unlisted("stuck", {"text": "so"}) == "so"
    except CallFailed:
        return False


async def test_a_device_that_leaves_takes_its_calls_along(strict: Strict) -> None:
    async with raw_server(strict.port, "left", manner=Manner(tools=("hold",))) as server:
        async with device(strict.port, "left") as it:
            await it.ready()
            call = asyncio.ensure_future(it.call("hold", within=20))
            await server.holds()
        await server.until(lambda: "notifications/cancelled" in server.asked, "the server is cancelled")
        received = next(one["params"] for one in server.messages if one.get("method") == "notifications/cancelled")
        assert received == {"requestId": server.held[0]["id"], "reason": "the device disconnected"}
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)


# -- coming and going --------------------------------------------------------------------------------------------------


@pytest.mark.one_process("it counts the sockets and tasks of one process")
@pytest.mark.parametrize("server_id", [None, "same"])
async def test_a_hundred_reconnections_leave_nothing_behind(strict: Strict, server_id: str | None) -> None:
    agent = f"restless-{server_id}"
    async with raw_server(strict.port, "quiet"), device(strict.port, "quiet") as neighbour:
        await neighbour.ready()
        before = open_descriptors(strict.hub.pid)
        connections = (await statistics(strict.hub))["total_connections"]
        for number in range(RECONNECTIONS):
            if number % 3 == 0:  # cut off without a word
                async with raw_socket(agent_url(strict.port, agent, server_id)):
                    pass
            else:
                async with raw_server(strict.port, agent, server_id, is_awaited=number % 3 == 1):
                    pass
            if number % 10 == 0:
                assert await is_right(neighbour)
        await eventually(lambda: open_descriptors(strict.hub.pid) <= before, "every descriptor is closed")
        assert (await statistics(strict.hub))["total_connections"] == connections
        async with raw_server(strict.port, agent, server_id), device(strict.port, agent) as it:
            await it.ready()
            assert await is_right(it)
            assert list(await servers_of(strict.hub, agent)) == [server_id or "raw"]


async def test_a_call_waits_for_its_server_within_the_grace(strict: Strict) -> None:
    async with device(strict.port, "patient") as it:
        async with raw_server(strict.port, "patient", "s1"):
            await eventually(lambda: lists_all(it, {"echo"}), "it is listed")
        await eventually(lambda: is_away(strict, "patient"), "it is away")
        call = asyncio.ensure_future(it.ask("tools/call", {"name": "echo", "arguments": {"text": "late"}}, id=5000))
        async with raw_server(strict.port, "patient", "s1"):
            assert (await call)["result"]["content"][0]["text"] == "late"


async def is_away(strict: Strict, agent: str) -> bool:
    return "s1" not in await servers_of(strict.hub, agent)


async def test_without_a_grace_a_call_fails_at_once(strict: Strict) -> None:
    async with device(strict.port, "hasty") as it:
        async with raw_server(strict.port, "hasty", "s1"):
            await eventually(lambda: lists_all(it, {"echo"}), "it is listed")
        await eventually(lambda: is_away(strict, "hasty"), "it is away")
        async with at_once():
            answer = await it.ask("tools/call", {"name": "echo"}, id=5000)
        assert answer["error"]["code"] == -32001
        assert answer["error"]["data"]["executed"] == "no"


# -- limits and revocation ---------------------------------------------------------------------------------------------


async def test_an_agent_has_so_many_connections_and_others_have_theirs(strict: Strict) -> None:
    async with AsyncExitStack() as stack:
        for number in range(3):
            await stack.enter_async_context(raw_server(strict.port, "crowded", f"s{number}"))
        for _ in range(3):
            await (await stack.enter_async_context(device(strict.port, "crowded"))).ready()
        for url in (agent_url(strict.port, "crowded", "s9"), agent_call_url(strict.port, "crowded")):
            async with wired(url) as further:
                ending = await further.ended()
                assert ending.code in {1008, 1013}
                assert ending.reason
        async with raw_server(strict.port, "quiet"), device(strict.port, "quiet") as neighbour:
            await neighbour.ready()
            assert await is_right(neighbour)
    async with device(strict.port, "crowded") as again:
        await again.ready()


async def test_an_agent_has_so_many_servers_and_tools(strict: Strict) -> None:
    async with AsyncExitStack() as stack:
        for number in range(3):
            names = tuple(f"tool{number}_{index}" for index in range(8))
            manner = Manner(tools=names)
            await stack.enter_async_context(raw_server(strict.port, "greedy", f"s{number}", manner=manner))
        async with raw_server(strict.port, "greedy", "s3", is_awaited=False) as fourth:
            ending = await fourth.ended()
            assert ending.code == 1008
            assert ending.reason
        async with device(strict.port, "greedy") as it:
            await it.ready()
            assert 16 <= len(it.tools) <= 20
            assert await it.call("tool0_0", {"text": "so"}) == "so"


async def test_a_revoked_token_is_cut_off_within_seconds(strict: Strict) -> None:
    tokens = RelayTokens(KEY, TokenSettings(), time.time, lambda _: False)
    good, bad = tokens.mint(Claim("revoked")), tokens.mint(Claim("revoked"))
    claim = tokens.read(bad)
    assert isinstance(claim, Claim)
    async with (
        raw_server(strict.port, "", "good", url=server_url(strict.port, good, "good")) as kept,
        raw_server(strict.port, "", "bad", url=server_url(strict.port, bad, "bad")) as cut,
        device(strict.port, "", url=device_url(strict.port, bad)) as caller,
    ):
        await caller.ready()
        revoking = ("token", "revoke", claim.id, "--config", str(strict.config))
        assert (await run(*revoking, folder=strict.config.parent)).code == 0
        for wire in (cut, caller):
            ending = await wire.ended(within=10)
            assert (ending.code, ending.reason) == (1008, NO_LONGER_GOOD)
        assert kept.is_open
        async with wired(server_url(strict.port, bad)) as again:
            assert (await again.ended()).reason == "token已撤销"


async def test_a_token_that_expires_is_cut_off_within_seconds(strict: Strict) -> None:
    tokens = RelayTokens(KEY, TokenSettings(), time.time, lambda _: False)
    soon = tokens.mint(Claim("brief", expires_at=time.time() + 1.5))
    async with device(strict.port, "", url=device_url(strict.port, soon)) as it:
        await it.ready()
        ending = await it.ended(within=10)
        assert (ending.code, ending.reason) == (1008, NO_LONGER_GOOD)


async def test_a_new_configuration_holds_at_once_for_connected_devices(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, relay={"key": KEY}) as own,
        raw_server(own.port, "a", "s1", manner=Manner(tools=("one", "two"))) as server,
        device(own.port, "a") as it,
    ):
        await it.ready()
        await eventually(lambda: watches_files(own.pid), "the hub watches its file")
        rules = {"a": {"name": "kitchen", "deny": ["kitchen_s1.two"], "allow": ["builtin.echo"]}}
        write_config(tmp_path, {}, relay={"key": KEY, "agents": rules})
        await eventually(lambda: lists_all(it, {"one", "echo"}), "the device sees what it may")
        assert (await it.ask("tools/call", {"name": "two"}, id=5000))["error"]["code"] == -32601
        assert await it.call_unlisted("one", {"text": "so"}) == "so"
        assert server.asked.count("initialize") == 1

        other = "another key, and longer than it needs to be"
        write_config(tmp_path, {}, relay={"key": other})
        for wire in (server, it):
            ending = await wire.ended(within=10)
            assert (ending.code, ending.reason) == (1008, NO_LONGER_GOOD)
        async with device(own.port, "a", url=device_url(own.port, python_quoted(python_token("a", other)))) as again:
            await again.ready()
