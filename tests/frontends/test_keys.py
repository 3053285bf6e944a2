"""Keys that are made, rotated, revoked and expire while a hub runs: it goes by them at once, and so do open streams."""

from __future__ import annotations

import asyncio
import io
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import msgspec

from isthmus.app.caller_identity import CHECK_SECONDS
from isthmus.app.relay import RECHECK_SECONDS
from isthmus.app.relay_keys import CHECK_SECONDS as REVOKED_SECONDS
from isthmus.app.shared_state import key_store
from isthmus.cli.main import main
from isthmus.config.load import load
from tests.frontends.test_a2a import envelope, run
from tests.frontends.wire import (
    BASE,
    SECONDS,
    connected,
    encoded,
    key_header,
    legacy,
    modern,
    modern_headers,
    rendered,
    until,
)
from tests.hubs import PATIENT, TRUSTED, HubProcess, Raw, serving, stdio
from tests.tck.server import command

HELLO = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
CALLERS = {"me": {"key": "the-key-of-me-0123456789", "allow": ["*"]}}
LISTEN = {"notifications": {"toolsListChanged": True}}


@dataclass
class Streams:
    """Everything that one key opened: each kind of stream that a frontend keeps open. It returns those that ended."""

    url: str
    key: str
    ended: set[str] = field(default_factory=set)
    session: str = ""

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Streams]:
        async with AsyncExitStack() as stack:
            client = httpx2.AsyncClient(headers=dict(key_header(self.key)), timeout=SECONDS, verify=TRUSTED)
            await stack.enter_async_context(client)
            hello = await client.post(f"{self.url}/mcp", json=legacy("initialize", HELLO), headers=dict(BASE[1:]))
            self.session = hello.headers["mcp-session-id"]
            listen = encoded(modern("subscriptions/listen", LISTEN))
            requests: dict[str, dict[str, Any]] = {
                "session": {"method": "GET", "url": "/mcp", "headers": {"mcp-session-id": self.session}},
                "changes": {
                    "method": "POST",
                    "url": "/mcp",
                    "content": listen,
                    "headers": dict(modern_headers("subscriptions/listen")[1:]),
                },
                "sse": {"method": "GET", "url": "/sse"},
                "task": {"method": "POST", "url": "/a2a", "json": envelope("SendStreamingMessage", run("h.hold"))},
            }
            for name, request in requests.items():
                await self._begin(stack, client, name, request)
            yield self

    async def _begin(self, stack: AsyncExitStack, client: httpx2.AsyncClient, name: str, request: Any) -> None:
        request["url"] = self.url + request["url"]
        request["headers"] = {"accept": "application/json, text/event-stream", **request.get("headers", {})}
        answer = await stack.enter_async_context(client.stream(**request))
        assert (answer.status_code, answer.headers["content-type"]) == (200, "text/event-stream"), name
        lines = answer.aiter_lines()
        if name != "session":  # on which nothing is said before there is something
            await anext(lines)
        follower = asyncio.ensure_future(self._follow(name, lines))
        stack.push_async_callback(_cancelled, follower)

    async def _follow(self, name: str, lines: AsyncIterator[str]) -> None:
        async for _ in lines:
            pass
        self.ended.add(name)

    async def until_ended(self) -> None:
        async def have_ended() -> bool:
            return self.ended == {"session", "changes", "sse", "task"}

        await until(have_ended)


async def _cancelled(task: asyncio.Future[None]) -> None:
    task.cancel()
    await asyncio.wait({task})


def token(folder: Path, *words: str) -> Any:
    """What `isthmus token` prints; another process than the hub's, as it is with people."""
    with redirect_stdout(io.StringIO()) as out:
        assert main(["token", *words, "--config", str(folder / "isthmus.json")]) == 0
    return json.loads(out.getvalue()) if "--json" in words else out.getvalue()


async def is_in(hub: HubProcess, key: str | None) -> bool:
    """Whether a key is accepted, at all nodes."""
    return await _accepted(hub, key) == {True}


async def is_out(hub: HubProcess, key: str | None) -> bool:
    """Whether a key is refused, at all nodes."""
    return await _accepted(hub, key) == {False}


async def _accepted(hub: HubProcess, key: str | None) -> set[bool]:
    found = set()
    for node in hub.each:
        async with Raw(node.url, key=key) as caller:
            found.add((await caller.post(legacy("ping"))).status_code == 200)
    return found


def test_a_key_is_looked_after_more_often_than_once_a_second() -> None:
    """How soon is shown by this; a busy machine may be late."""
    assert 2 * CHECK_SECONDS < 1
    assert RECHECK_SECONDS + REVOKED_SECONDS < 1


