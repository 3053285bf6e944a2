"""Lists as servers send them, read leniently, and as callers see them."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from isthmus.wire.mcp.lists import (
    PAGE_MAX,
    PROBLEMS_MAX,
    PROMPTS,
    RESOURCES,
    SHAPES,
    TEMPLATES,
    TOOLS,
    ListPage,
    ListShape,
    array_of,
    read_list,
    write_entry,
)

EVERY = [TOOLS, PROMPTS, RESOURCES, TEMPLATES]


def read(shape: ListShape, told: Any) -> ListPage:
    page = read_list(shape, json.dumps(told).encode())
    assert isinstance(page, ListPage), page
    return page


def raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(json.dumps(value).encode())


@pytest.mark.parametrize("shape", EVERY, ids=lambda shape: shape.noun)
def test_each_list_is_read_by_its_own_words(shape: ListShape) -> None:
    assert SHAPES[shape.method] is shape
    entry = {shape.key: "x", "description": "d", "new": {"n": 1}}
    page = read(shape, {shape.member: [entry], "nextCursor": "c", "ttlMs": 1500})
    assert page.entries == [("x", {key: raw(value) for key, value in entry.items()})]
    assert (page.next_cursor, page.ttl_seconds, page.problems) == ("c", 1.5, [])


@pytest.mark.parametrize("shape", EVERY, ids=lambda shape: shape.noun)
@pytest.mark.parametrize(
    "entry",
    [7, [], None, {}, {"description": "nameless"}, "text"],
)
def test_a_bad_entry_costs_only_itself(shape: ListShape, entry: object) -> None:
    page = read(shape, {shape.member: [entry, {shape.key: "good"}]})
    assert [name for name, _ in page.entries] == ["good"]
    assert len(page.problems) == 1
    assert page.problems[0].startswith(f"{shape.noun} 0 left out: ")


@pytest.mark.parametrize("name", ["", "x\n", "a\x00b", "x\u2028", "\x9f"])
def test_a_name_that_cannot_be_shown_is_none(name: str) -> None:
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
    page = read_list(TOOLS, text)
    assert not isinstance(page, str)
    assert bytes(page.entries[0][1]["inputSchema"]) == schema


@pytest.mark.parametrize("told", [[], {}, {"tools": {}}, {"tools": None}, {"tools": [], "nextCursor": 7}, 7, "x"])
def test_what_is_no_list_is_told_so(told: object) -> None:
    page = read_list(TOOLS, json.dumps(told).encode())
    assert isinstance(page, str)
    assert page.startswith("tools/list returned an invalid result")


def test_a_page_of_millions_is_not_looked_at_to_its_end() -> None:
    page = read(TOOLS, {"tools": [{"name": f"t{n}"} for n in range(PAGE_MAX + 5)]})
    assert (len(page.entries), len(page.problems)) == (PAGE_MAX, 1)
    bad = read(TOOLS, {"tools": [7] * 5000 + [{"name": "last"}]})
    assert (bad.entries, len(bad.problems)) == ([], PROBLEMS_MAX + 1)


@pytest.mark.parametrize(
    ("told", "seconds"),
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
def test_how_long_a_list_holds_is_told_in_milliseconds(told: dict[str, Any], seconds: float | None) -> None:
    assert read(TOOLS, {"tools": [], **told}).ttl_seconds == seconds


@pytest.mark.parametrize("shape", EVERY, ids=lambda shape: shape.noun)
def test_an_entry_is_shown_in_its_servers_words_under_the_name_to_use(shape: ListShape) -> None:
    definition = {"title": raw("T"), shape.key: raw("own"), "size": msgspec.Raw(b"1.0e2")}
    text = write_entry(shape, "shown", definition)
    shown = json.loads(text)
    assert shown[shape.key] == "shown"
    assert (shown["title"], b"1.0e2" in text) == ("T", True)
    assert isinstance(shown["name"], str)


def test_what_clients_insist_on_is_there() -> None:
    assert json.loads(write_entry(TOOLS, "t", {})) == {"name": "t", "inputSchema": {"type": "object"}}
    assert json.loads(write_entry(RESOURCES, "file:///x", {})) == {"uri": "file:///x", "name": "file:///x"}
    assert json.loads(write_entry(RESOURCES, "u", {"name": raw("own")})) == {"uri": "u", "name": "own"}
    assert json.loads(write_entry(PROMPTS, "p", {})) == {"name": "p"}


def test_entries_together_are_an_array() -> None:
    assert array_of([]) == b"[]"
    assert array_of([b"1", b"2"]) == b"[1,2]"
