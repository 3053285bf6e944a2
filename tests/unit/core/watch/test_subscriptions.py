"""Updates of resources: many callers follow one, and its server gets one subscription."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest
from structlog.testing import capture_logs

from isthmus.core.ports import Subscriber, SubscriptionLink
from isthmus.core.watch.subscriptions import LENGTH_MAX, Subscriptions
from isthmus.model.fault_table import Fault, NotConnected, ServerError
from isthmus.model.names import ServerName
from tests.unit.core.doubles import ANYONE, SERVER

KEY = (SERVER, "file:///notes")
REFUSED = ServerError(SERVER, -32601, "no such method")


async def at_once(_uri: str) -> None:
    return None


class Server:
    """An announcer that writes down what it is asked, and answers as the test says."""

    def __init__(self, answer: Callable[[str], Awaitable[None]] = at_once) -> None:
        self.asked: list[str] = []
        self.answer = answer

    async def subscribe(self, uri: str) -> None:
        self.asked.append(f"+{uri}")
        await self.answer(uri)

    def unsubscribe(self, uri: str) -> None:
        self.asked.append(f"-{uri}")


class CountingListener:
    """A listener that counts."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


class Gate:
    """An answer that the test holds back."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.open = asyncio.Event()
        self.refusal: Fault | None = None

    async def __call__(self, _uri: str) -> None:
        self.asked.set()
        await self.open.wait()
        if self.refusal is not None:
            raise self.refusal


def following(server: Server) -> Subscriptions:
    subscriptions = Subscriptions()
    subscriptions.attach(SERVER, server)
    return subscriptions


async def test_many_listen_and_the_server_is_asked_once() -> None:
    server, ears = Server(), [CountingListener() for _ in range(5)]
    subscriptions = following(server)
    assert [await subscriptions.add(KEY, ear) for ear in ears] == [None] * 5
    subscriptions.updated(*KEY)
    subscriptions.updated(SERVER, "file:///other")
    assert server.asked == ["+file:///notes"]
    assert [ear.count for ear in ears] == [1] * 5


async def test_the_last_subscriber_to_leave_unsubscribes_at_the_server() -> None:
    server, one, two = Server(), CountingListener(), CountingListener()
    subscriptions = following(server)
    await subscriptions.add(KEY, one)
    await subscriptions.add(KEY, two)
    subscriptions.remove(KEY, one)
    assert server.asked == ["+file:///notes"]
    subscriptions.remove(KEY, two)
    subscriptions.remove(KEY, two)
    assert server.asked == ["+file:///notes", "-file:///notes"]
    subscriptions.updated(*KEY)
    assert (one.count, two.count) == (0, 0)
    assert subscriptions.shared_uris(SERVER) == []


async def test_an_unknown_subscriber_can_leave() -> None:
    server = Server()
    following(server).remove(KEY, CountingListener())
    assert server.asked == []


async def test_a_refusal_is_reported_and_leaves_nothing() -> None:
    async def refuse(_uri: str) -> None:
        raise REFUSED

    subscriptions, ear = following(Server(refuse)), CountingListener()
    assert await subscriptions.add(KEY, ear) is REFUSED
    subscriptions.updated(*KEY)
    assert (ear.count, subscriptions.shared_uris(SERVER)) == (0, [])


async def test_without_a_link_no_server_can_be_asked() -> None:
    subscriptions = following(Server())
    subscriptions.attach(SERVER, None)
    fault = await subscriptions.add(KEY, CountingListener())
    assert isinstance(fault, NotConnected)
    assert subscriptions.shared_uris(SERVER) == []


async def test_subscriptions_outlast_a_link_and_move_to_the_next_one() -> None:
    subscriptions, ear = following(Server()), CountingListener()
    await subscriptions.add(KEY, ear)
    await subscriptions.add((SERVER, "file:///other"), ear)
    subscriptions.attach(SERVER, None)
    subscriptions.attach(SERVER, None)
    assert subscriptions.shared_uris(SERVER) == ["file:///notes", "file:///other"]
    again = Server()
    subscriptions.attach(SERVER, again)
    subscriptions.remove(KEY, ear)
    assert again.asked == ["-file:///notes"]


async def test_an_update_that_comes_before_the_answer_is_notified() -> None:
    gate, ear = Gate(), CountingListener()
    subscriptions = following(Server(gate))
    adding = asyncio.ensure_future(subscriptions.add(KEY, ear))
    await gate.asked.wait()
    subscriptions.updated(*KEY)
    assert ear.count == 1
    gate.open.set()
    assert await adding is None


@pytest.mark.parametrize("refusal", [None, REFUSED])
async def test_a_subscriber_during_the_request_gets_the_same_answer(refusal: Fault | None) -> None:
    gate, one, two = Gate(), CountingListener(), CountingListener()
    server = Server(gate)
    subscriptions = following(server)
    first = asyncio.ensure_future(subscriptions.add(KEY, one))
    await gate.asked.wait()
    second = asyncio.ensure_future(subscriptions.add(KEY, two))
    await asyncio.sleep(0)
    assert not second.done()
    gate.refusal = refusal
    gate.open.set()
    async with asyncio.timeout(30):
        assert (await first, await second) == (refusal, refusal)
    assert server.asked == ["+file:///notes"]
    subscriptions.updated(*KEY)
    assert one.count == two.count == (1 if refusal is None else 0)


async def test_if_the_requester_leaves_before_the_answer_another_takes_its_place() -> None:
    gate, one, two, three = Gate(), CountingListener(), CountingListener(), CountingListener()
    server = Server(gate)
    subscriptions = following(server)
    first = asyncio.ensure_future(subscriptions.add(KEY, one))
    await gate.asked.wait()
    others = [asyncio.ensure_future(subscriptions.add(KEY, ear)) for ear in (two, three)]
    await asyncio.sleep(0)
    gate.asked.clear()
    first.cancel()
    async with asyncio.timeout(30):
        await gate.asked.wait()
        gate.open.set()
        assert await asyncio.gather(*others) == [None, None]
    assert server.asked == ["+file:///notes", "+file:///notes"]


async def test_an_update_of_a_part_is_notified_to_followers_of_the_whole() -> None:
    subscriptions = following(Server())
    ears = {
        uri: CountingListener() for uri in ("file:///a/b", "file:///a/", "file:///a", "file:///ab", "file:///a/b/c/d")
    }
    for uri, ear in ears.items():
        await subscriptions.add((SERVER, uri), ear)
    subscriptions.updated(SERVER, "file:///a/b/c")
    assert [ear.count for ear in ears.values()] == [1, 1, 1, 0, 0]


@pytest.mark.parametrize("uri", ["", "/", "no slash", "/" * 5000, "x" * (LENGTH_MAX + 1) + "/x", "urn:a:b"])
async def test_updates_of_odd_uris_are_harmless(uri: str) -> None:
    subscriptions, ear = following(Server()), CountingListener()
    await subscriptions.add((SERVER, uri), ear)
    subscriptions.updated(SERVER, uri)
    assert ear.count == 1


async def test_a_broken_listener_keeps_updates_from_no_other() -> None:
    def broken() -> None:
        raise ZeroDivisionError

    subscriptions, ear = following(Server()), CountingListener()
    await subscriptions.add(KEY, broken)
    await subscriptions.add(KEY, ear)
    with capture_logs() as logs:
        subscriptions.updated(*KEY)
    assert ear.count == 1
    assert [line["event"] for line in logs] == ["a listener of a resource failed"]


async def test_after_a_gap_followers_of_a_resource_are_notified_and_none_above_it() -> None:
    subscriptions = following(Server())
    ears = {uri: CountingListener() for uri in ("file:///a/b", "file:///a/")}
    for uri, ear in ears.items():
        await subscriptions.add((SERVER, uri), ear)
    subscriptions.missed(SERVER, "file:///a/b")
    subscriptions.missed(SERVER, "file:///nobody")
    assert [ear.count for ear in ears.values()] == [1, 0]


# -- followers with a link of their own ----------------------------------------------------------------------------

SOMEBODY = Subscriber(ANYONE, frozenset({"roots"}), "one")
ANOTHER = Subscriber(ANYONE, frozenset({"roots"}), "two")
NOTES = KEY[1]


class Links:
    """A server's common link, and those of single followers that are there."""

    def __init__(self) -> None:
        self.common = Server()
        self.links: dict[Subscriber, Server] = {}
        self.looked = 0
        self.further: list[asyncio.Future[None]] = []
        self.subscriptions = Subscriptions()
        self.subscriptions.attach(SERVER, self.common, self)

    def __bool__(self) -> bool:
        return bool(self.links)

    def refusal(self, follower: Subscriber) -> Fault | None:
        return None

    def is_separate(self, follower: Subscriber) -> bool:
        return False

    def own(self, follower: Subscriber) -> list[Server]:
        self.looked += 1
        return [self.links[follower]] if follower in self.links else []

    def subscribe_also(self, follower: Subscriber, links: Sequence[SubscriptionLink], uri: str) -> None:
        asking = self.subscriptions.subscribe_also((SERVER, uri), follower, links)
        self.further.append(asyncio.ensure_future(asking))

    async def settled(self) -> None:
        await asyncio.gather(*self.further)

    async def add(self, follower: Subscriber | None) -> CountingListener:
        ear = CountingListener()
        assert await self.subscriptions.add(KEY, ear, follower) is None
        return ear


