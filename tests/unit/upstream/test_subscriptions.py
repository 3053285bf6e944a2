"""Subscriptions at a server: one request at a time, and a refused resource costs only itself."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable

import msgspec
import pytest
from structlog.testing import capture_logs

from isthmus.model.fault_table import BadReply, Fault, ServerError, TooManySubscriptions
from isthmus.upstream import subscriptions
from isthmus.upstream.response_waiters import HubRequest, Waiter
from isthmus.upstream.subscriptions import LegacySubscriptions, ModernSubscriptions
from tests.unit.core.doubles import SERVER

REFUSED = ServerError(SERVER, -32602, "unknown resource")
UNKNOWN = ServerError(SERVER, -32601, "no such method")


async def turn() -> None:
    """Let everything happen that can without an answer."""
    for _ in range(10):
        await asyncio.sleep(0)


async def ended(*wanting: asyncio.Future[None]) -> list[Fault | None]:
    """How each of those that want something was answered."""
    async with asyncio.timeout(10):
        answers = await asyncio.gather(*wanting, return_exceptions=True)
    return [answer if isinstance(answer, Fault) else None for answer in answers]


# -- an earlier server -----------------------------------------------------------------------------------------------


class Earlier:
    """An earlier server that answers when the test says so."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.open: list[HubRequest] = []
        self.forgotten: list[Waiter] = []
        self.watching = LegacySubscriptions(SERVER, self.send_request, self.forgotten.append)

    def send_request(self, method: str, uri: str) -> HubRequest:
        self.said.append(f"{method.removeprefix('resources/')} {uri}")
        self.open.append(HubRequest(SERVER))
        return self.open[-1]

    def want(self, uri: str) -> asyncio.Future[None]:
        return asyncio.ensure_future(self.watching.want(uri))

    async def answer(self, refusal: Fault | None = None) -> None:
        """Answer the oldest request."""
        own_request = self.open.pop(0)
        if refusal is None:
            own_request.result(msgspec.Raw(b"{}"))
        else:
            own_request.fail(refusal)
        await turn()


@pytest.fixture
async def earlier() -> Earlier:
    return Earlier()


async def test_a_subscriber_that_returns_before_the_unsubscribe_ends_is_requested_after_it(earlier: Earlier) -> None:
    first = earlier.want("a")
    await turn()
    await earlier.answer()
    assert await ended(first) == [None]
    earlier.watching.drop("a")
    again = earlier.want("a")
    await turn()
    assert earlier.said == ["subscribe a", "unsubscribe a"]
    await earlier.answer()
    assert (earlier.said[2:], again.done()) == (["subscribe a"], False)
    await earlier.answer()
    assert await ended(again) == [None]


async def test_a_subscriber_that_leaves_before_the_answer_is_unsubscribed_then(earlier: Earlier) -> None:
    first = earlier.want("a")
    await turn()
    earlier.watching.drop("a")
    assert (await ended(first), earlier.said) == ([None], ["subscribe a"])
    await earlier.answer()
    assert earlier.said == ["subscribe a", "unsubscribe a"]
    await earlier.answer()
    assert len(earlier.forgotten) == 2


async def test_a_subscriber_that_returns_during_the_request_gets_that_answer(earlier: Earlier) -> None:
    first = earlier.want("a")
    await turn()
    earlier.watching.drop("a")
    again = earlier.want("a")
    await turn()
    await earlier.answer()
    assert (await ended(first, again), earlier.said) == ([None, None], ["subscribe a"])


async def test_a_cancelled_waiter_leaves_the_answer_to_others(earlier: Earlier) -> None:
    first, second = earlier.want("a"), earlier.want("a")
    await turn()
    first.cancel()
    await turn()
    assert earlier.said == ["subscribe a"]
    await earlier.answer()
    assert await ended(second) == [None]


async def test_a_refusal_is_reported_and_the_refused_can_be_requested_again(earlier: Earlier) -> None:
    first, other = earlier.want("a"), earlier.want("b")
    await turn()
    await earlier.answer(REFUSED)
    await earlier.answer()
    assert await ended(first, other) == [REFUSED, None]
    earlier.watching.drop("a")
    assert earlier.said == ["subscribe a", "subscribe b"]
    again = earlier.want("a")
    await turn()
    await earlier.answer()
    assert await ended(again) == [None]


