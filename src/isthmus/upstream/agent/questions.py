"""What an agent needs to know before it goes on, as a question of MCP, and the answer as a message to it.

Pure. Another hub passes a server's question on as it is, and takes the answer as it is. Any other agent asks in words:
its caller is asked for a text, or for the fields of a schema if the agent gives one. Called by commissions.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec
from msgspec import Raw

from isthmus.model.conversation import Data, Part, Text
from isthmus.model.questions import Question
from isthmus.wire.jsonrpc import object_members, render
from isthmus.wire.mcp.inputs import QUESTIONS
from isthmus.wire.mcp.messages import is_object, read_string

ELICIT = "elicitation/create"
SCHEMA_KEYS = ("requestedSchema", "schema", "inputSchema", "input_schema")
"""Where agents put the schema of what they want to know."""

FLAT = frozenset({"string", "number", "integer", "boolean"})
"""What a field of a form may be."""

NO_WORDS = "The agent needs more input."
ANSWER = "message"
"""The field of a form that only asks for words."""

_encode = msgspec.json.Encoder().encode
_WORDS = _encode(
    {
        "type": "object",
        "properties": {ANSWER: {"type": "string", "title": "Answer"}},
        "required": [ANSWER],
    }
)


class Asking(NamedTuple):
    """A question, and how its answer is told the agent."""

    question: Question
    is_passed_on: bool = False
    """The answer is told as it is: it is another hub's question."""
    is_worded: bool = False
    """The answer is one text."""


def asking_of(parts: Iterable[Part]) -> Asking:
    """The question that an agent's message asks."""
    parts = tuple(parts)
    objects = [members for part in parts if isinstance(part, Data) and (members := object_members(part.data))]
    for members in objects:
        if (method := read_string(members.get("method"))) in QUESTIONS and is_object(members.get("params", Raw())):
            return Asking(Question(method, members["params"]), is_passed_on=True)
    words = _encode("\n".join(part.text for part in parts if isinstance(part, Text)) or NO_WORDS)
    schema = next((schema for members in objects if (schema := _schema(members))), None)
    wanted = schema or _WORDS
    params = Raw(render({"message": words, "requestedSchema": wanted}))
    return Asking(Question(ELICIT, params), is_worded=schema is None)


def _schema(members: dict[str, Raw]) -> bytes | None:
    """A schema that a form can be made of."""
    named = [members[key] for key in SCHEMA_KEYS if key in members]
    for schema in (*named, Raw(render(members))):
        if _is_form(schema):
            return bytes(schema)
    return None


class _Field(msgspec.Struct):
    type: str = ""


class _Form(msgspec.Struct):
    type: str
    properties: dict[str, _Field]


_FORM = msgspec.json.Decoder(_Form)


def _is_form(schema: Raw) -> bool:
    try:
        form = _FORM.decode(schema)
    except msgspec.MsgspecError:
        return False
    return form.type == "object" and all(field.type in FLAT for field in form.properties.values())


class _Elicited(msgspec.Struct):
    action: str = ""
    content: dict[str, Raw] | None = None


_ELICITED = msgspec.json.Decoder(_Elicited)


def answer_of(asking: Asking, result: Raw) -> tuple[Part, ...] | None:
    """The parts that tell an agent the answer; None if there is none: the caller declined."""
    if asking.is_passed_on:
        return (Data(result, "application/json"),)
    try:
        elicited = _ELICITED.decode(result)
    except msgspec.MsgspecError:
        return None
    if elicited.action != "accept":
        return None
    content = elicited.content or {}
    text = read_string(content.get(ANSWER)) if asking.is_worded else None
    return (Data(Raw(render(content)), "application/json"),) if text is None else (Text(text),)
