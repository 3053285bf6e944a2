"""Telling modern callers how the tasks stand that they follow: asked of their servers until they end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from isthmus.frontends.mcp import subscriptions as module
from isthmus.frontends.mcp.subscriptions import McpClient, TaskPoller
from isthmus.frontends.mcp.tasks import public_id
from isthmus.model.callers import Caller
from isthmus.model.calls import EVERYTHING, NOT_ASKED, Progress, Question, Reply, Result, Surface
from isthmus.model.fault_table import ServerError, TimedOut
from isthmus.model.features import Ability
from isthmus.model.names import ServerName
from isthmus.wire.jsonrpc import Payload
from isthmus.wire.mcp.messages import TASKS_EXTENSION
from isthmus.wire.mcp.tasks import TASKS_CAPABILITY
from tests.hubs import META
from tests.unit.core.doubles import ANYONE, SERVER, raw, ready, tool
from tests.unit.frontends.mcp.doubles import SECONDS, Hosted, Talk

PROFILE = frozenset({TASKS_CAPABILITY})
STRANGER = Caller("stranger", ANYONE.tenant, ANYONE.grants)
MINE = public_id(ANYONE, SERVER, "t")
CAPABILITIES: dict[str, Any] = {"io.modelcontextprotocol/clientCapabilities": {"extensions": {TASKS_EXTENSION: {}}}}


def hosted(ability: Ability = "task_handles") -> Hosted:
    return Hosted(ready(tool(), abilities=frozenset({"tools", ability})))


class Following:
    """A subscription to one task, and its notifications."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "POLL_SECONDS", 0.0)
        monkeypatch.setattr(module, "POLL_SECONDS_MIN", 0.0)
        self.host = hosted()
        self.notified: list[dict[str, Any]] = []
        self.polls = TaskPoller(McpClient(self.host.hub, ANYONE, EVERYTHING, PROFILE), self.tell)

    async def begin(self) -> Following:
        assert await self.polls.add([MINE]) == (MINE,)
        self.polls.start()
        return self

    def tell(self, members: Mapping[str, Payload]) -> None:
        self.notified.append({key: json.loads(bytes(value)) for key, value in members.items()})

    @property
    def asked(self) -> int:
        return len(self.host.stage.link.sent)

    def answer(self, **state: Any) -> None:
        result = {"resultType": "complete", "taskId": "t", "status": "working", "_meta": {"x": 1}, **state}
        self.host.last_call.finish(Result(raw(result), is_typed=True))

    async def again(self, times: int) -> None:
        """Wait until the server was asked so often."""
        async with asyncio.timeout(SECONDS):
            while self.asked < times:  # noqa: ASYNC110 - a link has no notification
                await asyncio.sleep(0)


async def test_a_task_is_sent_as_it_stands_and_whenever_that_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    one = await Following(monkeypatch).begin()
    one.answer()
    await one.again(2)
    one.answer()
    await one.again(3)
    one.answer(statusMessage="soon", pollIntervalMs=1)
    await one.again(4)
    one.answer(status="completed", result={"content": []})
    assert one.notified == [
        {"taskId": MINE, "status": "working"},
        {"taskId": MINE, "status": "working", "statusMessage": "soon", "pollIntervalMs": 1},
        {"taskId": MINE, "status": "completed", "result": {"content": []}},
    ]
    asked = one.host.stage.link.sent[0].call
    assert (asked.kind, asked.name, asked.surface, asked.client_caps) == ("task", "t", Surface("own", SERVER), PROFILE)
    await nothing_more(one)


async def nothing_more(one: Following) -> None:
    """The server is not asked again, though the time for it has come."""
    asked = one.asked
    for _ in range(10):
        await asyncio.sleep(0)
    assert one.asked == asked


async def test_a_server_that_cannot_answer_now_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    one = await Following(monkeypatch).begin()
    one.host.last_call.finish(TimedOut(SERVER, 1.0, executed="unknown"))
    await one.again(2)
    one.answer(taskId="another")
    await one.again(3)
    one.answer()
    assert len(one.notified) == 1


