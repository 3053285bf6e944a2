"""The earlier HTTP+SSE transport as a way in: the official client, and everything it does not try."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import ClientSession
from mcp.client.sse import sse_client

from tests.hubs import PATIENT, HubProcess, serving

CALLERS = {
    "one": {"key": "1" * 32, "allow": ["*"]},
    "two": {"key": "2" * 32, "allow": ["builtin.echo"]},
}


def address(hub: HubProcess, path: str) -> str:
    return f"http://127.0.0.1:{hub.port}{path}"


class Stream:
    """A hand-written client of the transport, one event at a time."""

    def __init__(self, client: httpx2.AsyncClient, response: httpx2.Response) -> None:
        self.client = client
        self.response = response
        self._lines = response.aiter_lines()
        self.endpoint = ""

    async def event(self) -> tuple[str, str]:
        name, data = "message", ""
        async with asyncio.timeout(20):
            async for line in self._lines:
                field, _, value = line.partition(": ")
                if field == "event":
                    name = value
                elif field == "data":
                    data = value
                elif not line and data:
                    return name, data
        return "end", ""

    async def message(self) -> Any:
        name, data = await self.event()
        assert name == "message"
        return json.loads(data)

    async def post(self, message: object, **more: Any) -> httpx2.Response:
        return await self.client.post(self.endpoint, json=message, **more)


@asynccontextmanager
async def listening(hub: HubProcess, key: str = "") -> AsyncIterator[Stream]:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with (
        httpx2.AsyncClient(base_url=address(hub, ""), headers=headers, timeout=20) as client,
        client.stream("GET", "/sse") as response,
    ):
        assert (response.status_code, response.headers["content-type"]) == (200, "text/event-stream")
        stream = Stream(client, response)
        name, stream.endpoint = await stream.event()
        assert name == "endpoint"
        assert stream.endpoint.startswith("/messages?sessionId=")
        yield stream


def request(id: int, method: str, **params: object) -> dict[str, object]:
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": params}


async def test_the_official_client_lists_and_calls(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, limits=PATIENT) as hub,
        sse_client(address(hub, "/sse"), timeout=20) as (read, write),
        ClientSession(read, write) as session,
    ):
        welcome = await session.initialize()
        assert welcome.capabilities.tools is not None
        assert welcome.capabilities.prompts is None
        names = {tool.name for tool in (await session.list_tools()).tools}
        assert "builtin.echo" in names
        result = await session.call_tool("builtin.echo", {"text": "hello"})
        assert result.content[0].text == "hello"  # type: ignore[union-attr]


async def test_answers_come_on_the_stream_and_posts_are_only_accepted(tmp_path: Path) -> None:
    async with serving(tmp_path) as hub, listening(hub) as stream:
        posted = await stream.post(request(7, "ping"))
        assert (posted.status_code, posted.content) == (202, b"")
        assert await stream.message() == {"jsonrpc": "2.0", "id": 7, "result": {}}


async def test_an_invalid_message_is_refused_in_the_response_to_its_post(tmp_path: Path) -> None:
    async with serving(tmp_path) as hub, listening(hub) as stream:
        bad = await stream.client.post(stream.endpoint, content=b"{", headers={"content-type": "application/json"})
        assert (bad.status_code, bad.json()["error"]["code"]) == (400, -32700)
        plain = await stream.client.post(stream.endpoint, content=b"{}", headers={"content-type": "text/plain"})
        assert plain.status_code == 415
        await stream.post(request(1, "ping"))
        assert (await stream.message())["id"] == 1


async def test_a_session_belongs_to_the_caller_that_opened_it(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, callers=CALLERS) as hub,
        listening(hub, "1" * 32) as stream,
        listening(hub, "2" * 32) as other,
    ):
        stolen = await other.client.post(stream.endpoint, json=request(1, "ping"))
        unknown = await other.client.post("/messages?sessionId=none", json=request(1, "ping"))
        async with httpx2.AsyncClient(timeout=20) as keyless:
            nobody = await keyless.post(address(hub, stream.endpoint), json=request(1, "ping"))
        assert (stolen.status_code, stolen.content) == (unknown.status_code, unknown.content)
        assert (stolen.status_code, nobody.status_code) == (404, 401)
        twice = await stream.post(request(2, "ping"), params={"sessionId": ["a", "b"]})
        assert twice.status_code == 404


async def test_a_deleted_session_ends_its_stream_and_is_unknown_afterwards(tmp_path: Path) -> None:
    async with serving(tmp_path) as hub, listening(hub) as stream:
        assert (await stream.client.delete(stream.endpoint)).status_code == 204
        assert await stream.event() == ("end", "")
        assert (await stream.post(request(1, "ping"))).status_code == 404
        assert (await stream.client.delete(stream.endpoint)).status_code == 404


async def test_a_session_ends_with_its_stream(tmp_path: Path) -> None:
    async with serving(tmp_path) as hub:
        async with listening(hub) as stream:
            endpoint = stream.endpoint
        async with httpx2.AsyncClient(timeout=20) as client, asyncio.timeout(20):
            # The hub hears of a closed connection when it does.
            while (await client.post(address(hub, endpoint), json=request(1, "ping"))).status_code != 404:
                pass


@pytest.mark.parametrize(("method", "path", "allow"), [("POST", "/sse", "GET"), ("GET", "/messages", "POST, DELETE")])
async def test_other_methods_are_answered_with_the_allowed_ones(
    tmp_path: Path, method: str, path: str, allow: str
) -> None:
    async with serving(tmp_path) as hub, httpx2.AsyncClient(timeout=20) as client:
        answer = await client.request(method, address(hub, path))
        assert (answer.status_code, answer.headers["allow"]) == (405, allow)


async def test_streams_end_when_the_hub_does_and_calls_are_answered_first(tmp_path: Path) -> None:
    async with serving(tmp_path) as hub, listening(hub) as stream:
        await stream.post(request(1, "tools/call", name="builtin.echo", arguments={"text": "last"}))
        assert (await stream.message())["id"] == 1
        hub.terminate()
        assert await stream.event() == ("end", "")
