"""T07: a stranger uses a known handle (of a session, a task, a context, an SSE stream, or an event id).

Answer: a handle is looked up among the caller's own, by tenant and name, and a session also by the key that opened
it; another's is answered as one that never was, to the byte, by the same code. Handles are random, of 128 bits or
more. There is no token to resume a WebSocket by: a device that comes again is a new conversation.

Beside this: tasks of the agent in every generation, its push settings and gRPC (`tests/frontends/test_a2a_owners.py`);
tasks of servers (`tests/frontends/test_tasks.py`); resumed streams (`tests/faults/test_resume.py`); and all of it in
made-up programs (T32).
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.frontends.test_sse import listening, request
from tests.frontends.wire import BASE, Reply, connected, encoded, key_header, legacy
from tests.hubs import HubProcess, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")

OWNER, OTHER = "the-key-of-ann-of-red-000", "the-key-of-ben-of-blue-00"
SECOND = "another-key-of-anns-00000"
CALLERS = {
    "ann": {"key": [OWNER, SECOND], "tenant": "red", "allow": ["*"]},
    "ben": {"key": OTHER, "tenant": "blue", "allow": ["*"]},
}
HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
NOBODYS = "A" * 32


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hub(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HubProcess]:
    async with serving(tmp_path_factory.mktemp("hub"), callers=CALLERS) as running:
        yield running


async def ask(
    hub: HubProcess, key: str, body: Any = None, *, method: str = "POST", path: str = "/mcp", **headers: str
) -> Reply:
    lines = [*BASE, *key_header(key), *((name.replace("_", "-"), value) for name, value in headers.items())]
    async with connected(hub.port) as wire:
        return await wire.request(b"" if body is None else encoded(body), lines, method=method, path=path)


def seen(reply: Reply, *words: str) -> tuple[int, dict[str, str], bytes]:
    """All that a caller can tell of an answer, but for what it wrote itself."""
    body = reply.body
    for word in words:
        body = body.replace(word.encode(), b"*")
    return reply.status, {name: value for name, value in reply.headers.items() if name != "date"}, body


async def session_of(hub: HubProcess, key: str) -> str:
    return (await ask(hub, key, legacy("initialize", HELLO))).headers["mcp-session-id"]


USES: dict[str, dict[str, Any]] = {
    "a call": {"body": legacy("tools/call", {"name": "builtin.echo", "arguments": {"text": "x"}})},
    "a list": {"body": legacy("tools/list")},
    "a notification": {"body": legacy("notifications/initialized", id=None)},
    "an answer": {"body": {"jsonrpc": "2.0", "id": 1, "result": {}}},
    "a batch": {"body": [legacy("ping")]},
    "listening": {"method": "GET"},
    "coming back": {"method": "GET", "last_event_id": "1.1"},
    "its end": {"method": "DELETE"},
}


@pytest.mark.parametrize("use", USES)
async def test_another_callers_session_looks_as_if_it_did_not_exist(hub: HubProcess, use: str) -> None:
    session = await session_of(hub, OWNER)
    theirs = await ask(hub, OTHER, **USES[use], mcp_session_id=session)
    assert seen(theirs, session) == seen(await ask(hub, OTHER, **USES[use], mcp_session_id=NOBODYS), NOBODYS)
    assert theirs.status == 404
    assert "result" in (await ask(hub, OWNER, legacy("ping"), mcp_session_id=session)).json, "its owner has it still"


@pytest.mark.parametrize(("key", "path"), [(SECOND, "/mcp"), (OWNER, "/mcp/builtin")])
async def test_a_session_is_of_the_key_and_of_the_path_that_it_was_opened_by(
    hub: HubProcess, key: str, path: str
) -> None:
    """What one key opened ends with that key, and not with another of the same caller."""
    session = await session_of(hub, OWNER)
    other = await ask(hub, key, legacy("ping"), path=path, mcp_session_id=session)
    assert other.status == 404
    assert seen(other) == seen(await ask(hub, key, legacy("ping"), path=path, mcp_session_id=NOBODYS))


async def test_another_callers_sse_address_looks_as_if_it_did_not_exist(hub: HubProcess) -> None:
    async with listening(hub, OWNER) as stream:
        unknown = f"/messages?sessionId={NOBODYS}"
        for method, body in (("POST", request(1, "ping")), ("DELETE", None)):
            theirs = await ask(hub, OTHER, body, method=method, path=stream.endpoint)
            assert seen(theirs) == seen(await ask(hub, OTHER, body, method=method, path=unknown))
            assert theirs.status == 404
        await stream.post(request(7, "ping"))
        assert await stream.message() == {"jsonrpc": "2.0", "id": 7, "result": {}}, "and nothing else was told there"


async def test_another_callers_context_shows_nothing_of_theirs(hub: HubProcess) -> None:
    def message(text: str, **more: str) -> dict[str, Any]:
        said = {"messageId": text, "role": "ROLE_USER", "parts": [{"text": text}], **more}
        return legacy("SendMessage", {"message": said})

    made = (await ask(hub, OWNER, message("a secret"), path="/a2a", a2a_version="1.0")).json["result"]["task"]
    context = made["contextId"]
    theirs = await ask(hub, OTHER, message("another", contextId=context), path="/a2a", a2a_version="1.0")
    assert b"a secret" not in theirs.body
    for key, text in ((OWNER, b"a secret"), (OTHER, b"another")):
        listed = await ask(hub, key, legacy("ListTasks", {"contextId": context}), path="/a2a", a2a_version="1.0")
        assert listed.json["result"]["totalSize"] == 1
        assert text in listed.body


async def test_a_task_of_the_hubs_own_is_its_callers_alone(hub: HubProcess) -> None:
    own, other = await session_of(hub, OWNER), await session_of(hub, OTHER)
    params = {"name": "builtin.echo", "arguments": {"text": "a secret"}, "task": {"ttl": 60_000}}
    made = await ask(hub, OWNER, legacy("tools/call", params), mcp_session_id=own)
    id = made.json["result"]["task"]["taskId"]
    for method in ("tasks/get", "tasks/result", "tasks/cancel"):
        theirs = await ask(hub, OTHER, legacy(method, {"taskId": id}), mcp_session_id=other)
        nobodys = await ask(hub, OTHER, legacy(method, {"taskId": "0" * 32}), mcp_session_id=other)
        assert seen(theirs, id) == seen(nobodys, "0" * 32)
    response = await ask(hub, OWNER, legacy("tasks/result", {"taskId": id}), mcp_session_id=own)
    assert b"a secret" in response.body


async def test_handles_are_of_128_bits_or_more_and_never_the_same(hub: HubProcess) -> None:
    sessions = [await session_of(hub, OWNER) for _ in range(50)]
    assert all(re.fullmatch(r"[\w-]{32}", id) for id in sessions), "24 random bytes in base64"
    message = {"message": {"role": "ROLE_USER", "parts": [{"text": "?"}]}}
    tasks: list[str] = []
    for number in range(50):
        body = legacy("SendMessage", {"message": {**message["message"], "messageId": f"h{number}"}})
        response = (await ask(hub, OWNER, body, path="/a2a", a2a_version="1.0")).json["result"]["task"]
        tasks += [response["id"], response["contextId"]]
    assert all(re.fullmatch(r"[0-9a-f]{32}|[0-9a-f-]{36}", id) for id in tasks)
    for handles in (sessions, tasks):
        assert len(set(handles)) == len(handles)
        for at in range(0, 32, 8):
            assert len({id[at : at + 8] for id in handles}) > len(handles) * 0.9, "no part of one is always the same"
