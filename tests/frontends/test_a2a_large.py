"""Large answers over real sockets are sent in pieces, and slow readers do not fill the hub's memory."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.faults.scripted import ReceivedRequest, Scripted, reply
from tests.faults.watching import eventually, resident_bytes
from tests.frontends.test_a2a import SECONDS, Agent, envelope, run
from tests.hubs import PATIENT, HubProcess, serving

MIB = 1024 * 1024
TEXT = "all the world's a stage\n" * (6 * MIB // 24)
PICTURE = bytes(range(256)) * (3 * MIB // 256) + b"end"
READERS = 24


class Generous(Scripted):
    """A server that answers at length, when it may."""

    def __init__(self) -> None:
        super().__init__()
        self.may_answer = asyncio.Event()

    async def on_call(self, request: ReceivedRequest, out: asyncio.StreamWriter) -> None:
        await self.may_answer.wait()
        picture = {"type": "image", "mimeType": "image/png", "data": base64.b64encode(PICTURE).decode()}
        out.write(reply(request.result({"content": [{"type": "text", "text": TEXT}, picture]})))


def put_together(updates: list[Any]) -> tuple[str, bytes]:
    """The text and the picture of an artifact that came in pieces."""
    pieces = [update["artifactUpdate"] for update in updates if "artifactUpdate" in update]
    assert [piece.get("append", False) for piece in pieces] == [False] + [True] * (len(pieces) - 1)
    assert [piece.get("lastChunk", False) for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    parts = [piece["artifact"]["parts"][0] for piece in pieces]
    assert max(len(json.dumps(part)) for part in parts) < MIB
    text = "".join(part.get("text", "") for part in parts)
    return text, b"".join(base64.b64decode(part.get("raw", ""), validate=True) for part in parts)


async def test_a_large_answer_comes_in_pieces_that_are_the_answer_together(tmp_path: Path) -> None:
    async with (
        Generous() as server,
        serving(tmp_path, {"s": server.entry}, limits=PATIENT) as hub,
        Agent(hub) as agent,
        asyncio.timeout(SECONDS),
    ):
        server.may_answer.set()
        async with agent.following("SendStreamingMessage", run("s.t")) as events:
            updates = [data["result"] async for _, data in events]
        assert put_together(updates) == (TEXT, PICTURE)
        whole = await agent.ask("GetTask", {"id": updates[0]["task"]["id"]})
        assert [next(iter(part)) for part in whole["artifacts"][0]["parts"]] == ["text", "raw"]


@asynccontextmanager
async def reading(hub: HubProcess, task: str) -> AsyncIterator[asyncio.StreamReader]:
    """A follower of a task that reads little at a time."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", hub.port))
    reader, out = await asyncio.open_connection(sock=sock, limit=8192)
    body = json.dumps(envelope("SubscribeToTask", {"id": task})).encode()
    head = "POST /a2a HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
    out.write(f"{head}{len(body)}\r\n\r\n".encode() + body)
    try:
        await reader.readuntil(b'"task"')
        yield reader
    finally:
        out.close()


async def test_slow_readers_of_a_large_answer_cost_no_more_than_a_little_each(tmp_path: Path) -> None:
    async with (
        Generous() as server,
        serving(tmp_path, {"s": server.entry}, limits=PATIENT) as hub,
        Agent(hub) as agent,
        asyncio.timeout(SECONDS),
    ):
        task = await agent.begin("s.t")
        readers = [reading(hub, task) for _ in range(READERS)]
        streams = [await reader.__aenter__() for reader in readers]
        before = resident_bytes(hub.pid)
        server.may_answer.set()
        await eventually(lambda: _is_done(agent, task), "the task has ended")
        grown = resident_bytes(hub.pid) - before
        # Whole for each of them it would be 240 MiB more than the few times that the call and the journal need.
        assert grown < 180 * MIB, f"{grown / MIB:.0f} MiB"
        taken = b"".join([chunk async for chunk in _chunks(streams[0])])
        assert taken.count(b"artifactUpdate") > 20
        assert b"TASK_STATE_COMPLETED" in taken
        for reader in readers:
            await reader.__aexit__(None, None, None)


async def _is_done(agent: Agent, task: str) -> bool:
    tasks = (await agent.ask("ListTasks", {}))["tasks"]
    return [each["status"]["state"] for each in tasks] == ["TASK_STATE_COMPLETED"]


async def _chunks(stream: asyncio.StreamReader) -> AsyncIterator[bytes]:
    taken = b""
    while b"TASK_STATE_COMPLETED" not in taken[-2048:]:
        taken = taken[-2048:] + (chunk := await stream.read(MIB))
        assert chunk, "the stream was cut"
        yield chunk
