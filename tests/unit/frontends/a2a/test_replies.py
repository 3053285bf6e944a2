"""What a message says to a question."""

from __future__ import annotations

import json
from typing import Any

import pytest

from isthmus.core.tasks.record import StoredQuestion
from isthmus.frontends.a2a.caller_messages import read_reply
from isthmus.model.calls import Answered, Declined
from isthmus.model.tasks import DataPart, Message, Part, TextPart
from tests.unit.core.doubles import raw

FORM = {
    "message": "Who?",
    "requestedSchema": {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]},
}
ELICIT = StoredQuestion("elicitation/create", raw(FORM))
URL = StoredQuestion("elicitation/create", raw({"mode": "url", "url": "https://a", "message": "Log in"}))
SAMPLE = StoredQuestion("sampling/createMessage", raw({"messages": []}))


def reply(asked: StoredQuestion, *parts: Part) -> Any:
    told = read_reply(asked, Message("m", "user", parts))
    return json.loads(bytes(told.result)) if isinstance(told, Answered) else told


@pytest.mark.parametrize("part", [DataPart(raw({"age": 3})), TextPart('{"age": 3}')])
def test_the_values_alone_are_an_answer(part: Part) -> None:
    assert reply(ELICIT, part) == {"action": "accept", "content": {"age": 3}}


def test_an_answer_may_say_what_it_does() -> None:
    assert reply(ELICIT, DataPart(raw({"action": "accept", "content": {"age": 3}})))["content"] == {"age": 3}
    assert reply(ELICIT, DataPart(raw({"action": "decline"}))) == {"action": "decline"}
    assert reply(ELICIT, DataPart(raw({"action": "cancel"}))) == {"action": "cancel"}


@pytest.mark.parametrize(
    ("word", "action"), [("No.", "decline"), ("decline", "decline"), ("cancel!", "cancel"), ("stop", "cancel")]
)
def test_words_decline_and_cancel(word: str, action: str) -> None:
    assert reply(ELICIT, TextPart(word)) == {"action": action}


def test_values_that_do_not_fit_leave_the_question_open() -> None:
    for part in (DataPart(raw({"age": "three"})), DataPart(raw({})), DataPart(raw({"action": "accept"})), TextPart("yes")):
        assert "does not fit" in reply(ELICIT, part)
    assert "data part" in reply(ELICIT, TextPart("I am three"))
    assert "data part" in reply(ELICIT)


def test_an_address_is_answered_without_values() -> None:
    assert reply(URL, TextPart("done")) == {"action": "accept"}
    assert reply(URL, TextPart("no")) == {"action": "decline"}


NAME = {"properties": {"name": {"type": "string", "maxLength": 5}}, "required": ["name"], "type": "object"}


@pytest.mark.parametrize("word", ["Ann", "yes", "Ann\nof A"])
def test_words_answer_a_question_for_one_text(word: str) -> None:
    asked = StoredQuestion("elicitation/create", raw({"message": "Who?", "requestedSchema": NAME}))
    if len(word) > 5:
        assert "does not fit" in reply(asked, TextPart(word))
    else:
        assert reply(asked, TextPart(f" {word} ")) == {"action": "accept", "content": {"name": word}}
    assert reply(asked, TextPart("no")) == {"action": "decline"}
    assert "data part" in reply(asked, TextPart(""))


@pytest.mark.parametrize(
    "properties", [{}, {"a": {"type": "string"}, "b": {"type": "string"}}, {"a": {}}, {"a": 7}, []]
)
def test_words_answer_no_other_question(properties: Any) -> None:
    asked = StoredQuestion("elicitation/create", raw({"message": "?", "requestedSchema": {"properties": properties}}))
    assert "data part" in reply(asked, TextPart("Ann"))


def test_values_keep_their_text() -> None:
    asked = StoredQuestion("elicitation/create", raw({"message": "?"}))
    told = read_reply(asked, Message("m", "user", (TextPart('{"n":1.50,"big":12345678901234567890123}'),)))
    assert isinstance(told, Answered)
    assert b'"content":{"n":1.50,"big":12345678901234567890123}' in bytes(told.result)


def test_other_questions_are_answered_by_their_result() -> None:
    assert reply(SAMPLE, DataPart(raw({"role": "assistant"}))) == {"role": "assistant"}
    assert reply(SAMPLE, TextPart("no")) == Declined(-1, "The caller declined")
    assert "sampling/createMessage" in reply(SAMPLE, TextPart("well"))


def test_deep_text_is_no_answer() -> None:
    assert "data part" in reply(ELICIT, TextPart('{"a":' * 5000 + "1" + "}" * 5000))
