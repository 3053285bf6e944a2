"""Recorded messages of real clients to the original relay are sent again, byte for byte.

`device_and_pipe` is the xiaozhi server's client beside `mcp_pipe.py` with its calculator, `two_pipes` the same with two
servers in the pipe's file, `child_crash` one whose child dies, twice. Of every line only the token is put in, and the
id by which the hub asked. The original asked a server nothing by itself, so a recorded answer is given when the hub
asks that question.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
from websockets.asyncio.client import ClientConnection

from tests.faults.watching import eventually
from tests.hubs import TRUSTED, HubProcess, at_all_nodes
from tests.relay.peers import Device, Ending, Json, Wire, at_once, wired
from tests.relay.tokens import python_quoted, python_token

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.xdist_group("relay")]

RECORDED = Path(__file__).with_name("transcripts")

UNRECORDED = {"prompts/list": "prompts", "resources/list": "resources", "resources/templates/list": "resourceTemplates"}
"""Lists for which the original never asked; the calculator's are empty."""

EMPTY = '{"jsonrpc":"2.0","id":"ID","result":{}}\n'


class Transcript:
    """What was said, by connection."""

    def __init__(self, name: str, hub: HubProcess, agent: str) -> None:
        self._base = f"ws://127.0.0.1:{hub.port}"
        self._token = python_quoted(python_token(agent))
        self._lines: list[Json] = [json.loads(line) for line in (RECORDED / f"{name}.jsonl").read_text().splitlines()]

    def url(self, connection: int) -> str:
        """Where it was opened."""
        path = next(line["open"] for line in self._lines if line["conn"] == connection and "open" in line)
        return self._base + str(path).replace("TOKEN", self._token)

    def said(self, connection: int) -> list[str]:
        """Its frames."""
        return [line["say"] for line in self._lines if line["conn"] == connection and "say" in line]

    @asynccontextmanager
    async def pipe(self, connection: int, frames: Sequence[str] | None = None) -> AsyncIterator[RecordedPipe]:
        """The pipe of a connection; `frames` are another's, for one that was never asked anything."""
        said = self.said(connection) if frames is None else frames
        async with wired(self.url(connection), lambda socket: RecordedPipe(socket, said)) as it:
            assert isinstance(it, RecordedPipe)
            yield it

    @asynccontextmanager
    async def device(self, connection: int) -> AsyncIterator[RecordedDevice]:
        """The device of a connection, once it has said what it says without waiting."""
        async with wired(self.url(connection), lambda socket: RecordedDevice(socket, self.said(connection))) as it:
            assert isinstance(it, RecordedDevice)
            for frame in it.said[:3]:
                await it.say(frame)
            yield it


class RecordedPipe(Wire):
    """Says what the pipe said when it is asked that; asked for more calls than it answered, its child is dead."""

    def __init__(self, socket: ClientConnection, said: Sequence[str]) -> None:
        super().__init__(socket)
        self._welcome, self._listing, *self._results = said

    async def on_frame(self, frame: str | bytes) -> None:
        message = json.loads(frame)
        if "id" in message and "method" in message:
            await self._answer(message["method"], json.dumps(message["id"]))

    async def _answer(self, method: str, id: str) -> None:
        if method == "initialize":
            await self.say(self._welcome.replace('"ID"', id))
        elif method == "tools/list":
            await self.say(self._listing.replace('"ID"', id))
        elif method in UNRECORDED:
            await self.say(EMPTY.replace('"ID"', id).replace("{}", f'{{"{UNRECORDED[method]}":[]}}'))
        elif method != "tools/call":
            await self.say(EMPTY.replace('"ID"', id))
        elif self._results:
            await self.say(self._results.pop(0).replace('"ID"', id))
        else:
            await self.socket.close(1011)


class RecordedDevice(Device):
    """Says what the device said; reads as it does."""

    def __init__(self, socket: ClientConnection, said: Sequence[str]) -> None:
        super().__init__(socket)
        self.said = said

    async def say_call(self, number: int) -> Json:
        """Say a call again and wait for its answer."""
        frame = self.said[2 + number]
        after = len(self.frames)
        await self.say(frame)
        return await self.answer(json.loads(frame)["id"], after=after)

    @property
    def answered(self) -> list[Any]:
        """The ids of all answers so far."""
        return [message["id"] for message in self.messages if "method" not in message]


