"""Messages that are the same in both eras: notifications, levels, and the small readers below everything else."""

from __future__ import annotations

import json

import msgspec
import pytest

from isthmus.model.calls import LOG_LEVELS, LogMessage
from isthmus.model.features import TOPICS
from isthmus.wire.mcp.messages import (
    CHANGED,
    TOPIC_OF,
    cancelled_params,
    is_object,
    progress_params,
    read_level,
    read_log,
    read_string,
    token_of,
)


def raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(json.dumps(value).encode())


def test_every_topic_has_its_own_announcement() -> None:
    assert {topic: TOPIC_OF[method] for topic, method in CHANGED.items()} == {topic: topic for topic in TOPICS}


@pytest.mark.parametrize("level", LOG_LEVELS)
def test_a_line_is_read_with_its_level_and_kept_as_it_is(level: str) -> None:
    members = {"level": raw(level), "data": raw({"n": 1}), "logger": raw("db"), "new": raw(True)}
    assert read_log(members) == LogMessage(level, members)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "members",
    [
        {},
        {"level": raw("info")},
        {"data": raw(1)},
        {"level": raw("loud"), "data": raw(1)},
        {"level": raw(3), "data": raw(1)},
    ],
)
def test_a_log_line_without_a_valid_level_or_data_is_ignored(members: dict[str, msgspec.Raw]) -> None:
    assert read_log(members) is None


def test_a_line_may_say_nothing_at_all() -> None:
    assert read_log({"level": raw("info"), "data": raw(None)}) is not None


@pytest.mark.parametrize(
    ("value", "level"), [("debug", "debug"), ("DEBUG", None), ("", None), (None, None), (["info"], None)]
)
def test_a_level_is_one_of_eight_words(value: object, level: str | None) -> None:
    assert read_level(raw(value)) == level
    assert read_level(None) is None


@pytest.mark.parametrize(("text", "value"), [(b'"x"', "x"), (b'""', ""), (b"7", None), (b"null", None), (b"{}", None)])
def test_only_a_string_is_a_string(text: bytes, value: str | None) -> None:
    assert read_string(msgspec.Raw(text)) == value
    assert read_string(None) is None


@pytest.mark.parametrize(("text", "token"), [(b"7", 7), (b'"7"', -1), (b"7.5", -1), (b"null", -1), (b"{}", -1)])
def test_only_an_integer_progress_token_is_ours(text: bytes, token: int) -> None:
    assert token_of({"progressToken": msgspec.Raw(text)}) == token
    assert token_of({}) == -1


def test_notifications_are_written_as_they_are_named() -> None:
    assert json.loads(progress_params(b'"t"', {"progress": b"1.50"})) == {"progressToken": "t", "progress": 1.5}
    assert json.loads(cancelled_params(b"7", 'said "no"')) == {"requestId": 7, "reason": 'said "no"'}


@pytest.mark.parametrize(("text", "answer"), [(b"{}", True), (b"[]", False), (b"7", False), (b"", False)])
def test_an_object_is_known_by_its_first_byte(text: bytes, *, answer: bool) -> None:
    assert is_object(msgspec.Raw(text)) is answer
