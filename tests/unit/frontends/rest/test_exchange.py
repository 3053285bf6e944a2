"""A call's caller over REST: an answer, or a stream for who asked for one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import msgspec
import pytest

from isthmus.frontends.http import bodies
from isthmus.frontends.http.bodies import CROWDED_BYTES
from isthmus.frontends.rest.exchange import RestExchange
from isthmus.model.events import Log, LogLevel
from isthmus.model.faults import TimedOut, UnknownTool
from isthmus.model.outcomes import Result
from tests.unit.core.doubles import DONE, PROGRESS, SERVER, raw


class Client:
    """A peer that remembers what it was sent."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, bytes, bytes]] = []
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
        self.answers.append((status, lines, body))

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

    @property
    def events(self) -> list[str]:
        """The names of all events, to the last."""
        lines = b"".join([*self.pushed, *self.ended]).decode().split("\n")
        return [line[7:] for line in lines if line.startswith("event: ")]


def exchange(client: Client, level: LogLevel | None = None) -> RestExchange:
    return RestExchange(client, level, asyncio.get_running_loop())


def line(level: LogLevel) -> Log:
    return Log(level, {"level": raw(level), "data": raw("x")})


async def test_a_result_is_the_servers_own_words() -> None:
    client, ended = Client(), list[str]()
    made = exchange(client)
    made.on_end = lambda: ended.append("told")
    made.open()
    made.emit(PROGRESS)
    made.end(Result(msgspec.Raw(b'{"content": [ ],\n"x": 1.0}')))
    assert [(status, body) for status, _, body in client.answers] == [(200, b'{"content": [ ],\n"x": 1.0}')]
    assert (client.begun, client.events, ended) == ([], [], ["told"])


async def test_a_fault_has_its_status() -> None:
    client = Client()
    exchange(client).end(UnknownTool("x"))
    ((status, lines, body),) = client.answers
    assert (status, json.loads(body)["reason"]) == (404, "unknown_tool")
    assert b"application/problem+json" in lines


async def test_a_stream_ends_with_the_result() -> None:
    client = Client()
    made = exchange(client, "info")
    made.open()
    made.emit(PROGRESS)
    made.emit(line("warning"))
    made.end(Result(msgspec.Raw(b'{"content":\n[]}')))
    assert client.events == ["progress", "log", "result"]
    assert client.pushed[1] == b'event: progress\ndata: {"progress":1}\n\n'
    assert client.ended == [b'event: result\ndata: {"content":[]}\n\n']
    assert len(client.begun) == 1
    assert client.answers == []


async def test_a_stream_ends_with_the_error_once_it_has_begun() -> None:
    client = Client()
    made = exchange(client, "info")
    made.open()
    made.end(TimedOut(SERVER, 1.0, executed="unknown"))
    assert client.events == ["error"]
    assert json.loads(client.ended[0].partition(b"data: ")[2])["status"] == 504


async def test_what_fails_at_once_is_no_stream() -> None:
    client = Client()
    exchange(client, "info").end(UnknownTool("x"))
    assert ([status for status, _, _ in client.answers], client.begun) == ([404], [])


async def test_a_result_that_comes_at_once_is_a_stream_all_the_same() -> None:
    client = Client()
    exchange(client, "info").end(DONE)
    assert (client.events, len(client.begun), client.answers) == (["result"], 1, [])


async def test_only_lines_of_the_level_and_above_are_streamed() -> None:
    client = Client()
    made = exchange(client, "error")
    for level in ("debug", "warning", "error", "alert"):
        made.emit(line(level))
    assert client.events == ["log", "log"]
    made.end(DONE)


async def test_events_are_skipped_while_the_caller_does_not_read() -> None:
    client = Client()
    made = exchange(client, "info")
    made.emit(PROGRESS)
    client.unsent_bytes = CROWDED_BYTES + 1
    made.emit(PROGRESS)
    made.end(DONE)
    assert client.events == ["progress", "result"]


async def test_an_open_stream_is_kept_alive_until_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "KEEP_ALIVE_SECONDS", 0.001)
    client = Client()
    made = exchange(client, "info")
    made.open()
    client.heard.clear()
    async with asyncio.timeout(30):
        await client.heard.wait()
    made.end(DONE)
    said = len(client.pushed)
    await asyncio.sleep(0.01)
    assert len(client.pushed) == said
