"""The audit logs of several nodes: each is a chain of its own, and all are verified together."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster_database.nodes import Cluster
from tests.conftest import Ledger
from tests.databases import Database, running
from tests.faults.test_tasks_crash import SECONDS
from tests.fork_server import quick_isthmus
from tests.hubs import environment


@pytest.fixture
def database() -> Iterator[Database]:
    with running() as made:
        yield made


async def verify(config: Path) -> dict[str, Any]:
    """What `isthmus audit verify` says of all logs."""
    process = await asyncio.create_subprocess_exec(
        *quick_isthmus("audit", "verify", "--json", "--config", str(config)),
        stdout=asyncio.subprocess.PIPE,
        env=environment(),
        cwd=config.parent,
    )
    said, _ = await process.communicate()
    verdict: dict[str, Any] = json.loads(said)
    assert process.returncode == (0 if verdict["good"] else 1)
    return verdict


def by_node(verdict: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["node"]: each for each in verdict["slots"]}


async def test_each_node_has_a_chain_and_all_are_verified_together(
    no_leftovers: None, tmp_path: Path, database: Database, ledger: Ledger
) -> None:
    cluster = Cluster(tmp_path, database, ledger, hub={"audit": "strict"})
    configs = [tmp_path / name / "isthmus.json" for name in "ab"]
    async with cluster.nodes("a", "b") as (a, b), asyncio.timeout(SECONDS):
        await asyncio.gather(*(node.send(f"{at}-{n}", waits=True) for n in range(20) for at, node in enumerate((a, b))))
        a.kill()
        await a.hub.process.wait()
        verdict = await verify(configs[1])
        assert verdict["good"], verdict
        logs = by_node(verdict)
        assert (logs["a"]["remote"], logs["b"]["remote"]) == (True, False)
        assert min(each["records"] for each in logs.values()) > 20
        # The killed node starts again, and continues its chain.
        async with cluster.node("a") as again:
            await again.send("0-90", waits=True)
        verdict = await verify(configs[0])
        assert verdict["good"], verdict
        assert set(by_node(verdict)) == {"a", "b"}
        assert by_node(verdict)["a"]["records"] > logs["a"]["records"]
    schema = cluster.schema
    own = {name: by_node(verdict)[name]["slot"] - 1000 for name in "ab"}
    changed = "convert_to(replace(convert_from(content, 'UTF8'), 'yes', 'no'), 'UTF8')"
    before = database.psql(f"SELECT max(number) FROM {schema}.node_audit WHERE chain = {own['b']}")
    database.psql(f"DELETE FROM {schema}.node_audit WHERE chain = {own['b']} AND number = {before}")
    # Only the node itself knows how many records there were.
    assert by_node(await verify(configs[0]))["b"]["good"]
    assert not by_node(await verify(configs[1]))["b"]["good"]
    database.psql(f"UPDATE {schema}.node_audit SET content = {changed} WHERE chain = {own['b']}")
    verdict = await verify(configs[0])
    assert not verdict["good"]
    assert "was changed" in by_node(verdict)["b"]["bad"]["why"]


async def test_nodes_that_share_a_state_folder_have_different_chains(
    no_leftovers: None, tmp_path: Path, database: Database, ledger: Ledger
) -> None:
    cluster = Cluster(tmp_path, database, ledger, hub={"audit": "strict", "state": str(tmp_path / "shared")})
    async with cluster.nodes("a", "b") as (a, b), asyncio.timeout(SECONDS):
        await asyncio.gather(*(node.send(f"{at}-{n}", waits=True) for n in range(9) for at, node in enumerate((a, b))))
        verdict = await verify(tmp_path / "a" / "isthmus.json")
        assert verdict["good"], verdict
        assert {name: each["remote"] for name, each in by_node(verdict).items()} == {"a": False, "b": False}
