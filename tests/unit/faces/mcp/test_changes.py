"""Who is told that the list changed: the first at once, then once a second, and never for nothing."""

from __future__ import annotations

import asyncio

from isthmus.faces.mcp.changes import ChangeFeed
from isthmus.model.callers import Grants
from isthmus.model.calls import EVERYTHING
from isthmus.model.features import TOPICS, Topic
from tests.unit.core.doubles import Stage, prompt, ready, resource, template, tool

ALL = Grants(("*",))


class Ear:
    """Counts what it is told."""

    def __init__(self) -> None:
        self.topics: list[Topic] = []
        self.heard = asyncio.Event()

    @property
    def count(self) -> int:
        return len(self.topics)

    def __call__(self, topic: Topic) -> None:
        self.topics.append(topic)
        self.heard.set()


async def test_a_change_is_told_at_once_and_the_next_ones_together() -> None:
    stage, ear = Stage(), Ear()
    feed = ChangeFeed(stage.hub, ALL, EVERYTHING, ear, ["tools"])
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
    feed = ChangeFeed(stage.hub, ALL, EVERYTHING, ear, ["tools"])
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
    feed = ChangeFeed(stage.hub, Grants(("files.read",)), EVERYTHING, ear, ["tools"])
    stage.hub.publish(ready(tool("read"), tool("write")))
    assert ear.count == 0
    feed.close()


async def test_who_has_an_old_list_is_told_at_once() -> None:
    stage, ear = Stage(), Ear()
    current = stage.hub.snapshot.view(ALL, EVERYTHING).digest
    ChangeFeed(stage.hub, ALL, EVERYTHING, ear, ["tools"], seen={"tools": current}).close()
    assert ear.count == 0
    ChangeFeed(stage.hub, ALL, EVERYTHING, ear, ["tools"], seen={"tools": b"another"}).close()
    assert ear.count == 1


async def test_a_closed_feed_tells_nothing_not_even_what_it_had_put_off() -> None:
    stage, ear = Stage(), Ear()
    feed = ChangeFeed(stage.hub, ALL, EVERYTHING, ear, ["tools"])
    stage.hub.publish(ready(tool("a")))
    stage.hub.publish(ready(tool("b")))
    assert feed._timer is not None
    feed.close()
    stage.hub.publish(ready(tool("c")))
    assert feed._timer.cancelled()
    assert ear.count == 1


async def test_each_list_that_changed_is_told_and_no_other() -> None:
    stage, ear = Stage(), Ear()
    feed = ChangeFeed(stage.hub, ALL, EVERYTHING, ear, TOPICS)
    stage.hub.publish(ready(tool(), prompts=[prompt("ask")], templates=[template("file:///{path}")]))
    assert ear.topics == ["prompts", "resources"]
    feed.close()


async def test_a_list_that_nobody_asked_about_is_not_told() -> None:
    stage, ear = Stage(), Ear()
    feed = ChangeFeed(stage.hub, ALL, EVERYTHING, ear, ["prompts"])
    stage.hub.publish(ready(tool("another"), resources=[resource("file:///x")]))
    assert ear.topics == []
    feed.close()


async def test_a_list_that_the_caller_has_not_seen_yet_counts_as_todays() -> None:
    stage, ear = Stage(), Ear()
    ChangeFeed(stage.hub, ALL, EVERYTHING, ear, TOPICS, seen={"prompts": b"another"}).close()
    assert ear.topics == ["prompts"]
