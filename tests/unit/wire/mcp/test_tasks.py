"""Where the ids of tasks stand in messages."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from isthmus.wire.mcp.tasks import RELATED, with_ids


def renamed(told: object) -> Any:
    return json.loads(bytes(with_ids(msgspec.Raw(json.dumps(told).encode()), lambda own: f"hub-{own}")))


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        ({"taskId": "t", "status": "working"}, {"taskId": "hub-t", "status": "working"}),
        ({"task": {"taskId": "t", "ttl": None}, "x": 1}, {"task": {"taskId": "hub-t", "ttl": None}, "x": 1}),
        (
            {"content": [], "_meta": {"a": 1, RELATED: {"taskId": "t", "b": 2}}},
            {"content": [], "_meta": {"a": 1, RELATED: {"taskId": "hub-t", "b": 2}}},
        ),
    ],
)
def test_an_id_is_renamed_wherever_it_stands(told: object, shown: object) -> None:
    assert renamed(told) == shown


@pytest.mark.parametrize(
    "told",
    [
        {},
        {"content": [{"taskId": "t"}]},
        {"taskId": 7, "task": "none", "_meta": {RELATED: "none"}},
        {"task": {"taskId": None}, "_meta": []},
        ["taskId"],
    ],
)
def test_what_is_no_id_is_left_alone(told: object) -> None:
    assert renamed(told) == told


def test_a_message_without_an_id_stays_as_it_was_written() -> None:
    written = msgspec.Raw(b'{ "content" : [ ] , "n" : 1.50 }')
    assert with_ids(written, str.upper) is written
