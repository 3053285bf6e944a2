"""Odd things that servers and callers say, exactly in the order in which they once did harm."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

from isthmus.app.hub import LOCAL
from isthmus.frontends.mcp.duplex import McpStdio
from isthmus.frontends.mcp.methods import render_list
from isthmus.model.calls import Result
from isthmus.model.names import ServerName
from isthmus.upstream.server_settings import HttpSettings, ServerSettings
from tests.faults.caller import Caller
from tests.faults.scripted import EVENTS, InProcess, ReceivedRequest, Scripted, events, hub_of, listening, reply, tool
from tests.faults.watching import eventually
from tests.hubs import PATIENT

PIPELINED = 64


class Held(Scripted):
    """Answers no call before it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.goes_on = asyncio.Event()

    async def on_call(self, request: ReceivedRequest, out: asyncio.StreamWriter) -> None:
        await self.goes_on.wait()
        await super().on_call(request, out)


# -- callers -----------------------------------------------------------------------------------------------------------


async def test_calls_pipelined_behind_a_slow_one_are_all_answered_in_order(tmp_path: Path) -> None:
    async with Held() as server, hub_of(tmp_path, {"a": server.entry}) as hub, listening(hub) as port:
        await hub.ready("a")
        caller = Caller(port)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(caller.call_bytes("a.t", id="0"))
        await eventually(lambda: server.count("tools/call") == 1, "the slow call has begun")
        ids = range(1, PIPELINED + 1)
        writer.write(b"".join(caller.call_bytes("builtin.echo", {"text": "x"}, id=str(id)) for id in ids))
        assert (
            await caller.call("builtin.echo", {"text": "x"})
        ).reported == "ok"  # the hub has had a turn to read them
        server.goes_on.set()

        assert await answered_ids(reader, PIPELINED + 1) == [0, *ids]
        writer.close()
        caller.hang_up()


async def answered_ids(reader: asyncio.StreamReader, count: int) -> list[int]:
    """The ids of so many results, in the order in which they came."""
    ids = []
    async with asyncio.timeout(30):
        for _ in range(count):
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            found = re.search(rb"content-length: (\d+)", head)
            assert found is not None, head
            message = json.loads(await reader.readexactly(int(found[1])))
            assert "result" in message, message
            ids.append(message["id"])
    return ids


def line(**members: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **members}).encode() + b"\n"


async def test_a_cancellation_read_together_with_its_call_is_honoured(tmp_path: Path) -> None:
    async with Held() as server, hub_of(tmp_path, {"a": server.entry}) as hub:
        await hub.ready("a")
        said: list[bytes] = []
        frontend = McpStdio(hub.running.mcp_methods(), LOCAL, hub.running.surface, hub.running.background, said.append)
        call = line(id=1, method="tools/call", params={"name": "a.t", "arguments": {}})

        frontend.feed(call + line(method="notifications/cancelled", params={"requestId": 1}))

        [answer] = map(json.loads, said)
        assert (answer["id"], answer["error"]["data"]["reason"]) == (1, "cancelled")


class Sleepy(Held):
    """Does not answer the greeting before it is let go."""

    async def on_initialize(self, request: ReceivedRequest, out: asyncio.StreamWriter) -> None:
        await self.goes_on.wait()
        await super().on_initialize(request, out)


async def test_a_call_that_waits_for_a_starting_server_can_be_withdrawn(tmp_path: Path) -> None:
    async with Sleepy() as server, hub_of(tmp_path, {"a": server.entry}) as hub:
        said: list[bytes] = []
        frontend = McpStdio(hub.running.mcp_methods(), LOCAL, hub.running.surface, hub.running.background, said.append)
        call = line(id=1, method="tools/call", params={"name": "a.t", "arguments": {}})

        frontend.feed(call + line(method="notifications/cancelled", params={"requestId": 1}))
        server.goes_on.set()
        await hub.ready("a")
        await frontend.finish()

        [answer] = map(json.loads, said)
        assert answer["error"]["data"] == {"executed": "no", "reason": "cancelled"}
        assert server.count("tools/call") == 0


