"""Tasks with offline servers: unsent calls are stored, sent once when the server is back, and never twice."""

from __future__ import annotations

import asyncio
import json

import pytest
from msgspec import Raw
from msgspec.structs import replace

from isthmus.core.access.approval_rules import ApprovalRule, ApprovedBy
from isthmus.core.calls.approvals import CallApprovals
from isthmus.core.calls.server_queue import ServerQueue
from isthmus.core.catalog.sets import SetChange, SetSettings
from isthmus.core.settings import Limits
from isthmus.core.tasks.live_task import LiveTask, TaskNotStored
from isthmus.core.tasks.offline_tasks import OfflineQueue
from isthmus.core.tasks.record import TASK, TaskRecord, record_of
from isthmus.model.callers import Caller, FrontendName, Grants
from isthmus.model.calls import EVERYTHING, Answered, Call, Surface
from isthmus.model.names import ServerName
from isthmus.storage.memory import MemoryJournal
from tests.unit.core.doubles import ANYONE, DONE, SERVER, HeldLink, call, ready, tool
from tests.unit.core.tasks.doubles import (
    OWNER,
    SECONDS,
    HeldJournal,
    RecordingListener,
    Workshop,
    draft,
    turns,
    until,
    user_message,
)

GRACE = 60.0


def away(journal: MemoryJournal | None = None, *, grace: float = GRACE) -> Workshop:
    """A workshop whose server went away a moment ago."""
    shop = Workshop(journal)
    shop.stage.server_queue.grace = grace
    shop.stage.server_queue.detach("it left", is_failure=False)
    return shop


def come_back(shop: Workshop) -> None:
    shop.stage.server_queue.attach(shop.link)


async def kept(shop: Workshop, live: LiveTask) -> TaskRecord:
    document = await shop.journal.read(TASK, *live.key)
    assert document is not None
    return record_of(document)


async def next_hub(shop: Workshop) -> Workshop:
    """The workshop after a crash: what was in memory is gone; the server is known, and away."""
    after = away(shop.journal)
    after.seconds = shop.seconds
    after.engine.offline_queue.find_caller = lambda _: ANYONE
    assert await after.engine.recover() == []
    return after


def numbered(number: int) -> Call:
    return replace(call(), arguments=Raw(b'{"number":%d}' % number))


# -- while the hub runs ------------------------------------------------------------------------------------------------


async def test_a_waiting_call_is_stored_as_sent_only_right_before_sending() -> None:
    journal = HeldJournal()
    shop = away(journal)
    beginning = asyncio.ensure_future(shop.begin())
    await until(lambda: bool(journal.waiting))
    journal.settle()
    live = await beginning
    recorded = RecordingListener(live)
    assert (live.record.state, (await kept(shop, live)).phase) == ("submitted", "waiting")
    come_back(shop)
    await until(lambda: bool(journal.waiting))
    assert shop.sent == []
    journal.settle()
    assert len(shop.sent) == 1
    assert (await kept(shop, live)).phase == "sent"
    assert (await kept(shop, live)).pending is None
    journal.let_go()
    shop.sent[0].finish(DONE)
    await until(lambda: live.stored is not None and live.stored.is_terminal)
    assert recorded.states == ["working", "completed"]


async def test_tasks_are_sent_in_the_order_in_which_they_were_begun() -> None:
    shop = away()
    for number in range(5):
        await shop.begin(numbered(number))
    come_back(shop)
    await until(lambda: len(shop.sent) == 5)
    assert [inflight.call.arguments for inflight in shop.sent] == [numbered(number).arguments for number in range(5)]


async def test_a_server_that_is_gone_again_before_that_is_kept_is_waited_for_again() -> None:
    journal = HeldJournal()
    shop = away(journal)
    beginning = asyncio.ensure_future(shop.begin())
    await until(lambda: bool(journal.waiting))
    journal.settle()
    live = await beginning
    come_back(shop)
    await until(lambda: bool(journal.waiting))
    shop.stage.server_queue.detach("it left again", is_failure=False)
    journal.settle()
    assert (live.record.phase, shop.sent, shop.stage.notes.ends) == ("waiting", [], [])
    journal.let_go()
    assert (await kept(shop, live)).phase == "waiting"
    come_back(shop)
    await until(lambda: len(shop.sent) == 1)


