"""Tasks of the hub: begun before they are acknowledged, announced to their callers, forgotten in time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from isthmus.core.access.approval_rules import ApprovalRule
from isthmus.core.background import BackgroundTasks
from isthmus.core.calls.approvals import CallApprovals
from isthmus.core.calls.running_call import InFlight
from isthmus.core.calls.server_queue import ServerQueue
from isthmus.core.journal import Document, Page
from isthmus.core.tasks.engine import TaskEngine
from isthmus.core.tasks.record import owner_of
from isthmus.credentials.sealing import ProcessSealer
from isthmus.frontends.mcp import hub_tasks
from isthmus.frontends.mcp.hub_tasks import HubTasks
from isthmus.frontends.mcp.input_required import ModernClientInput
from isthmus.frontends.mcp.settings import TaskSettings
from isthmus.model.callers import Caller, Grants
from isthmus.model.calls import EVERYTHING, Answered, LogMessage, Question, Reply, Result, Surface
from isthmus.storage.memory import MemoryJournal
from isthmus.wire.mcp.tasks import RELATED, TASKS_CAPABILITY
from tests.unit.core.doubles import ANYONE, DONE, PROGRESS, SERVER, raw, ready, tool
from tests.unit.core.tasks.doubles import HeldJournal, turns, until
from tests.unit.frontends.mcp.doubles import META, Hosted, Talk

ANYBODY = Caller("anybody", ANYONE.tenant, ANYONE.grants, is_anyone=True)
OTHER = Caller("other", ANYONE.tenant, ANYONE.grants)
CAN: dict[str, Any] = {"extensions": {"io.modelcontextprotocol/tasks": {}}, "elicitation": {}}
KEY = "io.modelcontextprotocol/clientCapabilities"
DEFAULT = TaskSettings(after=0.01)
FORM = Question("elicitation/create", raw({"message": "go on?"}))
HELLO = {"protocolVersion": "2025-11-25", "capabilities": {"elicitation": {}}, "clientInfo": {"name": "t"}}


class House:
    """A hub with one plain server that holds its calls, an engine, and the frontend's tasks; time is the test's."""

    def __init__(self, journal: HeldJournal | None = None, keep: float = 1_000.0) -> None:
        self.hosted = Hosted(ready(tool(), tool("other")))
        self.hub = self.hosted.hub
        self.journal = journal or HeldJournal()
        if journal is None:
            self.journal.let_go()
        self.seconds = 100.0
        self.settings = DEFAULT
        self.background = BackgroundTasks("house")
        self.engine = TaskEngine(self.hub, self.journal, lambda: self.seconds)
        self.kept = HubTasks(
            self.hub,
            self.engine,
            self.journal,
            self.background,
            lambda: self.settings,
            lambda: keep,
            lambda: self.seconds,
        )
        self.hosted.mcp_methods.hub_tasks = self.kept
        self.hosted.mcp_methods.client_input = ModernClientInput(ProcessSealer(), self.hub.limits, gather_seconds=0)

    def talk(self, caller: Caller = ANYONE, surface: Surface = EVERYTHING) -> Talk:
        return Talk(self.hosted, caller, surface)

    @property
    def sent(self) -> list[Any]:
        return self.hosted.stage.link.sent


async def begin(talk: Talk, id: Any = "c", **task: Any) -> str:
    made = await talk.ask("tools/call", {"name": "files.read", "arguments": {}, "task": task}, id=id)
    return str(made["task"]["taskId"])


async def ask(talk: Talk, method: str, task: str, **more: Any) -> Any:
    return await talk.ask(method, {"taskId": task, **more}, id=f"{method} {len(talk.messages)}")


async def ask_modern(talk: Talk, method: str, **params: Any) -> Any:
    return await talk.ask_modern(method, params, id=f"{method} {len(talk.messages)}", **{KEY: CAN})


# -- beginning -----------------------------------------------------------------------------------------------------


async def test_a_task_is_acknowledged_once_it_is_kept_and_not_before() -> None:
    house = House(HeldJournal())
    talk = house.talk()
    talk.say("tools/call", {"name": "files.read", "arguments": {}, "task": {"ttl": 5_000}}, id="c")
    await turns()
    assert (talk.messages, house.sent) == ([], [])
    house.journal.settle()
    answer = await talk.reply("c")
    assert (answer["result"]["task"]["status"], answer["result"]["task"]["ttl"]) == ("working", 5_000)
    assert len(house.sent) == 1
    assert "task" not in house.sent[0].call.extra


async def test_a_task_that_cannot_be_stored_does_not_begin() -> None:
    house = House(HeldJournal())
    talk = house.talk()
    talk.say("tools/call", {"name": "files.read", "arguments": {}, "task": {}}, id="c")
    await turns()
    house.journal.settle("refused")
    error = (await talk.reply("c"))["error"]
    assert (error["code"], error["data"]["reason"], error["data"]["executed"]) == (-32603, "not_written", "no")
    assert house.sent == []


async def test_cancelling_the_request_before_its_acknowledgement_cancels_the_task() -> None:
    house = House(HeldJournal())
    talk = house.talk()
    talk.say("tools/call", {"name": "files.read", "arguments": {}, "task": {}}, id="c")
    await turns()
    talk.say("notifications/cancelled", {"requestId": "c"})
    assert (await talk.reply("c"))["error"]["data"]["reason"] == "cancelled"
    house.journal.let_go()
    await until(lambda: bool(house.hosted.stage.link.withdrawn))
    await house.engine.wait_idle()
    assert (await house.journal.page("task", owner_of(ANYONE, "mcp").key, limit=5)).documents[0].state == "canceled"


async def test_a_hub_that_shuts_down_begins_no_tasks() -> None:
    house = House()
    house.hub.refuse_new_calls()
    talk = house.talk()
    assert await talk.ask("tools/call", {"name": "files.read", "arguments": {}, "task": {}}) == -32010
    await house.background.aclose()
    assert await ask(talk, "tasks/get", "0" * 32) == -32010


async def test_no_task_is_kept_longer_than_any() -> None:
    talk = House(keep=60.0).talk()
    for id, (wanted, seconds) in enumerate([({"ttl": 10_000_000}, 60), ({}, 60), ({"ttl": 1_000}, 1)]):
        made = await talk.ask("tools/call", {"name": "files.read", "arguments": {}, "task": wanted}, id=id)
        assert made["task"]["ttl"] == seconds * 1000


async def test_a_task_may_take_as_long_as_any_call() -> None:
    house = House()
    await begin(house.talk())
    assert house.sent[0].timeout == house.hub.limits.hard_seconds


# -- asking about them ---------------------------------------------------------------------------------------------


async def test_several_callers_wait_for_a_result_and_one_that_leaves_ends_nothing() -> None:
    house = House()
    one, other = house.talk(), house.talk()
    id = await begin(one)
    for talk, number in ((one, 1), (one, 2), (other, 3)):
        talk.say("tasks/result", {"taskId": id}, id=number)
    await turns()
    one.say("notifications/cancelled", {"requestId": 1})
    assert "error" in await one.reply(1)
    house.sent[0].finish(DONE)
    for talk, number in ((one, 2), (other, 3)):
        assert (await talk.reply(number))["result"] == {"content": [], "_meta": {RELATED: {"taskId": id}}}


async def test_a_task_is_forgotten_when_its_time_has_passed_and_it_has_ended() -> None:
    house = House()
    talk = house.talk()
    id = await begin(talk, ttl=1_000)
    house.seconds += 500.0
    assert (await ask(talk, "tasks/get", id))["status"] == "working"
    house.sent[0].finish(DONE)
    await house.engine.wait_idle()
    house.seconds += hub_tasks.ENDED_SECONDS - 1.0
    assert (await ask(talk, "tasks/get", id))["status"] == "completed"
    house.seconds += 1.0
    assert (await talk.ask("tasks/list", id="l"))["tasks"] == []
    assert await ask(talk, "tasks/get", id) == -32602
    await turns()
    assert (await house.journal.page("task", owner_of(ANYONE, "mcp").key, limit=5)).total == 0


async def test_it_is_forgotten_by_itself_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_tasks, "ENDED_SECONDS", 0.0)
    house = House()
    talk = house.talk()
    await begin(talk, ttl=0)
    house.sent[0].finish(DONE)
    owner = owner_of(ANYONE, "mcp").key
    await until(lambda: not house.journal._documents)
    assert (await house.journal.page("task", owner, limit=5)).total == 0


async def test_not_more_than_so_many_are_forgotten_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isthmus.frontends.mcp.hub_tasks.EXPIRING_MAX", 1)
    house = House()
    talk = house.talk()
    for number, task in enumerate(({}, {"ttl": 1_000}, {"ttl": 1_000})):
        await begin(talk, number, **task)
        house.sent[-1].finish(DONE)
        await house.engine.wait_idle()
    assert house.kept._expiring == 1


async def test_a_task_of_the_hubs_own_is_followed_without_asking_its_server() -> None:
    house = House()
    id = await begin(house.talk())
    received: list[Any] = []
    following = await house.kept.follow(ANYONE, EVERYTHING, frozenset({TASKS_CAPABILITY}), id, received.append)
    assert following is not None
    following.start()
    house.sent[0].emit(PROGRESS)
    house.sent[0].finish(DONE)
    await house.engine.wait_idle()
    assert [json.loads(bytes(members["status"])) for members in received] == ["working", "completed"]
    assert await house.kept.follow(OTHER, EVERYTHING, frozenset({TASKS_CAPABILITY}), id, received.append) is None
    again = await house.kept.follow(ANYONE, EVERYTHING, frozenset({TASKS_CAPABILITY}), id, received.append)
    assert again is not None
    again.start()
    assert len(received) == 3


# -- questions -----------------------------------------------------------------------------------------------------


async def questioned() -> tuple[House, Talk, str, list[Reply]]:
    """A task that asks something, of a caller that can be asked."""
    house = House()
    talk = house.talk()
    await talk.ask("initialize", HELLO, id="hello")
    id = await begin(talk)
    replies: list[Reply] = []
    house.sent[0].ask(FORM, replies.append)
    await turns()
    return house, talk, id, replies


def asked_of(talk: Talk) -> list[Any]:
    return [message for message in talk.messages if message.get("method") == "elicitation/create"]


async def test_one_of_the_waiting_callers_is_asked_and_another_if_it_leaves() -> None:
    house, talk, id, replies = await questioned()
    assert (await ask(talk, "tasks/get", id))["status"] == "input_required"
    for number in (1, 2):
        talk.say("tasks/result", {"taskId": id}, id=number)
    await turns()
    (question,) = asked_of(talk)
    assert question["params"] == {"message": "go on?", "_meta": {RELATED: {"taskId": id}}}
    talk.say("notifications/cancelled", {"requestId": 1})
    await talk.until(lambda: len(asked_of(talk)) == 2)
    answer = {"jsonrpc": "2.0", "id": asked_of(talk)[1]["id"], "result": {"action": "accept"}}
    talk.receive(json.dumps(answer).encode())
    assert replies == [Answered(raw({"action": "accept"}))]
    house.sent[0].finish(DONE)
    assert "result" in await talk.reply(2)


async def test_a_question_that_was_answered_otherwise_is_taken_back() -> None:
    house, talk, id, replies = await questioned()
    talk.say("tasks/result", {"taskId": id}, id=1)
    await talk.until(lambda: bool(asked_of(talk)))
    assert await ask_modern(talk, "tasks/update", taskId=id, inputResponses={"q1": {"action": "decline"}}) == {
        "resultType": "complete"
    }
    await talk.until(lambda: any(message.get("method") == "notifications/cancelled" for message in talk.messages))
    assert replies == [Answered(raw({"action": "decline"}))]
    house.sent[0].finish(DONE)
    assert "result" in await talk.reply(1)


async def test_all_questions_are_listed_and_may_be_answered_in_parts() -> None:
    house, talk, id, replies = await questioned()
    house.sent[0].ask(FORM, replies.append)
    await turns()
    assert list((await ask_modern(talk, "tasks/get", taskId=id))["inputRequests"]) == ["q1", "q2"]
    await ask_modern(talk, "tasks/update", taskId=id, inputResponses={"q2": {"action": "decline"}})
    assert list((await ask_modern(talk, "tasks/get", taskId=id))["inputRequests"]) == ["q1"]
    await ask_modern(talk, "tasks/update", taskId=id, inputResponses={"q1": {"action": "accept"}})
    assert replies == [Answered(raw({"action": answer})) for answer in ("decline", "accept")]
    assert (await ask_modern(talk, "tasks/get", taskId=id))["status"] == "working"


async def test_an_answer_without_a_question_is_dropped() -> None:
    _, talk, id, replies = await questioned()
    wrong: list[Any] = [{}, {"q2": {}}, {"q1": 5}, 5]
    for answers in wrong:
        await ask_modern(talk, "tasks/update", taskId=id, inputResponses=answers)
    assert replies == []


async def test_a_caller_that_left_has_not_answered() -> None:
    house, talk, id, replies = await questioned()
    talk.say("tasks/result", {"taskId": id}, id=1)
    await talk.until(lambda: bool(asked_of(talk)))
    talk.conversation.cancel_all("it has left")
    await turns()
    assert replies == []
    assert (await ask(house.talk(), "tasks/get", id))["status"] == "input_required"


# -- notifications -------------------------------------------------------------------------------------------------


async def test_nothing_is_sent_about_a_task_before_its_caller_knows_of_it() -> None:
    house = House()
    talk = house.talk()
    await talk.ask("initialize", HELLO, id="hello")
    talk.say("notifications/initialized")
    house.hosted.stage.link.at_once = lambda inflight: inflight.finish(DONE)
    id = await begin(talk)
    await talk.until(lambda: len(talk.messages) == 3)
    answer, news = talk.messages[1:]
    assert answer["result"]["task"]["taskId"] == id
    assert (news["method"], news["params"]["status"]) == ("notifications/tasks/status", "completed")


async def test_progress_reaches_its_requester_and_log_lines_do_not() -> None:
    house = House()
    talk = house.talk()
    params = {"name": "files.read", "arguments": {}, "task": {}, "_meta": {"progressToken": 7}}
    id = (await talk.ask("tools/call", params))["task"]["taskId"]
    house.sent[0].emit(LogMessage("info", {"level": raw("info"), "data": raw("x")}))
    house.sent[0].emit(PROGRESS)
    assert talk.messages[1:] == [
        {
            "jsonrpc": "2.0",
            "method": "notifications/progress",
            "params": {"progressToken": 7, "progress": 1, "_meta": {RELATED: {"taskId": id}}},
        }
    ]


async def test_progress_before_the_task_is_acknowledged_follows_the_answer() -> None:
    house = House()
    talk = house.talk()
    house.hosted.stage.link.at_once = lambda inflight: inflight.emit(PROGRESS)
    params = {"name": "files.read", "arguments": {}, "task": {}, "_meta": {"progressToken": 7}}
    id = (await talk.ask("tools/call", params))["task"]["taskId"]
    house.sent[0].emit(PROGRESS)
    assert [message["params"]["_meta"] for message in talk.messages[1:]] == [{RELATED: {"taskId": id}}] * 2


async def test_a_task_is_called_in_the_conversation_that_asked_for_it() -> None:
    house = House()
    talk = house.talk()
    await talk.ask("initialize", HELLO, id="hello")
    for id in ("a", "b"):
        await begin(talk, id)
        house.sent[-1].finish(DONE)
        await house.engine.wait_idle()
    assert house.sent[0].call.session == house.sent[1].call.session != ""


# -- calls that become tasks ---------------------------------------------------------------------------------------


async def became(house: House, talk: Talk, **meta: Any) -> Any:
    return await talk.ask_modern("tools/call", {"name": "files.read", "arguments": {}}, id="m", **{KEY: CAN, **meta})


async def test_a_call_that_is_not_over_soon_becomes_a_task() -> None:
    house = House()
    talk = house.talk()
    made = await became(house, talk)
    assert (made["resultType"], made["status"]) == ("task", "working")
    assert not house.sent[0].call.comes_back, "its caller was let go, and is asked by the task"
    assert house.sent[0].timeout == house.hub.limits.hard_seconds
    replies: list[Reply] = []
    house.sent[0].ask(FORM, replies.append)
    await turns()
    state = await ask_modern(talk, "tasks/get", taskId=made["taskId"])
    assert state["inputRequests"] == {"q1": {"method": "elicitation/create", "params": {"message": "go on?"}}}
    await ask_modern(talk, "tasks/update", taskId=made["taskId"], inputResponses={"q1": {"action": "accept"}})
    house.sent[0].finish(DONE)
    await house.engine.wait_idle()
    ended = await ask_modern(talk, "tasks/get", taskId=made["taskId"])
    assert (ended["status"], ended["result"]) == ("completed", {"resultType": "complete", "content": []})
    assert replies == [Answered(raw({"action": "accept"}))]


def _finish(house: House) -> None:
    house.sent[0].finish(DONE)


def _ask(house: House) -> None:
    house.sent[0].ask(FORM, lambda _: None)


@pytest.mark.parametrize(("do", "kind"), [(_finish, "complete"), (_ask, "input_required")])
async def test_a_call_that_ends_while_its_task_is_stored_becomes_no_task(
    do: Callable[[House], None], kind: str
) -> None:
    house = House(HeldJournal())
    talk = house.talk()
    talk.say("tools/call", {"name": "files.read", "arguments": {}, "_meta": meta()}, id="m")
    await until(lambda: bool(house.journal.waiting))
    do(house)
    assert (await talk.reply("m"))["result"]["resultType"] == kind
    house.journal.let_go()
    await turns(20)
    assert not house.journal._documents


def meta() -> dict[str, Any]:
    return {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        KEY: CAN,
        "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
    }


async def test_a_call_whose_task_cannot_be_stored_continues_as_a_plain_call() -> None:
    house = House(HeldJournal())
    talk = house.talk()
    talk.say("tools/call", {"name": "files.read", "arguments": {}, "_meta": meta()}, id="m")
    await until(lambda: bool(house.journal.waiting))
    house.journal.settle("refused")
    await turns()
    house.sent[0].finish(DONE)
    assert (await talk.reply("m"))["result"]["resultType"] == "complete"


async def test_while_tasks_hold_half_of_a_server_no_call_becomes_one(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    admit_long_call = ServerQueue.admit_long_call

    def note(server_queue: ServerQueue, inflight: InFlight) -> bool:
        seen.append(admit_long_call(server_queue, inflight))
        return seen[-1]

    monkeypatch.setattr(ServerQueue, "admit_long_call", note)
    monkeypatch.setattr("isthmus.frontends.mcp.hub_tasks.RETRY_SECONDS", 0.01)
    house = House()
    house.hosted.stage.server_queue.adjust(2, 10, 60.0)
    task = await begin(house.talk())
    talk = house.talk()
    talk.say("tools/call", {"name": "files.read", "arguments": {}, "_meta": {**META, KEY: CAN}}, id="m")
    await until(lambda: len(seen) > 1)
    assert (talk.messages, set(seen)) == ([], {False})
    await ask(house.talk(), "tasks/cancel", task)
    assert (await talk.reply("m"))["result"]["resultType"] == "task"


async def test_a_quick_call_is_not_held_until_it_would_have_become_one() -> None:
    house = House()
    house.settings = TaskSettings(after=0.05)
    talk = house.talk()
    house.hosted.stage.link.at_once = lambda inflight: inflight.finish(Result(raw({"content": []})))
    assert (await became(house, talk))["resultType"] == "complete"
    await asyncio.sleep(0.15)  # the time after which it would have
    assert not house.journal._documents


async def test_a_server_that_decides_itself_is_left_to_it() -> None:
    house = House()
    house.hub.publish(ready(tool(), abilities=frozenset({"tools", "task_handles", "tasks"})))
    talk = house.talk()
    view = house.hub.snapshot.view(ANYONE.grants, EVERYTHING)
    assert not house.kept.applies_to(view, SERVER, "tasks")
    assert not house.kept.applies_to(view, SERVER, "task_handles")
    talk.say("tools/call", {"name": "files.read", "arguments": {}, "_meta": meta()}, id="m")
    await turns()
    assert not house.kept._slow._buckets


async def test_tasks_are_unavailable_when_switched_off() -> None:
    house = House()
    talk = house.talk()
    id = await begin(talk)
    house.settings = TaskSettings(provide=False)
    assert await ask(talk, "tasks/get", id) == -32601
    assert await talk.ask("tasks/list", id="l") == -32601
    talk.say("tools/call", {"name": "files.read", "arguments": {}, "task": {}}, id="plain")
    house.sent[-1].finish(DONE)
    assert (await talk.reply("plain"))["result"] == {"content": []}
    assert await house.kept.follow(ANYONE, EVERYTHING, frozenset({TASKS_CAPABILITY}), id, print) is None


class AwayJournal(HeldJournal):
    """A journal that cannot be read."""

    async def read(self, kind: str, owner: str, id: str) -> Document | None:
        raise OSError("the journal cannot be read: it is away")

    async def page(self, *_: Any, **__: Any) -> Page:
        raise OSError("the journal cannot be read: it is away")


async def test_an_unreadable_journal_is_reported_and_costs_nothing_else() -> None:
    house = House(AwayJournal())
    house.journal.let_go()
    talk = house.talk()
    talk.say("tasks/get", {"taskId": "0" * 32}, id="get")
    talk.say("tasks/list", id="list")
    for id in ("get", "list"):
        error = (await talk.reply(id))["error"]
        assert (error["code"], error["data"]["reason"]) == (-32603, "not_written")
        assert error["message"] == "the journal cannot be read: it is away"
    assert await house.kept.follow(ANYONE, EVERYTHING, frozenset({TASKS_CAPABILITY}), "0" * 32, print) is None
    house.kept._expire(owner_of(ANYONE, "mcp"), "0" * 32)
    assert await begin(talk)


async def test_a_defect_costs_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    house = House()
    talk = house.talk()
    id = await begin(talk)

    def broken(*_: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(hub_tasks, "result_of", broken)
    monkeypatch.setattr("isthmus.frontends.mcp.hub_tasks.legacy_status", broken)
    assert await ask(talk, "tasks/get", id) == -32603


# -- giving up, and lists ------------------------------------------------------------------------------------------


async def test_a_task_is_given_up_once_before_2026_07_28_and_as_often_as_liked_since() -> None:
    house = House()
    talk = house.talk()
    first, second = await begin(talk, 1), await begin(talk, 2)
    assert (await ask(talk, "tasks/cancel", first))["status"] == "cancelled"
    assert await ask(talk, "tasks/cancel", first) == -32602
    for _ in range(2):
        assert await ask_modern(talk, "tasks/cancel", taskId=second) == {"resultType": "complete"}
    assert [reason for _, reason in house.hosted.stage.link.withdrawn] == ["the caller cancelled the task"] * 2
    assert await ask(talk, "tasks/result", second) == -32012


async def test_a_caller_lists_its_own_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isthmus.frontends.mcp.methods.PAGE_MAX", 2)
    house = House()
    talk = house.talk()
    ids = [await begin(talk, number) for number in range(3)]
    await begin(house.talk(OTHER))
    first = await talk.ask("tasks/list", id="first")
    rest = await talk.ask("tasks/list", {"cursor": first["nextCursor"]}, id="rest")
    assert sorted(task["taskId"] for page in (first, rest) for task in page["tasks"]) == sorted(ids)
    assert (len(first["tasks"]), "nextCursor" in rest) == (2, False)
    assert await talk.ask("tasks/list", {"cursor": "Ingi"}, id="wrong") == -32602
    elsewhere = house.talk(surface=Surface("own", SERVER))
    assert len((await elsewhere.ask("tasks/list", id="own"))["tasks"]) == 2


async def test_an_indistinguishable_caller_lists_the_tasks_of_this_conversation() -> None:
    house = House()
    one, other = house.talk(ANYBODY), house.talk(ANYBODY)
    for talk in (one, other):
        response = (await talk.ask("initialize", {**HELLO, "capabilities": {}}, id="hello"))["capabilities"]["tasks"]
        assert sorted(response) == ["cancel", "requests"]
    id = await begin(one)
    assert [task["taskId"] for task in (await one.ask("tasks/list", id="list"))["tasks"]] == [id]
    assert (await other.ask("tasks/list", id="list"))["tasks"] == []
    assert (await ask(other, "tasks/get", id))["status"] == "working"
    assert (await ask(other, "tasks/cancel", id))["status"] == "cancelled"


async def test_a_caller_with_a_key_gets_the_capability_of_listing_tasks() -> None:
    response = await House().talk().ask("initialize", HELLO, id="hello")
    assert sorted(response["capabilities"]["tasks"]) == ["cancel", "list", "requests"]


async def test_an_invalid_task_request_is_refused() -> None:
    house = House()
    assert await house.talk().ask("tools/call", {"name": "files.read", "task": []}) == -32602
    assert house.sent == []


async def test_a_client_without_tasks_requests_none() -> None:
    house = House()
    talk = house.talk()
    id = await begin(talk)
    assert await talk.ask_modern("tasks/get", {"taskId": id}, id="m") == -32021
    assert await talk.ask("tasks/get", {"taskId": "made up"}, id="x") == -32602
    listed = await talk.ask("tools/list", id="old")
    assert "execution" not in listed["tools"][0]


async def test_a_subscription_follows_tasks_of_the_hubs_own() -> None:
    house = House()
    talk = house.talk()
    id = await begin(talk)
    params = {"notifications": {"taskIds": [id, "0" * 32]}, "_meta": meta()}
    talk.say("subscriptions/listen", params, id="s")
    await talk.until(lambda: len(talk.messages) == 3)
    acknowledged, received = talk.messages[1:]
    assert acknowledged["params"]["notifications"]["taskIds"] == [id]
    assert (received["method"], received["params"]["taskId"]) == ("notifications/tasks", id)
    talk.conversation.stop_notifying()
    house.sent[0].finish(DONE)
    await house.engine.wait_idle()
    assert len(talk.messages) == 3


# -- calls that wait for approval ----------------------------------------------------------------------------------


class Approving(House):
    """A house whose operator must allow every call."""

    def __init__(self, journal: HeldJournal | None = None) -> None:
        super().__init__(journal)
        # Its requests are stored at once, whatever happens to tasks.
        self.approvals = CallApprovals(MemoryJournal(), lambda: self.seconds, lambda *_, **__: None)
        self.approvals.has_operator = True
        self.hub.approvals = self.approvals
        self.approvals.change([ApprovalRule("all", ("*",))])

    async def held(self, talk: Talk) -> str:
        """Make a call that waits, and return the id of its request."""
        talk.say("tools/call", {"name": "files.read", "arguments": {}, "_meta": meta()}, id="m")
        await until(lambda: bool(self.approvals.list(BOSS).approvals))
        return self.approvals.list(BOSS).approvals[0].id

    async def allow(self, id: str) -> None:
        assert await self.approvals.decide(id, "allow", BOSS, "") is not None
        await turns(20)


BOSS = Caller("boss", ANYONE.tenant, Grants(()), is_operator=True)


async def test_a_call_that_waits_for_approval_becomes_a_task_that_joins_its_request() -> None:
    house = Approving()
    talk = house.talk()
    id = await house.held(talk)
    made = (await talk.reply("m"))["result"]
    assert (made["resultType"], made["status"]) == ("task", "working")
    waiting = await ask_modern(talk, "tasks/get", taskId=made["taskId"])
    assert (waiting["status"], id in waiting["statusMessage"]) == ("working", True)
    assert [each.id for each in house.approvals.list(BOSS).approvals] == [id]
    await house.allow(id)
    (sent,) = house.sent
    sent.finish(DONE)
    await house.engine.wait_idle()
    assert (await ask_modern(talk, "tasks/get", taskId=made["taskId"]))["status"] == "completed"
    assert len(house.approvals) == 0


async def test_a_decision_while_the_task_is_stored_is_used_once() -> None:
    house = Approving(HeldJournal())
    talk = house.talk()
    id = await house.held(talk)
    await until(lambda: bool(house.journal.waiting))
    await house.allow(id)
    assert house.sent == [], "nothing is sent before the task is stored"
    house.journal.let_go()
    assert (await talk.reply("m"))["result"]["resultType"] == "task"
    await until(lambda: bool(house.sent))
    assert (len(house.sent), len(house.approvals)) == (1, 0)


async def test_a_call_whose_task_cannot_be_stored_waits_on() -> None:
    house = Approving(HeldJournal())
    talk = house.talk()
    id = await house.held(talk)
    await until(lambda: bool(house.journal.waiting))
    house.journal.settle("refused")
    await turns()
    await house.allow(id)
    assert talk.messages == []
    house.sent[0].finish(DONE)
    assert (await talk.reply("m"))["result"]["resultType"] == "complete"


async def test_a_caller_that_leaves_while_the_task_is_stored_leaves_no_task() -> None:
    house = Approving(HeldJournal())
    talk = house.talk()
    id = await house.held(talk)
    await until(lambda: bool(house.journal.waiting))
    talk.say("notifications/cancelled", {"requestId": "m"})
    house.journal.let_go()
    await house.engine.wait_idle()
    await house.allow(id)
    assert house.sent == []
    assert not [each for each in talk.messages if "result" in each]


async def test_no_call_becomes_a_task_while_the_hub_goes_away() -> None:
    house = House()
    talk = house.talk()
    talk.say("tools/call", {"name": "files.read", "arguments": {}, "_meta": meta()}, id="m")
    house.hub.refuse_new_calls()
    house.kept._promote(house.sent[0])
    assert len(house.background) == 0
    house.sent[0].finish(DONE)
    assert (await talk.reply("m"))["result"]["resultType"] == "complete"
