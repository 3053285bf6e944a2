"""Pages of a caller's tasks: the requests to servers, and the list if a server does not answer."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from isthmus.core.calls.running_call import InFlight
from isthmus.frontends.mcp import methods as module
from isthmus.frontends.mcp.methods import LegacyTaskList
from isthmus.frontends.mcp.subscriptions import McpClient
from isthmus.frontends.mcp.tasks import public_id
from isthmus.model.callers import Caller
from isthmus.model.calls import EVERYTHING, NOT_ASKED, ClientCapabilities, Outcome, Progress, Question, Reply, Surface
from isthmus.model.fault_table import Overloaded, ServerError, TimedOut
from isthmus.model.features import Ability
from isthmus.model.tasks import ServerTaskState
from isthmus.upstream.response_waiters import CallWaiter
from tests.unit.core.doubles import ANYONE, SERVER, raw, ready, tool
from tests.unit.frontends.mcp.doubles import SECONDS, Hosted, Talk

ABLE: frozenset[Ability] = frozenset({"tools", "tasks"})


def state(id: str, status: str = "working") -> ServerTaskState:
    members = {"taskId": raw(id), "status": raw(status)}
    return ServerTaskState(id, status, status == "completed", None, members)


def hosted(*ids: str) -> Hosted:
    """A hub whose link does not say where it is, so that tasks made nowhere are answered there."""
    host = Hosted(ready(tool(), abilities=ABLE))
    for id in ids:
        host.hub.tasks.created(ANYONE, SERVER, None, state(id))
    return host


async def page(
    host: Hosted, cursor: str | None = None, client_caps: ClientCapabilities = frozenset(), session: str = ""
) -> Any:
    pages = LegacyTaskList(McpClient(host.hub, ANYONE, EVERYTHING, client_caps, session))
    view = host.hub.snapshot.view(ANYONE.grants, EVERYTHING, client_caps)
    async with asyncio.timeout(SECONDS):
        result = await pages.page(view, cursor)
    return None if result is None else msgspec.json.decode(result)


async def test_anonymous_callers_list_tasks_of_their_own_conversation() -> None:
    anybody = Caller("anybody", ANYONE.tenant, ANYONE.grants, is_anyone=True)
    host = Hosted(ready(tool(), abilities=ABLE))
    for session in ("one", "other", ""):
        host.hub.tasks.created(anybody, SERVER, None, state(f"of {session}", "completed"), session=session)
    view = host.hub.snapshot.view(anybody.grants, EVERYTHING)
    for session, expected in (("one", [public_id(anybody, SERVER, "of one")]), ("", [])):
        result = await LegacyTaskList(McpClient(host.hub, anybody, EVERYTHING, session=session)).page(view, None)
        assert [task["taskId"] for task in msgspec.json.decode(result or b"")["tasks"]] == expected


def listed(page: Any) -> list[tuple[str, str]]:
    return [(task["taskId"], task["status"]) for task in page["tasks"]]


def shown(id: str) -> str:
    return public_id(ANYONE, SERVER, id)


def ending(host: Hosted, **outcomes: Outcome | str) -> None:
    """Have each question about a task end so; a word is a status that is answered."""

    def end(inflight: InFlight) -> None:
        outcome = outcomes[inflight.name]
        if isinstance(outcome, str):
            CallWaiter(inflight).result(raw({"taskId": inflight.name, "status": outcome}))
        else:
            inflight.finish(outcome)

    host.stage.link.at_once = end


async def test_those_that_run_are_asked_about_and_those_that_ended_are_not() -> None:
    host = hosted("1", "2")
    host.hub.tasks.answered(ANYONE, SERVER, None, state("1", "completed"))
    ending(host, **{"2": "input_required"})
    found = await page(host, client_caps=frozenset({"roots"}), session="s")
    assert listed(found) == [(shown("1"), "completed"), (shown("2"), "input_required")]
    (asked,) = host.stage.link.sent
    assert (asked.call.kind, asked.call.surface, asked.call.caller) == ("task", Surface("own", SERVER), ANYONE)
    assert (asked.call.client_caps, asked.call.session) == (frozenset({"roots"}), "s")


async def test_disowned_tasks_are_not_listed_and_unanswered_ones_are() -> None:
    host = hosted("gone", "late", "full", "odd")
    ending(
        host,
        gone=ServerError(SERVER, -32602, "no such task"),
        late=TimedOut(SERVER, 2.0, executed="unknown"),
        full=Overloaded(SERVER, 1, 1),
        odd=ServerError(SERVER, -32603, "a defect"),
    )
    found = await page(host)
    assert listed(found) == [(shown(id), "working") for id in ("late", "full", "odd")]
    assert [task.state.id for task in host.hub.tasks.tasks_for(ANYONE)] == ["late", "full", "odd"]


async def test_a_listing_forgets_only_tasks_of_its_own_conversation() -> None:
    host = hosted()
    host.hub.tasks.created(ANYONE, SERVER, None, state("1"), session="x")
    ending(host, **{"1": ServerError(SERVER, -32602, "no such task")})
    assert listed(await page(host, session="y")) == []
    assert len(host.hub.tasks.tasks_for(ANYONE)) == 1
    assert listed(await page(host, session="x")) == []
    assert len(host.hub.tasks.tasks_for(ANYONE)) == 0


async def test_a_server_that_says_nothing_is_waited_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUERY_SECONDS", 0.05)
    host = hosted(*"123456")  # one more than the failures for which a server is given a rest
    assert listed(await page(host)) == [(shown(id), "working") for id in "123456"]
    assert [why for _, why in host.stage.link.withdrawn] == ["the list does not wait for it"] * 6
    assert not host.stage.server_queue._breaker.wait(host.hub.now())


async def test_questions_and_progress_of_a_server_meanwhile_are_dropped() -> None:
    host, answers = hosted("1"), list[Reply]()

    def ask(inflight: InFlight) -> None:
        inflight.emit(Progress({}))
        inflight.exchange.ask(Question("roots/list", raw({})), answers.append)
        inflight.finish(Overloaded(SERVER, 1, 1))

    host.stage.link.at_once = ask
    assert len((await page(host))["tasks"]) == 1
    assert answers == [NOT_ASKED]


async def test_a_cursor_leads_to_the_next_page_and_to_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAGE_MAX", 2)
    host = hosted("1", "2", "3", "4")
    ending(host, **dict.fromkeys("1234", "working"))
    first = await page(host)
    host.hub.tasks.forget(host.hub.tasks.tasks_for(ANYONE)[1])
    second = await page(host, first["nextCursor"])
    assert [listed(found) for found in (first, second)] == [
        [(shown("1"), "working"), (shown("2"), "working")],
        [(shown("3"), "working"), (shown("4"), "working")],
    ]
    assert "nextCursor" not in second
    for wrong in ("", "x", "é", "bnVsbA==", "WzFd", "MS41"):
        assert await page(host, wrong) is None


async def test_the_methods_lists_for_callers_of_the_earlier_era_that_can_have_tasks() -> None:
    talk = Talk(hosted())
    assert await talk.ask("tasks/list", id=1) == {"tasks": []}
    assert await talk.ask("tasks/list", {"cursor": 7}, id=2) == -32602
    assert await talk.ask("tasks/list", {"cursor": None}, id=3) == {"tasks": []}
    assert await talk.ask_modern("tasks/list", id=4) == -32601
    assert await Talk(Hosted()).ask("tasks/list") == -32601
