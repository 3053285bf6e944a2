"""Streams and batches of legacy callers at a running hub: how they begin, end, and deliver messages."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from tests.hubs import PATIENT, TRUSTED, HubProcess, serving, stdio
from tests.peers.launch import quick_command

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("streams")]

PLAIN = {"accept": "application/json, text/event-stream"}
SECONDS = 30.0


class Caller:
    """A client of a running hub, in one session."""

    def __init__(self, url: str, client: httpx2.AsyncClient) -> None:
        self._url = url
        self._client = client
        self.headers = dict(PLAIN)

    async def open(self, version: str) -> None:
        """Begin a session."""
        hello = {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        answer = await self.post(message("initialize", hello, id=0))
        assert answer.json()["result"]["protocolVersion"] == version
        self.headers["mcp-session-id"] = answer.headers["mcp-session-id"]

    async def post(self, body: Any) -> httpx2.Response:
        """Send a message, or several."""
        return await self._client.post(self._url, json=body, headers=self.headers)

    async def delete(self) -> int:
        """End the session."""
        return (await self._client.delete(self._url, headers=self.headers)).status_code

    @asynccontextmanager
    async def listening(self, last: str | None = None) -> AsyncIterator[Lines]:
        """A stream for what belongs to no request, once it has begun."""
        headers = {"accept": "text/event-stream", **({"last-event-id": last} if last else {})}
        async with self._stream("GET", headers) as lines:
            yield lines

    @asynccontextmanager
    async def calling(self, body: Any) -> AsyncIterator[Lines]:
        """The stream that answers a call, once it has begun."""
        async with self._stream("POST", {"accept": "text/event-stream, application/json"}, json=body) as lines:
            yield lines

    @asynccontextmanager
    async def _stream(self, verb: str, headers: dict[str, str], **more: Any) -> AsyncIterator[Lines]:
        async with self._client.stream(verb, self._url, headers={**self.headers, **headers}, **more) as answer:
            assert (answer.status_code, answer.headers["content-type"]) == (200, "text/event-stream")
            lines = Lines(answer.aiter_lines())
            await lines.until("")
            yield lines


class Lines:
    """The lines of a stream, as they come."""

    def __init__(self, lines: AsyncIterator[str]) -> None:
        self._lines = lines
        self.last = ""
        """The last event's id."""

    async def until(self, wanted: str) -> str:
        """The first line from here on that begins so; the empty one ends an event."""
        async with asyncio.timeout(SECONDS):
            async for line in self._lines:
                if line.startswith("id:"):
                    self.last = line[3:].strip()
                if line.startswith(wanted) if wanted else not line:
                    return line
        raise AssertionError("the stream has ended")

    async def end(self) -> None:
        """Read until the stream ends."""
        async with asyncio.timeout(SECONDS):
            async for _ in self._lines:
                pass


def message(method: str, params: Any = None, *, id: Any = None) -> dict[str, Any]:
    members = {"jsonrpc": "2.0", "method": method, "params": params or {}}
    return members if id is None else {**members, "id": id}


def call(tool: str, arguments: Any, id: Any, **meta: Any) -> dict[str, Any]:
    return message("tools/call", {"name": tool, "arguments": arguments, "_meta": meta}, id=id)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hub(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HubProcess]:
    """A hub with one official server."""
    folder: Path = tmp_path_factory.mktemp("streams")
    async with serving(folder, {"s": stdio(quick_command("full_sdk2"))}, limits=PATIENT) as started:
        yield started


@asynccontextmanager
async def open_session(hub: HubProcess, version: str) -> AsyncIterator[Caller]:
    """A caller with a session of its own there."""
    async with httpx2.AsyncClient(timeout=SECONDS, verify=TRUSTED) as client:
        caller = Caller(hub.url, client)
        await caller.open(version)
        yield caller


async def test_a_slow_call_is_answered_by_a_stream_that_can_be_come_back_to(hub: HubProcess) -> None:
    async with open_session(hub, "2025-11-25") as caller:
        slow = await caller.post(call("s.slow", {"seconds": 1.0, "steps": 1}, 1))
        first, *_, last = [event for event in slow.text.split("\n\n") if event and not event.startswith(":")]
        assert first.startswith("id: ")
        assert "\nretry: " in first
        assert first.endswith("\ndata: ")
        assert last.startswith("id: ")
        assert json.loads(last.partition("data: ")[2])["id"] == 1


async def test_a_client_of_an_earlier_version_gets_plain_json_however_long_it_takes(hub: HubProcess) -> None:
    async with open_session(hub, "2025-06-18") as caller:
        slow = await caller.post(call("s.slow", {"seconds": 1.0, "steps": 1}, 1))
        assert (slow.headers["content-type"], slow.json()["id"]) == ("application/json", 1)


async def test_ending_a_session_ends_its_streams_and_calls_at_once(hub: HubProcess) -> None:
    async with open_session(hub, "2025-11-25") as caller, caller.listening() as first, caller.listening() as second:
        async with caller.calling(call("s.slow", {"seconds": 600.0, "steps": 1}, 1)) as running:
            assert await caller.delete() == 204
            assert '"error"' in await running.until("data: {")
            for stream in (running, first, second):
                await stream.end()
        assert await caller.delete() == 404


async def test_of_two_streams_the_later_gets_events_and_after_its_end_the_earlier(hub: HubProcess) -> None:
    changed = 'data: {"jsonrpc":"2.0","method":"notifications/tools/list_changed"}'
    async with open_session(hub, "2025-11-25") as caller:
        await caller.post(message("tools/list", id=1))
        async with caller.listening() as first:
            async with caller.listening() as second:
                await caller.post(call("s.grow_tools", {"name": "first"}, 2))
                await second.until(changed)
            await caller.post(message("tools/list", id=3))
            await caller.post(call("s.grow_tools", {"name": "second"}, 4))
            await first.until(changed)
            received = first.last
        async with caller.listening(received) as third:
            assert third.last == received


@pytest.mark.parametrize("version", ["2025-03-26", "2025-06-18"])
async def test_batches_are_answered_together_in_the_one_version_that_has_them(hub: HubProcess, version: str) -> None:
    batch = [
        message("ping", id="a"),
        message("notifications/initialized"),
        call("s.add", {"a": 1, "b": 2}, "b"),
        call("s.add", {"a": 3, "b": 4}, "c"),
        message("tools/list", id="d"),
    ]
    async with open_session(hub, version) as caller:
        answer = await caller.post(batch)
        if version == "2025-06-18":
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, -32600)
            return
        response = {each["id"]: each["result"] for each in answer.json()}
        assert response.keys() == {"a", "b", "c", "d"}
        assert [response[id]["structuredContent"]["sum"] for id in ("b", "c")] == [3, 7]
        assert (await caller.post([message("notifications/initialized")])).status_code == 202
        streamed = await caller.post([call("s.slow", {"seconds": 0.1, "steps": 2}, "e", progressToken=1), batch[0]])
        data = [json.loads(line[5:]) for line in streamed.text.splitlines() if line.startswith("data:")]
        assert [each.get("id", each.get("method")) for each in data].count("notifications/progress") == 2
        assert {each["id"] for each in data if "id" in each} == {"a", "e"}