async def test_a_task_that_waits_for_a_slot_waits_on_when_its_server_goes() -> None:
    shop = Workshop()
    shop.stage.server_queue.grace = GRACE
    shop.stage.server_queue.max_calls = 1
    first, second = await shop.begin(numbered(1)), await shop.begin(numbered(2))
    assert (len(shop.sent), second.record.phase, second.record.state) == (1, "waiting", "submitted")
    shop.stage.server_queue.detach("it left", is_failure=True)
    await turns()
    assert (first.record.phase, (await kept(shop, second)).phase) == ("sent", "waiting")
    come_back(shop)
    shop.sent[0].finish(DONE)
    await until(lambda: len(shop.sent) == 2)
    assert shop.sent[1].call.arguments == numbered(2).arguments


async def test_a_server_that_does_not_come_back_in_time_was_not_asked() -> None:
    shop = away(grace=0.01)
    live = await shop.begin()
    async with asyncio.timeout(SECONDS):
        await shop.engine.wait_idle()
    assert live.record.ending is not None
    assert (live.record.state, live.record.ending.reason, live.record.ending.executed) == (
        "failed",
        "not_connected",
        "no",
    )


async def test_a_task_waits_no_longer_than_it_may_take() -> None:
    shop = away()
    live = await shop.begin(replace(call(), timeout=0.01))
    shop.seconds += 1.0
    async with asyncio.timeout(SECONDS):
        await shop.engine.wait_idle()
    assert live.record.ending is not None
    assert (live.record.ending.reason, live.record.ending.executed) == ("timed_out", "no")


async def test_a_wait_ends_once_by_time_or_by_news() -> None:
    shop, received = away(), list[str]()
    server_queue, lives = shop.stage.server_queue, [await shop.begin() for _ in range(3)]
    names = dict(zip(lives, ("time", "news", "nothing"), strict=True))
    queue = OfflineQueue(shop.stage.hub, shop.now, lambda live, _: received.append(names[live]))
    queue._wait(lives[0], server_queue, 0.0)
    queue._wait(lives[1], server_queue, GRACE)
    queue._wait(lives[2], server_queue, 0.0)
    queue.stop(lives[2])
    await until(lambda: received == ["time"])
    server_queue.attach(HeldLink())
    await until(lambda: len(received) > 1)
    server_queue.detach("it left", is_failure=False)
    server_queue.attach(HeldLink())
    await turns()
    assert received == ["time", "news"]


async def test_the_time_that_a_task_waited_is_not_given_to_it_again() -> None:
    shop = away()
    await shop.begin()
    shop.seconds += 100.0
    come_back(shop)
    await until(lambda: len(shop.sent) == 1)
    assert shop.sent[0].timeout < Limits().hard_seconds - 100.0


async def test_a_task_that_is_given_up_while_it_waits_is_never_sent() -> None:
    shop = away()
    live = await shop.begin()
    assert shop.engine.cancel(live, "enough")
    come_back(shop)
    await turns()
    assert (live.record.state, shop.sent, (await kept(shop, live)).pending) == ("canceled", [], None)


async def test_a_call_that_would_be_refused_does_not_wait() -> None:
    shop = away()
    live = await shop.begin(replace(call(), name="none.such"))
    await turns()
    assert live.record.state == "failed"


async def test_as_many_wait_as_may_be_queued() -> None:
    shop = away()
    shop.stage.server_queue.max_queued = 2
    lives = [await shop.begin(numbered(number)) for number in range(3)]
    await turns()
    assert [live.record.state for live in lives] == ["submitted", "submitted", "rejected"]


async def test_a_message_that_begins_the_call_of_a_task_has_it_wait_too() -> None:
    shop = away()
    async with asyncio.timeout(SECONDS):
        live = await shop.engine.begin(draft(None, state="input_required"))
    shop.engine.continue_with(live, user_message("now", "m2"), call())
    await turns()
    assert (await kept(shop, live)).phase == "waiting"
    come_back(shop)
    await until(lambda: len(shop.sent) == 1)


