"""Tasks of servers of both eras through the hub: ids kept apart, and every caller's its own."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.frontends import task_server
from tests.frontends.wire import BASE, Reply, Wire, connected, encoded, key_header, legacy, modern_headers, rendered
from tests.hubs import META, PATIENT, HubProcess, serving, stdio

pytestmark = pytest.mark.asyncio(loop_scope="module")

ONE, OTHER = "key-of-one-who-may-everything", "key-of-another-who-may-too"
CALLERS = {
    "one": {"key": ONE, "allow": ["*"]},
    "other": {"key": OTHER, "allow": ["*"]},
    "some": {"key": "key-of-one-who-may-one", "allow": ["older.*"]},
}
RELATED = task_server.RELATED


def server(era: str, **more: Any) -> dict[str, Any]:
    return stdio([sys.executable, task_server.__file__, era], placement="node", **more)


SERVERS = {
    "older": server("legacy"),
    "old": server("legacy"),
    "newer": server("modern"),
    "new": server("modern"),
    "brief": server("legacy", isolation="call"),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hub(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HubProcess]:
    folder, alone = tmp_path_factory.mktemp("hub"), {"provide": False}
    async with serving(folder, SERVERS, callers=CALLERS, limits=PATIENT, tasks=alone) as running:
        yield running
    assert not [line for line in running.said if "Traceback" in line]


async def ask_legacy(
    hub: HubProcess, method: str, params: dict[str, Any], *, key: str = ONE, path: str = "/mcp", session: str = ""
) -> Any:
    headers = [*BASE, *key_header(key), *([("mcp-session-id", session)] if session else [])]
    async with connected(hub.port) as wire:
        return (await wire.request(encoded(legacy(method, params)), headers, path=path)).json


async def ask_modern(
    hub: HubProcess, method: str, params: dict[str, Any], *, key: str = ONE, path: str = "/mcp", knows: bool = True
) -> Reply:
    can: dict[str, Any] = {"extensions": {task_server.TASKS: {}}} if knows else {}
    meta = {**META, "io.modelcontextprotocol/clientCapabilities": can}
    headers = [*modern_headers(method, params.get("taskId", params.get("name"))), *key_header(key)]
    async with connected(hub.port) as wire:
        return await wire.request(encoded(legacy(method, {**params, "_meta": meta})), headers, path=path)


async def created(hub: HubProcess, server: str, **more: Any) -> str:
    params = {"name": f"{server}.slow", "arguments": {}, "task": {"ttl": 60_000}}
    id: str = (await ask_legacy(hub, "tools/call", params, **more))["result"]["task"]["taskId"]
    return id


async def seen(hub: HubProcess, server: str) -> list[list[Any]]:
    """What the server was asked about tasks, at all nodes."""
    found: list[list[Any]] = []
    for node in hub.each:
        response = await ask_legacy(node, "tools/call", {"name": f"{server}.seen", "arguments": {}})
        found += response["result"]["structuredContent"]["seen"]
    return found


# -- before 2026-07-28 ---------------------------------------------------------------------------------------------


async def test_a_task_is_asked_for_and_asked_about_where_it_is(hub: HubProcess) -> None:
    older, old = [await created(hub, server) for server in ("older", "old")]
    assert older != old
    for id in (older, old):
        state = (await ask_legacy(hub, "tasks/get", {"taskId": id}))["result"]
        assert (state["taskId"], state["status"], state["pollInterval"]) == (id, "working", 10)
    ended = (await ask_legacy(hub, "tasks/cancel", {"taskId": older}))["result"]
    assert (ended["taskId"], ended["status"]) == (older, "cancelled")
    assert (await ask_legacy(hub, "tasks/get", {"taskId": old}))["result"]["status"] == "working"
    assert all(own.startswith("task-") for _, own, _ in await seen(hub, "older"))


async def test_a_task_is_its_callers_alone(hub: HubProcess) -> None:
    id = await created(hub, "old")
    before = await seen(hub, "old")
    server, own, signature = id.split(".")
    tampered = [
        f"older.{own}.{signature}",
        f"{server}.{own}.{signature[:-1]}{'0' if signature[-1] != '0' else '1'}",
        f"{server}.{own}=.{signature}",
        f"{server}.{own}",
        "task-1",
        "",
        "old.%.x",
        "ö.ö.ö",
        "..",
    ]
    strangers = [(OTHER, id), *((ONE, changed) for changed in tampered)]
    answers = [
        (await ask_legacy(hub, method, {"taskId": wrong}, key=key))["error"]
        for key, wrong in strangers
        for method in ("tasks/get", "tasks/result", "tasks/cancel")
    ]
    assert {(error["code"], error["message"]) for error in answers} == {(-32602, "Task not found")}
    assert await seen(hub, "old") == before


async def test_a_task_is_known_on_the_path_of_its_own_server_and_of_no_other(hub: HubProcess) -> None:
    id = await created(hub, "old")
    assert (await ask_legacy(hub, "tasks/get", {"taskId": id}, path="/mcp/old"))["result"]["taskId"] == id
    assert (await ask_legacy(hub, "tasks/get", {"taskId": id}, path="/mcp/older"))["error"]["code"] == -32602


async def greeted(wire: Wire, capabilities: dict[str, Any]) -> str:
    hello = {"protocolVersion": "2025-11-25", "capabilities": capabilities, "clientInfo": {"name": "t", "version": "1"}}
    reply = await wire.request(encoded(legacy("initialize", hello)), [*BASE, *key_header(ONE)])
    return reply.headers["mcp-session-id"]


async def test_a_question_of_a_task_uses_the_callers_task_id(hub: HubProcess) -> None:
    async with connected(hub.port) as wire, connected(hub.port) as back:
        session = await greeted(wire, {"elicitation": {}})
        id = await created(hub, "old", session=session)
        headers = [*BASE, *key_header(ONE), ("mcp-session-id", session)]
        body = encoded(legacy("tasks/result", {"taskId": id}, id=7))
        response = await asked_then_answered(wire, back, body, headers)
    question, result = response
    assert question["method"] == "elicitation/create"
    assert question["params"]["_meta"] == {RELATED: {"taskId": id}}
    assert result["result"]["_meta"] == {RELATED: {"taskId": id}}
    assert result["result"]["structuredContent"] == {"heard": {"action": "accept", "content": {"ok": True}}}


async def asked_then_answered(wire: Wire, back: Wire, body: bytes, headers: Any) -> list[Any]:
    """Send a request, answer what is asked on its stream, and return both messages."""
    await wire.say(rendered("POST", "/mcp", [*headers, ("content-length", str(len(body)))], body))
    await wire.head()
    received: list[Any] = []
    async for chunk in wire.chunks():
        for message in Reply(200, {}, chunk).events:
            received.append(message)
            if "method" in message:
                answer = {
                    "jsonrpc": "2.0",
                    "id": message["id"],
                    "result": {"action": "accept", "content": {"ok": True}},
                }
                assert (await back.request(encoded(answer), headers)).status == 202
    return received


async def test_task_capabilities_match_those_of_the_servers(hub: HubProcess) -> None:
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    claimed: dict[str, Any] = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
    for path, tasks in (("/mcp", claimed), ("/mcp/old", claimed), ("/mcp/new", None), ("/mcp/brief", None)):
        response = (await ask_legacy(hub, "initialize", hello, path=path))["result"]["capabilities"]
        assert response.get("tasks") == tasks
        assert "extensions" not in response
    for path, extensions in (
        ("/mcp", {task_server.TASKS: {}}),
        ("/mcp/old", None),
        ("/mcp/new", {task_server.TASKS: {}}),
    ):
        response = (await ask_modern(hub, "server/discover", {}, path=path)).json["result"]["capabilities"]
        assert response.get("extensions") == extensions
        assert "tasks" not in response


async def test_methods_without_a_claimed_capability_are_not_found(hub: HubProcess) -> None:
    for method, path in (("tasks/update", "/mcp"), ("tasks/list", "/mcp/new"), ("tasks/list", "/mcp/brief")):
        assert (await ask_legacy(hub, method, {"taskId": "x"}, path=path))["error"]["code"] == -32601


@pytest.mark.parametrize("server", ["new", "brief"])
async def test_a_server_that_has_no_tasks_to_ask_for_is_not_asked_for_one(hub: HubProcess, server: str) -> None:
    params = {"name": f"{server}.slow", "arguments": {}, "task": {"ttl": 60_000}}
    assert (await ask_legacy(hub, "tools/call", params))["result"] == task_server.DONE
    assert (await ask_legacy(hub, "tasks/get", {"taskId": "x"}, path=f"/mcp/{server}"))["error"]["code"] == -32601


# -- 2026-07-28 ----------------------------------------------------------------------------------------------------


async def created_modern(hub: HubProcess, server: str) -> str:
    result = (await ask_modern(hub, "tools/call", {"name": f"{server}.slow", "arguments": {}})).json["result"]
    assert result["resultType"] == "task"
    id: str = result["taskId"]
    return id


async def test_a_modern_server_decides_and_its_task_is_asked_about_where_it_is(hub: HubProcess) -> None:
    newer, new = [await created_modern(hub, server) for server in ("newer", "new")]
    assert newer != new
    assert (await ask_modern(hub, "tasks/cancel", {"taskId": newer})).json["result"] == {"resultType": "complete"}
    received = {"q": {"result": {"action": "accept"}}}
    updated = await ask_modern(hub, "tasks/update", {"taskId": new, "inputResponses": received})
    assert updated.json["result"] == {"resultType": "complete"}
    states = [(await ask_modern(hub, "tasks/get", {"taskId": id})).json["result"] for id in (newer, new)]
    assert [(state["taskId"], state["status"]) for state in states] == [(newer, "cancelled"), (new, "completed")]
    assert states[1]["result"]["content"] == task_server.DONE["content"]
    assert ["tasks/update", "task-1", received] in await seen(hub, "new")


async def test_a_client_without_the_extension_gets_no_task(hub: HubProcess) -> None:
    called = await ask_modern(hub, "tools/call", {"name": "new.slow", "arguments": {}}, knows=False)
    assert called.json["result"]["content"] == task_server.DONE["content"]
    id = await created_modern(hub, "new")
    for asked in (id, "made up"):
        refused = await ask_modern(hub, "tasks/get", {"taskId": asked}, knows=False)
        assert (refused.status, refused.code) == (400, -32021)
        assert refused.json["error"]["data"] == {"requiredCapabilities": {"extensions": {task_server.TASKS: {}}}}


async def test_a_modern_task_is_its_callers_alone(hub: HubProcess) -> None:
    id = await created_modern(hub, "new")
    before = await seen(hub, "new")
    for key, wrong in ((OTHER, id), (ONE, id.replace("new.", "newer.")), (ONE, "task-1")):
        reply = await ask_modern(hub, "tasks/get", {"taskId": wrong}, key=key)
        assert (reply.status, reply.code, reply.json["error"]["message"]) == (400, -32602, "Task not found")
    assert await seen(hub, "new") == before


async def test_the_name_header_is_the_tasks(hub: HubProcess) -> None:
    id = await created_modern(hub, "new")
    body = encoded(legacy("tasks/get", {"taskId": id, "_meta": META}))
    async with connected(hub.port) as wire:
        reply = await wire.request(body, [*modern_headers("tasks/get", "another"), *key_header(ONE)])
        assert (reply.status, reply.code) == (400, -32020)
        # Not every client names a task there.
        reply = await wire.request(body, [*modern_headers("tasks/get"), *key_header(ONE)])
        assert (
            reply.json["error"]["message"]
            == "tasks/get needs a client with the extension io.modelcontextprotocol/tasks"
        )


@pytest.mark.parametrize("method", ["tasks/list", "tasks/result"])
async def test_methods_outside_the_extension_are_not_found(hub: HubProcess, method: str) -> None:
    reply = await ask_modern(hub, method, {"taskId": "x"})
    assert (reply.status, reply.code) == (404, -32601)


async def test_a_modern_caller_asks_an_earlier_server_for_no_task(hub: HubProcess) -> None:
    asked = await ask_modern(hub, "tools/call", {"name": "old.slow", "arguments": {}, "task": {}})
    assert asked.json["result"]["content"] == task_server.DONE["content"]
    assert "task" not in asked.json["result"]


# -- through the agent ---------------------------------------------------------------------------------------------


async def command(hub: HubProcess, server: str, method: str, params: dict[str, Any]) -> Any:
    """The A2A task that another caller's command ends as."""
    data = {"mcp_target_url": server, "mcp_method": method, "mcp_params": params}
    message = {"messageId": f"{server} {method}", "role": "ROLE_USER", "parts": [{"data": data}]}
    headers = [*BASE, *key_header(OTHER)]
    async with connected(hub.port) as wire:
        response = await wire.request(encoded(legacy("SendMessage", {"message": message})), headers, path="/a2a")
    return response.json["result"]["task"]


