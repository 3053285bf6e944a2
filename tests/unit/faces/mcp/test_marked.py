"""A subscription's stream: acknowledged first, and marked throughout."""

from __future__ import annotations

import json
from typing import Any

from isthmus.faces.mcp.interests import Interests
from isthmus.faces.mcp.marked import MarkedStream, follow_all
from isthmus.model.calls import EVERYTHING
from isthmus.model.faults import ServerError
from isthmus.wire.mcp.modern import Wanted
from tests.unit.core.doubles import ANYONE, SERVER, raw
from tests.unit.faces.mcp.doubles import NOTES, SUBSCRIPTION_KEY, Hosted, events

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
