"""Listeners of the hub's tasks: asked once, notified of their own tasks, and removed without a trace."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from isthmus.core.calls.running_call import InFlight
from isthmus.core.tasks.live_task import LiveTask
from isthmus.core.watch.server_tasks import ServerTask
from isthmus.frontends.mcp.hub_tasks import REALM, HubTaskFollower, HubTaskInfo, HubTaskNotifier, ResultWaiter
from isthmus.model.calls import NOT_ASKED, Answered, Progress, Question, Reply, Result
from isthmus.wire.mcp.tasks import RELATED
from tests.unit.core.doubles import ANYONE, DONE, PROGRESS, SERVER, HeldLink, Listener, call, raw
from tests.unit.core.tasks.doubles import Workshop, draft, turns

FORM = Question("elicitation/create", raw({"message": "go on?"}))


async def begun(shop: Workshop, *news: HubTaskNotifier) -> LiveTask:
    """A task of this frontend whose call runs."""
    brief = msgspec.Raw(msgspec.json.encode(HubTaskInfo(SERVER, 60.0)))
    made = msgspec.structs.replace(draft(call(), state="working"), brief=brief, realm=REALM, listeners=news)
    return await shop.engine.begin(made)


def waiting(shop: Workshop, live: LiveTask, *can: str) -> tuple[ResultWaiter, InFlight, Listener]:
    """One that waits for the result, and can be asked this."""
    caller = Listener()
    asked = call(live.record.id, kind="task_result", client_caps=frozenset(can or {"elicitation"}))
    inflight = shop.stage.hub.start_builtin(asked, caller, HeldLink())
    return ResultWaiter(shop.engine, inflight, live), inflight, caller


async def test_a_waiting_caller_gets_the_result_and_stops_listening() -> None:
    shop = Workshop()
    live = await begun(shop)
    _, _, caller = waiting(shop, live)
    shop.sent[0].emit(PROGRESS)
    shop.sent[0].finish(DONE)
    await shop.engine.wait_idle()
    (result,) = caller.ends
    assert isinstance(result, Result)
    assert json.loads(bytes(result.payload))["_meta"] == {RELATED: {"taskId": live.record.id}}
    assert (caller.events, live.listeners) == ([], {})
    assert waiting(shop, live)[2].ends == [result]


async def test_each_question_is_put_to_one_of_them_and_answered_once() -> None:
    shop = Workshop()
    live = await begun(shop)
    (first, _, one), (_, _, other) = waiting(shop, live), waiting(shop, live)
    replies: list[Reply] = []
    for _ in range(2):
        shop.sent[0].ask(FORM, replies.append)
    await turns()
    assert (len(one.asked), len(other.asked)) == (1, 0)
    one.asked[0][1](Answered(raw({"first": 1})))
    await turns()
    assert (len(one.asked), len(other.asked)) == (2, 0)
    first.leave()
    assert len(other.asked) == 1
    other.asked[0][1](Answered(raw({"second": 2})))
    one.asked[1][1](Answered(raw({"late": 3})))
    assert replies == [Answered(raw({"first": 1})), Answered(raw({"second": 2}))]


async def test_only_a_caller_with_elicitation_is_asked() -> None:
    shop = Workshop()
    live = await begun(shop)
    _, _, unable = waiting(shop, live, "roots")
    replies: list[Reply] = []
    shop.sent[0].ask(FORM, replies.append)
    await turns()
    assert (unable.asked, live.record.state) == ([], "input_required")
    _, _, able = waiting(shop, live, "elicitation", "elicitation.form")
    able.asked[0][1](Answered(raw({"able": 1})))
    assert (unable.asked, replies) == ([], [Answered(raw({"able": 1}))])


async def test_a_caller_that_could_not_be_asked_has_not_answered_and_the_next_one_is_asked() -> None:
    shop = Workshop()
    live = await begun(shop)
    (_, inflight, one), (_, _, other) = waiting(shop, live), waiting(shop, live)
    replies: list[Reply] = []
    for _ in range(2):
        shop.sent[0].ask(FORM, replies.append)
    await turns()
    one.asked[0][1](NOT_ASKED)
    assert (replies, inflight.outcome, len(other.asked)) == ([], None, 1)
    for each in range(2):
        other.asked[each][1](Answered(raw({"each": each})))
        await turns()
    assert (len(one.asked), len(replies)) == (1, 2)


async def test_a_question_without_an_answerer_stays_open_for_one() -> None:
    shop = Workshop()
    live = await begun(shop)
    _, _, one = waiting(shop, live)
    replies: list[Reply] = []
    shop.sent[0].ask(FORM, replies.append)
    await turns()
    one.asked[0][1](NOT_ASKED)
    assert (replies, live.record.state) == ([], "input_required")
    assert len(waiting(shop, live)[2].asked) == 1


def news_of(shop: Workshop, **more: Any) -> tuple[HubTaskNotifier, list[str], list[LiveTask], list[Progress]]:
    received: list[str] = []
    ended: list[LiveTask] = []
    reports: list[Progress] = []

    def tell(task: ServerTask, is_other: bool) -> None:  # noqa: FBT001 - the type of a listener
        received.append(f"{task.state.status} {is_other}")

    shop.stage.hub.tasks.listen(ANYONE, "", tell)
    news = HubTaskNotifier(shop.stage.hub, ANYONE, SERVER, ended.append, report=reports.append, **more)
    return news, received, ended, reports


async def test_nothing_is_sent_before_the_caller_knows_of_the_task() -> None:
    shop = Workshop()
    news, received, ended, reports = news_of(shop, session="")
    live = await begun(shop, news)
    shop.sent[0].emit(PROGRESS)
    assert (received, reports) == ([], [])
    news.start(live)
    shop.sent[0].emit(PROGRESS)
    shop.sent[0].finish(DONE)
    await shop.engine.wait_idle()
    assert (received, ended, live.listeners) == (["completed True"], [live], {})
    related = [json.loads(bytes(report.members["_meta"])) for report in reports]
    assert related == [{RELATED: {"taskId": live.record.id}}] * 2  # the one from before is told once it may be


async def test_a_task_that_ended_before_is_reported_at_once() -> None:
    shop = Workshop()
    news, received, ended, _ = news_of(shop, session="")
    shop.link.at_once = lambda inflight: inflight.finish(DONE)
    live = await begun(shop, news)
    await shop.engine.wait_idle()
    assert (received, ended) == ([], [])
    news.start(live)
    assert (received, ended) == (["completed True"], [live])


async def test_no_conversation_is_notified_of_a_call_that_became_a_task() -> None:
    shop = Workshop()
    news, received, ended, _ = news_of(shop, session=None)
    live = await begun(shop, news)
    news.start(live)
    shop.sent[0].finish(DONE)
    await shop.engine.wait_idle()
    assert (received, ended) == ([], [live])


async def test_a_follower_of_a_task_is_notified_until_it_stops_or_the_task_ends() -> None:
    shop = Workshop()
    live = await begun(shop)
    received: list[list[Any]] = [[], [], []]
    one, other, late = [HubTaskFollower(live, notified.append) for notified in received]
    one.start()
    other.start()
    shop.sent[0].emit(PROGRESS)
    other.stop()
    shop.sent[0].finish(DONE)
    await shop.engine.wait_idle()
    late.start()
    statuses = [[json.loads(bytes(members["status"])) for members in notified] for notified in received]
    assert statuses == [["working", "completed"], ["working"], ["completed"]]
    assert live.listeners == {}
