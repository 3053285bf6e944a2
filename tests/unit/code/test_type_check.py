"""An argument that is right as JSON is no error, whatever the type checker calls it."""

from __future__ import annotations

import pytest

from isthmus.code.signatures import HEADER
from isthmus.code.type_check import real_errors
from tests.unit.code.test_signatures import stub

ITEM = {
    "type": "object",
    "properties": {"item": {"type": "string"}, "amount": {"type": "integer"}, "tags": {"type": "array", "items": {}}},
    "required": ["item"],
}
ODD = {"type": "object", "properties": {"no-name": {"type": "string"}}, "required": ["no-name"]}
NODE = {"type": "object", "properties": {"item": {"type": "string"}, "next": {"$ref": "#/$defs/Node"}}}
COMPARED = HEADER + stub(
    {
        "type": "object",
        "properties": {"items": {"type": "array", "items": ITEM}, "odd": ODD, "node": {"$ref": "#/$defs/Node"}},
        "$defs": {"Node": NODE},
    },
    {"type": "object", "properties": {"item": {"type": "string"}, "cents": {"type": "integer"}}, "required": ["item"]},
)


def found(expected: str, found: str) -> str:
    wrong = f"Argument to function `tool` is incorrect: Expected `{expected}`, found `{found}`"
    return f"script.py:1:1: error[invalid-argument-type] {wrong}"


@pytest.mark.parametrize(
    ("expected", "given"),
    [
        ("list[ToolItemsItem]", "list[dict[str, str]]"),
        ("list[ToolItemsItem]", "list[dict[str, str | int | list[str]]]"),
        ("list[ToolItemsItem]", "list[ToolItemsItem | dict[str, str]]"),
        ("list[ToolItemsItem]", "list[ToolResult]"),
        ("ToolItemsItem", "dict[str, str | Unknown]"),
        ("ToolItemsItem | None", "dict[str, str]"),
        ("ToolOdd", "dict[str, str]"),
        ("ToolNode", "ToolNode"),
        ("list[str | int]", "list[str]"),
        ("list[float]", "list[int]"),
        ("dict[str, str | int]", "dict[str, str]"),
        ("dict[str, Any]", "ToolResult"),
        ("list[Literal['a', 'b']]", 'list[Literal["a"]]'),
        ("list[str]", 'list[Literal["a"]]'),
        ("list[None]", "list[None]"),
        ("Literal['a', 'b']", "str"),
        ("Literal['a', 'b']", "LiteralString"),
        ("Literal['a', 1] | None", "str | int | None"),
        ("list[Literal['a', 'b']]", "list[str]"),
    ],
)
def test_type_errors_that_are_valid_json_are_ignored(expected: str, given: str) -> None:
    assert real_errors(found(expected, given), COMPARED, "") == []


@pytest.mark.parametrize(
    ("expected", "given"),
    [
        ("list[ToolItemsItem]", "list[dict[str, int]]"),  # `item` cannot be among them
        ("list[ToolItemsItem]", "list[dict[str, str | None]]"),
        ("list[ToolItemsItem]", "dict[str, str]"),
        ("list[ToolItemsItem]", "list[dict[int, str]]"),
        ("list[ToolOdd]", "list[ToolResult]"),
        ("ToolResult", "ToolOdd"),
        ("ToolItemsItem", "str"),
        ("int", "float"),
        ("list[str | int]", "list[float]"),
        ("list[str | int]", "tuple[str, str]"),
        ("list[str]", 'Literal["abc"]'),
        ("dict[str, int]", "ToolResult"),
        ("dict[str, str]", "list[str]"),
        ("list[Literal['a', 'b']]", 'list[Literal["c"]]'),
        ("list[str]", "list[Literal[Color.RED]]"),
        ("Literal['a']", "int"),
        ("Literal['a', 1]", "str | None"),
        ("list[str]", "<class 'str'>"),
        ("list[str]", "list[str].append"),
        ("list[str]", "list[" * 300 + "]" * 300),
        ("|".join(["int"] * 3000), "str"),
    ],
)
def test_type_errors_that_are_invalid_json_stay(expected: str, given: str) -> None:
    line = found(expected, given)
    assert real_errors(line, COMPARED, "") == [line]


def test_other_errors_stay_and_warnings_go() -> None:
    lines = [
        "script.py:1:1: warning[x] Y",
        found("list[ToolItemsItem]", "list[dict[str, str]]"),
        "script.py:1:21: error[missing-typed-dict-key] Missing required key 'item' in TypedDict `Item` constructor",
    ]
    assert real_errors("\n".join(lines), COMPARED, "") == lines[2:]


def test_arguments_that_are_given_as_a_dictionary_are_left_to_the_hub() -> None:
    wrong = found("int", "str")
    assert real_errors(wrong, COMPARED, "**{'no-name': 'x'}") == []
    assert real_errors(wrong, COMPARED, "{'no-name': 'x'}") == [wrong]
