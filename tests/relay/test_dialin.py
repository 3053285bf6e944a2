"""A server that dialled in works like any other: on every frontend, with all server features, connected or away."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from isthmus.library import ToolRequest, ToolService
from tests.faults.watching import eventually
from tests.hubs import NODES, TRUSTED, HubProcess, Raw, at_all_nodes, serving, write_config
from tests.matrix.answering_clients import BEHAVIOURS, Answerer, client_of
from tests.peers import content
from tests.peers.client_sdk2 import client_over_http
from tests.peers.launch import command, quick_command
from tests.peers.surveyor import MessageListener, level_set, plain, subscribed
from tests.relay.peers import Json, Manner, agent_url, device, pipe, raw_server
from tests.relay.raw_socket import TEXT, frame, raw_socket
from tests.relay.tokens import KEY

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.xdist_group("relay")]

SECONDS = 20.0
PATIENT = {"key": KEY, "grace": SECONDS}
"""A relay at which calls wait for servers that are away."""


@pytest_asyncio.fixture(loop_scope="session")
async def rest(hub: HubProcess) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{hub.port}", timeout=SECONDS, verify=TRUSTED) as client:
        yield client


async def stands(rest: httpx2.AsyncClient, server: str, state: str) -> Json:
    """Wait until a server stands so, and return what is shown of it."""
    shown: Json = {}

    async def is_so() -> bool:
        shown.clear()
        *others, last = await at_all_nodes(rest, f"/v1/servers/{server}")
        shown.update(last)
        return all(each.get("state") == state for each in (*others, last))

    await eventually(is_so, f"{server} is {state}")
    return shown


async def call(rest: httpx2.AsyncClient, name: str, **arguments: Any) -> Json:
    """Call a tool over REST and return the body of the answer."""
    body: Json = (await rest.post(f"/v1/tools/{name}", json=arguments)).json()
    return body


def text_of(result: Any) -> str:
    """The text of a result of any server."""
    first = result["content"][0] if isinstance(result, dict) else result.content[0]
    return str(first["text"] if isinstance(first, dict) else first.text)


async def over_a2a(rest: httpx2.AsyncClient, name: str, arguments: Json) -> Json:
    """Have a tool called by an A2A agent, and return its task."""
    part = {"kind": "data", "data": {"tool": name, "arguments": arguments}}
    message = {"kind": "message", "messageId": "m1", "role": "user", "parts": [part]}
    params = {"message": message, "configuration": {"blocking": True}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": params}
    task: Json = (await rest.post("/a2a", json=body)).json()["result"]
    return task


# -- every frontend --------------------------------------------------------------------------------------------------


async def test_its_tools_are_listed_and_called_on_every_frontend(
    hub: HubProcess, rest: httpx2.AsyncClient, agent: str
) -> None:
    name = f"{agent}_s1"
    manner = Manner(tools=("echo", "a.b", "rich", "last"), page=2, is_terminated=True)
    async with raw_server(hub.port, agent, "s1", manner=manner) as server, AsyncExitStack() as stack:
        await stands(rest, name, "ready")
        every, own = [await stack.enter_async_context(Raw(url)) for url in (hub.url, hub.url_of(name))]
        assert {f"{name}.{tool}" for tool in manner.tools} <= {*await every.names()}
        assert await own.names() == [*manner.tools]
        assert text_of((await every.call(f"{name}.echo", {"text": "one"}))["result"]) == "one"
        assert text_of((await own.call("a.b", {"text": "two"}))["result"]) == "two"
        earlier = await stack.enter_async_context(client_over_http(hub.url, mode="legacy"))
        assert text_of(await earlier.call_tool(f"{name}.last", {"text": "three"})) == "three"
        assert text_of(await call(rest, f"{name}.echo", text="four")) == "four"
        rich = await call(rest, f"{name}.rich", text="x")
        assert (rich["structuredContent"], rich["_meta"]) == ({"said": "x"}, {"a/b": 1})
        task = await over_a2a(rest, f"{name}.echo", {"text": "five"})
        assert task["status"]["state"] == "completed"
        assert "five" in json.dumps(task["artifacts"])
        robot = await stack.enter_async_context(device(hub.port, agent))
        await robot.ready()
        assert await robot.call("echo", {"text": "six"}) == "six"
        service = ToolService()
        await service.initialize(hub=f"http://127.0.0.1:{hub.port}")
        async with service:
            assert {f"{name}.{tool}" for tool in manner.tools} <= {*await service.list_tools()}
            said = await service.execute_tool(ToolRequest(f"{name}.echo", parameters={"text": "seven"}))
            assert said.text == "seven"
        methods = server.asked
        assert methods[:4] == ["initialize", "notifications/initialized", "tools/list", "tools/list"]
        assert methods.count("initialize") == 1


async def test_rest_shows_a_dial_in_server(hub: HubProcess, rest: httpx2.AsyncClient, agent: str) -> None:
    async with raw_server(hub.port, agent, manner=Manner("lamp", ("on", "off"))):
        shown = await stands(rest, f"{agent}_lamp", "ready")
        assert "dial-in" in shown.values()
        found = (await rest.get("/v1/relay/servers", params={"agent": agent})).json()["servers"]
        assert [(each["serverId"], each["state"]) for each in found] == [("lamp", "ready")]


async def test_a_list_that_changes_is_read_again(hub: HubProcess, rest: httpx2.AsyncClient, agent: str) -> None:
    ear = MessageListener()
    async with raw_server(hub.port, agent, "s1") as server:
        await stands(rest, f"{agent}_s1", "ready")
        async with client_over_http(hub.url_of(f"{agent}_s1"), mode="legacy", listener=ear) as client:
            await client.list_tools()
            await server.change("echo", "new")
            await eventually(lambda: "tools" in ear.announced, "the change is announced")
            assert [tool.name for tool in (await client.list_tools()).tools] == ["echo", "new"]


# -- with all that servers can do ------------------------------------------------------------------------------------


async def test_a_server_of_the_official_sdk_behind_a_pipe_loses_nothing(
    hub: HubProcess, rest: httpx2.AsyncClient, agent: str
) -> None:
    ear = MessageListener()
    steps: list[float] = []

    async def step(progress: float, total: float | None, message: str | None) -> None:
        steps.append(progress)

    async with pipe(hub.port, agent, quick_command("full_sdk1")):
        name = f"{agent}_full-sdk1"
        await stands(rest, name, "ready")
        async with client_over_http(hub.url_of(name), mode="legacy", listener=ear) as client:
            await client.call_tool("slow", {"seconds": 0.03, "steps": 3}, progress_callback=step)
            assert steps == [1, 2, 3]
            await level_set(client, "warning")
            await client.call_tool("log_some", {})
            assert [line["level"] for line in ear.logs] == list(content.LEVELS[content.LEVELS.index("warning") :])
            await client.call_tool("grow_tools", {"name": "grown"})
            await eventually(lambda: "tools" in ear.announced, "the change is heard")
            assert "grown" in [tool.name for tool in (await client.list_tools()).tools]
            assert (await client.get_prompt(content.PLAIN_PROMPT)).messages
            (held,) = (await client.read_resource(content.TEXT_URI)).contents
            assert plain(held)["text"] == content.TEXT
            await subscribed(client, content.WATCHED_URI)
            await client.call_tool("touch", {})
            await eventually(lambda: content.WATCHED_URI in ear.announced, "the update is heard")


async def test_questions_of_a_dial_in_server_go_to_the_caller(
    hub: HubProcess, rest: httpx2.AsyncClient, agent: str
) -> None:
    async with pipe(hub.port, agent, command("asking_sdk1")), AsyncExitStack() as stack:
        name = f"{agent}_asking-sdk1"
        await stands(rest, name, "ready")
        able, unable = Answerer(BEHAVIOURS["able"]), Answerer(BEHAVIOURS["unable"])
        for era in ("sdk2-legacy", "sdk2-modern"):
            client = await client_of(stack, hub.url_of(name), able, era)
            response = await able.call(client, "test_input_required_result_elicitation", {})
            assert response == {"text": "Hello, Ada!", "asked": [["elicitation/create", "What is your name?"]]}
            response = await able.call(client, "test_input_required_result_list_roots", {})
            assert response["asked"] == [["roots/list", ""]]
        client = await client_of(stack, hub.url_of(name), unable, "sdk2-legacy")
        response = await unable.call(client, "test_input_required_result_elicitation", {})
        assert "error" in response
        assert response["asked"] == []


async def test_a_call_that_is_cancelled_is_cancelled_there(
    hub: HubProcess, rest: httpx2.AsyncClient, agent: str
) -> None:
    async with raw_server(hub.port, agent, "s1", manner=Manner(tools=("hold",))) as server:
        await stands(rest, f"{agent}_s1", "ready")
        with pytest.raises(httpx2.ReadTimeout):
            await rest.post(f"/v1/tools/{agent}_s1.hold", json={}, timeout=0.3)
        await server.until(lambda: "notifications/cancelled" in server.asked, "the call is cancelled")
        received = next(each for each in server.messages if each.get("method") == "notifications/cancelled")
        assert received["params"]["requestId"] == server.held[0]["id"]


# -- here and away ---------------------------------------------------------------------------------------------------


async def test_away_it_is_marked_and_back_it_works(hub: HubProcess, rest: httpx2.AsyncClient, agent: str) -> None:
    name = f"{agent}_s1"
    async with raw_server(hub.port, agent, "s1", manner=Manner(tools=("echo", "hold"))) as server:
        await stands(rest, name, "ready")
        running = asyncio.create_task(call(rest, f"{name}.hold"))
        await server.holds()
        server.socket.transport.abort()  # what the death of its process, or of its network, looks like
        async with asyncio.timeout(2):
            lost = await running
    assert lost["executed"] == "unknown"
    shown = await stands(rest, name, "away")
    assert shown["reason"].startswith("it is not connected: ")
    listed = (await rest.get("/v1/tools", params={"server": name})).json()
    assert [tool["name"] for tool in listed["tools"]] == [f"{name}.echo", f"{name}.hold"]
    assert listed["missing"][name]["state"] == "away"
    refused = await call(rest, f"{name}.echo", text="x")
    assert (refused["reason"], refused["executed"]) == ("not_connected", "no")
    async with Raw(hub.url) as everybody:
        answer = await everybody.call(f"{name}.echo", {"text": "x"})
        assert (answer["error"]["code"], answer["error"]["data"]["executed"]) == (-32011, "no")
    async with raw_server(hub.port, agent, "s1"):
        await stands(rest, name, "ready")
        assert text_of(await call(rest, f"{name}.echo", text="back")) == "back"


async def test_a_half_open_connection_is_replaced_by_its_server(
    hub: HubProcess, rest: httpx2.AsyncClient, agent: str
) -> None:
    answers = {
        "initialize": {
            "protocolVersion": "2024-11-05",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "lamp", "version": "1"},
        },
        "tools/list": {"tools": []},
    }
    async with raw_socket(agent_url(hub.port, agent)) as deaf:
        for method, result in answers.items():
            asked: Json = {}
            while asked.get("method") != method:
                got = await deaf.read_frame()
                assert got is not None
                asked = json.loads(got[1])
            await deaf.send(frame(TEXT, json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}).encode()))
        await stands(rest, f"{agent}_lamp", "ready")
        async with raw_server(hub.port, agent, manner=Manner("lamp", ("on",))):
            await eventually(lambda: is_listed(rest, f"{agent}_lamp.on"), "the new one has the name")
            elsewhere = [(1013, "a server of this name connected to another node")] if NODES > 1 else []
            assert await deaf.closing() in [(1008, "it does not respond"), *elsewhere]
            assert (await rest.get(f"/v1/servers/{agent}_lamp_2")).status_code == 404


async def is_listed(rest: httpx2.AsyncClient, name: str) -> bool:
    """Whether there is such a tool."""
    return (await rest.get(f"/v1/tools/{name}")).status_code == 200


async def test_a_configured_server_has_its_name_and_the_one_that_dialled_in_another(tmp_path: Path, agent: str) -> None:
    async with serving(tmp_path, relay=PATIENT) as hub, raw_server(hub.port, agent, "s1") as server:
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{hub.port}", timeout=SECONDS, verify=TRUSTED) as rest:
            await stands(rest, f"{agent}_s1", "ready")
            relay = {**PATIENT, "agents": {agent: {"name": "kitchen"}}}
            write_config(tmp_path, {}, relay=relay)
            await stands(rest, "kitchen_s1", "ready")
            assert text_of(await call(rest, "kitchen_s1.echo", text="x")) == "x"
            write_config(tmp_path, {"kitchen_s1": {"command": "/no/such/program"}}, relay=relay)
            await stands(rest, "kitchen_s1", "retrying")
            (moved,) = (await rest.get("/v1/relay/servers", params={"agent": agent})).json()["servers"]
            assert moved["name"].startswith("kitchen_s1_")
            assert text_of(await call(rest, f"{moved['name']}.echo", text="y")) == "y"
        assert server.asked.count("initialize") == 1


DIALLER = """
import asyncio, json, os, sys
from websockets.asyncio.client import connect

