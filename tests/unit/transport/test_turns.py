"""Work that comes for thousands at once is done a little in each turn of the loop, in order."""

from __future__ import annotations

import asyncio
from functools import partial

from isthmus.transport.agent_bandwidth import AT_ONCE, LoopTurns


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


async def test_what_comes_while_others_wait_is_done_after_them() -> None:
    turns, done = LoopTurns(), list[str]()
    for _ in range(AT_ONCE + 1):
        turns.do(partial(done.append, "early"))
    turns.do(partial(done.append, "late"))
    await asyncio.sleep(0)
    assert done == ["early"] * (AT_ONCE + 1) + ["late"]


async def test_what_fails_keeps_nobody_from_his_turn() -> None:
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
