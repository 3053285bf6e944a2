"""What a task does on its way to a server, and once it is there."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from isthmus.core.ports import OpenTarget
from isthmus.frontends.a2a.planning import TargetCall
from isthmus.model.calls import Call, Outcome
from isthmus.model.faults import Cancelled, Fault, NotConnected
from tests.unit.core.doubles import DONE, SERVER, Listener, Stage, call, ready, tool


class Way:
    """An aim that is reached when the test says so."""

    def __init__(self) -> None:
        self.is_given_up = False

    def open(self, then: Callable[[OpenTarget | Fault], None]) -> Callable[[], None]:
        self.then = then
        return self._give_up

    def _give_up(self) -> None:
        self.is_given_up = True


class Scene:
    """An errand that has begun."""

    def __init__(self, work: Call | Outcome) -> None:
        self.way, self.listener = Way(), Listener()
        self.stage = Stage.of(ready(tool("read")))
        self.underway = TargetCall(self.way, lambda _: work).start(self.listener)

    def outcome(self) -> Outcome | None:
        return self.underway.outcome

    def reach(self) -> None:
        self.way.then(OpenTarget(self.stage.hub, SERVER))


async def test_at_its_server_an_errand_is_the_call_that_is_made_there() -> None:
    scene = Scene(call())
    assert (scene.outcome(), scene.stage.link.sent) == (None, [])
    scene.reach()
    (inflight,) = scene.stage.link.sent
    assert scene.outcome() is None
    inflight.finish(DONE)
    assert (scene.outcome(), scene.listener.ends) == (DONE, [DONE])


async def test_what_needs_no_call_is_over_with_the_arrival() -> None:
    scene = Scene(DONE)
    scene.reach()
    assert (scene.underway.outcome, scene.listener.ends) == (DONE, [DONE])


async def test_a_server_that_is_not_reached_is_the_end() -> None:
    scene, fault = Scene(call()), NotConnected(SERVER, "nobody is there")
    scene.way.then(fault)
    assert (scene.underway.outcome, scene.listener.ends) == (fault, [fault])


async def test_given_up_on_its_way_it_has_not_run_and_does_not_arrive() -> None:
    scene = Scene(call())
    scene.underway.cancel("enough")
    assert scene.way.is_given_up
    scene.reach()
    scene.underway.cancel("again")
    assert scene.stage.link.sent == []
    assert isinstance(scene.listener.fault, Cancelled)
    assert scene.listener.fault.executed == "no"


@pytest.mark.parametrize("is_over", [False, True])
async def test_given_up_at_its_server_it_is_withdrawn_there(*, is_over: bool) -> None:
    scene = Scene(call())
    scene.reach()
    (inflight,) = scene.stage.link.sent
    if is_over:
        inflight.finish(DONE)
    scene.underway.cancel("enough")
    assert len(scene.listener.ends) == 1
    assert isinstance(inflight.outcome, Cancelled) is not is_over
