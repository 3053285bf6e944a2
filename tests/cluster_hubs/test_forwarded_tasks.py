"""A task that runs on one node is followed, cancelled and continued through another: two nodes, NATS and PostgreSQL."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import grpc
import pytest
import pytest_asyncio

from isthmus.model.tasks import TextPart
from isthmus.wire.a2a.operations import SendMessage
from tests.cluster.servers import BUSY
from tests.cluster_hubs.balanced import grpc_port_of, start_nodes
from tests.cluster_hubs.nodes import nats_server
from tests.cluster_hubs.test_forwarding import CALLERS, KEY, Node, client_of, servers_of
from tests.conftest import Ledger
from tests.databases import running
from tests.faults.watching import eventually
from tests.frontends.test_a2a_grpc import call, rest_of
from tests.frontends.test_rest import PUBLISH, noted
from tests.frontends.test_streams import Lines
from tests.hubs import PATIENT
from tests.unit.upstream.a2a.scripted import DONE, HELLO, TASK, WORKING, ScriptedAgent, stands, streaming

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("forwarded_tasks")]

SECONDS = 30.0
TASKS: dict[str, Any] = {"extensions": {"io.modelcontextprotocol/tasks": {}}, "elicitation": {"form": {}}}
VERSION = {"a2a-version": "1.0"}
COMPLETED, INPUT_REQUIRED = 3, 6
"""States of tasks in protobuf."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ledger(tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    return Ledger(tmp_path_factory.mktemp("ledger") / "ledger.jsonl")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def agent() -> AsyncIterator[ScriptedAgent]:
    async with ScriptedAgent() as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def nodes(
    tmp_path_factory: pytest.TempPathFactory, ledger: Ledger, agent: ScriptedAgent
) -> AsyncIterator[tuple[Node, Node]]:
    folder = tmp_path_factory.mktemp("nodes")
    async with AsyncExitStack() as stack:
        database = stack.enter_context(running())
        nats = await stack.enter_async_context(nats_server(folder / "nats"))
        storage = {"url": database.url(schema="shared")}
        tables: dict[str, Any] = {"callers": CALLERS, "limits": PATIENT, "storage": storage, "tasks": {"after": 0.2}}
        tables["a2a"] = {"grpc_port": 0}
        servers = {**servers_of(ledger), "scholar": {"agent": agent.origin}}
        hubs = await start_nodes(folder, stack, nats.url, 2, servers, **tables)
        yield await client_of(hubs[0], stack), await client_of(hubs[1], stack)


async def rpc(node: Node, method: str, params: Any) -> Any:
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return (await node.http.post("/a2a", json=body, headers=VERSION)).json()


def message_of(id: str, tool: str, arguments: Any, **more: Any) -> dict[str, Any]:
    return {"messageId": id, "role": "ROLE_USER", "parts": [{"data": {"tool": tool, "arguments": arguments}}], **more}


async def send(node: Node, id: str, tool: str, arguments: Any) -> str:
    """Begin a task, and return its id."""
    params = {"message": message_of(id, tool, arguments), "configuration": {"returnImmediately": True}}
    answer = await rpc(node, "SendMessage", params)
    return str(answer["result"]["task"]["id"])


async def test_an_a2a_task_is_followed_and_cancelled_through_another_node(
    nodes: tuple[Node, Node], ledger: Ledger
) -> None:
    a, b = nodes
    task = await send(a, "m1", "raw.pay", {"nonce": "a1", "mode": "sleep:60"})
    await noted(ledger, '"nonce": "a1"')
    body = {"jsonrpc": "2.0", "id": 1, "method": "SubscribeToTask", "params": {"id": task}}
    async with asyncio.timeout(SECONDS), b.http.stream("POST", "/a2a", json=body, headers=VERSION) as answer:
        lines = Lines(answer.aiter_lines())
        assert "TASK_STATE_WORKING" in await lines.until("data:")
        begun = time.monotonic()
        cancelled = await rpc(b, "CancelTask", {"id": task})
        assert cancelled["result"]["status"]["state"] == "TASK_STATE_CANCELED", cancelled
        while "TASK_STATE_CANCELED" not in (line := await lines.until("data:")):
            assert "error" not in line
        assert time.monotonic() - begun < 1.0 * BUSY
        await lines.end()
    await noted(ledger, '"cancelled": "a1"')


