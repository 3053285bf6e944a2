"""State that a caller creates at one node counts at another: two nodes, NATS and PostgreSQL.

`make affinity` runs the tests of all frontends like this; here is one test for each thing that nodes share.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from tests.cluster_hubs.balanced import database, serving_nodes, start_nodes
from tests.cluster_hubs.nodes import nats_server
from tests.conftest import Ledger
from tests.faults import quick_server
from tests.faults.event_listener import listening
from tests.faults.scripted import EVENTS, ReceivedRequest, Scripted, events, reply, tool
from tests.faults.test_retracted import server_of
from tests.faults.watching import eventually
from tests.frontends import task_server
from tests.frontends.test_a2a import Agent as RawAgent
from tests.frontends.test_a2a import envelope, run
from tests.frontends.test_conversations import COUNTING, Agent
from tests.frontends.test_dpop import BOUND, Holder, challenges
from tests.frontends.test_storage_quota import KEEP_BYTES, TASKS, question
from tests.frontends.test_task_lists import ask_modern, create_modern, following, open_client, own, status_of
from tests.hubs import PATIENT, TRUSTED, HubProcess, Raw, edit_config, stdio
from tests.issuer import Issuer, issuing
from tests.matrix import notebook_server
from tests.matrix.notebook_server import PAGE
from tests.matrix.test_own_updates import MODES, Mode, follower, touch
from tests.peers import content
from tests.peers.client_sdk2 import client_over_http
from tests.peers.forms import Form
from tests.peers.launch import http_peer
from tests.peers.surveyor import MessageListener, level_set
from tests.property.echo_server import command

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("shared_frontends")]

HUB = "https://hub.example"
KEYS = {name: f"key-of-{name}-0123456789" for name in ("ops", "few", "many", "ann", "bob")}
COMMON = ["s.*", "bank.*", "list.*", "doubt.*", "builtin.*"]
CALLERS = {name: {"key": key, "allow": COMMON, "operator": name == "ops"} for name, key in KEYS.items()}
ALONE = {name: f"key-of-{name}-0123456789" for name in ("una", "uno")}
"""Callers with processes of their own."""
KEYS |= ALONE
CALLERS |= {name: {"key": key, "allow": ["note.*", "page.*", "job.*", "new.*"]} for name, key in ALONE.items()}
WRONG_KEYS = 40
LOOKS_SECONDS = 3.0
BUDGETS = {
    "small": {"calls": 5, "callers": ["few"]},
    "large": {"calls": 400, "callers": ["many"]},
    "all": {"calls": 9, "per": "caller"},
}
BUDGETS["all"]["callers"] = ["ann", "bob"]


class Announcing(Scripted):
    """A server that announces a change of its tools to the client that has caused it, and to no other."""

    async def on_initialize(self, request: ReceivedRequest, out: asyncio.StreamWriter) -> None:
        self.greetings += 1
        able = {"tools": {"listChanged": True}}
        received = {"protocolVersion": "2025-11-25", "capabilities": able, "serverInfo": {"name": "x", "version": "1"}}
        out.write(reply(request.result(received), headers={"mcp-session-id": self.session}))

    async def on_call(self, request: ReceivedRequest, out: asyncio.StreamWriter) -> None:
        self.tools = [tool("t"), tool("grown")]
        changed = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
        out.write(EVENTS + events(changed, request.result({"content": []})) + b"0\r\n\r\n")


class Restless(Announcing):
    """A server like that, whose list is another one whenever it is read."""

    async def on(self, request: ReceivedRequest, out: asyncio.StreamWriter) -> None:
        self.tools = [tool("t"), tool(f"t{self.count('tools/list')}")]
        await super().on(request, out)


@dataclass(frozen=True, slots=True)
class World:
    """Two nodes, and an issuer that they trust."""

    a: HubProcess
    b: HubProcess
    issuer: Issuer
    folder: Path

    def at(self, node: HubProcess, who: str | None = "ops") -> httpx2.AsyncClient:
        """A caller of a node."""
        headers = {} if who is None else {"authorization": f"Bearer {KEYS[who]}"}
        base = f"http://127.0.0.1:{node.port}"
        return httpx2.AsyncClient(base_url=base, headers=headers, timeout=60.0, verify=TRUSTED)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    folder = tmp_path_factory.mktemp("nodes")
    with issuing() as issuer:
        async with AsyncExitStack() as stack:
            announcing = await stack.enter_async_context(Announcing())
            nats = await stack.enter_async_context(nats_server(folder / "nats"))
            tables: dict[str, Any] = {
                "callers": CALLERS,
                "limits": {**PATIENT, "wrong_keys_per_minute": WRONG_KEYS},
                "budgets": BUDGETS,
                "a2a": {"keep_bytes": KEEP_BYTES},
                "issuers": {"corp": {"issuer": issuer.url, "audience": HUB, "allow": ["*"], "dpop": "nonce"}},
                "storage": {"url": database().url(schema=f"s{secrets.token_hex(6)}")},
                "hub": {"public_url": HUB, "hosts": ["127.0.0.1"]},
            }
            notebook = [sys.executable, notebook_server.__file__, str(folder / "asked")]
            servers = {
                "s": COUNTING,
                "bank": stdio(command()),
                "list": announcing.entry,
                "note": stdio(notebook, isolation="caller"),
                "page": stdio(notebook, placement="one"),
                "doubt": await server_of(stack, "sse"),
                "job": stdio([sys.executable, task_server.__file__, "legacy"]),
                "new": stdio([sys.executable, task_server.__file__, "modern"]),
            }
            a, b = await start_nodes(folder, stack, nats.url, 2, servers, **tables)
            yield World(a, b, issuer, folder)


async def test_an_access_token_of_one_node_is_valid_at_another(world: World) -> None:
    async with world.at(world.a, None) as a, world.at(world.b, None) as b:
        form = {"grant_type": "client_credentials", "client_id": "ann", "client_secret": KEYS["ann"]}
        token = (await a.post("/oauth/token", data=form)).json()["access_token"]
        answer = await b.get("/v1/tools", headers={"authorization": f"Bearer {token}"})
        assert answer.status_code == 200, answer.text


async def test_a_proof_is_accepted_by_one_node_and_a_nonce_of_one_is_good_at_all(world: World) -> None:
    claims: dict[str, Any] = {"aud": HUB, **BOUND}
    holder = Holder(world.issuer.token(**claims))
    url, headers = f"{HUB}/v1/tools", {"authorization": f"DPoP {holder.token}"}
    async with world.at(world.a, None) as a, world.at(world.b, None) as b:

        async def ask(node: httpx2.AsyncClient, proof: str) -> httpx2.Response:
            return await node.get("/v1/tools", headers={**headers, "dpop": proof})

        async def has_keys() -> bool:
            return {(await ask(node, holder.proof("GET", url))).status_code for node in (a, b)} == {401}

        await eventually(has_keys, "both nodes have the keys of the issuer")
        holder.nonce = (await ask(a, holder.proof("GET", url))).headers["dpop-nonce"]
        proof = holder.proof("GET", url)
        assert (await ask(b, proof)).status_code == 200
        again = await ask(a, proof)
        assert again.status_code == 401
        assert "it was used already" in str(challenges(again))
        # Of several that come at the same time, one is accepted.
        proof = holder.proof("GET", url)
        answers = await asyncio.gather(*(ask(node, proof) for node in (a, b) * 5))
        assert sorted(each.status_code for each in answers) == [200] + [401] * 9


async def test_wrong_keys_count_at_all_nodes(world: World) -> None:
    async with world.at(world.a, None) as a, world.at(world.b, None) as b:
        for number in range(WRONG_KEYS):
            answer = await a.get("/v1/tools", headers={"x-api-key": f"a-key-of-nobody-at-all-{number}"})
            assert answer.status_code == 401

        async def is_limited() -> bool:
            answer = await b.get("/v1/tools", headers={"x-api-key": "a-key-of-nobody-at-all"})
            return answer.status_code == 429

        await eventually(is_limited, "the other node has counted them")
        # A caller with a key is not affected.
        assert (await b.get("/v1/tools", headers={"x-api-key": KEYS["ann"]})).status_code == 200


async def test_push_notifications_of_all_nodes_are_signed_with_one_key(world: World) -> None:
    async with world.at(world.a) as a, world.at(world.b) as b:
        found = [(await node.get("/.well-known/jwks.json")).json() for node in (a, b)]
        assert len(found[0]["keys"]) == 1
        assert found[0] == found[1]


async def test_a_conversation_reaches_one_process_whichever_node_it_comes_to(world: World) -> None:
    async with world.at(world.a) as a, world.at(world.b) as b:
        context, first = await Agent(a, "1.0").call("count")
        received = [(await Agent(node, "1.0").call("count", context))[1] for node in (b, a, b)]
        assert {each["pid"] for each in received} == {first["pid"]}
        # A caller's own context, which no node has made.
        received = [(await Agent(node, "1.0").call("count", "mine"))[1] for node in (a, b, a, b)]
        assert len({each["pid"] for each in received}) == 1


async def test_a_caller_has_one_process_whichever_node_and_frontend_it_uses(world: World) -> None:
    async def pids(who: str, node: HubProcess) -> list[int]:
        """Who answers it over MCP, in a session and without one, and over REST; and over A2A, where it can be asked."""
        async with Raw(node.url_of("note"), key=KEYS[who]) as raw, world.at(node, who) as http:
            response = (await raw.call("touch"))["result"], (await http.post("/v1/tools/note.touch", json={})).json()
            async with open_client(node, KEYS[who], "/mcp/note", listens=False) as session:
                said = (await session.ask("tools/call", {"name": "touch", "arguments": {}}))["result"]
            message = envelope("SendMessage", run("note.touch"))
            task = (await http.post("/a2a", json=message, headers={"A2A-Version": "1.0"})).json()["result"]["task"]
            (part,) = [part for artifact in task["artifacts"] for part in artifact["parts"]]
            return [*(int(each["content"][0]["text"]) for each in (*response, said)), int(part["text"])]

    una = [await pids("una", node) for node in (world.a, world.b)]
    uno = [await pids("uno", node) for node in (world.b, world.a)]
    for *plain, able in (una[0], uno[0]):
        assert plain == plain[:1] * 3
        assert able != plain[0]
    assert una[0] == una[1]
    assert uno[0] == uno[1]
    assert not set(una[0]) & set(uno[0])


async def test_a_caller_is_notified_at_any_node_of_updates_in_its_own_process(world: World) -> None:
    for there, here in ((world.a, world.b), (world.b, world.a)):
        async with (
            listening(there.url_of("note"), [PAGE], key=KEYS["una"]) as ear,
            Raw(here.url_of("note"), key=KEYS["una"]) as raw,
        ):
            await raw.call("touch")
            await ear.wait_for(PAGE)


@pytest.mark.parametrize("mode", MODES)
async def test_a_caller_is_notified_at_any_node_if_one_node_runs_its_program(world: World, mode: Mode) -> None:
    pids: list[int] = []
    for node in (world.a, world.b):
        async with follower(node.url_of("page"), mode, PAGE, key=KEYS["una"]) as (client, ear):
            pids.append(await touch(client))
            await ear.wait_for(PAGE, 0)
    assert len(set(pids)) == (2 if mode == "legacy" else 1)


async def test_a_servers_tasks_are_listed_and_reported_at_all_nodes(world: World) -> None:
    async with open_client(world.a, KEYS["una"]) as one, open_client(world.b, KEYS["una"]) as other:
        ids = [await client.create("job.slow") for client in (one, other, one)]
        for client in (one, other):
            assert await client.listed() == [(id, "working") for id in ids]
        await one.set_status(ids[0], "completed")
        for client in (one, other):
            assert (await client.receive())["params"]["taskId"] == ids[0]
        assert (await other.listed())[0] == (ids[0], "completed")
        async with open_client(world.b, KEYS["uno"]) as stranger:
            assert await stranger.listed() == []


async def test_one_subscription_follows_servers_tasks_at_all_nodes(world: World) -> None:
    key, nodes = KEYS["una"], (world.a, world.b)
    ids = [await create_modern(node, key) for node in nodes]
    others = [await create_modern(node, KEYS["uno"]) for node in nodes]
    for node in nodes:
        async with following(node, key, [*ids, *others, "aaaaaaaa~new.dA.x"]) as received, asyncio.timeout(60):
            granted = (await anext(received))["params"]["notifications"]["taskIds"]
            assert sorted(granted) == sorted(ids)
            states = [status_of(await anext(received)) for _ in ids]
            assert sorted(states) == sorted(("notifications/tasks", id, "working") for id in ids)
    async with following(world.b, key, ids) as received, asyncio.timeout(60):
        for _ in range(1 + len(ids)):
            await anext(received)
        for node, id in zip(nodes, ids, strict=True):
            arguments = {"what": "tell", "taskId": own(id.partition("~")[2]), "status": "completed"}
            await ask_modern(node, "tools/call", {"name": "new.do", "arguments": arguments}, key, "new.do")
            assert status_of(await anext(received)) == ("notifications/tasks", id, "completed")


async def test_a_budget_is_not_exceeded_by_calls_at_several_nodes(world: World) -> None:
    async with world.at(world.a, "few") as a, world.at(world.b, "few") as b:
        calls = (node.post("/v1/tools/bank.echo", json={"n": 1}) for node in (a, b) * 10)
        statuses = [answer.status_code for answer in await asyncio.gather(*calls)]
        assert sorted(statuses) == [200] * 5 + [429] * 15
        for node in (a, b):
            assert (await node.post("/v1/tools/bank.echo", json={"n": 1})).status_code == 429
            shown = (await node.get("/v1/budgets")).json()["counters"]
            assert [each["calls"] for each in shown] == [5]
    async with world.at(world.a, "many") as a, world.at(world.b, "many") as b:
        run = 0
        for _ in range(10):
            calls = (node.post("/v1/tools/builtin.echo", json={"text": "x"}) for node in (a, b) * 25)
            run += sum(answer.status_code == 200 for answer in await asyncio.gather(*calls))
        assert 400 <= run <= 420


async def test_a_page_of_budgets_continues_at_another_node(world: World) -> None:
    async with world.at(world.a) as a, world.at(world.b) as b:
        for who in ("ann", "bob"):
            async with world.at(world.a, who) as caller:
                assert (await caller.post("/v1/tools/builtin.echo", json={"text": "x"})).status_code == 200
        page = (await a.get("/v1/budgets?limit=1")).json()
        following = (await b.get("/v1/budgets", params={"limit": 1, "cursor": page["next"]})).json()
        beside = (await a.get("/v1/budgets", params={"limit": 1, "cursor": page["next"]})).json()
        assert following["counters"] == beside["counters"] != page["counters"]


async def test_a_list_change_that_reaches_one_node_is_read_by_all(world: World) -> None:
    async with world.at(world.a) as a, world.at(world.b) as b:

        async def tools() -> list[str]:
            return [each["name"] for each in (await b.get("/v1/tools?server=list")).json()["tools"]]

        assert await tools() == ["list.t"]
        assert (await a.post("/v1/tools/list.t", json={})).status_code == 200

        async def is_there() -> bool:
            return await tools() == ["list.t", "list.grown"]

        await eventually(is_there, "the other node has read the list again")


async def test_a_question_that_names_no_call_parts_programs_at_all_nodes(world: World, tmp_path: Path) -> None:
    """A call that was cancelled may still ask, so the question of the next call on its link could be either's."""
    silent = tmp_path / "silent"

    async def begin(agent: httpx2.AsyncClient, **more: Any) -> Any:
        params = run("doubt.doubt", nonce="n", folder=str(tmp_path), leave=True, **more)
        if more:
            params["configuration"] = {"returnImmediately": True}
        return (await agent.post("/a2a", json=envelope("SendMessage", params))).json()["result"]["task"]

    async with world.at(world.a, "ann") as a, world.at(world.b, "ann") as b, world.at(world.a) as operator:
        try:
            async with asyncio.timeout(20):
                assert (await begin(a))["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
                # When B has confirmed this, it has what A published before.
                assert (await operator.post("/v1/enable/s")).status_code == 200
                task = await begin(b, silent=True)
                await eventually(silent.exists, "the call is at the server")
                await b.post("/a2a", json=envelope("CancelTask", {"id": task["id"]}))
                await eventually(lambda: not silent.exists(), "the call is cancelled")
                assert (await begin(b))["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
        finally:
            (tmp_path / "end").touch()


async def test_the_storage_quota_of_a_caller_counts_at_all_nodes(world: World) -> None:
    async with world.at(world.a, "ann") as a, world.at(world.b, "ann") as b:
        begun: list[str] = []
        answer: Any = {}
        for number in range(TASKS):
            node = (a, b)[number % 2]
            answer = (await node.post("/a2a", json=envelope("SendMessage", question(number)))).json()
            if "error" in answer:
                break
            begun.append(answer["result"]["task"]["id"])
        assert "[a2a] keep_bytes" in answer["error"]["message"]
        # What has ended at one node makes room at another.
        for task in begun[-2:]:
            await a.post("/a2a", json=envelope("CancelTask", {"id": task}))
        assert "error" not in (await b.post("/a2a", json=envelope("SendMessage", question(TASKS)))).json()


async def test_a_node_that_is_its_own_server_by_another_node_is_not_used(world: World) -> None:
    key = {"headers": {"Authorization": f"Bearer {KEYS['ops']}"}}
    edit_config(world.folder, lambda file: file["servers"].update(me={"url": world.b.url, **key}))
    async with world.at(world.a) as a:

        async def is_known() -> bool:
            return "it is this hub itself" in str((await a.get("/v1/servers/me")).json().get("reason"))

        await eventually(is_known, "the other node is recognised")
    edit_config(world.folder, lambda file: file["servers"].pop("me"))


async def test_a_server_is_disabled_and_restarted_at_all_nodes(world: World) -> None:
    async with world.at(world.a) as a, world.at(world.b) as b:

        async def pid(node: httpx2.AsyncClient) -> int:
            result = (await node.post("/v1/tools/s.count", json={})).json()
            return int(result["structuredContent"]["pid"])

        before = await pid(b)
        assert (await a.post("/v1/restart/s")).status_code == 200

        async def is_another() -> bool:
            answer = await b.post("/v1/tools/s.count", json={})
            return answer.status_code == 200 and bool(answer.json()["structuredContent"]["pid"] != before)

        await eventually(is_another, "the process at the other node is another one")
        assert (await a.post("/v1/disable/s")).json()["saved"] is True
        assert (await b.get("/v1/servers/s")).json()["state"] == "disabled"
        assert (await b.post("/v1/enable/s")).json()["saved"] is True

        async def is_ready() -> bool:
            return bool((await a.get("/v1/servers/s")).json()["state"] == "ready")

        await eventually(is_ready, "it is enabled at both")


async def test_nodes_announce_a_restless_list_to_each_other_once(tmp_path: Path) -> None:
    async with Restless() as server, serving_nodes(tmp_path, {"restless": server.entry}, limits=PATIENT) as hub:
        for node in hub.nodes:
            async with Raw(node.url) as raw:
                assert "result" in await raw.call("restless.t")
        await eventually(lambda: server.count("tools/list") >= 4, "both have read it again")
        known = server.count("tools/list")
        await asyncio.sleep(LOOKS_SECONDS)  # nothing happens, and that is what counts
        assert server.count("tools/list") <= known + 4, "each was notified of a change once"


async def test_the_same_words_after_a_response_are_a_new_message_of_0_1_at_every_node(
    tmp_path: Path, ledger: Ledger
) -> None:
    said = {"tool": "quick.pay", "arguments": {"nonce": "again"}}
    message = {"role": "user", "parts": [{"type": "data", "data": said}]}
    servers = {"quick": stdio(quick_server.command(ledger.path))}
    async with serving_nodes(tmp_path, servers, nodes=3, limits=PATIENT) as hub, AsyncExitStack() as stack:
        agents = [await stack.enter_async_context(RawAgent(node)) for node in hub.nodes]
        for number, agent in enumerate((*agents, *agents), 1):
            done = await agent.ask("tasks/send", {"id": "mine", "message": message})
            assert done["status"]["state"] == "completed"
            assert len(ledger.lines()) == number, "each follows a response to the one before"


async def test_a_level_chosen_at_one_node_takes_no_lines_from_a_caller_at_another(tmp_path: Path) -> None:
    # Without sessions, FastMCP keeps the last level that anybody has set, for all connections.
    form = Form("fastmcp", "legacy", "stateless")
    curious, quiet = MessageListener(), MessageListener()
    async with (
        http_peer(form.peer, *form.options) as peer,
        serving_nodes(tmp_path, {"full": {"url": form.url(peer.port)}}, limits=PATIENT) as hub,
        client_over_http(hub.nodes[0].url_of("full"), mode="legacy", listener=curious) as wants_all,
        client_over_http(hub.nodes[1].url_of("full"), mode="legacy", listener=quiet) as wants_errors,
    ):
        await level_set(wants_all, "debug")
        await level_set(wants_errors, "error")
        await wants_all.call_tool("log_some", {})
        await wants_errors.call_tool("log_some", {})

    assert [line["level"] for line in curious.logs] == list(content.LEVELS)
    assert [line["level"] for line in quiet.logs] == ["error"]
