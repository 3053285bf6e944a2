"""Where the ids of tasks stand in messages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from isthmus.wire.jsonrpc import Payload, render
from isthmus.wire.mcp.tasks import (
    ID_LENGTH_MAX,
    RELATED,
    STATE_BYTES_MAX,
    TaskSummary,
    legacy_state,
    list_result,
    modern_state,
    read_poll_seconds,
    read_state,
    read_ttl,
    related_to,
    rename_ids,
    rename_related,
    rename_related_meta,
    with_task_support,
)
from tests.unit.core.doubles import raw


def renamed(received: object) -> Any:
    return json.loads(bytes(rename_ids(msgspec.Raw(json.dumps(received).encode()), lambda own: f"hub-{own}")))


@pytest.mark.parametrize(
    ("received", "shown"),
    [
        ({"taskId": "t", "status": "working"}, {"taskId": "hub-t", "status": "working"}),
        ({"task": {"taskId": "t", "ttl": None}, "x": 1}, {"task": {"taskId": "hub-t", "ttl": None}, "x": 1}),
        (
            {"content": [], "_meta": {"a": 1, RELATED: {"taskId": "t", "b": 2}}},
            {"content": [], "_meta": {"a": 1, RELATED: {"taskId": "hub-t", "b": 2}}},
        ),
    ],
)
def test_an_id_is_renamed_wherever_it_stands(received: object, shown: object) -> None:
    assert renamed(received) == shown


@pytest.mark.parametrize(
    "received",
    [
        {},
        {"content": [{"taskId": "t"}]},
        {"taskId": 7, "task": "none", "_meta": {RELATED: "none"}},
        {"task": {"taskId": None}, "_meta": []},
        ["taskId"],
    ],
)
def test_invalid_task_ids_are_unchanged(received: object) -> None:
    assert renamed(received) == received


def test_a_message_without_an_id_stays_as_it_was_written() -> None:
    written = msgspec.Raw(b'{ "content" : [ ] , "n" : 1.50 }')
    assert rename_ids(written, str.upper) is written


# -- how a task stands ---------------------------------------------------------------------------------------------

STATE = {"taskId": "t", "status": "working", "ttl": 1500, "x": 1}


@pytest.mark.parametrize("received", [STATE, {"task": STATE}])
def test_a_state_is_read_bare_or_inside_a_member(received: object) -> None:
    state = read_state(raw(received))
    assert state is not None
    assert (state.id, state.status, state.is_terminal, state.ttl_seconds) == ("t", "working", False, 1.5)
    assert {key: json.loads(bytes(value)) for key, value in state.members.items()} == STATE


@pytest.mark.parametrize(
    ("status", "is_terminal"),
    [("working", False), ("input_required", False), ("completed", True), ("failed", True), ("cancelled", True)],
)
def test_a_task_is_over_by_its_status(status: str, *, is_terminal: bool) -> None:
    state = read_state(raw({"taskId": "t", "status": status}))
    assert state is not None
    assert (state.status, state.is_terminal) == (status, is_terminal)


@pytest.mark.parametrize(
    ("ttl", "seconds"),
    [({"ttl": None}, None), ({"ttl": "x"}, None), ({}, None), ({"ttlMs": 2000}, 2.0), ({"ttl": -5}, 0.0)],
)
def test_how_long_it_is_kept_may_not_be_said(ttl: dict[str, Any], seconds: float | None) -> None:
    state = read_state(raw({"taskId": "t", "status": "working", **ttl}))
    assert state is not None
    assert state.ttl_seconds == seconds


@pytest.mark.parametrize(
    "received",
    [
        {},
        {"taskId": "t"},
        {"status": "working"},
        {"taskId": 7, "status": "working"},
        {"taskId": "t", "status": "dreaming"},
        {"taskId": "t" * (ID_LENGTH_MAX + 1), "status": "working"},
        {"task": 7},
        [],
    ],
)
def test_a_value_without_a_task_status_is_no_state(received: object) -> None:
    assert read_state(raw(received)) is None


def test_only_required_members_of_a_large_state_are_kept() -> None:
    large = {**STATE, "statusMessage": "m" * STATE_BYTES_MAX, "result": "r" * STATE_BYTES_MAX, "createdAt": "now"}
    state = read_state(raw(large))
    assert state is not None
    assert state.members.keys() == {"taskId", "status", "ttl", "createdAt"}
    wide = read_state(raw({**STATE, "taskId": "\x01" * ID_LENGTH_MAX}))
    assert wide is not None
    assert "taskId" in wide.members


def test_a_server_may_say_how_often_it_likes_to_be_asked() -> None:
    assert read_poll_seconds(raw({"pollIntervalMs": 250})) == 0.25
    assert [read_poll_seconds(msgspec.Raw(received)) for received in (b"{}", b'{"pollIntervalMs":"x"}', b"[]")] == [
        None
    ] * 3


def test_a_page_names_the_next_if_there_is_one() -> None:
    assert json.loads(list_result([b'{"a":1}', b"{}"], "c")) == {"tasks": [{"a": 1}, {}], "nextCursor": "c"}
    assert json.loads(list_result([], None)) == {"tasks": []}


# -- what relates to a task ----------------------------------------------------------------------------------------


def test_related_messages_get_the_new_task_id() -> None:
    members = {"x": raw(1), "_meta": raw({"a": 1, RELATED: {"taskId": "t", "b": 2}})}
    received = rename_related(members, str.upper)
    assert received["x"] == raw(1)
    assert json.loads(bytes(received["_meta"])) == {"a": 1, RELATED: {"taskId": "T", "b": 2}}


@pytest.mark.parametrize("related", [{"taskId": "t"}, {"taskId": 7}, {}, "t"])
def test_a_relation_to_an_unknown_task_is_removed(related: object) -> None:
    assert rename_related_meta({"a": raw(1), RELATED: raw(related)}, lambda _id: None) == {"a": raw(1)}


@pytest.mark.parametrize("members", [{}, {"_meta": raw({"a": 1})}, {"_meta": raw(7)}])
def test_messages_without_a_related_task_are_unchanged(members: dict[str, msgspec.Raw]) -> None:
    assert rename_related(members, str.upper) is members


# -- the hub's own -------------------------------------------------------------------------------------------------


def read(members: Mapping[str, Payload]) -> Any:
    return json.loads(render(members))


SUMMARY = TaskSummary("t", "failed", 1_700_000_000.0, 1_700_000_000.5, 60.0, "not today")
TIMES = {"createdAt": "2023-11-14T22:13:20.000Z", "lastUpdatedAt": "2023-11-14T22:13:20.500Z"}


def test_a_task_has_the_words_of_each_era() -> None:
    received = {"taskId": "t", "status": "failed", "statusMessage": "not today", **TIMES}
    assert read(legacy_state(SUMMARY)) == {**received, "ttl": 60_000, "pollInterval": 1000}
    assert read(modern_state(SUMMARY)) == {**received, "ttlMs": 60_000, "pollIntervalMs": 1000}
    assert "statusMessage" not in legacy_state(msgspec.structs.replace(SUMMARY, message=""))


@pytest.mark.parametrize(
    ("wanted", "seconds"),
    [({}, None), ({"ttl": None}, None), ({"ttl": 60_000}, 60.0), ({"ttl": 1.5, "more": 1}, 0.0015), ({"ttl": 0}, 0.0)],
)
def test_a_caller_says_how_long_it_wants_a_task_to_be_kept(wanted: object, seconds: float | None) -> None:
    assert read_ttl(raw(wanted)) == seconds


@pytest.mark.parametrize("wanted", [b"5", b"null", b"[]", b'{"ttl":"long"}', b'{"ttl":-1}', b'{"ttl":true}', b"{"])
def test_an_invalid_ttl_is_reported(wanted: bytes) -> None:
    assert isinstance(read_ttl(msgspec.Raw(wanted)), str)


def test_a_tool_is_said_to_be_one_that_may_be_run_as_a_task() -> None:
    own = {"name": raw("a"), "execution": raw({"taskSupport": "forbidden", "x": 1})}
    assert read(with_task_support(own)) == {"name": "a", "execution": {"taskSupport": "optional", "x": 1}}
    assert read(with_task_support({"execution": raw(5)})) == {"execution": {"taskSupport": "optional"}}


def test_a_message_gets_its_related_task_beside_its_members() -> None:
    members = {"content": raw([]), "_meta": raw({"a": 1, RELATED: {"taskId": "another"}})}
    assert read(related_to("t", members)) == {"content": [], "_meta": {"a": 1, RELATED: {"taskId": "t"}}}
    assert read(related_to("t", {})) == {"_meta": {RELATED: {"taskId": "t"}}}