async def is_shown(it: Device, *names: str) -> bool:
    """Whether these tools are listed now."""
    listed = (await it.ask("tools/list", id=1000))["result"]["tools"]
    return {tool["name"] for tool in listed} == set(names)


async def is_ready_everywhere(hub: HubProcess, agent: str) -> bool:
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{hub.port}", verify=TRUSTED) as http:
        response = await at_all_nodes(http, "/v1/relay/servers", params={"agent": agent, "state": "ready"})
    return all(each["servers"] for each in response)


async def test_a_device_and_a_pipe(hub: HubProcess, agent: str) -> None:
    recorded = Transcript("device_and_pipe", hub, agent)
    async with AsyncExitStack() as stack:
        pipe = await stack.enter_async_context(recorded.pipe(1))
        async with recorded.device(2) as early:
            await early.ready()  # its list waits for the server, a greeting does not
        await eventually(partial(is_ready_everywhere, hub, agent), "all nodes have the server")
        device = await stack.enter_async_context(recorded.device(2))
        await device.ready()
        first, second = await device.say_call(1), await device.say_call(2)

        welcome, listing = device.messages[0]["result"], device.messages[1]["result"]
        assert welcome["protocolVersion"] == "2024-11-05"
        assert welcome["responses"][0]["serverInfo"] == {"name": "Calculator", "version": "3.4.10"}
        assert [tool["name"] for tool in listing["tools"]] == ["calculator"]
        assert listing["tools"][0]["inputSchema"]["required"] == ["python_expression"]
        assert listing["tools"][0]["outputSchema"] == {"additionalProperties": True, "type": "object"}
        assert listing["tools"][0]["server_id"] == "Calculator"
        assert first["result"] == {
            "content": [{"type": "text", "text": '{"success":true,"result":16900000000}'}],
            "structuredContent": {"success": True, "result": 16900000000},
            "isError": False,
        }
        failure = "Error calling tool 'calculator': division by zero"
        assert second["result"] == {
            "content": [{"type": "text", "text": failure}],
            "isError": True,
            "error": failure,
        }
        assert device.answered == [1, 2, 1, 2]
        assert not device.errors
        await device.socket.close()
        assert pipe.is_open


async def test_two_pipes_of_one_file_both_stay(hub: HubProcess, agent: str) -> None:
    recorded = Transcript("two_pipes", hub, agent)
    # The original closed the first for the sake of the second, and asked the second nothing until it came again.
    calculator = recorded.said(3)
    async with (
        recorded.pipe(1, calculator) as one,
        recorded.pipe(2, calculator) as other,
        recorded.device(4) as device,
    ):
        await device.ready()
        await eventually(lambda: is_shown(device, "calculator", "Calculator_2.calculator"), "both are shown")
        assert one.is_open
        assert other.is_open
        assert device.answered[:2] == [1, 2]
        assert not device.errors


async def test_a_child_that_crashes_and_comes_back(hub: HubProcess, agent: str) -> None:
    recorded = Transcript("child_crash", hub, agent)
    async with AsyncExitStack() as stack:
        before = await stack.enter_async_context(recorded.pipe(1))
        device = await stack.enter_async_context(recorded.device(2))
        await device.ready()
        assert list(device.tools) == ["calculator"]

        async with at_once():
            lost = await device.say_call(1)
        assert (lost["error"]["code"], "result" in lost) == (-32002, False)
        assert await before.ended() == Ending(1011, "")

        answer = '{"jsonrpc":"2.0","id":"ID","result":{"content":[{"type":"text","text":"4"}],"isError":false}}\n'
        after = await stack.enter_async_context(recorded.pipe(3, [*recorded.said(3), answer]))
        await eventually(lambda: is_shown(device, "calculator"), "it is listed again")
        # The original had forgotten the tool, though the server was there.
        assert (await device.say_call(2))["result"]["content"] == [{"type": "text", "text": "4"}]

        late = await stack.enter_async_context(recorded.device(4))
        await late.ready()
        assert list(late.tools) == ["calculator"]
        await after.socket.close(1011)
        gone = await late.say_call(1)
        assert (gone["error"]["code"], "result" in gone) == (-32001, False)
        assert late.answered == [1, 2, 1]
        assert not device.errors
        assert not late.errors
