"""Artifacts of an agent, assembled into a result."""

from __future__ import annotations

import base64
import json
import sys
import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from isthmus.frontends.a2a.task_stream import PIECE as CUT
from isthmus.frontends.a2a.task_view import parts_of
from isthmus.model.tasks import Artifact, DataPart, FilePart, Part, TextPart
from isthmus.upstream.a2a.mcp_conversion import ARTIFACTS_MAX, PARTS_MAX, PIECE_KEY, ArtifactBuffer, TaskRef, result_of
from tests.unit.upstream.a2a.scripted import made
from tests.unit.wire.a2a.samples import steady

LIMIT = 10_000
EMPTY = made(TextPart(""), is_more=True)


def gathered(*, is_hub: bool = False) -> ArtifactBuffer:
    return ArtifactBuffer(LIMIT, is_hub=is_hub)


def piece(number: int) -> Raw:
    return Raw(b'{"isthmus/piece":{"part":0,"piece":%d,"pieces":3},"x":1}' % number)


def shown(*parts: Part, **more: Any) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(bytes(result_of(parts, TaskRef(), **more).payload))
    return value


# -- pieces ------------------------------------------------------------------------------------------------------------


def test_a_hub_s_pieces_are_known_by_the_mark_that_hubs_put_on_them() -> None:
    assert PIECE_KEY == CUT


def test_text_that_arrives_word_by_word_is_one_text() -> None:
    all_of_it = gathered()
    for number, word in enumerate(("one ", "two ", "three")):
        assert all_of_it.add(made(TextPart(word), is_more=number > 0)) is None
    all_of_it.add(made(TextPart("another"), id="b"))
    assert all_of_it.parts() == (TextPart("one two three"), TextPart("another"))


def test_parts_sent_by_a_hub_stay_separate() -> None:
    all_of_it = gathered(is_hub=True)
    all_of_it.add(made(TextPart("one")))
    all_of_it.add(made(TextPart("two"), is_more=True))
    assert all_of_it.parts() == (TextPart("one"), TextPart("two"))


def test_pieces_cut_by_a_hub_are_joined() -> None:
    all_of_it = gathered(is_hub=True)
    whole = base64.b64encode(b"x" * 30).decode()
    for number in range(3):
        part = FilePart(whole[number * 16 : (number + 1) * 16], name="f", metadata=piece(number))
        all_of_it.add(made(part, is_more=number > 0))
    all_of_it.add(made(TextPart("a", metadata=piece(0)), is_more=True))
    all_of_it.add(made(TextPart("b", metadata=piece(1)), is_more=True))
    file, text = all_of_it.parts()
    assert isinstance(file, FilePart)
    assert isinstance(text, TextPart)
    assert (file.content, text.text) == (whole, "ab")


@pytest.mark.parametrize("mark", [b'{"isthmus/piece":7}', b'{"y":"isthmus/piece"}', b'{"isthmus/piece":{"piece":0}}'])
def test_a_mark_that_says_nothing_joins_nothing(mark: bytes) -> None:
    all_of_it = gathered(is_hub=True)
    all_of_it.add(made(TextPart("a")))
    all_of_it.add(made(TextPart("b", metadata=Raw(mark)), is_more=True))
    assert len(all_of_it.parts()) == 2


@steady
@given(st.lists(st.binary(max_size=20), min_size=1, max_size=6))
def test_bytes_that_were_encoded_piece_by_piece_are_the_same_bytes(pieces: list[bytes]) -> None:
    all_of_it = gathered(is_hub=True)
    pieces = [each or b"-" for each in pieces]
    for number, each in enumerate(pieces):
        part = FilePart(base64.b64encode(each).decode(), metadata=piece(number))
        all_of_it.add(made(part, is_more=number > 0))
    (file,) = all_of_it.parts()
    assert isinstance(file, FilePart)
    assert base64.b64decode(file.content or "") == b"".join(pieces)


def test_invalid_base64_stays_the_original_text() -> None:
    all_of_it = gathered(is_hub=True)
    all_of_it.add(made(FilePart("a=", metadata=piece(0))))
    all_of_it.add(made(FilePart("b", metadata=piece(1)), is_more=True))
    (file,) = all_of_it.parts()
    assert isinstance(file, FilePart)
    assert file.content == "a=b"


