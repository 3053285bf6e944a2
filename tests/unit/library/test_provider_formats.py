"""Definitions of tools, their schemas for each provider, and texts that are cut."""

from __future__ import annotations

import json
from typing import Any

import pytest

from isthmus.library.provider_formats import ToolDef, block_text, provider_schema, schema_problem, truncate

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}


def tool(schema: dict[str, Any] = SCHEMA, **fields: Any) -> ToolDef:
    return ToolDef("read", "reads", schema, lambda **_: "", **fields)


def test_responses_does_not_make_every_argument_required() -> None:
    expected = {"type": "function", "name": "read", "description": "reads", "parameters": SCHEMA, "strict": False}
    assert tool().to_openai_schema() == expected


def test_each_provider_gets_its_own_form() -> None:
    function = {"name": "read", "description": "reads"}
    chat = tool().to_openai_schema("chat_completions")
    assert chat == {"type": "function", "function": {**function, "parameters": SCHEMA}}
    assert tool().to_anthropic_schema() == {**function, "input_schema": SCHEMA}
    assert tool().to_gemini_schema() == {**function, "parametersJsonSchema": SCHEMA}


def test_an_unknown_mode_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="mode must be responses or chat_completions, not 'batch'"):
        tool().to_openai_schema("batch")  # type: ignore[arg-type]  # what a user may type


@pytest.mark.parametrize("schema", [{}, {"type": "object"}])
def test_a_schema_without_properties_gets_some_because_providers_want_them(schema: dict[str, Any]) -> None:
    assert provider_schema(schema) == {"type": "object", "properties": {}}


def test_alternatives_outermost_become_one_object_that_allows_all_of_them() -> None:
    by_id = {"properties": {"id": {"type": "integer"}, "at": {}}, "required": ["id", "at"]}
    by_name = {"$ref": "#/$defs/Named"}
    named = {"properties": {"name": {"type": "string"}, "at": {}}, "required": ["name", "at"]}
    shown = provider_schema({"type": "object", "anyOf": [by_id, by_name], "$defs": {"Named": named}})
    assert shown["properties"] == {"id": {"type": "integer"}, "name": {"type": "string"}, "at": {}}
    assert shown["required"] == ["at"]
    assert "anyOf" not in shown


def test_required_members_of_all_parts_are_required() -> None:
    parts = [{"properties": {"a": {}}, "required": ["a"]}, {"properties": {"b": {}}, "required": ["b"]}]
    assert provider_schema({"type": "object", "allOf": parts})["required"] == ["a", "b"]


def test_a_reference_to_the_whole_schema_is_followed() -> None:
    shown = provider_schema({"$ref": "#/definitions/Args", "definitions": {"Args": SCHEMA}})
    assert shown["properties"] == SCHEMA["properties"]
    assert "$ref" not in shown


def test_a_reference_to_a_reference_is_followed_to_its_end() -> None:
    shown = provider_schema({"$ref": "#/$defs/Args", "$defs": {"Args": {"$ref": "#/$defs/a~1b"}, "a/b": SCHEMA}})
    assert shown["properties"] == SCHEMA["properties"]
    assert "$ref" not in shown


def test_alternatives_inside_of_alternatives_are_shown_too() -> None:
    by_id, by_name = {"properties": {"id": {}}, "required": ["id"]}, {"properties": {"name": {}}, "required": ["name"]}
    at = {"allOf": [{"$ref": "#/$defs/Place"}], "properties": {"when": {}}}
    place = {"properties": {"at": {}}, "required": ["at"]}
    shown = provider_schema({"allOf": [{"anyOf": [by_id, by_name]}, at], "$defs": {"Place": place}})
    assert sorted(shown["properties"]) == ["at", "id", "name", "when"]
    assert shown["required"] == ["at"]


def test_a_schema_that_has_no_end_is_shown_all_the_same() -> None:
    deep: dict[str, Any] = {"properties": {"x": {}}}
    for _ in range(2_000):
        deep = {"anyOf": [deep]}
    around = {"Args": {"anyOf": [{"$ref": "#/$defs/Args"}, SCHEMA]}}
    wide = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 20} for n in range(20)}
    assert provider_schema(deep)["properties"] == {}
    assert provider_schema({"$ref": "#/$defs/Args", "$defs": around})["properties"] == SCHEMA["properties"]
    assert provider_schema({"$ref": "#/$defs/d0", "$defs": wide})["properties"] == {}
    assert provider_schema({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}})["properties"] == {}


def test_a_hostile_schema_does_not_grow_when_shown() -> None:
    large = {"properties": {f"k{n}": {} for n in range(1_000)}, "required": [f"k{n}" for n in range(1_000)]}
    lost = {f"p{n}": {"$ref": "#/anyOf/0"} for n in range(500)}
    shown = provider_schema({"type": "object", "properties": lost, "anyOf": [large]})
    assert set(shown["properties"]) >= set(lost)
    assert len(json.dumps(shown)) < 10 * len(json.dumps({"properties": lost, "anyOf": [large]}))
    names = [f"d{n}" for n in range(500)]
    defs = {name: {"$ref": "#/$defs/large", "required": ["own"]} for name in names} | {"large": large}
    shown = provider_schema({"anyOf": [{"$ref": f"#/$defs/{name}"} for name in names], "$defs": defs})
    assert len(shown["properties"]) == 1_000, "all that there are"