@pytest.mark.parametrize("server", ["old", "new"])
async def test_no_command_reaches_the_tasks_of_another_caller(hub: HubProcess, server: str) -> None:
    mine = await (created if server == "old" else created_modern)(hub, server)
    before = await seen(hub, server)
    can: dict[str, Any] = {"io.modelcontextprotocol/clientCapabilities": {"extensions": {task_server.TASKS: {}}}}
    numbers = range(1, 10)  # servers count their tasks, so one of these is it
    for id in (mine, *(f"task-{number}" for number in numbers)):
        for method in ("tasks/get", "tasks/result", "tasks/cancel", "tasks/update"):
            task = await command(hub, server, method, {"taskId": id, "_meta": can})
            assert task["status"]["state"] == "TASK_STATE_FAILED"
            assert task["artifacts"][0]["parts"][0]["data"]["mcp_error"]["data"]["kind"] == "request"
    assert await seen(hub, server) == before


async def test_a_command_asks_a_server_for_no_task(hub: HubProcess) -> None:
    params = {"name": "slow", "arguments": {}, "task": {"ttl": 60_000}}
    task = await command(hub, "old", "tools/call", params)
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    assert task["artifacts"][0]["parts"][0]["data"]["mcp_result"]["content"] == task_server.DONE["content"]


