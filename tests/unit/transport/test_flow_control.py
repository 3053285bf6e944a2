"""Batched writes, portioned reads and the bounds per relay agent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import pytest

from isthmus.transport import flow_control as module
from isthmus.transport.flow_control import (
    AT_ONCE,
    PORTION_BYTES,
    SLICE_SECONDS,
    AgentBandwidth,
    AgentShare,
    LoopTurns,
    ReadQuota,
    SharedReadQuota,
    WriteBatch,
)


class Noted:
    """A writer that notes when it was flushed."""

    def __init__(self, name: str, notes: list[str]) -> None:
        self.name = name
        self.notes = notes

    def flush(self) -> None:
        self.notes.append(self.name)


async def test_batched_writes_are_flushed_in_order_at_the_end_of_the_turn() -> None:
    notes: list[str] = []
    batch = WriteBatch()
    for name in ("first", "second"):
        batch.add(Noted(name, notes))
    assert notes == []
    await asyncio.sleep(0)
    assert notes == ["first", "second"]


async def test_every_turn_has_its_own_end() -> None:
    notes: list[str] = []
    batch = WriteBatch()
    batch.add(Noted("first", notes))
    await asyncio.sleep(0)
    batch.add(Noted("second", notes))
    await asyncio.sleep(0)
    assert notes == ["first", "second"]


class Reading:
    """A transport's reading side and its consumer."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []
        self.is_paused = False
        self.portions = ReadQuota(self.taken.append, pause=self._pause, resume=self._resume)

    def _pause(self) -> None:
        self.is_paused = True

    def _resume(self) -> None:
        self.is_paused = False


async def test_short_input_is_passed_on_at_once() -> None:
    reading = Reading()
    reading.portions.feed(b"short")
    assert (reading.taken, reading.is_paused) == ([b"short"], False)


