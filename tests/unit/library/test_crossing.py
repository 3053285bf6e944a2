"""Trio's side runs beside Trio, in `tests/frameworks/inside/runtimes.py`."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from typing import Any

import pytest

from isthmus.library.crossing import Awaited, ToAsyncio, ToThread, crossing_here


async def test_a_value_reaches_a_loop_from_another_thread() -> None:
    crossing = crossing_here()
    threading.Thread(target=crossing.give, args=("there",)).start()

    assert await crossing.wait() == "there"


async def test_an_error_reaches_a_loop_from_another_thread() -> None:
    crossing = crossing_here()
    threading.Thread(target=crossing.fail, args=(LookupError("lost"),)).start()

    with pytest.raises(LookupError, match="lost"):
        await crossing.wait()


async def test_who_has_left_is_not_reached() -> None:
    crossing = crossing_here()
    waiting = asyncio.create_task(crossing.wait())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    crossing.give("late")
    crossing.fail(LookupError("later"))
    await asyncio.sleep(0)

    assert waiting.cancelled()


async def test_what_is_given_while_a_loop_is_busy_arrives_in_order_by_one_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wakes: list[object] = []
    arrived: list[int] = []
    loop = asyncio.get_running_loop()
    wake = loop.call_soon_threadsafe

    def counted(*words: Any) -> Any:
        wakes.append(words)
        return wake(*words)

    async def take(crossing: Awaited[int]) -> None:
        arrived.append(await crossing.wait())

    crossings = [crossing_here() for _ in range(5)]
    takers = [asyncio.create_task(take(crossing)) for crossing in crossings]
    monkeypatch.setattr(loop, "call_soon_threadsafe", counted)

    def give_all() -> None:
        for number, crossing in enumerate(crossings):
            crossing.give(number)

    giving = threading.Thread(target=give_all)
    giving.start()
    giving.join()
    await asyncio.wait(takers)
    assert arrived == [0, 1, 2, 3, 4]
    assert len(wakes) == 1


async def test_who_is_behind_somebody_interrupted_is_reached_all_the_same() -> None:
    second: ToAsyncio[str] = ToAsyncio(asyncio.get_running_loop())

    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        second._delivery._hand_out(deque([(interrupted, None), (second._set, "there")]))
    async with asyncio.timeout(5):
        assert await second.wait() == "there"


def test_a_loop_that_is_closed_is_not_reached() -> None:
    loop = asyncio.new_event_loop()
    crossing: ToAsyncio[str] = ToAsyncio(loop)
    loop.close()

    crossing.give("late")
    crossing.fail(LookupError("later"))


def test_a_value_and_an_error_reach_a_thread() -> None:
    given: ToThread[str] = ToThread()
    threading.Thread(target=given.give, args=("there",)).start()
    failed: ToThread[str] = ToThread()
    threading.Thread(target=failed.fail, args=(LookupError("lost"),)).start()

    assert given.wait() == "there"
    with pytest.raises(LookupError, match="lost"):
        failed.wait()


def test_where_nothing_can_be_awaited_the_advice_is_to_block() -> None:
    with pytest.raises(RuntimeError, match=r"use the same method of `service\.blocking`"):
        crossing_here()
