"""A subscription's stream: acknowledged first, and marked throughout."""

from __future__ import annotations

import json
from typing import Any

import pytest

from isthmus.frontends.mcp import subscriptions as module
from isthmus.frontends.mcp.subscriptions import SUBSCRIPTIONS_MAX, ListenSubscription, McpClient, SubscriptionStream
from isthmus.model.calls import EVERYTHING
from isthmus.model.fault_table import ServerError
from isthmus.model.names import ServerName
from isthmus.wire.mcp.modern import ListenFilter
from tests.unit.core.doubles import ANYONE, SERVER, raw, ready, resource
from tests.unit.frontends.mcp.doubles import NOTES, SUBSCRIPTION_KEY, Announcer, Hosted, events

MARK = {SUBSCRIPTION_KEY: 9007199254740993}


def streaming() -> tuple[SubscriptionStream, list[Any]]:
    received: list[Any] = []
    return SubscriptionStream(
        raw(9007199254740993), lambda text: received.append(json.loads(text)), frame=bytes
    ), received


def subscribing(hosted: Hosted) -> ListenSubscription:
    stream, _ = streaming()
    return ListenSubscription(McpClient(hosted.hub, ANYONE, EVERYTHING), stream, lambda: False)


def test_updates_wait_for_the_acknowledgement_each_once() -> None:
    stream, received = streaming()
    for uri in ("a", "b", "a"):
        stream.resource_updated(uri)
    assert received == []
    acknowledged = json.loads(stream.acknowledgement(ListenFilter(frozenset({"tools"}), ("a",))))
    assert acknowledged["params"] == {
        "_meta": MARK,
        "notifications": {"toolsListChanged": True, "resourceSubscriptions": ["a"]},
    }
    stream.release()
    assert [message["params"] for message in received] == [{"uri": "a", "_meta": MARK}, {"uri": "b", "_meta": MARK}]
    stream.resource_updated("c")
    assert received[2]["params"]["uri"] == "c"


def test_a_change_names_its_list_and_the_last_word_is_the_answer() -> None:
    stream, received = streaming()
    stream.list_changed("resources")
    assert received == [
        {"jsonrpc": "2.0", "method": "notifications/resources/list_changed", "params": {"_meta": MARK}},
    ]
    assert json.loads(stream.final_result()) == {
        "jsonrpc": "2.0",
        "id": 9007199254740993,
        "result": {"resultType": "complete", "_meta": MARK},
    }


def test_over_http_everything_is_an_event() -> None:
    pushed: list[bytes] = []
    stream = SubscriptionStream(raw("s"), pushed.append)
    stream.release()
    stream.resource_updated("a")
    assert [message["params"]["uri"] for message in events(pushed)] == ["a"]


async def test_only_subscriptions_accepted_by_servers_are_honoured() -> None:
    hosted = Hosted()
    subscription = subscribing(hosted)
    wanted = ListenFilter(frozenset({"tools"}), (NOTES, "file:///other"))
    assert await subscription.open(wanted) == wanted
    hosted.announcer.refusal = ServerError(SERVER, -32000, "no")
    assert await subscription.open(ListenFilter(frozenset(), (NOTES, "file:///new"))) == ListenFilter(
        frozenset(), (NOTES,)
    )


async def test_no_list_is_honoured_that_no_server_has() -> None:
    hosted = Hosted(ready(resources=[resource(NOTES)], abilities=frozenset({"resources", "subscribe"})))
    subscription = subscribing(hosted)
    wanted = ListenFilter(frozenset({"tools", "prompts", "resources"}), (NOTES,))
    assert await subscription.open(wanted) == ListenFilter(frozenset({"resources"}), (NOTES,))


async def test_a_silent_server_costs_only_its_own_subscriptions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "SUBSCRIBE_SECONDS", 0.5)
    hosted = Hosted(ready(resources=[resource(NOTES)]))
    mute = Announcer()
    mute.opened.clear()
    silent = ServerName("silent")
    hosted.hub.publish(ready(server=silent, resources=[resource("mute:x", silent)]))
    hosted.hub.subscriptions.attach(silent, mute)
    subscription = subscribing(hosted)
    honoured = await subscription.open(ListenFilter(frozenset(), ("mute:x", NOTES)))
    assert honoured == ListenFilter(frozenset(), (NOTES,))
    assert mute.asked == ["+mute:x", "-mute:x"]
    subscription.close()
    assert hosted.is_forgotten()


async def test_resources_of_one_subscription_are_bounded() -> None:
    hosted = Hosted()
    subscription = subscribing(hosted)
    wanted = ListenFilter(frozenset(), tuple(f"file:///{n}" for n in range(SUBSCRIPTIONS_MAX + 10)))
    honoured = await subscription.open(wanted)
    assert honoured.uris == wanted.uris[:SUBSCRIPTIONS_MAX]
    assert len(hosted.announcer.asked) == SUBSCRIPTIONS_MAX
