"""T05: two callers use one id at the same time, and one is given the other's answer.

Answer: an id of a caller's never leaves its own connection; towards a server every request has an id of the hub's,
and an answer is delivered by the entry that this stands for. Shown by callers of two tenants whose every call has
`id: 1`, over HTTP without and with a session (in which the same id is under way many times at once) and by devices
over WebSockets, to servers by stdio, by WebSocket and by a WebSocket that they dialled: 5,000 calls here, a million
with ISTHMUS_SOAK=1. Odd ids, and servers over HTTP, are `tests/faults/test_identity.py`.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from websockets.asyncio.client import connect

from tests.faults.caller import Caller
from tests.faults.watching import eventually
from tests.hubs import CHECKOUT, HubProcess, serving
from tests.relay.peers import agent_call_url, agent_url
from tests.relay.tokens import KEY

CALLS = 1_000_000 if os.environ.get("ISTHMUS_SOAK") == "1" else 5_000
KEYS = {"acme": "the-key-of-acme-0123456789", "blue": "the-key-of-blue-0123456789"}
"""The tenants, which have one caller each."""
WORKERS = 24
"""Requests that are under way at the same time, for each of the four callers over HTTP."""
WINDOW = 24
"""The same for each of the devices."""
SHARE = 10
"""One call in so many is a device's."""
WORD = re.compile(rb"(?:acme|blue)-\w+-\d{3}-\d{7}")
SERVER = [sys.executable, str(CHECKOUT / "tests" / "security" / "shuffling_server.py")]


@asynccontextmanager
async def peer(*words: str) -> AsyncIterator[int]:
    """A server of its own process; the port that it listens on."""
    process = await asyncio.create_subprocess_exec(*SERVER, *words, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        async with asyncio.timeout(30):
            port = int((await process.stdout.readline()).split()[1])
        yield port
    finally:
        process.kill()
        await process.wait()


async def call_on(caller: Caller, tenant: str, worker: int, calls: int, tools: Sequence[str]) -> int:
    """Call one after the other; how many came back with the caller's own word."""
    chance = random.Random(f"{tenant}{worker}")
    # Written once: it is the hub that is to be busy here.
    asked = [caller.call_bytes(tool, {"text": f"{tenant}-{caller.era}-{worker:03d}-0000000"}, id="1") for tool in tools]
    for at in range(calls):
        number = b"-%07d" % at
        answer = await caller.send(chance.choice(asked).replace(b"-0000000", number))
        words = WORD.findall(answer.body)
        assert words == [f"{tenant}-{caller.era}-{worker:03d}".encode() + number], answer.body
        assert b'"id":1,' in answer.body
    return calls


async def call_by_device(port: int, agent: str, calls: int) -> int:
    """Have many calls of one id under way on one socket; all that comes back must be what was asked there."""
    asked: set[str] = set()
    async with connect(agent_call_url(port, agent), proxy=None) as socket:
        sent = 0
        while sent < calls or asked:
            while sent < calls and len(asked) < WINDOW:
                word = f"{agent}-device-{sent}"
                params = {"name": "echo", "arguments": {"text": word}}
                await socket.send(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}))
                asked.add(word)
                sent += 1
            answer = json.loads(await socket.recv())
            if "method" not in answer:
                assert answer["id"] == 1
                asked.remove(answer["result"]["content"][0]["text"])
    return calls


async def has_tools(port: int, tools: Sequence[str]) -> bool:
    caller = Caller(port, key=KEYS["acme"])
    try:
        return set(tools) <= {tool["name"] for tool in (await caller.list_tools())["tools"]}
    finally:
        caller.hang_up()


async def crowd(hub: HubProcess, tools: Sequence[str]) -> int:
    """Everybody at once; how many calls were answered."""
    people = {
        (tenant, era): Caller(hub.port, key=key, era=era)
        for tenant, key in KEYS.items()
        for era in ("modern", "legacy")
    }
    for (_, era), person in people.items():
        if era == "legacy":
            await person.initialize()
    each = CALLS * (SHARE - 1) // SHARE // (len(people) * WORKERS) + 1
    counts = await asyncio.gather(
        *(
            call_on(person, tenant, worker, each, tools)
            for (tenant, _), person in people.items()
            for worker in range(WORKERS)
        ),
        *(call_by_device(hub.port, agent, CALLS // SHARE // len(KEYS)) for agent in KEYS),
    )
    for person in people.values():
        person.hang_up()
    return sum(counts)


@pytest.mark.timeout(7200 if CALLS > 5_000 else 180)
async def test_no_answer_is_delivered_to_another_caller_with_the_same_id(tmp_path: Path) -> None:
    callers = {name: {"key": key, "tenant": name, "allow": ["*"]} for name, key in KEYS.items()}
    async with AsyncExitStack() as stack:
        port = await stack.enter_async_context(peer("listen"))
        servers = {
            "pipe": {"command": SERVER[0], "args": [SERVER[1], "stdio"], "max_queued": 1000},
            "socket": {"url": f"ws://127.0.0.1:{port}/mcp", "max_queued": 1000},
        }
        # A tenth of a second is what the slowest answers take; nobody is to be refused for want of a slot here.
        hub = await stack.enter_async_context(
            serving(tmp_path, servers, callers=callers, relay={"key": KEY}, limits={"max_queued": 1000})
        )
        for agent in KEYS:
            await stack.enter_async_context(peer("dial", agent_url(hub.port, agent, "dialled")))
        tools = ["pipe.echo", "socket.echo", *(f"{agent}_dialled.echo" for agent in KEYS)]
        await eventually(lambda: has_tools(hub.port, tools), "all servers are there", within=30.0)
        assert await crowd(hub, tools) >= CALLS