async def test_a_flood_is_handed_on_one_portion_a_turn_while_reading_rests() -> None:
    reading = Reading()
    flood = bytes(range(256)) * (PORTION_BYTES // 64)
    reading.portions.feed(flood)
    reading.portions.feed(b"more")
    assert (len(reading.taken), reading.is_paused) == (1, True)
    turns = 0
    while reading.is_paused:
        await asyncio.sleep(0)
        turns += 1
    assert turns == 4
    assert b"".join(reading.taken) == flood + b"more"


async def test_portions_that_take_long_become_smaller_and_then_larger_again(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, now, cost = Reading(), [0.0], [2 * module.PORTION_SECONDS]

    def tick() -> float:
        now[0] += cost[0]
        return now[0]

    monkeypatch.setattr(module, "perf_counter", tick)
    reading.portions.feed(b"x" * (3 * PORTION_BYTES))
    for _ in range(100):
        await asyncio.sleep(0)
    sizes = [len(each) for each in reading.taken]
    assert sizes[:3] == [PORTION_BYTES, PORTION_BYTES // 2, PORTION_BYTES // 4]
    assert (sum(sizes), min(sizes)) == (3 * PORTION_BYTES, module.SMALLEST_PORTION_BYTES)
    cost[0] = 0.0
    reading.portions.feed(b"x" * (3 * PORTION_BYTES))
    for _ in range(100):
        await asyncio.sleep(0)
    assert reading.portions.portion_bytes == PORTION_BYTES


async def test_at_the_end_everything_is_handed_on() -> None:
    reading = Reading()
    reading.portions.feed(b"x" * (3 * PORTION_BYTES))
    reading.portions.finish()
    assert len(b"".join(reading.taken)) == 3 * PORTION_BYTES


async def test_nothing_is_passed_on_without_a_receiver() -> None:
    reading = Reading()
    reading.portions.feed(b"x" * (3 * PORTION_BYTES))
    reading.portions.stop()
    await asyncio.sleep(0)
    reading.portions.finish()
    assert (len(reading.taken), reading.is_paused) == (1, True)


async def test_the_receiver_says_how_much_comes_next() -> None:
    reading = Reading()
    reading.portions.portion_bytes = 2
    reading.portions.feed(b"aabbbbcc")
    reading.portions.portion_bytes = 4
    assert reading.portions.has_rest()
    await asyncio.sleep(0)
    reading.portions.portion_bytes = 2
    await asyncio.sleep(0)
    assert (reading.taken, reading.is_paused) == ([b"aa", b"bbbb", b"cc"], False)
    assert not reading.portions.has_rest()


async def test_a_receiver_that_allows_more_gets_it_in_the_same_turn() -> None:
    sizes: list[int] = []

    def take_more(data: bytes) -> None:
        sizes.append(len(data))
        quota.portion_bytes = 4 * PORTION_BYTES

    quota = ReadQuota(take_more, pause=lambda: None, resume=lambda: None)
    quota.feed(b"x" * (6 * PORTION_BYTES))
    assert sizes == [PORTION_BYTES, 4 * PORTION_BYTES]
    await asyncio.sleep(0)
    assert sizes == [PORTION_BYTES, 4 * PORTION_BYTES, PORTION_BYTES]


async def test_a_released_receiver_is_not_called() -> None:
    reading = Reading()
    reading.portions.feed(b"x" * (2 * PORTION_BYTES))
    reading.portions.let_go()
    reading.portions.feed(b"late")
    await asyncio.sleep(0)
    assert (len(reading.taken), reading.is_paused) == (1, True)


async def test_a_few_things_are_done_at_once_in_every_turn() -> None:
    turns, done = LoopTurns(), list[int]()
    for turn in range(3):
        for number in range(AT_ONCE):
            turns.do(partial(done.append, number))
        assert len(done) == (turn + 1) * AT_ONCE
        await asyncio.sleep(0)


async def test_many_things_take_as_many_turns_as_they_need_and_keep_their_order() -> None:
    turns, done = LoopTurns(), list[int]()
    for number in range(3 * AT_ONCE):
        turns.do(partial(done.append, number))
    counts = [len(done)]
    while len(done) < 3 * AT_ONCE:
        await asyncio.sleep(0)
        counts.append(len(done))
    assert counts == [AT_ONCE, 2 * AT_ONCE, 3 * AT_ONCE]
    assert done == sorted(done)


async def test_later_work_waits_for_earlier_work() -> None:
    turns, done = LoopTurns(), list[str]()
    for _ in range(AT_ONCE + 1):
        turns.do(partial(done.append, "early"))
    turns.do(partial(done.append, "late"))
    await asyncio.sleep(0)
    assert done == ["early"] * (AT_ONCE + 1) + ["late"]


async def test_a_failure_costs_no_other_its_turn() -> None:
    turns, done, errors = LoopTurns(), list[int](), list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context["exception"]))
    for number in range(AT_ONCE):
        turns.do(partial(done.append, number))
    turns.do(_fail)
    turns.do(partial(done.append, AT_ONCE))
    for _ in range(3):
        await asyncio.sleep(0)
    assert done == [*range(AT_ONCE + 1)]
    assert [type(error) for error in errors] == [ValueError]


def _fail() -> None:
    raise ValueError


FLOODING = 60


class Clock:
    """A clock that goes on only by what is done."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = 0.0
        monkeypatch.setattr(module, "perf_counter", lambda: self.seconds)


def portions(share: AgentShare, take: Callable[[bytes], None]) -> SharedReadQuota:
    made = SharedReadQuota(take, share, pause=lambda: None, resume=lambda: None)
    made.portion_bytes = 1
    return made


async def test_sixty_that_flood_take_no_more_of_a_turn_than_one(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, shares, taken = Clock(monkeypatch), AgentBandwidth(), list[int]()

    def take(number: int, _: bytes) -> None:
        taken.append(number)
        clock.seconds += 2 * SLICE_SECONDS

    flooding = [portions(shares.share_of("greedy"), partial(take, number)) for number in range(FLOODING)]
    received: list[bytes] = []
    modest = portions(shares.share_of("modest"), received.append)
    for each in flooding:
        each.feed(b"xx")
    assert taken == [0]
    modest.feed(b"y")
    assert received == [b"y"]
    for turn in range(1, 2 * FLOODING):
        await asyncio.sleep(0)
        assert len(taken) == turn + 1
    assert sorted(taken) == sorted([*range(FLOODING)] * 2), "and everybody of them has a turn"
    assert taken[1:FLOODING] != [0] * (FLOODING - 1)


async def test_quick_work_is_done_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, share, taken = Clock(monkeypatch), AgentBandwidth().share_of(None), list[bytes]()

    def take(data: bytes) -> None:
        taken.append(data)
        clock.seconds += SLICE_SECONDS / 4.5

    reading = [portions(share, take) for _ in range(9)]
    for each in reading:
        each.feed(b"x")
    assert len(taken) == 5
    await asyncio.sleep(0)
    assert len(taken) == 9


def fail() -> None:
    raise RuntimeError("it fails")


async def test_work_that_fails_is_followed_by_the_next() -> None:
    share, done = AgentBandwidth().share_of(None), list[int]()
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    share.later(fail)
    share.later(lambda: done.append(1))
    for _ in range(3):
        await asyncio.sleep(0)
    assert (done, share.has_time()) == ([1], True)


async def test_a_group_is_forgotten_with_its_last_socket() -> None:
    shares = AgentBandwidth()
    share = shares.share_of("a")
    assert shares.share_of("a") is share
    assert shares.share_of("b") is not share
    del share
    assert len(shares._groups) == 0
