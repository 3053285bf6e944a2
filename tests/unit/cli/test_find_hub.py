"""A hub of this process, started for a command."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec
import pytest

from isthmus.cli import rest_client as module
from isthmus.cli.audit import show_tail
from isthmus.cli.config import configuration_of, home
from isthmus.cli.documents import FeatureList, MissingServerInfo, read_listing, read_servers
from isthmus.cli.exits import CommandFailed, Exit
from isthmus.cli.find_hub import HUB_VARIABLE, LocalSource, open_hub, source_of
from isthmus.cli.local_hub import HUB, running_as_server, start_local_hub
from isthmus.cli.rest_client import (
    CallFailure,
    CallHeld,
    HubCall,
    HubClient,
    HubQuestion,
    HubResponse,
    RemoteSource,
    ResponseReader,
    command_failed,
    read_failure,
)
from isthmus.config.settings import Configuration, HubSettings
from isthmus.frontends.rest.http import RESPONDERS, RestRequest
from isthmus.frontends.rest.problem_details import problem_of
from isthmus.model.callers import KEY_VARIABLE
from isthmus.model.calls import Event, Progress, Result, Surface
from isthmus.model.fault_table import FAULTS, BreakerOpen, NotConnected, ServerError, TimedOut
from isthmus.model.names import ServerName
from isthmus.transport.http_client import ConnectionLost
from isthmus.upstream.server_settings import ServerSettings, StdioSettings
from isthmus.wire.mcp.lists import TOOLS
from tests.hubs import PATIENT, serving, stdio, write_config
from tests.peers import content
from tests.peers.launch import command, quick_command
from tests.unit.core.doubles import raw

RAW = command("raw_server")
NAMES = ["echo", "grow", "meta", "pay"]


def configuration(*servers: ServerSettings) -> Configuration:
    return Configuration(None, HubSettings(), servers)


def server(name: str, *words: str) -> ServerSettings:
    return ServerSettings(ServerName(name), StdioSettings(words[0], words[1:]))


async def listed(hub: HubClient) -> FeatureList:
    return read_listing(await hub.list(TOOLS), TOOLS)


async def test_an_own_hub_waits_for_its_servers_and_names_the_failed_ones() -> None:
    wanted = configuration(server("raw", *RAW), server("dead", "/no/such/program"))
    hub = await start_local_hub(wanted, os.environ, within=30)
    try:
        response = await listed(hub.client)
        names = sorted(offer.name for offer in response.features if offer.server != "builtin")
        assert names == [f"raw.{tool}" for tool in NAMES]
        assert response.missing.keys() == {"dead"}
        assert response.missing["dead"].state == "retrying"
        assert hub.settled_at.keys() == {"raw", "dead"}
    finally:
        await hub.aclose()


async def test_only_the_servers_that_are_needed_are_started() -> None:
    wanted = configuration(server("raw", *RAW), server("dead", "/no/such/program"))
    hub = await start_local_hub(wanted, os.environ, within=30, only={ServerName("raw")})
    try:
        assert (await listed(hub.client)).missing == {}
    finally:
        await hub.aclose()


async def test_a_defect_of_an_own_hub_is_reported_and_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(_: RestRequest) -> bytes:
        raise ValueError("a defect")

    monkeypatch.setitem(RESPONDERS, "list_tools", broken)
    hub = await start_local_hub(configuration(), os.environ, within=30)
    try:
        with pytest.raises(CommandFailed) as failed:
            await hub.client.list(TOOLS)
        assert "a defect of the hub ended the request" in failed.value.message
    finally:
        await hub.aclose()


async def test_a_call_is_the_command_lines_own_in_the_audit_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_config(tmp_path, {})
    async with open_hub(LocalSource(file), wait=30, is_to_call=True) as hub:
        echoed = await hub.perform(HubCall("tool", "builtin.echo", msgspec.Raw(b'{"text":"x"}')), print)
        assert isinstance(echoed, Result)
    await show_tail(file, 10, follows=False, is_json=True)
    assert '"command"' in capsys.readouterr().out


async def test_a_response_may_come_before_its_request_is_known_to_be_sent() -> None:
    for body, response in [
        (b"event: result\ndata: {}\n\n", HubResponse(200, b"{}", "result")),
        (b"event: progress\ndata: {}\n\n", ConnectionLost("its stream ended before the result", may_have_left=True)),
    ]:
        reader = ResponseReader(lambda _: None)
        reader.on_head(200, {"content-type": "text/event-stream"})
        reader.on_body(body)
        reader.on_end()
        assert await reader.wait() == response


async def test_a_server_that_is_late_is_reported_as_starting() -> None:
    hub = await start_local_hub(configuration(server("slow", "sleep", "30")), os.environ, within=0.05)
    try:
        assert (await listed(hub.client)).missing == {"slow": MissingServerInfo("starting", "it has not answered yet")}
    finally:
        await hub.aclose()


async def test_a_person_who_waits_at_a_terminal_sees_for_which_servers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("isthmus.cli.local_hub.NOTICE_SECONDS", 0.01)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    starting = asyncio.ensure_future(
        start_local_hub(configuration(server("slow", "sleep", "30")), os.environ, within=30)
    )
    said = ""
    async with asyncio.timeout(20):
        while not said:
            await asyncio.sleep(0.01)
            said = capsys.readouterr().err
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert said == "waiting for slow …\n"


async def test_an_interrupted_start_leaves_no_process_behind(no_leftovers: None) -> None:
    starting = asyncio.ensure_future(
        start_local_hub(configuration(server("slow", "sleep", "30")), os.environ, within=30)
    )
    await asyncio.wait({starting}, timeout=0.2)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting


def test_a_running_hub_can_be_kept_as_a_server() -> None:
    made, surface = running_as_server(RemoteSource("http://hub/mcp"))
    assert [server.name for server in made.servers] == [HUB]
    assert surface == Surface("own", HUB)


async def test_opening_chooses_by_the_source(tmp_path: Path) -> None:
    file = write_config(tmp_path, {"raw": stdio(RAW), "dead": {"command": "/no/such/program"}})
    async with open_hub(LocalSource(file), wait=30, name="raw.echo") as hub:
        assert (await listed(hub)).missing == {}
    async with open_hub(RemoteSource("http://127.0.0.1:1/mcp"), wait=30) as hub:
        assert hub.url == "http://127.0.0.1:1/mcp"


# -- sources -------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (HUB_VARIABLE, KEY_VARIABLE, "ISTHMUS_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


def running(hub: str) -> RemoteSource:
    source = source_of(hub, None)
    assert isinstance(source, RemoteSource)
    return source


def test_without_anything_a_hub_of_ones_own_is_meant() -> None:
    assert source_of(None, None) == LocalSource(None)


def test_the_variable_names_a_running_hub_and_an_option_wins_over_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HUB_VARIABLE, "http://from.variable:1")
    assert isinstance(source := source_of(None, None), RemoteSource)
    assert source.url == "http://from.variable:1/mcp"
    assert running("http://from.option:2").url == "http://from.option:2/mcp"
    assert source_of(None, Path("mcp.json")) == LocalSource(Path("mcp.json"))


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("http://127.0.0.1:8765", "http://127.0.0.1:8765/mcp"),
        ("http://127.0.0.1:8765/", "http://127.0.0.1:8765/mcp"),
        ("http://127.0.0.1:8765/mcp", "http://127.0.0.1:8765/mcp"),
        ("http://127.0.0.1:8765/mcp/files", "http://127.0.0.1:8765/mcp/files"),
        ("https://hub.example/behind/proxy", "https://hub.example/behind/proxy"),
    ],
)
def test_the_hubs_own_address_will_do(given: str, url: str) -> None:
    assert running(given).url == url


def test_the_key_comes_from_the_environment_and_is_sent_as_a_bearer(monkeypatch: pytest.MonkeyPatch) -> None:
    assert running("http://hub").headers == {}
    monkeypatch.setenv(KEY_VARIABLE, "k3y")
    source = running("http://hub")
    assert source.headers == {"Authorization": "Bearer k3y"}
    assert source.has_key
    assert "k3y" not in repr(source)


@pytest.mark.parametrize("address", ["localhost:8765", "ftp://hub", "http://", "http://a b", "http://u:p@hub"])
def test_a_bad_address_is_a_usage_error(address: str) -> None:
    with pytest.raises(CommandFailed) as failed:
        source_of(address, None)
    assert failed.value.exit == Exit.USAGE
    assert "http://127.0.0.1:8765" in failed.value.advice[0]


def test_a_key_that_cannot_be_sent_is_refused_without_being_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "two\nlines")
    with pytest.raises(CommandFailed) as failed:
        source_of("http://hub", None)
    assert failed.value.exit == Exit.CONFIGURATION
    assert "lines" not in failed.value.message


def test_a_hub_and_a_file_exclude_each_other() -> None:
    with pytest.raises(CommandFailed) as failed:
        source_of("http://hub", Path("mcp.json"))
    assert failed.value.exit == Exit.USAGE


def test_the_usual_places_are_searched_and_options_win(tmp_path: Path) -> None:
    assert configuration_of(None).file is None
    (tmp_path / "isthmus.toml").write_text("[hub]\nport = 1\n")
    assert configuration_of(None).hub.port == 1
    assert configuration_of(None, host="::1", port=2).hub.host == "::1"
    assert configuration_of(None, port=2).hub.port == 2


def test_an_unusable_configuration_is_reported_with_every_finding(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("[hub]\nport = 99999\n")
    with pytest.raises(CommandFailed) as failed:
        configuration_of(tmp_path / "bad.toml")
    assert failed.value.exit == Exit.CONFIGURATION
    assert "bad.toml: hub.port must be 0 to 65535, not 99999" in failed.value.message


def test_a_system_that_knows_no_home_is_no_reason_to_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", none)
    assert home() == Path("~")


# -- remote --------------------------------------------------------------------------------------------------------

KEY = "k3y-of-mine-0123456789"
CALL = HubCall("tool", "files.a/b", msgspec.Raw(b'{"n":1}'))
OK = b"HTTP/1.1 200 OK\r\n"
STREAM = OK + b"content-type: text/event-stream\r\n\r\n"


def running_remote(url: str, key: str | None = None) -> RemoteSource:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    return RemoteSource(url, headers)


@asynccontextmanager
async def reached(url: str, key: str | None = None) -> AsyncIterator[HubClient]:
    hub = HubClient(running_remote(url, key))
    try:
        yield hub
    finally:
        await hub.aclose()


@asynccontextmanager
async def pretending(answer: bytes, *, stays: bool = False) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server that sends this answer to every request, and then closes or stays silent."""
    received: list[bytes] = []
    connections: set[asyncio.Task[None] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.add(asyncio.current_task())
        received.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(answer)
        if stays:
            with suppress(ConnectionError):
                await reader.read()
            received.append(b"its end")
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp", received
        async with asyncio.timeout(30):
            await asyncio.gather(*(connection for connection in connections if connection is not None))


def seen(events: Sequence[Event | HubQuestion | CallHeld]) -> list[bytes]:
    return [bytes(event.members["progress"]) for event in events if isinstance(event, Progress)]


# -- a real hub ----------------------------------------------------------------------------------------------------


async def test_a_running_hub_is_listed_called_and_read(tmp_path: Path, no_leftovers: None) -> None:
    servers = {"shelf": stdio(quick_command("full_sdk2")), "dead": {"command": "/no/such/program"}}
    events: list[Event | HubQuestion | CallHeld] = []
    async with serving(tmp_path, servers, limits=PATIENT) as served, reached(served.url) as hub:
        listing = read_listing(await hub.list(TOOLS), TOOLS)
        assert {offer.name for offer in listing.features if offer.server == "shelf"} == {
            f"shelf.{name}" for name in content.TOOLS
        }
        assert listing.missing.keys() == {"dead"}
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
            with pytest.raises(CommandFailed, match="Only operators may forget a server") as failed:
                await hub.forget("oven")
            assert failed.value.exit == Exit.NOT_ALLOWED
            assert "--operator" in failed.value.advice[0]


# -- invalid and useless addresses ---------------------------------------------------------------------------------


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
        assert "it responds with HTTP 404" in failed.value.message


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
    async with pretending(answer) as (url, received), reached(url.replace("/mcp", base)) as hub:
        assert isinstance(await hub.perform(CALL, print), Result)
        assert received[0].split(b"\r\n")[0] == target


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (STREAM + b": \n\nevent: progress\ndata: {}\n\n", "Lost the hub during the call: its stream ended"),
        (OK + b"content-length: 90\r\n\r\n{", "Lost the hub during the call"),
        (OK + b"content-length: 3\r\n\r\n[1}", "The hub sent an invalid response"),
        (STREAM + b"event: result\ndata: [1}\n\n", "The hub sent an invalid response"),
    ],
)
async def test_an_invalid_answer_leaves_executed_unknown(answer: bytes, expected: str) -> None:
    async with pretending(answer) as (url, _), reached(url) as hub:
        outcome = await hub.perform(CALL, lambda _: None)
        assert isinstance(outcome, CallFailure)
        assert outcome.message.startswith(expected)
        assert outcome.executed == "unknown"