def test_an_artifact_that_is_sent_anew_replaces_the_one_before() -> None:
    all_of_it = gathered()
    all_of_it.add(made(TextPart("first")))
    all_of_it.add(made(TextPart("second")))
    assert all_of_it.parts() == (TextPart("second"),)
    assert all_of_it.replace([Artifact("z", (TextPart("whole"),))]) is None
    assert all_of_it.parts() == (TextPart("whole"),)


def test_an_agent_cannot_fill_the_hub() -> None:
    assert gathered().add(made(TextPart("x" * (LIMIT + 1)))) == f"artifacts of over {LIMIT} bytes"
    assert gathered().add(made(DataPart(Raw(b'"%b"' % (b"x" * LIMIT))))) == f"artifacts of over {LIMIT} bytes"
    assert gathered().add(made(FilePart(url="https://" + "x" * LIMIT))) == f"artifacts of over {LIMIT} bytes"
    many = [Artifact(str(number), ()) for number in range(ARTIFACTS_MAX + 1)]
    assert gathered().replace(many) == f"over {ARTIFACTS_MAX} artifacts or {PARTS_MAX} parts"
    parts = [DataPart(Raw(b""))] * (PARTS_MAX + 1)
    assert gathered().add(made(*parts)) == f"over {ARTIFACTS_MAX} artifacts or {PARTS_MAX} parts"


@pytest.mark.parametrize(
    "large",
    [
        TextPart("", "x" * (LIMIT + 1)),
        TextPart("", metadata=Raw(b'{"k":"%b"}' % (b"x" * LIMIT))),
        FilePart("", name="x" * (LIMIT + 1)),
        DataPart(Raw(b"1"), metadata=Raw(b'{"k":"%b"}' % (b"x" * LIMIT))),
    ],
)
def test_metadata_of_a_part_counts_toward_the_limit(large: Part) -> None:
    assert gathered().add(made(large)) == f"artifacts of over {LIMIT} bytes"


def test_only_the_kept_parts_of_an_artifact_count() -> None:
    all_of_it = gathered()
    data = [DataPart(Raw(b"1"))] * (PARTS_MAX // 4)
    half = "x" * (LIMIT // 4)
    for _ in range(10):
        assert all_of_it.add(made(*data, TextPart(half))) is None
        assert all_of_it.add(made(TextPart(half), is_more=True)) is None
    assert all_of_it.parts() == (*data, TextPart(half + half))


def test_a_part_does_not_keep_the_message_that_it_came_in() -> None:
    all_of_it = gathered()
    body = b'[{"data":1,"metadata":{"x":1}},"%b"]' % (b"x" * 1000)
    held = sys.getrefcount(body)
    read = msgspec.json.decode(body, type=tuple[dict[str, Raw], Raw])[0]
    all_of_it.add(made(DataPart(read["data"], metadata=read["metadata"])))
    del read
    assert sys.getrefcount(body) == held
    assert all_of_it.parts() == (DataPart(Raw(b"1"), metadata=Raw(b'{"x":1}')),)


def test_pieces_of_nothing_are_not_without_end() -> None:
    all_of_it = gathered(is_hub=True)
    complaints = [all_of_it.add(made(TextPart("", metadata=piece(n)), is_more=n > 0)) for n in range(LIMIT)]
    assert complaints[0] is None
    assert complaints[-1] == f"artifacts of over {LIMIT} bytes"


def test_words_without_letters_take_no_room() -> None:
    all_of_it = gathered()
    all_of_it.add(made(TextPart("a")))
    tracemalloc.start()
    for _ in range(LIMIT):
        assert all_of_it.add(EMPTY) is None
    # Other threads of this process may be busy with what was before.
    kept = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, "*/upstream/agent/*")])
    tracemalloc.stop()
    grown = sum(trace.size for trace in kept.traces)
    assert grown < LIMIT, "not even a reference is kept of each"
    assert all_of_it.parts() == (TextPart("a"),)


def test_data_is_never_a_piece() -> None:
    all_of_it = gathered(is_hub=True)
    all_of_it.add(made(DataPart(Raw(b"1"), metadata=piece(0))))
    all_of_it.add(made(DataPart(Raw(b"2"), metadata=piece(1)), is_more=True))
    assert [bytes(part.data) for part in all_of_it.parts() if isinstance(part, DataPart)] == [b"1", b"2"]


