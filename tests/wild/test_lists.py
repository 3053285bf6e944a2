"""Servers with lists that are huge, circular or always changing: bounded work, and right answers."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from tests.conftest import Ledger, Spawn
from tests.fork_server import quick_isthmus
from tests.hubs import environment, serving, stdio
from tests.matrix.field import until_complete
from tests.peers.client_sdk2 import Listener, client_over_http
from tests.peers.launch import command

OWN = {"pay", "echo", "meta", "grow"}
"""The tools that a raw server has in any mode."""

SLACK = 5
"""Listings that are not about changes: the first, and those just before and after the counted time."""


async def all_tools(client: Client) -> list[str]:
    """Every name, page by page."""
    page = await client.list_tools()
    names = [tool.name for tool in page.tools]
    while page.next_cursor:
        page = await client.list_tools(cursor=page.next_cursor)
        names += [tool.name for tool in page.tools]
    return names


def readings(ledger: Ledger) -> int:
    """How often a restless server was asked for its list."""
    return sum("listed_at" in line for line in ledger.lines())


async def doctor(folder: Path) -> str:
    """What the doctor says of the servers in the configuration there."""
    process = await asyncio.create_subprocess_exec(
        *quick_isthmus("doctor", "--config", str(folder / "isthmus.json")),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        env=environment({"COLUMNS": "200"}),
        cwd=folder,
    )
    async with asyncio.timeout(30):
        said, _ = await process.communicate()
    return said.decode()


@pytest.mark.parametrize("kind", ["cyclic", "circle"])
async def test_cursors_in_a_circle_are_followed_once(kind: str, tmp_path: Path) -> None:
    servers = {"round": stdio(command("raw_server", "--mode", f"lying_list:{kind}"))}
    async with serving(tmp_path, servers) as hub:
        await until_complete(hub.url)
        response = await doctor(tmp_path)
        async with client_over_http(hub.url_of("round")) as client:
            assert set(await all_tools(client)) == OWN
            assert not (await client.call_tool("echo", {"text": "still here"})).is_error
    assert "circle" in response


@pytest.mark.one_process("it counts how often one process reads a list; each node reads it for itself")
async def test_a_list_that_changes_a_thousand_times_a_second_is_read_once_a_second(
    tmp_path: Path, spawn: Spawn
) -> None:
    """Over every carrier at the same time: what it takes is waiting."""
    ledgers = {carrier: Ledger(tmp_path / carrier) for carrier in ("stdio", "http", "sse", "websocket")}
    entries = {carrier: await restless(carrier, ledger, spawn) for carrier, ledger in ledgers.items()}
    async with serving(tmp_path, entries) as hub:
        await until_complete(hub.url)
        await asyncio.gather(*(follow(hub.url_of(carrier), ledger) for carrier, ledger in ledgers.items()))


async def restless(carrier: str, ledger: Ledger, spawn: Spawn) -> dict[str, Any]:
    """The entry for a server whose list never stands still."""
    options = ("--mode", "churn:1000", "--ledger", str(ledger.path), "--era", "legacy")
    if carrier == "stdio":
        return stdio(command("raw_server", *options))
    peer = await spawn("raw_server", *options, "--transport", carrier)
    return {"url": {"http": peer.url, "sse": peer.at("/sse"), "websocket": peer.socket_url}[carrier]}


async def follow(url: str, ledger: Ledger) -> None:
    """Hear of three changes, with a call after each, and count what that cost the server."""
    notified = Listener()
    async with client_over_http(url, mode="legacy", listener=notified) as client:
        started, known = time.monotonic(), readings(ledger)
        async with asyncio.timeout(30):
            for _ in range(3):
                await notified.changed.wait()
                notified.changed.clear()
                assert not (await client.call_tool("echo", {"text": "in between"})).is_error
        described = {tool.name: tool.description for tool in (await client.list_tools()).tools}
        received, read, elapsed = len(notified.messages), readings(ledger) - known, time.monotonic() - started

    # The server announced a thousand times as much; each of these would have been another reading of its list.
    assert read <= elapsed + SLACK, url
    assert received <= elapsed + SLACK, url
    assert "has changed 0 times" not in str(described["turn"]), url