async def test_the_events_of_a_task_arrive_at_another_node_as_they_happen(nodes: tuple[Node, Node]) -> None:
    a, b = nodes
    task = await send(a, "m2", "shelf.slow", {"seconds": 2.0, "steps": 20})
    body = {"jsonrpc": "2.0", "id": 1, "method": "SubscribeToTask", "params": {"id": task}}
    seen = 0
    async with asyncio.timeout(SECONDS), b.http.stream("POST", "/a2a", json=body, headers=VERSION) as answer:
        async for line in answer.aiter_lines():
            seen += line.startswith("data:")
    assert seen > 5, "polling the database would see few of them"


async def test_an_a2a_task_is_answered_through_another_node(nodes: tuple[Node, Node]) -> None:
    a, b = nodes
    task = await send(a, "m3", "workshop.publish", PUBLISH)

    async def state(node: Node) -> str:
        return str((await rpc(node, "GetTask", {"id": task}))["result"]["status"]["state"])

    async def is_asking() -> bool:
        return await state(b) == "TASK_STATE_INPUT_REQUIRED"

    await eventually(is_asking, "the question is asked")
    reply = {"messageId": "m4", "role": "ROLE_USER", "taskId": task, "parts": [{"data": {"signed_by": "Ada"}}]}
    answer = await rpc(b, "SendMessage", {"message": reply})
    assert "signed by Ada" in json.dumps(answer["result"], ensure_ascii=False), answer
    assert await state(a) == await state(b) == "TASK_STATE_COMPLETED"


async def test_a_task_is_followed_and_answered_over_grpc_at_another_node(nodes: tuple[Node, Node]) -> None:
    a, b = nodes
    task = await send(a, "g1", "workshop.publish", PUBLISH)
    async with (
        grpc.aio.insecure_channel(f"127.0.0.1:{grpc_port_of(b.hub)}") as channel,
        asyncio.timeout(SECONDS),
    ):
        stream = call(channel, "SubscribeToTask", {"id": task}, KEY)
        states = [(await stream.read()).task.status.state]
        while states[-1] != INPUT_REQUIRED:
            states.append((await stream.read()).status_update.status.state)
        reply = {"messageId": "g2", "role": "ROLE_USER", "taskId": task, "parts": [{"data": {"signed_by": "Ada"}}]}
        done = (await call(channel, "SendMessage", {"message": reply}, KEY)).task
        assert "signed by Ada" in str(done.artifacts), done
        items = [item async for item in rest_of(stream)]
        assert items[-1].status_update.status.state == done.status.state == COMPLETED


async def test_push_notifications_are_configured_over_grpc_at_another_node(nodes: tuple[Node, Node]) -> None:
    a, b = nodes
    task = await send(a, "g3", "workshop.publish", PUBLISH)
    async with (
        grpc.aio.insecure_channel(f"127.0.0.1:{grpc_port_of(b.hub)}") as channel,
        asyncio.timeout(SECONDS),
    ):
        which = {"taskId": task, "id": "c1"}
        await call(channel, "CreateTaskPushNotificationConfig", {**which, "url": "https://1.1.1.1/hook"}, KEY)
        assert (await call(channel, "GetTaskPushNotificationConfig", which, KEY)).id == "c1"
        await call(channel, "DeleteTaskPushNotificationConfig", which, KEY)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call(channel, "GetTaskPushNotificationConfig", which, KEY)
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND
        assert "grpc-status-details-bin" in dict(refused.value.trailing_metadata())
    await rpc(a, "CancelTask", {"id": task})


async def test_the_task_of_a_remote_agent_is_continued_at_another_node(
    nodes: tuple[Node, Node], agent: ScriptedAgent
) -> None:
    a, b = nodes
    agent.scripts[SendMessage] = streaming(WORKING, stands("input_required", TextPart("Which one?")))
    asked = await a.modern("tools/call", {"name": "scholar.research", "arguments": {"message": "go"}})
    agent.scripts[SendMessage] = streaming(HELLO, DONE)
    again = {"message": "the red one", "task_id": asked["result"]["structuredContent"]["task_id"]}
    answer = await b.modern("tools/call", {"name": "scholar.research", "arguments": again})
    assert answer["result"]["content"][0]["text"] == "hello", answer
    assert [sent.task for sent in agent.sent()] == [None, TASK]


async def test_a_task_of_a_modern_mcp_caller_is_cancelled_and_answered_elsewhere(
    nodes: tuple[Node, Node], ledger: Ledger
) -> None:
    a, b = nodes
    made = await a.modern("tools/call", {"name": "raw.pay", "arguments": {"nonce": "t1", "mode": "sleep:60"}}, TASKS)
    task = made["result"]["taskId"]
    assert (await b.modern("tasks/get", {"taskId": task}, TASKS))["result"]["status"] == "working"
    assert "result" in await b.modern("tasks/cancel", {"taskId": task}, TASKS)
    await noted(ledger, '"cancelled": "t1"')
    assert (await b.modern("tasks/get", {"taskId": task}, TASKS))["result"]["status"] == "cancelled"


