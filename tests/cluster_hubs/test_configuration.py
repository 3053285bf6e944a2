"""Nodes notice that their configurations differ, and name the tables."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.cluster_hubs.nodes import PATIENCE, cluster, rest_of
from tests.faults.watching import eventually
from tests.hubs import HubProcess, run

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.xdist_group("cluster")]

SERVERS = {"files": {"command": "false", "args": ["./data"], "env": {"B": "2", "A": "1"}, "enabled": False}}


async def differences(hub: HubProcess) -> dict[str, list[str]]:
    async with rest_of(hub) as client:
        nodes: list[dict[str, Any]] = (await client.get("/v1/cluster")).json()["nodes"]
    return {each["name"]: each["differs"] for each in nodes}


async def test_a_configuration_that_differs_is_reported_until_it_is_the_same(tmp_path: Path) -> None:
    async with cluster(tmp_path, "a", "b", servers=SERVERS) as (_, (a, b)), asyncio.timeout(4 * PATIENCE):

        async def becomes(expected: list[str]) -> None:
            async def is_so() -> bool:
                there = [(await differences(a)).get("b"), (await differences(b)).get("a")]
                return there == [expected, expected]

            await eventually(is_so, f"both nodes report {expected}", within=PATIENCE)

        # Their folders, ports and names differ, and their configurations do not.
        await becomes([])
        config = tmp_path / "b" / "isthmus.json"
        before = config.read_text()
        config.write_text(json.dumps({**json.loads(before), "limits": {"drain_seconds": 7.0}}))
        await becomes(["limits"])
        async with rest_of(a) as client:
            ready = (await client.get("/readyz?verbose")).json()
        assert (ready["cluster"], ready["configuration"]) == ("ok", {"b": ["limits"]})
        shown = await run("cluster", "status", "--config", str(tmp_path / "a" / "isthmus.json"), folder=tmp_path)
        assert "b has another configuration than this node: limits." in shown.err
        assert any("another node has another configuration" in line for line in a.said)
        config.write_text(before)
        await becomes([])
        await eventually(lambda: any("same configuration again" in line for line in a.said), "it is logged")
