"""Signatures from schemas: what Python has no words for, and what is too much, becomes a wider type."""

from __future__ import annotations

import ast
from typing import Any

import msgspec
import pytest

from isthmus.code.signatures import CLASSES_MAX, HEADER, python_names, real_errors, signature, words_in


def stub(schema: Any, output: Any = None, description: str = "") -> str:
    definition = {"inputSchema": schema, "description": description}
    if output is not None:
        definition["outputSchema"] = output
    members = {key: msgspec.Raw(msgspec.json.encode(value)) for key, value in definition.items()}
    written = signature("tool", "s.tool", members)
    ast.parse(HEADER + written)
    return written


def argument(schema: Any, **more: Any) -> str:
    """The type of an argument with this schema."""
    written = stub({"type": "object", "properties": {"it": schema}, "required": ["it"], **more})
    head = next(line for line in written.splitlines() if line.startswith("async def"))
    return head.partition("it: ")[2].rpartition(") ->")[0]


@pytest.mark.parametrize(
    ("schema", "written"),
    [
        ({"type": "string"}, "str"),
        ({"type": "number"}, "float"),
        ({"type": "array", "items": {"type": "integer"}}, "list[int]"),
        ({"type": "array"}, "list[Any]"),
        ({"type": ["string", "null"]}, "str | None"),
        ({"anyOf": [{"type": "null"}, {"type": "integer"}]}, "int | None"),
        ({"oneOf": [{"type": "integer"}, {}]}, "Any"),
        ({"enum": ["a", 1, None]}, "Literal['a', 1, None]"),
        ({"const": "x"}, "Literal['x']"),
        ({"enum": [1.5]}, "Any"),
        ({"enum": list(range(1000))}, "Any"),
        ({"type": "object"}, "dict[str, Any]"),
        ({"type": "object", "additionalProperties": {"type": "boolean"}}, "dict[str, bool]"),
        ({"allOf": [{"type": "string"}]}, "str"),
        ({"allOf": [{"type": "string"}, {"minLength": 1}]}, "Any"),
        ({"$ref": "#/nowhere"}, "Any"),
        ({"$ref": "http://elsewhere"}, "Any"),
        (True, "Any"),
        ({"type": "unheard"}, "Any"),
    ],
)
def test_a_schema_becomes_a_type(schema: Any, written: str) -> None:
    assert argument(schema) == written


def test_a_schema_may_contain_itself() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}}
    assert argument({"$ref": "#/$defs/Node"}, **{"$defs": {"Node": node}}) == "ToolNode"
    loop = {"anyOf": [{"$ref": "#/$defs/Loop"}, {"type": "string"}]}
    assert argument({"$ref": "#/$defs/Loop"}, **{"$defs": {"Loop": loop}}) == "Any"


def test_arguments_that_are_no_names_are_taken_as_they_are() -> None:
    written = stub({"type": "object", "properties": {"a-b": {"type": "string"}, "if": {}, "c": {}}, "required": ["c"]})
    assert "async def tool(*, c: Any, **arguments: Any)" in written


def test_a_tool_without_a_schema_takes_anything_and_one_without_arguments_nothing() -> None:
    assert "async def tool(**arguments: Any)" in stub({"type": "object"})
    assert "async def tool()" in stub({"type": "object", "properties": {}, "additionalProperties": False})


def test_what_is_too_much_is_not_written() -> None:
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(50):
        deep = {"type": "object", "properties": {"x": deep}, "required": ["x"]}
    assert "Any" in stub({"type": "object", "properties": {"deep": deep}})
    wide = {f"p{number}": {"type": "object", "properties": {"x": {}}} for number in range(200)}
    assert stub({"type": "object", "properties": wide}).count("(TypedDict)") == CLASSES_MAX
    assert "async def tool(**arguments: Any)" in stub({"type": "object", "properties": {"x" * 100_000: {}}})


def test_the_docstring_is_one_line() -> None:
    assert '"""s.tool: First."""' in stub({}, description="\n  First.\nSecond.")
    assert "…" in stub({}, description="x" * 1_000)


def test_names_are_valid_in_python_and_unique() -> None:
    names = python_names(["a.b", "a_b", "2.x", "class", "print", "ü", "_call", "fine.tool"])
    assert len(set(names.values())) == len(names)
    assert all(name.isidentifier() and not name.startswith("_") for name in names.values())
    assert names["fine.tool"] == "fine_tool"
    assert names["class"] == "class_"
    assert words_in("x = await fine_tool(a='b')") >= {"fine_tool"}


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
    ],
)
def test_what_is_right_as_json_is_no_error(expected: str, given: str) -> None:
    assert real_errors(found(expected, given), COMPARED) == []


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
        ("list[str]", "<class 'str'>"),
        ("list[str]", "list[str].append"),
        ("list[str]", "list[" * 300 + "]" * 300),
        ("|".join(["int"] * 3000), "str"),
    ],
)
def test_what_is_wrong_as_json_stays_an_error(expected: str, given: str) -> None:
    line = found(expected, given)
    assert real_errors(line, COMPARED) == [line]


def test_other_errors_stay_and_warnings_go() -> None:
    lines = [
        "script.py:1:1: warning[x] Y",
        found("list[ToolItemsItem]", "list[dict[str, str]]"),
        "script.py:1:21: error[missing-typed-dict-key] Missing required key 'item' in TypedDict `Item` constructor",
    ]
    assert real_errors("\n".join(lines), COMPARED) == lines[2:]
