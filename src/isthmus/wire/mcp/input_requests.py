"""Questions as the modern era writes them: in a result, to be answered by asking again.

The earlier era's servers send requests instead; both ask by the same methods. Used by links, which read such results,
and by faces, which write them.
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
"""What a server may ask, and what a caller must have said it can do for it."""

QUESTIONS = frozenset(CAPABILITY_NEEDED)

COMPLETED = "notifications/elicitation/complete"
ELICITATION_ID = "elicitationId"
"""Until 2026-07-28 a server told so when the user was done where its question had sent them."""

URL_ELICITATION_REQUIRED = -32042
"""The error of a server that wants the user to go somewhere first; its data holds the questions that send them."""

QUESTIONS_MAX = 100
"""Questions that one result may hold."""

EMPTY = msgspec.Raw(b"{}")


class InputRequests(msgspec.Struct, frozen=True):
    """What a server needs before it can go on: questions by its own keys, and a state to be given back."""

    questions: dict[str, Question]
    state: msgspec.Raw | None


def read_input_required(result: Payload) -> InputRequests | str:
    """Read a result that asks, or say what is wrong with it."""
    members = object_members(result) or {}
    asked = object_members(members.get("inputRequests", EMPTY))
    state = members.get(STATE)
    if asked is None or len(asked) > QUESTIONS_MAX:
        return "a result that asks something, and not by questions"
    if state is not None and read_string(state) is None:
        return "a result that asks something, with a state that is no string"
    if not asked and state is None:
        return "a result that asks something, and does not say what"
    questions: dict[str, Question] = {}
    for key, raw in asked.items():
        question = _read_question(raw)
        if question is None:
            return f"a result that asks something unknown ({key[:40]!r})"
        questions[key] = question
    return InputRequests(questions, state)


def _read_question(raw: msgspec.Raw) -> Question | None:
    members = object_members(raw) or {}
    method = read_string(members.get("method"))
    params = members.get("params", EMPTY)
    return Question(method, params) if method in QUESTIONS and is_object(params) else None


def as_legacy_request(question: Question, id: str) -> Question:
    """The question as an earlier caller takes it: until 2026-07-28 one that sends the user elsewhere had an id."""
    members = object_members(question.params) or {}
    if question.method != "elicitation/create" or read_string(members.get("mode")) != "url":
        return question
    params = msgspec.Raw(render({ELICITATION_ID: msgspec.json.encode(id), **members}))
    return msgspec.structs.replace(question, params=params)


_LIST = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])


def read_url_elicitations(data: msgspec.Raw | None) -> list[msgspec.Raw]:
    """The ids of the questions in an error that sends the user elsewhere first; none if it is not written so."""
    members = {} if data is None else object_members(data) or {}
    try:
        told = _LIST.decode(members.get("elicitations", b"[]"))
    except msgspec.MsgspecError:
        return []
    return [members[ELICITATION_ID] for members in told[:QUESTIONS_MAX] if ELICITATION_ID in members]


def write_input_required(questions: Mapping[str, Question], state: str) -> bytes:
    """A result that asks these questions."""
    asked = {
        key: render({"method": msgspec.json.encode(question.method), "params": question.params})
        for key, question in questions.items()
    }
    return render(
        {"resultType": b'"input_required"', "inputRequests": render(asked), STATE: msgspec.json.encode(state)}
    )


def with_state(result: Payload, state: str) -> bytes:
    """A server's own result that asks, with another state in it."""
    return render({**(object_members(result) or {}), STATE: msgspec.json.encode(state)})


def read_responses(extra: Members) -> dict[str, msgspec.Raw] | None:
    """The answers that a caller comes back with; None if they are no answers."""
    return object_members(extra[RESPONSES]) if RESPONSES in extra else {}
