"""Log levels of servers: the lowest level that a caller wants, and all lines if a caller chose no level."""

from __future__ import annotations

import asyncio

import pytest

from isthmus.core.watch import log_levels as module
from isthmus.core.watch.log_levels import LogLevels
from isthmus.model.calls import LogLevel
from isthmus.model.names import ServerName
from tests.unit.core.doubles import SERVER


def recorded_levels(levels: LogLevels) -> list[LogLevel | None]:
    received: list[LogLevel | None] = []
    levels.watch(lambda: received.append(levels.lowest))
    return received


def test_without_a_chosen_level_servers_choose_their_own() -> None:
    levels = LogLevels()
    received = recorded_levels(levels)
    levels.listen("a")
    levels.listen("b")
    levels.leave("a")
    assert (levels.lowest, received) == (None, [])


def test_the_most_talkative_level_that_anybody_wants_is_asked_for() -> None:
    levels = LogLevels()
    received = recorded_levels(levels)
    levels.want("a", "error")
    levels.want("b", "info")
    levels.want("c", "emergency")
    assert received == ["error", "info"]


def test_a_subscriber_that_leaves_or_wants_less_counts_as_well() -> None:
    levels = LogLevels()
    levels.want("a", "debug")
    levels.want("b", "warning")
    received = recorded_levels(levels)
    levels.want("a", "critical")
    levels.leave("b")
    levels.leave("b")
    levels.leave("never there")
    assert received == ["warning", "critical"]


def test_a_subscriber_without_a_level_loses_nothing_to_others() -> None:
    levels = LogLevels()
    levels.listen("a")
    received = recorded_levels(levels)
    levels.want("b", "error")
    levels.want("a", "alert")
    levels.listen("c")
    assert received == ["debug", "error", "debug"]


def test_once_a_level_was_chosen_the_servers_default_is_unknown() -> None:
    levels = LogLevels()
    levels.want("a", "error")
    levels.leave("a")
    assert levels.lowest == "debug"


def test_where_other_nodes_set_levels_too_the_first_choice_asks_for_everything_for_good() -> None:
    levels = LogLevels()
    levels.is_shared = True
    received = recorded_levels(levels)
    levels.listen("a")
    assert received == []
    levels.want("a", "error")
    levels.call("alert")
    levels.leave("a")
    assert received == ["debug"]


def test_choosing_again_and_again_is_one_choice() -> None:
    levels = LogLevels()
    received = recorded_levels(levels)
    levels.want("a", "debug")
    levels.want("a", "error")
    levels.want("b", "alert")
    levels.leave("a")
    assert received == ["debug", "error", "alert"]


def test_a_watcher_that_left_gets_nothing() -> None:
    levels = LogLevels()
    received: list[str] = []
    unwatch = levels.watch(lambda: received.append("told"))
    unwatch()
    unwatch()
    levels.want("a", "info")
    assert received == []


def test_a_lower_level_of_a_single_call_is_requested_once_and_stays() -> None:
    levels = LogLevels()
    received = recorded_levels(levels)
    levels.call("error")
    levels.call("info")
    levels.call("info")
    levels.call("alert")
    levels.want("a", "emergency")
    levels.leave("a")
    assert received == ["error", "info"]


def test_a_calls_level_costs_nothing_to_subscribers_without_one() -> None:
    levels = LogLevels()
    levels.listen("a")
    received = recorded_levels(levels)
    levels.call("error")
    levels.leave("a")
    assert received == ["debug", "error"]


async def test_choosing_a_level_waits_until_servers_have_accepted_it() -> None:
    levels, asking = LogLevels(), asyncio.get_running_loop().create_future()
    await levels.settled({SERVER})
    levels.track(SERVER, asking)
    waiting = asyncio.ensure_future(levels.settled({SERVER}))
    await asyncio.sleep(0)
    assert not waiting.done()
    asking.set_result(None)
    async with asyncio.timeout(30):
        await waiting
    assert levels._requests == {}


async def test_choosing_a_level_does_not_wait_for_servers_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TAKE_SECONDS", 3600.0)
    levels, silent = LogLevels(), asyncio.get_running_loop().create_future()
    levels.track(SERVER, silent)
    async with asyncio.timeout(30):
        await levels.settled({ServerName("another")})
    assert not silent.done()


async def test_servers_that_say_nothing_are_waited_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TAKE_SECONDS", 0.01)
    levels, asking = LogLevels(), asyncio.get_running_loop().create_future()
    levels.track(SERVER, asking)
    async with asyncio.timeout(30):
        await levels.settled({SERVER})
    assert not asking.done()
