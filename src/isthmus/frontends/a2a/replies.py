"""What a caller's message says to a question that its task was asked: an answer for the server, or what is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec
from msgspec import Raw

from isthmus.core.catalog.schema import Unchecked, compile_check
from isthmus.core.tasks.record import Asked
from isthmus.frontends.a2a.instructions import object_in
from isthmus.model.conversation import ABSENT, Data, Message, Text
from isthmus.model.questions import Answered, Declined, Reply
from isthmus.wire.jsonrpc import object_members, render
from isthmus.wire.mcp.messages import read_string

Action: TypeAlias = Literal["accept", "decline", "cancel"]
ACTIONS: tuple[Action, ...] = ("accept", "decline", "cancel")

REFUSALS = ("decline", "cancel")

ELICIT = "elicitation/create"

SCHEMA_BYTES = 64 * 1024
"""Longer ones are no forms for people."""

WORDS: Mapping[str, Action] = {"decline": "decline", "no": "decline", "cancel": "cancel", "stop": "cancel"}
"""Short answers in plain words; `yes` and `accept` are answers only where nothing but a text has to be filled in."""


def read_reply(asked: Asked, message: Message) -> Reply | str:
    """The reply that a message holds, or what is wrong with it, in which case the question stays open."""
    if asked.method == ELICIT:
        return _read_elicited(asked, message)
    given = _first_data(message)
    if given is not None:
        return Answered(given)
    if _word(message) in WORDS:
        return Declined(-1, "The caller declined")
    return f"{asked.method} is answered by a data part that is its result"


def is_refusal(asked: Asked, message: Message) -> bool:
    """Whether a message declines what is asked."""
    reply = read_reply(asked, message)
    return isinstance(reply, Answered) and read_string((object_members(reply.result) or {}).get("action")) in REFUSALS


def _read_elicited(asked: Asked, message: Message) -> Reply | str:
    given = _first_data(message)
    if given is None:
        return _read_words(asked, message)
    members = object_members(given) or {}
    action = read_string(members.get("action"))
    if action in ACTIONS and members.keys() <= {"action", "content", "_meta"}:
        return _answer(asked, action, members.get("content"))
    return _answer(asked, "accept", given)


def _read_words(asked: Asked, message: Message) -> Reply | str:
    word = _word(message)
    if word in WORDS:
        return _answer(asked, WORDS[word], None)
    if (field := _only_text(asked)) is not None and (text := _text(message)):
        return _answer(asked, "accept", Raw(msgspec.json.encode({field: text})))
    if word in ("accept", "yes", "ok", "done"):
        return _answer(asked, "accept", None)
    return 'answer with a data part: the values asked for, or {"action": "decline"}'


def _only_text(asked: Asked) -> str | None:
    """The one text that is asked for, if that is all: then plain words are the answer."""
    schema = object_members((object_members(asked.params) or {}).get("requestedSchema", ABSENT)) or {}
    fields = object_members(schema.get("properties", ABSENT)) or {}
    if len(fields) != 1:
        return None
    [(name, field)] = fields.items()
    return name if read_string((object_members(field) or {}).get("type")) == "string" else None


def _answer(asked: Asked, action: str, content: Raw | None) -> Reply | str:
    if action != "accept":
        return Answered(Raw(render({"action": msgspec.json.encode(action)})))
    params = object_members(asked.params) or {}
    if read_string(params.get("mode")) == "url":
        return Answered(Raw(b'{"action":"accept"}'))
    content = content if content is not None else Raw(b"{}")
    schema = params.get("requestedSchema")
    if schema is not None and (wrong := _check(schema, content)) is not None:
        return f"the answer does not fit what was asked for: {wrong}"
    return Answered(Raw(render({"action": b'"accept"', "content": content})))


def _check(schema: Raw, content: Raw) -> str | None:
    try:
        return compile_check(schema, limit_bytes=SCHEMA_BYTES)(content)
    except Unchecked:
        return None  # the server makes its own check


def _first_data(message: Message) -> Raw | None:
    """The first data part, or text that is a JSON object."""
    for part in message.parts:
        given = part.data if isinstance(part, Data) else object_in(part)
        if given:
            return given
    return None


def _text(message: Message) -> str:
    return "\n".join(part.text for part in message.parts if isinstance(part, Text)).strip()


def _word(message: Message) -> str:
    return _text(message).lower().rstrip(".!")
