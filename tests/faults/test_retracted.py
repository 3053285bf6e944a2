"""A question that its server retracts, or that ends with its call, is retracted at the caller."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import httpx2
import pytest
import pytest_asyncio
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import ElicitRequestParams, ElicitResult, ErrorData

from tests.faults.eliciting_servers import CAN, SECONDS, AnsweringCaller, Line, text_of
from tests.fork_server import quick_isthmus
from tests.hubs import HubProcess, environment, serving, stdio, write_config
from tests.peers.launch import listening_peer

pytestmark = pytest.mark.asyncio(loop_scope="module")

DOUBTING = [sys.executable, str(Path(__file__).with_name("doubting_server.py"))]
CARRIERS = ("stdio", "websocket", "sse", "post", "get")
FRONTENDS = ("http", "sse", "stdio")
HELLO = {"protocolVersion": "2025-06-18", "capabilities": CAN, "clientInfo": {"name": "t", "version": "1"}}
KEY = "a-key-that-is-long-enough"
BEARER = {"authorization": f"Bearer {KEY}"}
CALLERS = {"ann": {"key": KEY, "allow": ["*"]}}
PATIENT = {"listing_seconds": 30.0}
WAITS_SECONDS = 0.5
"""Who is answered later is taken to wait for the end of its call; one that is merely slow is asked once more."""

by_every_carrier = pytest.mark.parametrize("carrier", CARRIERS)


async def server_of(stack: AsyncExitStack, carrier: str) -> dict[str, Any]:
    """The server's entry in the configuration."""
    if carrier == "stdio":
        return stdio(DOUBTING, era="legacy")
    transport = "websocket" if carrier == "websocket" else "http"
    asks = "get" if carrier == "get" else "post"
    peer = await stack.enter_async_context(listening_peer([*DOUBTING, "--transport", transport, "--asks", asks]))
    if carrier == "websocket":
        return {"url": peer.socket_url, "era": "legacy"}
    if carrier == "sse":
        return {"url": peer.at("/sse"), "type": "sse"}
    return {"url": peer.url, "type": "http", "era": "legacy"}


# -- callers of the earlier era ----------------------------------------------------------------------------------------


class Speaker(Protocol):
    """A caller that has one call under way."""

    async def call(self, params: dict[str, Any]) -> None:
        """Call, and leave the answer to `hear`."""

    async def say(self, message: dict[str, Any]) -> None:
        """Say something beside the call."""

    async def receive(self) -> Any:
        """The next message."""


class OverHttp:
    """Over Streamable HTTP: the call has a stream of its own."""

    def __init__(self, person: AnsweringCaller, lines: tuple[Line, Line]) -> None:
        self._person = person
        self._lines = lines

    async def call(self, params: dict[str, Any]) -> None:
        self._lines[0].write("/mcp", self._person.session, {"id": 1, "method": "tools/call", "params": params})
        assert "content-length" not in await self._lines[0].head()

    async def say(self, message: dict[str, Any]) -> None:
        self._lines[1].write("/mcp", self._person.session, message)
        assert (await self._lines[1].head())[":status"] == "202"

    async def receive(self) -> Any:
        return await self._lines[0].event()


class OverSse:
    """Over the earlier HTTP+SSE: everything is heard on one stream."""

    def __init__(self, lines: tuple[Line, Line], address: str) -> None:
        self._lines = lines
        self._address = address

    async def call(self, params: dict[str, Any]) -> None:
        await self.say({"id": 1, "method": "tools/call", "params": params})

    async def say(self, message: dict[str, Any]) -> None:
        self._lines[1].write(self._address, BEARER, message)
        assert (await self._lines[1].head())[":status"] == "202"

    async def receive(self) -> Any:
        return await self._lines[0].event()


class OverStdio:
    """Over standard streams."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process, self._out, self._in = process, process.stdin, process.stdout

    async def call(self, params: dict[str, Any]) -> None:
        await self.say({"id": 1, "method": "tools/call", "params": params})

    async def say(self, message: dict[str, Any]) -> None:
        self._out.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        await self._out.drain()

    async def receive(self) -> Any:
        return json.loads(await self._in.readline())


@asynccontextmanager
async def speaker_at(frontend: str, scene: Scene) -> AsyncIterator[Speaker]:
    """A caller that can be asked, and has been greeted."""
    if frontend == "stdio":
        config = write_config(scene.folder, {scene.name: scene.server}, limits=PATIENT)
        async with process_of(quick_isthmus("stdio", "--config", str(config))) as process:
            yield await greeted(OverStdio(process))
        return
    lines = await Line.open(scene.hub.port), await Line.open(scene.hub.port)
    try:
        if frontend == "sse":
            lines[0].get("/sse", BEARER)
            await lines[0].head()
            yield await greeted(OverSse(lines, await lines[0].endpoint()))
        else:
            person = AnsweringCaller(scene.hub.port, "ann", KEY, "legacy")
            await person.enter()
            yield OverHttp(person, lines)
    finally:
        for line in lines:
            line.close()


@asynccontextmanager
async def process_of(words: list[str]) -> AsyncIterator[asyncio.subprocess.Process]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe, env=environment())
    try:
        yield process
    finally:
        assert process.stdin is not None
        process.stdin.close()
        async with asyncio.timeout(SECONDS):
            await process.wait()


async def greeted(speaker: Speaker) -> Speaker:
    await speaker.say({"id": 0, "method": "initialize", "params": HELLO})
    async with asyncio.timeout(SECONDS):
        assert (await speaker.receive())["id"] == 0
    await speaker.say({"method": "notifications/initialized"})
    return speaker


@dataclass(frozen=True, slots=True)
class House:
    """A hub, and servers that doubt, each named by how the hub speaks to it."""

    hub: HubProcess
    servers: dict[str, Any]

    def scene(self, carrier: str, folder: Path) -> Scene:
        """One of the servers, and a folder for a call."""
        return Scene(folder, self.hub, carrier, self.servers[carrier])


@dataclass(frozen=True, slots=True)
class Scene:
    """A server that doubts, a hub, and a folder for signals to the server."""

    folder: Path
    hub: HubProcess
    name: str
    server: dict[str, Any]

    @property
    def tool(self) -> str:
        """What a caller calls."""
        return f"{self.name}.doubt"

    def params(self, **more: Any) -> dict[str, Any]:
        """How it is called."""
        return {"name": self.tool, "arguments": {"nonce": "n", "folder": str(self.folder), **more}}

    def signal(self, word: str) -> None:
        """Have the server go on."""
        (self.folder / word).touch()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[House]:
    async with AsyncExitStack() as stack:
        servers = {carrier: await server_of(stack, carrier) for carrier in CARRIERS}
        hub = await stack.enter_async_context(
            serving(tmp_path_factory.mktemp("house"), servers, callers=CALLERS, limits=PATIENT)
        )
        yield House(hub, servers)


@asynccontextmanager
async def met_at(frontend: str, at: Scene) -> AsyncIterator[tuple[Scene, Speaker]]:
    """A caller at one of the hub's frontends, with a folder of its own."""
    scene = replace(at, folder=at.folder / frontend)
    scene.folder.mkdir()
    async with asyncio.timeout(SECONDS), speaker_at(frontend, scene) as speaker:
        yield scene, speaker


