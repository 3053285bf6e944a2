"""The hub shows exactly the capabilities of its servers, and no list has a silent gap."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import POLL_SECONDS, Spawn
from tests.hubs import Raw, serving, stdio
from tests.matrix.field import until_complete
from tests.peers import content
from tests.peers.client_sdk2 import Mode, client_over_http
from tests.peers.launch import command, quick_command
from tests.peers.sdk1_steps import run_sdk1
from tests.peers.surveyor import plain

SERVERS = {
    "tools": stdio(command("raw_server")),
    "prompts": stdio(command("full_sdk2", "--only", "prompts")),
    "resources": stdio(command("full_sdk2", "--only", "resources", "completion")),
}

SHOWN: dict[str, dict[str, Any]] = {
    "tools": {"tools": {"listChanged": True}},
    "prompts": {"prompts": {"listChanged": True}},
    "resources": {"resources": {"listChanged": True, "subscribe": True}, "completions": {}},
}

THEIRS = {"provide": False}
"""Tasks are what the hub adds by itself, and are looked at elsewhere."""

GAPS = ("tools/list", "prompts/list", "resources/list", "resources/templates/list")


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_server_shows_its_capabilities_and_the_hub_those_of_all(mode: Mode, tmp_path: Path) -> None:
    async with serving(tmp_path, SERVERS, tasks=THEIRS) as hub:
        await until_complete(hub.url)
        shown = {}
        for server in SERVERS:
            async with client_over_http(hub.url_of(server), mode=mode) as client:
                shown[server] = plain(client.server_capabilities)
        async with client_over_http(hub.url, mode=mode) as client:
            together = plain(client.server_capabilities)

    assert shown == SHOWN
    assert together == {**SHOWN["tools"], **SHOWN["prompts"], **SHOWN["resources"]}


async def test_a_hub_whose_servers_have_tools_only_shows_tools_only(tmp_path: Path) -> None:
    async with serving(tmp_path, {"tools": SERVERS["tools"]}, tasks=THEIRS) as hub:
        await until_complete(hub.url)
        async with client_over_http(hub.url) as modern:
            shown = plain(modern.server_capabilities)
        (hello,) = await run_sdk1([{"do": "hello"}], url=hub.url)

    assert shown == SHOWN["tools"]
    assert hello["hello"]["capabilities"] == SHOWN["tools"]


async def test_every_list_names_the_server_that_is_missing_from_it(tmp_path: Path, spawn: Spawn) -> None:
    lost = await spawn("full_sdk2")
    servers = {"lost": {"url": lost.url}, "kept": stdio(quick_command("full_sdk2", "--era", "legacy"))}
    async with serving(tmp_path, servers) as hub, Raw(hub.url) as raw:
        await until_complete(hub.url)
        await lost.kill()
        results = {method: await _until_missing(raw, method, "lost") for method in GAPS}

    for method, result in results.items():
        assert set(result["_meta"]["isthmus/missing"]) == {"lost"}, method
        assert result["_meta"]["isthmus/missing"]["lost"]["reason"], method
    kept = {prompt["name"] for prompt in results["prompts/list"]["prompts"]}
    assert kept >= {f"kept.{name}" for name in content.PROMPTS}


async def _until_missing(raw: Raw, method: str, server: str) -> dict[str, Any]:
    """The first listing that names the server as missing, with the reason."""
    async with asyncio.timeout(20):
        while True:
            result: dict[str, Any] = (await raw.ask(method))["result"]
            if result.get("_meta", {}).get("isthmus/missing", {}).get(server, {}).get("reason"):
                return result
            await asyncio.sleep(POLL_SECONDS)
