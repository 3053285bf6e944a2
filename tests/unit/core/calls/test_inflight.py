"""A call in flight ends exactly once, whoever is first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import permutations

import pytest

from isthmus.core.calls.inflight import InFlight
from isthmus.model.events import Event
from isthmus.model.faults import Cancelled, Lost, TimedOut
from isthmus.model.outcomes import Outcome
from tests.unit.core.doubles import DONE, PROGRESS, SERVER, Listener, Notes, Stage, call


async def test_a_call_ends_once_and_frees_its_slot() -> None:
    stage = Stage()
    inflight, listener = stage.start()
    assert stage.lane.running == 1
    assert inflight.finish(DONE)
    assert listener.ends == [DONE]
    assert stage.lane.running == 0
    assert stage.notes.ends == [("files.read", SERVER, DONE)]


async def test_a_late_answer_is_counted_and_dropped() -> None:
    stage = Stage()
    inflight, listener = stage.start()
    inflight.finish(DONE)
    assert not inflight.finish(Lost(SERVER, "too late", executed="unknown"))
    assert listener.ends == [DONE]
    assert stage.notes.lates == [SERVER]
    assert len(stage.notes.ends) == 1
    assert stage.lane.running == 0


async def test_whatever_comes_first_wins_and_the_rest_changes_nothing() -> None:
    ways: dict[str, Callable[[InFlight], object]] = {
        "answer": lambda inflight: inflight.finish(DONE),
        "loss": lambda inflight: inflight.finish(Lost(SERVER, "gone", executed="unknown")),
        "withdrawal": lambda inflight: inflight.cancel("enough"),
        "deadline": lambda inflight: inflight.expire(),
    }
    kinds = {"answer": type(DONE), "loss": Lost, "withdrawal": Cancelled, "deadline": TimedOut}
    for order in permutations(ways):
        stage = Stage()
        inflight, listener = stage.start()
        for way in order:
            ways[way](inflight)
        assert [type(end) for end in listener.ends] == [kinds[order[0]]], order
        assert stage.lane.running == 0


async def test_a_late_answer_to_a_call_that_found_no_tool_is_nobodys() -> None:
    stage = Stage()
    inflight, listener = stage.start(call("files.none"))
    assert not inflight.finish(DONE)
    assert len(listener.ends) == 1
    assert stage.notes.lates == []


async def test_events_reach_the_caller_only_until_the_end() -> None:
    stage = Stage()
    inflight, listener = stage.start()
    inflight.emit(PROGRESS)
    inflight.finish(DONE)
    inflight.emit(PROGRESS)
    assert listener.events == [PROGRESS]


@pytest.mark.parametrize(("has_left", "executed"), [(True, "unknown"), (False, "no")])
async def test_a_deadline_says_whether_the_tool_may_have_run_and_tells_the_server(
    *, has_left: bool, executed: str
) -> None:
    stage = Stage()
    stage.link.has_left = has_left
    inflight, listener = stage.start(call(timeout=0.001))
    async with asyncio.timeout(30):
        await listener.ended.wait()
    assert isinstance(listener.fault, TimedOut)
    assert (listener.fault.executed, listener.fault.server) == (executed, SERVER)
    assert stage.link.withdrawn == [(inflight, "no answer within 0.001 s")]


@pytest.mark.parametrize(("has_left", "executed"), [(True, "unknown"), (False, "no")])
async def test_a_withdrawal_says_whether_the_tool_may_have_run_and_tells_the_server(
    *, has_left: bool, executed: str
) -> None:
    stage = Stage()
    stage.link.has_left = has_left
    inflight, listener = stage.start()
    inflight.cancel("by the caller")
    assert isinstance(listener.fault, Cancelled)
    assert (listener.fault.executed, listener.fault.server) == (executed, SERVER)
    assert stage.link.withdrawn == [(inflight, "by the caller")]


async def test_a_call_withdrawn_before_it_found_a_server_did_not_run() -> None:
    listener = Listener()
    inflight = InFlight(call(), listener, Notes(), asyncio.get_running_loop())
    inflight.cancel("at once")
    assert (listener.fault.executed, listener.fault.server) == ("no", None)


async def test_an_exchange_that_breaks_does_not_reach_the_link() -> None:
    class Broken(Listener):
        def end(self, outcome: Outcome) -> None:
            raise RuntimeError("a defect of a face")

    stage = Stage()
    inflight = stage.hub.start(call(), Broken())
    assert inflight.finish(DONE)
    assert stage.lane.running == 0


async def test_an_exchange_that_breaks_on_an_event_still_gets_its_answer() -> None:
    class Broken(Listener):
        def emit(self, event: Event) -> None:
            raise RuntimeError("a defect of a face")

    stage, listener = Stage(), Broken()
    inflight = stage.hub.start(call(), listener)
    inflight.emit(PROGRESS)
    assert inflight.finish(DONE)
    assert listener.ends == [DONE]


async def test_who_keeps_outcomes_is_given_the_one_that_counts() -> None:
    stage = Stage()
    inflight, _ = stage.start()
    kept: list[Outcome] = []
    inflight.keep = lambda _inflight, outcome: kept.append(outcome)
    inflight.finish(DONE)
    inflight.cancel("too late")
    assert kept == [DONE]
