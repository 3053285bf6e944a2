"""A subscription's stream: acknowledged first, and marked throughout."""

from __future__ import annotations

import json
from typing import Any

import pytest

from isthmus.frontends.mcp import marked as module
from isthmus.frontends.mcp.interests import SUBSCRIPTIONS_MAX, Interests
from isthmus.frontends.mcp.marked import MarkedStream, follow_all
from isthmus.model.calls import EVERYTHING
from isthmus.model.faults import ServerError
from isthmus.model.names import ServerName
from isthmus.wire.mcp.modern import Wanted
from tests.unit.core.doubles import ANYONE, SERVER, raw, ready, resource
from tests.unit.frontends.mcp.doubles import NOTES, SUBSCRIPTION_KEY, Announcer, Hosted, events

MARK = {SUBSCRIPTION_KEY: 9007199254740993}


def streaming() -> tuple[MarkedStream, list[Any]]:
    told: list[Any] = []
    return MarkedStream(raw(9007199254740993), lambda text: told.append(json.loads(text)), frame=bytes), told


def test_updates_wait_for_the_acknowledgement_each_once() -> None:
    stream, told = streaming()
    for uri in ("a", "b", "a"):
        stream.tell_update(uri)
    assert told == []
    acknowledged = json.loads(stream.acknowledge(Wanted(frozenset({"tools"}), ("a",))))
    assert acknowledged["params"] == {
        "_meta": MARK,
        "notifications": {"toolsListChanged": True, "resourceSubscriptions": ["a"]},
    }
    stream.release()
    assert [message["params"] for message in told] == [{"uri": "a", "_meta": MARK}, {"uri": "b", "_meta": MARK}]
    stream.tell_update("c")
    assert told[2]["params"]["uri"] == "c"


def test_a_change_names_its_list_and_the_last_word_is_the_answer() -> None:
    stream, told = streaming()
    stream.tell_change("resources")
    assert told == [
        {"jsonrpc": "2.0", "method": "notifications/resources/list_changed", "params": {"_meta": MARK}},
    ]
    assert json.loads(stream.last_word()) == {
        "jsonrpc": "2.0",
        "id": 9007199254740993,
        "result": {"resultType": "complete", "_meta": MARK},
    }


def test_over_http_everything_is_an_event() -> None:
    pushed: list[bytes] = []
    stream = MarkedStream(raw("s"), pushed.append)
    stream.release()
    stream.tell_update("a")
    assert [message["params"]["uri"] for message in events(pushed)] == ["a"]


async def test_only_what_its_servers_agree_to_is_honoured() -> None:
    hosted = Hosted()
    interests = Interests(hosted.hub, ANYONE, EVERYTHING, lambda _uri: None)
    wanted = Wanted(frozenset({"tools"}), (NOTES, "file:///other"))
    assert await follow_all(interests, wanted) == wanted
    hosted.announcer.refusal = ServerError(SERVER, -32000, "no")
    assert await follow_all(interests, Wanted(frozenset(), (NOTES, "file:///new"))) == Wanted(frozenset(), (NOTES,))


async def test_no_list_is_honoured_that_no_server_has() -> None:
    hosted = Hosted(ready(resources=[resource(NOTES)], abilities=frozenset({"resources", "subscribe"})))
    interests = Interests(hosted.hub, ANYONE, EVERYTHING, lambda _uri: None)
    wanted = Wanted(frozenset({"tools", "prompts", "resources"}), (NOTES,))
    assert await follow_all(interests, wanted) == Wanted(frozenset({"resources"}), (NOTES,))


async def test_a_server_that_says_nothing_costs_what_it_has_and_the_others_are_honoured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "FOLLOW_SECONDS", 0.5)
    hosted = Hosted(ready(resources=[resource(NOTES)]))
    mute = Announcer()
    mute.opened.clear()
    silent = ServerName("silent")
    hosted.hub.publish(ready(server=silent, resources=[resource("mute:x", silent)]))
    hosted.hub.subscriptions.attach(silent, mute)
    interests = Interests(hosted.hub, ANYONE, EVERYTHING, lambda _uri: None)
    honoured = await follow_all(interests, Wanted(frozenset(), ("mute:x", NOTES)))
    assert honoured == Wanted(frozenset(), (NOTES,))
    assert mute.asked == ["+mute:x", "-mute:x"]
    interests.close()
    assert hosted.is_forgotten()


async def test_there_is_an_end_to_what_one_subscription_may_name() -> None:
    hosted = Hosted()
    interests = Interests(hosted.hub, ANYONE, EVERYTHING, lambda _uri: None)
    wanted = Wanted(frozenset(), tuple(f"file:///{n}" for n in range(SUBSCRIPTIONS_MAX + 10)))
    honoured = await follow_all(interests, wanted)
    assert honoured.uris == wanted.uris[:SUBSCRIPTIONS_MAX]
    assert len(hosted.announcer.asked) == SUBSCRIPTIONS_MAX
