"""Lists as servers send them, read leniently, and as callers see them."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import msgspec
import pytest

from isthmus.wire.mcp.lists import (
    COMMAS_MAX,
    PROMPTS,
    RESOURCES,
    SHAPES,
    SHARED_BYTES_MAX,
    TEMPLATES,
    TOOLS,
    ListPage,
    ListShape,
    array_of,
    read_entry,
    read_list,
    read_page,
    write_entry,
)
from isthmus.wire.mcp.messages import Members

EVERY = [TOOLS, PROMPTS, RESOURCES, TEMPLATES]


class Read(NamedTuple):
    """A page with all its entries."""

    entries: list[tuple[str, Members]]
    problems: list[str]
    next_cursor: str | None
    ttl_seconds: float | None


def read(shape: ListShape, received: Any) -> Read:
    page = read_page(shape, received if isinstance(received, bytes) else json.dumps(received).encode())
    assert isinstance(page, ListPage), page
    found = [read_entry(shape, raw) for raw in page]
    assert len(found) == len(page)
    good = [entry for entry in found if not isinstance(entry, str)]
    return Read(good, [entry for entry in found if isinstance(entry, str)], page.next_cursor, page.ttl_seconds)


def raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(json.dumps(value).encode())


@pytest.mark.parametrize("shape", EVERY, ids=lambda shape: shape.noun)
def test_each_list_is_read_by_its_own_words(shape: ListShape) -> None:
    assert SHAPES[shape.method] is shape
    entry = {shape.key: "x", "description": "d", "new": {"n": 1}}
    page = read(shape, {shape.member: [entry], "nextCursor": "c", "ttlMs": 1500})
    assert page.entries == [("x", {key: raw(value) for key, value in entry.items()})]
    assert (page.next_cursor, page.ttl_seconds, page.problems) == ("c", 1.5, [])


def test_equal_entries_of_thousands_of_servers_are_kept_once_and_long_ones_are_not() -> None:
    short, long = ({"name": name, "description": "x" * length} for name, length in (("a", 10), ("b", SHARED_BYTES_MAX)))
    first, again = (read(TOOLS, {"tools": [short, long]}).entries for _ in range(2))
    assert first == again
    assert [one[1] is other[1] for one, other in zip(first, again, strict=True)] == [True, False]
    other = read(PROMPTS, {"prompts": [short]}).entries
    assert other[0][1] is not first[0][1]


@pytest.mark.parametrize("shape", EVERY, ids=lambda shape: shape.noun)
@pytest.mark.parametrize(
    "entry",
    [7, [], None, {}, {"description": "nameless"}, "text"],
)
def test_a_bad_entry_costs_only_itself(shape: ListShape, entry: object) -> None:
    page = read(shape, {shape.member: [entry, {shape.key: "good"}]})
    assert [name for name, _ in page.entries] == ["good"]
    assert len(page.problems) == 1


@pytest.mark.parametrize("name", ["", "x\n", "a\x00b", "x\u2028", "\x9f"])
def test_an_entry_with_an_unprintable_name_is_left_out(name: str) -> None:
    assert read(TOOLS, {"tools": [{"name": name}]}).entries == []


@pytest.mark.parametrize("shape", EVERY, ids=lambda shape: shape.noun)
def test_a_name_has_its_length(shape: ListShape) -> None:
    longest = "x" * shape.length_max
    page = read(shape, {shape.member: [{shape.key: longest}, {shape.key: longest + "x"}]})
    assert [name for name, _ in page.entries] == [longest]


def test_a_schema_that_is_no_object_costs_its_tool() -> None:
    page = read(TOOLS, {"tools": [{"name": "a", "inputSchema": []}, {"name": "b", "inputSchema": {}}]})
    assert [name for name, _ in page.entries] == ["b"]


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"description": None, "title": 7, "icons": {}, "x": None}, {"x": None}),
        ({"annotations": [], "outputSchema": None, "_meta": "m"}, {}),
        ({"inputSchema": {}}, {"inputSchema": {"type": "object"}}),
        ({"inputSchema": {"anyOf": []}}, {"inputSchema": {"type": "object", "anyOf": []}}),
        ({"inputSchema": {"type": "object", "required": None, "properties": []}}, {"inputSchema": {"type": "object"}}),
        ({"inputSchema": {"type": "string"}}, None),
        ({"inputSchema": {"type": None}}, None),
        ({"inputSchema": {"type": ["object"]}}, None),
    ],
)
def test_nothing_is_kept_for_which_clients_would_refuse_the_whole_list(
    given: dict[str, Any], kept: dict[str, Any] | None
) -> None:
    page = read(TOOLS, {"tools": [{"name": "good"}, {"name": "odd", **given}]})
    shown = [json.loads(write_entry(TOOLS, name, definition)) for name, definition in page.entries]
    good = {"name": "good", "inputSchema": {"type": "object"}}
    odd = [] if kept is None else [{"name": "odd", "inputSchema": {"type": "object"}, **kept}]
    assert shown == [good, *odd]
    assert len(page.problems) == (kept is None)


def test_a_definition_with_nothing_wrong_in_it_stays_as_it_was_written() -> None:
    schema = b'{ "type" : "object", "maximum": 1.50, "properties":{} }'
    text = b'{"tools":[{"name":"t","description":"d","inputSchema":%b}]}' % schema
    assert bytes(read(TOOLS, text).entries[0][1]["inputSchema"]) == schema


@pytest.mark.parametrize("between", ["", " ", "\n", "\r\n\t  "])
def test_entries_are_found_with_any_white_space_between_them(between: str) -> None:
    written = [json.dumps({"name": name, "description": "a, [b], {c}"}) for name in ("one", "two", "three")]
    array = f"{between}[{between}{f'{between},{between}'.join(written)}{between}]{between}"
    text = f'{{"other":[1,2],"tools":{array},"nextCursor":"c"}}'.encode()
    page = read_page(TOOLS, text)
    assert isinstance(page, ListPage)
    assert [bytes(raw).decode() for raw in page] == written
    assert read_list(TOOLS, text) == read(TOOLS, text).entries


@pytest.mark.parametrize("received", [[], {}, {"tools": {}}, {"tools": None}, {"tools": [], "nextCursor": 7}, 7, "x"])
def test_an_invalid_list_is_reported(received: object) -> None:
    page = read_page(TOOLS, json.dumps(received).encode())
    assert isinstance(page, str)
    assert page.startswith("tools/list returned an invalid result")


def test_a_page_of_millions_of_values_is_not_split() -> None:
    page = read_page(TOOLS, b'{"tools":[%b0]}' % (b"0," * (COMMAS_MAX + 1)))
    assert page == f"tools/list returned a page with over {COMMAS_MAX} values"


@pytest.mark.parametrize(
    ("received", "seconds"),
    [
        ({}, None),
        ({"ttlMs": None}, None),
        ({"ttlMs": 0}, 0.0),
        ({"ttlMs": -7}, 0.0),
        ({"ttlMs": "soon"}, None),
        ({"ttlMs": [1]}, None),
        ({"cacheScope": 7}, None),
    ],
)
def test_the_ttl_of_a_list_is_in_milliseconds(received: dict[str, Any], seconds: float | None) -> None:
    assert read(TOOLS, {"tools": [], **received}).ttl_seconds == seconds


@pytest.mark.parametrize("shape", EVERY, ids=lambda shape: shape.noun)
def test_an_entry_is_shown_in_its_servers_words_under_the_name_to_use(shape: ListShape) -> None:
    definition = {"title": raw("T"), shape.key: raw("own"), "size": msgspec.Raw(b"1.0e2")}
    text = write_entry(shape, "shown", definition)
    shown = json.loads(text)
    assert shown[shape.key] == "shown"
    assert (shown["title"], b"1.0e2" in text) == ("T", True)
    assert isinstance(shown["name"], str)


def test_members_required_by_clients_are_present() -> None:
    assert json.loads(write_entry(TOOLS, "t", {})) == {"name": "t", "inputSchema": {"type": "object"}}
    assert json.loads(write_entry(RESOURCES, "file:///x", {})) == {"uri": "file:///x", "name": "file:///x"}
    assert json.loads(write_entry(RESOURCES, "u", {"name": raw("own")})) == {"uri": "u", "name": "own"}
    assert json.loads(write_entry(PROMPTS, "p", {})) == {"name": "p"}


def test_entries_together_are_an_array() -> None:
    assert array_of([]) == b"[]"
    assert array_of([b"1", b"2"]) == b"[1,2]"
