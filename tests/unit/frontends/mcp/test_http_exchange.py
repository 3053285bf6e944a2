"""A call's caller over HTTP: plain JSON, or a stream once something precedes the answer."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from weakref import ref

import msgspec
import pytest

from isthmus.core.calls.running_call import Deadlines
from isthmus.frontends.http import request_cycle
from isthmus.frontends.http.request_cycle import CROWDED_BYTES, KeepAlive
from isthmus.frontends.mcp import http as module
from isthmus.frontends.mcp.http import McpHttpExchange
from isthmus.frontends.mcp.http_streams import ConnectionStream, HttpSession, HttpSessions, SessionStream
from isthmus.model.calls import EVERYTHING, LOG_LEVELS, Kind, LogLevel, LogMessage, Question, Reply
from isthmus.model.fault_table import Cancelled, TimedOut, UnknownResource, UnknownTool
from isthmus.wire.jsonrpc import Response
from isthmus.wire.mcp.messages import PROGRESS as PROGRESSED
from isthmus.wire.mcp.messages import Era
from isthmus.wire.sse import SseDecoder
from tests.unit.core.doubles import ANYONE, DONE, PROGRESS, SERVER, Stage, call, raw
from tests.unit.frontends.mcp.doubles import Client

ID = msgspec.Raw(b'"call"')
TOKEN = msgspec.Raw(b"7")


def exchange(
    client: Client,
    *,
    era: Era = "legacy",
    token: msgspec.Raw | None = TOKEN,
    level: LogLevel | None = None,
    kind: Kind = "tool",
) -> McpHttpExchange:
    return McpHttpExchange(client, ID, era, token, asyncio.get_running_loop(), call(kind=kind), level)


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
    received = [json.loads(chunk.partition(b"data: ")[2]) for chunk in client.pushed]
    assert [message["params"] for message in received] == [{"progressToken": 7, "progress": 1}] * 2
    assert len(client.ended) == 1
    assert b'"id":"call"' in client.ended[0]
    assert client.answers == []


async def test_a_client_that_did_not_ask_for_events_gets_none() -> None:
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
    monkeypatch.setattr(request_cycle, "KEEP_ALIVE_SECONDS", 0.001)
    client = Client()
    alive = KeepAlive(client, asyncio.get_running_loop())
    for _ in range(3):
        client.has_news.clear()
        async with asyncio.timeout(30):
            await client.has_news.wait()
    alive.stop()
    said = len(client.pushed)
    await asyncio.sleep(0.01)
    assert len(client.pushed) == said
    assert all(chunk.startswith(b":") and chunk.endswith(b"\n") for chunk in client.pushed)


async def test_a_call_with_events_is_kept_alive_and_its_end_stops_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_cycle, "KEEP_ALIVE_SECONDS", 0.001)
    client = Client()
    made = exchange(client)
    made.emit(PROGRESS)
    client.has_news.clear()
    async with asyncio.timeout(30):
        await client.has_news.wait()
    made.end(DONE)
    said = len(client.pushed)
    await asyncio.sleep(0.01)
    assert len(client.pushed) == said


# -- streams that can be come back to ------------------------------------------------------------------------------


def resumable(client: Client, version: str = "2025-11-25") -> tuple[McpHttpExchange, HttpSession]:
    """The exchange of a running call in a session."""
    made, session = exchange(client), HttpSessions().open(ANYONE, EVERYTHING, 0.0, version)
    made.session = session
    made.inflight, _ = Stage().start()
    return made, session


def come_back(session: HttpSession, client: Client) -> Client:
    """A connection that goes on where that client's stream broke off."""
    decoder = SseDecoder()
    decoder.feed(b"".join(client.pushed + client.ended))
    found = session.store.find(session.id, decoder.last_event_id or "")
    assert found is not None
    again = Client()
    found[0].resume(again, found[1], lambda: None)
    return again


