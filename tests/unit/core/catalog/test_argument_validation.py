"""Arguments are checked against a tool's schema, and checks are compiled once."""

from __future__ import annotations

import json
import time
from typing import Any

import msgspec
import pytest

from isthmus.core.catalog.argument_validation import (
    DETAIL_LENGTH_MAX,
    EXPENSIVE,
    SUBSCHEMAS_MAX,
    CheckCache,
    UnusableSchema,
    compile_check,
    measure,
    no_check,
)
from tests.unit.core.doubles import raw, tool

ECHO = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


FILE = {"type": "object", "properties": {"path": {"type": "string"}, "encoding": {}}, "required": ["path"]}


def check(schema: Any, arguments: msgspec.Raw | Any, limit_bytes: int = 4096) -> str | None:
    given = arguments if isinstance(arguments, msgspec.Raw) else raw(arguments)
    return compile_check(raw(schema), limit_bytes=limit_bytes)(given)


def test_arguments_that_fit_pass() -> None:
    assert check(ECHO, {"text": "hi"}) is None


def test_validation_errors_name_their_place() -> None:
    nested = {"type": "object", "properties": {"a": {"items": ECHO}}}
    assert check(ECHO, {}) == '"text" is a required property'
    assert str(check(nested, {"a": [{"text": "x"}, {"text": 1}]})).startswith("a.1.text: 1 is not of type")


def test_additional_arguments_are_named_in_errors() -> None:
    # As MCP recommends it for a tool without arguments.
    nothing = {"type": "object", "additionalProperties": False}
    inside = {"type": "object", "properties": {"a": {"items": nothing}}}
    assert check(nothing, {"x": 1, "y": 2}) == "Additional properties are not allowed ('x', 'y' were unexpected)"
    assert check(inside, {"a": [{}, {"x": 1}]}) == "a.1: Additional properties are not allowed ('x' was unexpected)"
    for name in ("a", "additionalProperties"):
        never = {"type": "object", "properties": {name: False}}
        assert check(never, {name: 1}) == f"{name}: False schema does not allow 1"


def test_a_misspelt_argument_is_named_with_the_one_that_was_meant() -> None:
    closed = {**FILE, "additionalProperties": False}
    known = "'pth' is not an argument of this tool; did you mean 'path'?"
    assert check(FILE, {"pth": "/x"}) == f'"path" is a required property, and {known}'
    assert check(closed, {"path": "/x", "pth": "/x"}) == known
    assert check(closed, {"path": "/x", "z": 1}) == "'z' is not an argument of this tool; it takes path, encoding"
    assert check(FILE, {"path": "/x", "z": 1}) is None
    by_pattern = {**closed, "patternProperties": {"^x-": {}}}
    assert check(by_pattern, {"path": "", "pth": 1}) == "Additional properties are not allowed ('pth' was unexpected)"


def test_an_explanation_is_cut_however_much_was_sent() -> None:
    received = check(ECHO, {"text": ["x" * 50_000]})
    assert received is not None
    assert len(received) == DETAIL_LENGTH_MAX


def test_long_arguments_are_checked_and_not_quoted() -> None:
    assert check(ECHO, {"text": "x" * 100_000}) is None
    received = check(ECHO, {"text": ["x" * 100_000]})
    assert received is not None
    assert "100014 bytes" in received


def test_arguments_of_very_many_parts_are_too_expensive_for_the_event_loop() -> None:
    def parts(count: int) -> msgspec.Raw:
        return msgspec.Raw(b'{"text":[%b1]}' % (b"[]," * count))

    assert check(ECHO, parts(1_000)) not in (None, EXPENSIVE)
    assert check(ECHO, parts(110_000)) is EXPENSIVE
    in_a_worker = compile_check(raw(ECHO), limit_bytes=4096, budget=None)
    assert in_a_worker(parts(110_000)) not in (None, EXPENSIVE)


@pytest.mark.parametrize(
    "text", [b'{"text":1e999}', b'{"text":' + b"9" * 5000 + b"}", b'{"text":"\\ud800"}', b"{", b"[" * 5000]
)
def test_arguments_that_cannot_be_read_are_refused_and_break_nothing(text: bytes) -> None:
    assert str(check(ECHO, msgspec.Raw(text))).startswith("not usable JSON")


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "http://127.0.0.1:9/schema.json"},
        {"$ref": "file:///etc/passwd"},
        {"$ref": "#/nowhere"},
        {"$schema": "http://127.0.0.1:9/dialect"},
        {"type": "nonsense"},
        {"properties": {"a": {"pattern": "("}}},
        {"properties": {"a": {"pattern": "(a{1000}){1000}"}}},
        {"properties": {"a": {"pattern": "(?=a)b"}}},
        7,
    ],
)
def test_an_invalid_or_external_schema_is_unusable_with_a_reason(schema: Any) -> None:
    with pytest.raises(UnusableSchema, match="its schema cannot be used"):
        compile_check(raw(schema), limit_bytes=4096)


