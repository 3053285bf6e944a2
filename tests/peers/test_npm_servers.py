"""The reference servers from npm, with nothing between them and an official client; and that they are pinned."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.peers.client_sdk2 import client_over_http, client_over_sse, client_over_stdio
from tests.peers.node import FOLDER
from tests.peers.npm_servers import everything_over_http, npm_command

LOCKED = json.loads((FOLDER / "package-lock.json").read_text(encoding="utf-8"))["packages"]


def test_every_package_is_pinned_by_its_hash() -> None:
    packages = {path: package for path, package in LOCKED.items() if path}

    assert len(packages) > 100
    assert [path for path, package in packages.items() if not package.get("integrity", "").startswith("sha512-")] == []


def test_everything_is_asked_for_by_exact_versions() -> None:
    package = json.loads((FOLDER / "package.json").read_text(encoding="utf-8"))
    asked = {**package["dependencies"], **package["optionalDependencies"]}

    assert len(asked) == 8
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in asked.values())
    assert {name: LOCKED[f"node_modules/{name}"]["version"] for name in asked} == asked


def test_the_lock_names_no_place_to_fetch_from() -> None:
    assert [path for path, package in LOCKED.items() if "resolved" in package] == []


def test_installing_runs_nothing() -> None:
    assert "ignore-scripts=true" in (FOLDER / ".npmrc").read_text(encoding="utf-8").splitlines()


async def test_everything_has_every_capability_of_its_era() -> None:
    async with client_over_stdio(npm_command("everything"), mode="legacy") as client:
        capabilities = client.server_capabilities.model_dump(exclude_none=True)
    assert capabilities.keys() >= {"tools", "prompts", "resources", "completions", "logging"}


@pytest.mark.parametrize("transport", ["sse", "streamableHttp"])
async def test_everything_serves_both_transports_of_its_era(transport: str) -> None:
    if transport == "sse":
        async with everything_over_http("sse") as peer, client_over_sse(peer.at("/sse")) as client:
            assert (await client.list_prompts()).prompts
    else:
        async with everything_over_http("streamableHttp") as peer, client_over_http(peer.url, mode="legacy") as client:
            assert (await client.list_prompts()).prompts


async def test_the_file_server_has_tools_only(tmp_path: Path) -> None:
    async with client_over_stdio(npm_command("filesystem", str(tmp_path)), mode="legacy") as client:
        assert client.server_capabilities.model_dump(exclude_none=True).keys() == {"tools"}


async def test_the_memory_server_has_tools_and_a_resource_to_watch(tmp_path: Path) -> None:
    env = {"MEMORY_FILE_PATH": str(tmp_path / "memory.jsonl")}
    async with client_over_stdio(npm_command("memory"), mode="legacy", env=env) as client:
        assert client.server_capabilities.model_dump(exclude_none=True).keys() == {"tools", "resources"}
        assert [resource.uri for resource in (await client.list_resources()).resources] == ["memory://knowledge-graph"]
