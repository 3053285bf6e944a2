"""What arrives is handed on in portions, one a turn of the loop, and nothing of it is lost or reordered."""

from __future__ import annotations

import asyncio

from isthmus.transport.read_quota import PORTION_BYTES, ReadQuota


class Reading:
    """A transport's reading and whoever takes its bytes."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []
        self.is_paused = False
        self.portions = ReadQuota(self.taken.append, pause=self._pause, resume=self._resume)

    def _pause(self) -> None:
        self.is_paused = True

    def _resume(self) -> None:
        self.is_paused = False


async def test_what_is_short_is_handed_on_at_once() -> None:
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


async def test_at_the_end_everything_is_handed_on() -> None:
    reading = Reading()
    reading.portions.feed(b"x" * (3 * PORTION_BYTES))
    reading.portions.finish()
    assert len(b"".join(reading.taken)) == 3 * PORTION_BYTES


async def test_nothing_is_handed_on_once_nobody_takes_it() -> None:
    reading = Reading()
    reading.portions.feed(b"x" * (3 * PORTION_BYTES))
    reading.portions.stop()
    await asyncio.sleep(0)
    reading.portions.finish()
    assert (len(reading.taken), reading.is_paused) == (1, True)


async def test_whoever_takes_says_how_much_comes_next() -> None:
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


async def test_whoever_has_let_go_is_called_no_more() -> None:
    reading = Reading()
    reading.portions.feed(b"x" * (2 * PORTION_BYTES))
    reading.portions.let_go()
    reading.portions.feed(b"late")
    await asyncio.sleep(0)
    assert (len(reading.taken), reading.is_paused) == (1, True)
