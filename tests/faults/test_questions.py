"""Questions and answers reach their own callers; a `requestState` works once, for its own caller."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from isthmus.core.calls import running_call
from isthmus.frontends.mcp import input_required
from isthmus.model.calls import UNSURE
from tests.faults.eliciting_servers import AnsweringCaller, ElicitingServer, Era, Line, ModernElicitingServer, text_of
from tests.faults.scripted import InProcess, ReceivedRequest, hub_of, listening, reply
from tests.faults.watching import IS_SOAK, eventually, with_mark
from tests.hubs import Raw, serving, stdio

QUESTIONS = 10_000 if IS_SOAK else 2_500
WORKERS = 4
"""Calls that one caller has under way on one server at the same time."""

CALLS_EACH = 100
"""Calls that each of several programs makes one after the other, on each of its connections."""

ERAS: tuple[Era, ...] = ("legacy", "modern")
KEYS = {f"{name}-{era}": f"{name}-{era}-0123456789abcdef" for name in ("ann", "ben") for era in ERAS}
CALLERS = {name: {"key": key, "allow": ["*"]} for name, key in KEYS.items()}
ELICITING_SERVER = stdio([sys.executable, str(Path(__file__).with_name("eliciting_server.py"))])
KINDS = {"legacy": ElicitingServer, "modern": ModernElicitingServer}

servers_of_both_eras = pytest.mark.parametrize("kind", KINDS)


def person_of(port: int, name: str, era: Era) -> AnsweringCaller:
    return AnsweringCaller(port, f"{name}-{era}", KEYS[f"{name}-{era}"], era)


# -- whose question it is --------------------------------------------------------------------------------------------


async def test_thousands_of_questions_with_equal_ids_reach_their_own_callers(tmp_path: Path) -> None:
    async with ElicitingServer() as server:
        servers = {"http": server.entry, "pipe": {**ELICITING_SERVER, "era": "legacy"}}
        async with serving(tmp_path, servers, callers=CALLERS) as hub:
            people = [person_of(hub.port, name, era) for name in ("ann", "ben") for era in ERAS]
            for person in people:
                await person.enter()
                for name in servers:
                    await eventually(lambda: is_answered(hub.port, person, f"{name}.ask"), f"{name} is there")  # noqa: B023
                person.questions.clear()
            each = QUESTIONS // (len(people) * len(servers) * WORKERS) + 1
            work = [(person, name, number) for person in people for name in servers for number in range(WORKERS)]
            await asyncio.gather(*(ask_on(hub.port, *which, calls=each) for which in work))
            assert sum(len(person.questions) for person in people) == each * len(work) >= QUESTIONS
            for person in people:
                assert len(set(person.questions)) == len(person.questions)
                assert {nonce.partition(":")[0] for nonce in person.questions} == {person.name}


async def is_answered(port: int, person: AnsweringCaller, tool: str) -> bool:
    lines = await Line.open(port), await Line.open(port)
    received, _ = await person.call(lines, tool, f"{person.name}:?")
    for line in lines:
        line.close()
    return "result" in received and not received["result"].get("isError")


async def ask_on(port: int, person: AnsweringCaller, server: str, worker: int, *, calls: int) -> None:
    """Call one after the other; every call gets its own nonce, and its own caller's answer."""
    lines = await Line.open(port), await Line.open(port)
    for at in range(calls):
        nonce = f"{person.name}:{server}:{worker}:{at}"
        received, asked = await person.call(lines, f"{server}.ask", nonce)
        assert received["id"] == 1
        assert text_of(received) == f"{nonce} {person.name}:{nonce}"
        # On a pipe, the call of a question within a conversation is ambiguous.
        assert asked == [nonce] or (server, person.era) == ("pipe", "legacy")
    for line in lines:
        line.close()


