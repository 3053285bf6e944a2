"""Arguments that the operator fills in, and how a tool is listed then."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from isthmus.core.catalog.rules import compile_defaults, fill_defaults, without_required
from isthmus.model.features import Tool
from tests.unit.core.doubles import tool

DEFAULTS = compile_defaults({"root": "/srv", "depth": 3})


def schema(of: Tool) -> Any:
    return json.loads(bytes(of.definition["inputSchema"]))


def test_what_the_caller_left_out_is_added_and_what_it_gave_stays() -> None:
    given = msgspec.Raw(b'{"root": null,"size":1.0e2}')
    assert bytes(fill_defaults(given, DEFAULTS)) == b'{"root":null,"size":1.0e2,"depth":3}'


def test_arguments_that_lack_nothing_are_not_written_anew() -> None:
    given = msgspec.Raw(b'{ "root" : "/", "depth":1 }')
    assert fill_defaults(given, DEFAULTS) is given
    assert fill_defaults(given, {}) is given


@pytest.mark.parametrize("text", [b"[]", b"7", b"{", b'"x"'])
def test_what_is_no_object_is_left_to_the_check_that_follows(text: bytes) -> None:
    given = msgspec.Raw(text)
    assert fill_defaults(given, DEFAULTS) is given


def test_what_is_filled_in_is_not_required_of_callers() -> None:
    properties = {"root": {"type": "string"}, "name": {"type": "string"}}
    own = tool(description="reads", inputSchema={"properties": properties, "required": ["root", "name"]})
    listed = without_required(own, DEFAULTS)
    assert schema(listed) == {"properties": properties, "required": ["name"]}
    assert listed.definition["description"] == own.definition["description"]
    assert (listed.server, listed.name) == (own.server, own.name)
    assert listed.digest != own.digest


@pytest.mark.parametrize(
    "given",
    [{"required": ["name"]}, {}, {"required": "root"}, {"required": [7, "root"]}, ["no schema"]],
)
def test_a_schema_that_requires_nothing_of_it_or_cannot_be_read_is_listed_as_it_is(given: object) -> None:
    own = tool(inputSchema=given)
    assert without_required(own, DEFAULTS) is own


def test_a_tool_without_a_schema_is_listed_as_it_is() -> None:
    own = tool()
    assert without_required(own, DEFAULTS) is own