async def test_a_server_that_has_forgotten_is_asked_again(earlier: Earlier) -> None:
    for _ in range(2):
        wanting = earlier.want("a")
        await turn()
        await earlier.answer()
        assert await ended(wanting) == [None]
    assert earlier.said == ["subscribe a"] * 2


async def test_a_server_that_does_not_answer_is_given_up(earlier: Earlier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "UNSUBSCRIBE_SECONDS", 0.0)
    wanting = earlier.want("a")
    await turn()
    await earlier.answer()
    monkeypatch.setattr(subscriptions, "SUBSCRIBE_SECONDS", 0.0)
    earlier.watching.drop("a")
    again = earlier.want("a")  # sent as soon as no waiter is left for the last answer
    (_, refusal) = await ended(wanting, again)
    assert isinstance(refusal, BadReply)
    assert "resources/subscribe" in refusal.message
    assert earlier.said == ["subscribe a", "unsubscribe a", "subscribe a"]
    assert len(earlier.forgotten) == 3


# -- a modern server -------------------------------------------------------------------------------------------------


class Modern:
    """A modern server that refuses some resources by refusing whatever names them."""

    def __init__(self, bad: Iterable[str] = (), *, is_silent: bool = False) -> None:
        self.bad = {*bad}
        self.is_silent = is_silent
        self.said: list[list[str]] = []
        self.refusal = REFUSED
        self.acknowledged: list[str] | None = None
        """The URIs that it acknowledged last."""
        self.watching = ModernSubscriptions(SERVER, self.send_request)

    def send_request(self, uris: Collection[str]) -> None:
        self.said.append([*uris])
        if self.is_silent:
            return
        asyncio.get_running_loop().call_soon(self.answer, [*uris])

    def answer(self, uris: list[str]) -> None:
        if self.bad & {*uris}:
            self.watching.refused(self.refusal)
        else:
            self.acknowledged = uris
            self.watching.acknowledged(None)

    def want(self, *uris: str) -> list[asyncio.Future[None]]:
        return [asyncio.ensure_future(self.watching.want(uri)) for uri in uris]

    async def settle(self) -> None:
        """Wait until everything is agreed to or refused."""
        async with asyncio.timeout(10):
            await turn()
            while self.watching.has_pending:
                await turn()
        await turn()


async def test_simultaneous_requests_are_one_subscription() -> None:
    server = Modern()
    assert await ended(*server.want("b", "a", "b")) == [None] * 3
    assert server.said == [["a", "b"]]
    assert await ended(*server.want("a")) == [None]
    assert server.said == [["a", "b"]]


async def test_subscriptions_during_a_request_wait_for_its_answer() -> None:
    server = Modern(is_silent=True)
    first = server.want("a")
    await turn()
    others = server.want("b", "c")
    await turn()
    assert server.said == [["a"]]
    server.watching.acknowledged(None)
    await turn()
    assert server.said == [["a"], ["a", "b", "c"]]
    server.watching.acknowledged(None)
    assert await ended(*first, *others) == [None] * 3


async def test_a_request_that_asks_for_nothing_new_is_not_waited_for() -> None:
    server = Modern(is_silent=True)
    server.watching.resubscribe()
    server.watching.resubscribe()
    server.want("a")
    await turn()
    assert server.said == [[], ["a"]]
    server.watching.stop()


@pytest.mark.parametrize("bad", [["c"], ["a", "h"], ["a", "b", "c", "d", "e", "f", "g", "h"], []])
async def test_a_bad_resource_among_many_costs_only_itself(bad: list[str]) -> None:
    server = Modern(bad)
    assert await ended(*server.want("known")) == [None]
    answers = await ended(*server.want(*"abcdefgh"))
    assert answers == [REFUSED if uri in bad else None for uri in "abcdefgh"]
    assert server.acknowledged == sorted({"known", *"abcdefgh"} - {*bad})
    assert server.watching.wanted == {*(server.acknowledged or ())}


async def test_a_refused_resource_does_not_block_others() -> None:
    server = Modern(["bad"])
    assert await ended(*server.want("bad")) == [REFUSED]
    assert await ended(*server.want("good")) == [None]
    assert server.acknowledged == ["good"]


async def test_a_server_that_knows_no_such_request_is_not_asked_for_each_resource() -> None:
    server = Modern("abcdefgh")
    server.refusal = UNKNOWN
    assert await ended(*server.want(*"abcdefgh")) == [UNKNOWN] * 8
    await server.settle()
    assert len(server.said) <= 2  # the other is for the lists alone