async def test_an_error_at_the_end_of_a_stream_is_printed_in_the_hubs_words() -> None:
    problem = b'{"detail":"Lost server raw","executed":"unknown","reason":"lost","server":"raw"}'
    async with pretending(STREAM + b"event: error\ndata: %b\n\n" % problem) as (url, _), reached(url) as hub:
        assert await hub.perform(CALL, print) == CallFailure("Lost server raw", "unknown", "lost", "raw")


async def test_an_endless_answer_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RESPONSE_BYTES_MAX", 100)
    for answer in (OK + b"content-length: 200\r\n\r\n" + b"x" * 200, STREAM + b"data: " + b"x" * 200):
        async with pretending(answer, stays=True) as (url, _), reached(url) as hub:
            outcome = await hub.perform(CALL, print)
            assert isinstance(outcome, CallFailure)
            assert "longer than 100 bytes" in outcome.message


async def test_a_hub_that_says_nothing_at_all_is_taken_for_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SILENCE_SECONDS", 0.1)
    async with pretending(b"", stays=True) as (url, _), reached(url) as hub:
        with pytest.raises(CommandFailed) as failed:
            await hub.list(TOOLS)
        assert "it sent nothing for 0.1 s" in failed.value.message


async def test_a_cancelled_wait_closes_the_connection(no_leftovers: None) -> None:
    async with pretending(STREAM, stays=True) as (url, received), reached(url) as hub:
        calling = asyncio.ensure_future(hub.perform(CALL, print))
        async with asyncio.timeout(30):
            while not received:  # noqa: ASYNC110 - it arrives over a socket
                await asyncio.sleep(0)
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        async with asyncio.timeout(30):
            while len(received) < 2:  # noqa: ASYNC110 - the end of it does too
                await asyncio.sleep(0)