async def test_an_answer_that_takes_long_becomes_a_stream_and_a_quick_one_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "PLAIN_SECONDS", 0.0)
    deadlines = Deadlines(asyncio.get_running_loop())
    slow, quick = Client(), Client()
    late, early = resumable(slow)[0], resumable(quick)[0]
    for made in (late, early):
        made.stream_when_slow(deadlines)
    early.end(DONE)
    await slow.until(lambda: bool(slow.pushed))
    late.end(DONE)
    assert (len(slow.begun), len(slow.ended), slow.answers) == (1, 1, [])
    assert (quick.begun, len(quick.answers)) == ([], 1)


async def test_no_stream_is_begun_for_a_client_that_has_left() -> None:
    client = Client()
    made, session = resumable(client)
    made.disconnected(client)
    made.expire()
    made.end(DONE)
    assert (client.begun, len(session.store)) == ([], 0)


async def test_a_client_that_resumes_gets_the_rest_and_is_waited_for_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client()
    made, session = resumable(client)
    made.emit(PROGRESS)
    inflight = made.inflight
    assert inflight is not None
    monkeypatch.setattr(module, "RESUME_SECONDS", 0.0)
    made.disconnected(client)
    again = come_back(session, client)
    await asyncio.sleep(0.01)
    assert inflight.outcome is None
    made.disconnected(client)  # the connection before it, which is noticed late
    await asyncio.sleep(0.01)
    assert inflight.outcome is None
    made.emit(PROGRESS)
    made.end(DONE)
    assert ([event.get("method") for event in again.events], len(client.events)) == ([PROGRESSED, None], 1)


@pytest.mark.parametrize("has_stream", [True, False])
async def test_the_wait_for_a_client_to_resume_is_bounded(monkeypatch: pytest.MonkeyPatch, *, has_stream: bool) -> None:
    monkeypatch.setattr(module, "RESUME_SECONDS", 0.0)
    client = Client()
    made, _ = resumable(client)
    if has_stream:
        made.emit(PROGRESS)
    inflight = made.inflight
    assert inflight is not None
    made.disconnected(client)
    made.disconnected(client)
    async with asyncio.timeout(30):
        while inflight.outcome is None:  # noqa: ASYNC110 - a call tells its exchange only
            await asyncio.sleep(0)
    assert isinstance(inflight.outcome, Cancelled)


async def test_a_server_that_lets_its_stream_go_has_the_callers_let_go_too() -> None:
    client = Client()
    made, session = resumable(client)
    made.pause(0.25)
    assert client.ended == [b"retry: 250\n\n"]
    made.end(DONE)
    assert come_back(session, client).events[-1]["id"] == "call"


async def test_a_caller_is_never_sent_away_for_longer_than_it_is_waited_for() -> None:
    client = Client()
    resumable(client)[0].pause(1e9)
    assert client.ended == [b"retry: 10000\n\n"]


@pytest.mark.parametrize("version", ["2025-06-18", None])
async def test_a_client_without_resumable_streams_keeps_its_own(version: str | None) -> None:
    client = Client()
    made = exchange(client) if version is None else resumable(client, version)[0]
    made.pause(0.25)
    made.emit(PROGRESS)
    made.pause(0.25)
    assert (len(client.pushed), client.ended) == (1, [])
    made.end(DONE)
    assert len(client.ended) == 1


# -- what need not be answered ---------------------------------------------------------------------------------------

FORM = Question("elicitation/create", raw({"message": "who?"}))


async def test_a_question_is_taken_back_on_the_stream_on_which_it_was_asked() -> None:
    client = Client()
    made, session = resumable(client)
    made._client_input = session.client_input
    made.ask(FORM, reply := list[Reply]().append)
    made.retract(reply)
    made.end(DONE)
    methods = [event.get("method") for event in client.events]
    assert methods == ["elicitation/create", "notifications/cancelled", None]


