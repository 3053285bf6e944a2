"""Conclusions of the library's bench from its rounds, and a small measurement."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from bench.library import (
    ASYNC,
    SYNC,
    Call,
    Turn,
    Way,
    broken_promises,
    by_service,
    delay,
    own_functions,
    shares,
    table,
    take_turn,
    take_turn_blocking,
    to_cat_and_back,
    to_thread_and_back,
)
from isthmus.library import ToolService


async def nothing() -> None:
    await asyncio.sleep(0)


WAYS = [
    Way("function", nothing, is_function=True),
    Way("server, SDK", nothing),
    Way("server", nothing, base="server, SDK"),
]


def rounds(**other: list[Turn]) -> dict[str, list[Turn]]:
    """Two rounds in which every promise is kept, but for the `other` ones."""
    kept = {
        "function": [Turn(50.0, 90.0, 0.1)] * 2,
        "server, SDK": [Turn(1000.0, 1000.0, 1.0), Turn(2000.0, 2000.0, 2.0)],
        "server": [Turn(100.0, 300.0, 0.2), Turn(200.0, 600.0, 0.3)],
        ASYNC: [Turn(50.0, 90.0, 0.1)] * 2,
        SYNC: [Turn(50.0, 90.0, 0.2)] * 2,
    }
    return {**kept, **other}


def test_promises_that_are_kept_are_no_news() -> None:
    assert broken_promises(WAYS, rounds()) == []


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        ({"function": [Turn(101.0, 1.0, 0.1)] * 2}, "function: 101 µs of CPU"),
        ({"server": [Turn(300.0, 1.0, 0.1), Turn(600.0, 1.0, 0.1)]}, "server: 0.30 of the SDK's CPU"),
        ({SYNC: [Turn(1.0, 1.0, 1.3)] * 2}, "1.20 ms longer"),
    ],
)
def test_each_promise_can_be_broken(other: dict[str, list[Turn]], expected: str) -> None:
    (sentence,) = broken_promises(WAYS, rounds(**other))
    assert expected in sentence


def test_shares_are_taken_within_a_round() -> None:
    assert shares(WAYS, rounds()) == {"server": 0.1}
    assert shares(WAYS, rounds(), lambda turn: turn.single) == {"server": 0.3}
    assert delay(rounds()) == pytest.approx(0.1)


def test_every_row_is_in_the_table() -> None:
    text = table(WAYS, rounds())
    assert all(name in text for name in rounds())
    assert "× 0.2" in text


@pytest.mark.parametrize("name", ["bench_async", "bench_plain", "bench_inline", "echo"])
async def test_a_function_is_called_and_its_answer_checked(name: str) -> None:
    service = ToolService()
    await service.initialize()
    async with service:
        with own_functions():
            turn = await take_turn(by_service(service, f"builtin.{name}"), 0.01)
        left = [each for each in await service.list_tools() if "bench" in each]
    assert min(turn.many, turn.single, turn.milliseconds) > 0
    assert left == []


@pytest.mark.parametrize("road", [to_thread_and_back, to_cat_and_back])
async def test_the_paths_without_a_hub_return_and_leave_no_process(
    road: Callable[[], AbstractContextManager[Call]],
) -> None:
    before = set(threading.enumerate())
    with road() as call:
        turn = await take_turn(call, 0.01)
    assert min(turn.many, turn.single, turn.milliseconds) > 0
    assert set(threading.enumerate()) == before


def test_a_turn_of_a_blocking_call_is_taken_too() -> None:
    turn = take_turn_blocking(lambda: sum(range(1000)), 0.01)
    assert min(turn.many, turn.single, turn.milliseconds) > 0