@by_every_carrier
async def test_a_question_that_the_server_takes_back_is_taken_back_from_the_caller(
    tmp_path: Path, house: House, carrier: str
) -> None:
    everybody = house.scene(carrier, tmp_path)
    for frontend in FRONTENDS:
        async with met_at(frontend, everybody) as (scene, speaker):
            await speaker.call(scene.params())
            question = await speaker.receive()
            assert (question["method"], question["params"]["message"]) == ("elicitation/create", "n")
            scene.signal("back")
            response = await speaker.receive()
            assert (response["method"], response["params"]["requestId"]) == ("notifications/cancelled", question["id"])
            await speaker.say({"id": question["id"], "result": {"action": "decline"}})
            scene.signal("end")
            assert text_of(await speaker.receive()) == "n went on after 0 answers"


async def test_a_question_that_its_call_leaves_open_is_taken_back_from_the_caller(tmp_path: Path, house: House) -> None:
    everybody = house.scene("stdio", tmp_path)
    for frontend in FRONTENDS:
        async with met_at(frontend, everybody) as (scene, speaker):
            await speaker.call(scene.params(leave=True))
            question = await speaker.receive()
            scene.signal("end")
            response = await speaker.receive()
            assert (response["method"], response["params"]["requestId"]) == ("notifications/cancelled", question["id"])
            assert text_of(await speaker.receive()) == "n went on after 0 answers"


async def test_a_call_that_the_caller_takes_back_takes_its_question_along(tmp_path: Path, house: House) -> None:
    everybody = house.scene("stdio", tmp_path)
    for frontend in FRONTENDS:
        async with met_at(frontend, everybody) as (scene, speaker):
            await speaker.call(scene.params())
            question = await speaker.receive()
            await speaker.say({"method": "notifications/cancelled", "params": {"requestId": 1}})
            received, answer = await speaker.receive(), await speaker.receive()
            assert (received["method"], received["params"]["requestId"]) == ("notifications/cancelled", question["id"])
            assert answer["error"]["data"]["reason"] == "cancelled"


# -- callers of the modern era -----------------------------------------------------------------------------------------


@by_every_carrier
async def test_a_caller_that_resumes_after_a_retraction_gets_no_question_but_the_outcome(
    tmp_path: Path, house: House, carrier: str
) -> None:
    scene = house.scene(carrier, tmp_path)
    person, line = AnsweringCaller(scene.hub.port, "ann", KEY, "modern"), await Line.open(scene.hub.port)
    words = scene.params()["arguments"]
    response = await person.once(line, scene.tool, "n", arguments=words)
    scene.signal("back")
    async with asyncio.timeout(SECONDS):
        while "inputRequests" in response["result"]:  # until the hub has read that the question is taken back
            state = response["result"]["requestState"]
            again = asyncio.ensure_future(person.once(line, scene.tool, "n", arguments=words, requestState=state))
            await asyncio.wait({again}, timeout=WAITS_SECONDS)
            if not again.done():  # it is not asked again, and so waits for the call to end
                scene.signal("end")
            response = await again
    assert text_of(response) == "n went on after 0 answers"
    line.close()


async def test_an_official_client_lets_a_question_be_that_is_taken_back(tmp_path: Path, house: House) -> None:
    scene = house.scene("stdio", tmp_path)
    asked, spared = asyncio.Event(), asyncio.Event()

    async def think(context: Any, params: ElicitRequestParams) -> ElicitResult | ErrorData:
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            spared.set()
        raise AssertionError(params)

    async with asyncio.timeout(SECONDS), httpx2.AsyncClient(trust_env=False, timeout=SECONDS, headers=BEARER) as http:
        carried = streamable_http_client(scene.hub.url, http_client=http)
        async with Client(carried, mode="legacy", elicitation_callback=think) as client, asyncio.TaskGroup() as group:
            call = group.create_task(client.call_tool(scene.tool, scene.params()["arguments"]))
            await asked.wait()
            scene.signal("back")
            await spared.wait()
            scene.signal("end")
    (content,) = call.result().content
    # A client may answer a retracted question all the same, and the hub drops the answer.
    assert getattr(content, "text", None) == "n went on after 0 answers"
