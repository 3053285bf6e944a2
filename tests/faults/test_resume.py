"""A legacy caller's connection breaks in the middle of a call: nothing is lost or doubled, and the call ran once.

The caller is raw, the server scripted and the hub in this process, so that each break is exactly where the test says.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from isthmus.core.calls.hub import Hub
from tests.faults.progress_server import STEPS, ProgressServer
from tests.faults.scripted import hub_of, listening
from tests.faults.watching import eventually

PLAIN = "application/json, text/event-stream"
STREAMS_FIRST = "text/event-stream, application/json"
HELLO = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"elicitation": {}},
    "clientInfo": {"name": "test", "version": "1"},
}


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One event of a stream as the caller read it."""

    id: str
    data: str

    @property
    def word(self) -> Any:
        """What it is about: a step, the text of the answer, a question's method; None without content."""
        if not self.data:
            return None
        message = json.loads(self.data)
        if message.get("method") == "notifications/progress":
            return message["params"]["progress"]
        return message["method"] if "method" in message else message["result"]["content"][0]["text"]


class Caller:
    """Speaks to the hub by hand, in one session."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._client = httpx2.AsyncClient(timeout=30.0)
        self._session: dict[str, str] = {}

    async def open(self) -> None:
        """Begin the session."""
        hello = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": HELLO}
        answer = await self._client.post(self._url, json=hello, headers={"accept": PLAIN})
        self._session = {"mcp-session-id": answer.headers["mcp-session-id"]}

    async def aclose(self) -> None:
        await self._client.aclose()

    async def say(self, message: Mapping[str, Any]) -> int:
        """Send what has no answer; returns the status."""
        headers = {"accept": PLAIN, **self._session}
        return (await self._client.post(self._url, json={"jsonrpc": "2.0", **message}, headers=headers)).status_code

    @asynccontextmanager
    async def calling(self, accept: str, **arguments: Any) -> AsyncIterator[AsyncIterator[StreamEvent]]:
        """Call the tool and read the stream that answers; leaving the block cuts the connection."""
        params = {"name": "s.t", "arguments": arguments, "_meta": {"progressToken": "mine"}}
        call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        async with self._stream("POST", {"accept": accept}, json=call) as received:
            yield received

    @asynccontextmanager
    async def back(self, last: str) -> AsyncIterator[AsyncIterator[StreamEvent]]:
        """Come back to a stream after this event; leaving the block cuts the connection."""
        async with self._stream("GET", {"accept": "text/event-stream", "last-event-id": last}) as received:
            yield received

    async def status_of_return(self, last: str) -> int:
        """What the hub says to who comes back with this event and must not."""
        headers = {"accept": "text/event-stream", "last-event-id": last, **self._session}
        return (await self._client.get(self._url, headers=headers)).status_code

    @asynccontextmanager
    async def _stream(
        self, verb: str, headers: dict[str, str], **more: Any
    ) -> AsyncIterator[AsyncIterator[StreamEvent]]:
        async with self._client.stream(verb, self._url, headers={**headers, **self._session}, **more) as answer:
            assert (answer.status_code, answer.headers["content-type"]) == (200, "text/event-stream")
            yield _stream_events(answer.aiter_lines())


async def _stream_events(lines: AsyncIterator[str]) -> AsyncIterator[StreamEvent]:
    fields: dict[str, str] = {}
    async for line in lines:
        if line:
            name, _, value = line.partition(":")
            fields[name] = value.strip()
        else:
            if "data" in fields:
                yield StreamEvent(fields["id"], fields["data"])
            fields = {}


async def some(received: AsyncIterator[StreamEvent], count: int) -> list[StreamEvent]:
    """The next events."""
    async with asyncio.timeout(30):
        return [await anext(received) for _ in range(count)]


async def rest(received: AsyncIterator[StreamEvent]) -> list[StreamEvent]:
    """All events up to the stream's end."""
    async with asyncio.timeout(30):
        return [event async for event in received]


def words(received: list[StreamEvent]) -> list[Any]:
    assert len({event.id for event in received}) == len(received), "an event came twice"
    return [event.word for event in received]