# -- faults --------------------------------------------------------------------------------------------------------

FILES = ServerName("files")


def test_a_fault_has_all_three_parts() -> None:
    failure = read_failure(problem_of(TimedOut(FILES, 30, executed="unknown")).body())
    assert failure is not None
    received = command_failed(failure)
    assert received.exit == Exit.CALL_FAILED
    assert received.message == "Server files did not answer within 30 s"
    assert received.advice == (
        "executed: unknown (it may have run: check before you call it again)",
        FAULTS["timed_out"].advice,
    )


def test_a_problem_of_the_hub_is_printed_as_json() -> None:
    received = read_failure(problem_of(NotConnected(FILES, "gone")).body())
    assert received is not None
    assert json.loads(msgspec.json.encode({"error": received}))["error"] == {
        "message": "Server files is not connected: gone",
        "executed": "no",
        "reason": "not_connected",
        "server": "files",
    }


def test_a_refusal_as_json_says_when_to_try_again() -> None:
    received = read_failure(problem_of(BreakerOpen(FILES, 2.5)).body())
    assert json.loads(msgspec.json.encode({"error": received}))["error"]["retryAfter"] == 2.5


def test_a_servers_own_claims_are_not_believed() -> None:
    error = ServerError(FILES, 1, "oh", raw({"executed": "no", "reason": "lost"}))
    received = read_failure(problem_of(error).body())
    assert received is not None
    assert command_failed(received).advice[0].startswith("executed: yes")


def test_a_reason_that_this_version_does_not_know_is_no_trouble() -> None:
    assert command_failed(CallFailure("oh", "no", "of tomorrow")).advice[1] == FAULTS["server_error"].advice


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"{}", b'{"detail":"x","executed":"perhaps","reason":"y"}', b"[" * 9999]
)
def test_a_response_that_is_not_a_hubs_problem_has_none(body: bytes) -> None:
    assert read_failure(body) is None