async def test_an_update_on_a_followers_own_link_reaches_no_other() -> None:
    links = Links()
    links.links = {SOMEBODY: Server(), ANOTHER: Server()}
    ears = [await links.add(follower) for follower in (SOMEBODY, ANOTHER, None)]
    links.subscriptions.updated(SERVER, NOTES, links.links[SOMEBODY])
    assert [ear.count for ear in ears] == [1, 0, 0]
    links.subscriptions.missed(SERVER, NOTES, links.links[ANOTHER])
    assert [ear.count for ear in ears] == [1, 1, 0]
    links.subscriptions.updated(SERVER, NOTES)
    assert [ear.count for ear in ears] == [1, 1, 1]


async def test_until_it_has_a_link_of_its_own_a_follower_uses_the_common_one() -> None:
    links = Links()
    ear = await links.add(SOMEBODY)
    links.subscriptions.updated(SERVER, NOTES)
    own = links.links[SOMEBODY] = Server()
    links.subscriptions.updated(SERVER, NOTES)  # it has not been asked yet
    assert ear.count == 2
    assert await links.subscriptions.subscribe(own, NOTES) is None
    links.subscriptions.updated(SERVER, NOTES)
    assert ear.count == 2
    del links.links[SOMEBODY]
    links.subscriptions.updated(SERVER, NOTES)
    assert ear.count == 3


