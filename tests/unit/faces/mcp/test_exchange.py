"""A call's caller over HTTP: plain JSON, or a stream once something precedes the answer."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest

from isthmus.faces.http import bodies
from isthmus.faces.http.bodies import CROWDED_BYTES, KeepAlive
from isthmus.faces.mcp.exchange import HttpExchange
from isthmus.faces.mcp.faults import Era
from isthmus.model.calls import Kind
from isthmus.model.events import LOG_LEVELS, Log, LogLevel
from isthmus.model.faults import TimedOut, UnknownResource, UnknownTool
from tests.unit.core.doubles import DONE, PROGRESS, SERVER, raw
from tests.unit.faces.mcp.doubles import Client

ID = msgspec.Raw(b'"call"')
TOKEN = msgspec.Raw(b"7")


def exchange(
    client: Client,
    *,
    era: Era = "legacy",
    token: msgspec.Raw | None = TOKEN,
    level: LogLevel | None = None,
    kind: Kind = "tool",
) -> HttpExchange:
    return HttpExchange(client, ID, era, token, asyncio.get_running_loop(), level, kind)


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


# -- logs, and results of other kinds ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("level", "heard"), [(None, []), ("debug", list(LOG_LEVELS)), ("alert", ["alert", "emergency"])]
)
async def test_lines_are_told_from_the_level_on_that_the_caller_wants(
    level: LogLevel | None, heard: list[LogLevel]
) -> None:
    client = Client()
    made = exchange(client, token=None, level=level)
    for said in LOG_LEVELS:
        made.emit(Log(said, {"level": raw(said), "data": raw("x")}))
    made.end(DONE)
    assert [told["params"]["level"] for told in client.events if "method" in told] == heard
    assert len(client.answers) == (0 if heard else 1)


@pytest.mark.parametrize(
    ("era", "kind", "added"),
    [
        ("legacy", "resource", {}),
        ("modern", "tool", {"resultType": "complete"}),
        ("modern", "resource", {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}),
    ],
)
async def test_a_result_is_told_as_the_callers_era_writes_its_kind(era: Era, kind: Kind, added: dict[str, Any]) -> None:
    client = Client()
    exchange(client, era=era, kind=kind).end(DONE)
    assert client.json["result"] == {**added, "content": []}


@pytest.mark.parametrize(("era", "code", "status"), [("legacy", -32002, 200), ("modern", -32602, 400)])
async def test_a_resource_that_is_not_there_is_told_as_the_era_does(era: Era, code: int, status: int) -> None:
    client = Client()
    exchange(client, era=era, kind="resource").end(UnknownResource("x:y"))
    assert (client.json["error"]["code"], client.status) == (code, status)