async def test_a_server_that_is_called_otherwise_now_is_waited_for_by_that_name() -> None:
    shop = away()
    live = await shop.begin()
    hub = shop.stage.hub
    heir = ServerQueue(ServerName("papers"), hub.limits)
    heir.inherit(shop.stage.server_queue)
    hub.close_server_queue(SERVER)
    hub.open_server_queue(heir, replace(ready(tool(server="papers")), server=ServerName("papers")))
    # Another server has taken its name, and is there.
    other = HeldLink()
    server_queue = ServerQueue(SERVER, hub.limits)
    server_queue.attach(other)
    hub.open_server_queue(server_queue, ready(tool()))
    await turns()
    pending = (await kept(shop, live)).pending
    assert pending is not None
    assert (pending.server, other.sent) == ("papers", [])
    heir.attach(shop.link)
    await until(lambda: len(shop.sent) == 1)
    assert other.sent == []


async def test_a_task_that_waits_for_a_slot_follows_its_server_to_its_new_name_and_waits_on_there() -> None:
    shop = Workshop()
    hub, server_queue = shop.stage.hub, shop.stage.server_queue
    server_queue.grace, server_queue.max_calls = GRACE, 1
    await shop.begin(numbered(1))
    second = await shop.begin(numbered(2))
    heir = ServerQueue(ServerName("papers"), hub.limits, max_calls=1)
    heir.inherit(server_queue)
    hub.close_server_queue(SERVER)
    hub.open_server_queue(heir, replace(ready(tool(server="papers")), server=ServerName("papers"), agent="a"))
    heir.detach("it left", is_failure=True)
    await turns()
    pending = (await kept(shop, second)).pending
    assert pending is not None
    assert (pending.server, pending.agent) == ("papers", "a")
    heir.attach(shop.link)
    await until(lambda: len(shop.sent) == 2)


async def test_another_agents_server_is_not_called_in_the_place_of_one_that_is_gone() -> None:
    shop = away()
    await shop.begin(id="t")
    after = await next_hub(shop)
    after.stage.hub.publish(replace(ready(tool()), agent="somebody else"))
    come_back(after)
    after.engine.resume()
    async with asyncio.timeout(SECONDS):
        await after.engine.wait_idle()
    found = await after.engine.find(OWNER, "t")
    assert found is not None
    assert found.record.ending is not None
    assert (found.record.ending.reason, found.record.ending.executed, after.sent) == ("not_connected", "no", [])


# -- when it ends ------------------------------------------------------------------------------------------------------


async def test_unsent_calls_are_sent_once_after_a_crash() -> None:
    shop = away()
    lives = [await shop.begin(numbered(number), id=f"t{number}") for number in range(3)]
    after = await next_hub(shop)
    after.engine.resume()
    found = await after.engine.find(OWNER, "t0")
    assert found is not None
    assert (found.record.state, found is not lives[0]) == ("submitted", True)
    come_back(after)
    await until(lambda: len(after.sent) == 3)
    assert [inflight.call.arguments for inflight in after.sent] == [numbered(number).arguments for number in range(3)]
    for inflight in list(after.sent):
        inflight.finish(DONE)
    async with asyncio.timeout(SECONDS):
        await after.engine.wait_idle()
    third = await next_hub(after)
    third.engine.resume()
    come_back(third)
    await turns()
    assert third.sent == []


@pytest.mark.parametrize("caller", [None, replace(ANYONE, grants=Grants(("other.*",)))])
async def test_for_a_caller_without_permission_nothing_is_sent(caller: Caller | None) -> None:
    shop = away()
    await shop.begin(id="t")
    after = await next_hub(shop)
    after.engine.offline_queue.find_caller = lambda owner: caller if owner == OWNER else ANYONE
    after.engine.resume()
    come_back(after)
    async with asyncio.timeout(SECONDS):
        await after.engine.wait_idle()
    found = await after.engine.find(OWNER, "t")
    assert found is not None
    assert found.record.ending is not None
    assert (found.record.ending.reason, found.record.ending.executed, after.sent) == ("unknown_tool", "no", [])


