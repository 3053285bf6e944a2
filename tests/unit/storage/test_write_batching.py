from __future__ import annotations

import asyncio

from isthmus.storage.write_batching import TURNS_MAX, WriteBatcher

NEVER = 3600.0
MANY = 100


class Batches:
    """What was handed over."""

    def __init__(self, *, patience_seconds: float = NEVER, at_most: int = MANY) -> None:
        self.taken: list[list[int]] = []
        self._has_come = asyncio.Event()
        self.gathering: WriteBatcher[int] = WriteBatcher(self._take, at_most, patience_seconds)

    def _take(self, batch: list[int]) -> None:
        self.taken.append(batch)
        self._has_come.set()

    def add(self, *numbers: int) -> None:
        for number in numbers:
            self.gathering.add(number)

    async def next(self) -> list[int]:
        async with asyncio.timeout(5):
            await self._has_come.wait()
        self._has_come.clear()
        return self.taken[-1]


async def some_turns() -> None:
    for _ in range(TURNS_MAX + 2):
        await asyncio.sleep(0)


async def test_what_comes_in_one_turn_goes_together_and_in_order() -> None:
    batches = Batches()
    batches.add(1, 2, 3)
    assert batches.taken == []
    assert await batches.next() == [1, 2, 3]


async def test_who_comes_alone_waits_for_nobody() -> None:
    batches = Batches()
    for number in range(3):
        batches.add(number)
        assert await batches.next() == [number]


async def test_turns_that_bring_more_are_waited_for_but_not_for_ever() -> None:
    batches = Batches()
    for number in range(TURNS_MAX + 3):
        batches.add(number)
        await asyncio.sleep(0)
    assert batches.taken[0] == list(range(TURNS_MAX + 1))


async def test_after_many_the_first_wait_until_most_of_as_many_have_come() -> None:
    batches = Batches()
    batches.add(*range(8))
    await batches.next()
    batches.add(1)
    await some_turns()
    batches.add(2, 3, 4, 5)
    await some_turns()
    assert len(batches.taken) == 1
    batches.add(6)
    assert batches.taken[1:] == [[1, 2, 3, 4, 5, 6]]


async def test_after_many_one_that_comes_alone_waits_only_once() -> None:
    batches = Batches(patience_seconds=0.001)
    batches.add(*range(8))
    await batches.next()
    batches.add(1)
    await some_turns()
    assert await batches.next() == [1]
    batches.gathering._patience_seconds = NEVER
    batches.add(2)
    assert await batches.next() == [2]


async def test_a_full_batch_waits_for_nobody() -> None:
    batches = Batches(at_most=4)
    batches.add(*range(100))
    await batches.next()
    batches.add(*range(4))
    assert await batches.next() == [0, 1, 2, 3]


async def test_what_waits_is_handed_over_when_it_is_asked_for_and_only_then() -> None:
    batches = Batches()
    batches.add(*range(8))
    await batches.next()
    batches.add(1)
    await some_turns()
    timer = batches.gathering._timer
    batches.gathering.flush()
    batches.gathering.flush()
    assert batches.taken[1:] == [[1]]
    assert timer is not None
    assert timer.cancelled()
