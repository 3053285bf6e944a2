"""A running hub, asked over REST; and places that are none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec
import pytest

from isthmus.cli import hub
from isthmus.cli.documents import read_listing, read_servers
from isthmus.cli.exits import CommandFailed, Exit
from isthmus.cli.hub import CallFailure, HubCall, RemoteHub
from isthmus.cli.hub import RemoteSource
from isthmus.model.events import Event, Progress
from isthmus.model.outcomes import Result
from isthmus.upstream.settings import HttpSettings
from isthmus.wire.mcp.lists import TOOLS
from tests.hubs import PATIENT, serving, stdio
from tests.peers import content
from tests.peers.launch import command

KEY = "k3y-of-mine-0123456789"
CALL = HubCall("tool", "files.a/b", msgspec.Raw(b'{"n":1}'))
OK = b"HTTP/1.1 200 OK\r\n"
STREAM = OK + b"content-type: text/event-stream\r\n\r\n"


def running(url: str, key: str | None = None) -> RemoteSource:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    return RemoteSource(HttpSettings(url, headers), has_key=key is not None)


@asynccontextmanager
async def reached(url: str, key: str | None = None) -> AsyncIterator[RemoteHub]:
    hub = RemoteHub(running(url, key))
    try:
        yield hub
    finally:
        await hub.aclose()


@asynccontextmanager
async def pretending(answer: bytes, *, stays: bool = False) -> AsyncIterator[tuple[str, list[bytes]]]:
    """Something that gives this answer to whatever it is asked, and then closes or says no more."""
    heard: list[bytes] = []
    visits: set[asyncio.Task[None] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        visits.add(asyncio.current_task())
        heard.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(answer)
        if stays:
            with suppress(ConnectionError):
                await reader.read()
            heard.append(b"its end")
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp", heard
        async with asyncio.timeout(30):
            await asyncio.gather(*(visit for visit in visits if visit is not None))


def seen(events: list[Event]) -> list[bytes]:
    return [bytes(event.members["progress"]) for event in events if isinstance(event, Progress)]


# -- a real hub ----------------------------------------------------------------------------------------------------


async def test_a_running_hub_is_listed_called_and_read(tmp_path: Path, no_leftovers: None) -> None:
    servers = {"shelf": stdio(command("full_sdk2")), "dead": {"command": "/no/such/program"}}
    events: list[Event] = []
    async with serving(tmp_path, servers, limits=PATIENT) as served, reached(served.url) as hub:
        listing = read_listing(await hub.list(TOOLS), TOOLS)
        assert {offer.name for offer in listing.offers if offer.server == "shelf"} == {
            f"shelf.{name}" for name in content.TOOLS
        }
        assert listing.absences.keys() == {"dead"}
        assert [server.name for server in read_servers(await hub.servers())] == ["builtin", "dead", "shelf"]
        slow = HubCall("tool", "shelf.slow", msgspec.Raw(b'{"seconds":0.01,"steps":2}'))
        result = await hub.perform(slow, events.append)
        assert isinstance(result, Result)
        assert b"2 steps" in bytes(result.payload)
        assert seen(events) == [b"1", b"2"]
        prompt = await hub.perform(HubCall("prompt", "shelf.plain", msgspec.Raw(b"{}")), events.append)
        assert isinstance(prompt, Result)
        assert content.PLAIN.encode() in bytes(prompt.payload)
        resource = await hub.perform(HubCall("resource", content.UNLISTED_URI, msgspec.Raw(b"{}")), events.append)
        assert isinstance(resource, Result)
        assert content.UNLISTED.encode() in bytes(resource.payload)
        unknown = await hub.perform(HubCall("tool", "shelf.x/y z", msgspec.Raw(b"{}")), events.append)
        assert unknown == CallFailure("Unknown tool: shelf.x/y z", "no", "unknown_tool")


@pytest.mark.parametrize("key", [None, "not-the-right-key-at-all"])
async def test_a_hub_that_wants_a_key_does_not_let_others_in(tmp_path: Path, key: str | None) -> None:
    callers = {"me": {"key": KEY, "allow": ["*"]}}
    async with serving(tmp_path, callers=callers) as served:
        async with reached(served.url, key) as hub:
            for asking in (hub.list(TOOLS), hub.perform(CALL, print), hub.forget("oven")):
                with pytest.raises(CommandFailed) as failed:
                    await asking
                assert failed.value.exit == Exit.NOT_ALLOWED
                assert "ISTHMUS_KEY" in failed.value.advice[0]
        async with reached(served.url, KEY) as hub:
            assert read_servers(await hub.servers())
            with pytest.raises(CommandFailed, match="Only an operator may have a server forgotten") as failed:
                await hub.forget("oven")
            assert failed.value.exit == Exit.NOT_ALLOWED
            assert "--operator" in failed.value.advice[0]


# -- places that are none, or no good ------------------------------------------------------------------------------


async def test_a_hub_that_is_not_there_cannot_be_reached(unused_tcp_port: int) -> None:
    async with reached(f"http://127.0.0.1:{unused_tcp_port}/mcp") as hub:
        with pytest.raises(CommandFailed) as failed:
            await hub.list(TOOLS)
        assert failed.value.exit == Exit.UNREACHABLE
        assert failed.value.message.endswith(f"/mcp: connection refused by 127.0.0.1:{unused_tcp_port}")
        assert "isthmus serve" in failed.value.advice[0]
        with pytest.raises(CommandFailed) as failed:
            await hub.perform(CALL, print)
        assert failed.value.exit == Exit.UNREACHABLE
        assert failed.value.advice[0].startswith("executed: no")


@pytest.mark.parametrize("path", ["/elsewhere", "/mcp/files"])
async def test_a_place_that_is_no_hub_cannot_be_reached(tmp_path: Path, path: str) -> None:
    async with serving(tmp_path) as served, reached(served.url.replace("/mcp", path)) as hub:
        with pytest.raises(CommandFailed) as failed:
            await hub.list(TOOLS)
        assert failed.value.exit == Exit.UNREACHABLE
        assert "it answers HTTP 404" in failed.value.message


@pytest.mark.parametrize(
    ("base", "target"),
    [
        ("/mcp", b"POST /v1/tools/files.a%2Fb HTTP/1.1"),
        ("/mcp/", b"POST /v1/tools/files.a%2Fb HTTP/1.1"),
        ("/behind/mcp", b"POST /behind/v1/tools/files.a%2Fb HTTP/1.1"),
        ("/behind", b"POST /behind/v1/tools/files.a%2Fb HTTP/1.1"),
    ],
)
async def test_a_hub_is_asked_where_it_is(base: str, target: bytes) -> None:
    answer = OK + b"content-length: 14\r\n\r\n" + b'{"content":[]}'
    async with pretending(answer) as (url, heard), reached(url.replace("/mcp", base)) as hub:
        assert isinstance(await hub.perform(CALL, print), Result)
        assert heard[0].split(b"\r\n")[0] == target


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (STREAM + b": \n\nevent: progress\ndata: {}\n\n", "Lost the hub during the call: its stream ended"),
        (OK + b"content-length: 90\r\n\r\n{", "Lost the hub during the call"),
        (OK + b"content-length: 3\r\n\r\n[1}", "The hub gave an unusable answer"),
        (STREAM + b"event: result\ndata: [1}\n\n", "The hub gave an unusable answer"),
    ],
)
async def test_an_answer_that_is_none_leaves_open_whether_the_tool_ran(answer: bytes, told: str) -> None:
    async with pretending(answer) as (url, _), reached(url) as hub:
        outcome = await hub.perform(CALL, lambda _: None)
        assert isinstance(outcome, CallFailure)
        assert outcome.message.startswith(told)
        assert outcome.executed == "unknown"


async def test_an_error_at_the_end_of_a_stream_is_told_in_the_hubs_words() -> None:
    problem = b'{"detail":"Lost server raw","executed":"unknown","reason":"lost","server":"raw"}'
    async with pretending(STREAM + b"event: error\ndata: %b\n\n" % problem) as (url, _), reached(url) as hub:
        assert await hub.perform(CALL, print) == CallFailure("Lost server raw", "unknown", "lost", "raw")


async def test_an_endless_answer_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "REPLY_BYTES", 100)
    for answer in (OK + b"content-length: 200\r\n\r\n" + b"x" * 200, STREAM + b"data: " + b"x" * 200):
        async with pretending(answer, stays=True) as (url, _), reached(url) as hub:
            outcome = await hub.perform(CALL, print)
            assert isinstance(outcome, CallFailure)
            assert "longer than 100 bytes" in outcome.message


async def test_a_hub_that_says_nothing_at_all_is_taken_for_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "SILENCE_SECONDS", 0.1)
    async with pretending(b"", stays=True) as (url, _), reached(url) as hub:
        with pytest.raises(CommandFailed) as failed:
            await hub.list(TOOLS)
        assert "it said nothing for 0.1 s" in failed.value.message


async def test_who_stops_waiting_closes_the_connection(no_leftovers: None) -> None:
    async with pretending(STREAM, stays=True) as (url, heard), reached(url) as hub:
        calling = asyncio.ensure_future(hub.perform(CALL, print))
        async with asyncio.timeout(30):
            while not heard:  # noqa: ASYNC110 - it arrives over a socket
                await asyncio.sleep(0)
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        async with asyncio.timeout(30):
            while len(heard) < 2:  # noqa: ASYNC110 - the end of it does too
                await asyncio.sleep(0)
