"""Schemas that are small to write and endless to check are refused before anybody checks with them."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus.core.catalog.argument_validation import UnusableSchema, compile_check
from isthmus.core.catalog.schema_cost import SUBSCHEMAS_MAX, measure
from tests.unit.core.doubles import raw


def chain(levels: int, width: int, last: Any) -> dict[str, Any]:
    """Definitions of which each refers so often to the next."""
    defs: dict[str, Any] = {f"a{at}": {"allOf": [{"$ref": f"#/$defs/a{at + 1}"}] * width} for at in range(levels)}
    return {"$ref": "#/$defs/a0", "$defs": {**defs, f"a{levels}": last}}


TREE = {"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#"}}}}

BOUNDED: dict[str, Any] = {
    "a plain object": {"type": "object", "properties": {"a": {"type": "string"}}},
    "true": True,
    "a shared definition": {"properties": {str(at): {"$ref": "#/$defs/a"} for at in range(500)}, "$defs": {"a": {}}},
    "a long chain": chain(60, 1, {}),
    "a short wide one": chain(10, 2, {}),
    "a tree": TREE,
    "a tree in a definition, used twice": {
        "properties": {"a": {"$ref": "#/$defs/t"}, "b": {"$ref": "#/$defs/t"}},
        "$defs": {"t": {"properties": {"next": {"$ref": "#/$defs/t"}}}},
    },
    "two that refer to each other": {
        "$ref": "#/$defs/a",
        "$defs": {"a": {"items": {"$ref": "#/$defs/b"}}, "b": {"items": {"$ref": "#/$defs/a"}}},
    },
    "itself and nothing else": {"$ref": "#"},
    "an id of the whole": {"$id": "https://a.example/s", "$ref": "#/$defs/a", "$defs": {"a": {}}},
    "a property called $ref": {"properties": {"$ref": {"type": "string"}, "$id": {"type": "string"}}},
    "a place with odd characters": {"$ref": "#/$defs/a~1b%20~0c/allOf/0", "$defs": {"a/b ~c": {"allOf": [{}]}}},
    "a default with an id": {"default": {"id": "x"}},
}

UNBOUNDED: dict[str, tuple[Any, str]] = {
    "doubling": (chain(30, 2, {}), "unfolds"),
    "tenfold": (chain(6, 10, {}), "unfolds"),
    "a thousand doublings": (chain(1000, 2, {}), "cannot be used"),
    "a tree that is checked twice": ({"allOf": [TREE, TREE]}, "more than once"),
    "a definition that leads back twice": (
        {"allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}], "$defs": {"a": {"items": {"$ref": "#"}}}},
        "more than once",
    ),
    "the same under another spelling": (
        {"$ref": "#/$defs/a", "$defs": {"a": {"items": {"allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/%24defs/%61"}]}}}},
        "more than once",
    ),
    "an anchor": ({"$ref": "#a", "$defs": {"a": {"$anchor": "a"}}}, "not followed"),
    "a dynamic reference": ({"$dynamicRef": "#a", "$defs": {"a": {"$dynamicAnchor": "a"}}}, "not followed"),
    "an address": ({"$ref": "https://a.example/s"}, "not followed"),
    "another root": ({"properties": {"a": {"$id": "https://a.example/s", "$ref": "#/$defs/a"}}}, "has an id"),
    "another root, in an old dialect": (
        {"$schema": "http://json-schema.org/draft-04/schema#", "properties": {"a": {"id": "#x"}}},
        "has an id",
    ),
    "nowhere": ({"$ref": "#/$defs/a"}, "not there"),
    "no place in a list": ({"allOf": [{"$ref": "#/allOf/7"}]}, "not there"),
    "too much of itself": ({"allOf": [{}] * (SUBSCHEMAS_MAX + 1)}, "unfolds"),
}


@pytest.mark.parametrize("label", BOUNDED)
def test_a_schema_of_bounded_work_passes_and_compiles(label: str) -> None:
    measure(BOUNDED[label])
    compile_check(raw(BOUNDED[label]), limit_bytes=1 << 18)


@pytest.mark.parametrize("label", UNBOUNDED)
def test_a_schema_whose_work_cannot_be_bounded_is_not_used(label: str) -> None:
    schema, why = UNBOUNDED[label]
    with pytest.raises(UnusableSchema, match=why):
        compile_check(raw(schema), limit_bytes=1 << 20, budget=None)


def places(depth: int) -> Any:
    schema: dict[str, Any] = {"type": "number"}
    for _ in range(depth):
        schema = {"properties": dict.fromkeys("abc", schema)}
    return schema


@pytest.mark.parametrize(
    ("schema", "at_least", "at_most"),
    [
        # Only one property applies to each value, however many there are and however deep they lie.
        ({"properties": {str(at): {"type": "number"} for at in range(500)}}, 2, 4),
        (places(5), 2, 4),
        ({"items": {"allOf": [{"type": "number"}] * 100}}, 200, 400),
        ({"items": {"$ref": "#/$defs/a"}, "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}] * 50}, "b": {}}}, 50, 200),
        ({"items": {"enum": list(range(1000))}}, 1000, 1100),
        ({"items": {"multipleOf": 0.1}}, 400, 600),
        ({"patternProperties": {f"^{at}": {} for at in range(100)}}, 100, 300),
        (TREE, 2, 40),
        ({"allOf": [{"unevaluatedProperties": {}, "allOf": [{"unevaluatedProperties": {}}]}]}, 18, 200),
    ],
)
def test_the_work_for_one_value_is_bounded_from_above(schema: Any, at_least: int, at_most: int) -> None:
    assert at_least <= measure(schema).per_value <= at_most


def test_cheap_arguments_are_known_by_their_length_alone() -> None:
    cost = measure({"type": "object", "properties": {"text": {"type": "string", "pattern": "^a"}}})
    size = cost.bytes_within(10_000_000)
    assert 10_000 < size < 1_000_000
    assert cost.nanoseconds(size // 2, size) <= 10_000_000
