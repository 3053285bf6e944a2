"""Servers come, change and go: no call waits for it or is lost, and nothing is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from isthmus.core.catalog.tool_rules import ToolRules
from isthmus.core.settings import Limits
from isthmus.model.fault_table import Lost, NotConnected, UnknownTool
from isthmus.upstream import server_set as module
from isthmus.upstream.server_settings import StdioSettings
from tests.unit.core.doubles import ANYONE, DONE, call
from tests.unit.upstream.scripted import NAME, Kept, Scripted, finish, settings

OTHER = StdioSettings("another")


@pytest.fixture
async def kept() -> AsyncIterator[Kept]:
    made = Kept()
    yield made
    await made.aclose()


def held(kept: Kept) -> asyncio.Event:
    """Have the next links wait with their greeting until the event is set."""
    opened = asyncio.Event()

    def prepare(link: Scripted) -> None:
        link.greeting = opened

    kept.prepare = prepare
    return opened


async def changing(kept: Kept) -> tuple[Scripted, Scripted, asyncio.Event]:
    """A server that is being changed: its link, the one to come, and what lets that one be greeted."""
    old = await kept.ready()
    opened = held(kept)
    kept.supervisor.change(settings(OTHER))
    await kept.until(lambda: len(kept.links) == 2)
    return old, kept.links[1], opened


async def test_a_disabled_server_is_known_and_not_started(kept: Kept) -> None:
    kept.keep(disabled=True)
    assert kept.server_status.state == "disabled"
    assert (kept.links, kept.supervisor.reconnectors, len(kept.background)) == ([], {}, 0)


# -- changing ------------------------------------------------------------------------------------------------------


async def test_settings_that_need_no_new_link_apply_in_place(kept: Kept) -> None:
    link = await kept.ready()
    running, _ = kept.start()
    server_queue = kept.hub.server_queues[NAME]
    kept.supervisor.change(settings(timeout=7.0, max_calls=1, max_queued=0, rules=ToolRules(hidden=("read",))))
    assert (server_queue.timeout, server_queue.max_calls, server_queue.max_queued) == (7.0, 1, 0)
    assert kept.hub.server_queues[NAME] is server_queue
    assert isinstance(kept.start()[1].fault, UnknownTool)
    assert (running.outcome, link.is_closed, len(kept.links)) == (None, False, 1)
    finish(running)


async def test_until_a_changed_server_is_ready_the_old_one_serves(kept: Kept) -> None:
    old, new, opened = await changing(kept)
    new.names = ["write"]
    before, _ = kept.start()
    assert old.sent == [before]
    assert [offered.name for offered in kept.server_status.tools] == ["read"]
    opened.set()
    await kept.until(lambda: [offered.name for offered in kept.server_status.tools] == ["write"])
    after, _ = kept.start(call("files.write"))
    assert new.sent == [after]
    assert (before.outcome, old.is_closed) == (None, False)
    finish(before)
    finish(after)
    await kept.until(lambda: old.is_closed)
    assert before.outcome is DONE


async def test_calls_on_the_old_link_count_until_they_end(kept: Kept) -> None:
    _, _, opened = await changing(kept)
    running, _ = kept.start()
    opened.set()
    await kept.until(lambda: kept.supervisor.reconnectors[NAME].settings.reach == OTHER)
    assert kept.hub.running() == 1
    finish(running)
    assert kept.hub.running() == 0


async def test_queued_calls_of_the_old_server_are_answered_by_it(kept: Kept) -> None:
    old = await kept.ready(max_calls=1)
    running, _ = kept.start()
    waiting, _ = kept.start()
    kept.supervisor.change(settings(OTHER))
    await kept.until(lambda: kept.supervisor.reconnectors[NAME].settings.reach == OTHER)
    assert old.sent == [running]
    finish(running)
    assert old.sent == [running, waiting]
    finish(waiting)
    await kept.until(lambda: old.is_closed)


async def test_a_changed_server_that_cannot_be_reached_is_shown_with_the_reason(kept: Kept) -> None:
    old = await kept.ready()
    kept.refuse("no such command")
    kept.supervisor.change(settings(OTHER))
    await kept.until(lambda: kept.server_status.state == "retrying")
    assert kept.server_status.reason == "no such command"
    await kept.until(lambda: old.is_closed)


async def test_a_changed_server_that_takes_too_long_is_shown_all_the_same(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TAKE_OVER_SECONDS", 0.01)
    old, _, opened = await changing(kept)
    await kept.until(lambda: kept.server_status.state == "starting")
    await kept.until(lambda: old.is_closed)
    opened.set()
    await kept.until(lambda: kept.server_status.state == "ready")


async def test_a_server_that_is_changed_again_before_it_was_ready_is_never_shown(kept: Kept) -> None:
    old, first, opened = await changing(kept)
    first.names = ["never"]
    kept.prepare = lambda _link: None
    kept.supervisor.change(settings(StdioSettings("third")))
    await kept.until(lambda: kept.supervisor.reconnectors[NAME].settings.reach == StdioSettings("third"))
    await kept.until(lambda: first.is_closed and old.is_closed)
    opened.set()
    await kept.until(lambda: len(kept.background) == 1)  # the reconnector, and no waiter for the abandoned link
    assert [offered.name for offered in kept.server_status.tools] == ["read"]


async def test_a_server_that_is_changed_back_before_the_other_was_ready_goes_on(kept: Kept) -> None:
    old, new, _ = await changing(kept)
    kept.supervisor.change(settings(timeout=9.0))
    await kept.until(lambda: new.is_closed)
    await kept.until(lambda: len(kept.background) == 1)
    assert kept.hub.server_queues[NAME].timeout == 9.0
    assert not old.is_closed


async def test_a_server_can_be_disabled_and_enabled_again(kept: Kept) -> None:
    old = await kept.ready()
    kept.supervisor.change(settings(disabled=True))
    assert kept.server_status.state == "disabled"
    assert kept.supervisor.reconnectors == {}
    await kept.until(lambda: old.is_closed)
    kept.supervisor.change(settings())
    await kept.until(lambda: kept.server_status.state == "ready")
    assert len(kept.links) == 2


async def test_cached_results_of_the_old_server_are_not_reused(kept: Kept) -> None:
    rules = ToolRules(cached=("read",))
    await kept.ready(rules=rules)
    finish(kept.start()[0])
    assert kept.start()[0].outcome is not None
    kept.supervisor.change(settings(OTHER, rules=rules))
    await kept.until(lambda: kept.supervisor.reconnectors[NAME].settings.reach == OTHER)
    again, _ = kept.start()
    assert again.outcome is None
    finish(again)


async def test_subscriptions_move_to_the_new_link(kept: Kept) -> None:
    old = await kept.ready()
    received: list[str] = []
    assert await kept.hub.subscriptions.add((NAME, "file:///x"), lambda: received.append("told")) is None
    kept.supervisor.change(settings(OTHER))
    await kept.until(lambda: old.is_closed)
    new = kept.links[1]
    await kept.until(lambda: "file:///x" in new._modern_subscriptions.wanted)
    await kept.until(lambda: received == ["told"])  # it may have changed while the servers did
    new.on_updated("file:///x")
    assert received == ["told", "told"]


async def test_an_heir_asks_for_nothing_before_it_takes_over(kept: Kept) -> None:
    old, new, opened = await changing(kept)
    await kept.hub.subscriptions.add((NAME, "file:///x"), lambda: None)
    assert ("file:///x" in old._modern_subscriptions.wanted, "file:///x" in new._modern_subscriptions.wanted) == (
        True,
        False,
    )
    opened.set()
    await kept.until(lambda: "file:///x" in new._modern_subscriptions.wanted)


# -- going ---------------------------------------------------------------------------------------------------------


async def test_a_removed_server_is_unseen_at_once_and_its_calls_finish(kept: Kept) -> None:
    link = await kept.ready()
    running, listener = kept.start()
    kept.supervisor.remove(NAME)
    assert (NAME in kept.hub.snapshot.server_statuses, NAME in kept.hub.server_queues) == (False, False)
    assert isinstance(kept.start()[1].fault, UnknownTool)
    assert not link.is_closed
    finish(running)
    assert listener.ends == [DONE]
    await kept.until(lambda: link.is_closed and len(kept.background) == 0)


async def test_calls_of_a_removed_server_do_not_run_for_ever() -> None:
    kept = Kept(Limits(drain_seconds=0.01))
    link = await kept.ready()
    _, listener = kept.start()
    kept.supervisor.remove(NAME)
    await kept.until(lambda: link.is_closed)
    assert isinstance(listener.fault, Lost)
    await kept.aclose()


async def test_a_server_that_is_removed_while_it_starts_leaves_nothing(kept: Kept) -> None:
    held(kept)
    kept.keep()
    await kept.until(lambda: len(kept.links) == 1)
    assert kept.hub.settling
    kept.supervisor.remove(NAME)
    assert not kept.hub.settling
    await kept.until(lambda: kept.links[0].is_closed and len(kept.background) == 0)
    assert kept.hub.snapshot.server_statuses == {}


async def test_a_server_that_is_removed_before_it_began_leaves_nothing(kept: Kept) -> None:
    kept.keep()
    kept.supervisor.remove(NAME)
    await kept.until(lambda: len(kept.background) == 0)
    assert all(link.is_closed for link in kept.links)


async def test_a_server_that_is_removed_while_it_changes_leaves_nothing(kept: Kept) -> None:
    old, new, opened = await changing(kept)
    kept.supervisor.remove(NAME)
    opened.set()
    await kept.until(lambda: old.is_closed and new.is_closed and len(kept.background) == 0)
    assert kept.hub.snapshot.server_statuses == {}


async def test_a_removed_server_that_is_lost_is_not_started_again(kept: Kept) -> None:
    link = await kept.ready()
    running, _ = kept.start()
    kept.supervisor.remove(NAME)
    await asyncio.sleep(0)
    link.die("crashed")
    await kept.until(lambda: len(kept.background) == 0)
    assert isinstance(running.outcome, Lost)
    assert len(kept.links) == 1


async def test_a_server_that_comes_back_under_its_name_is_a_new_one(kept: Kept) -> None:
    old = await kept.ready()
    running, _ = kept.start()
    kept.supervisor.remove(NAME)
    await kept.ready()
    fresh, _ = kept.start()
    assert (old.sent, kept.links[1].sent) == ([running], [fresh])
    finish(running)
    finish(fresh)
    await kept.until(lambda: old.is_closed)
    assert kept.server_status.state == "ready"


async def test_resources_of_a_removed_server_cannot_be_subscribed(kept: Kept) -> None:
    await kept.ready()
    kept.supervisor.remove(NAME)
    assert isinstance(await kept.hub.subscriptions.add((NAME, "file:///x"), lambda: None), NotConnected)


async def test_closing_notifies_waiters_and_closes_everything_at_once() -> None:
    kept = Kept()
    old, new, _ = await changing(kept)
    running, _ = kept.start()
    await kept.supervisor.aclose()
    assert old.is_closed
    assert new.is_closed
    assert isinstance(running.outcome, Lost)
    assert isinstance(kept.start()[1].fault, NotConnected)
    await kept.aclose()


async def test_many_changes_leave_one_link_and_one_task(kept: Kept) -> None:
    await kept.ready()
    for number in range(100):
        kept.supervisor.change(settings(StdioSettings(f"server {number}")))
        if number % 3 == 0:
            await asyncio.sleep(0)
        if number % 10 == 0:
            inflight, _ = kept.start(call(caller=ANYONE))
            assert inflight.outcome is None
            finish(inflight)
    await kept.until(lambda: kept.supervisor.reconnectors[NAME].settings.reach == StdioSettings("server 99"))
    await kept.until(lambda: len(kept.background) == 1)
    assert [link for link in kept.links if not link.is_closed] == [kept.links[-1]]