# -- over HTTP -----------------------------------------------------------------------------------------------------


class Handler(BaseHTTPRequestHandler):
    """A modern server's endpoint, which notes how its requests name what they are about."""

    server: Endpoint

    def do_POST(self) -> None:
        text = self.rfile.read(int(self.headers["content-length"]))
        self.server.requests.append(text)
        message = json.loads(text)
        if message["method"].startswith("tasks/"):
            self.server.named.append((message["params"]["taskId"], self.headers["mcp-name"]))
        body = encoded(self.server.tasks.take(message))
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nobody reads it."""


class Endpoint(ThreadingHTTPServer):
    """A modern server over HTTP."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.tasks = task_server.ModernServer()
        self.named: list[tuple[str, str | None]] = []
        self.requests: list[bytes] = []


@contextmanager
def endpoint() -> Iterator[Endpoint]:
    with Endpoint() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


async def test_towards_a_server_the_name_header_is_its_own_id(tmp_path: Path) -> None:
    with endpoint() as server:
        web = {"url": f"http://127.0.0.1:{server.server_port}/mcp", "type": "http"}
        async with serving(tmp_path, {"web": web}, callers=CALLERS, limits=PATIENT) as hub:
            id = await created_modern(hub, "web")
            state = (await ask_modern(hub, "tasks/get", {"taskId": id})).json["result"]
            assert (state["taskId"], state["status"]) == (id, "working")
        assert server.named == [("task-1", "task-1")]


async def test_a_command_does_not_write_the_hub_s_envelope(tmp_path: Path) -> None:
    forged = dict.fromkeys(META, "forged") | {"own": "mine"}
    params = {"name": "seen", "arguments": {}, "requestState": "forged", "inputResponses": {"q": {}}, "_meta": forged}
    with endpoint() as server:
        web = {"url": f"http://127.0.0.1:{server.server_port}/mcp", "type": "http"}
        async with serving(tmp_path, {"web": web}, callers=CALLERS, limits=PATIENT) as hub:
            task = await command(hub, "web", "tools/call", params)
            assert task["status"]["state"] == "TASK_STATE_COMPLETED"
        (called,) = [text for text in server.requests if b"tools/call" in text]
        assert b"mine" in called
        assert b"forged" not in called
        assert b"inputResponses" not in called
