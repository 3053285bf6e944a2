"""Questions in a result are read whole or refused with a reason, and written so that they can be read."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.model.calls import Question
from isthmus.wire.mcp.forwarded_methods import (
    CAPABILITY_NEEDED,
    QUESTIONS_MAX,
    InputRequests,
    as_legacy_request,
    read_input_required,
    read_responses,
    read_url_elicitations,
    with_state,
    write_input_required,
)

ROOTS = {"method": "roots/list"}
FORM = {"method": "elicitation/create", "params": {"message": "who?"}}


def raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(json.dumps(value).encode())


def read(**members: Any) -> InputRequests | str:
    return read_input_required(raw({"resultType": "input_required", **members}))


def test_questions_are_read_as_the_server_wrote_them() -> None:
    inputs = read(inputRequests={"r": ROOTS, "f": FORM}, requestState="s", other=1)
    assert isinstance(inputs, InputRequests)
    assert {key: question.method for key, question in inputs.questions.items()} == {
        "r": "roots/list",
        "f": "elicitation/create",
    }
    assert json.loads(bytes(inputs.questions["f"].params)) == {"message": "who?"}
    assert bytes(inputs.questions["r"].params) == b"{}"
    assert inputs.state is not None
    assert bytes(inputs.state) == b'"s"'


@pytest.mark.parametrize("members", [{"inputRequests": {"r": ROOTS}}, {"requestState": "s"}])
def test_questions_or_a_state_alone_will_do(members: dict[str, Any]) -> None:
    assert isinstance(read(**members), InputRequests)


@pytest.mark.parametrize("method", CAPABILITY_NEEDED)
def test_everything_that_can_be_asked_is_read(method: str) -> None:
    assert isinstance(read(inputRequests={"q": {"method": method, "params": {}}}), InputRequests)


@pytest.mark.parametrize(
    ("members", "why"),
    [
        ({}, "without inputRequests and requestState"),
        ({"inputRequests": {}}, "without inputRequests and requestState"),
        ({"inputRequests": None}, "invalid inputRequests"),
        ({"inputRequests": [ROOTS]}, "invalid inputRequests"),
        ({"inputRequests": {str(number): ROOTS for number in range(QUESTIONS_MAX + 1)}}, "invalid inputRequests"),
        ({"inputRequests": {"r": ROOTS}, "requestState": 7}, "requestState is not a string"),
        ({"inputRequests": {"r": ROOTS}, "requestState": None}, "requestState is not a string"),
        ({"inputRequests": {"x" * 99: {"method": "tools/call"}}}, f"unknown request ({'x' * 40!r})"),
        ({"inputRequests": {"r": {}}}, "unknown"),
        ({"inputRequests": {"r": 7}}, "unknown"),
        ({"inputRequests": {"r": {"method": 7}}}, "unknown"),
        ({"inputRequests": {"r": {"method": "roots/list", "params": []}}}, "unknown"),
    ],
)
def test_the_problem_of_input_responses_is_reported(members: dict[str, Any], why: str) -> None:
    wrong = read(**members)
    assert isinstance(wrong, str)
    assert why in wrong


@given(st.binary(max_size=100))
def test_nothing_that_a_server_writes_makes_reading_fail(text: bytes) -> None:
    assert isinstance(read_input_required(text), str)


names = st.text(max_size=20)


@given(st.dictionaries(names, st.sampled_from(sorted(CAPABILITY_NEEDED)), min_size=1, max_size=5), st.text(max_size=50))
def test_written_input_requests_can_be_read(asked: dict[str, str], state: str) -> None:
    questions = {key: Question(method, raw({"k": key})) for key, method in asked.items()}
    written = write_input_required(questions, state)
    assert json.loads(written)["resultType"] == "input_required"
    inputs = read_input_required(written)
    assert isinstance(inputs, InputRequests)
    assert {key: (question.method, bytes(question.params)) for key, question in inputs.questions.items()} == {
        key: (question.method, bytes(question.params)) for key, question in questions.items()
    }
    assert inputs.state is not None
    assert json.loads(bytes(inputs.state)) == state


def test_another_state_leaves_the_rest_of_a_result_as_it_is() -> None:
    result = raw({"resultType": "input_required", "inputRequests": {"r": ROOTS}, "_meta": {"k": 1}})
    assert json.loads(with_state(result, "new")) == {**json.loads(bytes(result)), "requestState": "new"}
    assert json.loads(with_state(with_state(result, "old"), "new"))["requestState"] == "new"


@pytest.mark.parametrize("responses", [[], 7, None, "q"])
def test_invalid_answers_are_distinguished_from_missing_ones(responses: object) -> None:
    assert read_responses({}) == {}
    assert read_responses({"inputResponses": raw(responses)}) is None


def test_answers_are_read_as_the_caller_wrote_them() -> None:
    answers = read_responses({"inputResponses": raw({"q": {"roots": []}})})
    assert answers is not None
    assert {key: bytes(value) for key, value in answers.items()} == {"q": b'{"roots": []}'}


def test_a_question_that_sends_the_user_elsewhere_has_an_id_for_earlier_callers() -> None:
    asked = Question("elicitation/create", raw({"mode": "url", "url": "https://login.example/", "message": "in?"}))
    received = as_legacy_request(asked, "e1")
    assert json.loads(bytes(received.params)) == {**json.loads(bytes(asked.params)), "elicitationId": "e1"}
    assert as_legacy_request(received, "e2") == received


@pytest.mark.parametrize(
    "question",
    [
        Question("elicitation/create", raw({"message": "who?"})),
        Question("elicitation/create", raw({"mode": "form", "message": "who?"})),
        Question("elicitation/create", raw({"mode": ["url"]})),
        Question("roots/list", raw({"mode": "url"})),
    ],
)
def test_other_questions_are_the_same_for_earlier_callers(question: Question) -> None:
    assert as_legacy_request(question, "e1") is question


@pytest.mark.parametrize(
    ("data", "ids"),
    [
        (None, []),
        ({"elicitations": [{"elicitationId": "a"}, {"mode": "url"}, {"elicitationId": 7}]}, [b'"a"', b"7"]),
        ({"elicitations": [{"elicitationId": "a"}] * 1000}, [b'"a"'] * 100),
        ({"elicitations": 7}, []),
        ({}, []),
        ("text", []),
    ],
)
def test_an_error_may_name_the_questions_that_send_the_user_elsewhere_first(data: object, ids: list[bytes]) -> None:
    read = read_url_elicitations(None if data is None else msgspec.Raw(msgspec.json.encode(data)))
    assert [bytes(id) for id in read] == ids
