"""Memory after finished calls, and the memory that a server can make the hub hold."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from isthmus.core.calls.running_call import InFlight
from isthmus.frontends.http.request_cycle import RequestCycle
from isthmus.model.calls import Result
from isthmus.upstream import http_shared
from isthmus.upstream import streamable_http as streamable
from isthmus.upstream.streamable_http import Post
from tests.faults.asking_server import ASKED
from tests.faults.caller import Caller
from tests.faults.scripted import EVENTS, HangUp, ReceivedRequest, Scripted, events, hub_of, listening, reply
from tests.faults.watching import eventually
from tests.hubs import stdio

ASKING = [sys.executable, str(Path(__file__).with_name("asking_server.py"))]
CALLS = 50


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def alive() -> dict[str, int]:
    """How many objects of a call there are."""
    seen = [type(thing) for thing in gc.get_objects()]
    return {kind.__name__: seen.count(kind) for kind in (InFlight, RequestCycle, Post)}


async def test_finished_calls_are_gone_without_the_cycle_collector(tmp_path: Path, no_collector: None) -> None:
    async with Scripted() as server, hub_of(tmp_path, {"a": server.entry}) as hub, listening(hub) as port:
        await hub.ready("a")
        async with Caller(port) as caller:
            for _ in range(CALLS):
                assert (await caller.call("a.t")).reported == "ok"
            server.heard.clear()

            # The latest may still be held by the connection that it came on.
            assert max(alive().values()) <= 2, alive()


# -- answers to what servers ask ---------------------------------------------------------------------------------------


async def test_a_process_that_asks_and_does_not_read_makes_the_hub_hold_few_answers(tmp_path: Path) -> None:
    async with hub_of(tmp_path, {"a": stdio(ASKING, era="legacy")}) as hub:
        await hub.ready("a")
        outcome = await hub.call("a.answers")

    assert isinstance(outcome, Result)
    answers = int(bytes(outcome.payload).partition(b'"text": "')[2].partition(b'"')[0])
    assert 0 < answers < ASKED / 4


class Asking(Scripted):
    """Asks on the stream of a call, and acknowledges no answer before the test allows it."""

    ASKED = 2000

    def __init__(self) -> None:
        super().__init__()
        self.acknowledges = asyncio.Event()

    async def on_call(self, request: ReceivedRequest, out: asyncio.StreamWriter) -> None:
        if not request.arguments.get("ask"):
            return await super().on_call(request, out)
        asked = [{"jsonrpc": "2.0", "id": n, "method": "sampling/createMessage"} for n in range(self.ASKED)]
        out.write(EVENTS + events(*asked) + events(request.result({"content": []})) + b"0\r\n\r\n")
        return None

    async def on_refused(self, request: ReceivedRequest, out: asyncio.StreamWriter) -> None:
        if not request.method:
            await self.acknowledges.wait()
        out.write(reply(None, status=202))


async def test_a_server_that_asks_and_does_not_listen_is_sent_few_answers(tmp_path: Path) -> None:
    async with Asking() as server, hub_of(tmp_path, {"a": server.entry}) as hub:
        await hub.ready("a")
        assert isinstance(await hub.call("a.t", ask=True), Result)
        server.acknowledges.set()

        # It leaves after all that waited before it.
        assert isinstance(await hub.call("a.t"), Result)
        answers = sum(request.verb == "POST" and not request.method for request in server.heard)
        assert 0 < answers <= http_shared.ONE_WAY_MAX


class Deaf(Scripted):
    """Never acknowledges that a call was withdrawn."""

    async def on_refused(self, request: ReceivedRequest, out: asyncio.StreamWriter) -> None:
        if request.method == "notifications/cancelled":
            await asyncio.Event().wait()
        await super().on_refused(request, out)


async def test_unacknowledged_cancellations_release_their_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_shared, "ONE_WAY_SECONDS", 0.2)
    monkeypatch.setattr(streamable, "SPARE_CONNECTIONS", 2)
    async with Deaf() as server, hub_of(tmp_path, {"a": {**server.entry, "max_calls": 2, "timeout": 5}}) as hub:
        await hub.ready("a")
        for begun in (2, 4, 6):
            calls = [hub.start("a.t", hang=True)[0] for _ in range(2)]
            await eventually(lambda: server.hung == begun, "the calls have begun")  # noqa: B023
            for call in calls:
                call.cancel("enough")

        assert isinstance(await hub.call("a.t"), Result)


# -- ends that say nothing ---------------------------------------------------------------------------------------------


class Cutting(Scripted):
    """Answers with a stream, and closes the connection without the stream's end."""

    async def on_call(self, request: ReceivedRequest, out: asyncio.StreamWriter) -> None:
        out.write(EVENTS + events(request.result({"content": []})))
        await out.drain()
        raise HangUp


async def test_a_stream_cut_after_its_answer_leaves_no_caller_in_doubt(tmp_path: Path) -> None:
    async with Cutting() as server, hub_of(tmp_path, {"a": server.entry}) as hub:
        await hub.ready("a")
        for _ in range(10):
            assert isinstance(await hub.call("a.t"), Result)

        assert server.count("ping") == 0
