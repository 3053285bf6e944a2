"""T61: a node that was given up comes back and writes, or one with a stolen configuration joins.

Nodes prove themselves to NATS and to the database, and then trust each other: the credentials make a node.
Shown here: without them nobody joins, and the hub serves its own servers meanwhile; what a stranger writes to the
services of nodes costs a channel. Frames of another life of a node are ignored (`tests/cluster/test_nats.py`). A node
that was stopped for so long that another took its place writes nothing; `tests/cluster_database/test_leases.py` shows
it with processes, and `tests/unit/storage/test_postgres_cluster.py` at every point of a transaction. A second hub on
the state of one that is alone finds a lock and is refused: for the database that is shown in
`tests/unit/storage/test_postgres.py` and `tests/faults/test_tasks_database.py`; here for the file.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from isthmus.app.jsonrpc_over_bus import frame
from isthmus.cluster.bus import NodeId
from isthmus.cluster.nats import NatsBus, NatsSettings
from isthmus.core.journal import Document
from isthmus.storage.journal_base import StateInUse
from isthmus.storage.sqlite import SqliteJournal
from tests.cluster.nodes import Inbox
from tests.cluster_hubs.nodes import nats_server, node, rest_of, stands
from tests.faults.watching import eventually
from tests.hubs import Raw
from tests.relay.peers import Manner, raw_server
from tests.unit.storage.test_documents import write


async def test_a_second_hub_on_the_same_state_is_refused(tmp_path: Path) -> None:
    first = SqliteJournal(tmp_path)
    with pytest.raises(StateInUse):
        SqliteJournal(tmp_path)
    await first.aclose()
    second = SqliteJournal(tmp_path)
    await second.aclose()


async def test_writes_of_a_superseded_writer_are_refused(tmp_path: Path) -> None:
    """Each change names the version that it takes the place of: who missed one cannot write the next."""
    journal = SqliteJournal(tmp_path)
    assert await write(journal, Document("task", "me", "t", 1, 1.0, b"begun")) == "kept"
    stale = Document("task", "me", "t", 2, 2.0, b"what the old one thinks")
    assert await write(journal, Document("task", "me", "t", 2, 2.0, b"what the new one did")) == "kept"
    assert await write(journal, stale) == "conflict"
    kept = await journal.read("task", "me", "t")
    assert kept is not None
    assert kept.body == b"what the new one did"
    await journal.aclose()


async def test_without_the_credentials_of_nats_no_node_joins(tmp_path: Path) -> None:
    async with (
        nats_server(tmp_path, 'authorization: { user: "hub", password: "right-password" }') as nats,
        node(tmp_path, nats.url.replace("//", "//hub:right-password@"), "a") as a,
        node(tmp_path, nats.url.replace("//", "//hub:wrong-password@"), "rogue") as rogue,
        raw_server(a.port, "kitchen", "s1"),
        raw_server(rogue.port, "kitchen", "s1", manner=Manner(tools=("steal",))),
        Raw(a.url) as caller,
        rest_of(a) as rest,
        rest_of(rogue) as other,
    ):
        await stands(a, "kitchen_s1", "ready")
        await eventually(lambda: any("not in the cluster" in line for line in rogue.said), "it is refused")
        assert [each["name"] for each in (await rest.get("/v1/cluster")).json()["nodes"]] == ["a"]
        assert (await other.get("/v1/cluster")).json()["bus"]["state"] == "away"
        assert "kitchen_s1.steal" not in await caller.names()
        assert "-password" not in "".join([*rogue.said, *a.said])


ANNOUNCED = {"agent": "kitchen", "tenant": "default", "server_id": "s1", "name": "x", "is_named": True, "came": 0}
HEADS = [b"garbage", b"{}", b"[]", b"null", json.dumps(ANNOUNCED).encode()]
STRANGE = [*map(frame, HEADS), *HEADS, b"\xff" * 64, b"\0"]


async def test_a_strangers_messages_to_node_services_cost_its_channel(tmp_path: Path) -> None:
    async with (
        nats_server(tmp_path) as nats,
        node(tmp_path, nats.url, "a") as a,
        raw_server(a.port, "kitchen", "s1"),
        Raw(a.url) as caller,
    ):
        await stands(a, "kitchen_s1", "ready")
        bus = await NatsBus.start(NatsSettings((nats.url,)), NodeId("stranger"))
        try:
            await eventually(lambda: NodeId("a") in bus.peers(), "it is seen")
            for strange in STRANGE:
                channel = await bus.connect(NodeId("a"), "server", within=5)
                channel.start(Inbox())
                channel.send(strange)
                channel.close()
            directory = await bus.connect(NodeId("a"), "servers", within=5)
            inbox = Inbox()
            directory.start(inbox)
            directory.send(b"nobody reads this")
            shown = json.loads(await asyncio.wait_for(inbox.messages.get(), 5))
            assert [each["server_id"] for each in shown["own"]] == ["s1"]
        finally:
            await bus.aclose()
        answer = await caller.call("kitchen_s1.echo", {"text": "well"})
        assert answer["result"]["content"][0]["text"] == "well"
