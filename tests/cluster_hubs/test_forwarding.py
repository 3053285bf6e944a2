"""State in the memory of one node is reached through any other: sessions, streams, questions, sign-ins.

Two real nodes on a real NATS server. Each test begins something at node `A` and goes on at node `B`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from tests.cluster_hubs.balanced import serving_nodes, start_nodes
from tests.cluster_hubs.nodes import nats_server
from tests.conftest import Ledger
from tests.faults.watching import eventually
from tests.frontends.test_rest import PUBLISH, events_in, noted
from tests.frontends.test_streams import Lines
from tests.hubs import CHECKOUT, META, MODERN, PATIENT, TRUSTED, HubProcess, stdio
from tests.peers.launch import command, quick_command

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("forwarding")]

SECONDS = 30.0
KEY = "the-key-of-ops-0123456789"
OTHER_KEY = "the-key-of-eve-0123456789"
CALLERS = {
    "ops": {"key": KEY, "allow": ["*"], "operator": True},
    "eve": {"key": OTHER_KEY, "allow": ["*"]},
}
BOTH = "application/json, text/event-stream"


class Node:
    """A client of one node."""

    def __init__(self, hub: HubProcess, http: httpx2.AsyncClient) -> None:
        self.hub = hub
        self.http = http

    async def open_session(self, version: str = "2025-11-25", **capabilities: Any) -> dict[str, str]:
        """Begin a session; returns the headers that name it."""
        about = {"name": "t", "version": "1"}
        hello = {"protocolVersion": version, "capabilities": capabilities, "clientInfo": about}
        answer = await self.post("initialize", hello, {}, id=0)
        assert answer.status_code == 200
        return {"mcp-session-id": answer.headers["mcp-session-id"], "mcp-protocol-version": version}

    async def post(self, method: str, params: Any, headers: dict[str, str], *, id: Any = 1) -> httpx2.Response:
        """Send a message."""
        return await self.http.post("/mcp", json=message(method, params, id), headers={"accept": BOTH, **headers})

    async def call(self, tool: str, arguments: Any, headers: dict[str, str], *, id: Any = 1) -> Any:
        """Call a tool in a session; returns the response, however it came."""
        answer = await self.post("tools/call", {"name": tool, "arguments": arguments}, headers, id=id)
        assert answer.status_code == 200, answer.text
        return answered(answer)

    @asynccontextmanager
    async def stream(self, verb: str, headers: dict[str, str], **more: Any) -> AsyncIterator[Lines]:
        """A stream of events at `/mcp`."""
        wanted = {"accept": "text/event-stream, application/json", **headers}
        async with self.http.stream(verb, "/mcp", headers=wanted, **more) as answer:
            assert (answer.status_code, answer.headers["content-type"]) == (200, "text/event-stream")
            yield Lines(answer.aiter_lines())

    async def modern(self, method: str, params: Any, capabilities: Any = None) -> Any:
        """Send a modern request; returns the response."""
        meta = {**META, "io.modelcontextprotocol/clientCapabilities": capabilities or {}}
        headers = {"mcp-protocol-version": MODERN, "mcp-method": method, "accept": BOTH}
        if name := params.get("name") or params.get("uri"):
            headers["mcp-name"] = name
        body = message(method, {**params, "_meta": meta}, 1)
        return answered(await self.http.post("/mcp", json=body, headers=headers))


def message(method: str, params: Any, id: Any = None) -> dict[str, Any]:
    members = {"jsonrpc": "2.0", "method": method, "params": params}
    return members if id is None else {**members, "id": id}


def answered(answer: httpx2.Response) -> Any:
    """The last message of a response."""
    if answer.headers["content-type"] != "text/event-stream":
        return answer.json()
    data = [line[5:].strip() for line in answer.text.splitlines() if line.startswith("data:")]
    return json.loads([each for each in data if each][-1])


def servers_of(ledger: Ledger) -> dict[str, Any]:
    return {
        "shelf": stdio(quick_command("full_sdk2")),
        "raw": stdio(command("raw_server", "--ledger", str(ledger.path))),
        "workshop": stdio([sys.executable, str(CHECKOUT / "examples" / "workshop_server.py")]),
    }


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ledger(tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    return Ledger(tmp_path_factory.mktemp("ledger") / "ledger.jsonl")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def nodes(tmp_path_factory: pytest.TempPathFactory, ledger: Ledger) -> AsyncIterator[tuple[Node, Node]]:
    folder = tmp_path_factory.mktemp("nodes")
    limits = {**PATIENT, "lag_bytes": 1 << 20, "lag_seconds": 5}
    async with AsyncExitStack() as stack:
        running = await stack.enter_async_context(
            serving_nodes(folder, servers_of(ledger), callers=CALLERS, limits=limits)
        )
        yield (await client_of(running.nodes[0], stack), await client_of(running.nodes[1], stack))


async def client_of(hub: HubProcess, stack: AsyncExitStack, key: str | None = KEY) -> Node:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    url = f"http://127.0.0.1:{hub.port}"
    client = httpx2.AsyncClient(base_url=url, headers=headers, timeout=SECONDS, verify=TRUSTED)
    return Node(hub, await stack.enter_async_context(client))


# -- legacy sessions ---------------------------------------------------------------------------------------------------


async def test_a_session_is_served_through_another_node(nodes: tuple[Node, Node]) -> None:
    a, b = nodes
    session = await a.open_session()
    assert "~" in session["mcp-session-id"]
    for node in (b, a, b, b):
        assert (await node.call("shelf.add", {"a": 2, "b": 3}, session))["result"]["structuredContent"] == {"sum": 5}
    listed = answered(await b.post("tools/list", {}, session))
    assert "shelf.add" in {tool["name"] for tool in listed["result"]["tools"]}
    assert (await b.http.delete("/mcp", headers=session)).status_code == 204
    for node in (a, b):
        assert (await node.post("ping", {}, session)).status_code == 404


async def test_sessions_of_nodes_that_never_were_are_unknown(nodes: tuple[Node, Node]) -> None:
    session = await nodes[0].open_session()

    async def knows_all(node: Node) -> bool:
        # A node that has just joined may not know the others yet, and calls no session unknown.
        return (await node.post("ping", {}, {**session, "mcp-session-id": "aaaaaaaa~x"})).status_code == 404

    for node in nodes:
        await eventually(lambda node=node: knows_all(node), "the node knows the others")  # type: ignore[misc]
    for id in ("aaaaaaaa~x", "~", "a" * 5000 + "~", session["mcp-session-id"] + "x", "nothing"):
        for node in nodes:
            assert (await node.post("ping", {}, {**session, "mcp-session-id": id})).status_code == 404


async def test_a_session_belongs_to_its_caller_through_every_node(nodes: tuple[Node, Node]) -> None:
    a, b = nodes
    session = await a.open_session()
    eve = {**session, "authorization": f"Bearer {OTHER_KEY}"}
    assert (await b.post("ping", {}, eve)).status_code == 404
    nobody = await b.post("ping", {}, {**session, "authorization": "Bearer wrong-key-0123456789"})
    assert nobody.status_code == 401
    assert (await b.post("ping", {}, session)).status_code == 200


async def test_a_slow_call_streams_progress_and_is_resumed_through_another_node(nodes: tuple[Node, Node]) -> None:
    a, b = nodes
    session = await a.open_session()
    params = {"name": "shelf.slow", "arguments": {"seconds": 2.0, "steps": 8}, "_meta": {"progressToken": 7}}
    async with b.stream("POST", session, json=message("tools/call", params, 5)) as lines:
        await lines.until('data: {"jsonrpc":"2.0","method":"notifications/progress"')
        last = lines.last
    assert last
    async with b.stream("GET", {**session, "last-event-id": last}) as lines:
        result = json.loads((await lines.until('data: {"jsonrpc":"2.0","id":5'))[5:])
    assert "result" in result


async def test_list_changes_and_answers_reach_a_stream_at_another_node(nodes: tuple[Node, Node]) -> None:
    a, b = nodes
    session = await a.open_session()
    async with b.stream("GET", session) as lines:
        await a.call("shelf.grow_tools", {"name": f"new{os.getpid()}"}, session)
        await lines.until('data: {"jsonrpc":"2.0","method":"notifications/tools/list_changed"')


async def test_a_call_is_cancelled_through_another_node(nodes: tuple[Node, Node], ledger: Ledger) -> None:
    a, b = nodes
    session = await a.open_session()
    calling = asyncio.create_task(b.call("raw.pay", {"nonce": "c1", "mode": "sleep:60"}, session, id=9))
    await noted(ledger, '"nonce": "c1"')
    cancel = message("notifications/cancelled", {"requestId": 9})
    sent = await b.http.post("/mcp", json=cancel, headers={"accept": BOTH, **session})
    assert sent.status_code == 202
    assert (await calling)["error"]["data"]["reason"] == "cancelled"
    await noted(ledger, '"cancelled": "c1"')


async def test_a_legacy_caller_answers_a_question_through_another_node(nodes: tuple[Node, Node]) -> None:
    a, b = nodes
    session = await a.open_session(elicitation={})
    body = message("tools/call", {"name": "workshop.publish", "arguments": PUBLISH}, 3)
    async with b.stream("POST", session, json=body) as lines:
        asked = json.loads((await lines.until('data: {"jsonrpc":"2.0","id":"isthmus-'))[5:])
        reply = {"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "accept", "content": {"signed_by": "Ada"}}}
        assert (await b.http.post("/mcp", json=reply, headers={"accept": BOTH, **session})).status_code == 202
        result = json.loads((await lines.until('data: {"jsonrpc":"2.0","id":3'))[5:])
    assert "signed by Ada" in result["result"]["content"][0]["text"]


async def test_long_bodies_and_long_results_cross_whole(nodes: tuple[Node, Node]) -> None:
    a, b = nodes
    session = await a.open_session()
    text = "".join(chr(97 + number % 26) for number in range(3_000_000))
    back = await b.call("builtin.echo", {"text": text}, session)
    assert back["result"]["content"][0]["text"] == text
    huge = await b.call("raw.echo", {"text": "x", "mode": "huge:5000000"}, session)
    assert len(json.dumps(huge)) > 5_000_000

    async def chunks() -> AsyncIterator[bytes]:
        body = json.dumps(message("tools/call", {"name": "builtin.echo", "arguments": {"text": text}}, 1)).encode()
        for start in range(0, len(body), 100_000):
            yield body[start : start + 100_000]

    headers = {"accept": BOTH, "content-type": "application/json", **session}
    sent = await b.http.post("/mcp", content=chunks(), headers=headers)
    assert answered(sent)["result"]["content"][0]["text"] == text


async def test_many_requests_cross_at_once_and_none_is_mixed_up(nodes: tuple[Node, Node]) -> None:
    a, b = nodes
    session = await a.open_session()

    async def echo(number: int) -> None:
        back = await b.call("builtin.echo", {"text": f"text {number}"}, session, id=number)
        assert (back["id"], back["result"]["content"][0]["text"]) == (number, f"text {number}")

    for _ in range(5):
        await asyncio.gather(*(echo(number) for number in range(80)))


# -- modern callers ----------------------------------------------------------------------------------------------------


async def test_a_modern_caller_returns_to_another_node_with_its_answers(nodes: tuple[Node, Node]) -> None:
    a, b = nodes
    can: dict[str, Any] = {"elicitation": {"form": {}}}
    asked = (await a.modern("tools/call", {"name": "workshop.publish", "arguments": PUBLISH}, can))["result"]
    assert asked["resultType"] == "input_required"
    (key,) = asked["inputRequests"]
    answers = {key: {"action": "accept", "content": {"signed_by": "Ada"}}}
    again = {"name": "workshop.publish", "arguments": PUBLISH, "inputResponses": answers}
    done = await b.modern("tools/call", {**again, "requestState": asked["requestState"]}, can)
    assert "signed by Ada" in done["result"]["content"][0]["text"]
    for node in nodes:  # once is enough
        used = await node.modern("tools/call", {**again, "requestState": asked["requestState"]}, can)
        assert used["error"]["data"]["reason"] == "bad_state"


async def test_a_changed_state_is_refused_by_every_node(nodes: tuple[Node, Node]) -> None:
    for state in ("aaaaaaaa~x", "x", "~"):
        for node in nodes:
            params = {"name": "workshop.publish", "arguments": PUBLISH, "requestState": state}
            refused = await node.modern("tools/call", params, {"elicitation": {}})
            assert refused["error"]["data"]["reason"] == "bad_state"


# -- HTTP+SSE, REST, console -------------------------------------------------------------------------------------------


async def test_messages_of_an_sse_session_are_posted_to_another_node(nodes: tuple[Node, Node]) -> None:
    a, b = nodes
    async with a.http.stream("GET", "/sse", headers={"accept": "text/event-stream"}) as answer:
        lines = Lines(answer.aiter_lines())
        address = (await lines.until("data: "))[6:]
        hello = {"protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        assert (await b.http.post(address, json=message("initialize", hello, 0))).status_code == 202
        await lines.until('data: {"jsonrpc":"2.0","id":0')
        body = message("tools/call", {"name": "shelf.add", "arguments": {"a": 1, "b": 1}}, 1)
        assert (await b.http.post(address, json=body)).status_code == 202
        assert '"sum":2' in (await lines.until('data: {"jsonrpc":"2.0","id":1'))
        assert (await b.http.delete(address)).status_code == 204
    assert (await b.http.post(address, json=body)).status_code == 404


async def test_a_question_on_a_rest_stream_is_answered_at_another_node(nodes: tuple[Node, Node]) -> None:
    a, b = nodes
    url, wanted = "/v1/tools/workshop.publish?questions=form", {"accept": "text/event-stream"}
    async with asyncio.timeout(SECONDS), a.http.stream("POST", url, json=PUBLISH, headers=wanted) as stream:
        chunks, text = stream.aiter_text(), ""
        while not events_in(text):
            text += await anext(chunks)
        path = f"/v1/questions/{events_in(text)[0][1]['id']}"
        reply = {"action": "accept", "content": {"signed_by": "Ada"}}
        eve = {"authorization": f"Bearer {OTHER_KEY}"}
        assert (await b.http.post(path, json=reply, headers=eve)).status_code == 404
        assert (await b.http.post(path, json=reply)).status_code == 200
        text += "".join([chunk async for chunk in chunks])
    assert "signed by Ada" in events_in(text)[-1][1]["content"][0]["text"]


async def test_a_page_that_signed_in_at_one_node_is_known_at_another(nodes: tuple[Node, Node], ledger: Ledger) -> None:
    async with AsyncExitStack() as stack:
        a, b = [await client_of(node.hub, stack, key=None) for node in nodes]
        signed_in = await a.http.post("/console/session", json={"key": KEY})
        cookie = signed_in.headers["set-cookie"].partition(";")[0]
        page = {"cookie": cookie, "x-csrf-token": signed_in.json()["csrf"]}
        assert (await b.http.get("/console/session", headers=page)).json()["caller"] == "ops"
        assert (await b.http.get("/v1/servers", headers=page)).status_code == 200
        assert (await b.http.post("/v1/tools/builtin.echo", json={"text": "a"}, headers=page)).status_code == 200
        no_token = {"cookie": cookie}
        assert (await b.http.post("/v1/tools/builtin.echo", json={"text": "a"}, headers=no_token)).status_code == 403
        # A page that is closed withdraws its call.
        call = b.http.post("/v1/tools/raw.pay", json={"nonce": "page", "mode": "sleep:60"}, headers=page)
        calling = asyncio.create_task(call)
        await noted(ledger, '"nonce": "page"')
        calling.cancel()
        await noted(ledger, '"cancelled": "page"')
        assert (await b.http.delete("/console/session", headers=page)).status_code == 200
        for node in (a, b):
            assert (await node.http.get("/v1/servers", headers=page)).status_code == 401


async def test_a_reader_that_stands_still_is_disconnected_and_bounds_memory(nodes: tuple[Node, Node]) -> None:
    a, b = nodes
    session = await a.open_session()
    before = rss_of(a.hub.pid), rss_of(b.hub.pid)
    params = {"name": "raw.echo", "arguments": {"text": "x", "mode": "endless_sse"}, "_meta": {"progressToken": 1}}
    body = json.dumps(message("tools/call", params, 1)).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", b.hub.port, limit=1024)
    head = [
        "POST /mcp HTTP/1.1", "host: localhost", f"authorization: Bearer {KEY}", "content-type: application/json",
        f"content-length: {len(body)}", f"accept: {BOTH}", *(f"{name}: {value}" for name, value in session.items()),
    ]  # fmt: skip
    writer.write("\r\n".join([*head, "", ""]).encode() + body)
    await reader.readuntil(b"text/event-stream")
    await asyncio.sleep(3)  # it reads nothing meanwhile, however much there is
    assert rss_of(a.hub.pid) - before[0] < 60_000, "kilobytes"
    assert rss_of(b.hub.pid) - before[1] < 60_000
    writer.transport.abort()
    cancel = message("notifications/cancelled", {"requestId": 1})
    await b.http.post("/mcp", json=cancel, headers={"accept": BOTH, **session})


def rss_of(pid: int) -> int:
    """The memory of a process in KiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])