async def test_after_the_answer_it_is_taken_back_where_the_session_listens_if_it_does() -> None:
    client, listening = Client(), list[bytes]()
    made, session = resumable(client)
    made._client_input = session.client_input
    made.ask(FORM, reply := list[Reply]().append)
    made.ask(FORM, other := list[Reply]().append)
    made.end(DONE)
    said = len(client.pushed + client.ended)
    made.retract(reply)
    session.open_stream(SessionStream(listening.append, lambda: None))
    made.retract(other)
    assert len(client.pushed + client.ended) == said
    assert [b"notifications/cancelled" in chunk for chunk in listening] == [True]


async def test_a_question_that_stays_open_after_the_answer_keeps_nothing_of_the_call() -> None:
    client, listening, answers = Client(), list[bytes](), list[Reply]()
    made, session = resumable(client)
    made._client_input = session.client_input
    replies = [answers.append for _ in range(3)]
    for reply in replies:
        made.ask(FORM, reply)
    first, second, third = map(made.retract_later, replies)
    made.end(DONE)
    kept = ref(client)
    del client, made
    assert kept() is None
    assert first is not None
    assert second is not None
    assert third is not None
    first()
    session.open_stream(SessionStream(listening.append, lambda: None))
    second()
    second()
    assert [b"notifications/cancelled" in chunk for chunk in listening] == [True]
    assert session.client_input.receive(Response(raw("isthmus-3"), raw({})))
    third()
    assert (len(listening), len(answers)) == (1, 1)


async def test_a_client_without_elicitation_gets_no_notice_of_it() -> None:
    client = Client()
    made = exchange(client)
    made.retract(list[Reply]().append)
    assert made.retract_later(list[Reply]().append) is None
    made.end(DONE)
    assert (client.begun, len(client.answers)) == ([], 1)


async def test_on_a_stream_that_is_over_nothing_is_said() -> None:
    client = Client()
    made = exchange(client)
    made.emit(PROGRESS)
    made.end(DONE)
    said = len(client.pushed + client.ended)
    made.send(b"{}")
    assert len(client.pushed + client.ended) == said


# -- logs, and results of other kinds ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("level", "notified"), [(None, []), ("debug", list(LOG_LEVELS)), ("alert", ["alert", "emergency"])]
)
async def test_log_lines_are_sent_from_the_level_that_the_caller_wants(
    level: LogLevel | None, notified: list[LogLevel]
) -> None:
    client = Client()
    made = exchange(client, token=None, level=level)
    for said in LOG_LEVELS:
        made.emit(LogMessage(said, {"level": raw(said), "data": raw("x")}))
    made.end(DONE)
    assert [received["params"]["level"] for received in client.events if "method" in received] == notified
    assert len(client.answers) == (0 if notified else 1)


@pytest.mark.parametrize(
    ("era", "kind", "added"),
    [
        ("legacy", "resource", {}),
        ("modern", "tool", {"resultType": "complete"}),
        ("modern", "resource", {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}),
    ],
)
async def test_a_result_has_the_form_of_the_callers_era(era: Era, kind: Kind, added: dict[str, Any]) -> None:
    client = Client()
    exchange(client, era=era, kind=kind).end(DONE)
    assert client.json["result"] == {**added, "content": []}


@pytest.mark.parametrize(("era", "code", "status"), [("legacy", -32002, 200), ("modern", -32602, 400)])
async def test_a_missing_resource_has_the_code_of_the_era(era: Era, code: int, status: int) -> None:
    client = Client()
    exchange(client, era=era, kind="resource").end(UnknownResource("x:y"))
    assert (client.json["error"]["code"], client.status) == (code, status)


async def test_a_stream_that_cannot_be_resumed_ends_when_its_caller_leaves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(request_cycle, "KEEP_ALIVE_SECONDS", 0.0)
    client = Client()
    made = exchange(client)
    made.emit(PROGRESS)
    made.disconnected(client)
    await asyncio.sleep(0.01)
    assert len(client.pushed) == 1


async def test_a_stream_without_a_session_cannot_be_paused() -> None:
    client = Client()
    assert not ConnectionStream(client, asyncio.get_running_loop()).pause(1)
    assert client.ended == []
