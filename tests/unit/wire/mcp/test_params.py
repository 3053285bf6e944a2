"""Arguments that a modern server wants repeated in headers."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from mcp.shared.inbound import mcp_param_headers, validate_mcp_param_headers, x_mcp_header_map

from isthmus.wire.mcp.params import annotated, contradiction, demanded, param_headers

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
    assert param_headers(annotated(raw(SCHEMA)), raw(arguments)) == expected


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
def test_what_is_no_annotation_asks_for_no_header(schema: dict[str, Any]) -> None:
    assert annotated(raw(schema)) == ()


def test_a_tool_without_a_schema_asks_for_no_header() -> None:
    assert annotated(None) == ()
    assert annotated(msgspec.Raw(b'{"x-mcp-header":')) == ()


def test_a_value_that_is_no_scalar_has_no_header() -> None:
    places = annotated(raw(SCHEMA))
    assert param_headers(places, raw({"region": ["eu"], "dry": 1.5})) == {}


def test_an_integer_that_is_written_as_a_fraction_has_a_header_too() -> None:
    arguments = msgspec.Raw(b'{"where":{"zone":42.0}}')
    headers = param_headers(annotated(raw(SCHEMA)), arguments)
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
    told = {name.encode(): value.encode() for name, value in headers.items()}
    ours = contradiction(demanded(raw(SCHEMA)), raw(arguments), told)
    assert (ours is None) == (official is None), (ours, official)


def test_a_value_hidden_behind_an_odd_key_is_seen() -> None:
    arguments = msgspec.Raw(b'{"\\"":"\\u0022","region":"eu"}')
    assert contradiction(demanded(raw(SCHEMA)), arguments, {}) is not None


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
    assert demanded(raw(schema)) == ()
    assert validate_mcp_param_headers(schema, {"region": "eu"}, {}) is None


def test_a_description_that_speaks_of_the_annotation_is_none() -> None:
    schema = annotated_with({"type": "string", "description": 'see "x-mcp-header": it is new', "const": "x-mcp-header"})
    assert demanded(raw(schema)) == ((("region",), "mcp-param-region"),)
    assert demanded(None) == ()