@pytest.mark.parametrize(("frontend", "is_sent"), [("a2a", True), ("sse", False)])
async def test_by_whichever_frontend_it_came_a_call_is_sent_if_its_caller_may_still_call_there(
    frontend: FrontendName, *, is_sent: bool
) -> None:
    now = replace(ANYONE, frontends=(("sse", Grants((), ("files",))),))
    shop = away()
    came = replace(ANYONE, frontends=(("sse", Grants(("files",))), ("a2a", Grants(("files",)))))
    await shop.begin(replace(call(), caller=came.on(frontend)))
    after = await next_hub(shop)
    after.engine.offline_queue.find_caller = lambda _: now.on("mcp")
    after.engine.resume()
    come_back(after)
    async with asyncio.timeout(SECONDS):
        await turns()
        assert bool(after.sent) == is_sent


async def test_a_callers_grants_are_not_stored() -> None:
    shop = away()
    live = await shop.begin()
    pending = (await kept(shop, live)).pending
    assert pending is not None
    assert pending.call.caller.grants == Grants(())


# -- in a set ----------------------------------------------------------------------------------------------------------

ROOT = {"type": "object", "properties": {"root": {}, "path": {}}}
LOAD = SetSettings(tools=("*",), tool={"files.read": SetChange(name="load", fixed={"root": "/srv"})})
BOUND = replace(ANYONE, grants=Grants(("*",), set="dev"))


def with_set(shop: Workshop, server: str = SERVER) -> Workshop:
    shop.stage.hub.change_sets({"dev": LOAD})
    shop.stage.hub.publish(replace(ready(tool(server=server, inputSchema=ROOT)), server=ServerName(server)))
    return shop


@pytest.mark.parametrize(("surface", "caller"), [(Surface(set="dev"), ANYONE), (EVERYTHING, BOUND)])
async def test_a_call_of_a_set_is_sent_after_a_crash_as_the_set_says(surface: Surface, caller: Caller) -> None:
    shop = with_set(away())
    await shop.begin(call("load", {"path": "a"}, surface=surface, caller=caller))
    after = with_set(await next_hub(shop))
    after.engine.offline_queue.find_caller = lambda _: caller
    after.engine.resume()
    come_back(after)
    await until(lambda: len(after.sent) == 1)
    (inflight,) = after.sent
    assert inflight.name == "read"
    assert json.loads(bytes(inflight.call.arguments)) == {"path": "a", "root": "/srv"}


@pytest.mark.parametrize(("surface", "caller"), [(Surface(set="dev"), ANYONE), (EVERYTHING, BOUND)])
async def test_a_call_of_a_set_does_not_leave_it_with_a_renamed_server(surface: Surface, caller: Caller) -> None:
    shop = with_set(away())
    await shop.begin(call("load", {"path": "a"}, surface=surface, caller=caller))
    hub = shop.stage.hub
    heir = ServerQueue(ServerName("papers"), hub.limits)
    heir.inherit(shop.stage.server_queue)
    hub.close_server_queue(SERVER)
    hub.open_server_queue(heir, replace(ready(tool(server="papers", inputSchema=ROOT)), server=ServerName("papers")))
    await turns()
    heir.attach(shop.link)
    async with asyncio.timeout(SECONDS):
        await shop.engine.wait_idle()
    # The set names the tool of the old server only: nothing is sent without the fixed argument.
    assert shop.sent == []


class Standing(RecordingListener):
    """A listener with a waiting caller."""

    is_left = False

    def left(self) -> None:
        self.is_left = True


async def test_an_ending_hub_leaves_waiting_calls_to_the_next_one() -> None:
    shop = away()
    live = await shop.begin(id="t")
    waits, recorded = Standing(live), RecordingListener(live)
    shop.stage.hub.refuse_new_calls()
    shop.engine.release_offline()
    async with asyncio.timeout(SECONDS):
        await shop.engine.wait_idle()
    shop.stage.server_queue.stop_waiting("the hub is shutting down")
    come_back(shop)
    await turns()
    assert (waits.is_left, recorded.records, shop.sent) == (True, [], [])
    assert (await kept(shop, live)).phase == "waiting"
    after = await next_hub(shop)
    after.engine.resume()
    come_back(after)
    await until(lambda: len(after.sent) == 1)


async def test_a_call_whose_server_is_back_when_the_hub_ends_is_drained_as_any_other() -> None:
    journal = HeldJournal()
    shop = away(journal)
    beginning = asyncio.ensure_future(shop.begin())
    await until(lambda: bool(journal.waiting))
    journal.settle()
    live = await beginning
    come_back(shop)
    await until(lambda: bool(journal.waiting))
    shop.stage.hub.refuse_new_calls()
    shop.engine.release_offline()
    journal.let_go()
    assert len(shop.sent) == 1
    shop.sent[0].finish(DONE)
    async with asyncio.timeout(SECONDS):
        await shop.engine.wait_idle()
    assert (await kept(shop, live)).state == "completed"


