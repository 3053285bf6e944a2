"""Local servers that `isthmus dial` brings to a hub: real processes on all sides, and each is killed on the way."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import httpx2
import pytest
import pytest_asyncio
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from isthmus.model.relay import MUX_SUBPROTOCOL
from isthmus.upstream.dialin.settings import DialInSettings
from tests.faults.watching import eventually
from tests.fork_server import forked
from tests.hubs import META, TRUSTED, HubProcess, Raw, environment, serving, write_config
from tests.relay.dialling import PATIENCE, DialProcess, child, dialling, write_servers
from tests.relay.peers import agent_url, device
from tests.relay.tokens import KEY, python_quoted, python_token

pytestmark = [
    pytest.mark.usefixtures("no_leftovers"),
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.xdist_group("relay"),
]

Json = dict[str, Any]
ASKABLE = {**META, "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}}}


KEYS = {"alice": "alice" * 8, "berta": "berta" * 8}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def guarded(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HubProcess]:
    """A hub whose callers have names, and in which calls wait for servers that are away."""
    callers = {name: {"key": key, "allow": ["*"]} for name, key in KEYS.items()}
    async with serving(tmp_path_factory.mktemp("guarded"), relay={"key": KEY, "grace": 20}, callers=callers) as running:
        yield running


def text_of(answer: Json) -> str:
    """The text of a tool's result."""
    assert "result" in answer, answer
    return str(answer["result"]["content"][0]["text"])


async def says(hub: Raw, name: str, **arguments: Any) -> str:
    """Call a tool and return its text."""
    return text_of(await hub.call(name, arguments))


def of_process(pid: int, what: str) -> str:
    """Something that the system shows of a process."""
    return Path(f"/proc/{pid}/{what}").read_text()


async def offered(dial: DialProcess, *names: str) -> None:
    """Wait until the hub has said what it calls these servers."""
    await dial.logged("server offered", len(names))
    assert {event["hub_name"] for event in dial.events("server offered")} == {*names}
    for port, name in product(dial.nodes, names):  # each has it some milliseconds later than the one that says it
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", verify=TRUSTED) as http:
            await eventually(partial(is_ready, http, name), f"{name} is at all nodes")


async def is_ready(http: httpx2.AsyncClient, name: str) -> bool:
    """Whether a node has a server."""
    answer = await http.get(f"/v1/servers/{name}")
    if answer.status_code == 401:
        answer = await http.get(f"/v1/servers/{name}", headers={"x-api-key": KEYS["alice"]})
    return bool(answer.json().get("state") == "ready")


# -- at work -------------------------------------------------------------------------------------------------------


async def test_servers_behind_one_connection_are_called_by_everybody_and_equal_ids_do_not_meet(
    hub: HubProcess, agent: str, tmp_path: Path
) -> None:
    file = write_servers(tmp_path, "one", "two")
    async with dialling(agent_url(hub.port, agent), "--config", str(file)) as dial, Raw(hub.url) as caller:
        await offered(dial, f"{agent}_one", f"{agent}_two")
        assert (await dial.logged("connected"))["shared"] is True
        names = [f"{agent}_{server}.echo" for server in ("one", "two")]
        assert {*names} <= {*await caller.names()}
        calls = [caller.call(names[n % 2], {"text": f"{n}"}, id=1) for n in range(100)]
        assert [text_of(answer) for answer in await asyncio.gather(*calls)] == [f"{n}" for n in range(100)]
        held = asyncio.ensure_future(caller.call(f"{agent}_one.hold"))
        await holds(caller, f"{agent}_one")
        held.cancel()
        async with asyncio.timeout(PATIENCE):
            while "withdrawn 1" not in await says(caller, f"{agent}_one.count"):
                pass
        async with device(hub.port, agent) as robot:
            await robot.ready()
            welcomes = (await robot.frame(0))["result"]["responses"]
            assert {(each["server_id"], each["serverInfo"]["name"]) for each in welcomes} == {
                ("one",) * 2,
                ("two",) * 2,
            }
            assert await robot.call("echo", {"text": "from a device"}) == "from a device"
        assert python_token(agent) not in "".join(dial.said)
        assert python_quoted(python_token(agent)) not in "".join(dial.said)