def test_a_reference_is_followed_only_so_far() -> None:
    chain = {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(100)} | {"d100": SCHEMA}
    assert provider_schema({"$ref": "#/$defs/d90", "$defs": chain})["properties"] == SCHEMA["properties"]
    assert provider_schema({"$ref": "#/$defs/d0", "$defs": chain})["properties"] == {}


@pytest.mark.parametrize("reference", ["#/$defs/None", "https://elsewhere.example/s.json", "#", 3])
def test_a_whole_schema_that_refers_to_nothing_takes_anything(reference: object) -> None:
    assert provider_schema({"$ref": reference})["properties"] == {}


def test_a_reference_into_an_omitted_part_is_replaced_by_its_target() -> None:
    shared = {"type": "object", "properties": {"x": {"type": "number"}}}
    first = {"properties": {"from": shared}}
    second = {"properties": {"to": {"$ref": "#/anyOf/0/properties/from", "description": "where to"}}}
    shown = provider_schema({"type": "object", "anyOf": [first, second]})
    assert shown["properties"] == {"from": shared, "to": {**shared, "description": "where to"}}


@pytest.mark.parametrize("reference", ["#/nowhere", f"#/anyOf/{'9' * 5000}", "#anchor", "other.json", "#/anyOf/0"])
def test_a_member_that_refers_to_nothing_may_be_anything(reference: str) -> None:
    node = {"properties": {"inner": {"$ref": "#/anyOf/0"}}}
    to = {"type": "array", "items": [{"$ref": reference, "description": "where to"}]}
    shown = provider_schema({"type": "object", "properties": {"to": to}, "anyOf": [node]})
    assert shown["properties"]["to"]["items"] == [{"description": "where to"}]


def test_references_that_lead_somewhere_stay() -> None:
    refers = {name: {"$ref": name} for name in ("#", "#/$defs/A", "#/properties/list/items/1", "#/properties/list")}
    listed = {"list": {"items": [{"type": "string"}, {"type": "number"}]}, "$ref": {"type": "string"}}
    schema = {"type": "object", "properties": {**refers, **listed}, "$defs": {"A": {"type": "string"}}}
    assert provider_schema(schema) == schema


def test_a_schema_given_to_a_provider_leaves_the_tool_as_it_was() -> None:
    schema: dict[str, Any] = {"anyOf": [SCHEMA]}
    tool(schema).to_openai_schema()
    assert schema == {"anyOf": [SCHEMA]}


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ("none", "must be an object, not str"),
        ({"type": "array"}, "'array'"),
        ({"type": "object", "properties": {"a": {"type": "strin"}}}, 'properties.a.type: "strin"'),
        ({"type": "object", "properties": 3}, "properties: 3 is not"),
        ({"type": "object", "properties": {"a": {"pattern": object()}}}, "object"),
    ],
)
def test_the_problem_of_a_schema_is_reported(schema: object, words: str) -> None:
    assert words in str(schema_problem(schema))


@pytest.mark.parametrize(
    "schema",
    [
        {},
        SCHEMA,
        {"type": "object", "properties": {"n": {"type": "number", "minimum": 0, "exclusiveMinimum": True}}},
        {"$schema": "http://127.0.0.1:1/never-fetched", "type": "object"},
    ],
)
def test_schemas_of_every_draft_are_fine_and_none_is_fetched(schema: dict[str, Any]) -> None:
    assert schema_problem(schema) is None


def test_a_text_that_fits_is_not_cut() -> None:
    assert truncate("x" * 10, 10) == "x" * 10
    assert truncate("x" * 10, 0) == "x" * 10


def test_a_text_that_is_cut_says_how_much_is_missing() -> None:
    assert truncate("a" * 6_000 + "z", 5_000) == "a" * 5_000 + "\n[1,001 of 6,001 characters left out]"


def test_a_text_that_was_cut_is_not_cut_again() -> None:
    once = truncate("a" * 6_000, 5_000, tail=100)
    assert truncate(once, 5_000, tail=100) == once
    assert "left out" in truncate(once * 2, 5_000)


def test_head_and_tail_are_kept_as_the_tool_says() -> None:
    cutting = tool(max_result_chars=6, truncate_tail_chars=2)
    assert cutting.truncate_result("0123456789") == "0123\n[4 of 10 characters left out]\n89"
    cutting = tool(max_result_chars=6, truncate_head_chars=1, truncate_tail_chars=2)
    assert cutting.truncate_result("0123456789") == "0\n[7 of 10 characters left out]\n89"
    assert tool(max_result_chars=2, truncate_tail_chars=9).truncate_result("0123") == "[2 of 4 characters left out]\n23"


@pytest.mark.parametrize(
    ("block", "words"),
    [
        ({"type": "text", "text": "hi"}, "hi"),
        ({"type": "image", "data": "AAAA", "mimeType": "image/png"}, "[image image/png, 3 bytes]"),
        ({"type": "audio", "data": "AA=="}, "[audio of unknown type, 1 bytes]"),
        ({"type": "resource", "resource": {"uri": "file:///a", "text": "inside"}}, "inside"),
        ({"type": "resource", "resource": {"uri": "file:///a", "blob": "AAAA"}}, "[resource file:///a, 3 bytes]"),
        ({"type": "resource_link", "uri": "file:///a"}, "[resource file:///a]"),
        ({"type": "text", "text": 3}, '{"type":"text","text":3}'),
        ({"type": "hologram"}, '{"type":"hologram"}'),
    ],
)
def test_every_kind_of_content_has_words(block: dict[str, Any], words: str) -> None:
    assert block_text(block) == words
