"""Which calls a rule is about, and when two calls have the same arguments."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from isthmus.core.access.approval_rules import (
    ARGUMENTS_BYTES_MAX,
    SCHEMA_STEPS_MAX,
    VALUES_MAX,
    ApprovalRule,
    ArgumentTest,
    UnclearArguments,
    canonical_number,
    canonical_text,
    may_have,
    path_of,
    read_arguments,
    request_digest,
)
from tests.property.respelled import Json, documents, is_equal, respelled


@given(st.data(), documents())
def test_every_spelling_of_the_same_arguments_has_one_text(data: st.DataObject, value: Json) -> None:
    first, second = data.draw(respelled(value)), data.draw(respelled(value))
    assert canonical_text(read_arguments(first.encode())) == canonical_text(read_arguments(second.encode()))


@given(st.data(), documents(), documents())
def test_two_texts_are_equal_exactly_if_their_values_are(data: st.DataObject, one: Json, other: Json) -> None:
    texts = [data.draw(respelled(each)) for each in (one, other)]
    first, second = (canonical_text(read_arguments(text.encode())) for text in texts)
    assert (first == second) is is_equal(*texts)


@example(0, 0)
@given(st.integers(-(10**40), 10**40), st.integers(-60, 60))
def test_a_number_has_one_spelling(mantissa: int, power: int) -> None:
    value = Decimal(f"{mantissa}e{power}")  # exact, unlike arithmetic
    spellings = {f"{mantissa}e{power}", f"{mantissa}.0E{power}", f"{mantissa}0e{power - 1}", f"{value:f}"}
    assert len({canonical_number(each) for each in spellings}) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1", "true"),
        ("0", "false"),
        ("0", "null"),
        ('"1"', "1"),
        ("[]", "{}"),
        ('""', "null"),
        ("9007199254740993", "9007199254740992"),
        ("0.1", "0.10000000000000001"),
        ("1e400", "1e401"),
        ('"\\u00e9"', '"e\\u0301"'),
        ('"\\ud800"', '"\\udc00"'),
        ("[[],[]]", "[[[]]]"),
        ('{"a":1,"b":2}', '{"a":2,"b":1}'),
        ('{"a":null}', "{}"),
    ],
)
def test_values_that_a_server_distinguishes_have_different_texts(one: str, other: str) -> None:
    texts = [canonical_text(read_arguments(f'{{"v":{each}}}'.encode())) for each in (one, other)]
    assert texts[0] != texts[1]


@pytest.mark.parametrize(
    "text",
    [
        b'{"a":1,"a":2}',
        b'{"a":1,"\\u0061":1}',
        b'{"a":NaN}',
        b'{"a":1e9999999999999999999}',
        b'{"a":',
        b'"\xff"',
        b"[" * 100_000,
        b'"' + b"x" * ARGUMENTS_BYTES_MAX + b'"',
    ],
)
def test_arguments_that_no_person_can_approve_are_refused(text: bytes) -> None:
    with pytest.raises(UnclearArguments):
        canonical_text(read_arguments(text))


def test_the_parts_of_a_digest_cannot_be_moved_from_one_to_the_next() -> None:
    digests = {
        request_digest("ab", "c"),
        request_digest("a", "bc"),
        request_digest("abc", ""),
        request_digest("abc", None),
    }
    assert len(digests) == 4


def argument_test(path: str, test: str, value: Any) -> ArgumentTest:
    return ArgumentTest(path_of(path), test, value)  # type: ignore[arg-type]  # a word of the table below


@pytest.mark.parametrize(
    ("test", "value", "arguments", "holds", "exempts"),
    [
        ("above", 100, {"a": 100.5}, True, True),
        ("above", 100, {"a": 100}, False, False),
        ("above", 100, {"a": "1000"}, True, False),  # a text cannot be compared with a number
        ("above", 100, {"a": None}, True, False),
        ("above", 100, {}, False, False),
        ("below", 0.5, {"a": 1e-9}, True, True),
        ("below", 0.5, {"a": 0.5}, False, False),
        ("equals", 1, {"a": 1.0}, True, True),
        ("equals", 1, {"a": True}, False, False),
        ("equals", {"x": [1, 2]}, {"a": {"x": [1.0, 2]}}, True, True),
        ("one_of", ["x", "y"], {"a": "y"}, True, True),
        ("one_of", ["x", "y"], {"a": "z"}, False, False),
        ("matches", "^/etc/", {"a": "/etc/passwd"}, True, True),
        ("matches", "^/etc/", {"a": "/home/etc/"}, False, False),
        ("matches", "^/etc/", {"a": ["/home"]}, True, False),
    ],
)
def test_incomparable_arguments_count_against_the_caller(
    test: str, value: Any, arguments: Any, *, holds: bool, exempts: bool
) -> None:
    read = read_arguments(json.dumps(arguments).encode())
    made = argument_test("a", test, value)
    assert made.passes(read, is_exemption=False) is holds
    assert made.passes(read, is_exemption=True) is exempts


@pytest.mark.parametrize(
    ("path", "arguments", "holds", "exempts"),
    [
        ("lines.*.price", {"lines": [{"price": 1}, {"price": 200}]}, True, False),
        ("lines.*.price", {"lines": [{"price": 101}, {"price": 200}]}, True, True),
        ("lines.1.price", {"lines": [{"price": 200}, {"price": 1}]}, False, False),
        ("lines.1.price", {"lines": []}, False, False),
        ("/a.b/0", {"a.b": [200]}, True, True),
        ("/a~1b/~0", {"a/b": {"~": 200}}, True, True),
        ("*", {"x": 1, "y": 200}, True, False),
        ("a.*", {"a": [1] * (VALUES_MAX + 1)}, True, False),
    ],
)
def test_one_value_of_a_path_holds_a_call_and_only_all_exempt_it(
    path: str, arguments: Any, *, holds: bool, exempts: bool
) -> None:
    read = read_arguments(json.dumps(arguments).encode())
    made = argument_test(path, "above", 100)
    assert made.passes(read, is_exemption=False) is holds
    assert made.passes(read, is_exemption=True) is exempts


SCHEMA = {
    "type": "object",
    "properties": {
        "amount": {"type": "number"},
        "order": {"$ref": "#/$defs/Order"},
        "any": {},
        "open": {"type": "object", "properties": {}, "additionalProperties": {"type": "string"}},
        "either": {"anyOf": [{"type": "null"}, {"type": "object", "properties": {"a": {"type": "string"}}}]},
        "pair": {"prefixItems": [{"properties": {"a": {}}}, {"type": "string"}]},
    },
    "$defs": {
        "Order": {
            "properties": {
                "lines": {"type": "array", "items": {"properties": {"price": {}}}},
                "within": {"$ref": "#/$defs/Order"},
            }
        }
    },
}


@pytest.mark.parametrize(
    ("path", "may_be"),
    [
        ("amount", True),
        ("amuont", False),
        ("amount.value", False),
        ("order.lines.*.price", True),
        ("order.lines.0.price", True),
        ("order.lines.*.prize", False),
        ("order.lines.price", False),
        ("order.within.within.lines", True),
        ("order.within.within.line", False),
        ("*.lines", True),
        ("any.thing", True),
        ("open.thing", True),
        ("open.thing.else", False),
        ("either.a", True),
        ("either.b", False),
        ("pair.0.a", True),
        ("pair.*.b", False),
    ],
)
def test_a_schema_tells_which_paths_arguments_may_have(path: str, *, may_be: bool) -> None:
    assert may_have(SCHEMA, path_of(path)) is may_be


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object"},
        True,
        {"properties": {"b": {}}, "additionalProperties": True},
        {"properties": {"b": {}}, "patternProperties": {"^a": {}}},
        {"$ref": "https://example.com/schema"},
        {"$ref": "#/nowhere"},
        {"$ref": "#"},
        {"allOf": [{"properties": {"b": {}}}, {"properties": {"a": {}}}]},
        {"allOf": [{"properties": {"b": {}}}] * (SCHEMA_STEPS_MAX + 1)},
    ],
)
def test_a_schema_that_does_not_tell_may_have_any_path(schema: object) -> None:
    assert may_have(schema, ("a",))


def test_all_argument_test_a_rule_must_pass() -> None:
    rule = ApprovalRule("r", ("*",), arguments=(argument_test("a", "above", 1), argument_test("b", "equals", "x")))
    assert rule.passes(read_arguments(b'{"a":2,"b":"x"}'))
    assert not rule.passes(read_arguments(b'{"a":2,"b":"y"}'))
    assert ApprovalRule("r", ("*",)).passes(None)


def test_a_pattern_takes_linear_time_for_any_text() -> None:
    test = argument_test("a", "matches", "^(a+)+$")
    assert not test.passes({"a": "a" * 50_000 + "!"}, is_exemption=False)


@pytest.mark.parametrize("path", ["", "a..b", ".a", "/a//b"])
def test_a_path_has_no_empty_step(path: str) -> None:
    with pytest.raises(ValueError, match="must be a path"):
        path_of(path)