# -- in a queue --------------------------------------------------------------------------------------------------------


async def queued(shop: Workshop) -> tuple[LiveTask, LiveTask]:
    """A task that runs, and one that waits for its slot."""
    shop.stage.server_queue.max_calls = 1
    return await shop.begin(numbered(1), id="runs"), await shop.begin(numbered(2), id="waits")


async def test_a_call_that_leaves_its_queue_is_sent_once_that_is_kept() -> None:
    journal = HeldJournal()
    journal.is_held = False
    shop = Workshop(journal)
    _, second = await queued(shop)
    recorded = RecordingListener(second)
    journal.is_held = True
    shop.sent[0].finish(DONE)
    await turns()
    assert (len(shop.sent), (await kept(shop, second)).phase) == (1, "waiting")
    journal.let_go()
    assert (len(shop.sent), (await kept(shop, second)).phase) == (2, "sent")
    shop.sent[1].finish(DONE)
    await until(lambda: second.stored is not None and second.stored.is_terminal)
    assert recorded.states == ["working", "completed"]


@pytest.mark.parametrize("has_slot", [False, True])
async def test_a_queued_task_that_is_cancelled_did_not_run_and_gives_its_slot_back(*, has_slot: bool) -> None:
    journal = HeldJournal()
    journal.is_held = False
    shop = Workshop(journal)
    _, second = await queued(shop)
    third = await shop.begin(numbered(3))
    if has_slot:
        journal.is_held = True
        shop.sent[0].finish(DONE)
    assert shop.engine.cancel(second, "enough")
    journal.let_go()
    if not has_slot:
        shop.sent[0].finish(DONE)
    await until(lambda: len(shop.sent) == 2 and third.record.phase == "sent")
    assert [inflight.call.arguments for inflight in shop.sent] == [numbered(1).arguments, numbered(3).arguments]
    assert second.record.ending is not None
    assert (second.record.state, second.record.ending.executed) == ("canceled", "no")
    assert shop.stage.server_queue.running == 1


async def test_queued_calls_run_after_a_crash_and_sent_ones_are_lost() -> None:
    shop = Workshop()
    await queued(shop)
    after = Workshop(shop.journal)
    after.seconds = shop.seconds
    after.engine.offline_queue.find_caller = lambda _: ANYONE
    assert [each.id for each in await after.engine.recover()] == ["runs"]
    after.engine.resume()
    await until(lambda: len(after.sent) == 1)
    assert after.sent[0].call.arguments == numbered(2).arguments


async def test_calls_queued_before_a_crash_wait_for_their_server() -> None:
    shop = Workshop()
    await queued(shop)
    after = Workshop(shop.journal)
    after.seconds = shop.seconds
    after.engine.offline_queue.find_caller = lambda _: ANYONE
    after.stage.server_queue.detach("it starts", is_failure=False)
    await after.engine.recover()
    after.engine.resume()
    await turns()
    found = await after.engine.find(OWNER, "waits")
    assert found is not None
    assert (found.record.state, after.sent) == ("submitted", [])
    come_back(after)
    await until(lambda: len(after.sent) == 1)


async def test_an_ending_hub_leaves_queued_calls_to_the_next_one() -> None:
    shop = Workshop()
    first, second = await queued(shop)
    waits = Standing(second)
    shop.stage.hub.refuse_new_calls()
    shop.engine.release_offline()
    assert not waits.is_left
    shop.engine.release_unsent()
    shop.sent[0].finish(DONE)
    async with asyncio.timeout(SECONDS):
        await shop.engine.wait_idle()
    assert (waits.is_left, len(shop.sent), first.record.state) == (True, 1, "completed")
    assert ((await kept(shop, second)).phase, shop.stage.server_queue.queued) == ("waiting", 0)


