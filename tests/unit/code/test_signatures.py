"""Signatures from schemas: schemas that Python cannot express, or that are too large, become wider types."""

from __future__ import annotations

import ast
from typing import Any

import msgspec
import pytest

from isthmus.code.signatures import CLASSES_MAX, HEADER, python_names, signatures, words_in


def stub(schema: Any, output: Any = None, description: str = "") -> str:
    definition = {"inputSchema": schema, "description": description}
    if output is not None:
        definition["outputSchema"] = output
    members = {key: msgspec.Raw(msgspec.json.encode(value)) for key, value in definition.items()}
    written = signatures([("tool", "s.tool", members)])
    ast.parse(written)
    return written.removeprefix(HEADER)


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


def test_arguments_and_results_may_have_different_definitions_of_one_name() -> None:
    def schema(*members: str) -> dict[str, Any]:
        item = {"type": "object", "properties": {each: {"type": "number"} for each in members}, "required": members}
        reference = {"type": "object", "properties": {"item": {"$ref": "#/$defs/Item"}}, "required": ["item"]}
        return {**reference, "$defs": {"Item": item}}

    written = stub(schema("price"), schema("price", "total"))
    assert "class ToolItem2(TypedDict):\n    price: float\n    total: float\n" in written
    assert "class ToolResult(TypedDict):\n    item: ToolItem2\n" in written


def test_arguments_that_are_no_names_are_taken_as_they_are() -> None:
    written = stub({"type": "object", "properties": {"a-b": {"type": "string"}, "if": {}, "c": {}}, "required": ["c"]})
    assert "async def tool(*, c: Any, **arguments: Any)" in written


def test_a_tool_without_a_schema_takes_anything_and_one_without_arguments_nothing() -> None:
    assert "async def tool(**arguments: Any)" in stub({"type": "object"})
    assert "async def tool()" in stub({"type": "object", "properties": {}, "additionalProperties": False})


def test_signatures_that_are_too_large_are_widened() -> None:
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


def test_no_tool_can_take_the_python_name_of_another() -> None:
    numbered = python_names(["pay.now", "pay-now"])
    chosen = ["pay.now", "pay-now", *numbered.values(), python_names([numbered["pay.now"], "x"])[numbered["pay.now"]]]
    names = python_names([*chosen, *python_names(chosen).values()])
    assert len(set(names.values())) == len(names)
    # Found by trying: their digests begin alike.
    assert len(set(python_names(["a\u221c=b", "a\u230f[b"]).values())) == 2


def test_no_two_classes_have_one_name() -> None:
    item = {"type": "object", "properties": {"x": {"type": "string"}}}
    nested = {"type": "object", "properties": {"name": item, "list_name": item, "dict": item}}
    members = {"inputSchema": msgspec.Raw(msgspec.json.encode(nested))}
    names = ["get_user", "getUser", "get_user_list", "typed", "GetUserName"]
    written = ast.parse(signatures((name, name, members) for name in names))
    made = [each.name for each in written.body if isinstance(each, ast.ClassDef | ast.AsyncFunctionDef)]
    assert len({*made, "TypedDict"}) == 4 * len(names) + 1