async def test_a_session_withdraws_a_call_that_waits_for_a_starting_server(tmp_path: Path) -> None:
    async with Sleepy() as server, hub_of(tmp_path, {}, limits=PATIENT) as hub, listening(hub) as port:
        caller = Caller(port, era="legacy")
        await caller.initialize()  # before there is a server: it would wait for one that only starts
        hub.running.supervisor.add(ServerSettings(ServerName("a"), HttpSettings(server.entry["url"])))
        waiting = asyncio.ensure_future(caller.call("a.t", id="7"))
        async with Caller(port, era="legacy", session=caller.session) as other:
            withdrawal = other.request_bytes("notifications/cancelled", {"requestId": 7}, id=None)
            for _ in range(50):  # one that comes before its call says nothing, but soon the hub, in this loop, has it
                await other.send(withdrawal)
        server.goes_on.set()
        assert (await waiting).error == (-32012, "no", "cancelled")
        assert server.count("tools/call") == 0


# -- servers -----------------------------------------------------------------------------------------------------------


def listing(hub: InProcess) -> dict[str, Any]:
    """What a caller is listed now."""
    view = hub.running.hub.snapshot.view(LOCAL.grants, hub.running.surface)
    listed: dict[str, Any] = json.loads(render_list(view, "legacy"))
    return listed


class Wordy(Scripted):
    """Refuses the greeting at length."""

    async def on_initialize(self, request: ReceivedRequest, out: asyncio.StreamWriter) -> None:
        error = {"code": -32000, "message": "no" * 100_000}
        out.write(reply({"jsonrpc": "2.0", "id": request.message["id"], "error": error}))


async def test_a_long_refusal_is_cut_in_listings(tmp_path: Path) -> None:
    async with Wordy() as server, hub_of(tmp_path, {"a": server.entry}) as hub:
        await eventually(lambda: hub.state("a") == "retrying", "the server was refused")

        reason = listing(hub)["_meta"]["isthmus/missing"]["a"]["reason"]
        assert "nono" in reason
        assert len(reason) <= 300


async def test_a_tool_described_at_too_great_a_length_is_left_out_alone(tmp_path: Path) -> None:
    async with Scripted() as server, hub_of(tmp_path, {"a": server.entry}, limits={"schema_bytes": 2048}) as hub:
        server.tools = [tool("before"), tool("huge", description="x" * 3000), tool("after")]
        await hub.ready("a")

        names = [entry["name"] for entry in listing(hub)["tools"]]
        assert [name for name in names if name.startswith("a.")] == ["a.before", "a.after"]
        [note] = hub.running.hub.snapshot.server_statuses[ServerName("a")].notes
        assert "'huge' left out" in note


async def test_protocol_headers_are_sent_once_in_any_case(tmp_path: Path) -> None:
    own = {"Content-Type": "text/plain", "ACCEPT": "*/*", "X-Team": "blue"}
    async with Scripted() as server, hub_of(tmp_path, {"a": {**server.entry, "headers": own}}) as hub:
        await hub.ready("a")
        assert isinstance(await hub.call("a.t"), Result)

    for request in server.heard:
        assert all(len(values) == 1 for values in request.headers.values()), request
        assert request.headers["x-team"] == ["blue"]
    posted = [request.headers for request in server.heard if request.verb == "POST"]
    assert {headers["content-type"][0] for headers in posted} == {"application/json"}
    assert {headers["accept"][0] for headers in posted} == {"application/json, text/event-stream"}


class Aside(Held):
    """Tells the progress of a call on the stream of its session, not on the call's own."""

    aside: asyncio.StreamWriter | None = None

    async def on_get(self, request: ReceivedRequest, out: asyncio.StreamWriter) -> None:
        out.write(EVENTS)
        self.aside = out
        await asyncio.Event().wait()

    async def on_call(self, request: ReceivedRequest, out: asyncio.StreamWriter) -> None:
        assert self.aside is not None
        params = {"progressToken": request.message["params"]["_meta"]["progressToken"], "progress": 1}
        self.aside.write(events({"jsonrpc": "2.0", "method": "notifications/progress", "params": params}))
        await super().on_call(request, out)


async def test_progress_on_the_session_stream_reaches_the_caller(tmp_path: Path) -> None:
    async with Aside() as server, hub_of(tmp_path, {"a": server.entry}) as hub:
        await hub.ready("a")
        await eventually(lambda: server.aside is not None, "the hub listens")
        _, ending = hub.start("a.t", wants_progress=True)
        await eventually(lambda: bool(ending.events), "progress was reported")
        server.goes_on.set()

        assert isinstance(await ending.outcome, Result)
        assert [bytes(event.members["progress"]) for event in ending.events] == [b"1"]