async def test_the_answer_is_that_of_the_link_from_which_the_resource_would_be_read() -> None:
    async def refuse(_uri: str) -> None:
        raise REFUSED

    links = Links()
    links.links = {SOMEBODY: Server(refuse)}
    assert await links.subscriptions.add(KEY, CountingListener(), SOMEBODY) is REFUSED
    await links.settled()
    assert links.common.asked == []  # it need not announce updates without a listener
    links.links, links.common.answer = {SOMEBODY: Server()}, refuse
    ear = await links.add(SOMEBODY)
    await links.settled()
    links.subscriptions.updated(SERVER, NOTES, links.links[SOMEBODY])
    assert ear.count == 1


async def test_while_its_own_link_is_asked_a_follower_gets_updates_from_both() -> None:
    links, gate, ear = Links(), Gate(), CountingListener()
    own = links.links[SOMEBODY] = Server(gate)
    adding = asyncio.ensure_future(links.subscriptions.add(KEY, ear, SOMEBODY))
    await gate.asked.wait()
    links.subscriptions.updated(SERVER, NOTES)
    links.subscriptions.updated(SERVER, NOTES, own)
    assert ear.count == 2
    gate.open.set()
    assert await adding is None


async def test_each_link_is_asked_once_and_unsubscribed_when_its_last_follower_leaves() -> None:
    links = Links()
    shared = Server()
    links.links = {SOMEBODY: shared, ANOTHER: shared}
    one, two, common = [await links.add(follower) for follower in (SOMEBODY, ANOTHER, None)]
    await links.settled()
    assert (shared.asked, links.common.asked) == ([f"+{NOTES}"], [f"+{NOTES}"])
    links.subscriptions.remove(KEY, one)
    assert shared.asked == [f"+{NOTES}"]
    links.subscriptions.remove(KEY, two)
    assert (shared.asked, links.common.asked) == ([f"+{NOTES}", f"-{NOTES}"], [f"+{NOTES}"])
    links.subscriptions.remove(KEY, common)
    assert links.common.asked == [f"+{NOTES}", f"-{NOTES}"]


async def test_a_followers_own_link_counts_while_the_common_one_is_away() -> None:
    links = Links()
    own = links.links[SOMEBODY] = Server()
    ear = await links.add(SOMEBODY)
    links.subscriptions.attach(SERVER, None)
    links.subscriptions.updated(SERVER, NOTES, own)
    assert ear.count == 1
    late = await links.add(SOMEBODY)  # it can be asked, though the other cannot
    links.subscriptions.detach(SERVER)
    links.subscriptions.updated(SERVER, NOTES, own)
    assert (ear.count, late.count) == (1, 0)