async def test_a_legacy_caller_waits_for_a_task_that_another_node_runs(nodes: tuple[Node, Node]) -> None:
    a, b = nodes
    here, there = await a.open_session(), await b.open_session()
    params = {"name": "shelf.slow", "arguments": {"seconds": 1.5, "steps": 2}, "task": {"ttl": 60_000}}
    made = (await a.post("tools/call", params, here)).json()
    task = made["result"]["task"]["taskId"]
    result = await b.post("tasks/result", {"taskId": task}, there)
    assert '"content"' in result.text, result.text


async def test_rest_cancels_a_task_that_another_node_runs(nodes: tuple[Node, Node], ledger: Ledger) -> None:
    a, b = nodes
    task = await send(a, "m5", "raw.pay", {"nonce": "r1", "mode": "sleep:60"})
    await noted(ledger, '"nonce": "r1"')
    listed = (await b.http.get("/v1/tasks")).json()["tasks"]
    (path,) = [each["id"] for each in listed if task in each["id"]]
    cancelled = await b.http.post(f"/v1/cancel/{path}")
    assert cancelled.status_code == 200, cancelled.text
    await noted(ledger, '"cancelled": "r1"')


async def test_a_follower_at_another_node_has_each_event_at_once(nodes: tuple[Node, Node]) -> None:
    """The promise is 50 ms. The same events are followed at the node that runs the task: the difference counts."""
    a, b = nodes
    task = await send(a, "m6", "shelf.slow", {"seconds": 2.0, "steps": 20})
    body = {"jsonrpc": "2.0", "id": 1, "method": "SubscribeToTask", "params": {"id": task}}

    async def follow(node: Node) -> dict[str, float]:
        seen: dict[str, float] = {}
        async with node.http.stream("POST", "/a2a", json=body, headers=VERSION) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("data:"):
                    seen.setdefault(line, time.monotonic())
        return seen

    async with asyncio.timeout(SECONDS):
        here, there = await asyncio.gather(follow(a), follow(b))
    late = sorted(there[line] - here[line] for line in here.keys() & there.keys())
    assert len(late) > 5, (here, there)
    median, most = late[len(late) // 2] * 1e3, late[-1] * 1e3
    print(f"{len(late)} events at another node: median {median:.1f} ms, at most {most:.1f} ms")
    assert late[-1] < 0.05 * BUSY


async def test_a_cancellation_at_another_node_stops_the_tool_at_once(nodes: tuple[Node, Node], ledger: Ledger) -> None:
    """The promise is 200 ms, from the request until the tool has stopped."""
    a, b = nodes
    task = await send(a, "m7", "raw.pay", {"nonce": "f1", "mode": "sleep:60"})
    await noted(ledger, '"nonce": "f1"')
    begun = time.monotonic()
    cancelling = asyncio.ensure_future(rpc(b, "CancelTask", {"id": task}))
    await noted(ledger, '"cancelled": "f1"')
    seconds = time.monotonic() - begun
    await cancelling
    print(f"a tool stopped {seconds * 1e3:.0f} ms after its task was cancelled at another node")
    assert seconds < 0.2 * BUSY


async def test_a_message_that_reaches_two_nodes_runs_once(nodes: tuple[Node, Node], ledger: Ledger) -> None:
    said = {"message": message_of("twice", "raw.pay", {"nonce": "d1", "mode": "sleep:0.2"})}
    answers = await asyncio.gather(*(rpc(node, "SendMessage", said) for node in nodes * 3))
    assert len({answer["result"]["task"]["id"] for answer in answers}) == 1, answers
    assert sum('"nonce": "d1"' in line for line in ledger.lines()) == 1, ledger.lines()


async def test_an_idempotency_key_that_reaches_two_nodes_runs_once(nodes: tuple[Node, Node], ledger: Ledger) -> None:
    message = message_of("k1", "raw.pay", {"nonce": "k1", "mode": "sleep:0.2"})
    body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": message}}
    headers = {**VERSION, "idempotency-key": "only-once"}
    sent = [node.http.post("/a2a", json=body, headers=headers) for node in nodes * 3]
    answers = [answer.json() for answer in await asyncio.gather(*sent)]
    assert [answer["error"] for answer in answers if "result" not in answer] == []
    assert len({answer["result"]["task"]["id"] for answer in answers}) == 1, answers
    assert sum('"nonce": "k1"' in line for line in ledger.lines()) == 1, ledger.lines()