async def test_a_tool_that_is_run_as_a_task_only_is_called_like_any_other(hub: HubProcess, agent: str) -> None:
    async with (
        dialling(agent_url(hub.port, agent), "--server-id", "one", "--", *child("one")) as dial,
        Raw(hub.url) as caller,
    ):
        await offered(dial, f"{agent}_one")
        assert await says(caller, f"{agent}_one.work") == "work is done"
        with pytest.raises(httpx2.ReadTimeout):
            async with Raw(hub.url, seconds=0.5) as hasty:
                await hasty.call(f"{agent}_one.work", {"for_ever": True})
        async with asyncio.timeout(PATIENCE):
            while "withdrawn 1, cancelled 1" not in await says(caller, f"{agent}_one.count"):
                pass


async def test_it_says_that_it_waits_for_a_server_before_it_dials(hub: HubProcess, agent: str) -> None:
    async with dialling(agent_url(hub.port, agent), "--server-id", "absent", "--", "/no/such/program") as dial:
        response = await dial.logged("waiting for a local server to become ready before connecting to the hub")
        assert response["servers"] == ["absent"]
        await dial.logged("server not connected")
        assert dial.events("connected") == []


async def test_a_stuck_server_costs_only_its_own_calls(hub: HubProcess, agent: str, tmp_path: Path) -> None:
    file = write_servers(tmp_path, "stuck", "well")
    async with dialling(agent_url(hub.port, agent), "--config", str(file)) as dial, Raw(hub.url) as caller:
        await offered(dial, f"{agent}_stuck", f"{agent}_well")
        waiting = asyncio.ensure_future(caller.call(f"{agent}_stuck.stick"))
        try:
            long = "x" * 1024 * 1024
            flood = [asyncio.ensure_future(caller.call(f"{agent}_stuck.echo", {"text": long})) for _ in range(8)]
            for n in range(20):
                assert await says(caller, f"{agent}_well.echo", text=f"{n}") == f"{n}"
            assert not waiting.done()
        finally:
            for each in (waiting, *flood):
                each.cancel()
            await asyncio.gather(waiting, *flood, return_exceptions=True)


async def test_a_server_asks_the_caller_through_it(hub: HubProcess, agent: str) -> None:
    words = ("--server-id", "asking", "--", *child("asking"))
    async with dialling(agent_url(hub.port, agent), *words) as dial, Raw(hub.url) as caller:
        await offered(dial, f"{agent}_asking")
        headers = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": f"{agent}_asking.ask"}
        params: Json = {"name": f"{agent}_asking.ask", "arguments": {}, "_meta": ASKABLE}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        held = asyncio.ensure_future(caller.call(f"{agent}_asking.hold"))
        await holds(caller, f"{agent}_asking")
        held.cancel()  # the server might still ask about it, and of nobody who can be asked
        async with asyncio.timeout(PATIENCE):
            while "withdrawn 1" not in await says(caller, f"{agent}_asking.count"):
                pass
        asked = (await caller.post(body, headers)).json()["result"]
        assert asked["resultType"] == "input_required"
        ((key, question),) = asked["inputRequests"].items()
        assert question["params"]["message"] == "Which colour?"
        answer = {"action": "accept", "content": {"colour": "blue"}}
        params |= {"inputResponses": {key: answer}, "requestState": asked["requestState"]}
        assert json.loads(text_of((await caller.post(body, headers)).json())) == answer
        # A caller without elicitation is not asked: the server gets an error, and the next question reaches its caller.
        assert "error" not in await caller.call(f"{agent}_asking.ask")


def a_call(name: str, **arguments: Any) -> tuple[Json, dict[str, str]]:
    """The request of a caller that can be asked, and its headers."""
    headers = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": name}
    params: Json = {"name": name, "arguments": arguments, "_meta": ASKABLE}
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}, headers


async def test_a_question_in_one_callers_call_does_not_go_to_another(guarded: HubProcess, tmp_path: Path) -> None:
    """It asks without saying about which call, when the other's has come last."""
    file = str(tmp_path / "held")
    async with (
        dialling(agent_url(guarded.port, "robot"), "--server-id", "asking", "--", *child("asking")) as dial,
        Raw(guarded.url, key=KEYS["alice"]) as alice,
        Raw(guarded.url, key=KEYS["berta"]) as berta,
    ):
        await offered(dial, "robot_asking")
        asking = asyncio.ensure_future(alice.post(*a_call("robot_asking.ask", after=file)))
        async with asyncio.timeout(PATIENCE):
            while not Path(f"{file}.awaited").exists():  # noqa: ASYNC110, ASYNC240 - the child tells by nothing else
                await asyncio.sleep(0.01)
        holding = asyncio.ensure_future(berta.post(*a_call("robot_asking.hold", file=file)))
        try:
            await asyncio.wait({asking, holding}, return_when=asyncio.FIRST_COMPLETED)
            assert not holding.done(), holding.result().text
            asked = (await asking).json()["result"]
            assert asked["resultType"] == "input_required", asked
        finally:
            holding.cancel()