async def test_the_search_for_refused_resources_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "REFUSALS_MAX", 5)
    names = [f"{n:03}" for n in range(100)]
    server = Modern(names)
    assert await ended(*server.want(*names)) == [REFUSED] * 100
    await server.settle()
    assert len(server.said) < 20
    server.bad = {"bad"}
    assert await ended(*server.want("bad", "good")) == [REFUSED, None]  # another search begins anew


async def test_list_changes_are_notified_even_without_a_resource() -> None:
    server = Modern(["bad"])
    assert await ended(*server.want("bad")) == [REFUSED]
    await server.settle()
    assert (server.said, server.acknowledged) == ([["bad"], []], [])


async def test_resources_not_named_in_an_acknowledgement_are_refused() -> None:
    server = Modern(is_silent=True)
    wanting = server.want("a", "b", "c")
    await turn()
    server.watching.acknowledged({"a", "c"})
    _, refusal, _ = await ended(*wanting)
    assert isinstance(refusal, ServerError)
    assert server.watching.wanted == {"a", "c"}


async def test_a_server_may_spell_acknowledged_uris_in_its_own_way() -> None:
    server = Modern(is_silent=True)
    wanting = server.want("http://a", "http://b")
    await turn()
    server.watching.acknowledged({"http://a/", "http://b/"})
    assert await ended(*wanting) == [None, None]


async def test_a_subscriber_that_leaves_with_many_makes_one_request() -> None:
    server = Modern()
    names = [f"{n}" for n in range(1000)]
    await ended(*server.want("kept", *names))
    for uri in names:
        server.watching.drop(uri)
    server.watching.drop("never there")
    await server.settle()
    assert [len(said) for said in server.said] == [1001, 1]
    assert server.acknowledged == ["kept"]


async def test_an_unwanted_subscription_is_not_taken_for_accepted() -> None:
    server = Modern(is_silent=True)
    wanting = server.want("a", "b")
    await turn()
    server.watching.drop("a")
    assert await ended(wanting[0]) == [None]
    server.watching.acknowledged(None)
    again = server.want("a")
    await turn()
    assert (await ended(wanting[1]), server.said[-1], again[0].done()) == ([None], ["a", "b"], False)
    server.watching.acknowledged(None)
    assert await ended(*again) == [None]


async def test_a_resource_refused_after_a_reconnect_costs_only_itself() -> None:
    server = Modern()
    await ended(*server.want(*"abcd"))
    server.bad = {"c"}
    server.watching.closed()
    with capture_logs() as logs:
        server.watching.resubscribe()
        await server.settle()
    assert (server.acknowledged, server.watching.wanted) == (["a", "b", "d"], {"a", "b", "d"})
    assert [line["event"] for line in logs] == ["server ended the subscription to a resource"]


async def test_a_request_that_breaks_off_is_made_again_with_all_that_was_in_it() -> None:
    server = Modern(is_silent=True)
    wanting = server.want("a")
    await turn()
    server.watching.interrupted()
    server.watching.resubscribe()
    assert server.said == [["a"], ["a"]]
    server.watching.refused(REFUSED)
    assert await ended(*wanting) == [REFUSED]


async def test_a_silent_server_is_believed_after_a_while_and_may_refuse_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "LISTEN_ACK_SECONDS", 0.0)
    server = Modern(is_silent=True)
    assert await ended(*server.want("a")) == [None]
    assert await ended(*server.want("b")) == [None]
    assert server.said == [["a"], ["a", "b"]]
    server.is_silent, server.bad = False, {"b"}
    with capture_logs() as logs:
        server.answer(server.said[-1])
        await server.settle()
    assert (server.acknowledged, server.watching.wanted, len(logs)) == (["a"], {"a"}, 1)


async def test_subscriptions_at_one_server_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "WATCHED_BYTES_MAX", 100)
    server = Modern()
    long = "x" * 90
    assert await ended(*server.want(long)) == [None]
    (refusal,) = await ended(*server.want("y" * 10))
    assert isinstance(refusal, TooManySubscriptions)
    server.watching.drop(long)
    assert await ended(*server.want("y" * 10)) == [None]
    assert server.acknowledged == ["y" * 10]


async def test_a_lost_link_leaves_no_waiter() -> None:
    server = Modern(is_silent=True)
    asked = server.want("a")
    await turn()
    waiting = server.want("b")
    await turn()
    server.watching.stop()
    assert await ended(*asked, *waiting) == [None, None]
    assert server.said == [["a"]]
