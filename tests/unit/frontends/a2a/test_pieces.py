"""Artifacts in pieces: each can be read by itself, and all together are what they were cut from."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from isthmus.frontends.a2a.task_stream import PIECE, PIECE_LENGTH, is_long, pieces_in, pieces_of
from isthmus.model.tasks import Artifact, DataPart, FilePart, Part, TextPart


def told(*parts: Part) -> list[tuple[Part, bool, bool]]:
    pieces = pieces_of(Artifact("result", parts, "name"))
    return [(piece.artifact.parts[0], piece.is_more, piece.is_complete) for piece in pieces]


def test_a_small_part_is_one_piece_as_it_is() -> None:
    parts: tuple[Part, ...] = (TextPart(""), FilePart("aGk=", name="a"), DataPart(Raw(b"1")), FilePart(url="x:y"))
    assert told(*parts) == [
        (parts[0], False, False),
        (parts[1], True, False),
        (parts[2], True, False),
        (parts[3], True, True),
    ]


def test_an_artifact_without_parts_has_no_pieces() -> None:
    assert told() == []


@settings(max_examples=20, deadline=None)
@given(st.text(min_size=1, max_size=9), st.integers(0, 3 * PIECE_LENGTH))
def test_a_text_is_the_same_when_its_pieces_are_put_together(unit: str, length: int) -> None:
    whole = (unit * (length // len(unit) + 1))[:length]
    pieces = [part for part, _, _ in told(TextPart(whole, "text/plain"))]
    assert all(isinstance(part, TextPart) and part.media_type == "text/plain" for part in pieces)
    texts = [part.text for part in pieces if isinstance(part, TextPart)]
    assert "".join(texts) == whole
    assert all(len(text) <= PIECE_LENGTH and text.encode() for text in texts[:-1])


@pytest.mark.parametrize("size", [PIECE_LENGTH, 3 * PIECE_LENGTH // 4 + 1, 2 * PIECE_LENGTH + 5])
def test_every_piece_of_a_file_is_base64_by_itself(size: int) -> None:
    whole = bytes(position % 251 for position in range(size))
    pieces = [part for part, _, _ in told(FilePart(base64.b64encode(whole).decode(), name="a", media_type="b/c"))]
    contents = [part.content or "" for part in pieces if isinstance(part, FilePart)]
    assert len(contents) == len(pieces) > 1
    assert b"".join(base64.b64decode(content, validate=True) for content in contents) == whole
    assert {(part.name, part.media_type) for part in pieces if isinstance(part, FilePart)} == {("a", "b/c")}


def test_a_piece_says_which_it_is_beside_what_was_said_of_its_part() -> None:
    large = TextPart("x" * (PIECE_LENGTH + 1), metadata=Raw(b'{"a":1}'))
    pieces = told(TextPart("first"), large)
    assert [is_more for _, is_more, _ in pieces] == [False, True, True]
    assert [is_complete for _, _, is_complete in pieces] == [False, False, True]
    marks = [json.loads(bytes(part.metadata)) for part, _, _ in pieces[1:]]
    assert marks == [{"a": 1, PIECE: {"part": 1, "piece": number, "pieces": 2}} for number in range(2)]


@pytest.mark.parametrize(
    "part",
    [
        DataPart(Raw(b'"' + b"x" * 3 * PIECE_LENGTH + b'"')),
        FilePart("a" * (PIECE_LENGTH + 3)),
        FilePart("aaa\n" * PIECE_LENGTH),
        FilePart(url="https://a/" + "b" * 2 * PIECE_LENGTH),
    ],
)
def test_what_cannot_be_cut_stays_whole(part: Part) -> None:
    assert pieces_in(part) == 1


def test_a_part_is_cut_in_the_form_in_which_it_is_to_be_told() -> None:
    whole = b'"' + b"x" * PIECE_LENGTH + b'"'
    told_as = FilePart(base64.b64encode(whole).decode(), media_type="application/json")
    artifact = Artifact("result", (TextPart("first"), DataPart(Raw(whole))))
    pieces = list(pieces_of(artifact, lambda part: told_as if isinstance(part, DataPart) else part))
    assert [piece.is_complete for piece in pieces] == [False, False, True]
    parts = [piece.artifact.parts[0] for piece in pieces[1:]]
    assert b"".join(base64.b64decode(part.content or "") for part in parts if isinstance(part, FilePart)) == whole
    assert [json.loads(bytes(part.metadata))[PIECE]["part"] for part in parts] == [1, 1]


HALF = PIECE_LENGTH // 2


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ((), False),
        ((TextPart("x" * HALF), DataPart(Raw(b"1" * HALF)), FilePart(url="https://a/b")), False),
        ((TextPart("x" * HALF), DataPart(Raw(b"1" * HALF)), FilePart("aaaa")), True),
        ((TextPart("x" * (PIECE_LENGTH + 1)),), True),
    ],
)
def test_an_artifact_is_long_if_it_is_more_than_a_piece(parts: tuple[Part, ...], *, expected: bool) -> None:
    assert is_long(Artifact("result", parts)) is expected
