"""Nodes notice that their configurations differ, and name the tables."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import trustme

from tests.cluster_hubs.nodes import PATIENCE, cluster, nats_server, rest_of
from tests.faults.watching import eventually
from tests.hubs import HubProcess, run, serving, write_config

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.xdist_group("cluster")]

Json = dict[str, Any]
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


async def test_nodes_prove_to_nats_who_they_are_with_a_certificate(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    for name in ("127.0.0.1", "node"):
        issued = authority.issue_cert(name)
        issued.private_key_pem.write_to_path(str(tmp_path / f"{name}.key"))
        issued.cert_chain_pems[0].write_to_path(str(tmp_path / f"{name}.pem"))
    files = "; ".join(
        f'{key}: "{tmp_path}/{file}"'
        for key, file in (("cert_file", "127.0.0.1.pem"), ("key_file", "127.0.0.1.key"), ("ca_file", "ca.pem"))
    )

    async def status(hub: HubProcess) -> Json:
        async with rest_of(hub) as client:
            found: Json = (await client.get("/v1/cluster")).json()
            return found

    async with nats_server(tmp_path, f"tls {{ {files}; verify: true }}") as nats, AsyncExitStack() as stack:
        url = nats.url.replace("nats://", "tls://")
        proof = {"tls_cert": "../node.pem", "tls_key": "../node.key"}
        hubs = {}
        for name, keys in {"a": proof, "b": proof, "without": {}}.items():
            (tmp_path / name).mkdir()
            table = {"nats": url, "node": name, "tls_ca": "../ca.pem", **keys}
            hubs[name] = await stack.enter_async_context(serving(tmp_path / name, {}, cluster=table))

        async def meet() -> bool:
            return [len((await status(hubs[name]))["nodes"]) for name in ("a", "b")] == [2, 2]

        await eventually(meet, "the nodes with a certificate meet", within=PATIENCE)
        assert (await status(hubs["without"]))["bus"]["state"] == "away"


async def test_a_certificate_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    config = write_config(tmp_path, {}, cluster={"nats": "tls://127.0.0.1:1", "tls_cert": "missing.pem"})
    ended = await run("serve", "--config", str(config), "--port", "0", folder=tmp_path)
    assert ended.code == 3
    assert "missing.pem" in ended.err
