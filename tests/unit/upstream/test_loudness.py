"""How much links are asked to log: all of them, one request at a time, and what is wanted last is what holds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import msgspec
import pytest

from isthmus.core.background import BackgroundTasks
from isthmus.core.watch.levels import Levels
from isthmus.upstream import loudness as module
from isthmus.upstream.loudness import Loudness
from isthmus.upstream.waiters import Waiter
from isthmus.wire.jsonrpc import ErrorReply
from tests.unit.upstream.scripted import NAME, SECONDS, Scripted


class Slow(Scripted):
    """A server of the earlier era that answers when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.levels: list[str] = []
        self.waiting: list[Waiter] = []

    def _dispatch(self, id: int, method: str, params: bytes, waiter: Waiter) -> None:
        self.levels.append(msgspec.json.decode(params)["level"])
        self.waiting.append(waiter)

    def answer(self) -> None:
        self.waiting.pop(0).result(msgspec.Raw(b"{}"))

    def refuse(self) -> None:
        self.waiting.pop(0).error(ErrorReply(msgspec.Raw(b"1"), -32601, "no such method", None))


class Room:
    """Links of one server, and what is wanted of them."""

    def __init__(self) -> None:
        self.background = BackgroundTasks("loudness")
        self.levels = Levels()
        self.loudness = Loudness(self.levels, self.background, NAME)
        self.levels.watch(self.loudness.changed)
        self.link = Slow()

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(SECONDS):
            while not holds():  # noqa: ASYNC110 - a crew tells nobody
                await asyncio.sleep(0)


@pytest.fixture
async def room() -> AsyncIterator[Room]:
    made = Room()
    yield made
    await made.background.aclose()


async def test_while_nothing_is_wanted_nothing_is_asked(room: Room) -> None:
    await room.loudness.prepare(room.link)
    assert room.link.levels == []
    room.levels.want("a", "info")
    assert room.link.levels == ["info"]


async def test_a_link_is_asked_one_thing_at_a_time_and_the_latest_wins(room: Room) -> None:
    room.loudness.attend(room.link)
    for level in ("error", "debug", "warning", "notice"):
        room.levels.want("a", level)
    assert room.link.levels == ["error"]
    room.link.answer()
    await room.until(lambda: len(room.link.levels) == 2)
    room.link.answer()
    await room.until(lambda: len(room.background) == 0)
    assert room.link.levels == ["error", "notice"]


async def test_a_refusal_is_no_harm_and_the_next_level_is_asked_for(room: Room) -> None:
    room.loudness.attend(room.link)
    room.levels.want("a", "error")
    room.levels.want("a", "info")
    room.link.refuse()
    await room.until(lambda: room.link.levels == ["error", "info"])
    room.link.refuse()
    await room.until(lambda: len(room.background) == 0)
    room.levels.want("a", "debug")
    assert room.link.levels == ["error", "info", "debug"]


async def test_every_link_that_is_still_there_is_asked(room: Room) -> None:
    gone, other = Slow(), Slow()
    for link in (gone, other, room.link):
        room.loudness.attend(link)
    gone.die("gone")
    room.levels.want("a", "error")
    assert (gone.levels, other.levels, room.link.levels) == ([], ["error"], ["error"])
    room.loudness.attend(Slow())
    assert gone not in room.loudness._links


async def test_a_new_link_is_waited_for_but_not_for_ever(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    room.levels.want("a", "error")
    preparing = room.background.spawn("a call", room.loudness.prepare(room.link))
    await room.until(lambda: room.link.levels == ["error"])
    assert not preparing.done()
    room.link.answer()
    await room.until(preparing.done)
    monkeypatch.setattr(module, "ANSWER_SECONDS", 0.0)
    await room.loudness.prepare(Slow())


async def test_who_chose_knows_when_every_link_has_taken_it(room: Room) -> None:
    room.loudness.attend(room.link)
    for level in ("error", "debug"):
        room.levels.want("a", level)
    taken = room.background.spawn("a caller", room.levels.settled({NAME}))
    room.link.answer()
    await room.until(lambda: room.link.levels == ["error", "debug"])
    assert not taken.done()
    room.link.answer()
    await room.until(taken.done)
