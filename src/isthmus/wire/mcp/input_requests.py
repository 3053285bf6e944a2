"""`input_required` results: how a modern server asks its caller, who answers by calling again.

Legacy servers send requests instead, with the same methods. Links read these results and frontends write them.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from isthmus.model.calls import Question
from isthmus.wire.jsonrpc import Payload, object_members, render
from isthmus.wire.mcp.messages import Members, is_object, read_string

INPUT_REQUIRED = "input_required"
RESPONSES = "inputResponses"
STATE = "requestState"

CAPABILITY_NEEDED = {"elicitation/create": "elicitation", "roots/list": "roots", "sampling/createMessage": "sampling"}
"""The methods by which a server asks, and the client capability that each needs."""

QUESTIONS = frozenset(CAPABILITY_NEEDED)

COMPLETED = "notifications/elicitation/complete"
ELICITATION_ID = "elicitationId"
"""The legacy notification that the user has completed a URL elicitation."""

URL_ELICITATION_REQUIRED = -32042
"""The error of a server whose user must visit a URL first; its data contains the elicitations."""

QUESTIONS_MAX = 100
"""Questions that one result may hold."""

EMPTY = msgspec.Raw(b"{}")


class InputRequests(msgspec.Struct, frozen=True):
    """The questions of a server by its own keys, and a state that it wants back."""

    questions: dict[str, Question]
    state: msgspec.Raw | None


def read_input_required(result: Payload) -> InputRequests | str:
    """Read an `input_required` result, or return what is wrong with it."""
    members = object_members(result) or {}
    asked = object_members(members.get("inputRequests", EMPTY))
    state = members.get(STATE)
    if asked is None or len(asked) > QUESTIONS_MAX:
        return "an input_required result with invalid inputRequests"
    if state is not None and read_string(state) is None:
        return "an input_required result whose requestState is not a string"
    if not asked and state is None:
        return "an input_required result without inputRequests and requestState"
    questions: dict[str, Question] = {}
    for key, raw in asked.items():
        request = object_members(raw) or {}
        method, params = read_string(request.get("method")), request.get("params", EMPTY)
        if method not in QUESTIONS or not is_object(params):
            return f"an input_required result with an unknown request ({key[:40]!r})"
        questions[key] = Question(method, params)
    return InputRequests(questions, state)


def as_legacy_request(question: Question, id: str) -> Question:
    """The question for a legacy caller: in that era a URL elicitation has an id."""
    members = object_members(question.params) or {}
    if question.method != "elicitation/create" or read_string(members.get("mode")) != "url":
        return question
    params = msgspec.Raw(render({ELICITATION_ID: msgspec.json.encode(id), **members}))
    return msgspec.structs.replace(question, params=params)


_LIST = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])


def read_url_elicitations(data: msgspec.Raw | None) -> list[msgspec.Raw]:
    """The ids of the elicitations in a `URL_ELICITATION_REQUIRED` error; empty if its data is invalid."""
    members = {} if data is None else object_members(data) or {}
    try:
        told = _LIST.decode(members.get("elicitations", b"[]"))
    except msgspec.MsgspecError:
        return []
    return [members[ELICITATION_ID] for members in told[:QUESTIONS_MAX] if ELICITATION_ID in members]


def write_input_required(questions: Mapping[str, Question], state: str) -> bytes:
    """An `input_required` result with these questions."""
    asked = {
        key: render({"method": msgspec.json.encode(question.method), "params": question.params})
        for key, question in questions.items()
    }
    return render(
        {"resultType": b'"input_required"', "inputRequests": render(asked), STATE: msgspec.json.encode(state)}
    )


def with_state(result: Payload, state: str) -> bytes:
    """A server's `input_required` result with another state."""
    return render({**(object_members(result) or {}), STATE: msgspec.json.encode(state)})


def read_responses(extra: Members) -> dict[str, msgspec.Raw] | None:
    """The answers in a caller's next call; None if they are not an object."""
    return object_members(extra[RESPONSES]) if RESPONSES in extra else {}