@pytest.mark.parametrize("words", [(), ("--compatible",)], ids=["shared", "plain"])
async def test_a_child_that_is_killed_is_started_again(hub: HubProcess, agent: str, words: tuple[str, ...]) -> None:
    async with dialling(agent_url(hub.port, agent), *words, "--", *child("one")) as dial, Raw(hub.url) as caller:
        server = f"{agent}_dial_child"
        for port in dial.nodes or (hub.port,):
            async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", verify=TRUSTED) as http:
                await eventually(partial(is_ready, http, server), "the server is there")
        pid = int(await says(caller, f"{server}.pid"))
        held = asyncio.ensure_future(caller.call(f"{server}.hold"))
        await holds(caller, server)
        os.kill(pid, signal.SIGKILL)
        error = (await asyncio.wait_for(held, PATIENCE))["error"]
        assert "SIGKILL" in error["message"], error
        assert error["data"]["executed"] == "unknown", error
        assert int(await says(caller, f"{server}.pid")) != pid
        assert len(dial.events("connected")) == 1


async def holds(caller: Raw, server: str) -> None:
    """Return once the child has the call that it does not answer."""
    async with asyncio.timeout(PATIENCE):
        while "held 1" not in await says(caller, f"{server}.count"):
            pass


async def test_local_servers_do_not_get_the_token(hub: HubProcess, agent: str, tmp_path: Path) -> None:
    """The token is neither in their environment nor, where it comes by a file, on anybody's command line."""
    token = python_token(agent)
    (tmp_path / "token").write_text(token + "\n")
    url = f"http://127.0.0.1:{hub.port}"
    words = (url, "--token-file", str(tmp_path / "token"), "--", *child("one"))
    env = {"ISTHMUS_RELAY_TOKEN": token, "MCP_ENDPOINT": f"ws://elsewhere/?token={token}"}
    async with dialling(*words, env=env) as dial, Raw(hub.url) as caller:
        await offered(dial, f"{agent}_dial_child")
        pid = int(await says(caller, f"{agent}_dial_child.pid"))
        assert token not in of_process(pid, "environ")
        assert token not in of_process(dial.process.pid, "cmdline")
        assert token not in "".join(dial.said)


# -- clients that are not ours ---------------------------------------------------------------------------------------


@asynccontextmanager
async def sharing(hub: HubProcess, agent: str) -> AsyncIterator[ClientConnection]:
    """A client that shares its socket, and does as the test says."""
    async with connect(agent_url(hub.port, agent), subprotocols=[Subprotocol(MUX_SUBPROTOCOL)]) as socket:
        assert socket.subprotocol == MUX_SUBPROTOCOL
        yield socket


async def until_closed(socket: ClientConnection) -> tuple[int | None, str | None]:
    """Read until the hub closes the socket: how it did."""
    with suppress(ConnectionClosed):
        async with asyncio.timeout(PATIENCE):
            while True:
                await socket.recv()
    return socket.close_code, socket.close_reason


@pytest.mark.parametrize(
    "frames",
    [["nonsense"], [""], ["0 []"], ['0 {"open": 0}'], ["01 {}"], [b"\xff\xfe"], ['0 {"open": 1}'] * 2],
    ids=["no number", "nothing", "no object", "channel 0", "another spelling", "no text", "open already"],
)
async def test_a_client_that_does_not_keep_to_the_frames_is_closed_with_a_reason(
    hub: HubProcess, agent: str, frames: list[str | bytes]
) -> None:
    async with sharing(hub, agent) as socket:
        for frame in frames:
            await socket.send(frame)
        code, reason = await until_closed(socket)
        assert code == 1008
        assert reason


async def test_channels_that_only_arrive_are_as_many_as_an_agent_may_have_servers(hub: HubProcess, agent: str) -> None:
    most, opened = DialInSettings().max_servers, 60
    async with sharing(hub, agent) as socket:
        for number in range(1, opened + 1):
            await socket.send(f'0 {{"open": {number}}}')
        await socket.send("7 this is no message")
        refused: dict[int, int] = {}
        greeted: set[int] = set()
        async with asyncio.timeout(PATIENCE):
            while len(refused) < opened - most or len(greeted) < most:
                digits, _, message = str(await socket.recv()).partition(" ")
                word = json.loads(message)
                if digits != "0":
                    greeted.add(int(digits))
                elif "closed" in word:
                    refused[word["closed"]] = word["code"]
        assert refused == dict.fromkeys(range(most + 1, opened + 1), 1013)
        assert greeted == {*range(1, most + 1)}


