"""Subscriptions of one caller: bounded, forwarded to servers, and ended for good."""

from __future__ import annotations

import msgspec
import pytest

from isthmus.core.catalog.tool_rules import NO_TOOL_RULES, ToolRules
from isthmus.core.ports import Subscriber
from isthmus.frontends.mcp import subscriptions as module
from isthmus.frontends.mcp.subscriptions import CallerSubscriptions, McpClient
from isthmus.model.callers import Caller, Grants
from isthmus.model.calls import EVERYTHING
from isthmus.model.fault_table import BadArguments, ServerError, TooManySubscriptions, UnknownResource
from isthmus.wire.mcp.lists import URI_LENGTH_MAX
from tests.unit.core.doubles import ANYONE, SERVER
from tests.unit.frontends.mcp.doubles import NOTES, Hosted


def wanting(hosted: Hosted, caller: Caller = ANYONE) -> tuple[CallerSubscriptions, list[str]]:
    received: list[str] = []
    return CallerSubscriptions(McpClient(hosted.hub, caller, EVERYTHING), received.append), received


async def test_an_update_is_sent_as_the_caller_spelt_it() -> None:
    hosted = Hosted()
    interests, received = wanting(hosted)
    for uri in (NOTES, f"isthmus://hub/files/{NOTES}"):
        assert await interests.subscribe(uri) is None
    hosted.hub.subscriptions.updated(SERVER, NOTES)
    assert received == [NOTES, f"isthmus://hub/files/{NOTES}"]
    assert hosted.announcer.asked == [f"+{NOTES}"]


async def test_a_caller_cannot_subscribe_to_hidden_resources() -> None:
    hosted = Hosted()
    interests, _ = wanting(hosted, Caller("limited", "default", Grants(("files.read",))))
    assert isinstance(await interests.subscribe(NOTES), UnknownResource)
    assert hosted.announcer.asked == []


@pytest.mark.parametrize(
    ("grants", "then"),
    [
        (Grants(("*",), ("tag:secret",)), ToolRules(tags={NOTES: ("secret",)})),
        (Grants(("tag:open",)), ToolRules(tags={NOTES: ("secret",)})),
        (Grants(("files.read", "tag:open")), NO_TOOL_RULES),
    ],
)
async def test_of_a_resource_that_the_caller_no_longer_sees_no_update_is_sent(grants: Grants, then: ToolRules) -> None:
    hosted = Hosted()
    server_status = hosted.hub.snapshot.server_statuses[SERVER]
    hosted.hub.publish(msgspec.structs.replace(server_status, rules=ToolRules(tags={NOTES: ("open",)})))
    interests, received = wanting(hosted, Caller("limited", "default", grants))
    assert await interests.subscribe(NOTES) is None
    hosted.hub.subscriptions.updated(SERVER, NOTES)
    assert received == [NOTES]
    hosted.hub.publish(msgspec.structs.replace(server_status, rules=then))
    interests._feed._flush_again()
    hosted.hub.subscriptions.updated(SERVER, NOTES)
    assert received == [NOTES]


async def test_of_an_unlisted_resource_updates_are_sent_as_before() -> None:
    hosted = Hosted()
    interests, received = wanting(hosted)
    assert await interests.subscribe(NOTES) is None
    hosted.hub.publish(msgspec.structs.replace(hosted.hub.snapshot.server_statuses[SERVER], resources=()))
    hosted.hub.subscriptions.updated(SERVER, NOTES)
    assert received == [NOTES]


async def test_the_callers_servers_are_those_that_it_may_see() -> None:
    hosted = Hosted()
    assert list(wanting(hosted)[0].servers()) == [SERVER]
    assert list(wanting(hosted, Caller("limited", "default", Grants(("web.*",))))[0].servers()) == []


async def test_following_twice_is_following_once() -> None:
    hosted = Hosted()
    interests, received = wanting(hosted)
    assert (await interests.subscribe(NOTES), await interests.subscribe(NOTES)) == (None, None)
    hosted.hub.subscriptions.updated(SERVER, NOTES)
    assert received == [NOTES]
    interests.unsubscribe(NOTES)
    interests.unsubscribe(NOTES)
    assert hosted.is_forgotten()


async def test_ended_and_refused_subscriptions_are_forgotten() -> None:
    hosted, forgotten = Hosted(), list[str]()
    interests = CallerSubscriptions(
        McpClient(hosted.hub, ANYONE, EVERYTHING), lambda _: None, on_unsubscribe=forgotten.append
    )
    assert await interests.subscribe(NOTES) is None
    assert forgotten == []
    interests.unsubscribe(NOTES)
    assert forgotten == [NOTES]
    hosted.announcer.refusal = ServerError(SERVER, -32000, "no")
    assert await interests.subscribe(NOTES) is hosted.announcer.refusal
    assert forgotten == [NOTES, NOTES]


async def test_a_refusal_can_be_followed_by_another_try() -> None:
    hosted = Hosted()
    interests, _ = wanting(hosted)
    hosted.announcer.refusal = ServerError(SERVER, -32000, "no")
    assert await interests.subscribe(NOTES) is hosted.announcer.refusal
    hosted.announcer.refusal = None
    assert await interests.subscribe(NOTES) is None


