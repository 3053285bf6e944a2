"""Sessions that a server forgets, and their calls, cancellations and link meanwhile."""

from __future__ import annotations

import asyncio
from pathlib import Path

from isthmus.model.calls import Result
from isthmus.model.fault_table import BadReply
from tests.faults.scripted import ReceivedRequest, Scripted, hub_of, reply, tool
from tests.faults.watching import eventually

REFUSAL = {
    "jsonrpc": "2.0",
    "id": None,
    "error": {"code": -32000, "message": "Bad Request: No valid session ID provided"},
}


class Forgetful(Scripted):
    """Runs calls in its second session only; the second greeting waits until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.tools = [tool("t"), tool("initialize")]
        self.renews = asyncio.Event()

    async def on_initialize(self, request: ReceivedRequest, out: asyncio.StreamWriter) -> None:
        if self.greetings:
            await self.renews.wait()
        await super().on_initialize(request, out)

    async def on_call(self, request: ReceivedRequest, out: asyncio.StreamWriter) -> None:
        if request.session == "s2" or request.arguments.get("hang"):
            await super().on_call(request, out)
        else:
            out.write(reply(None, status=404))


async def test_a_tool_called_initialize_is_a_tool_like_others_after_a_renewal(tmp_path: Path) -> None:
    async with Forgetful() as server, hub_of(tmp_path, {"a": server.entry}) as hub:
        await hub.ready("a")
        server.renews.set()

        assert isinstance(await hub.call("a.t"), Result)
        assert isinstance(await hub.call("a.initialize"), Result)
        assert server.greetings == 2


async def test_a_tool_called_initialize_waits_for_the_new_session_itself(tmp_path: Path) -> None:
    async with Forgetful() as server, hub_of(tmp_path, {"a": server.entry}) as hub:
        await hub.ready("a")
        server.renews.set()

        assert isinstance(await hub.call("a.initialize"), Result)


async def test_a_cancellation_during_a_renewal_does_not_spoil_later_ones(tmp_path: Path) -> None:
    async with Forgetful() as server, hub_of(tmp_path, {"a": server.entry}) as hub:
        await hub.ready("a")
        early, _ = hub.start("a.t", hang=True)
        await eventually(lambda: server.hung == 1, "the call has begun")
        _, waiting = hub.start("a.t")
        await eventually(lambda: server.count("initialize") == 2, "the session is being renewed")
        early.cancel("too early")
        server.renews.set()
        assert isinstance(await waiting.outcome, Result)

        late, _ = hub.start("a.t", hang=True)
        await eventually(lambda: server.hung == 2, "the next call has begun")
        late.cancel("in time")
        await eventually(lambda: server.count("notifications/cancelled") == 2, "both were withdrawn")

        assert [request.session for request in server.heard if request.method == "notifications/cancelled"][-1] == "s2"


class Refusing(Scripted):
    """Refuses a session that it has forgotten with a 400 that names no request."""

    forgotten: str | None = None

    async def on(self, request: ReceivedRequest, out: asyncio.StreamWriter) -> None:
        if request.verb == "POST" and request.session is not None and request.session == self.forgotten:
            out.write(reply(REFUSAL, status=400))
        else:
            await super().on(request, out)


async def test_a_session_refused_with_400_is_replaced_by_a_new_link(tmp_path: Path) -> None:
    async with Refusing() as server, hub_of(tmp_path, {"a": server.entry}) as hub:
        await hub.ready("a")
        assert isinstance(await hub.call("a.t"), Result)
        server.forgotten = server.session

        failed = await hub.call("a.t")

        assert isinstance(failed, BadReply)
        assert failed.executed == "unknown"
        assert "No valid session ID" in failed.message
        await eventually(lambda: server.greetings == 2, "the hub connected again by itself", within=10.0)
        await hub.ready("a")
        assert isinstance(await hub.call("a.t"), Result)