# -- ending --------------------------------------------------------------------------------------------------------


async def test_its_end_takes_its_servers_along_and_the_hub_knows(hub: HubProcess, agent: str) -> None:
    async with Raw(hub.url) as caller:
        async with dialling(agent_url(hub.port, agent), "--", *child("one")) as dial:
            await offered(dial, f"{agent}_dial_child")
            pid = int(await says(caller, f"{agent}_dial_child.pid"))
            held = asyncio.ensure_future(caller.call(f"{agent}_dial_child.hold"))
            await holds(caller, f"{agent}_dial_child")
            assert await dial.end() == 0
        assert "error" in await asyncio.wait_for(held, PATIENCE)
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        error = (await caller.call(f"{agent}_dial_child.echo"))["error"]
        assert (error["code"], error["data"]["executed"]) == (-32011, "no")


async def test_calls_wait_in_the_hub_while_it_is_restarted(guarded: HubProcess) -> None:
    words = ("--server-id", "one", "--", *child("one"))
    async with Raw(guarded.url, key=KEYS["alice"]) as caller:
        async with dialling(agent_url(guarded.port, "robot"), *words) as dial:
            await offered(dial, "robot_one")
            held = asyncio.ensure_future(caller.call("robot_one.hold"))
            await holds(caller, "robot_one")
            ending = asyncio.ensure_future(dial.end())
            calls: list[asyncio.Future[Json]] = []
            while not ending.done():
                calls.append(asyncio.ensure_future(caller.call("robot_one.echo", {"text": f"{len(calls)}"})))
                await asyncio.wait({ending}, timeout=0.2)
        error = (await held)["error"]
        assert error["data"]["executed"] == "unknown", error
        async with dialling(agent_url(guarded.port, "robot"), *words):
            first, *others = await asyncio.gather(*calls)
            assert [text_of(answer) for answer in others] == [f"{n}" for n in range(1, len(calls))]
            # The first may have been on its way when the client was told to end: then it was not run, and says so.
            assert first["error"]["data"]["executed"] == "no" if "error" in first else text_of(first) == "0", first


# -- a hub that goes and comes ---------------------------------------------------------------------------------------


@asynccontextmanager
async def hub_at(folder: Path, port: int) -> AsyncIterator[HubProcess]:
    """A hub that has this port, or any if that is 0; it is killed at the end, unless it has ended."""
    file = write_config(folder, {}, relay={"key": KEY, "grace": 20})
    process = await forked(["serve", "--config", str(file), "--port", str(port)], environment(), folder)
    try:
        async with asyncio.timeout(PATIENCE):
            while b'"listening"' not in (line := await process.stderr.readline()):
                assert line, "the hub did not start"
        drained = asyncio.ensure_future(process.stderr.read())
        yield HubProcess(process, int(json.loads(line)["url"].rpartition(":")[2].partition("/")[0]))
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
    await drained


def is_remembered(file: Path, tool: bytes) -> bool:
    """Whether a hub has kept what a server listed; it does so beside the calls, which do not wait for it."""
    with closing(sqlite3.connect(file)) as journal:
        found = journal.execute("SELECT 1 FROM documents WHERE instr(body, ?) LIMIT 1", (tool,))
        return found.fetchone() is not None


async def test_a_hub_that_is_killed_or_restarts_has_its_servers_back_and_they_do_not_notice(tmp_path: Path) -> None:
    async with hub_at(tmp_path, 0) as hub:
        port = hub.port
        async with dialling(agent_url(port, "robot"), "--", *child("one")) as dial:
            await offered(dial, "robot_dial_child")
            async with Raw(hub.url) as caller:
                pid = await says(caller, "robot_dial_child.pid")
            await eventually(lambda: is_remembered(tmp_path / "state" / "journal.db", b"pid"), "it is written down")
            hub.process.kill()
            await hub.process.wait()
            await dial.logged("hub not connected")

            async with hub_at(tmp_path, port) as again, Raw(again.url) as caller:
                # At once: the call waits for the server, which the hub remembers.
                assert await says(caller, "robot_dial_child.pid") == pid
                assert await says(caller, "robot_dial_child.count") == "greeted 1, held 0, withdrawn 0"
                assert len(dial.events("connected")) == 2
                before = len(dial.events("hub not connected"))
                again.terminate()
                assert await asyncio.wait_for(again.process.wait(), PATIENCE) == 0
            lost = await dial.logged("hub not connected", before + 1)
            assert "1012" in lost["reason"]
            assert lost["again_in"] <= 1.0
