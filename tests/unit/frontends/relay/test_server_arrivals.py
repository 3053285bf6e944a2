"""Answers wait for their servers, in order, and no longer than configured."""

from __future__ import annotations

import asyncio

from isthmus.frontends.relay.server_arrivals import ResponseQueue
from tests.unit.frontends.relay.doubles import SECONDS, until


class Line:
    """A line of answers, and which were given."""

    def __init__(self) -> None:
        self.given: list[str] = []
        self.waiting = ResponseQueue()

    def add(self, id: str, *arrivals: asyncio.Future[None], seconds: float = SECONDS) -> None:
        self.waiting.add(id.encode(), lambda: self.given.append(id), (arrivals, seconds))


def arrival() -> asyncio.Future[None]:
    return asyncio.get_running_loop().create_future()


async def test_without_servers_to_wait_for_an_answer_comes_at_once() -> None:
    line = Line()
    line.add("a")
    assert (line.given, len(line.waiting)) == (["a"], 0)


async def test_an_answer_waits_for_everybody_and_those_behind_it_for_their_turn() -> None:
    line = Line()
    first, second = arrival(), arrival()
    line.add("a", first, second)
    line.add("b", second)
    line.add("c")
    second.set_result(None)
    await until(lambda: len(line.waiting) == 3 and not line.given)
    first.set_result(None)
    await until(lambda: line.given == ["a", "b", "c"])
    assert len(line.waiting) == 0


async def test_an_answer_waits_no_longer_than_agreed() -> None:
    line = Line()
    line.add("a", arrival(), seconds=0.01)
    await until(lambda: line.given == ["a"])


async def test_an_answer_that_is_dropped_is_not_given_and_lets_others_pass() -> None:
    line = Line()
    never = arrival()
    line.add("a", never)
    line.add("b")
    line.waiting.drop(b"a")
    assert line.given == ["b"]
    assert not never._callbacks, "nobody waits for it any more"
    never.set_result(None)
    await asyncio.sleep(0)
    assert line.given == ["b"]


async def test_an_answer_that_is_hurried_is_given_with_those_before_it_and_no_other() -> None:
    line = Line()
    never = arrival()
    for id in "abac":
        line.add(id, never)
    line.waiting.finish_now(b"a")
    assert line.given == ["a", "b", "a"]
    line.waiting.finish_now(b"x")
    assert line.given == ["a", "b", "a"]
    never.set_result(None)
    await until(lambda: line.given == ["a", "b", "a", "c"])


async def test_when_all_have_left_nothing_is_sent() -> None:
    line = Line()
    never = arrival()
    line.add("a", never)
    line.waiting.close()
    never.set_result(None)
    await asyncio.sleep(0)
    assert (line.given, len(line.waiting)) == ([], 0)
