"""Trio's side runs beside Trio, in `tests/frameworks/inside/runtimes.py`."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest

from isthmus.library.loop_thread import AsyncioPromise, AwaitablePromise, SameLoopPromise, ThreadPromise, new_promise
from tests.conftest import descriptors

HAS_BELLS = sys.platform == "linux"
"""Where there must be some: a Linux without them fails here and does not pass by."""


async def test_a_value_reaches_a_loop_from_another_thread() -> None:
    promise = new_promise()
    threading.Thread(target=promise.set_result, args=("there",)).start()

    assert await promise.wait() == "there"


async def test_an_error_reaches_a_loop_from_another_thread() -> None:
    promise = new_promise()
    threading.Thread(target=promise.set_exception, args=(LookupError("lost"),)).start()

    with pytest.raises(LookupError, match="lost"):
        await promise.wait()


def to_itself() -> AwaitablePromise[Any]:
    return SameLoopPromise(asyncio.get_running_loop())


@pytest.mark.parametrize("make", [new_promise, to_itself])
async def test_a_waiter_that_has_left_is_not_reached(make: Callable[[], AwaitablePromise[Any]]) -> None:
    promise = make()
    waiting = asyncio.create_task(promise.wait())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    promise.set_result("late")
    promise.set_exception(LookupError("later"))
    await asyncio.sleep(0)

    assert waiting.cancelled()


@pytest.fixture(params=["bell", "no bell", "no descriptor left"])
def wakes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """How often loops are woken, however they are: not every system has bells, nor every process one to spare."""
    rung: list[object] = []

    def counted(wake: Callable[..., Any]) -> Callable[..., Any]:
        def call(*words: Any) -> Any:
            rung.append(words)
            return wake(*words)

        return call

    def refused(*_: object) -> int:
        raise OSError(errno.EMFILE, "too many open files")

    if request.param == "bell":
        if not HAS_BELLS:
            pytest.skip("this system has none")
        monkeypatch.setattr(os, "eventfd_write", counted(os.eventfd_write))
    elif request.param == "no bell":
        monkeypatch.delattr(os, "eventfd", raising=False)
    else:
        monkeypatch.setattr(os, "eventfd", refused, raising=False)
    if request.param != "bell":
        wake = asyncio.SelectorEventLoop.call_soon_threadsafe
        monkeypatch.setattr(asyncio.SelectorEventLoop, "call_soon_threadsafe", counted(wake))
    return rung


def test_a_loop_that_gives_to_itself_is_not_woken(wakes: list[object]) -> None:
    async def take() -> str:
        given, lost = to_itself(), to_itself()
        given.set_result("there")
        lost.set_exception(LookupError("lost"))
        with pytest.raises(LookupError, match="lost"):
            await lost.wait()
        value: str = await given.wait()
        return value

    with asyncio.Runner() as runner:
        runner.get_loop()
        wakes.clear()
        assert runner.run(take()) == "there"
        assert wakes == []


def test_results_for_a_busy_loop_arrive_in_order_by_one_wake_up(wakes: list[object]) -> None:
    arrived: list[int] = []

    async def take(promise: AwaitablePromise[int]) -> None:
        arrived.append(await promise.wait())

    async def cross_all() -> None:
        promises = [new_promise() for _ in range(5)]
        takers = [asyncio.create_task(take(promise)) for promise in promises]

        def give() -> None:
            for number, promise in enumerate(promises):
                promise.set_result(number)

        giving = threading.Thread(target=give)
        giving.start()
        giving.join()
        await asyncio.wait(takers, timeout=5)
        assert arrived == [0, 1, 2, 3, 4]
        assert len(wakes) == 1

    _on_new_loop(cross_all())


def test_a_result_on_the_waiting_loop_wakes_no_thread(wakes: list[object]) -> None:
    async def cross() -> None:
        promise = new_promise()
        promise.set_result("there")
        assert await promise.wait() == "there"

    _on_new_loop(cross())
    assert wakes == []


def give_all(promises: list[AsyncioPromise[None]]) -> None:
    for promise in promises:
        promise.set_result(None)


async def come_back(count: int) -> list[AsyncioPromise[None]]:
    """Have so many arrive at once; held, they keep for this loop what it knows of that."""
    promises = [AsyncioPromise[None](asyncio.get_running_loop()) for _ in range(count)]
    giving = threading.Thread(target=give_all, args=(promises,))
    giving.start()
    giving.join()
    async with asyncio.timeout(5):
        for promise in promises:
            await promise.wait()
    return promises


async def test_a_request_after_one_result_is_posted_at_once() -> None:
    (promise,) = await come_back(1)
    posted: list[object] = []
    promise.send(lambda *words: posted.append(words), print)

    assert posted == [(print,)]


async def test_requests_after_many_results_are_posted_together_in_order() -> None:
    promises = await come_back(3)
    posted: list[tuple[Any, ...]] = []
    called: list[int] = []
    for number, promise in enumerate(promises):
        promise.send(lambda *words: posted.append(words), partial(called.append, number))
    assert posted == []
    await asyncio.sleep(0)

    ((depart, leaving),) = posted
    depart(leaving)
    assert called == [0, 1, 2]


async def test_a_waiter_that_cannot_leave_with_the_others_learns_why() -> None:
    held = await come_back(2)
    promises = [AsyncioPromise[None](asyncio.get_running_loop()) for _ in range(2)]

    def refuse(*_: object) -> None:
        raise LookupError("nobody is there")

    for promise in promises:
        promise.send(refuse, print)
    async with asyncio.timeout(5):
        for promise in promises:
            with pytest.raises(LookupError, match="nobody is there"):
                await promise.wait()
    assert len(held) == 2


async def test_a_failure_on_the_other_side_delays_no_other() -> None:
    held = await come_back(2)
    first, second = (AsyncioPromise[str](asyncio.get_running_loop()) for _ in range(2))

    def fail() -> None:
        raise LookupError("lost")

    def post(function: Callable[..., None], *words: Any) -> None:
        threading.Thread(target=function, args=words).start()

    first.send(post, fail)
    second.send(post, partial(second.set_result, "there"))
    async with asyncio.timeout(5):
        with pytest.raises(LookupError, match="lost"):
            await first.wait()
        assert await second.wait() == "there"
    assert len(held) == 2


def _on_new_loop(work: Coroutine[Any, Any, None]) -> None:
    loop = asyncio.SelectorEventLoop()
    try:
        loop.run_until_complete(work)
    finally:
        loop.close()


async def _cross() -> None:
    promise = new_promise()
    giving = threading.Thread(target=promise.set_result, args=(None,))
    giving.start()
    async with asyncio.timeout(5):
        await promise.wait()
    giving.join()  # until it has ended it holds the promise, and that the bell


@pytest.mark.skipif(not HAS_BELLS, reason="this system has none")
def test_loops_that_take_turns_have_one_bell_each_until_they_are_closed() -> None:
    gc.collect()  # what other tests left must not go in between
    before = descriptors()
    loops = [asyncio.SelectorEventLoop() for _ in range(2)]
    silent = descriptors()
    for _ in range(3):
        for loop in loops:
            loop.run_until_complete(_cross())
    waited = descriptors()
    for loop in loops:
        loop.close()

    assert len(waited) == len(silent) + len(loops)
    assert descriptors() == before


async def test_a_bell_that_was_answered_already_may_be_answered_again() -> None:
    promise: AsyncioPromise[str] = AsyncioPromise(asyncio.get_running_loop())
    promise._channel._receive()
    promise.set_result("there")

    async with asyncio.timeout(5):
        assert await promise.wait() == "there"


async def test_a_waiter_behind_an_interrupted_one_is_reached_all_the_same() -> None:
    second: AsyncioPromise[str] = AsyncioPromise(asyncio.get_running_loop())

    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        second._channel._deliver(deque([(interrupted, None), (second._resolve, "there")]))
    async with asyncio.timeout(5):
        assert await second.wait() == "there"


def test_a_loop_that_is_closed_is_not_reached() -> None:
    loop = asyncio.new_event_loop()
    promise: AsyncioPromise[str] = AsyncioPromise(loop)
    loop.close()

    promise.set_result("late")
    promise.set_exception(LookupError("later"))


def test_a_value_and_an_error_reach_a_thread() -> None:
    given: ThreadPromise[str] = ThreadPromise()
    threading.Thread(target=given.set_result, args=("there",)).start()
    failed: ThreadPromise[str] = ThreadPromise()
    threading.Thread(target=failed.set_exception, args=(LookupError("lost"),)).start()

    assert given.wait() == "there"
    with pytest.raises(LookupError, match="lost"):
        failed.wait()


def test_where_nothing_can_be_awaited_the_advice_is_to_block() -> None:
    with pytest.raises(RuntimeError, match=r"use the same method of `service\.blocking`"):
        new_promise()
