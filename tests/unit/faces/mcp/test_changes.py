"""Who is told that the list changed: the first at once, then once a second, and never for nothing."""

from __future__ import annotations

import asyncio

from isthmus.faces.mcp.changes import ChangeFeed
from isthmus.model.callers import Grants
from isthmus.model.calls import EVERYTHING
from tests.unit.core.doubles import Stage, ready, tool

ALL = Grants(("*",))


class Ear:
    """Counts what it is told."""

    def __init__(self) -> None:
        self.count = 0
        self.heard = asyncio.Event()

    def __call__(self) -> None:
        self.count += 1
        self.heard.set()


async def test_a_change_is_told_at_once_and_the_next_ones_together() -> None:
    stage, ear = Stage(), Ear()
    feed = ChangeFeed(stage.hub, ALL, EVERYTHING, ear)
    stage.hub.publish(ready(tool("a")))
    assert ear.count == 1
    for name in "bcd":
        stage.hub.publish(ready(tool(name)))
    assert ear.count == 1
    ear.heard.clear()
    async with asyncio.timeout(30):
        await ear.heard.wait()
    assert ear.count == 2
    feed.close()


async def test_what_changed_back_meanwhile_is_not_told() -> None:
    stage, ear = Stage(), Ear()
    feed = ChangeFeed(stage.hub, ALL, EVERYTHING, ear)
    stage.hub.publish(ready(tool("a")))
    stage.hub.publish(ready(tool("b")))
    stage.hub.publish(ready(tool("a")))
    async with asyncio.timeout(30):
        while feed._timer is not None:  # noqa: ASYNC110 (whoever has nothing to tell tells nobody)
            await asyncio.sleep(0.01)
    assert ear.count == 1
    feed.close()


async def test_a_change_that_the_caller_cannot_see_is_not_told() -> None:
    stage, ear = Stage(), Ear()
    feed = ChangeFeed(stage.hub, Grants(("files.read",)), EVERYTHING, ear)
    stage.hub.publish(ready(tool("read"), tool("write")))
    assert ear.count == 0
    feed.close()


async def test_who_has_an_old_list_is_told_at_once() -> None:
    stage, ear = Stage(), Ear()
    current = stage.hub.snapshot.view(ALL, EVERYTHING).digest
    ChangeFeed(stage.hub, ALL, EVERYTHING, ear, seen=current).close()
    assert ear.count == 0
    ChangeFeed(stage.hub, ALL, EVERYTHING, ear, seen=b"another").close()
    assert ear.count == 1


async def test_a_closed_feed_tells_nothing_not_even_what_it_had_put_off() -> None:
    stage, ear = Stage(), Ear()
    feed = ChangeFeed(stage.hub, ALL, EVERYTHING, ear)
    stage.hub.publish(ready(tool("a")))
    stage.hub.publish(ready(tool("b")))
    assert feed._timer is not None
    feed.close()
    stage.hub.publish(ready(tool("c")))
    assert feed._timer.cancelled()
    assert ear.count == 1
