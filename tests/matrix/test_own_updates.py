"""A caller with its own process of a server gets the notifications of that process, once; other callers get none."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import ElicitResult

from tests.faults.event_listener import listening
from tests.faults.watching import eventually, is_alive
from tests.hubs import PATIENT, HubProcess, Raw, serving, stdio
from tests.matrix.field import until_complete
from tests.matrix.notebook_server import MARK, PAGE
from tests.peers.forking import quickly
from tests.peers.launch import mcp1_python
from tests.peers.npm_servers import everything_over_http, npm_command
from tests.peers.surveyor import MessageListener, subscribed

Mode = Literal["legacy", "2026-07-28"]
Carrier = Literal["stdio", "sse", "streamableHttp"]
MODES: tuple[Mode, ...] = ("legacy", "2026-07-28")
HERE = Path(__file__).parent
NOTIFICATION_SECONDS = 45.0
"""A notification that takes longer is not coming."""
DOCUMENT = "demo://resource/static/document/architecture.md"
CALLERS = {name: {"key": f"key-of-{name}-012345", "allow": ["one"]} for name in ("ann", "bob")}


async def decline(*_: Any) -> ElicitResult:
    return ElicitResult(action="decline")


ANSWERS: dict[str, Any] = {"elicitation_callback": decline}


class Notebook:
    """A hub before such a server, and what the server's processes were asked, in order."""

    def __init__(self, hub: HubProcess, ledger: Path) -> None:
        self.hub = hub
        self.url = hub.url_of("one")
        self._ledger = ledger

    def lines(self) -> list[list[str]]:
        return [line.split() for line in self._ledger.read_text().splitlines()]

    def pids(self) -> list[int]:
        """Its processes, the oldest first: that is the one which everybody shares."""
        return [int(pid) for pid, word, _ in self.lines() if word == "start"]

    def asked(self, pid: int, *words: str) -> list[str]:
        """What one process was asked, of these."""
        return [word for who, word, _ in self.lines() if int(who) == pid and word in words]

    def is_given_up(self, pid: int) -> bool:
        """Whether a process received a subscription and then an unsubscription."""
        return self.asked(pid, "subscribe", "unsubscribe") == ["subscribe", "unsubscribe"]


@asynccontextmanager
async def notebook(folder: Path, *, callers: Any = None, **more: Any) -> AsyncIterator[Notebook]:
    ledger = folder / "asked"
    entry = stdio([sys.executable, str(HERE / "notebook_server.py"), str(ledger)], **more)
    tables = {"limits": PATIENT, **({} if callers is None else {"callers": callers})}
    async with asyncio.timeout(2 * NOTIFICATION_SECONDS), serving(folder, {"one": entry}, **tables) as hub:
        if callers is None:
            await until_complete(hub.url_of("one"))
        yield Notebook(hub, ledger)


@asynccontextmanager
async def able(url: str, mode: Mode, key: str | None = None) -> AsyncIterator[tuple[Client, MessageListener]]:
    """A client that can be asked something, and so has a process of its own."""
    ear, headers = MessageListener(), {} if key is None else {"authorization": f"Bearer {key}"}
    async with AsyncExitStack() as stack:
        http = httpx2.AsyncClient(headers=headers, trust_env=False, timeout=NOTIFICATION_SECONDS)
        await stack.enter_async_context(http)
        transport = streamable_http_client(url, http_client=http)
        made = Client(transport, mode=mode, message_handler=ear, cache=None, **ANSWERS)
        yield await stack.enter_async_context(made), ear


@asynccontextmanager
async def follower(
    url: str, mode: Mode, *uris: str, key: str | None = None
) -> AsyncIterator[tuple[Client, MessageListener]]:
    """The same, subscribed to these."""
    async with able(url, mode, key) as (client, ear), AsyncExitStack() as stack:
        await client.list_tools()
        if mode == "legacy":
            for uri in uris:
                await subscribed(client, uri)
        else:
            await stack.enter_async_context(client.listen(resource_subscriptions=list(uris)))
        yield client, ear


async def touch(client: Client, uri: str = PAGE) -> int:
    """Have a process write on a page; which one that was."""
    result = await client.call_tool("touch", {"uri": uri})
    return int(getattr(result.content[0], "text", ""))


async def marked(client: Client, ear: MessageListener) -> list[str]:
    """The notifications of a client so far; those on their way arrive before that of the mark."""
    await touch(client, MARK)
    await ear.wait_for(MARK, 0)
    return [word for word in ear.announced if word != MARK]


@pytest.mark.parametrize("mode", MODES)
async def test_an_update_that_only_the_callers_own_process_knows_reaches_only_that_caller(
    tmp_path: Path, mode: Mode
) -> None:
    async with (
        notebook(tmp_path) as server,
        follower(server.url, mode, PAGE, MARK) as (client, ear),
        listening(server.url, [PAGE]) as everybody,
    ):
        own = await touch(client)
        await ear.wait_for(PAGE, 0)
        shared, *others = server.pids()
        assert others == [own]
        # The subscription was there before the call that made the process.
        assert server.asked(own, "subscribe", "touch") == ["subscribe", "subscribe", "touch"]
        async with Raw(server.url) as caller:
            answer = await caller.call("touch")
        assert int(answer["result"]["content"][0]["text"]) == shared
        await everybody.wait_for(PAGE)
        assert await marked(client, ear) == [PAGE]
        assert everybody.received.count(PAGE) == 1


