"""Programs that one node, or a few, run for the whole cluster: one process, callable everywhere, moved when needed."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.servers import BUSY
from tests.cluster_database.nodes import LEASE, forked_hub
from tests.cluster_hubs.nodes import nats_server, rest_of, stands
from tests.cluster_hubs.test_forwarding import BOTH, Node, client_of, message, servers_of
from tests.conftest import Ledger
from tests.databases import Database, running
from tests.faults import quick_server
from tests.faults.watching import eventually, with_mark
from tests.frontends.test_rest import PUBLISH, noted
from tests.hubs import HubProcess, Raw, run, serving, stdio, write_config
from tests.peers.launch import http_peer
from tests.tck import server as tck

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.xdist_group("cluster")]

Json = dict[str, Any]
TOLD_SECONDS = 3.0
SAMPLE = {"messages": [{"role": "user", "content": {"type": "text", "text": "2+2?"}}], "maxTokens": 5}
TAKEOVER_SECONDS = LEASE + 20.0


@pytest.fixture(scope="module")
def database() -> Iterator[Database]:
    with running() as made:
        yield made


class Nodes:
    """Hubs with one placed server, `quick`, and the ledger of what it was asked to do."""

    def __init__(self, folder: Path, nats: str, database: Database, ledger: Ledger, **entry: Any) -> None:
        self.folder = folder
        self.ledger = ledger
        self._nats = nats
        self._entry = entry
        self._url = database.url(
            user="hub:${PG_PASSWORD:-none}", schema=f"placed_{folder.name[-30:]}".replace("-", "_")
        )
        self.hubs: dict[str, HubProcess] = {}
        self.others: Json = {}
        """More servers; programs are placed as `quick` is. `{node}` is the name of the node."""

    def config(self, name: str, **entry: Any) -> Path:
        (self.folder / name).mkdir(exist_ok=True)
        entry = entry or self._entry
        servers = {"quick": stdio(quick_server.command(self.ledger.path), **entry)}
        others = json.loads(json.dumps(self.others).replace("{node}", name))
        servers |= {other: {**each, **entry} if "command" in each else each for other, each in others.items()}
        return write_config(
            self.folder / name,
            servers,
            cluster={"nats": self._nats, "node": name, "lease_seconds": LEASE},
            storage={"url": self._url},
            limits={"listing_seconds": 30.0, "drain_seconds": 20.0},
        )

    @asynccontextmanager
    async def node(self, name: str) -> AsyncIterator[HubProcess]:
        async with forked_hub(self.config(name)) as hub:
            self.hubs[name] = hub
            yield hub

    async def report(self, at: str) -> Json:
        async with rest_of(self.hubs[at]) as rest:
            found: Json = (await rest.get("/v1/cluster")).json()
            return found

    async def owners(self, at: str, server: str = "quick") -> list[str]:
        return [node["name"] for node in (await self.report(at))["nodes"] if server in node["servers"]]

    async def owned(self, at: str, count: int = 1) -> list[str]:
        """Wait until so many nodes run the program, as this node sees it."""

        async def is_so() -> bool:
            return len(await self.owners(at)) == count

        await eventually(is_so, f"{count} owners at {at}", TAKEOVER_SECONDS * BUSY)
        return await self.owners(at)

    async def pay(self, at: str, nonce: str, tool: str = "pay", server: str = "quick") -> Json:
        async with Raw(self.hubs[at].url) as caller:
            return await caller.call(f"{server}.{tool}", {"nonce": nonce})

    def notes(self) -> list[Json]:
        return [json.loads(line) for line in self.ledger.lines()]

    def ran(self) -> Counter[str]:
        return Counter(note["nonce"] for note in self.notes() if "nonce" in note)

    def processes(self) -> int:
        """The processes of the server that run now, below all nodes."""
        mark = str(self.ledger.path)
        return sum(len(with_mark(hub.pid, mark)) for hub in self.hubs.values() if hub.process.returncode is None)

    async def wait_noted(self, count: int) -> None:
        await eventually(lambda: len(self.ledger.lines()) >= count, f"{count} calls arrived", 20.0 * BUSY)


@asynccontextmanager
async def three(
    folder: Path, database: Database, ledger: Ledger, others: Json | None = None, **entry: Any
) -> AsyncIterator[Nodes]:
    async with nats_server(folder) as nats, AsyncExitStack() as stack:
        nodes = Nodes(folder, nats.url, database, ledger, **entry)
        nodes.others = others or {}
        for name in ("a", "b", "c"):
            await stack.enter_async_context(nodes.node(name))
        yield nodes


def is_good(answer: Json) -> bool:
    return "result" in answer and not answer["result"].get("isError")


async def test_one_process_serves_every_node(tmp_path: Path, database: Database, ledger: Ledger) -> None:
    async with three(tmp_path, database, ledger, placement="one") as nodes:
        answers = [await nodes.pay(name, f"{name}{n}") for name in "abc" for n in range(3)]
        assert all(map(is_good, answers)), answers
        assert len({note["pid"] for note in nodes.notes()}) == 1
        assert max(nodes.ran().values()) == 1
        assert nodes.processes() == 1
        (owner,) = await nodes.owned("a")
        assert await nodes.owned("b") == await nodes.owned("c") == [owner]
        shown = await run("cluster", "status", "--hub", f"http://127.0.0.1:{nodes.hubs['b'].port}", folder=tmp_path)
        assert any(owner in line and "quick" in line for line in shown.out.splitlines()), shown


async def test_progress_questions_and_cancellation_cross(tmp_path: Path, database: Database, ledger: Ledger) -> None:
    others = servers_of(ledger)
    async with three(tmp_path, database, ledger, others, placement="one") as nodes, AsyncExitStack() as stack:
        callers = {name: await client_of(hub, stack, None) for name, hub in nodes.hubs.items()}

        async def elsewhere(server: str) -> Node:
            """A caller at a node that does not run it."""
            await callers["a"].call(f"{server}.nothing", {}, await callers["a"].open_session())
            owner: list[str] = []

            async def is_owned() -> bool:
                owner[:] = await nodes.owners("a", server)
                return len(owner) == 1

            await eventually(is_owned, f"{server} has an owner", TAKEOVER_SECONDS * BUSY)
            return next(caller for name, caller in callers.items() if name != owner[0])

        caller = await elsewhere("shelf")
        session = await caller.open_session(elicitation={})
        params = {"name": "shelf.slow", "arguments": {"seconds": 1.0, "steps": 4}, "_meta": {"progressToken": 7}}
        async with caller.stream("POST", session, json=message("tools/call", params, 5)) as lines:
            await lines.until('data: {"jsonrpc":"2.0","method":"notifications/progress"')
            assert "result" in json.loads((await lines.until('data: {"jsonrpc":"2.0","id":5'))[5:])
        caller = await elsewhere("workshop")
        session = await caller.open_session(elicitation={})
        body = message("tools/call", {"name": "workshop.publish", "arguments": PUBLISH}, 3)
        async with caller.stream("POST", session, json=body) as lines:
            asked = json.loads((await lines.until('data: {"jsonrpc":"2.0","id":"isthmus-'))[5:])
            given = {"action": "accept", "content": {"signed_by": "Ada"}}
            reply = {"jsonrpc": "2.0", "id": asked["id"], "result": given}
            assert (await caller.http.post("/mcp", json=reply, headers={"accept": BOTH, **session})).status_code == 202
            result = json.loads((await lines.until('data: {"jsonrpc":"2.0","id":3'))[5:])
        assert "signed by Ada" in result["result"]["content"][0]["text"]
        caller = await elsewhere("raw")
        session = await caller.open_session()
        calling = asyncio.create_task(caller.call("raw.pay", {"nonce": "c1", "mode": "sleep:60"}, session, id=9))
        await noted(ledger, '"nonce": "c1"')
        cancel = message("notifications/cancelled", {"requestId": 9})
        await caller.http.post("/mcp", json=cancel, headers={"accept": BOTH, **session})
        assert (await calling)["error"]["data"]["reason"] == "cancelled"
        await noted(ledger, '"cancelled": "c1"')


async def test_callers_answer_a_program_that_asked_before_its_node_shut_down(
    tmp_path: Path, database: Database, ledger: Ledger
) -> None:
    can: Json = {"elicitation": {"form": {}}}
    accepted = {"action": "accept", "content": {"signed_by": "Ada"}}
    publish: Json = {"name": "workshop.publish", "arguments": PUBLISH}
    async with nats_server(tmp_path) as nats, AsyncExitStack() as stack:
        nodes = Nodes(tmp_path, nats.url, database, ledger, placement="one")
        nodes.others = {"workshop": servers_of(ledger)["workshop"]}
        a = await stack.enter_async_context(nodes.node("a"))
        assert await nodes.owned("a") == ["a"]
        assert is_good(await nodes.pay("a", "first"))
        b = await stack.enter_async_context(nodes.node("b"))  # a node that joins moves no program
        await stands(b, "workshop", "ready")
        caller = await client_of(b, stack, None)
        session = await caller.open_session(elicitation={})
        async with caller.stream("POST", session, json=message("tools/call", publish, 3)) as lines:
            asked = json.loads((await lines.until('data: {"jsonrpc":"2.0","id":"isthmus-'))[5:])
            state = (await caller.modern("tools/call", publish, can))["result"]
            a.terminate()

            async def has_moved() -> bool:
                return "b" in await nodes.owners("b")

            await eventually(has_moved, "the program that has asked nothing moves", TAKEOVER_SECONDS * BUSY)
            reply = {"jsonrpc": "2.0", "id": asked["id"], "result": accepted}
            assert (await caller.http.post("/mcp", json=reply, headers={"accept": BOTH, **session})).status_code == 202
            result = json.loads((await lines.until('data: {"jsonrpc":"2.0","id":3'))[5:])
        (key,) = state["inputRequests"]
        again = {**publish, "inputResponses": {key: accepted}, "requestState": state["requestState"]}
        results = [result, await caller.modern("tools/call", again, can)]
        assert all("signed by Ada" in str(each) for each in results), results
        assert await nodes.owned("b") == ["b"]
        assert await asyncio.wait_for(a.process.wait(), TAKEOVER_SECONDS * BUSY) == 0


async def test_a_killed_owner_is_replaced_and_nothing_runs_twice(
    tmp_path: Path, database: Database, ledger: Ledger
) -> None:
    async with three(tmp_path, database, ledger, placement="one") as nodes:
        (owner,) = await nodes.owned("a")
        others = [name for name in "abc" if name != owner]
        assert all([is_good(await nodes.pay(name, f"first {name}")) for name in others])
        held = [asyncio.create_task(nodes.pay(name, f"held {name}", "hold")) for name in others]
        await nodes.wait_noted(4)
        began = asyncio.get_running_loop().time()
        nodes.hubs.pop(owner).kill()
        answers = await asyncio.wait_for(asyncio.gather(*held), 60)
        assert asyncio.get_running_loop().time() - began < TOLD_SECONDS * BUSY
        assert [answer["error"]["data"]["executed"] for answer in answers] == ["unknown", "unknown"], answers
        queued = await asyncio.gather(*(nodes.pay(name, f"queued {name}") for name in others))
        assert all(map(is_good, queued)), queued
        (heir,) = await nodes.owned(others[0])
        assert heir != owner
        assert max(nodes.ran().values()) == 1
        await eventually(lambda: nodes.processes() == 1, "one process is left", TAKEOVER_SECONDS * BUSY)


async def test_a_rolling_restart_fails_no_call(tmp_path: Path, database: Database, ledger: Ledger) -> None:
    async with (
        nats_server(tmp_path) as nats,
        http_peer("raw_server", "--ledger", str(ledger.path)) as peer,
        AsyncExitStack() as stack,
    ):
        nodes = Nodes(tmp_path, nats.url, database, ledger, placement="one")
        nodes.others = {"web": {"url": peer.url}}
        lives = {name: AsyncExitStack() for name in "abc"}
        for name, life in lives.items():
            await stack.enter_async_context(life)
            await life.enter_async_context(nodes.node(name))
        for name in "abc":
            assert is_good(await nodes.pay(name, f"first {name}"))
        answers: list[Json] = []
        serving_now = set("abc")
        stop = asyncio.Event()

        async def call_for_ever(number: int) -> None:
            count = 0
            while not stop.is_set():
                name = sorted(serving_now)[(number + count) % len(serving_now)]
                server = "web" if number == 2 else "quick"
                answers.append(await nodes.pay(name, f"{number}/{count}", server=server))
                count += 1

        def has_more(count: int) -> bool:
            return len(answers) >= count

        callers = [asyncio.create_task(call_for_ever(number)) for number in range(3)]
        for name in "abc":
            serving_now.discard(name)  # as a load balancer does before it stops a node
            done = len(answers)
            await eventually(partial(has_more, done + 6), "running calls have ended", 60.0)
            nodes.hubs[name].terminate()
            await asyncio.wait_for(nodes.hubs[name].process.wait(), 60)
            await lives[name].aclose()
            await lives[name].enter_async_context(nodes.node(name))
            assert is_good(await nodes.pay(name, f"again {name}"))
            serving_now.add(name)
        stop.set()
        await asyncio.wait_for(asyncio.gather(*callers), 60)
        assert [answer for answer in answers if not is_good(answer)] == []
        assert max(nodes.ran().values()) == 1
        assert nodes.processes() == 1


async def test_an_owner_that_stood_still_runs_nothing_more(tmp_path: Path, database: Database, ledger: Ledger) -> None:
    async with three(tmp_path, database, ledger, placement="one") as nodes:
        (owner,) = await nodes.owned("a")
        other = next(name for name in "abc" if name != owner)
        assert is_good(await nodes.pay(owner, "before"))
        stopped = nodes.hubs[owner]
        os.kill(stopped.pid, signal.SIGSTOP)
        late = asyncio.create_task(nodes.pay(owner, "late"))
        try:

            async def has_moved() -> bool:
                owners = await nodes.owners(other)
                return bool(owners) and owners != [owner]

            await eventually(has_moved, "another node runs it", TAKEOVER_SECONDS * BUSY)
            assert is_good(await nodes.pay(other, "meanwhile"))
            (heir_pid,) = {note["pid"] for note in nodes.notes() if note["nonce"] == "meanwhile"}
        finally:
            os.kill(stopped.pid, signal.SIGCONT)
        await asyncio.wait_for(late, 60)
        await eventually(lambda: nodes.processes() == 1, "the old process has ended", 20.0 * BUSY)
        assert {note["pid"] for note in nodes.notes() if note["nonce"] == "late"} <= {heir_pid}
        assert max(nodes.ran().values()) == 1
        assert any("is stopped here" in line for line in stopped.said)


async def test_a_pool_of_two_runs_on_two_of_three_nodes(tmp_path: Path, database: Database, ledger: Ledger) -> None:
    async with three(tmp_path, database, ledger, pool=2) as nodes:
        owners = await nodes.owned("a", 2)
        await eventually(lambda: nodes.processes() == 2, "two processes run", 20.0)
        for name in "abc":
            assert is_good(await nodes.pay(name, name))
        pids = {note["nonce"]: note["pid"] for note in nodes.notes()}
        assert pids[owners[0]] != pids[owners[1]], "a call at a node with a process stays there"
        assert len(set(pids.values())) == 2
        # The third node uses the process that is less busy.
        (third,) = {*"abc"} - {*owners}
        busy = next(name for name in owners if pids[name] == pids[third])
        held = [asyncio.create_task(nodes.pay(busy, f"held{n}", "hold")) for n in range(4)]
        tries = count()

        async def has_moved() -> bool:
            nonce = f"more{next(tries)}"
            assert is_good(await nodes.pay(third, nonce))
            return bool(next(note["pid"] for note in nodes.notes() if note["nonce"] == nonce) != pids[busy])

        await eventually(has_moved, "its calls go to the other process", 20.0 * BUSY)
        for task in held:
            task.cancel()
        assert max(nodes.ran().values()) == 1


async def test_a_program_that_does_not_start_is_retrying_at_every_node_until_it_does(
    tmp_path: Path, database: Database, ledger: Ledger
) -> None:
    program = tmp_path / "program"
    async with three(tmp_path, database, ledger, {"late": stdio([str(program)])}, placement="one") as nodes:
        for hub in nodes.hubs.values():
            await stands(hub, "late", "retrying")
        answers = [await nodes.pay(name, name, server="late") for name in "abc"]
        assert all(answer["error"]["data"]["executed"] == "no" for answer in answers), answers
        async with rest_of(nodes.hubs["a"]) as at_a, rest_of(nodes.hubs["b"]) as at_b, rest_of(nodes.hubs["c"]) as at_c:
            shown = [(await rest.get("/v1/servers/late")).json()["reason"] for rest in (at_a, at_b, at_c)]
        assert all(str(program) in reason for reason in shown), shown
        assert any("does not start on node" in reason for reason in shown), shown

        program.write_text("#!/bin/sh\nexec " + shlex.join(quick_server.command(ledger.path)) + "\n")
        program.chmod(0o755)
        waits = [await stands(hub, "late", "ready") for hub in nodes.hubs.values()]
        assert max(waits[1:]) < TOLD_SECONDS * BUSY, "all nodes learn of it at once"
        answers = [await nodes.pay(name, name, server="late") for name in "abc"]
        assert all(map(is_good, answers)), answers


async def test_a_program_that_does_not_start_at_one_node_is_started_by_another_one(
    tmp_path: Path, database: Database, ledger: Ledger
) -> None:
    for name in "abc":
        (tmp_path / name).mkdir()
        program = tmp_path / name / f"only-{name}"
        program.write_text("#!/bin/sh\nexec " + shlex.join(quick_server.command(ledger.path)) + "\n")
        program.chmod(0o755)
    others = {f"only-{name}": stdio([f"{tmp_path}/{{node}}/only-{name}"]) for name in "abc"}
    async with three(tmp_path, database, ledger, others, placement="one") as nodes:
        for server in others:
            for hub in nodes.hubs.values():
                await stands(hub, server, "ready")
        for name in "abc":
            assert await nodes.owners("a", f"only-{name}") == [name]
            answers = [await nodes.pay(at, f"{name}{at}", server=f"only-{name}") for at in "abc"]
            assert all(map(is_good, answers)), answers


async def test_nodes_take_turns_with_a_program_that_starts_nowhere(
    tmp_path: Path, database: Database, ledger: Ledger
) -> None:
    others = {"late": stdio([f"{tmp_path}/{{node}}/program"])}
    async with three(tmp_path, database, ledger, others, placement="one") as nodes:
        for hub in nodes.hubs.values():
            await stands(hub, "late", "retrying")

        async with rest_of(nodes.hubs["a"]) as rest:
            reason = (await rest.get("/v1/servers/late")).json()["reason"]
        other = next(name for name in "abc" if f"/{name}/" not in reason)  # not the node that tries now
        program = tmp_path / other / "program"
        program.write_text("#!/bin/sh\nexec " + shlex.join(quick_server.command(ledger.path)) + "\n")
        program.chmod(0o755)
        for hub in nodes.hubs.values():
            await stands(hub, "late", "ready")
        assert await nodes.owners("a", "late") == [other]


async def test_a_legacy_program_gets_refusals_and_its_results_stay_as_they_are_at_every_node(
    tmp_path: Path, database: Database, ledger: Ledger
) -> None:
    others = {"legacy": stdio(tck.command())}
    async with three(tmp_path, database, ledger, others, placement="one") as nodes, AsyncExitStack() as stack:
        for name, hub in nodes.hubs.items():
            async with rest_of(hub) as rest:
                plain = (await rest.post("/v1/tools/legacy.tck", json={"message_id": name})).json()
            assert list(plain) == ["content"], (name, plain)
            caller = await client_of(hub, stack, None)
            session = await caller.open_session(sampling={})
            arguments = {"method": "sampling/createMessage", "params": SAMPLE}
            body = message("tools/call", {"name": "legacy.ask", "arguments": arguments}, 3)
            async with caller.stream("POST", session, json=body) as lines:
                asked = json.loads((await lines.until('data: {"jsonrpc":"2.0","id":"isthmus-'))[5:])
                refusal = {"code": -1, "message": "User rejected sampling"}
                reply = {"jsonrpc": "2.0", "id": asked["id"], "error": refusal}
                sent = await caller.http.post("/mcp", json=reply, headers={"accept": BOTH, **session})
                assert sent.status_code == 202
                answer = json.loads((await lines.until('data: {"jsonrpc":"2.0","id":3'))[5:])
            assert answer["result"] == {"content": [], "structuredContent": refusal}, (name, answer)


async def test_a_reload_changes_the_placement(tmp_path: Path, database: Database, ledger: Ledger) -> None:
    async with three(tmp_path, database, ledger, placement="node") as nodes:
        await eventually(lambda: nodes.processes() == 3, "every node runs it", 20.0 * BUSY)
        for name, hub in nodes.hubs.items():
            nodes.config(name, placement="one")
            os.kill(hub.pid, signal.SIGHUP)
        await eventually(lambda: nodes.processes() == 1, "one node runs it", 60.0 * BUSY)
        for name in "abc":
            assert is_good(await nodes.pay(name, name))
        assert len({note["pid"] for note in nodes.notes()}) == 1


async def test_a_node_that_disabled_a_program_finds_it_again(
    tmp_path: Path, database: Database, ledger: Ledger
) -> None:
    async with three(tmp_path, database, ledger, placement="one") as nodes:
        (owner,) = await nodes.owned("a")
        other = next(name for name in "abc" if name != owner)
        for time in range(8):  # a node looks at its programs five times a second, so it misses some
            for disabled, state in ((True, "disabled"), (False, "ready")):
                nodes.config(other, placement="one", disabled=disabled)
                os.kill(nodes.hubs[other].pid, signal.SIGHUP)
                await stands(nodes.hubs[other], "quick", state)
            assert is_good(await nodes.pay(other, f"again{time}"))


async def test_without_a_cluster_it_is_local(tmp_path: Path, ledger: Ledger) -> None:
    server = stdio(quick_server.command(ledger.path), placement="one")
    async with serving(tmp_path, {"quick": server}) as hub, Raw(hub.url) as caller:
        assert is_good(await caller.call("quick.pay", {"nonce": "x"}))


@pytest.mark.parametrize(
    ("tables", "missing"),
    [
        ({"cluster": {"nats": "nats://127.0.0.1:1"}}, "needs [storage] url"),
        ({"cluster": {"node": "a"}, "storage": {"url": "postgresql://h/d"}}, "needs [cluster] nats"),
    ],
)
async def test_a_cluster_that_cannot_place_it_says_so(tmp_path: Path, tables: Json, missing: str) -> None:
    config = write_config(tmp_path, {"quick": stdio(["true"], placement="one")}, **tables)
    ended = await run("serve", "--config", str(config), "--port", "0", folder=tmp_path)
    assert ended.code != 0
    assert missing in ended.err + ended.out, ended
