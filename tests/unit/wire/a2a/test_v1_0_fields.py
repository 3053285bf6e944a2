"""Fields that the dialects share."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from isthmus.model.tasks import ABSENT, Message, TextPart
from isthmus.wire.a2a import v1_0 as fields
from isthmus.wire.a2a.operations import A2aProblem
from tests.unit.wire.a2a.samples import AT, TIME, Json, raws, some_json, some_object, steady


def problem_of(name: str, members: dict[str, Raw]) -> A2aProblem:
    with pytest.raises(fields.Unreadable) as raised:
        fields.required(fields.ID, members, name)
    return raised.value.problem


def test_a_moment_is_written_in_utc_to_the_millisecond_or_the_microsecond() -> None:
    assert fields.format_timestamp(AT) == TIME
    assert fields.format_timestamp_micros(AT) == "2026-11-15T07:08:46.993637Z"
    assert fields.format_timestamp(0.0) == "1970-01-01T00:00:00.000Z"


@given(st.integers(0, 4_000_000_000_000_000))
@steady
def test_a_written_moment_is_read_as_itself(microseconds: int) -> None:
    at = microseconds / 1_000_000
    assert fields.parse_timestamp(fields.format_timestamp_micros(at)) == pytest.approx(at, abs=1e-6)
    assert fields.format_timestamp(at)[:19] == datetime.fromtimestamp(microseconds // 1_000_000, UTC).isoformat()[:19]


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("2026-11-15T07:08:46.993637", AT),
        ("2026-11-15T07:08:46.993637123Z", AT),
        ("2026-11-15T09:08:46.993637+02:00", AT),
        ("1970-01-01T00:00:00Z", 0.0),
        ("yesterday", None),
        ("", None),
        (None, None),
    ],
)
def test_timestamps_of_every_agent_are_read(text: str | None, at: float | None) -> None:
    assert fields.parse_timestamp(text) == at


def test_a_history_is_cut_from_its_beginning() -> None:
    history = tuple(Message(str(number), "user", (TextPart("hi"),)) for number in range(3))
    assert fields.last_messages(history, None) == history
    assert fields.last_messages(history, 2) == history[1:]
    assert fields.last_messages(history, 9) == history
    assert fields.last_messages(history, 0) == ()


@given(some_json, st.just(ABSENT) | some_object)
@steady
def test_data_that_is_no_object_survives_generations_that_have_only_objects(data: Raw, metadata: Raw) -> None:
    assert fields.is_object(fields.data_as_object(data))
    read, kept = fields.restore_data(fields.data_as_object(data), fields.data_metadata(data, metadata))
    assert read == data
    assert json.loads(bytes(kept) or b"{}") == json.loads(bytes(metadata) or b"{}")


def test_metadata_that_only_looks_marked_is_left_alone() -> None:
    for metadata in (b'{"data_part_compat":false}', b'{"x":"data_part_compat"}'):
        assert fields.restore_data(Raw(b'{"value":1}'), Raw(metadata)) == (Raw(b'{"value":1}'), Raw(metadata))
    assert fields.restore_data(Raw(b"{}"), Raw(b'{"data_part_compat":true}'))[0] == Raw(b"{}")


@pytest.mark.parametrize("given", [b"7", b'""', b'"' + b"x" * 257 + b'"', b"null", b'"\\ud800"'])
def test_an_invalid_id_is_refused_by_its_field(given: bytes) -> None:
    problem = problem_of("id", {"id": Raw(given)})
    assert (problem.kind, problem.details) == ("invalid_params", {"field": "id"})
    assert problem.message.startswith("id ")


def test_a_member_that_is_missing_is_named() -> None:
    assert problem_of("id", {}).message == "id is required"


def test_an_error_text_is_short_however_long_the_mistake() -> None:
    assert len(fields.unknown_method("x" * 10_000).message) < 400
    assert len(fields.invalid("x", "y" * 10_000).message) <= fields.WORDS_MAX


@pytest.mark.parametrize("count", [0, fields.PARTS_MAX + 1])
def test_a_message_has_some_parts_and_not_too_many(count: int) -> None:
    parts: list[Json] = [{"text": "x"}] * count
    message: Json = {"messageId": "m", "role": "ROLE_USER", "parts": parts}
    read = fields.DIALECT.read("SendMessage", raws({"message": message}))
    assert isinstance(read, A2aProblem)
    assert read.details == {"field": "message.parts"}


def test_members_are_known_by_their_names_in_protobuf_as_well() -> None:
    plain = {"id": Raw(b"1"), "historyLength": Raw(b"2")}
    assert fields.camel_members(plain) is plain
    both = fields.camel_members(
        {"history_length": Raw(b"1"), "_": Raw(b"3"), "task_id": Raw(b"4"), "taskId": Raw(b"5")}
    )
    assert bytes(both["historyLength"]) == b"1"
    assert bytes(both["taskId"]) == b"5"