async def test_a_running_hub_goes_by_its_keys(tmp_path: Path) -> None:
    servers = {"h": stdio(command(ledger=tmp_path / "ledger"))}
    # Calls that run are not ended with their keys: what still holds would hold up the end.
    async with serving(tmp_path, servers, limits={**PATIENT, "drain_seconds": 0.1}) as hub:
        base = hub.url.removesuffix("/mcp")
        assert await is_in(hub, None)

        reader = token(tmp_path, "create", "reader", "--allow", "*", "--json")["key"]
        await until(lambda: is_out(hub, None))
        await until(lambda: is_in(hub, reader))
        stayer = token(tmp_path, "create", "stayer", "--allow", "*", "--json")["key"]
        await until(lambda: is_in(hub, stayer))

        async with Streams(base, reader).opened() as first, Streams(base, stayer).opened() as second:
            token(tmp_path, "revoke", "reader")
            await first.until_ended()
            await until(lambda: is_out(hub, reader))
            assert not second.ended

            new = token(tmp_path, "rotate", "stayer", "--overlap", "0s", "--json")["key"]
            await second.until_ended()
            await until(lambda: is_out(hub, stayer))
            await until(lambda: is_in(hub, new))

        async with Streams(base, new).opened() as third:
            _expire_now(tmp_path)
            await third.until_ended()
            await until(lambda: is_out(hub, new))
            assert await is_out(hub, None)
        said = "".join(hub.said)
        assert not [key for key in (reader, stayer, new) if key in said]


def _expire_now(folder: Path) -> None:
    """Have every key expire, as if its time had come."""
    now = time.time() + 0.3
    store = key_store(load(folder / "isthmus.json", os.environ, folder, folder))
    store.change(lambda keys: tuple(msgspec.structs.replace(key, expires_at=now) for key in keys))


async def test_a_body_that_outlasts_its_key_is_rejected(tmp_path: Path) -> None:
    """A request may begin with a valid key, and its body may arrive after the key was revoked."""
    json_headers = [("content-type", "application/json"), ("accept", "application/json, text/event-stream")]
    paths = {
        "/mcp": (modern_headers("subscriptions/listen")[1:], encoded(modern("subscriptions/listen", LISTEN))),
        "/v1/tools/h.echo/call": (json_headers, b"{}"),
        "/a2a": (json_headers, encoded(envelope("SendMessage", run("h.echo")))),
    }
    async with serving(tmp_path, {}, limits=PATIENT) as hub, AsyncExitStack() as stack:
        key = token(tmp_path, "create", "reader", "--allow", "*", "--json")["key"]
        await until(lambda: is_in(hub, key))
        stream = await stack.enter_async_context(connected(hub.port))
        await stream.say(rendered("GET", "/sse", [*BASE[:1], *key_header(key)]))
        await stream.head()
        address = (await anext(stream.chunks())).decode().partition("data: ")[2].strip()
        paths[address] = (json_headers, encoded(legacy("ping")))
        slow = {}
        for path, (headers, body) in paths.items():
            wire = slow[path] = await stack.enter_async_context(connected(hub.port))
            lines = [*BASE[:1], *headers, *key_header(key), ("transfer-encoding", "chunked")]
            await wire.say(rendered("POST", path, lines, b"%x\r\n%b\r\n" % (len(body) - 1, body[:-1])))
        token(tmp_path, "revoke", "reader")
        await until(lambda: is_out(hub, key))
        for path, wire in slow.items():
            await wire.say(b"1\r\n}\r\n0\r\n\r\n")
            assert (path, (await wire.reply()).status) == (path, 401)


SLOW = """
import json, pathlib, sys
asked, may_answer = map(pathlib.Path, sys.argv[1:])
for line in sys.stdin:
    heard = json.loads(line)
    if "id" not in heard:
        continue
    able = {"resources": {"subscribe": True}}
    results = {
        "initialize": {
            "protocolVersion": "2025-11-25",
            "capabilities": able,
            "serverInfo": {"name": "s", "version": "1"},
        },
        "resources/list": {"resources": [{"uri": "x:1", "name": "one"}]},
        "resources/templates/list": {"resourceTemplates": []},
        "resources/subscribe": {},
    }
    if heard["method"] == "resources/subscribe":
        asked.touch()
        may_answer.read_bytes()  # a pipe, which the test opens in good time
    found = results.get(heard["method"])
    body = {"error": {"code": -32601, "message": "no"}} if found is None else {"result": found}
    print(json.dumps({"jsonrpc": "2.0", "id": heard["id"], **body}), flush=True)
"""
"""A server that takes its time to agree that one of its resources is followed."""


async def test_a_stream_that_a_key_was_about_to_open_ends_with_the_key(tmp_path: Path) -> None:
    script, asked, may_answer = (tmp_path / name for name in ("slow.py", "asked", "may_answer"))
    script.write_text(SLOW)
    os.mkfifo(may_answer)
    servers = {"s": stdio([sys.executable, str(script), str(asked), str(may_answer)])}

    async def is_asked() -> bool:
        return asked.exists()

    async with serving(tmp_path, servers, limits=PATIENT, callers=CALLERS) as hub, connected(hub.port) as wire:
        key = token(tmp_path, "create", "guest", "--allow", "*", "--json")["key"]
        await until(lambda: is_in(hub, key))
        body = encoded(modern("subscriptions/listen", {"notifications": {"resourceSubscriptions": ["x:1"]}}))
        lines = [*modern_headers("subscriptions/listen"), *key_header(key), ("content-length", str(len(body)))]
        await wire.say(rendered("POST", "/mcp", lines, body))
        await until(is_asked)
        token(tmp_path, "revoke", "guest")
        await until(lambda: is_out(hub, key))
        may_answer.write_bytes(b"")
        assert (await wire.head())[0] == 200
        async with asyncio.timeout(SECONDS):
            assert len([chunk async for chunk in wire.chunks()]) == 2, "what is agreed on, and the end"
