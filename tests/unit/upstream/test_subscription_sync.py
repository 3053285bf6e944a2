"""Subscriptions on the links of one server, and the callers that get their notifications."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

import msgspec
import pytest
from structlog.testing import capture_logs

from isthmus.core.background import BackgroundTasks
from isthmus.core.ports import Subscriber, SubscriptionLink
from isthmus.core.watch.log_levels import LogLevels
from isthmus.model.fault_table import Fault
from isthmus.upstream import subscription_sync as module
from isthmus.upstream.response_waiters import Waiter
from isthmus.upstream.subscription_sync import LogLevelSync, SubscriptionSync
from isthmus.wire.jsonrpc import ErrorReply
from tests.unit.core.doubles import ANYONE, Stage
from tests.unit.upstream.scripted import NAME, SECONDS, Scripted

ME = Subscriber(ANYONE, session="mine")
URIS = [f"file:///{number}" for number in range(5)]


class Followed:
    """A server with a resource that one caller, with a link of its own, and all others follow."""

    def __init__(self) -> None:
        self.hub = Stage().hub
        self.background = BackgroundTasks("following")
        self.common, self.link = Scripted(), Scripted()
        self.subscription_sync = SubscriptionSync(self.hub, self.background, NAME)
        self.subscription_sync.attend(self.link)
        self.hub.subscriptions.attach(NAME, self.common, self)
        self.mine: list[str] = []
        self.others: list[str] = []

    def __bool__(self) -> bool:
        return True

    def refusal(self, _: Subscriber) -> Fault | None:
        return None

    def is_separate(self, _: Subscriber) -> bool:
        return False

    def own(self, follower: Subscriber) -> list[Scripted]:
        return [self.link] if follower == ME else []

    def subscribe_also(self, follower: Subscriber, links: Sequence[SubscriptionLink], uri: str) -> None:
        self.subscription_sync.subscribe_also(follower, links, uri)

    async def follow(self, uri: str) -> None:
        subscriptions = self.hub.subscriptions
        assert await subscriptions.add((NAME, uri), lambda: self.mine.append(uri), ME) is None
        assert await subscriptions.add((NAME, uri), lambda: self.others.append(uri)) is None


@pytest.fixture
async def followed() -> AsyncIterator[Followed]:
    made = Followed()
    yield made
    await made.background.aclose()


def subscribed(link: Scripted) -> list[str]:
    return [params["uri"] for method, params in link.asked if method == "resources/subscribe"]


async def test_a_link_is_asked_for_everything_portion_by_portion(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SUBSCRIBE_AT_ONCE", 2)
    then: list[str] = []
    await followed.subscription_sync.follow(followed.link, URIS, then.append)
    await followed.subscription_sync.follow(followed.link, URIS)
    assert (subscribed(followed.link), then) == (URIS, URIS)


async def test_a_refused_subscription_is_harmless(followed: Followed) -> None:
    followed.link.refuses.add("resources/subscribe")
    with capture_logs() as logs:
        await followed.subscription_sync.follow(followed.link, URIS[:1])
    assert [(line["event"], line["log_level"]) for line in logs] == [("server refused a subscription", "warning")]
    assert followed.hub.subscriptions.subscribed(followed.link) == []


async def test_updates_of_the_own_link_are_for_its_followers_and_the_rest_for_all_others(followed: Followed) -> None:
    await followed.follow(URIS[0])
    followed.link.on_updated(URIS[0])
    assert (followed.mine, followed.others) == (URIS[:1], [])
    followed.subscription_sync.updated(URIS[0])
    assert (followed.mine, followed.others) == (URIS[:1], URIS[:1])


async def test_after_a_gap_only_followers_of_that_link_look(followed: Followed) -> None:
    for uri in URIS[:2]:
        await followed.follow(uri)
    followed.link.on_gap()
    assert (followed.mine, followed.others) == (URIS[:2], [])
    followed.subscription_sync.gap()
    assert (followed.mine, followed.others) == (URIS[:2], URIS[:2])


async def test_a_link_whose_server_forgot_everything_is_asked_again_and_its_followers_look(followed: Followed) -> None:
    await followed.follow(URIS[0])
    followed.subscription_sync.resume_own(followed.link)
    while len(followed.background):  # noqa: ASYNC110 - background tasks have no notification
        await asyncio.sleep(0)
    assert (subscribed(followed.link), subscribed(followed.common)) == (URIS[:1] * 2, URIS[:1])
    assert (followed.mine, followed.others) == (URIS[:1], [])


async def test_a_new_common_link_is_asked_for_everything_and_its_followers_look(followed: Followed) -> None:
    await followed.follow(URIS[0])
    fresh = Scripted()
    followed.hub.subscriptions.attach(NAME, fresh)
    followed.subscription_sync.resume(fresh)
    while len(followed.background):  # noqa: ASYNC110 - background tasks have no notification
        await asyncio.sleep(0)
    assert subscribed(fresh) == URIS[:1]
    assert (followed.mine, followed.others) == ([], URIS[:1])


async def test_an_update_clears_cached_results(followed: Followed) -> None:
    forgotten: list[tuple[str, str | None]] = []
    followed.hub.result_cache.forget = lambda server, name=None: forgotten.append((server, name))  # type: ignore[method-assign]
    await followed.follow(URIS[0])
    followed.link.on_updated(URIS[1])
    followed.link.on_gap()
    assert forgotten == [(NAME, URIS[1]), (NAME, URIS[0])]


async def test_the_common_link_is_asked_too_without_waiters(followed: Followed) -> None:
    await followed.hub.subscriptions.add((NAME, URIS[0]), lambda: None, ME)
    assert (subscribed(followed.link), len(followed.background)) == (URIS[:1], 1)
    while len(followed.background):  # noqa: ASYNC110 - background tasks have no notification
        await asyncio.sleep(0)
    assert subscribed(followed.common) == URIS[:1]


async def test_its_followers_are_this_servers(followed: Followed) -> None:
    await followed.follow(URIS[0])
    assert followed.subscription_sync.followers() == {ME: {URIS[0]: 1}}


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
        self.levels = LogLevels()
        self.loudness = LogLevelSync(self.levels, self.background, NAME)
        self.levels.watch(self.loudness.changed)
        self.link = Slow()

    async def until(self, is_true: Callable[[], bool]) -> None:
        async with asyncio.timeout(SECONDS):
            while not is_true():  # noqa: ASYNC110 - background tasks have no notification
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


async def test_choosing_a_level_returns_when_every_link_has_accepted_it(room: Room) -> None:
    room.loudness.attend(room.link)
    for level in ("error", "debug"):
        room.levels.want("a", level)
    taken = room.background.spawn("a caller", room.levels.settled({NAME}))
    room.link.answer()
    await room.until(lambda: room.link.levels == ["error", "debug"])
    assert not taken.done()
    room.link.answer()
    await room.until(taken.done)
