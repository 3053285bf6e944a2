"""Where functions run: the rest of it is seen through the links that use it."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from isthmus.core.background import BackgroundTasks
from isthmus.core.settings import Limits
from isthmus.model.events import Progress
from isthmus.model.outcomes import Result
from isthmus.upstream import runner as module
from isthmus.upstream.runner import Outbox, Runner
from isthmus.upstream.signatures import Function, Traits
from tests.unit.core.doubles import SERVER, Stage, call


def here() -> int:
    return threading.get_ident()


def leave() -> None:
    raise SystemExit(3)


async def test_what_is_quick_runs_on_the_loop_and_has_ended_when_it_was_sent() -> None:
    background, stage = BackgroundTasks("test"), Stage()
    runner = Runner(SERVER, Limits(), background, 1)
    inflight, listener = stage.start(call())
    runner.start(inflight, Function("here", here, Traits(is_inline=True)))
    (outcome,) = listener.ends
    assert isinstance(outcome, Result)
    assert str(threading.get_ident()).encode() in bytes(outcome.payload)
    runner.close("done")
    await background.aclose()


async def test_what_is_quick_cannot_end_the_program_either() -> None:
    background, stage = BackgroundTasks("test"), Stage()
    runner = Runner(SERVER, Limits(), background, 1)
    inflight, listener = stage.start(call())
    runner.start(inflight, Function("leave", leave, Traits(is_inline=True)))
    (outcome,) = listener.ends
    assert isinstance(outcome, Result)
    assert outcome.is_error
    runner.close("done")
    await background.aclose()


async def test_events_of_a_thread_that_floods_are_bounded() -> None:
    heard: list[Any] = []
    outbox = Outbox(asyncio.get_running_loop(), heard.append)

    def pour() -> None:
        for _ in range(10_000):
            outbox.put(Progress({}))

    flood = threading.Thread(target=pour)
    flood.start()
    flood.join(10)  # the loop cannot run meanwhile
    await asyncio.sleep(0)
    assert len(heard) == module.EVENTS_MAX


def test_events_after_the_loop_has_closed_are_nobody_s() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    Outbox(loop, lambda _event: pytest.fail("somebody heard it")).put(Progress({}))
