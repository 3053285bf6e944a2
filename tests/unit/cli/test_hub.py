"""A hub of this process, started for a command."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from isthmus.cli.documents import FeatureList, UnavailableServer, read_listing
from isthmus.cli.hub import HUB, HubClient, RemoteHub, open_hub, running_as_server, start_local_hub
from isthmus.cli.hub import LocalSource, RemoteSource
from isthmus.config.settings import Configuration, HubSettings
from isthmus.model.calls import Surface
from isthmus.model.names import ServerName
from isthmus.upstream.settings import HttpSettings, ServerSettings, StdioSettings
from isthmus.wire.mcp.lists import TOOLS
from tests.hubs import stdio, write_config
from tests.peers.launch import command

RAW = command("raw_server")
NAMES = ["echo", "grow", "meta", "pay"]


def configuration(*servers: ServerSettings) -> Configuration:
    return Configuration(None, HubSettings(), servers)


def server(name: str, *words: str) -> ServerSettings:
    return ServerSettings(ServerName(name), StdioSettings(words[0], words[1:]))


async def listed(hub: HubClient) -> FeatureList:
    return read_listing(await hub.list(TOOLS), TOOLS)


async def test_an_own_hub_waits_for_its_servers_and_tells_who_failed() -> None:
    wanted = configuration(server("raw", *RAW), server("dead", "/no/such/program"))
    hub = await start_local_hub(wanted, os.environ, within=30)
    try:
        told = await listed(hub)
        names = sorted(offer.name for offer in told.offers if offer.server != "builtin")
        assert names == [f"raw.{tool}" for tool in NAMES]
        assert told.absences.keys() == {"dead"}
        assert told.absences["dead"].state == "retrying"
        assert hub.settled_at.keys() == {"raw", "dead"}
    finally:
        await hub.aclose()


async def test_only_the_servers_that_are_needed_are_started() -> None:
    wanted = configuration(server("raw", *RAW), server("dead", "/no/such/program"))
    hub = await start_local_hub(wanted, os.environ, within=30, only={ServerName("raw")})
    try:
        assert (await listed(hub)).absences == {}
    finally:
        await hub.aclose()


async def test_a_server_that_does_not_come_in_time_is_told_as_starting() -> None:
    hub = await start_local_hub(configuration(server("slow", "sleep", "30")), os.environ, within=0.05)
    try:
        assert (await listed(hub)).absences == {"slow": UnavailableServer("starting", "it has not answered yet")}
    finally:
        await hub.aclose()


async def test_whoever_has_to_wait_at_a_terminal_is_told_for_whom(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("isthmus.cli.hub.NOTICE_SECONDS", 0.01)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    starting = asyncio.ensure_future(start_local_hub(configuration(server("slow", "sleep", "30")), os.environ, within=30))
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
    starting = asyncio.ensure_future(start_local_hub(configuration(server("slow", "sleep", "30")), os.environ, within=30))
    await asyncio.wait({starting}, timeout=0.2)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting


def test_a_running_hub_can_be_kept_as_a_server() -> None:
    made, surface = running_as_server(RemoteSource(HttpSettings("http://hub/mcp"), has_key=False))
    assert [server.name for server in made.servers] == [HUB]
    assert surface == Surface("own", HUB)


async def test_opening_chooses_by_the_source(tmp_path: Path) -> None:
    file = write_config(tmp_path, {"raw": stdio(RAW), "dead": {"command": "/no/such/program"}})
    async with open_hub(LocalSource(file), wait=30, name="raw.echo") as hub:
        assert (await listed(hub)).absences == {}
    async with open_hub(RemoteSource(HttpSettings("http://127.0.0.1:1/mcp"), has_key=False), wait=30) as hub:
        assert isinstance(hub, RemoteHub)