async def main():
    async with connect(sys.argv[1], proxy=None) as socket:
        async for frame in socket:
            asked = json.loads(frame)
            tools = [{"name": "die", "inputSchema": {"type": "object"}}]
            answers = {
                "initialize": {"protocolVersion": "2024-11-05", "capabilities": {"tools": {}},
                               "serverInfo": {"name": "mortal", "version": "1"}},
                "tools/list": {"tools": tools},
            }
            if asked.get("method") == "tools/call":
                print(os.getpid(), flush=True)
            if asked.get("method") in answers:
                await socket.send(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": answers[asked["method"]]}))

asyncio.run(main())
"""


async def test_a_program_that_is_killed_in_a_call_costs_that_call_and_no_time(
    hub: HubProcess, rest: httpx2.AsyncClient, agent: str
) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", DIALLER, agent_url(hub.port, agent), stdout=asyncio.subprocess.PIPE
    )
    try:
        await stands(rest, f"{agent}_mortal", "ready")
        running = asyncio.create_task(call(rest, f"{agent}_mortal.die"))
        assert process.stdout is not None
        os.kill(int(await process.stdout.readline()), signal.SIGKILL)
        async with asyncio.timeout(2):
            lost = await running
        assert lost["executed"] == "unknown"
        await stands(rest, f"{agent}_mortal", "away")
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


# -- a hub that ends and starts again --------------------------------------------------------------------------------
@pytest.mark.one_process("it reads the SQLite journal in the state folder")
async def test_after_a_hub_was_killed_its_servers_are_known_and_calls_wait_for_them(tmp_path: Path, agent: str) -> None:
    name = f"{agent}_s1"

    async def kill_once_it_is_known() -> None:
        async with serving(tmp_path, relay=PATIENT) as hub, raw_server(hub.port, agent, "s1"):
            await eventually(lambda: _is_kept(tmp_path), "it is written down")
            hub.process.kill()

    with pytest.raises(AssertionError, match="the hub ended with"):
        await kill_once_it_is_known()
    async with (
        serving(tmp_path, relay=PATIENT) as hub,
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{hub.port}", timeout=SECONDS, verify=TRUSTED) as rest,
    ):
        shown = await stands(rest, name, "away")
        assert "since the hub was started" in shown["reason"]
        waiting = asyncio.create_task(call(rest, f"{name}.echo", text="at last"))
        async with raw_server(hub.port, agent, "s1"):
            assert text_of(await waiting) == "at last"


def _is_kept(folder: Path) -> bool:
    """Whether the hub's journal has, in a transaction that is over, what the server that dialled in offers."""
    place = (folder / "state" / "journal.db").as_uri()
    try:
        with closing(sqlite3.connect(f"{place}?mode=ro", uri=True)) as journal:
            found = journal.execute("SELECT 1 FROM documents WHERE instr(CAST(body AS TEXT), '\"echo\"')").fetchone()
    except sqlite3.Error:  # it is not there yet
        return False
    return found is not None