async def test_subscriptions_of_one_caller_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SUBSCRIPTIONS_MAX", 2)
    hosted = Hosted()
    interests, _ = wanting(hosted)
    ends = [await interests.subscribe(f"file:///{n}") for n in range(3)]
    assert [type(end) for end in ends] == [type(None), type(None), TooManySubscriptions]
    assert len(hosted.announcer.asked) == 2


async def test_subscribed_uris_of_one_caller_are_bounded_in_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SUBSCRIBED_LENGTH_MAX", 100)
    hosted = Hosted()
    interests, _ = wanting(hosted)
    long, short = "file:///" + "x" * 80, "file:///" + "y" * 10
    assert await interests.subscribe(long) is None
    assert isinstance(await interests.subscribe(short), TooManySubscriptions)
    interests.unsubscribe(long)
    hosted.announcer.refusal = ServerError(SERVER, -32000, "no")
    assert await interests.subscribe(long) is hosted.announcer.refusal
    hosted.announcer.refusal = None
    assert (await interests.subscribe(short), await interests.subscribe(short[:-1])) == (None, None)


async def test_a_name_longer_than_any_that_is_listed_cannot_be_followed() -> None:
    hosted = Hosted()
    interests, _ = wanting(hosted)
    assert isinstance(await interests.subscribe("file:///" + "x" * URI_LENGTH_MAX), BadArguments)
    assert hosted.announcer.asked == []


async def test_two_callers_want_their_own() -> None:
    hosted = Hosted()
    (one, received), (two, also) = wanting(hosted), wanting(hosted)
    await one.subscribe(NOTES)
    await two.subscribe(NOTES)
    one.set_level("error")
    two.set_level("info")
    assert hosted.level() == "info"
    two.close()
    hosted.hub.subscriptions.updated(SERVER, NOTES)
    assert (hosted.level(), received, also) == ("error", [NOTES], [])
    one.close()
    assert hosted.is_forgotten()
    assert hosted.announcer.asked == [f"+{NOTES}", f"-{NOTES}"]


async def test_a_caller_without_a_level_must_miss_nothing() -> None:
    hosted = Hosted()
    (one, _), (two, _) = wanting(hosted), wanting(hosted)
    one.receive_default_logs()
    assert hosted.level() is None
    two.set_level("error")
    assert hosted.level() == "debug"
    one.close()
    assert hosted.level() == "error"
    two.receive_default_logs()  # it has chosen already
    assert hosted.level() == "error"


async def test_late_messages_of_a_departed_caller_subscribe_to_nothing() -> None:
    hosted = Hosted()
    interests, _ = wanting(hosted)
    interests.close()
    interests.set_level("debug")
    assert await interests.subscribe(NOTES) is None
    assert hosted.is_forgotten()
    assert hosted.announcer.asked == []


async def test_a_storm_of_updates_is_sent_once_and_nothing_after_an_unsubscribe() -> None:
    hosted = Hosted()
    interests, received = wanting(hosted)
    await interests.subscribe(NOTES)
    for _ in range(1000):
        hosted.hub.subscriptions.updated(SERVER, NOTES)
    interests.unsubscribe(NOTES)
    await interests.subscribe("file:///other")
    hosted.hub.subscriptions.updated(SERVER, "file:///other")
    assert received == [NOTES, "file:///other"]
    interests.close()


async def test_an_update_that_waits_when_its_subscription_is_replaced_is_sent_by_the_next_one() -> None:
    hosted = Hosted()
    (first, received), (other, others) = wanting(hosted), wanting(hosted, Caller("other", "default", Grants(("*",))))
    await first.subscribe(NOTES)
    for _ in range(2):  # the second update waits, because the first one has just been sent
        hosted.hub.subscriptions.updated(SERVER, NOTES)
    (following, later), (elsewhere, nothing) = wanting(hosted), wanting(hosted)
    await following.subscribe(NOTES)
    await elsewhere.subscribe("file:///other")
    await other.subscribe(NOTES)
    first.close()
    assert (received, later, nothing, others) == ([NOTES], [NOTES], [], [])
    for each in (following, elsewhere, other):
        each.close()


async def test_too_much_is_said_in_words_that_help(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SUBSCRIPTIONS_MAX", 1)
    interests, _ = wanting(Hosted())
    await interests.subscribe("file:///1")
    fault = await interests.subscribe("file:///2")
    assert fault is not None
    assert fault.message == "Too many subscriptions: 1 resources are followed; unsubscribe from some first"
    assert (fault.server, fault.retry_after) == (None, None)


async def test_a_server_learns_the_subscriber_as_its_calls_name_it() -> None:
    hosted = Hosted()
    interests = CallerSubscriptions(
        McpClient(hosted.hub, ANYONE, EVERYTHING, frozenset({"roots"}), "s"), lambda _uri: None
    )
    assert await interests.subscribe(NOTES) is None
    assert list(hosted.hub.subscriptions.followers(SERVER)) == [Subscriber(ANYONE, frozenset({"roots"}), "s")]
    interests.close()
    assert list(hosted.hub.subscriptions.followers(SERVER)) == []