async def test_a_followed_resource_can_be_followed_again_while_no_server_can_be_asked() -> None:
    subscriptions, one, two = following(Server()), CountingListener(), CountingListener()
    await subscriptions.add(KEY, one)
    subscriptions.attach(SERVER, None)
    assert await subscriptions.add(KEY, two) is None  # the next link is asked for it anyway
    subscriptions.updated(*KEY)
    assert (one.count, two.count) == (1, 1)


async def test_a_link_that_forgot_its_subscriptions_subscribes_again() -> None:
    server = Server()
    subscriptions = following(server)
    await subscriptions.add(KEY, CountingListener())
    assert await subscriptions.subscribe(server, NOTES) is None
    assert (server.asked, subscriptions.subscribed(server)) == ([f"+{NOTES}"], [NOTES])
    subscriptions.forget(server)
    assert subscriptions.subscribed(server) == []
    assert await subscriptions.subscribe(server, NOTES) is None
    assert server.asked == [f"+{NOTES}"] * 2


async def test_a_link_given_up_while_it_is_asked_is_asked_again_by_the_next() -> None:
    gate, one = Gate(), CountingListener()
    server = Server(gate)
    subscriptions = following(server)
    first = asyncio.ensure_future(subscriptions.add(KEY, one))
    await gate.asked.wait()
    subscriptions.remove(KEY, one)
    gate.open.set()
    second = asyncio.ensure_future(subscriptions.add(KEY, CountingListener()))
    assert (await first, await second) == (None, None)
    assert server.asked == [f"+{NOTES}", f"-{NOTES}", f"+{NOTES}"]
    assert subscriptions.subscribed(server) == [NOTES]


async def test_only_subscribers_that_may_have_a_link_of_their_own_are_its_followers() -> None:
    links = Links()
    for follower in (SOMEBODY, None):
        await links.add(follower)
    assert links.subscriptions.followers(SERVER) == {SOMEBODY: {NOTES: 1}}
    assert links.subscriptions.followers(ServerName("other")) == {}


async def test_a_follower_is_one_until_the_last_of_its_listeners_has_left() -> None:
    links = Links()
    ears = [await links.add(SOMEBODY) for _ in range(2)]
    links.subscriptions.remove(KEY, ears[0])
    assert list(links.subscriptions.followers(SERVER)) == [SOMEBODY]
    links.subscriptions.remove(KEY, ears[1])
    assert links.subscriptions.followers(SERVER) == {}


async def test_an_answer_waits_for_no_link_but_the_one_from_which_the_resource_would_be_read() -> None:
    links, gate = Links(), Gate()
    links.links, links.common.answer = {SOMEBODY: Server()}, gate
    async with asyncio.timeout(30):
        ear = await links.add(SOMEBODY)  # while the other says nothing
        await gate.asked.wait()
        gate.open.set()
        await links.settled()
    del links.links[SOMEBODY]
    links.subscriptions.updated(SERVER, NOTES)
    assert ear.count == 1


async def test_a_link_does_not_stand_in_for_a_subscriber_that_has_left() -> None:
    links = Links()
    links.links = {SOMEBODY: Server()}
    links.subscriptions.remove(KEY, await links.add(SOMEBODY))
    await links.settled()
    assert (len(links.further), links.common.asked) == (1, [f"-{NOTES}"])
    assert links.subscriptions.subscribed(links.common) == []


async def test_a_subscriber_that_leaves_with_many_resources_is_compared_once_with_each_other() -> None:
    links, uris = Links(), [f"file:///{number}" for number in range(20)]
    followers = [Subscriber(ANYONE, frozenset({"roots"}), str(number)) for number in range(20)]
    links.links = {follower: Server() for follower in followers}
    ears = {follower: CountingListener() for follower in followers}
    for follower, ear in ears.items():
        for uri in uris:
            await links.subscriptions.add((SERVER, uri), ear, follower)
    await links.settled()
    links.looked = 0
    links.subscriptions.leave([((SERVER, uri), ears[followers[0]]) for uri in uris])
    assert links.looked <= len(uris) + len(followers)
    own = links.links[followers[0]]
    assert own.asked[len(uris) :] == [f"-{uri}" for uri in uris]
    assert not any(asked.startswith("-") for asked in links.common.asked)
