"""Arguments that a modern server wants repeated in headers."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from mcp.shared.inbound import mcp_param_headers, x_mcp_header_map

from isthmus.wire.mcp.params import annotated, param_headers

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
