"""A server sends a user to another page: its caller alone is notified when the user is done there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.faults.eliciting_servers import AnsweringCaller, ElicitingServer, Line
from tests.faults.scripted import EVENTS, ReceivedRequest, events, reply
from tests.faults.watching import eventually
from tests.hubs import Raw, serving

KEYS = {name: f"{name}-0123456789abcdef" for name in ("ann", "ben")}
CALLERS = {name: {"key": key, "allow": ["*"]} for name, key in KEYS.items()}
SECONDS = 60.0
GO = {"mode": "url", "message": "log in", "url": "https://login.example/", "elicitationId": "e1"}
DONE_THERE = {"jsonrpc": "2.0", "method": "notifications/elicitation/complete", "params": {"elicitationId": "e1"}}


class Sending(ElicitingServer):
    """A server whose tool sends the user elsewhere: by a question, or by an error after which it is called again."""

    def __init__(self) -> None:
        super().__init__()
        self.streams: list[asyncio.StreamWriter] = []
        self.is_done = asyncio.Event()

    async def on_get(self, request: ReceivedRequest, out: asyncio.StreamWriter) -> None:
        """Keep the stream for what belongs to no call."""
        self.streams.append(out)
        out.write(EVENTS + b"3\r\n: \n\r\n")
        await asyncio.Event().wait()

    async def on_call(self, request: ReceivedRequest, out: asyncio.StreamWriter) -> None:
        """Send the user elsewhere, and answer when they are done there."""
        if request.arguments["nonce"] == "error":
            error = {"code": -32042, "message": "log in first", "data": {"elicitations": [GO]}}
            out.write(reply({"jsonrpc": "2.0", "id": request.message["id"], "error": error}))
            return
        answer = self.answers[1] = asyncio.get_running_loop().create_future()
        out.write(EVENTS + events({"jsonrpc": "2.0", "id": 1, "method": "elicitation/create", "params": GO}))
        await answer
        await self.is_done.wait()
        out.write(events(DONE_THERE) + events(request.result({"content": []})) + b"0\r\n\r\n")


@asynccontextmanager
async def people(folder: Path, server: Sending) -> AsyncIterator[tuple[int, AnsweringCaller, AnsweringCaller]]:
    """A hub, and two callers with a session each."""
    async with serving(folder, {"s": server.entry}, callers=CALLERS) as hub:

        async def is_there() -> bool:
            async with Raw(hub.url, key=KEYS["ann"]) as caller:
                return "s.ask" in await caller.names()

        await eventually(is_there, "the server is there")
        ann, ben = (AnsweringCaller(hub.port, name, KEYS[name], "legacy") for name in ("ann", "ben"))
        for person in (ann, ben):
            await person.enter()
        yield hub.port, ann, ben


async def called(port: int, person: AnsweringCaller, nonce: str) -> tuple[Line, dict[str, str]]:
    """A call, and the head of its answer."""
    line = await Line.open(port)
    line.write("/mcp", *person.request("s.ask", nonce))
    return line, await line.head()


async def listening(port: int, person: AnsweringCaller) -> Line:
    """The stream for what belongs to no call."""
    line = await Line.open(port)
    line.get("/mcp", person.session)
    assert (await line.head())[":status"] == "200"
    return line


async def test_the_asked_caller_learns_on_the_stream_of_its_call_that_the_user_is_done(tmp_path: Path) -> None:
    async with Sending() as server, people(tmp_path, server) as (port, ann, _), asyncio.timeout(SECONDS):
        line, _ = await called(port, ann, "question")
        question = await line.event()
        assert question["params"] == GO
        other = await Line.open(port)
        other.write("/mcp", ann.session, {"id": question["id"], "result": {"action": "accept"}})
        assert (await other.head())[":status"] == "202"
        server.is_done.set()
        received: list[Any] = [await line.event(), await line.event(), await line.event()]
        assert (received[0], received[1]["result"], received[2]) == (DONE_THERE, {"content": []}, None)
        line.close()
        other.close()


async def test_a_caller_with_a_failed_url_elicitation_learns_beside_its_calls_that_the_user_is_done(
    tmp_path: Path,
) -> None:
    async with Sending() as server, people(tmp_path, server) as (port, ann, ben), asyncio.timeout(SECONDS):
        lines = {person.name: await listening(port, person) for person in (ann, ben)}
        line, head = await called(port, ann, "error")
        assert (await line.body(head))["error"]["code"] == -32042
        await eventually(lambda: len(server.streams) == 2, "the hub listens, for everybody and for ann's calls")
        for stream in server.streams:
            stream.write(events(DONE_THERE))
        assert await lines["ann"].event() == DONE_THERE
        server.streams[0].write(events({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}))
        server.tools = server.tools[:1]
        assert (await lines["ben"].event())["method"] == "notifications/tools/list_changed"
        for each in (line, *lines.values()):
            each.close()