async def test_programs_without_sessions_of_one_caller_get_only_their_own_questions(tmp_path: Path) -> None:
    """They look alike: on an open hub, everybody is the same caller."""
    async with serving(tmp_path, {"pipe": {**ELICITING_SERVER, "era": "legacy"}}) as hub:
        programs = [AnsweringCaller(hub.port, f"program-{number}", "", "modern") for number in range(2)]
        await eventually(lambda: is_listed(hub.port, "pipe.ask"), "the server is there")
        # Nobody knows yet that it asks: a question that could be anybody's is declined, and no other comes to be.
        met = await asyncio.gather(*(ask_once(hub.port, person, at) for person in programs for at in range(WORKERS)))
        assert all(received == asked or UNSURE.message in received for received, asked in met), met
        work = [(person, "pipe", number) for person in programs for number in range(WORKERS)]
        await asyncio.gather(*(ask_on(hub.port, *which, calls=CALLS_EACH) for which in work))
        for person in programs:
            assert {nonce.partition(":")[0] for nonce in person.questions} == {person.name}
            assert len(person.questions) == len(set(person.questions)) >= CALLS_EACH * WORKERS
        assert 0 < len(with_mark(hub.pid, "eliciting_server")) <= len(work) + 2


async def ask_once(port: int, person: AnsweringCaller, number: int) -> tuple[str, str]:
    """The text that a call returned, and the text that it returns if its own program was asked."""
    lines = await Line.open(port), await Line.open(port)
    nonce = f"{person.name}:first:{number}"
    received, _ = await person.call(lines, "pipe.ask", nonce)
    for line in lines:
        line.close()
    return text_of(received), f"{nonce} {person.name}:{nonce}"


async def is_listed(port: int, tool: str) -> bool:
    async with Raw(f"http://127.0.0.1:{port}/mcp") as caller:
        return tool in await caller.names()


# -- what a caller carries -------------------------------------------------------------------------------------------


@servers_of_both_eras
async def test_a_state_that_was_touched_or_is_not_the_callers_is_refused_and_the_server_sees_nothing(
    tmp_path: Path, kind: str
) -> None:
    async with KINDS[kind]() as server, serving(tmp_path, {"s": server.entry}, callers=CALLERS) as hub:
        ann, ben = person_of(hub.port, "ann", "modern"), person_of(hub.port, "ben", "modern")
        await eventually(lambda: is_answered(hub.port, ann, "s.ask"), "the server is there")
        line = await Line.open(hub.port)
        response = await ann.once(line, "s.ask", "n")
        state, said = response["result"]["requestState"], responses(ann, response)
        calls, waiting = server.calls, set(server.answers)

        async def is_refused(person: AnsweringCaller, tool: str, nonce: str, text: str, path: str = "/mcp") -> bool:
            answer = await person.once(line, tool, nonce, path=path, requestState=text, inputResponses=said)
            error = answer.get("error", {})
            return (error.get("code"), error.get("data")) == (-32602, {"executed": "unknown", "reason": "bad_state"})

        for at, was in enumerate(state):
            changed = state[:at] + ("A" if was != "A" else "B") + state[at + 1 :]
            assert await is_refused(ann, "s.ask", "n", changed), at
        assert await is_refused(ben, "s.ask", "n", state)
        assert await is_refused(ann, "s.other", "n", state)
        assert await is_refused(ann, "s.ask", "m", state)
        assert await is_refused(ann, "ask", "n", state, "/mcp/s")
        for nonsense in ("", "x", "state of n", state + "A", state[:-1], state * 2):
            assert await is_refused(ann, "s.ask", "n", nonsense)
        assert (server.calls, set(server.answers)) == (calls, waiting)

        answered = await ann.once(line, "s.ask", "n", requestState=state, inputResponses=said)
        assert text_of(answered) == f"n {ann.name}:n"
        calls = server.calls
        for _ in range(3):
            assert await is_refused(ann, "s.ask", "n", state)
        assert server.calls == calls
        line.close()


def responses(person: AnsweringCaller, received: Any) -> dict[str, Any]:
    return {key: person.answer(question) for key, question in received["result"]["inputRequests"].items()}


async def test_a_state_of_a_tool_that_may_run_twice_may_come_back_twice(tmp_path: Path) -> None:
    """By the word of a server that the operator trusts; others' count for nothing (T45)."""
    async with ModernElicitingServer() as server, a_hub(tmp_path, server, trusted=True) as (_, port):
        ann, line = person_of(port, "ann", "modern"), await Line.open(port)
        response = await ann.once(line, "s.look", "n")
        more = {"requestState": response["result"]["requestState"], "inputResponses": responses(ann, response)}
        texts = [text_of(await ann.once(line, "s.look", "n", **more)) for _ in range(2)]
        assert texts == [f"n {ann.name}:n"] * 2
        line.close()


