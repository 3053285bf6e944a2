"""Threads beside the loop: how many there are, what waits for one, and where they print."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from isthmus.upstream.workers import Workers, divert_prints


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
async def workers() -> AsyncIterator[Workers]:
    workers = Workers("test", 2)
    yield workers
    workers.close()


async def begun(job: Held) -> bool:
    return await asyncio.to_thread(job.has_begun.wait, 10)


async def test_as_many_run_at_once_as_there_may_be_and_the_next_waits(workers: Workers) -> None:
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


async def test_what_is_taken_back_never_begins(workers: Workers) -> None:
    first, second, unwanted, last = Held(), Held(), Held(), Held()
    for job in (first, second, unwanted, last):
        workers.run(job)
    workers.take_back(unwanted)
    await first.end()
    assert await begun(last)
    await second.end()
    await last.end()
    assert not unwanted.has_begun.is_set()


async def test_a_thread_is_used_again(workers: Workers) -> None:
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
    workers = Workers("closing", 2)
    held = Held()
    workers.run(held)
    assert await begun(held)
    (thread,) = [one for one in threading.enumerate() if one.name == "closing/1"]
    assert thread.daemon
    workers.close()
    await held.end()
    await asyncio.to_thread(thread.join, 10)
    assert not thread.is_alive()


async def test_what_runs_aside_prints_to_standard_error(workers: Workers, capsys: pytest.CaptureFixture[str]) -> None:
    divert_prints()
    divert_prints()
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
