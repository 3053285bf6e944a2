from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator

import pytest

from isthmus.library.errors import ServiceClosedError, WrongThreadError
from isthmus.library.loop_thread import CLOSED_MEANWHILE, PROGRAM_ENDING, LoopThread

SECONDS = 20.0


@pytest.fixture
def loop_thread() -> Iterator[LoopThread]:
    made = LoopThread()
    yield made
    made.stop()


async def where() -> str:
    return threading.current_thread().name


async def for_ever(began: threading.Event, ended: threading.Event) -> None:
    try:
        began.set()
        await asyncio.Event().wait()
    finally:
        ended.set()


def broken() -> None:
    raise LookupError("nothing there")


async def broken_later() -> None:
    broken()


def test_there_is_one_for_everybody() -> None:
    assert LoopThread.shared() is LoopThread.shared()


def test_a_thread_has_functions_and_coroutines_run_on_it(loop_thread: LoopThread) -> None:
    assert not loop_thread.is_current()
    assert loop_thread.call(loop_thread.is_current)
    assert loop_thread.run_blocking(where()) == "isthmus"


async def test_a_loop_has_functions_and_coroutines_run_on_it(loop_thread: LoopThread) -> None:
    assert await loop_thread.call_async(loop_thread.is_current)
    assert await loop_thread.run(where()) == "isthmus"


async def test_exceptions_cross_the_thread(loop_thread: LoopThread) -> None:
    with pytest.raises(LookupError, match="nothing there"):
        loop_thread.call(broken)
    with pytest.raises(LookupError, match="nothing there"):
        loop_thread.run_blocking(broken_later())
    with pytest.raises(LookupError, match="nothing there"):
        await loop_thread.call_async(broken)
    with pytest.raises(LookupError, match="nothing there"):
        await loop_thread.run(broken_later())


def test_on_it_nothing_crosses_and_nothing_blocks(loop_thread: LoopThread) -> None:
    async def there() -> tuple[bool, str, bool]:
        with pytest.raises(WrongThreadError, match="would wait for itself for ever"):
            loop_thread.run_blocking(where())
        return (
            await loop_thread.call_async(loop_thread.is_current),
            await loop_thread.run(where()),
            loop_thread.call(loop_thread.is_current),
        )

    assert loop_thread.run_blocking(there()) == (True, "isthmus", True)


async def test_a_cancelled_waiter_cancels_its_task_on_the_loop(loop_thread: LoopThread) -> None:
    began, ended = threading.Event(), threading.Event()
    task = asyncio.create_task(loop_thread.run(for_ever(began, ended)))
    assert await asyncio.to_thread(began.wait, SECONDS)
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(ended.wait, SECONDS)


async def test_a_started_task_is_not_waited_for(loop_thread: LoopThread) -> None:
    ran = threading.Event()

    async def later() -> None:
        ran.set()

    loop_thread.start(later())
    assert await asyncio.to_thread(ran.wait, SECONDS)


async def test_a_task_cancelled_on_the_loop_raises_service_closed(loop_thread: LoopThread) -> None:
    async def cancelled() -> None:
        raise asyncio.CancelledError

    with pytest.raises(ServiceClosedError, match=CLOSED_MEANWHILE):
        loop_thread.run_blocking(cancelled())
    with pytest.raises(ServiceClosedError, match=CLOSED_MEANWHILE):
        await loop_thread.run(cancelled())


def test_an_exit_from_the_loop_thread_does_not_end_the_program(loop_thread: LoopThread) -> None:
    async def leave() -> None:
        sys.exit("bye")

    loop_thread.post(sys.exit, "bye")
    loop_thread.start(leave())

    assert loop_thread.call(loop_thread.is_current)
    assert loop_thread.run_blocking(where()) == "isthmus"


def test_stopping_closes_everything_and_cancels_the_rest(loop_thread: LoopThread) -> None:
    order: list[str] = []
    ended = threading.Event()

    async def close(name: str) -> None:
        order.append(name)
        if name == "broken":
            raise LookupError(name)

    for name in ("first", "broken", "gone", "last"):
        loop_thread.call(loop_thread.close_at_exit, name, lambda name=name: close(name))
    loop_thread.call(loop_thread.remove_closer, "gone")
    loop_thread.start(for_ever(threading.Event(), ended))
    loop_thread.stop()

    assert order == ["first", "broken", "last"]
    assert ended.is_set()
    loop_thread.stop()


async def test_after_the_end_everybody_is_refused(loop_thread: LoopThread) -> None:
    loop_thread.stop()

    with pytest.raises(ServiceClosedError, match=PROGRAM_ENDING):
        loop_thread.call(loop_thread.is_current)
    with pytest.raises(ServiceClosedError, match=PROGRAM_ENDING):
        loop_thread.run_blocking(where())
    with pytest.raises(ServiceClosedError, match=PROGRAM_ENDING):
        await loop_thread.run(where())
    loop_thread.start(where())


async def test_one_that_was_inherited_refuses_even_on_a_thread_of_the_same_number() -> None:
    inherited = LoopThread()

    def is_here_after_a_fork() -> bool:
        inherited.mark_inherited()
        return inherited.is_current()

    try:
        assert not inherited.call(is_here_after_a_fork)
        with pytest.raises(ServiceClosedError, match="in each worker, after the fork"):
            inherited.call(inherited.is_current)
        with pytest.raises(ServiceClosedError, match="in each worker, after the fork"):
            await inherited.run(where())
    finally:
        inherited.is_inherited = False
        inherited.stop()
