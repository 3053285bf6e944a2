"""Those of a group have one share of a turn together, and whoever is in another group has one, too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import pytest

from isthmus.transport import read_quota as module
from isthmus.transport.agent_bandwidth import SLICE_SECONDS, AgentBandwidth, AgentShare
from isthmus.transport.read_quota import SharedReadQuota

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

    flooding = [portions(shares.of("greedy"), partial(take, number)) for number in range(FLOODING)]
    heard: list[bytes] = []
    modest = portions(shares.of("modest"), heard.append)
    for each in flooding:
        each.feed(b"xx")
    assert taken == [0]
    modest.feed(b"y")
    assert heard == [b"y"]
    for turn in range(1, 2 * FLOODING):
        await asyncio.sleep(0)
        assert len(taken) == turn + 1
    assert sorted(taken) == sorted([*range(FLOODING)] * 2), "and everybody of them has a turn"
    assert taken[1:FLOODING] != [0] * (FLOODING - 1)


async def test_what_is_quick_is_done_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, share, taken = Clock(monkeypatch), AgentBandwidth().of(None), list[bytes]()

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
    share, done = AgentBandwidth().of(None), list[int]()
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    share.later(fail)
    share.later(lambda: done.append(1))
    for _ in range(3):
        await asyncio.sleep(0)
    assert (done, share.has_time()) == ([1], True)


async def test_a_group_is_forgotten_with_its_last_socket() -> None:
    shares = AgentBandwidth()
    share = shares.of("a")
    assert shares.of("a") is share
    assert shares.of("b") is not share
    del share
    assert len(shares._groups) == 0
