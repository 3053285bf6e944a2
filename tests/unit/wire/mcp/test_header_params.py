"""Arguments that a modern server wants repeated in headers."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.shared.inbound import (
    find_invalid_x_mcp_header,
    mcp_param_headers,
    validate_mcp_param_headers,
    x_mcp_header_map,
)

from isthmus.wire.mcp.modern import (
    DEPTH_MAX,
    annotated_params,
    find_param_mismatch,
    is_annotation_valid,
    param_headers,
    required_params,
)

REGION = {"type": "string", "x-mcp-header": "Region"}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "region": REGION,
        "text": {"type": "string"},
        "where": {"type": "object", "properties": {"zone": {"type": "integer", "x-mcp-header": "Zone"}}},
        "dry": {"type": "boolean", "x-mcp-header": "Dry-Run"},
    },
}


def raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(json.dumps(value).encode())


@pytest.mark.parametrize(
    "arguments",
    [
        {"region": "eu", "where": {"zone": 7}, "dry": True},
        {"region": "größe ", "text": "x"},
        {"region": None, "where": {}, "dry": False},
        {"region": "=?base64?eA==?=", "where": {"zone": 2**80}},
        {"where": "not an object"},
        {},
    ],
)
def test_headers_are_those_that_the_official_client_writes(arguments: dict[str, Any]) -> None:
    expected = {name.lower(): value for name, value in mcp_param_headers(x_mcp_header_map(SCHEMA), arguments).items()}
    assert param_headers(annotated_params(raw(SCHEMA)), raw(arguments)) == expected


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"type": "string"}}},
        {"type": "object", "x-mcp-header": "Root"},
        {"type": "object", "properties": {"a": {"items": REGION}}},
        {"type": "object", "properties": {"a": {"type": "string", "x-mcp-header": "no\r\nInjected: 1"}}},
        {"type": "object", "properties": {"a": {"type": "string", "x-mcp-header": 7}}},
        {"default": {"x-mcp-header": "Data"}, "properties": []},
    ],
)
def test_an_invalid_annotation_requires_no_header(schema: dict[str, Any]) -> None:
    assert annotated_params(raw(schema)) == ()


def test_a_tool_without_a_schema_asks_for_no_header() -> None:
    assert annotated_params(None) == ()
    assert annotated_params(msgspec.Raw(b'{"x-mcp-header":')) == ()


def test_a_value_that_is_no_scalar_has_no_header() -> None:
    places = annotated_params(raw(SCHEMA))
    assert param_headers(places, raw({"region": ["eu"], "dry": 1.5})) == {}


def test_an_integer_that_is_written_as_a_fraction_has_a_header_too() -> None:
    arguments = msgspec.Raw(b'{"where":{"zone":42.0}}')
    headers = param_headers(annotated_params(raw(SCHEMA)), arguments)
    assert headers == {"mcp-param-zone": "42"}
    assert validate_mcp_param_headers(SCHEMA, {"where": {"zone": 42.0}}, headers) is None


# -- the way in ----------------------------------------------------------------------------------------------------

HELLO = "=?base64?SGVsbG8=?="
CLAIMS: list[tuple[dict[str, Any], dict[str, str]]] = [
    ({}, {}),
    ({"region": "eu"}, {"mcp-param-region": "eu"}),
    ({"region": "eu"}, {}),
    ({"region": "eu"}, {"mcp-param-region": "us"}),
    ({"region": "eu"}, {"mcp-param-region": "EU"}),
    ({"region": "eu"}, {"mcp-param-region": ""}),
    ({"region": ""}, {"mcp-param-region": ""}),
    ({"region": ""}, {}),
    ({}, {"mcp-param-region": "eu"}),
    ({"region": None}, {}),
    ({"region": None}, {"mcp-param-region": "null"}),
    ({"region": ["eu"]}, {}),
    ({"region": ["eu"]}, {"mcp-param-region": "eu"}),
    ({"region": "Hello"}, {"mcp-param-region": HELLO}),
    ({"region": HELLO}, {"mcp-param-region": HELLO}),
    ({"region": "Hello"}, {"mcp-param-region": "=?base64?SGVsbG8?="}),
    ({"region": "Hello"}, {"mcp-param-region": "=?base64?SGVs!!!bG8=?="}),
    ({"region": "SGVsbG8="}, {"mcp-param-region": "SGVsbG8="}),
    ({"region": "=?base64?SGVsbG8="}, {"mcp-param-region": "=?base64?SGVsbG8="}),
    ({"where": {"zone": 7}}, {"mcp-param-zone": "7"}),
    ({"where": {"zone": 7}}, {"mcp-param-zone": "7.0"}),
    ({"where": {"zone": 7.0}}, {"mcp-param-zone": "7"}),
    ({"where": {"zone": 7.0}}, {"mcp-param-zone": "7.0"}),
    ({"where": {"zone": 7}}, {"mcp-param-zone": "7.5"}),
    ({"where": {"zone": 7}}, {"mcp-param-zone": "8"}),
    ({"where": {"zone": 7}}, {}),
    ({"where": {"zone": 2**80}}, {"mcp-param-zone": str(2**80)}),
    ({"where": {"zone": 2**80}}, {"mcp-param-zone": str(2**80 + 1)}),
    ({"where": "not an object"}, {}),
    ({"region": "7"}, {"mcp-param-region": "7.0"}),
    ({"dry": True}, {"mcp-param-dry-run": "true"}),
    ({"dry": True}, {"mcp-param-dry-run": "True"}),
    ({"dry": True}, {"mcp-param-dry-run": "1"}),
    ({"dry": False}, {}),
    ({"text": "no header is asked for"}, {"mcp-param-text": "and one is there"}),
]


@pytest.mark.parametrize(("arguments", "headers"), CLAIMS)
def test_headers_are_believed_where_the_official_server_believes_them(
    arguments: dict[str, Any], headers: dict[str, str]
) -> None:
    official = validate_mcp_param_headers(SCHEMA, arguments, headers)
    received = {name.encode(): value.encode() for name, value in headers.items()}
    ours = find_param_mismatch(required_params(raw(SCHEMA)), raw(arguments), received)
    assert (ours is None) == (official is None), (ours, official)


@pytest.mark.parametrize(
    "arguments",
    [b'{"region":"us","region":"eu"}', b'{"region":"us","\\u0072egion":"eu"}', b'{"x":1,"x":2,"region":"eu"}'],
)
def test_a_duplicate_argument_matches_no_header(arguments: bytes) -> None:
    """Who routes by the header and the server that reads the body could go by two different ones."""
    said = find_param_mismatch(required_params(raw(SCHEMA)), msgspec.Raw(arguments), {b"mcp-param-region": b"eu"})
    assert said is not None
    assert "twice" in said
    assert param_headers(annotated_params(raw(SCHEMA)), msgspec.Raw(arguments)) == {}


def test_a_value_hidden_behind_an_odd_key_is_seen() -> None:
    arguments = msgspec.Raw(b'{"\\"":"\\u0022","region":"eu"}')
    assert find_param_mismatch(required_params(raw(SCHEMA)), arguments, {}) is not None


def annotated_with(part: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {"region": REGION, "other": part}}


@pytest.mark.parametrize(
    "part",
    [
        {"type": "string", "x-mcp-header": "region"},
        {"type": "number", "x-mcp-header": "Other"},
        {"type": ["string", "null"], "x-mcp-header": "Other"},
        {"x-mcp-header": "Other"},
        {"type": "string", "x-mcp-header": "not a token"},
        {"type": "string", "x-mcp-header": 7},
        {"type": "array", "items": {"type": "string", "x-mcp-header": "Other"}},
    ],
)
def test_nothing_is_demanded_of_callers_where_one_annotation_breaks_the_rules(part: dict[str, Any]) -> None:
    schema = annotated_with(part)
    assert required_params(raw(schema)) == ()
    assert validate_mcp_param_headers(schema, {"region": "eu"}, {}) is None


def test_a_description_that_mentions_the_annotation_is_not_one() -> None:
    schema = annotated_with({"type": "string", "description": 'see "x-mcp-header": it is new', "const": "x-mcp-header"})
    assert required_params(raw(schema)) == ((("region",), "mcp-param-region"),)
    assert required_params(None) == ()


# -- what is a mark, and what only has its name --------------------------------------------------------------------

NAMED = {"x-mcp-header": {"type": "string"}}
"""Members, one of which is named like the annotation."""

NAMESAKES: list[dict[str, Any]] = [
    {"properties": NAMED},
    {"properties": {"outer": {"type": "object", "properties": NAMED}}},
    {"properties": {"properties": {"type": "object", "properties": NAMED}}},
    {"properties": {"items": {"type": "array", "items": {"properties": NAMED}}}},
    {"$defs": NAMED, "definitions": NAMED, "patternProperties": NAMED, "dependentSchemas": NAMED},
    {"dependencies": NAMED, "dependentRequired": {"x-mcp-header": ["region"]}},
    {"default": {"x-mcp-header": "Data"}, "const": {"x-mcp-header": 7}},
    {"enum": [{"x-mcp-header": "Data"}], "examples": [{"properties": {"a": {"x-mcp-header": "Data"}}}]},
    {"properties": {"a": {"type": "object", "default": {"x-mcp-header": "Data"}}}},
    {"properties": {"$defs": {"type": "string", "const": "x-mcp-header"}}},
    {"vendor": {"x-mcp-header": "Other"}, "required": ["x-mcp-header"]},
]


@pytest.mark.parametrize("schema", NAMESAKES)
def test_a_name_or_a_value_is_no_mark(schema: dict[str, Any]) -> None:
    assert find_invalid_x_mcp_header(schema) is None
    assert is_annotation_valid(raw(schema))
    assert annotated_params(raw(schema)) == ()


@pytest.mark.parametrize("schema", NAMESAKES)
def test_a_mark_beside_its_namesakes_counts(schema: dict[str, Any]) -> None:
    marked = {**schema, "properties": {**schema.get("properties", {}), "region": REGION}}
    assert required_params(raw(marked)) == ((("region",), "mcp-param-region"),)


def test_a_property_with_the_name_of_the_mark_can_be_marked_itself() -> None:
    schema = {"properties": {"x-mcp-header": REGION}}
    assert required_params(raw(schema)) == ((("x-mcp-header",), "mcp-param-region"),)


@pytest.mark.parametrize(
    "schema",
    [
        REGION,
        {"properties": {"a": {"type": "string", "x-mcp-header": {"type": "string"}}}},
        {"properties": {"a": {"properties": NAMED, **REGION, "type": "object"}}},
        {"properties": {"a": {"items": [REGION]}}},
        {"properties": {"a": {"additionalItems": REGION}}},
        {"properties": {"a": {"items": {"properties": {"b": REGION}}}}},
        {"dependencies": {"a": REGION}},
        {"anyOf": [{"properties": {"a": REGION}}]},
        {"$defs": {"a": REGION}},
        {"patternProperties": {"x-mcp-header": REGION}},
        {"if": REGION},
        {"additionalProperties": {"properties": NAMED, "not": {"contentSchema": REGION}}},
    ],
)
def test_a_mark_in_a_place_that_does_not_count_spoils_its_tool(schema: dict[str, Any]) -> None:
    assert not is_annotation_valid(raw(schema))
    assert required_params(raw(schema)) == ()


def nested(depth: int, part: dict[str, Any]) -> msgspec.Raw:
    """A property as many objects deep."""
    opened = b'{"properties":{"a":' * depth
    return msgspec.Raw(opened + json.dumps(part).encode() + b"}}" * depth)


def test_a_mark_counts_down_to_a_depth_and_spoils_its_tool_below() -> None:
    assert required_params(nested(DEPTH_MAX, REGION)) == ((("a",) * DEPTH_MAX, "mcp-param-region"),)
    assert not is_annotation_valid(nested(DEPTH_MAX + 1, REGION))
    assert annotated_params(nested(DEPTH_MAX + 1, REGION)) == ()
    assert is_annotation_valid(nested(DEPTH_MAX + 1, {"properties": NAMED}))


def test_a_schema_too_deep_to_read_is_not_well_marked() -> None:
    assert not is_annotation_valid(nested(100_000, REGION))
    assert required_params(nested(100_000, REGION)) == ()


WORDS = st.sampled_from(["x-mcp-header", "properties", "items", "$defs", "default", "region", "type"])
TOKENS = st.sampled_from(["Region", "region", "Zone", "Dry-Run", "no token", "", 7, None, {"type": "string"}])
KEYWORDS_OF_DATA = st.sampled_from(["default", "const", "enum", "examples", "vendor"])
DATA = st.recursive(
    st.sampled_from(["x-mcp-header", 7, None]),
    lambda part: st.lists(part, max_size=2) | st.dictionaries(WORDS, part, max_size=3),
    max_leaves=6,
)


def larger(part: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Schemas around schemas: by name, in lists and alone."""
    by_name = st.sampled_from(["properties", "properties", "patternProperties", "$defs", "dependentSchemas"])
    in_lists = st.sampled_from(["allOf", "anyOf", "oneOf", "prefixItems"])
    alone = st.sampled_from(["items", "not", "if", "additionalProperties", "propertyNames"])
    below = st.dictionaries(by_name, st.dictionaries(WORDS, part, max_size=3), max_size=2)
    listed = st.dictionaries(in_lists, st.lists(part, max_size=2), max_size=1)
    single = st.dictionaries(alone, part, max_size=1)
    return st.builds(
        lambda *parts: {key: value for each in parts for key, value in each.items()}, below, listed, single
    )


SCHEMAS = st.recursive(
    st.fixed_dictionaries(
        {},
        optional={"type": st.sampled_from(["string", "integer", "number", ["string"]]), "x-mcp-header": TOKENS},
    )
    | st.dictionaries(KEYWORDS_OF_DATA, DATA, max_size=2),
    larger,
    max_leaves=8,
)


@given(SCHEMAS)
def test_marks_are_read_where_the_official_client_reads_them(schema: dict[str, Any]) -> None:
    is_well = find_invalid_x_mcp_header(schema) is None
    assert is_annotation_valid(raw(schema)) == is_well
    official = {(path, f"mcp-param-{token.lower()}") for path, token in x_mcp_header_map(schema).items()}
    assert set(required_params(raw(schema))) == (official if is_well else set())


@given(DATA)
def test_no_schema_however_odd_breaks_the_reading(schema: object) -> None:
    assert annotated_params(raw(schema)) is not None
    assert is_annotation_valid(raw(schema)) or required_params(raw(schema)) == ()
