"""Long work lets others have their turn; short work is done at once."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Generator
from functools import partial

import pytest

from isthmus.core.event_loop import (
    FREE_TURNS,
    LONG_BYTES,
    READER_BYTES,
    Job,
    in_passes,
    in_turn,
    in_turns,
    offload,
    pause_after,
    read_then,
    use_reader,
)

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize(("size", "turns"), [(LONG_BYTES, 0), (LONG_BYTES + 1, 1)])
async def test_others_have_a_turn_after_a_long_step(size: int, turns: int) -> None:
    seen: list[int] = []
    asyncio.get_running_loop().call_soon(seen.append, 1)
    await pause_after(size)
    assert len(seen) == turns


@pytest.mark.parametrize(("size", "is_here"), [(10, True), (11, False)])
async def test_long_work_is_done_on_a_thread(size: int, *, is_here: bool) -> None:
    assert (await offload(size, threading.get_ident, over=10) == threading.get_ident()) == is_here


async def test_long_steps_are_done_one_by_one_with_free_turns_between() -> None:
    done: list[int] = []
    for number in range(3):
        in_turn(partial(done.append, number))
    seen: list[int] = []
    while len(done) < 3:
        await asyncio.sleep(0)
        seen.append(len(done))
    turns = [seen.index(count) for count in (1, 2, 3)]
    assert turns[1] - turns[0] == turns[2] - turns[1] == FREE_TURNS + 1, seen


def _fail(failures: list[object]) -> None:
    failures[1]


async def test_a_step_that_fails_does_not_stop_the_others() -> None:
    loop = asyncio.get_running_loop()
    failures: list[object] = []
    loop.set_exception_handler(lambda _, context: failures.append(context["exception"]))
    done: asyncio.Future[None] = loop.create_future()
    in_turn(partial(_fail, failures))
    in_turn(lambda: done.set_result(None))
    await asyncio.wait_for(done, 5)
    assert len(failures) == 1


class Reader:
    """Takes every job and does none."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    def offer(self, job: Job) -> bool:
        self.jobs.append(job)
        return True


@pytest.mark.parametrize(("size", "is_sent"), [(READER_BYTES, False), (READER_BYTES + 1, True)])
async def test_only_messages_above_a_size_are_sent_to_the_reader(size: int, *, is_sent: bool) -> None:
    def here(message: bytes) -> Generator[None, None, int]:
        yield
        return len(message)

    reader = Reader()
    use_reader(reader)
    sizes: list[int] = []
    try:
        read_then(partial(len, bytes(size)), here, sizes.append, len, None)
        for _ in range(4 * FREE_TURNS):
            await asyncio.sleep(0)
    finally:
        use_reader(None, instead_of=reader)
    assert (sizes, len(reader.jobs)) == (([], 1) if is_sent else ([size], 0))


def passes(count: int, done: list[int]) -> Generator[None, None, str]:
    """So many passes."""
    for number in range(count):
        done.append(number)
        yield
    return "read"


async def test_passes_over_something_long_have_pauses_between_them() -> None:
    done: list[int] = []
    loop = asyncio.get_running_loop()
    reading = asyncio.ensure_future(in_passes(passes(3, done), LONG_BYTES + 1))
    seen: set[int] = set()
    while not reading.done():
        loop.call_soon(lambda: seen.add(len(done)))
        await asyncio.sleep(0)
    assert (await reading, seen) == ("read", {1, 2, 3})
    done.clear()
    assert await in_passes(passes(3, done), LONG_BYTES) == "read"


async def test_passes_without_a_task_pass_their_result_on() -> None:
    done: list[int] = []
    read: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    in_turns(passes(3, done), read.set_result)
    assert done == []
    assert await asyncio.wait_for(read, 5) == "read"
    assert done == [0, 1, 2]


class Answer:
    """Whatever a long message ends."""

    def __init__(self) -> None:
        self.done: asyncio.Future[str] = asyncio.get_running_loop().create_future()


async def test_nothing_of_a_long_message_is_held_after_its_last_pass() -> None:
    gc.disable()  # a cycle would hold megabytes until the collector runs
    try:
        answer = Answer()
        seen, done = weakref.ref(answer), answer.done
        in_turns(passes(3, []), partial(lambda answer, found: answer.done.set_result(found), answer))
        del answer
        await done
        await asyncio.sleep(0)
        assert seen() is None
    finally:
        gc.enable()