@pytest.mark.parametrize("mode", MODES)
async def test_an_update_that_both_processes_send_arrives_once(tmp_path: Path, mode: Mode) -> None:
    async with (
        notebook(tmp_path) as server,
        follower(server.url, mode, PAGE, MARK) as (client, ear),
        listening(server.url, [PAGE]) as everybody,
    ):
        shared, own = server.pids()[0], await touch(client)
        await ear.wait_for(PAGE, 0)
        os.kill(shared, signal.SIGUSR1)
        await everybody.wait_for(PAGE)  # the hub has heard it
        os.kill(own, signal.SIGUSR1)
        await ear.wait_for(PAGE, 1)
        assert await marked(client, ear) == [PAGE, PAGE]


async def test_a_caller_without_a_process_gets_the_common_updates(tmp_path: Path) -> None:
    async with notebook(tmp_path) as server, follower(server.url, "legacy", PAGE) as (_, ear):
        os.kill(server.pids()[0], signal.SIGUSR1)
        await ear.wait_for(PAGE, 0)


@pytest.mark.parametrize("mode", MODES)
async def test_after_its_process_is_lost_a_caller_is_notified_once_and_follows_the_next_one(
    tmp_path: Path, mode: Mode
) -> None:
    async with notebook(tmp_path) as server, follower(server.url, mode, PAGE, MARK) as (client, ear):
        first = await touch(client)
        await ear.wait_for(PAGE, 0)
        os.kill(first, signal.SIGKILL)
        await ear.wait_for(PAGE, 1)
        second = await touch(client)
        await ear.wait_for(PAGE, 2)
        assert second not in {first, server.pids()[0]}
        assert server.asked(second, "subscribe", "touch") == ["subscribe", "subscribe", "touch"]
        assert await marked(client, ear) == [PAGE] * 3


@pytest.mark.parametrize("mode", MODES)
async def test_subscriptions_after_the_first_call_use_the_callers_own_process(tmp_path: Path, mode: Mode) -> None:
    async with notebook(tmp_path) as server:
        async with able(server.url, mode) as (client, ear):
            own = await touch(client)
            async with AsyncExitStack() as stack:
                if mode == "legacy":
                    await subscribed(client, PAGE)
                else:
                    await stack.enter_async_context(client.listen(resource_subscriptions=[PAGE]))
                assert await touch(client) == own
                await ear.wait_for(PAGE, 0)
        shared = server.pids()[0]
        await eventually(partial(server.is_given_up, shared), "the shared process is unsubscribed")
        if mode == "2026-07-28":
            await eventually(partial(server.is_given_up, own), "the caller's process is unsubscribed")
        else:  # a process that ends with its session needs no unsubscription, and at another node it may get none
            await eventually(lambda: not is_alive(own), "the caller's process has ended")


async def test_a_caller_with_a_link_of_its_own_gets_it_without_client_capabilities(tmp_path: Path) -> None:
    async with notebook(tmp_path, callers=CALLERS, isolation="caller") as server:
        url = server.url
        async with (
            Raw(url, key="key-of-ann-012345") as ann,
            Raw(url, key="key-of-bob-012345") as bob,
            listening(url, [PAGE], key="key-of-ann-012345") as anns,
            listening(url, [PAGE], key="key-of-bob-012345") as bobs,
        ):
            assert anns.honoured == bobs.honoured == [PAGE]
            for caller, ear in ((ann, anns), (bob, bobs)):
                await caller.call("touch")
                await ear.wait_for(PAGE)
            assert (anns.received.count(PAGE), bobs.received.count(PAGE)) == (1, 1)


# -- official clients and servers ----------------------------------------------------------------------------------


async def run(url: str, uri: str, tool: str) -> dict[str, Any]:
    """The notifications and texts that two clients of mcp 1.x received."""
    words = quickly([mcp1_python(), str(HERE / "following_sdk1.py")])
    process = await asyncio.create_subprocess_exec(
        *words, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    try:
        said, _ = await process.communicate(json.dumps({"url": url, "uri": uri, "tool": tool}).encode())
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, "the mcp 1.x client broke off; its reason is on stderr"
    response: dict[str, Any] = json.loads(said)
    return response


async def test_two_sessions_of_the_earlier_sdk_each_get_updates_of_their_own_process(tmp_path: Path) -> None:
    async with notebook(tmp_path) as server:
        assert await run(server.url, PAGE, "touch") == {"notified": [1, 1], "read": ["1", "1"]}
        assert len(server.pids()) == 3


@asynccontextmanager
async def everything(carrier: Carrier) -> AsyncIterator[dict[str, Any]]:
    """How the reference server is configured that is reached so."""
    if carrier == "stdio":
        yield stdio(npm_command("everything"))
        return
    async with everything_over_http(carrier) as peer:
        yield {"url": peer.at("/sse") if carrier == "sse" else peer.url}


@pytest.mark.parametrize("carrier", get_args(Carrier))
async def test_the_reference_server_notifies_its_followers_on_the_links_of_their_calls(
    tmp_path: Path, carrier: Carrier
) -> None:
    async with (
        asyncio.timeout(2 * NOTIFICATION_SECONDS),
        everything(carrier) as entry,
        serving(tmp_path, {"one": entry}, limits=PATIENT) as hub,
    ):
        await until_complete(hub.url_of("one"))
        response = await run(hub.url_of("one"), DOCUMENT, "toggle-subscriber-updates")
        assert min(response["notified"]) >= 1, response  # it tells every few seconds from then on
