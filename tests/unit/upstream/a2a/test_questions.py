"""What agents ask, as questions of MCP, and the answers as messages."""

from __future__ import annotations

import json

import pytest
from msgspec import Raw

from isthmus.model.conversation import Data, Part, Text
from isthmus.upstream.agent.questions import NO_WORDS, Asking, answer_of, asking_of

FORM = b'{"type":"object","properties":{"n":{"type":"integer","maximum":9223372036854775807}}}'
NESTED = b'{"type":"object","properties":{"o":{"type":"object"}}}'


def data(text: bytes) -> Data:
    return Data(Raw(text))


def told(text: bytes) -> Data:
    return Data(Raw(text), "application/json")


def schema_of(asking: Asking) -> bytes:
    params = bytes(asking.question.params)
    return params.partition(b'"requestedSchema":')[2].removesuffix(b"}")


def test_words_are_asked_for_in_one_field() -> None:
    asking = asking_of((Text("Which"), Text("one?"), data(b"[1]"), data(b"7")))
    assert asking.is_worded
    params = json.loads(bytes(asking.question.params))
    assert params["message"] == "Which\none?"
    assert params["requestedSchema"]["required"] == ["message"]
    assert json.loads(bytes(asking_of(()).question.params))["message"] == NO_WORDS


@pytest.mark.parametrize(
    "part", [FORM, b'{"schema":%b}' % FORM, b'{"inputSchema":%b}' % FORM, b'{"x":1,"requestedSchema":%b}' % FORM]
)
def test_a_schema_is_asked_for_exactly(part: bytes) -> None:
    asking = asking_of((data(part),))
    assert not asking.is_worded
    assert schema_of(asking) == FORM


@pytest.mark.parametrize("part", [NESTED, b'{"schema":%b}' % NESTED, b'{"type":"object"}', b'{"schema":"x"}', b"{}"])
def test_what_no_form_can_be_made_of_is_asked_for_in_words(part: bytes) -> None:
    assert asking_of((data(part),)).is_worded


@pytest.mark.parametrize("method", ["elicitation/create", "sampling/createMessage", "roots/list"])
def test_another_hubs_question_is_passed_on(method: str) -> None:
    asking = asking_of((Text("Who?"), data(b'{"method":"%b","params":{"a":1.0}}' % method.encode())))
    assert asking.is_passed_on
    assert (asking.question.method, bytes(asking.question.params)) == (method, b'{"a":1.0}')


@pytest.mark.parametrize("part", [b'{"method":"tools/call","params":{}}', b'{"method":"roots/list","params":7}'])
def test_what_is_no_question_is_not_passed_on(part: bytes) -> None:
    assert not asking_of((data(part),)).is_passed_on


@pytest.mark.parametrize(
    ("asking", "result", "parts"),
    [
        (asking_of(()), b'{"action":"accept","content":{"message":"red"}}', (Text("red"),)),
        (asking_of(()), b'{"action":"accept","content":{"message":7}}', (told(b'{"message":7}'),)),
        (asking_of(()), b'{"action":"accept"}', (told(b"{}"),)),
        (asking_of((data(FORM),)), b'{"action":"accept","content":{"n":1.0}}', (told(b'{"n":1.0}'),)),
        (asking_of(()), b'{"action":"decline"}', None),
        (asking_of(()), b'{"action":"cancel"}', None),
        (asking_of(()), b"7", None),
    ],
)  # fmt: skip
def test_an_answer_is_told_as_it_was_asked_for(asking: Asking, result: bytes, parts: tuple[Part, ...] | None) -> None:
    assert answer_of(asking, Raw(result)) == parts


def test_the_answer_to_another_hub_is_passed_on() -> None:
    asking = asking_of((data(b'{"method":"sampling/createMessage","params":{}}'),))
    assert answer_of(asking, Raw(b'{"role":"assistant"}')) == (Data(Raw(b'{"role":"assistant"}'), "application/json"),)
