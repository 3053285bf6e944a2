"""The text of cassettes, which recorded call answers a call, and secrets in arguments."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import Raw

from isthmus.core.cassette_matching import (
    Cassette,
    CassetteError,
    IncomingCall,
    Match,
    Player,
    RecordedCall,
    SecretFinder,
    json_differences,
    on_one_line,
    read_cassette,
)
from isthmus.model.tasks import ABSENT

HEAD = '{"cassette":1}'
SERVER = '{"abilities":["tools"],"server":"s"}'
RESULT = '{"result":{"content":[]}}'


def call(name: str = "t", arguments: str = "{}", more: str = "") -> str:
    return f'{{"arguments":{arguments},"call":"{name}"{more},"server":"s"}}'


def cassette(*lines: str, calls: int | None = None) -> bytes:
    counted = sum('"call":' in line for line in lines) if calls is None else calls
    return "\n".join([HEAD, *lines, f'{{"end":{{"calls":{counted}}}}}', ""]).encode()


def given(name: str = "t", arguments: str = "{}", extra: Raw = ABSENT) -> IncomingCall:
    return IncomingCall("s", "tool", name, Raw(arguments.encode()), extra)


def player(*lines: str, match: Match = "strict") -> Player:
    return Player(read_cassette(cassette(SERVER, *lines)), "c.jsonl", match, "none")


def line_of(found: RecordedCall | str) -> int | str:
    return found.line if isinstance(found, RecordedCall) else found


def test_a_cassette_has_servers_with_lists_and_calls_with_steps() -> None:
    tool = '{"definition":{"name":"t","x":1.0},"list":"tools"}'
    more = '{"abilities":["tools"],"capabilities":["roots","sampling"],"server":"s"}'
    question = '{"method":"roots/list","params":{},"question":1}'
    answer = '{"answer":1,"declined":{"code":-1,"message":"no"}}'
    read = read_cassette(cassette(SERVER, tool, more, call(), '{"progress":{"progress":1}}', question, answer, RESULT))
    assert isinstance(read, Cassette)
    server = read.servers["s"]
    assert [bytes(each) for each in server.lists_for(frozenset()).entries["tools"]] == [b'{"name":"t","x":1.0}']
    assert server.lists_for(frozenset({"roots", "sampling", "elicitation"})).entries["tools"] == []
    assert server.lists_for(frozenset({"roots"})) is server.lists[None]
    (only,) = read.calls
    assert (only.line, only.title, len(only.steps)) == (5, "s.t", 3)


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        (b"", 1, "a cassette begins with"),
        (b"{}\n", 1, "no line of a cassette has only nothing"),
        (b'{"cassette":2}\n', 1, "reads format 1, not 2"),
        (b'{"cassette":1}', 1, "the line has no end"),
        (b'{"cassette":1}\n', 2, "the last line is missing"),
        (cassette(SERVER, "[]"), 3, "not a JSON object"),
        (cassette(SERVER, '{"result":\xff}'), 3, "not a JSON object"),
        (cassette(SERVER, call(more=',"new":1'), RESULT), 3, "unknown field `new`"),
        (cassette(call(), RESULT), 2, "there is no server 's' above"),
        (cassette(SERVER, call()), 4, "the call of line 3 has no result or fault"),
        (cassette(SERVER, call(), call(), RESULT), 4, "the call of line 3 has no result or fault"),
        (cassette(SERVER, RESULT), 3, "there is no call above"),
        (cassette(SERVER, call(), '{"answer":1,"reply":{}}', RESULT), 4, "no open question 1"),
        (cassette(SERVER, call(), RESULT, SERVER), 5, "servers belong before the calls"),
        (cassette(SERVER, SERVER), 3, "each only once"),
        (cassette('{"definition":{},"list":"tools"}'), 2, "a list belongs below its server"),
        (cassette(SERVER, HEAD), 3, "belongs to the beginning"),
        (cassette(SERVER, call(), RESULT, calls=2), 5, "counts 2 calls, but the file has 1"),
        (cassette(SERVER) + b"{}\n", 4, "the cassette ended in the line before"),
    ],
)
def test_a_damaged_cassette_names_the_line(text: bytes, line: int, problem: str) -> None:
    with pytest.raises(CassetteError, match=f"^line {line}: ") as damaged:
        read_cassette(text)
    assert damaged.value.line == line
    assert problem in damaged.value.problem


def test_calls_that_overlapped_may_change_places_and_others_not() -> None:
    playing = player(
        call("a"), RESULT, call("b"), RESULT, call("c", more=',"overlaps":true'), RESULT, call("d"), RESULT
    )
    assert "The next call" in str(playing.find(given("b")))
    assert [line_of(playing.find(given(name))) for name in ("a", "c")] == [3, 7]
    assert "it is s.b there and s.d here" in str(playing.find(given("d")))
    assert [line_of(playing.find(given(name))) for name in ("b", "d")] == [5, 9]
    assert playing.unplayed() == []


def test_equal_calls_are_replayed_in_turn_and_leniently_the_last_again() -> None:
    playing = player(call(), RESULT, call("other"), RESULT, call(), RESULT, match="lenient")
    assert [line_of(playing.find(given())) for _ in range(3)] == [3, 7, 7]
    assert [each.line for each in playing.unplayed()] == [5]


def test_a_strict_replay_says_if_the_call_is_elsewhere_in_the_cassette() -> None:
    lines = (call("a"), RESULT, call("b"), RESULT)
    elsewhere = (
        "The call of line 5 is this one, but a strict replay wants each call once and in order; lenient does not."
    )
    assert str(player(*lines).find(given("b"))).endswith(f"s.b here. {elsewhere}")
    assert "lenient" not in str(player(*lines).find(given("c")))
    assert "lenient" not in str(player(*lines, match="lenient").find(given("c")))
    one = player(call("a"), RESULT)
    assert line_of(one.find(given("a"))) == 3
    assert "The call of line 3 is this one" in str(one.find(given("a")))
    assert player().find(given("a")) == "c.jsonl has no calls."


def test_arguments_are_compared_as_json() -> None:
    there = '{"a":[1,{"b":"é"}],"c":null}'
    assert player(call(arguments=there), RESULT).find(given(arguments='{"c": null, "a": [1.0, {"b": "\\u00e9"}]}'))
    assert json_differences(Raw(b'{"a":1}'), Raw(b'{"a":true}'), "x") == ["x.a is 1 there and true here"]
    assert json_differences(Raw(b'{"a":[1]}'), Raw(b'{"a":[1,2]}'), "x") == ["x.a is [1] there and [1, 2] here"]
    assert json_differences(ABSENT, Raw(b'{"a":""}'), "x") == ['x.a is missing there and "" here']


def test_an_error_is_short_however_much_differs() -> None:
    there = json.dumps({f"k{number}": "x" * 1000 for number in range(100)})
    found = player(call(arguments=there), RESULT, match="lenient").find(given())
    assert isinstance(found, str)
    assert "and 95 more" in found
    assert len(found) < 1500


@pytest.mark.parametrize(
    ("there", "here", "is_same"),
    [
        ("***", "anything", True),
        ("Bearer ***!", "Bearer abc!", True),
        ("Bearer ***!", "Basic abc!", False),
        ("a***b***c", "a1b2c", True),
        ("a***b***c", "a1c", False),
        ("ab***ba", "aba", False),
    ],
)
def test_a_redacted_text_matches_any_secret_in_its_place(there: str, here: str, is_same: bool) -> None:  # noqa: FBT001
    playing = player(call(arguments=json.dumps({"x": there}), more=',"redacted":true'), RESULT)
    assert isinstance(playing.find(given(arguments=json.dumps({"x": here}))), RecordedCall) is is_same
    plain = player(call(arguments=json.dumps({"x": there})), RESULT)
    assert isinstance(plain.find(given(arguments=json.dumps({"x": here}))), str)


@pytest.mark.parametrize(
    ("schema", "value", "shown", "found"),
    [
        ({"properties": {"a": {"writeOnly": True}}}, {"a": "s", "b": "t"}, {"a": "***", "b": "t"}, ["s"]),
        ({"properties": {"a": {"anyOf": [{"format": "password"}, {}]}}}, {"a": None}, {"a": None}, []),
        (
            {"properties": {"a": {"$ref": "#/$defs/p"}}, "$defs": {"p": {"format": "password"}}},
            {"a": 7},
            {"a": "***"},
            ["7"],
        ),
        (
            {"properties": {"a": {"items": {"writeOnly": True}}}},
            {"a": ["x", {"y": "z"}]},
            {"a": ["***", "***"]},
            ["x", "z"],
        ),
        (
            {"additionalProperties": {"writeOnly": True}, "properties": {"a": {}}},
            {"a": 1, "b": 2},
            {"a": 1, "b": "***"},
            ["2"],
        ),
        ({"patternProperties": {"^x": {"writeOnly": True}}}, {"xa": "s"}, {"xa": "***"}, ["s"]),
        (
            {"properties": {"a": {"prefixItems": [{}, {"writeOnly": True}]}}},
            {"a": [1, "s", 2]},
            {"a": [1, "***", 2]},
            ["s"],
        ),
        ({"properties": {"a": {"items": [{"writeOnly": True}]}}}, {"a": ["s", 2]}, {"a": ["***", 2]}, ["s"]),
        ({"then": {"properties": {"a": {"writeOnly": True}}}}, {"a": "s"}, {"a": "***"}, ["s"]),
        (
            {"properties": {"a": {"$ref": "#/$defs/x~1y%20z"}}, "$defs": {"x/y z": {"writeOnly": True}}},
            {"a": "s"},
            {"a": "***"},
            ["s"],
        ),
        (
            {"properties": {"a": {"$ref": "#"}, "b": {"writeOnly": True}}},
            {"a": {"b": "s"}},
            {"a": {"b": "***"}},
            ["s"],
        ),
        ({"$ref": "#"}, {"a": 1}, {"a": 1}, []),
        ({"properties": 7, "anyOf": {}, "$ref": "#/no/where"}, {"a": 1}, {"a": 1}, []),
    ],
)
def test_values_that_a_schema_marks_as_secret_are_replaced(
    schema: dict[str, Any], value: Any, shown: Any, found: list[str]
) -> None:
    finder = SecretFinder(Raw(json.dumps(schema).encode()))
    assert json.loads(bytes(finder.redacted(Raw(json.dumps(value).encode())))) == shown
    assert finder.found == found


def test_what_is_beside_a_secret_stays_as_it_is_written() -> None:
    finder = SecretFinder(Raw(b'{"properties":{"a":{"writeOnly":true}}}'))
    given = Raw(b'{"a":"secret","b":[1e400,12345678901234567890.10],"c":1.0}')
    assert bytes(finder.redacted(given)) == b'{"a":"***","b":[1e400,12345678901234567890.10],"c":1.0}'


def test_a_schema_that_refers_to_itself_costs_a_bounded_time() -> None:
    again = {"$ref": "#/$defs/x"}
    schema = {**again, "$defs": {"x": {"anyOf": [again, again], "properties": {"a": again}}}}
    finder = SecretFinder(Raw(json.dumps(schema).encode()))
    assert bytes(finder.redacted(Raw(b'{"a":{"a":1}}'))) == b'{"a":{"a":1}}'


def test_only_pretty_printed_json_is_rewritten() -> None:
    assert bytes(on_one_line(Raw(b'{"a": [1, 2]}'))) == b'{"a": [1, 2]}'
    assert bytes(on_one_line(Raw(b'{\n  "a": [1,\r\n 2]}'))) == b'{"a":[1,2]}'