def test_a_schema_that_is_no_json_cannot_be_used() -> None:
    with pytest.raises(UnusableSchema):
        compile_check(msgspec.Raw(b'{"type":'), limit_bytes=4096)


def test_a_schema_over_the_limit_is_not_even_read() -> None:
    with pytest.raises(UnusableSchema, match="its schema has 114 bytes, the limit is 113"):
        compile_check(msgspec.Raw(json.dumps(ECHO).ljust(114).encode()), limit_bytes=113)


def test_a_pattern_that_drives_backtracking_engines_mad_is_harmless() -> None:
    mad = {"type": "object", "properties": {"a": {"pattern": "^(a+)+$"}}}
    assert check(mad, {"a": "a" * 50_000}) is None
    assert check(mad, {"a": "a" * 50_000 + "!"}) is not None


@pytest.mark.parametrize("schema", [{"$ref": "#"}, {"allOf": [{"$ref": "#"}]}])
def test_a_schema_that_refers_to_itself_ends(schema: Any) -> None:
    assert check(schema, {"a": 1}) is None


def test_a_refusal_is_explained_without_looking_at_everything_that_is_wrong() -> None:
    # All errors of this one are some ten thousand times ten thousand; the first is found at once.
    branches = [{"type": "object", "required": [f"k{number}"]} for number in range(300)]
    schema = {"type": "object", "properties": {"items": {"type": "array", "items": {"anyOf": branches}}}}
    check_it = compile_check(raw(schema), limit_bytes=1 << 20)
    began = time.thread_time()
    assert check_it(raw({"items": [{} for _ in range(300)]})) is not None
    assert time.thread_time() - began < 5.0  # one that lists them all takes minutes


TEXT = {"type": "object", "required": ["text"]}


def test_a_tool_without_a_usable_schema_is_not_checked_here() -> None:
    cache = CheckCache(limit_bytes=4096)
    assert cache.check_for(tool())(raw({})) is None
    assert cache.check_for(tool(inputSchema={"type": "nonsense"}))(raw({})) is None


def test_a_check_is_compiled_on_the_first_call_and_kept() -> None:
    cache = CheckCache(limit_bytes=4096)
    check = cache.check_for(tool(inputSchema=TEXT))
    assert len(cache._checks) == 0
    assert check(raw({})) == '"text" is a required property'
    assert cache.check_for(tool(inputSchema=TEXT))(raw({"text": 1})) is None
    assert len(cache._checks) == 1


def test_the_same_program_on_another_server_shares_its_checks() -> None:
    cache = CheckCache(limit_bytes=4096)
    for server in ("a", "b"):
        assert cache.check_for(tool("say", server, inputSchema=TEXT))(raw({})) == '"text" is a required property'
    assert len(cache._checks) == 1


def test_a_changed_schema_is_a_new_check() -> None:
    cache = CheckCache(limit_bytes=4096)
    assert cache.check_for(tool(inputSchema=TEXT))(raw({})) is not None
    assert cache.check_for(tool(inputSchema={"type": "object"}))(raw({})) is None


def test_the_number_of_checks_kept_is_bounded() -> None:
    cache = CheckCache(limit_bytes=4096, capacity=2)
    for name in ("a", "b", "c"):
        assert cache.check_for(tool(name, inputSchema=TEXT))(raw({})) is not None
    assert len(cache._checks) == 1


def test_arguments_without_a_schema_are_never_refused() -> None:
    assert no_check(raw(["anything"])) is None


@pytest.mark.parametrize("schema", [{"type": "object"}, {"$comment": "x", "title": "t", "type": "object"}, {}])
def test_a_long_object_is_not_read_for_a_schema_that_any_object_fits(schema: Any) -> None:
    dense = msgspec.Raw(b'{"v":[' + b"1," * 400_000 + b"1]}")
    found = compile_check(raw(schema), limit_bytes=4096)
    assert found(dense) is None
    assert found(msgspec.Raw(b"[" + b"1," * 400_000 + b"1]")) is not None if schema else True


def test_separators_in_a_long_text_are_not_taken_for_values() -> None:
    schema = {"type": "object", "properties": {"text": {"type": "string"}, "n": {"type": "integer"}}}
    found = compile_check(raw(schema), limit_bytes=4096)
    text = b'{"text":"' + b",[{" * 400_000 + b'","n":%b}'
    assert found(msgspec.Raw(text % b"1")) is None
    assert found(msgspec.Raw(text % b'"one"')) not in (None, EXPENSIVE)


def test_a_repeated_member_does_not_hide_its_cost() -> None:
    schema = {"type": "object", "properties": {"b": {"type": "integer"}}}
    many = b",".join([b"1"] * 110_000)
    assert check(schema, msgspec.Raw(b'{"b":[' + many + b'],"b":1}')) is EXPENSIVE


def chain(levels: int, width: int, last: Any) -> dict[str, Any]:
    """Definitions that each refer so often to the next."""
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
