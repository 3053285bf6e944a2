"""Where functions run: the rest of it is seen through the links that use it."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from isthmus.core.background import BackgroundTasks
from isthmus.core.settings import Limits
from isthmus.model.calls import Progress, Result
from isthmus.upstream.python import runner as module
from isthmus.upstream.python.runner import EventOutbox, Runner, WorkerThreads, redirect_prints
from isthmus.upstream.python.signatures import Function, Traits
from tests.unit.core.doubles import SERVER, Stage, call


def here() -> int:
    return threading.get_ident()


def leave() -> None:
    raise SystemExit(3)


async def test_inline_functions_run_on_the_loop_and_end_at_once() -> None:
    background, stage = BackgroundTasks("test"), Stage()
    runner = Runner(SERVER, Limits(), background, 1)
    inflight, listener = stage.start(call())
    runner.start(inflight, Function("here", here, Traits(is_inline=True)))
    (outcome,) = listener.ends
    assert isinstance(outcome, Result)
    assert str(threading.get_ident()).encode() in bytes(outcome.payload)
    runner.close("done")
    await background.aclose()


@pytest.mark.parametrize("text", ["short", "é中😀" * 100_000])
@pytest.mark.parametrize("shape", ["text", "object", "error", "content"])
async def test_a_result_of_any_length_is_the_same_tool_result(text: str, shape: str) -> None:
    blocks = [{"type": "text", "text": text}]
    values: dict[str, Any] = {
        "text": text,
        "object": {"a": text, "b": [1, None]},
        "error": {"a": text, "isError": True},
        "content": {"content": blocks},
    }
    background, stage = BackgroundTasks("test"), Stage()
    runner = Runner(SERVER, Limits(), background, 1)
    inflight, listener = stage.start(call())
    runner.start(inflight, Function("give", lambda: values[shape], Traits(is_inline=True)))
    (outcome,) = listener.ends
    assert isinstance(outcome, Result)
    assert outcome.is_error == (shape == "error")
    shown = json.loads(bytes(outcome.payload))
    if shape == "content":
        assert shown == {"content": blocks}
    else:
        assert shown["structuredContent"] == ({"result": text} if shape == "text" else values[shape])
    runner.close("done")
    await background.aclose()


async def test_inline_functions_cannot_end_the_program() -> None:
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
    received: list[Any] = []
    outbox = EventOutbox(asyncio.get_running_loop(), received.append)

    def pour() -> None:
        for _ in range(10_000):
            outbox.put(Progress({}))

    flood = threading.Thread(target=pour)
    flood.start()
    flood.join(10)  # the loop cannot run meanwhile
    await asyncio.sleep(0)
    assert len(received) == module.EVENTS_MAX


def test_events_after_the_loop_has_closed_are_dropped() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    EventOutbox(loop, lambda _event: pytest.fail("somebody heard it")).put(Progress({}))


class Held:
    """A job that ends when the test lets it."""

    def __init__(self) -> None:
        self.has_begun = threading.Event()
        self.may_end = threading.Event()
        self.has_ended = asyncio.Event()

    def __call__(self) -> Callable[[], None]:
        self.has_begun.set()
        self.may_end.wait(30)
        return self.has_ended.set

    async def end(self) -> None:
        self.may_end.set()
        async with asyncio.timeout(10):
            await self.has_ended.wait()


@pytest_asyncio.fixture
async def workers() -> AsyncIterator[WorkerThreads]:
    workers = WorkerThreads("test", 2)
    yield workers
    workers.close()


async def begun(job: Held) -> bool:
    return await asyncio.to_thread(job.has_begun.wait, 10)


async def test_as_many_run_at_once_as_there_may_be_and_the_next_waits(workers: WorkerThreads) -> None:
    jobs = [Held() for _ in range(3)]
    for job in jobs:
        workers.run(job)
    assert await begun(jobs[0])
    assert await begun(jobs[1])
    assert [workers.is_waiting(job) for job in jobs] == [False, False, True]
    await jobs[1].end()
    assert await begun(jobs[2])
    assert not workers.is_waiting(jobs[2])
    await jobs[0].end()
    await jobs[2].end()


async def test_a_withdrawn_job_never_begins(workers: WorkerThreads) -> None:
    first, second, unwanted, last = Held(), Held(), Held(), Held()
    for job in (first, second, unwanted, last):
        workers.run(job)
    workers.take_back(unwanted)
    await first.end()
    assert await begun(last)
    await second.end()
    await last.end()
    assert not unwanted.has_begun.is_set()


async def test_a_thread_is_used_again(workers: WorkerThreads) -> None:
    threads: set[str] = set()

    def note() -> Callable[[], None]:
        threads.add(threading.current_thread().name)
        return done.set

    for _ in range(5):
        done = asyncio.Event()
        workers.run(note)
        async with asyncio.timeout(10):
            await done.wait()
    assert threads == {"test/1"}


async def test_threads_end_when_they_are_done_and_do_not_hold_up_the_process() -> None:
    workers = WorkerThreads("closing", 2)
    held = Held()
    workers.run(held)
    assert await begun(held)
    (thread,) = [one for one in threading.enumerate() if one.name == "closing/1"]
    assert thread.daemon
    workers.close()
    await held.end()
    await asyncio.to_thread(thread.join, 10)
    assert not thread.is_alive()


async def test_functions_in_threads_print_to_standard_error(
    workers: WorkerThreads, capsys: pytest.CaptureFixture[str]
) -> None:
    redirect_prints()
    redirect_prints()
    done = asyncio.Event()

    def speak() -> Callable[[], None]:
        print("aside")
        sys.stdout.flush()
        return done.set

    workers.run(speak)
    async with asyncio.timeout(10):
        await done.wait()
    print("aloud")
    assert capsys.readouterr() == ("aloud\n", "aside\n")