# -- nodes that go -----------------------------------------------------------------------------------------------------


async def test_the_death_of_the_owner_is_reported_with_a_true_executed(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    async with AsyncExitStack() as stack:
        nats = await stack.enter_async_context(nats_server(tmp_path / "nats"))
        hubs = await start_nodes(tmp_path, stack, nats.url, 2, servers_of(ledger), callers=CALLERS, limits=PATIENT)
        a, b = [await client_of(hub, stack) for hub in hubs]
        session = await a.open_session()
        plain = {"accept": "application/json", **session}
        answers = [
            asyncio.create_task(b.call("raw.pay", {"nonce": f"k{number}", "mode": "sleep:60"}, headers, id=number))
            for number, headers in enumerate((session, plain, session, plain))
        ]
        for number in range(4):
            await noted(ledger, f'"nonce": "k{number}"')
        async with b.stream("GET", session) as lines:
            await lines.until("")
            hubs[0].kill()
            async with asyncio.timeout(20):
                for number, answer in enumerate(await asyncio.gather(*answers)):
                    error = answer["error"]
                    assert (answer["id"], error["code"], error["data"]["executed"]) == (number, -32012, "unknown")
                with pytest.raises(httpx2.RemoteProtocolError):  # a stream that ended would look otherwise
                    await lines.end()
        async with asyncio.timeout(20):
            while (gone := await b.post("ping", {}, session)).status_code != 404:
                assert answered(gone)["error"]["data"]["executed"] == "no"
        assert (await b.post("ping", {}, await b.open_session())).status_code == 200


async def test_without_the_bus_a_session_elsewhere_is_not_called_unknown(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        nats = await stack.enter_async_context(nats_server(tmp_path / "nats"))
        hubs = await start_nodes(tmp_path, stack, nats.url, 2, {}, callers=CALLERS)
        a, b = [await client_of(hub, stack) for hub in hubs]
        session, own = await a.open_session(), await b.open_session()
        assert (await b.post("ping", {}, session)).status_code == 200
        nats.kill()

        async def is_refused() -> bool:
            async with asyncio.timeout(10):
                answer = answered(await b.post("ping", {}, session))
            return "error" in answer and answer["error"]["data"]["executed"] == "no"

        await eventually(is_refused, "nothing is forwarded without the bus")
        refusal = answered(await b.post("ping", {}, session))["error"]
        assert (refusal["code"], refusal["data"]["reason"]) == (-32011, "node_lost")
        assert (await b.post("ping", {}, own)).status_code == 200
        nats.start()

        async def is_healthy() -> bool:
            return "result" in answered(await b.post("ping", {}, session))

        await eventually(is_healthy, "the session is there again", within=20.0)


async def test_a_node_that_stops_lets_go_of_forwarded_streams_and_finishes_calls(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    async with AsyncExitStack() as stack:
        nats = await stack.enter_async_context(nats_server(tmp_path / "nats"))
        hubs = await start_nodes(tmp_path, stack, nats.url, 3, servers_of(ledger), callers=CALLERS, limits=PATIENT)
        a, b, c = [await client_of(hub, stack) for hub in hubs]
        session = await a.open_session()
        async with b.stream("GET", session) as lines:
            await lines.until("")
            hubs[1].terminate()
            await lines.end()
        await asyncio.wait_for(hubs[1].process.wait(), 10)
        done = tmp_path / "done"
        calling = asyncio.create_task(c.call("raw.pay", {"nonce": "d1", "mode": f"until:{done}"}, session))
        await noted(ledger, '"nonce": "d1"')
        hubs[0].terminate()
        await asyncio.sleep(0.3)  # it waits for the call that came from another node
        done.touch()
        assert "result" in await calling
        await asyncio.wait_for(hubs[0].process.wait(), 10)