WHOLE = [None, *range(1, STEPS + 1), "done"]


@dataclass(frozen=True, slots=True)
class Stage:
    """A server, and a caller of the hub before it."""

    server: ProgressServer
    caller: Caller
    other: Caller
    hub: Hub


@asynccontextmanager
async def staged(folder: Path) -> AsyncIterator[Stage]:
    async with ProgressServer() as server, hub_of(folder, {"s": server.entry}) as hub, listening(hub) as port:
        await hub.ready("s")
        callers = [Caller(f"http://127.0.0.1:{port}/mcp") for _ in range(2)]
        for caller in callers:
            await caller.open()
        yield Stage(server, callers[0], callers[1], hub.running.hub)
        server.may_work.set()
        server.may_end.set()
        for caller in callers:
            await caller.aclose()


@pytest.mark.parametrize("accept", [PLAIN, STREAMS_FIRST])
@pytest.mark.parametrize("cut", range(1, STEPS + 3))
@pytest.mark.parametrize("ends", ["before it returns", "after it returned"])
async def test_a_caller_cut_off_after_any_event_gets_the_rest_and_the_call_ran_once(
    tmp_path: Path, accept: str, cut: int, ends: str
) -> None:
    async with staged(tmp_path) as stage:
        async with stage.caller.calling(accept) as received:
            response = await some(received, 1)
            stage.server.may_work.set()
            if cut == STEPS + 2:
                stage.server.may_end.set()
            response += await some(received, cut - 1)
        if ends == "before it returns":
            stage.server.may_end.set()
            await eventually(lambda: stage.hub.running() == 0, "the call has ended")
        async with stage.caller.back(response[-1].id) as received:
            stage.server.may_end.set()
            response += await rest(received)
        assert words(response) == WHOLE
        assert stage.server.count("tools/call") == 1
        assert stage.server.count("notifications/cancelled") == 0


async def test_a_caller_that_disconnects_after_every_event_receives_each_once(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        async with stage.caller.calling(STREAMS_FIRST) as received:
            response = await some(received, 1)
        stage.server.may_work.set()
        stage.server.may_end.set()
        while response[-1].word != "done":
            async with stage.caller.back(response[-1].id) as received:
                response += await some(received, 1)
        assert words(response) == WHOLE
        assert stage.server.count("tools/call") == 1


async def test_a_question_that_was_asked_while_the_caller_was_away_waits_for_it(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        async with stage.caller.calling(STREAMS_FIRST, asks=True) as received:
            response = await some(received, 1)
        stage.server.may_work.set()
        stage.server.may_end.set()
        async with stage.caller.back(response[-1].id) as received:
            response += await some(received, STEPS + 1)
            answer = {"action": "accept", "content": {"name": "me"}}
            assert await stage.caller.say({"id": json.loads(response[-1].data)["id"], "result": answer}) == 202
            response += await rest(received)
        assert words(response) == [*WHOLE[:-1], "elicitation/create", "done"]
        assert stage.server.answered_with == answer


async def test_a_caller_cannot_resume_the_stream_of_another_session(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage, stage.caller.calling(STREAMS_FIRST) as received:
        (first,) = await some(received, 1)
        assert await stage.other.status_of_return(first.id) == 400
        assert await stage.caller.status_of_return("made-up.1") == 400
        stage.server.may_work.set()
        stage.server.may_end.set()
        assert words([first, *await rest(received)]) == WHOLE


async def test_many_calls_cut_off_together_each_find_their_own_answer(tmp_path: Path) -> None:
    async def run(stage: Stage) -> list[Any]:
        async with stage.caller.calling(STREAMS_FIRST) as received:
            response = await some(received, 1)
        stage.server.may_work.set()
        stage.server.may_end.set()
        async with stage.caller.back(response[-1].id) as received:
            return words(response + await rest(received))

    async with staged(tmp_path) as stage:
        assert await asyncio.gather(*(run(stage) for _ in range(32))) == [WHOLE] * 32
        assert stage.server.count("tools/call") == 32
