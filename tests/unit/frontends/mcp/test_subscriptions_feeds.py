"""Notifications of changed lists: the first at once, then one a second, and never without a change."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from isthmus.core.catalog.snapshot import FeatureLists
from isthmus.frontends.mcp import subscriptions
from isthmus.frontends.mcp.subscriptions import ListChangeFeed, McpClient, ResourceUpdateFeed
from isthmus.model.callers import Caller, Grants
from isthmus.model.calls import EVERYTHING
from isthmus.model.features import TOPICS, Topic
from tests.unit.core.doubles import ANYONE, Stage, prompt, ready, resource, template, tool

ALL = Grants(("*",))


class CountingFeed:
    """Counts its notifications."""

    def __init__(self) -> None:
        self.topics: list[Topic] = []
        self.has_news = asyncio.Event()

    @property
    def count(self) -> int:
        return len(self.topics)

    def __call__(self, topic: Topic) -> None:
        self.topics.append(topic)
        self.has_news.set()


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second may pass on a busy machine between two lines of a test."""
    monkeypatch.setattr(subscriptions, "QUIET_SECONDS", 60.0)


async def the_time_comes(feed: ListChangeFeed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the time pass after which delayed notifications are sent."""
    while feed._timer is None:  # noqa: ASYNC110 - after long work, the hub notifies in the next turn
        await asyncio.sleep(0)
    feed._timer.cancel()
    monkeypatch.setattr(subscriptions, "QUIET_SECONDS", 0.0)
    feed._compare_again()
    assert feed._timer is None


async def test_a_change_is_sent_at_once_and_the_next_ones_together(monkeypatch: pytest.MonkeyPatch) -> None:
    stage, ear = Stage(), CountingFeed()
    feed = ListChangeFeed(McpClient(stage.hub, ANYONE, EVERYTHING), ear, ["tools"])
    stage.hub.publish(ready(tool("a")))
    assert ear.count == 1
    for name in "bcd":
        stage.hub.publish(ready(tool(name)))
    assert ear.count == 1
    await the_time_comes(feed, monkeypatch)
    assert ear.count == 2
    feed.close()


async def test_a_reverted_change_is_sent_because_the_caller_may_have_listed_it_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage, ear = Stage(), CountingFeed()
    feed = ListChangeFeed(McpClient(stage.hub, ANYONE, EVERYTHING), ear, ["tools"])
    stage.hub.publish(ready(tool("a")))
    stage.hub.publish(ready(tool("b")))
    stage.hub.publish(ready(tool("a")))
    await the_time_comes(feed, monkeypatch)
    assert ear.count == 2
    feed.close()


async def test_a_change_that_the_caller_cannot_see_is_not_sent() -> None:
    stage, ear = Stage(), CountingFeed()
    reader = Caller("reader", ANYONE.tenant, Grants(("files.read",)))
    feed = ListChangeFeed(McpClient(stage.hub, reader, EVERYTHING), ear, ["tools"])
    stage.hub.publish(ready(tool("read"), tool("write")))
    assert ear.count == 0
    feed.close()


async def test_a_caller_with_an_old_list_is_notified_at_once() -> None:
    stage, ear = Stage(), CountingFeed()
    current = stage.hub.snapshot.view(ALL, EVERYTHING).digest
    ListChangeFeed(McpClient(stage.hub, ANYONE, EVERYTHING), ear, ["tools"], seen={"tools": current}).close()
    assert ear.count == 0
    ListChangeFeed(McpClient(stage.hub, ANYONE, EVERYTHING), ear, ["tools"], seen={"tools": b"another"}).close()
    assert ear.count == 1


async def test_a_closed_feed_sends_nothing_delayed_or_new() -> None:
    stage, ear = Stage(), CountingFeed()
    feed = ListChangeFeed(McpClient(stage.hub, ANYONE, EVERYTHING), ear, ["tools"])
    stage.hub.publish(ready(tool("a")))
    stage.hub.publish(ready(tool("b")))
    assert feed._timer is not None
    feed.close()
    stage.hub.publish(ready(tool("c")))
    assert feed._timer.cancelled()
    assert ear.count == 1


async def test_each_list_that_changed_is_notified_and_no_other() -> None:
    stage, ear = Stage(), CountingFeed()
    feed = ListChangeFeed(McpClient(stage.hub, ANYONE, EVERYTHING), ear, TOPICS)
    stage.hub.publish(ready(tool(), prompts=[prompt("ask")], templates=[template("file:///{path}")]))
    assert ear.topics == ["prompts", "resources"]
    feed.close()


async def test_a_list_without_a_subscriber_is_not_notified() -> None:
    stage, ear = Stage(), CountingFeed()
    feed = ListChangeFeed(McpClient(stage.hub, ANYONE, EVERYTHING), ear, ["prompts"])
    stage.hub.publish(ready(tool("another"), resources=[resource("file:///x")]))
    assert ear.topics == []
    feed.close()


async def test_a_list_that_the_caller_has_not_seen_yet_counts_as_todays() -> None:
    stage, ear = Stage(), CountingFeed()
    ListChangeFeed(McpClient(stage.hub, ANYONE, EVERYTHING), ear, TOPICS, seen={"prompts": b"another"}).close()
    assert ear.topics == ["prompts"]


async def test_one_list_that_was_just_notified_does_not_delay_another() -> None:
    stage, ear = Stage(), CountingFeed()
    feed = ListChangeFeed(McpClient(stage.hub, ANYONE, EVERYTHING), ear, TOPICS)
    stage.hub.publish(ready(tool("a")))
    stage.hub.publish(ready(tool("b"), prompts=[prompt("ask")]))
    assert ear.topics == ["tools", "prompts"]
    feed.close()


async def test_a_client_with_capabilities_is_notified_of_its_own_list_and_of_nothing_else() -> None:
    stage, able, other = Stage(), CountingFeed(), CountingFeed()
    client_caps = frozenset({"elicitation"})
    feeds = [
        ListChangeFeed(McpClient(stage.hub, ANYONE, EVERYTHING, client_caps), able, TOPICS),
        ListChangeFeed(McpClient(stage.hub, ANYONE, EVERYTHING), other, TOPICS),
    ]
    varied = msgspec.structs.replace(ready(tool()), variants={client_caps: FeatureLists((tool(), tool("ask")))})
    stage.hub.publish(varied)
    assert (able.topics, other.topics) == (["tools"], [])
    stage.hub.publish(msgspec.structs.replace(varied, prompts=(prompt("p"),)))
    assert (able.topics, other.topics) == (["tools"], ["prompts"])
    for feed in feeds:
        feed.close()


# -- resources -----------------------------------------------------------------------------------------------------


class Reader:
    """A caller that reads its notifications, or does not."""

    def __init__(self) -> None:
        self.notified: list[str] = []
        self.is_crowded = False
        self.feed = ResourceUpdateFeed(self.notified.append, lambda: self.is_crowded)

    async def until(self, count: int) -> None:
        async with asyncio.timeout(30):
            while len(self.notified) < count:  # noqa: ASYNC110 (a list has no notification)
                await asyncio.sleep(0.001)


async def test_updates_are_sent_at_once_and_in_order() -> None:
    reader = Reader()
    for uri in ("b", "a", "c"):
        reader.feed.updated(uri)
    assert reader.notified == ["b", "a", "c"]
    reader.feed.close()


async def test_a_storm_of_updates_is_sent_once_and_later_ones_come_after_it() -> None:
    reader = Reader()
    for _ in range(10_000):
        reader.feed.updated("a")
    reader.feed.updated("b")
    reader.feed.updated("a")
    assert reader.notified == ["a"]
    await reader.until(3)
    assert reader.notified == ["a", "a", "b"]
    reader.feed.close()


async def test_an_update_that_the_caller_has_not_read_is_not_sent_again() -> None:
    reader = Reader()
    reader.is_crowded = True
    for _ in range(100):
        for uri in ("a", "b"):
            reader.feed.updated(uri)
    assert (reader.notified, len(reader.feed._unsent)) == ([], 2)
    reader.is_crowded = False
    await reader.until(2)
    assert reader.notified == ["a", "b"]
    reader.feed.close()


async def test_unsubscribed_updates_are_not_sent() -> None:
    reader = Reader()
    reader.is_crowded = True
    for uri in ("a", "b"):
        reader.feed.updated(uri)
    reader.feed.forget("a")
    reader.is_crowded = False
    await reader.until(1)
    assert reader.notified == ["b"]
    reader.feed.updated("b")
    reader.feed.close()
    assert reader.feed._timer is not None
    assert reader.feed._timer.cancelled()


async def test_another_hub_learns_of_a_list_that_only_some_of_its_clients_see(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "QUIET_SECONDS", 0.0)
    client_caps = frozenset({"elicitation"})
    stage, hub, client = Stage(), CountingFeed(), CountingFeed()
    feeds = [
        ListChangeFeed(McpClient(stage.hub, ANYONE, EVERYTHING, is_hub=is_hub), ear, TOPICS)
        for is_hub, ear in ((True, hub), (False, client))
    ]
    for names in (["ask"], ["ask"], ["ask", "more"]):
        variants = {client_caps: FeatureLists((tool(), *map(tool, names)))}
        stage.hub.publish(msgspec.structs.replace(ready(tool()), variants=variants))
    assert (hub.topics, client.topics) == (["tools", "tools"], [])
    for feed in feeds:
        feed.close()
