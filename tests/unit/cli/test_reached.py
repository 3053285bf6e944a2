"""A hub of one's own and a running one look the same from a command."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from isthmus.cli.exits import CommandFailed, Exit
from isthmus.cli.opening import open_hub
from isthmus.cli.reached import HUB, Absence, Reached, reach_running, running_as_server, start_own
from isthmus.cli.sources import Own, Running
from isthmus.config.settings import Configuration, HubSettings
from isthmus.model.calls import Surface
from isthmus.model.names import ServerName
from isthmus.upstream.settings import HttpSettings, ServerSettings, StdioSettings
from tests.hubs import PATIENT, serving, stdio, write_config
from tests.peers.launch import command, http_peer

RAW = command("raw_server")
TOOLS = ["echo", "grow", "meta", "pay"]


def configuration(*servers: ServerSettings) -> Configuration:
    return Configuration(None, HubSettings(), servers)


def server(name: str, *words: str) -> ServerSettings:
    return ServerSettings(ServerName(name), StdioSettings(words[0], words[1:]))


def running(url: str, key: str | None = None) -> Running:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    return Running(HttpSettings(url, headers), has_key=key is not None)


def names(hub: Reached) -> list[str]:
    return sorted(offer.name for offer in hub.offers() if offer.server != "builtin")


async def test_an_own_hub_waits_for_its_servers_and_tells_who_failed() -> None:
    wanted = configuration(server("raw", *RAW), server("dead", "/no/such/program"))
    hub = await start_own(wanted, os.environ, within=20)
    try:
        assert names(hub) == [f"raw.{tool}" for tool in TOOLS]
        assert not hub.is_remote
        assert hub.era is None
        assert hub.absences().keys() == {"dead"}
        assert hub.absences()["dead"].state == "retrying"
        assert hub.settled_at.keys() == {"raw", "dead"}
    finally:
        await hub.aclose()


async def test_only_the_servers_that_are_needed_are_started() -> None:
    wanted = configuration(server("raw", *RAW), server("dead", "/no/such/program"))
    hub = await start_own(wanted, os.environ, within=20, only={ServerName("raw")})
    try:
        assert hub.absences() == {}
    finally:
        await hub.aclose()


async def test_a_server_that_does_not_come_in_time_is_told_as_starting() -> None:
    hub = await start_own(configuration(server("slow", "sleep", "30")), os.environ, within=0.05)
    try:
        assert hub.absences() == {"slow": Absence("starting", "it has not answered yet", is_listed=False)}
    finally:
        await hub.aclose()


async def test_whoever_has_to_wait_at_a_terminal_is_told_for_whom(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("isthmus.cli.reached.NOTICE_SECONDS", 0.01)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    hub = await start_own(configuration(server("slow", "sleep", "30")), os.environ, within=2.0)
    await hub.aclose()
    assert capsys.readouterr().err == "waiting for slow …\n"


async def test_an_interrupted_start_leaves_no_process_behind(no_leftovers: None) -> None:
    starting = asyncio.ensure_future(start_own(configuration(server("slow", "sleep", "30")), os.environ, within=30))
    await asyncio.wait({starting}, timeout=0.2)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting


async def test_a_running_hub_is_listed_under_its_own_names(tmp_path: Path) -> None:
    servers = {"raw": stdio(RAW), "dead": {"command": "/no/such/program"}}
    async with serving(tmp_path, servers, limits=PATIENT) as served:
        hub = await reach_running(running(served.url))
        try:
            assert names(hub) == [f"raw.{tool}" for tool in TOOLS]
            assert hub.is_remote
            assert hub.era == "2026-07-28"
            assert hub.absences().keys() == {"dead"}
        finally:
            await hub.aclose()


async def test_any_mcp_server_can_stand_in_for_a_hub() -> None:
    async with http_peer("raw_server") as peer:
        hub = await reach_running(running(peer.url))
        try:
            assert names(hub) == TOOLS
            assert {offer.server for offer in hub.offers()} == {HUB}
            assert hub.absences() == {}
        finally:
            await hub.aclose()


@pytest.mark.parametrize("key", [None, "not-the-right-key-at-all"])
async def test_a_hub_that_wants_a_key_does_not_let_others_in(tmp_path: Path, key: str | None) -> None:
    callers = {"me": {"key": "k3y-of-mine-0123456789", "allow": ["*"]}}
    async with serving(tmp_path, callers=callers) as served:
        with pytest.raises(CommandFailed) as failed:
            await reach_running(running(served.url, key))
        assert failed.value.exit == Exit.NOT_ALLOWED
        assert "ISTHMUS_KEY" in failed.value.advice[0]
        hub = await reach_running(running(served.url, "k3y-of-mine-0123456789"))
        await hub.aclose()


async def test_a_hub_that_is_not_there_cannot_be_reached(deaf_port: int) -> None:
    with pytest.raises(CommandFailed) as failed:
        await reach_running(running(f"http://127.0.0.1:{deaf_port}/mcp"))
    assert failed.value.exit == Exit.UNREACHABLE
    assert failed.value.message.endswith(f"/mcp: connection refused by 127.0.0.1:{deaf_port}")
    assert "isthmus serve" in failed.value.advice[0]


async def test_a_place_that_is_no_hub_cannot_be_reached(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        with pytest.raises(CommandFailed) as failed:
            await reach_running(running(served.url.replace("/mcp", "/elsewhere")))
        assert failed.value.exit == Exit.UNREACHABLE


async def test_an_interrupted_attempt_to_reach_a_hub_is_cleaned_up(tmp_path: Path, no_leftovers: None) -> None:
    async with http_peer("raw_server", "--mode", "hang_init") as peer:
        reaching = asyncio.ensure_future(reach_running(running(peer.url)))
        await asyncio.wait({reaching}, timeout=0.2)
        reaching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reaching


def test_a_running_hub_can_be_kept_as_a_server() -> None:
    made, surface = running_as_server(running("http://hub/mcp", "k3y"))
    assert [server.name for server in made.servers] == [HUB]
    assert surface == Surface("own", HUB)


async def test_opening_chooses_by_the_source(tmp_path: Path) -> None:
    file = write_config(tmp_path, {"raw": stdio(RAW), "dead": {"command": "/no/such/program"}})
    hub = await open_hub(Own(file), wait=20, name="raw.echo")
    assert hub.absences() == {}
    await hub.aclose()
    async with http_peer("raw_server") as peer:
        hub = await open_hub(running(peer.url), wait=20)
        assert hub.is_remote
        await hub.aclose()
