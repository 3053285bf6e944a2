"""A configuration that is pushed into the database: all nodes follow it, and say so where they cannot."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.cluster_database.nodes import LEASE, forked_hub
from tests.cluster_hubs.nodes import PATIENCE, nats_server, rest_of, stands
from tests.databases import Database, running
from tests.faults.watching import eventually
from tests.hubs import Ended, HubProcess, Raw, run, started
from tests.security.fickle import Fickle
from tests.security.fickle_server import tool

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.xdist_group("cluster")]

Json = dict[str, Any]


@pytest.fixture(scope="module")
def database() -> Iterator[Database]:
    with running() as made:
        yield made


class Pushed:
    """Two nodes whose files have only what is their own."""

    def __init__(self, folder: Path, nats: str, url: str) -> None:
        self.folder = folder
        self._nats = nats
        self._url = url
        self.hubs: dict[str, HubProcess] = {}
        self.fickle = Fickle(folder / "lists.json")
        self.fickle.lists(tool("read"))

    def file(self, name: str, **more: Any) -> Path:
        """The file of a node."""
        (self.folder / name).mkdir(exist_ok=True)
        cluster = {"nats": self._nats, "node": name, "lease_seconds": LEASE, "config": "database"}
        hub = {"state": str(self.folder / name / "state")}
        path = self.folder / name / "isthmus.json"
        path.write_text(json.dumps({"cluster": cluster, "storage": {"url": self._url}, "hub": hub, **more}))
        return path

    async def command(self, *words: str, **tables: Any) -> Ended:
        """Run a command of `isthmus config` with the file of a node; with tables, on a file that has them."""
        if tables:
            named = self.folder / "shared.json"
            named.write_text(json.dumps(tables))
            words = (words[0], str(named), *words[1:])
        return await run("config", *words, "--config", str(self.file("a")), folder=self.folder)

    async def push(self, *words: str, **tables: Any) -> int:
        """Push a configuration that can be used; its version."""
        ended = await self.command("push", "--json", *words, **tables)
        assert ended.code == 0, ended
        version: int = json.loads(ended.out)["version"]
        return version

    async def nodes(self, at: str) -> dict[str, Json]:
        """What a node says of all."""
        async with rest_of(self.hubs[at]) as rest:
            return {each["name"]: each for each in (await rest.get("/v1/cluster")).json()["nodes"]}

    async def uses(self, version: int) -> float:
        """How long it takes until both nodes say that they use a version."""

        async def is_so() -> bool:
            return [each["configVersion"] for each in (await self.nodes("a")).values()] == [version, version]

        return await eventually(is_so, f"both use version {version}", PATIENCE)

    async def servers(self, at: str) -> set[str]:
        """The servers of a node, without those of the hub itself."""
        async with rest_of(self.hubs[at]) as rest:
            return {each["name"] for each in (await rest.get("/v1/servers")).json()["servers"]} - {"builtin"}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def pushed(tmp_path_factory: pytest.TempPathFactory, database: Database) -> AsyncIterator[Pushed]:
    folder = tmp_path_factory.mktemp("stored")
    async with nats_server(folder) as nats, AsyncExitStack() as stack:
        made = Pushed(folder, nats.url, database.url())
        ended = await run("serve", "--config", str(made.file("a")), "--port", "0", folder=folder)
        assert (ended.code, "isthmus config push" in ended.err) == (3, True), ended
        assert await made.push(servers={}) == 1
        for name in "ab":
            made.hubs[name] = await stack.enter_async_context(forked_hub(made.file(name)))
        yield made


async def test_a_version_is_applied_by_all_nodes(pushed: Pushed) -> None:
    version = await pushed.push("--note", "files", servers={"files": pushed.fickle.entry})
    late = await pushed.uses(version)
    print(f"seconds until both nodes applied it: {late:.2f}")
    for name in "ab":
        assert await pushed.servers(name) == {"files"}
        await stands(pushed.hubs[name], "files", "ready")
        async with Raw(pushed.hubs[name].url) as raw:
            assert "result" in await raw.call("files.read")
    # An earlier one again, which is a new version.
    ended = await pushed.command("rollback", "1", "--json")
    assert ended.code == 0, ended
    await pushed.uses(version + 1)
    assert await pushed.servers("b") == set()
    listed = json.loads((await pushed.command("history", "--json")).out)["versions"]
    assert [each["version"] for each in listed][:2] == [version + 1, version]
    assert listed[1]["note"] == "files"
    assert listed[0]["digest"] == listed[-1]["digest"] != listed[1]["digest"]
    pulled = await pushed.command("pull", "--version", str(version))
    assert list(json.loads(pulled.out)["servers"]) == ["files"]
    shown = await pushed.command("show", "--json")
    assert "servers.files.command" not in {each["path"] for each in json.loads(shown.out)["values"]}


async def test_an_unusable_configuration_is_not_stored(pushed: Pushed) -> None:
    before = json.loads((await pushed.command("history", "--json")).out)["versions"][0]["version"]
    refused: dict[str, Json] = {
        "hub.port": {"hub": {"port": 1}},
        "cluster": {"cluster": {"nats": "nats://elsewhere"}},
        "call_seconds": {"limits": {"call_seconds": -1}},
        "1 server cannot be used": {"servers": {"s": {"comand": "false"}}},
    }
    for words, tables in refused.items():
        ended = await pushed.command("push", **tables)
        assert ended.code == 3, ended
        assert words in ended.err, ended
    conflict = await pushed.command("push", "--base", str(before - 1), servers={})
    assert (conflict.code, f"the latest version is {before}" in conflict.err) == (1, True), conflict
    assert json.loads((await pushed.command("history", "--json")).out)["versions"][0]["version"] == before
    edited = await run("add", "more", "--config", str(pushed.file("a")), "--", "true", folder=pushed.folder)
    assert (edited.code, "isthmus config push" in edited.err) == (3, True), edited
    # Everything that nodes have in common is in the database, and nowhere else.
    ended = await run(
        "config", "check", "--config", str(pushed.file("c", limits={"drain_seconds": 1.0})), folder=pushed.folder
    )
    assert (ended.code, "limits belongs in the database" in ended.out) == (3, True), ended


async def test_a_secret_in_plain_text_is_reported(pushed: Pushed) -> None:
    entry = {**pushed.fickle.entry, "enabled": False}
    servers = {
        "plain": {**entry, "env": {"API_TOKEN": "8d1c0f2ab94e77"}},
        "referred": {**entry, "env": {"API_TOKEN": "env:HOME"}},
    }
    ended = await pushed.command("push", servers=servers)
    assert ended.code == 0, ended
    assert "servers.plain.env.API_TOKEN has a secret" in ended.err
    assert "8d1c0f2ab94e77" not in ended.err
    assert "servers.referred" not in ended.err


async def test_a_node_that_cannot_apply_a_version_says_so(pushed: Pushed) -> None:
    """The variable is set where the version is pushed, and at no node."""
    shared = pushed.folder / "shared.json"
    callers = {"ann": {"key": "env:ONLY_THE_OPERATOR_HAS_IT", "allow": ["*"]}}
    shared.write_text(json.dumps({"callers": callers}))
    words = ("config", "push", str(shared), "--json", "--config", str(pushed.file("a")))
    ended = await run(
        *words, folder=pushed.folder, env={"ONLY_THE_OPERATOR_HAS_IT": "a-key-of-ann-that-is-long-enough"}
    )
    assert ended.code == 0, ended

    async def is_reported() -> bool:
        return all("ONLY_THE_OPERATOR_HAS_IT" in each["configProblem"] for each in (await pushed.nodes("a")).values())

    await eventually(is_reported, "both nodes report it", PATIENCE)
    url = f"http://127.0.0.1:{pushed.hubs['b'].port}"
    status = await run("cluster", "status", "--hub", url, folder=pushed.folder)
    assert "b does not use all of the newest configuration: refused:" in status.err, status
    async with rest_of(pushed.hubs["b"]) as rest:
        ready = (await rest.get("/readyz?verbose")).json()
    assert "ONLY_THE_OPERATOR_HAS_IT" in ready["configuration"]["this node"][0]
    await pushed.uses(await pushed.push(servers={}))
    assert {each["configProblem"] for each in (await pushed.nodes("b")).values()} == {""}


async def test_workers_follow_it_too(pushed: Pushed) -> None:
    await pushed.uses(await pushed.push(servers={}))
    words = ("--config", str(pushed.file("w")), "--workers", "2")
    async with started(pushed.folder, *words) as hub, asyncio.timeout(4 * PATIENCE):

        async def workers() -> dict[str, int]:
            found = (await pushed.nodes("a")).items()
            return {name: each["configVersion"] for name, each in found if name.startswith("w-")}

        async def are_there() -> bool:
            return len(await workers()) == 2

        await eventually(are_there, "both workers are nodes", PATIENCE)
        version = await pushed.push(servers={"files": pushed.fickle.entry})

        async def have_it() -> bool:
            return set((await workers()).values()) == {version}

        await eventually(have_it, "both workers use it", PATIENCE)
        # NATS together with workers: a call at any of them. Each starts the program for itself.
        async with Raw(hub.url) as raw:

            async def is_answered() -> bool:
                return "result" in await raw.call("files.read")

            await eventually(is_answered, "the worker has started the program", PATIENCE)
