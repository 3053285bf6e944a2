"""What lingers is stopped once: after its time, or by one too many."""

from __future__ import annotations

import asyncio
from functools import partial

from isthmus.upstream.agent.lingering import LINGERING_MAX, Lingering


async def test_the_oldest_goes_where_one_too_many_lingers() -> None:
    lingering, stopped = Lingering(), list[int]()
    for number in range(LINGERING_MAX + 2):
        lingering.add(partial(stopped.append, number), 600)
    assert stopped == [0, 1]


async def test_what_has_ended_by_itself_is_not_stopped_and_makes_room() -> None:
    lingering, stopped = Lingering(), list[int]()
    stops = [partial(stopped.append, number) for number in range(LINGERING_MAX + 1)]
    for stop in stops:
        lingering.add(stop, 600)
        lingering.drop(stop)
        lingering.drop(stop)
    assert stopped == []


async def test_nothing_lingers_longer_than_it_may() -> None:
    lingering, stopped = Lingering(), asyncio.Event()
    lingering.add(stopped.set, 0)
    async with asyncio.timeout(5):
        await stopped.wait()
