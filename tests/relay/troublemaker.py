"""Misbehaves at a hub from a process of its own, so that its cost does not distort the measurements.

`python -m tests.relay.troublemaker PORT` takes lines: `start NAME AGENT` makes that trouble in the agent's name and
answers `begun` once it has, `stop LEAST` goes on until so much was made altogether and answers how much that was.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TypeAlias

from tests.relay.peers import (
    Device,
    Manner,
    RawServer,
    agent_call_url,
    agent_url,
    device,
    device_url,
    raw_server,
    server_url,
)
from tests.relay.raw_socket import BINARY, TEXT, frame, raw_socket
from tests.relay.tokens import python_quoted, python_token, sealed

MIB = 1 << 20
NICENESS = 10
"""The maker's own work must not be what keeps others from theirs."""


@dataclass
class Tally:
    """How much of a trouble was made."""

    name: str = ""
    done: int = 0


Trouble: TypeAlias = Callable[[int, str, Tally], Awaitable[None]]
"""Makes trouble at a port, as an agent's, until it is cancelled."""


def message(**members: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **members}, separators=(",", ":")).encode()


@asynccontextmanager
async def server_and_device(port: int, agent: str) -> AsyncIterator[tuple[RawServer, Device]]:
    async with raw_server(port, agent) as server, device(port, agent) as caller:
        await caller.ready()
        yield server, caller


def pour(peer: RawServer | Device, frames: bytes) -> bool:
    """Send frames as they are, unless the hub has not taken those from before yet."""
    if peer.socket.transport.get_write_buffer_size():
        return False
    peer.socket.transport.write(frames)
    return True


async def stop_reading(port: int, agent: str, tally: Tally) -> None:
    async with raw_server(port, agent, manner=Manner(tools=("huge",))):
        while True:
            async with raw_socket(agent_call_url(port, agent), is_small=True) as it:
                for id in range(12):
                    params = {"name": "huge", "arguments": {"text": "200000"}}
                    await it.send(frame(TEXT, message(id=id, method="tools/call", params=params)))
                    await asyncio.sleep(0.01)
                tally.done += 1


async def flood(port: int, agent: str, tally: Tally) -> None:
    log = frame(TEXT, message(method="notifications/message", params={"level": "info", "data": "x"}))
    progress = frame(TEXT, message(method="notifications/progress", params={"progressToken": 1, "progress": 1}))
    nobodys = frame(TEXT, message(id=99999, result={}))
    async with server_and_device(port, agent) as (server, caller):
        while True:
            is_poured = pour(server, (log + progress + nobodys) * 300)
            tally.done += is_poured + pour(caller, (progress + nobodys) * 300)
            await asyncio.sleep(0.03)


async def reconnect(port: int, agent: str, tally: Tally) -> None:
    while True:
        for url in (agent_url(port, agent), agent_url(port, agent, "s1"), agent_call_url(port, agent)):
            async with raw_socket(url):
                tally.done += 1
            await asyncio.sleep(0.001)


async def duplicate(port: int, agent: str, tally: Tally) -> None:
    while True:
        async with raw_server(port, agent, "same") as first:
            async with raw_server(port, agent, "same"):
                await first.ended()
            tally.done += 1


async def send_binary(port: int, agent: str, tally: Tally) -> None:
    frames = frame(BINARY, b"\x00\xff" * 50) * 20
    async with server_and_device(port, agent) as peers:
        while True:
            tally.done += sum(pour(peer, frames) for peer in peers)
            await asyncio.sleep(0.01)


async def send_long_frames(port: int, agent: str, tally: Tally) -> None:
    long = frame(TEXT, message(method="notifications/message", params={"level": "info", "data": "x" * 5 * MIB}))
    async with raw_server(port, agent) as server:
        while True:
            async with raw_socket(agent_call_url(port, agent)) as it:
                await it.send(long)
                tally.done += pour(server, long)
            await asyncio.sleep(0.02)


async def show_bad_tokens(port: int, agent: str, tally: Tally) -> None:
    good = python_token(agent)
    forged = good.swapcase()
    bad = [None, "", "nonsense", python_quoted(good[:-4]), python_quoted(sealed(b"[]")), python_quoted(forged)]
    while True:
        for token in bad:
            for url in (server_url(port, token), device_url(port, token)):
                async with raw_socket(url) as it:
                    closing = await it.closing()
                    assert closing is not None
                    assert closing[0] == 1008
            tally.done += 1


TROUBLES: dict[str, Trouble] = {
    made.__name__: made
    for made in (stop_reading, flood, reconnect, duplicate, send_binary, send_long_frames, show_bad_tokens)
}


async def _lines() -> AsyncIterator[list[str]]:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        yield line.decode().split()


async def _until(making: asyncio.Future[None], tally: Tally, least: int) -> None:
    while tally.done < least:
        if making.done():
            await making  # it should not have ended: say how
        await asyncio.sleep(0.002)


async def main(port: int) -> None:
    """Do as the lines say, until they end."""
    tally, making = Tally(), asyncio.get_running_loop().create_future()
    async for words in _lines():
        match words:
            case ["start", name, agent]:
                tally = tally if name == tally.name else Tally(name)
                making = asyncio.ensure_future(TROUBLES[name](port, agent, tally))
                await _until(making, tally, tally.done + 1)
                print("begun", flush=True)
            case ["stop", least]:
                await _until(making, tally, int(least))
                making.cancel()
                with suppress(asyncio.CancelledError):
                    await making
                print(tally.done, flush=True)
            case _:
                raise ValueError(f"no such line: {words}")


if __name__ == "__main__":
    os.nice(NICENESS)
    asyncio.run(main(int(sys.argv[1])))