async def test_a_task_that_is_not_kept_leaves_no_call_behind() -> None:
    journal = HeldJournal()
    shop = Workshop(journal)
    shop.stage.server_queue.max_calls = 1
    beginning = [asyncio.ensure_future(shop.begin(numbered(number))) for number in range(2)]
    await until(lambda: len(journal.waiting) == 2)
    journal.settle("refused")
    journal.settle("refused")
    refused = await asyncio.gather(*beginning, return_exceptions=True)
    assert [type(each) for each in refused] == [TaskNotStored, TaskNotStored]
    assert (shop.sent, shop.stage.server_queue.running, shop.stage.server_queue.queued) == ([], 0, 0)


# -- approvals ---------------------------------------------------------------------------------------------------------


def asking(shop: Workshop, by: ApprovedBy) -> Workshop:
    """The workshop with a rule that every call must be allowed, by an operator or by its own caller."""
    shop.stage.hub.approvals = CallApprovals(shop.journal, shop.now, lambda *_, **__: None)
    shop.stage.hub.approvals.has_operator = True
    shop.stage.hub.approvals.change([ApprovalRule("all", ("*",), by=by, expires=7 * 24 * 3600.0)])
    return shop


ASKABLE = call(client_caps=frozenset({"elicitation", "elicitation.form"}))
LONG = 2 * Limits().hard_seconds


async def is_asked(live: LiveTask) -> None:
    await until(lambda: live.stored is not None and live.stored.asked is not None)


async def allow(shop: Workshop, live: LiveTask, by: ApprovedBy) -> None:
    """Allow the call of a task."""
    approvals = shop.stage.hub.approvals
    assert approvals is not None
    if by == "caller":
        content = Raw(b'{"action":"accept","content":{"decision":"once"}}')
        assert shop.engine.answer(live, user_message("yes"), Answered(content))
    else:
        assert await approvals.decide(approvals.list(BOSS).approvals[0].id, "allow", BOSS, "") is not None


BOSS = Caller("boss", "default", Grants(()), is_operator=True)


@pytest.mark.parametrize("by", ["operator", "caller"])
async def test_a_task_that_waited_long_for_a_person_may_still_wait_for_its_server(by: ApprovedBy) -> None:
    shop = asking(Workshop(), by)
    live = await shop.begin(ASKABLE)
    await is_asked(live)
    shop.seconds += LONG
    shop.stage.server_queue.grace = GRACE
    shop.stage.server_queue.detach("it left", is_failure=False)
    await allow(shop, live, by)
    await until(lambda: live in shop.engine.offline_queue or live.record.is_terminal)
    await turns()
    assert (await kept(shop, live)).phase == "waiting"
    come_back(shop)
    await until(lambda: len(shop.sent) == 1)


@pytest.mark.parametrize("by", ["operator", "caller"])
async def test_a_task_that_waited_long_for_a_person_waits_on_at_the_next_hub(by: ApprovedBy) -> None:
    shop = asking(Workshop(), by)
    await is_asked(await shop.begin(ASKABLE))
    shop.seconds += LONG
    after = asking(await next_hub(shop), by)
    assert after.stage.hub.approvals is not None
    await after.stage.hub.approvals.load()
    come_back(after)
    after.engine.resume()
    (live,) = after.engine._store.running()
    await until(lambda: live.record.is_terminal or (live.inflight is not None and bool(live.record.asked)))
    await turns(20)
    after.seconds += LONG
    await allow(after, live, by)
    await until(lambda: len(after.sent) == 1)
    assert (await kept(after, live)).phase == "sent"


@pytest.mark.parametrize("by", ["operator", "caller"])
async def test_a_task_that_was_allowed_late_and_waits_for_a_slot_waits_on_at_the_next_hub(by: ApprovedBy) -> None:
    shop = Workshop()
    shop.stage.server_queue.max_calls = 1
    await shop.begin(numbered(1))
    live = await asking(shop, by).begin(ASKABLE)
    await is_asked(live)
    shop.seconds += LONG
    await allow(shop, live, by)
    await until(lambda: live.record.asked is None and live.stored is live.record)
    assert len(shop.sent) == 1, "another task has the slot"
    after = away(shop.journal)
    after.seconds = shop.seconds
    after.engine.offline_queue.find_caller = lambda _: ANYONE
    await after.engine.recover()
    come_back(after)
    after.engine.resume()
    await until(lambda: len(after.sent) == 1)