async def test_polling_stops_when_the_server_has_forgotten_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    one = await Following(monkeypatch).begin()
    one.host.last_call.finish(ServerError(SERVER, -32602, "no such task"))
    await nothing_more(one)
    assert one.notified == []


async def test_a_caller_that_has_left_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    one = await Following(monkeypatch).begin()
    one.answer()
    one.polls.close()
    await nothing_more(one)
    other = await Following(monkeypatch).begin()
    other.polls.close()
    other.answer()
    other.polls.start()
    await nothing_more(other)
    assert (len(one.notified), other.notified) == (1, [])


async def test_questions_and_progress_of_a_server_meanwhile_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    one, answers = await Following(monkeypatch).begin(), list[Reply]()
    one.host.last_call.emit(Progress({}))
    one.host.last_call.exchange.ask(Question("roots/list", raw({})), answers.append)
    assert (answers, one.notified) == ([NOT_ASKED], [])


@pytest.mark.parametrize(
    ("id", "ability"),
    [
        ("t", "task_handles"),
        (public_id(STRANGER, SERVER, "t"), "task_handles"),
        (public_id(ANYONE, ServerName("gone"), "t"), "task_handles"),
        (MINE, "tasks"),
    ],
    ids=["made up", "a stranger's", "of a server that is gone", "of an earlier server"],
)
async def test_a_caller_cannot_poll_foreign_tasks(id: str, ability: Ability) -> None:
    host = hosted(ability)
    assert await TaskPoller(McpClient(host.hub, ANYONE, EVERYTHING, PROFILE), lambda _members: None).add([id]) == ()


async def test_polled_tasks_of_one_subscription_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLLED_MAX", 2)
    ids = [public_id(ANYONE, SERVER, own) for own in "abc"]
    polls = TaskPoller(McpClient(hosted().hub, ANYONE, EVERYTHING, PROFILE), lambda _members: None)
    assert await polls.add(ids) == tuple(ids[:2])


async def test_task_ids_beyond_the_bound_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLLED_MAX", 2)
    ids = iter(["made up", MINE, *(public_id(ANYONE, SERVER, own) for own in "bcd")])
    polls = TaskPoller(McpClient(hosted().hub, ANYONE, EVERYTHING, PROFILE), lambda _members: None)
    assert await polls.add(ids) == (MINE,)
    assert len(list(ids)) == 3


async def test_a_server_says_within_limits_how_often_it_likes_to_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    one = await Following(monkeypatch).begin()
    monkeypatch.setattr(module, "POLL_SECONDS_MIN", 3600.0)
    one.answer(pollIntervalMs=1)
    await nothing_more(one)
    one.polls.close()


# -- over a conversation -------------------------------------------------------------------------------------------


async def test_a_subscription_acknowledges_its_tasks_and_marks_notifications() -> None:
    host = hosted()
    talk = Talk(host)
    wanted = {"notifications": {"taskIds": [MINE, "made up"]}, "_meta": {**META, **CAPABILITIES}}
    talk.say("subscriptions/listen", wanted, id="s")
    await talk.until(lambda: bool(host.stage.link.sent))
    host.last_call.finish(Result(raw({"resultType": "complete", "taskId": "t", "status": "working"}), is_typed=True))
    acknowledged, received = talk.notifications()
    assert acknowledged["params"]["notifications"] == {"taskIds": [MINE]}
    assert received["method"] == "notifications/tasks"
    assert received["params"]["taskId"] == MINE
    assert received["params"]["_meta"] == acknowledged["params"]["_meta"]
    talk.say("notifications/cancelled", {"requestId": "s"})
    assert not talk.conversation._listens


async def test_a_client_without_the_extension_is_refused() -> None:
    talk = Talk(hosted())
    assert await talk.ask_modern("subscriptions/listen", {"notifications": {"taskIds": ["x"]}}) == -32021
    assert await talk.ask_modern("subscriptions/listen", {"notifications": {"taskIds": "x"}}, id=2) == -32602
