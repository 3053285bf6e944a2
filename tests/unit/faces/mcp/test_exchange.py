"""A call's caller over HTTP: plain JSON, or a stream once something precedes the answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import msgspec
import pytest

from isthmus.faces.http import bodies
from isthmus.faces.http.bodies import CROWDED_BYTES, KeepAlive
from isthmus.faces.mcp.dialogue import Era
from isthmus.faces.mcp.exchange import HttpExchange
from isthmus.model.faults import TimedOut, UnknownTool
from tests.unit.core.doubles import DONE, PROGRESS, SERVER

ID = msgspec.Raw(b'"call"')
TOKEN = msgspec.Raw(b"7")


class Client:
    """A peer that remembers what it was sent."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, bytes]] = []
        self.begun: list[bytes] = []
        self.pushed: list[bytes] = []
        self.ended: list[bytes] = []
        self.unsent_bytes = 0
        self.heard = asyncio.Event()

    def on_disconnect(self, callback: Callable[[], None]) -> None:
        raise NotImplementedError

    def take_body(self) -> bytes | None:
        raise NotImplementedError

    def abort(self) -> None:
        raise NotImplementedError

    def answer(self, status: int, lines: bytes, body: bytes) -> None:
        assert b"content-type: application/json" in lines
        self.answers.append((status, body))

    def begin(self, status: int, lines: bytes) -> None:
        assert status == 200
        self.begun.append(lines)

    def push(self, chunk: bytes) -> None:
        self.pushed.append(chunk)
        self.heard.set()

    def end(self, chunk: bytes) -> None:
        self.ended.append(chunk)

    def buffered_bytes(self) -> int:
        return self.unsent_bytes


def exchange(client: Client, *, era: Era = "legacy", token: msgspec.Raw | None = TOKEN) -> HttpExchange:
    return HttpExchange(client, ID, era, token, asyncio.get_running_loop())


async def test_an_answer_without_events_is_plain_json() -> None:
    client = Client()
    ended: list[str] = []
    made = exchange(client)
    made.on_end = lambda: ended.append("told")
    made.end(DONE)
    assert client.answers == [(200, b'{"jsonrpc":"2.0","id":"call","result":{"content":[]}}')]
    assert (client.begun, client.ended, ended) == ([], [], ["told"])


async def test_the_first_event_makes_a_stream_that_ends_with_the_answer() -> None:
    client = Client()
    made = exchange(client)
    made.emit(PROGRESS)
    made.emit(PROGRESS)
    made.end(DONE)
    assert len(client.begun) == 1
    assert b"text/event-stream" in client.begun[0]
    told = [json.loads(chunk.partition(b"data: ")[2]) for chunk in client.pushed]
    assert [message["params"] for message in told] == [{"progressToken": 7, "progress": 1}] * 2
    assert len(client.ended) == 1
    assert b'"id":"call"' in client.ended[0]
    assert client.answers == []


async def test_who_did_not_ask_for_events_gets_none() -> None:
    client = Client()
    made = exchange(client, token=None)
    made.emit(PROGRESS)
    made.end(DONE)
    assert (client.begun, client.pushed, len(client.answers)) == ([], [], 1)


async def test_progress_is_skipped_while_the_caller_does_not_read() -> None:
    client = Client()
    made = exchange(client)
    made.emit(PROGRESS)
    client.unsent_bytes = CROWDED_BYTES + 1
    made.emit(PROGRESS)
    client.unsent_bytes = 0
    made.emit(PROGRESS)
    made.end(DONE)
    assert len(client.pushed) == 2


@pytest.mark.parametrize(
    ("era", "statuses"), [("legacy", [200, 200]), ("modern", [400, 200])]
)  # what ran, or may have, is answered; only what was wrong with the request is HTTP's business
async def test_a_fault_has_the_status_of_its_era(era: Era, statuses: list[int]) -> None:
    client = Client()
    exchange(client, era=era).end(UnknownTool("x"))
    exchange(client, era=era).end(TimedOut(SERVER, 1.0, executed="unknown"))
    assert [status for status, _ in client.answers] == statuses


async def test_an_open_stream_says_something_regularly_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "KEEP_ALIVE_SECONDS", 0.001)
    client = Client()
    alive = KeepAlive(client, asyncio.get_running_loop())
    for _ in range(3):
        client.heard.clear()
        async with asyncio.timeout(30):
            await client.heard.wait()
    alive.stop()
    said = len(client.pushed)
    await asyncio.sleep(0.01)
    assert len(client.pushed) == said
    assert all(chunk.startswith(b":") and chunk.endswith(b"\n") for chunk in client.pushed)


async def test_a_call_with_events_is_kept_alive_and_its_end_stops_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "KEEP_ALIVE_SECONDS", 0.001)
    client = Client()
    made = exchange(client)
    made.emit(PROGRESS)
    client.heard.clear()
    async with asyncio.timeout(30):
        await client.heard.wait()
    made.end(DONE)
    said = len(client.pushed)
    await asyncio.sleep(0.01)
    assert len(client.pushed) == said
