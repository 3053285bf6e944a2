"""A server that dialled in at one node is a server of every node."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from isthmus.app.jsonrpc_over_bus import frame
from isthmus.cluster.bus import BusChannel, ChannelEnd, NodeId
from isthmus.cluster.nats import NatsBus, NatsSettings
from tests.cluster.servers import BUSY
from tests.cluster_hubs.nodes import PATIENCE, cluster, nats_server, node, rest_of, stands
from tests.faults.probed_hub import probed
from tests.faults.watching import eventually
from tests.fork_server import quick_isthmus
from tests.hubs import META, HubProcess, Raw, environment, isthmus, stdio
from tests.relay.dialling import child
from tests.relay.peers import Manner, device, raw_server
from tests.relay.tokens import KEY

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.xdist_group("cluster")]

Json = dict[str, Any]
MEGABYTE = 1024 * 1024
KEYS = {"alice": "alice" * 8, "berta": "berta" * 8, "root": "root-root" * 5}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def pair(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Sequence[HubProcess]]:
    async with cluster(tmp_path_factory.mktemp("pair"), "a", "b") as (_, hubs):
        yield hubs
    for hub in hubs:
        assert "Traceback" not in "".join(hub.said), "".join(hub.said)


def text_of(answer: Json) -> str:
    assert "result" in answer, answer
    return str(answer["result"]["content"][0]["text"])


async def test_it_is_listed_and_called_at_the_node_without_its_socket(pair: Sequence[HubProcess], agent: str) -> None:
    a, b = pair
    async with raw_server(a.port, agent, "s1", manner=Manner(tools=("echo", "fail", "refuse"))), Raw(b.url) as caller:
        await stands(b, f"{agent}_s1", "ready")
        assert f"{agent}_s1.echo" in await caller.names()
        assert text_of(await caller.call(f"{agent}_s1.echo", {"text": "across"})) == "across"
        failed = await caller.call(f"{agent}_s1.fail", {"text": "in vain"})
        assert (text_of(failed), failed["result"]["isError"]) == ("in vain", True)
        error = (await caller.call(f"{agent}_s1.refuse", {"text": "no"}))["error"]
        assert (error["code"], error["message"], error["data"]["executed"]) == (-32050, "no", "yes")
        assert error["data"]["why"] == "it would not"


async def test_a_list_waits_for_a_server_that_connects_to_another_node(pair: Sequence[HubProcess], agent: str) -> None:
    a, b = pair
    silent = Manner(silent_at={"initialize"})
    async with raw_server(a.port, agent, "s1", manner=silent, is_awaited=False) as server:
        await server.until(lambda: "initialize" in server.asked, "it is greeted")

        async def is_awaited() -> bool:
            async with device(b.port, agent) as robot:
                await robot.answer(1)
                return not robot.is_ready

        await eventually(is_awaited, "the other node knows of it, and lists wait")
        async with device(b.port, agent) as robot:
            await robot.answer(1)
            assert not robot.is_ready, "its list waits"
            server.manner = Manner()
            for frame in list(server.frames):
                await server.on_frame(frame)
            await robot.ready()
            assert list(robot.tools) == ["echo"]
            assert await robot.call("echo", {"text": "across"}) == "across"


async def test_a_call_that_reaches_the_owner_after_the_server_has_left_says_that_it_did_not_run(
    pair: Sequence[HubProcess], agent: str
) -> None:
    a, b = pair
    async with device(b.port, agent) as robot:
        for id in range(5000, 5010):  # in most rounds the call is faster than the news
            async with raw_server(a.port, agent, "s1") as server:
                await stands(b, f"{agent}_s1", "ready")
                await server.socket.close()
                error = (await robot.ask("tools/call", {"name": "echo", "arguments": {"text": "so"}}, id=id))["error"]
            assert (error["code"], error["data"]["executed"]) == (-32001, "no"), error
            await stands(b, f"{agent}_s1", "away")


async def test_servers_of_several_nodes_have_one_order_and_devices_are_shown_at_all(
    pair: Sequence[HubProcess], agent: str
) -> None:
    a, b = pair
    async with (
        raw_server(b.port, agent, "first", manner=Manner(tools=("one",))),
        raw_server(a.port, agent, "second", manner=Manner(tools=("two",))),
    ):
        for hub in pair:
            await stands(hub, f"{agent}_first", "ready")
            await stands(hub, f"{agent}_second", "ready")
        async with device(a.port, agent) as here, device(b.port, agent) as there:
            for robot in (here, there):
                await robot.ready()
                assert list(robot.tools) == ["one", "two"]
            for hub in pair:
                async with rest_of(hub) as rest:
                    shown = (await rest.get("/v1/relay/devices", params={"agent": agent})).json()["devices"]
                assert len(shown) == 2, shown


async def test_long_results_and_long_arguments_arrive_whole(pair: Sequence[HubProcess], agent: str) -> None:
    a, b = pair
    async with (
        raw_server(a.port, agent, "s1", manner=Manner(tools=("echo", "huge")), max_size=None),
        Raw(b.url) as caller,
    ):
        await stands(b, f"{agent}_s1", "ready")
        calls = [caller.call(f"{agent}_s1.huge", {"text": str(5 * MEGABYTE)}, id=n) for n in range(3)]
        small = caller.call(f"{agent}_s1.echo", {"text": "beside"}, id=9)
        *long, beside = await asyncio.gather(*calls, small)
        assert [len(text_of(answer)) for answer in long] == [5 * MEGABYTE] * 3
        assert text_of(beside) == "beside"
        words = "y" * (MEGABYTE // 2)
        assert text_of(await caller.call(f"{agent}_s1.echo", {"text": words})) == words


async def test_a_device_and_its_agents_server_are_at_different_nodes(pair: Sequence[HubProcess], agent: str) -> None:
    a, b = pair
    async with raw_server(a.port, agent, "s1"), device(b.port, agent) as robot:
        await stands(b, f"{agent}_s1", "ready")
        await robot.ready()
        assert await robot.call("echo", {"text": "from a device"}) == "from a device"


async def test_a_change_of_its_list_is_seen_at_all_nodes_within_a_second(
    pair: Sequence[HubProcess], agent: str
) -> None:
    a, b = pair
    async with raw_server(a.port, agent, "s1") as server, Raw(b.url) as caller:
        await stands(b, f"{agent}_s1", "ready")
        for name in ("first", "second"):
            await server.change("echo", name)

            async def is_listed(name: str = name) -> bool:
                return f"{agent}_s1.{name}" in await caller.names()

            # The hub reads a list at most once a second.
            assert await eventually(is_listed, "the new tool is listed") < 3.0 * BUSY


async def test_it_comes_and_goes_at_all_nodes_within_a_second(pair: Sequence[HubProcess], agent: str) -> None:
    a, b = pair
    async with raw_server(a.port, agent, "s1", manner=Manner(tools=("echo", "hold"))) as server, Raw(b.url) as caller:
        assert await stands(b, f"{agent}_s1", "ready") < 1.0 * BUSY
        running = asyncio.create_task(caller.call(f"{agent}_s1.hold"))
        await server.holds()
        server.socket.transport.abort()
        async with asyncio.timeout(1.0 * BUSY):
            error = (await running)["error"]
        assert error["data"]["executed"] == "unknown"
        assert await stands(b, f"{agent}_s1", "away") < 1.0 * BUSY
        error = (await caller.call(f"{agent}_s1.echo"))["error"]
        assert (error["code"], error["data"]["executed"]) == (-32011, "no")
        assert f"{agent}_s1.echo" in await caller.names()
    async with raw_server(b.port, agent, "s1"), Raw(a.url) as other:
        await stands(a, f"{agent}_s1", "ready")
        assert text_of(await other.call(f"{agent}_s1.echo", {"text": "moved"})) == "moved"


async def test_of_two_sockets_of_one_server_the_newer_one_counts(pair: Sequence[HubProcess], agent: str) -> None:
    a, b = pair
    async with raw_server(a.port, agent, "s1", manner=Manner(tools=("old",))) as old:
        await stands(b, f"{agent}_s1", "ready")
        async with raw_server(b.port, agent, "s1", manner=Manner(tools=("new",))), AsyncExitStack() as stack:
            await old.socket.wait_closed()
            assert old.socket.close_reason == "新连接替换"
            for hub in pair:
                caller = await stack.enter_async_context(Raw(hub.url))

                async def is_new(caller: Raw = caller) -> bool:
                    names = await caller.names()
                    return f"{agent}_s1.new" in names and f"{agent}_s1.old" not in names

                await eventually(is_new, "the new one is listed")
                assert text_of(await caller.call(f"{agent}_s1.new", {"text": "x"})) == "x"


async def test_the_newer_socket_counts_although_the_clock_of_the_other_node_is_an_hour_ahead(
    tmp_path: Path, agent: str
) -> None:
    async with nats_server(tmp_path) as nats, AsyncExitStack() as stack:
        (tmp_path / "ahead").mkdir()
        (tmp_path / "ahead" / "probe-clock").write_text("3600")
        table = {"nats": nats.url, "node": "ahead"}
        ahead = (await stack.enter_async_context(probed(tmp_path / "ahead", {}, cluster=table, relay={"key": KEY}))).hub
        b = await stack.enter_async_context(node(tmp_path, nats.url, "b"))
        old = await stack.enter_async_context(raw_server(ahead.port, agent, "s1", manner=Manner(tools=("old",))))
        await stands(b, f"{agent}_s1", "ready")
        nats.kill()  # the nodes do not see each other while the server connects again
        await stands(b, f"{agent}_s1", "away")
        new = await stack.enter_async_context(raw_server(b.port, agent, "s1", manner=Manner(tools=("new",))))
        nats.start()
        _, pending = await asyncio.wait(
            [asyncio.ensure_future(each.socket.wait_closed()) for each in (old, new)],
            timeout=PATIENCE,
            return_when=asyncio.FIRST_COMPLETED,
        )
        assert old.socket.close_reason == "新连接替换"
        await stands(ahead, f"{agent}_s1", "ready")
        for hub in (ahead, b):
            caller = await stack.enter_async_context(Raw(hub.url))
            assert f"{agent}_s1.new" in await caller.names()
        for each in pending:
            each.cancel()


async def test_two_programs_of_one_name_at_two_nodes_have_the_same_names_everywhere(
    pair: Sequence[HubProcess], agent: str
) -> None:
    a, b = pair
    async with raw_server(a.port, agent, manner=Manner("lamp", ("one",))):
        await stands(b, f"{agent}_lamp", "ready")
        async with raw_server(b.port, agent, manner=Manner("lamp", ("two",))):
            await stands(a, f"{agent}_lamp_2", "ready")
            for hub in pair:
                async with Raw(hub.url) as caller:
                    names = [name for name in await caller.names() if name.startswith(f"{agent}_")]
                    assert sorted(names) == [f"{agent}_lamp.one", f"{agent}_lamp_2.two"]


async def test_a_node_that_joins_later_finds_the_existing_servers(tmp_path: Path, agent: str) -> None:
    async with (
        nats_server(tmp_path) as nats,
        node(tmp_path, nats.url, "a") as a,
        AsyncExitStack() as stack,
    ):
        for number in range(20):
            await stack.enter_async_context(raw_server(a.port, agent, f"s{number}"))
        async with node(tmp_path, nats.url, "c") as c, Raw(c.url) as caller:
            for number in range(20):
                await stands(c, f"{agent}_s{number}", "ready")
            answers = await asyncio.gather(
                *(caller.call(f"{agent}_s{n}.echo", {"text": f"{n}"}, id=n) for n in range(20))
            )
            assert [text_of(answer) for answer in answers] == [f"{n}" for n in range(20)]


async def test_each_node_uses_its_own_configured_servers(tmp_path: Path) -> None:
    async with nats_server(tmp_path) as nats, AsyncExitStack() as stack:
        pids = set()
        for name in ("a", "b"):
            servers = {"child": stdio(child("child"))}
            hub = await stack.enter_async_context(node(tmp_path, nats.url, name, servers=servers))
            caller = await stack.enter_async_context(Raw(hub.url))
            pids.add(text_of(await caller.call("child.pid")))
        assert len(pids) == 2


# -- what is checked where -------------------------------------------------------------------------------------------


async def test_the_calling_node_decides_and_the_owner_knows_the_caller(tmp_path: Path, agent: str) -> None:
    """Budgets, permissions and cuts are the calling node's; the owner's audit log has the caller by name."""
    callers: dict[str, Json] = {name: {"key": key, "allow": ["*"]} for name, key in KEYS.items()}
    callers["berta"] = {"key": KEYS["berta"], "deny": [f"{agent}_s1.echo"], "allow": ["*"]}
    callers["root"]["operator"] = True
    budgets = {"small": {"per": "caller", "period": "day", "calls": 2}}
    hub = {"max_result_bytes": 4096}
    async with (
        cluster(tmp_path, "a", "b", callers=callers, budgets=budgets, hub=hub) as (_, (a, b)),
        raw_server(a.port, agent, "s1", manner=Manner(tools=("echo", "huge"))) as server,
        Raw(b.url, key=KEYS["alice"]) as alice,
        Raw(b.url, key=KEYS["berta"]) as berta,
    ):

        async def is_there() -> bool:
            return f"{agent}_s1.echo" in await alice.names()

        await eventually(is_there, "it is listed")
        assert f"{agent}_s1.echo" not in await berta.names()
        assert (await berta.call(f"{agent}_s1.echo"))["error"]["code"] == -32602
        assert text_of(await alice.call(f"{agent}_s1.echo", {"text": "1"})) == "1"
        cut = await alice.call(f"{agent}_s1.huge", {"text": "20000"})
        links = [part for part in cut["result"]["content"] if part["type"] == "resource_link"]
        assert links, cut
        async with rest_of(b, KEYS["alice"]) as rest:
            whole = (await rest.get("/v1/resources/read", params={"uri": links[0]["uri"]})).text
            assert "x" * 20000 in whole
        refused = (await alice.call(f"{agent}_s1.echo", {"text": "3"}))["error"]
        assert refused["data"]["executed"] == "no"
        assert len([each for each in server.messages if each.get("method") == "tools/call"]) == 2
        for each in (a, b):
            async with rest_of(each, KEYS["root"]) as rest:

                async def is_audited(rest: httpx2.AsyncClient = rest) -> bool:
                    found = (await rest.get("/v1/audit", params={"caller": "alice"})).json()
                    return any(f"{agent}_s1" in json.dumps(record) for record in found["records"])

                await eventually(is_audited, "the audit log has it")


async def test_only_a_node_may_name_the_caller(pair: Sequence[HubProcess], agent: str) -> None:
    a, b = pair
    async with raw_server(a.port, agent, "s1") as server, Raw(b.url) as caller:
        await stands(b, f"{agent}_s1", "ready")
        name = f"{agent}_s1.echo"
        headers = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": name}
        meta = {**META, "isthmus/caller": {"name": "root", "tenant": ""}, "x/own": 1}
        params = {"name": name, "arguments": {"text": "x"}, "_meta": meta}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        assert text_of((await caller.post(body, headers)).json()) == "x"
        (call,) = [each for each in server.messages if each.get("method") == "tools/call"]
        assert call["params"]["_meta"] == {"x/own": 1}


# -- what people see -------------------------------------------------------------------------------------------------


async def test_status_shows_nodes_and_their_servers(pair: Sequence[HubProcess], agent: str, tmp_path: Path) -> None:
    a, b = pair
    async with raw_server(a.port, agent, "s1"):
        await stands(b, f"{agent}_s1", "ready")
        words = quick_isthmus("cluster", "status", "--hub", f"http://127.0.0.1:{b.port}", "--json")
        process = await asyncio.create_subprocess_exec(
            *words, stdout=asyncio.subprocess.PIPE, env=environment(), cwd=tmp_path
        )
        said, _ = await process.communicate()
        assert process.returncode == 0, said
        found = json.loads(said)
        assert (found["node"], found["bus"]["state"]) == ("b", "connected")
        assert [(each["name"], each["isSelf"]) for each in found["nodes"]] == [("b", True), ("a", False)]
        assert f"{agent}_s1" in found["nodes"][1]["servers"]
        own, other = found["nodes"]
        assert (own["silence"], own["lag"]) == (None, None)
        assert 0 <= other["silence"] < 2.4, "its heartbeats come"
        assert 0 < other["lag"] < 1
        assert int(other["epoch"]) > 0
        assert own["epoch"] != other["epoch"]
        words = quick_isthmus("cluster", "status", "--hub", f"http://127.0.0.1:{a.port}")
        process = await asyncio.create_subprocess_exec(
            *words, stdout=asyncio.subprocess.PIPE, env=environment(), cwd=tmp_path
        )
        said, _ = await process.communicate()
        assert process.returncode == 0
        assert f"{agent}_s1" in said.decode()
        assert "a (this node)" in said.decode()
        assert re.search(r"^b .* \d\.\d s ago +\d+\.\d ms ", said.decode(), re.MULTILINE)
        async with rest_of(b) as rest:
            assert (await rest.get("/readyz", params={"verbose": ""})).json()["cluster"] == "ok"


async def test_a_hub_that_is_alone_imports_nothing_of_the_bus(tmp_path: Path) -> None:
    code = (
        "import sys; import isthmus.app.serve, isthmus.config.load;"
        "print([m for m in sys.modules if m.startswith(('nats', 'isthmus.cluster.', 'isthmus.app.cluster'))])"
    )
    process = await asyncio.create_subprocess_exec(
        *isthmus(module="")[:1], "-c", code, stdout=asyncio.subprocess.PIPE, env=environment(), cwd=tmp_path
    )
    said, _ = await process.communicate()
    assert said.decode().strip() == "['isthmus.cluster.settings']"


async def test_a_server_is_forgotten_at_all_nodes(pair: Sequence[HubProcess], agent: str) -> None:
    a, b = pair
    name = f"{agent}_s1"
    async with raw_server(a.port, agent, "s1"):
        await stands(b, name, "ready")
    for hub in pair:
        await stands(hub, name, "away")
    async with rest_of(b) as there, rest_of(a) as here:
        forgotten = await there.delete(f"/v1/relay/servers/{name}")
        assert forgotten.status_code in (200, 204), forgotten.text

        async def is_gone() -> bool:
            return (await here.get(f"/v1/servers/{name}")).status_code == 404

        await eventually(is_gone, "the other node forgets it, too")


async def test_an_older_node_that_leaves_out_new_members_uses_a_server(tmp_path: Path, agent: str) -> None:
    """It opens the server with what it knows of the announcement."""
    async with (
        cluster(tmp_path, "a") as (nats, (a,)),
        raw_server(a.port, agent, "s1"),
    ):
        await stands(a, f"{agent}_s1", "ready")
        bus = await NatsBus.start(NatsSettings((nats.url,)), NodeId("older"))
        bus.announce({"version": "0.1.0"})
        try:
            await eventually(lambda: "a" in bus.peers(), "the nodes see each other")
            directory = await opened(bus, "servers")
            await eventually(lambda: bool(directory.messages), "the directory is read")
            (entry,) = json.loads(directory.messages[0])["own"]
            known = {name: entry[name] for name in ("agent", "tenant", "server_id", "name", "is_named", "came")}
            server = await opened(bus, "server")
            server.channel.send(frame(json.dumps(known).encode()))
            await eventually(lambda: bool(server.messages), "the server is opened")
            assert b"welcome" in server.messages[0]
        finally:
            await bus.aclose()


class OpenedChannel:
    """A channel of the bus, and what was received on it."""

    def __init__(self, channel: BusChannel) -> None:
        self.channel = channel
        self.messages: list[bytes] = []
        channel.start(self)

    def message(self, message: bytes) -> None:
        self.messages.append(message)

    def writable(self) -> None:
        """Nothing waits here."""

    def silent(self, confirmed: int) -> None:
        """Nothing is awaited here."""

    def closed(self, end: ChannelEnd) -> None:
        """The test waits for messages only."""


async def opened(bus: NatsBus, service: str) -> OpenedChannel:
    return OpenedChannel(await bus.connect(NodeId("a"), service, within=5.0))
