"""The caller's side of a call on every transport: progress of work that continues after the answer."""

from __future__ import annotations

import asyncio

import pytest

from isthmus.core.ports import LateProgressExchange
from isthmus.frontends.mcp.http import McpHttpExchange
from isthmus.frontends.mcp.http_streams import HttpSession, HttpSessions, SessionStream
from isthmus.frontends.mcp.tasks import public_id
from isthmus.model.calls import EVERYTHING, Progress
from isthmus.wire.mcp.tasks import RELATED
from tests.unit.core.doubles import ANYONE, SERVER, call, raw
from tests.unit.frontends.mcp.doubles import Client, Hosted, Talk, events

REPORT = Progress({"progress": raw(1), "_meta": raw({RELATED: {"taskId": "t"}})}, SERVER)
TOLD = {"progressToken": "mine", "progress": 1, "_meta": {RELATED: {"taskId": public_id(ANYONE, SERVER, "t")}}}


def exchange(session: HttpSession | None, token: str | None = "mine") -> McpHttpExchange:
    loop = asyncio.get_running_loop()
    made = McpHttpExchange(Client(), raw(1), "legacy", None if token is None else raw(token), loop, call())
    made.session = session
    return made


async def test_over_http_it_is_sent_on_the_stream_of_the_session() -> None:
    session, chunks = HttpSessions().open(ANYONE, EVERYTHING, 0.0), list[bytes]()
    session.open_stream(SessionStream(chunks.append, lambda: None))
    report = exchange(session).reporter()
    assert report is not None
    report(REPORT)
    assert [message["params"] for message in events(chunks)] == [TOLD]


@pytest.mark.parametrize("is_wanted", [True, False])
async def test_a_caller_without_a_session_or_a_request_gets_nothing(*, is_wanted: bool) -> None:
    session = None if is_wanted else HttpSessions().open(ANYONE, EVERYTHING, 0.0)
    assert exchange(session, "mine" if is_wanted else None).reporter() is None


async def test_in_a_conversation_it_is_sent_there_unless_its_caller_reads_slowly() -> None:
    hosted = Hosted()
    talk = Talk(hosted)
    talk.say("tools/call", {"name": "files.read", "arguments": {}, "_meta": {"progressToken": "mine"}}, id=1)
    side = hosted.last_call.exchange
    assert isinstance(side, LateProgressExchange)
    report = side.reporter()
    assert report is not None
    hosted.answer(content=[])
    report(REPORT)
    talk.is_crowded = True
    report(REPORT)
    assert [message["params"] for message in talk.notifications()] == [TOLD]


# -- users that a question sent elsewhere ------------------------------------------------------------------------------

DONE_THERE = {"jsonrpc": "2.0", "method": "notifications/elicitation/complete", "params": {"elicitationId": "e1"}}


async def test_the_end_of_a_url_elicitation_is_sent_on_the_stream_of_the_call_and_later_on_the_sessions() -> None:
    session, chunks = HttpSessions().open(ANYONE, EVERYTHING, 0.0), list[bytes]()
    session.open_stream(SessionStream(chunks.append, lambda: None))
    client = Client()
    side = McpHttpExchange(client, raw(1), "legacy", None, asyncio.get_running_loop(), call())
    side.session = session
    side.elicitation_completed(raw("e1"))
    assert events(client.pushed) == [DONE_THERE]
    later = side.done_later()
    assert later is not None
    later(raw("e1"))
    assert events(chunks) == [DONE_THERE]
    assert exchange(None).done_later() is None


async def test_a_modern_caller_knows_no_such_word() -> None:
    client = Client()
    side = McpHttpExchange(client, raw(1), "modern", None, asyncio.get_running_loop(), call())
    side.elicitation_completed(raw("e1"))
    assert (side.done_later(), client.pushed) == (None, [])