@servers_of_both_eras
async def test_a_state_that_has_ceased_to_hold_is_refused_and_the_server_sees_nothing(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(input_required, "STATE_SECONDS", 0.0)
    async with KINDS[kind]() as server, a_hub(tmp_path, server) as (_, port):
        ann, line = person_of(port, "ann", "modern"), await Line.open(port)
        response = await ann.once(line, "s.ask", "n")
        calls, waiting = server.calls, set(server.answers)
        more = {"requestState": response["result"]["requestState"], "inputResponses": responses(ann, response)}
        answer = await ann.once(line, "s.ask", "n", **more)
        assert answer["error"]["data"] == {"executed": "unknown", "reason": "bad_state"}
        assert (server.calls, set(server.answers)) == (calls, waiting)
        line.close()


async def test_an_invented_answer_of_a_legacy_caller_is_ignored(tmp_path: Path) -> None:
    async with ModernElicitingServer() as server, a_hub(tmp_path, server) as (_, port):
        ann, line = person_of(port, "ann", "legacy"), await Line.open(port)
        await ann.enter()
        made_up = {"requestState": "state of n", "inputResponses": {"q": {"action": "accept", "content": {}}}}
        line.write("/mcp", *ann.request("s.ask", "n", **made_up))
        async with asyncio.timeout(30):
            await line.head()
            assert (await line.event())["params"]["message"] == "n"
        assert server.calls == 1
        line.close()


class Closing(ModernElicitingServer):
    """Asks, and then takes no answer."""

    async def on_call(self, request: ReceivedRequest, out: asyncio.StreamWriter) -> None:
        if "inputResponses" in request.message["params"]:
            out.write(reply({"error": "closed"}, status=403))
        else:
            await super().on_call(request, out)


async def test_a_server_that_asked_may_have_run_the_call_though_it_takes_no_answer(tmp_path: Path) -> None:
    async with Closing() as server, a_hub(tmp_path, server) as (_, port):
        ann, lines = person_of(port, "ann", "legacy"), (await Line.open(port), await Line.open(port))
        await ann.enter()
        received, asked = await ann.call(lines, "s.ask", "n")
        assert (received["error"]["data"], asked) == ({"executed": "unknown", "reason": "lost", "server": "s"}, ["n"])
        for line in lines:
            line.close()


@asynccontextmanager
async def a_hub(folder: Path, server: ElicitingServer, **more: Any) -> AsyncIterator[tuple[InProcess, int]]:
    """A hub in this process, so that a test can shorten its patience; `more` is said of the server."""
    async with hub_of(folder, {"s": {**server.entry, **more}}, callers=CALLERS) as hub, listening(hub) as port:
        await hub.ready("s")
        yield hub, port


# -- nobody answers --------------------------------------------------------------------------------------------------


@servers_of_both_eras
async def test_a_caller_that_never_answers_a_question_gets_an_error(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with KINDS[kind]() as server, a_hub(tmp_path, server) as (hub, port):
        ann, line = person_of(port, "ann", "legacy"), await Line.open(port)
        await ann.enter()
        monkeypatch.setattr(running_call, "QUESTION_SECONDS", 0.2)
        line.write("/mcp", *ann.request("s.ask", "n"))
        async with asyncio.timeout(30):
            await line.head()
            question, withdrawal, answer = [await line.event() for _ in range(3)]
        assert question["params"]["message"] == "n"
        assert withdrawal["method"] == "notifications/cancelled"
        assert withdrawal["params"]["requestId"] == question["id"]
        assert answer["error"]["data"] == {"executed": "unknown", "reason": "unanswered", "server": "s"}
        assert "no answer within 0.2 s" in answer["error"]["message"]
        if kind == "legacy":
            await eventually(lambda: len(server.cancelled) == 1, "the server is cancelled")
        assert (server.calls, hub.running.hub.running()) == (1, 0)
        line.close()


async def test_a_modern_caller_that_answers_too_late_gets_an_error_and_so_did_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ElicitingServer() as server, a_hub(tmp_path, server) as (hub, port):
        ann, line = person_of(port, "ann", "modern"), await Line.open(port)
        monkeypatch.setattr(running_call, "QUESTION_SECONDS", 0.2)
        response = await ann.once(line, "s.ask", "n")
        await eventually(lambda: len(server.cancelled) == 1, "the server is cancelled")
        assert hub.running.hub.running() == 0
        more = {"requestState": response["result"]["requestState"], "inputResponses": responses(ann, response)}
        answer = await ann.once(line, "s.ask", "n", **more)
        assert answer["error"]["data"] == {"executed": "unknown", "reason": "unanswered", "server": "s"}
        assert server.calls == 1
        line.close()


async def test_while_every_slot_waits_for_an_answer_other_calls_end_as_busy(tmp_path: Path) -> None:
    async with ElicitingServer() as server:
        servers = {"s": {**server.entry, "max_calls": 1, "max_queued": 0}}
        async with hub_of(tmp_path, servers, callers=CALLERS) as hub, listening(hub) as port:
            await hub.ready("s")
            ann, ben, line = person_of(port, "ann", "modern"), person_of(port, "ben", "modern"), await Line.open(port)
            response = await ann.once(line, "s.ask", "n")
            refused = await ben.once(line, "s.ask", "m")
            data = {"executed": "no", "reason": "overloaded", "retryAfter": 1.0, "server": "s"}
            assert (refused["error"]["code"], refused["error"]["data"]) == (-32010, data)
            more = {"requestState": response["result"]["requestState"], "inputResponses": responses(ann, response)}
            assert text_of(await ann.once(line, "s.ask", "n", **more)) == f"n {ann.name}:n"
            assert "inputRequests" in (await ben.once(line, "s.ask", "m"))["result"]
            line.close()


# -- the caller leaves -----------------------------------------------------------------------------------------------


async def test_a_caller_that_ends_its_session_while_it_is_asked_withdraws_the_call(tmp_path: Path) -> None:
    async with ElicitingServer() as server, a_hub(tmp_path, server) as (hub, port):
        ann, line, other = person_of(port, "ann", "legacy"), await Line.open(port), await Line.open(port)
        await ann.enter()
        line.write("/mcp", *ann.request("s.ask", "n"))
        async with asyncio.timeout(30):
            await line.head()
            question = await line.event()
            other.delete("/mcp", ann.session)
            assert (await other.head())[":status"] == "204"
        await eventually(lambda: len(server.cancelled) == 1, "the server is cancelled")
        assert hub.running.hub.running() == 0
        other.write("/mcp", ann.session, {"id": question["id"], "result": {}})
        assert (await other.head())[":status"] == "404"
        line.close()
        other.close()


async def test_a_modern_caller_that_has_been_asked_may_hang_up_and_come_back(tmp_path: Path) -> None:
    async with ElicitingServer() as server, a_hub(tmp_path, server) as (_, port):
        ann, line = person_of(port, "ann", "modern"), await Line.open(port)
        response = await ann.once(line, "s.ask", "n")
        line.close()
        line = await Line.open(port)
        more = {"requestState": response["result"]["requestState"], "inputResponses": responses(ann, response)}
        assert text_of(await ann.once(line, "s.ask", "n", **more)) == f"n {ann.name}:n"
        assert (server.calls, server.cancelled) == (1, [])
        line.close()


async def test_a_modern_caller_that_hangs_up_after_it_came_back_withdraws_the_call(tmp_path: Path) -> None:
    async with ElicitingServer() as server, a_hub(tmp_path, server) as (hub, port):
        ann, line = person_of(port, "ann", "modern"), await Line.open(port)
        asked = {"nonce": "n", "hang": True}
        response = await ann.once(line, "s.ask", "n", arguments=asked)
        more = {"requestState": response["result"]["requestState"], "inputResponses": responses(ann, response)}
        line.write("/mcp", *ann.request("s.ask", "n", arguments=asked, **more))
        await eventually(lambda: not server.answers, "the server is answered")
        line.close()
        await eventually(lambda: len(server.cancelled) == 1, "the server is cancelled")
        assert hub.running.hub.running() == 0