# -- results -----------------------------------------------------------------------------------------------------------


def test_structured_content_is_set_only_for_a_single_object() -> None:
    one, other = DataPart(Raw(b'{"b":1,\n"a":2.50}')), DataPart(Raw(b"{}"))
    assert result_of((one,), TaskRef()).payload == Raw(
        b'{"content":[{"type":"text","text":"{\\"b\\":1,\\"a\\":2.50}"}],'
        b'"structuredContent":{"b":1,\n"a":2.50},"isError":false}'
    )
    assert "structuredContent" not in shown(one, other)
    assert "structuredContent" not in shown(DataPart(Raw(b"[1]")))
    assert shown(one, structured=b'{"mine":1}')["structuredContent"] == {"mine": 1}


def test_a_file_without_a_name_or_a_type_is_still_a_file() -> None:
    (inline,) = shown(FilePart("aGk="))["content"]
    assert inline["resource"] == {"uri": "a2a:file/1/", "mimeType": "application/octet-stream", "blob": "aGk="}
    (empty,) = shown(FilePart("", media_type="image/png"))["content"]
    assert empty == {"type": "image", "data": "", "mimeType": "image/png"}
    (linked,) = shown(FilePart(url="https://x/y"))["content"]
    assert linked == {"type": "resource_link", "uri": "https://x/y", "name": "https://x/y"}
    (nothing,) = shown(FilePart())["content"]
    assert nothing["name"] == "file 1"


def test_a_result_says_which_task_it_is_of() -> None:
    value = json.loads(bytes(result_of((), TaskRef("t", "c"), is_error=True).payload))
    assert value == {"content": [], "isError": True, "_meta": {"isthmus/agent": {"task_id": "t", "context_id": "c"}}}


# -- what another hub took apart ---------------------------------------------------------------------------------------

BLOCKS: list[dict[str, Any]] = [
    {"type": "text", "text": "words", "annotations": {"priority": 0.5}},
    {"type": "image", "data": "aGk=", "mimeType": "image/png", "_meta": {"x": 1}},
    {"type": "audio", "data": "aGk=", "mimeType": "audio/wav"},
    {"type": "resource", "resource": {"uri": "file:///a.txt", "mimeType": "text/plain", "text": "hi"}},
    {"type": "resource", "resource": {"uri": "file:///b", "text": ""}, "annotations": {"audience": ["user"]}},
    {"type": "resource", "resource": {"uri": "file:///i.png", "mimeType": "image/png", "blob": "aGk="}},
    {"type": "resource_link", "uri": "file:///c", "name": "c", "mimeType": "a/b", "title": "C", "size": 7},
]


@pytest.mark.parametrize(
    "result",
    [
        {"content": BLOCKS},
        {"content": BLOCKS, "structuredContent": {"b": 1, "a": 2}},
        {"content": [{"type": "text", "text": "3"}], "structuredContent": {"result": 3}},
        {"content": [{"type": "text", "text": '{"result": 3}'}], "structuredContent": {"result": 3}},
        {"content": []},
        {"content": [], "_meta": {"x": 1}},
        {"content": [{"type": "new", "x": 1}], "structuredContent": {"result": 3}},
    ],
)
def test_a_servers_result_is_reassembled(result: dict[str, Any]) -> None:
    parts = parts_of(Raw(json.dumps(result).encode()))
    again = json.loads(bytes(result_of(parts, TaskRef(), is_hub=True).payload))
    expected = {**result, "isError": False}
    if result["content"] == [{"type": "new", "x": 1}]:
        expected["content"] = [{"type": "text", "text": text} for text in ('{"result": 3}', '{"type": "new", "x": 1}')]
    assert again == expected


def test_a_hubs_own_meta_and_the_servers_stand_side_by_side() -> None:
    (part,) = parts_of(Raw(b'{"content":[],"_meta":{"x":1}}'))
    value = json.loads(bytes(result_of((part,), TaskRef("t"), is_hub=True).payload))
    assert value["_meta"] == {"x": 1, "isthmus/agent": {"task_id": "t"}}
