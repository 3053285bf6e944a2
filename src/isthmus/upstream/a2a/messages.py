"""The arguments of a call as what an agent is told. Pure; called by the link."""

from __future__ import annotations

import msgspec
from msgspec import Raw

from isthmus.model.conversation import ABSENT, Data, Part, Text
from isthmus.upstream.agent.skills import Offered
from isthmus.wire.a2a.parts import said

SKILL = "skill"
"""Where a message's metadata names the skill that is meant: agents have no other place for it, and need not look."""


class Told(msgspec.Struct, frozen=True):
    """What the first message of a commission says, and where it belongs."""

    parts: tuple[Part, ...]
    metadata: Raw = ABSENT
    task: str = ""
    context: str = ""
    is_worded: bool = True
    """The tool takes words, and the task that they are about."""


class _Words(msgspec.Struct):
    message: str
    data: Raw = ABSENT
    task_id: str | None = None
    context_id: str | None = None


_WORDS = msgspec.json.Decoder(_Words)


def told_by(offered: Offered, arguments: Raw) -> Told | str:
    """What the arguments of a tool tell its agent, or what is wrong with them."""
    metadata = Raw(msgspec.json.encode({SKILL: offered.skill})) if offered.skill else ABSENT
    if not offered.is_worded:
        return Told((Data(arguments, "application/json"),), metadata, is_worded=False)
    try:
        words = _WORDS.decode(arguments)
    except msgspec.MsgspecError as error:
        return str(error)
    data = said(words.data)
    parts: tuple[Part, ...] = (Text(words.message),)
    if data:
        parts = (*parts, Data(data, "application/json"))
    return Told(parts, metadata, words.task_id or "", words.context_id or "")
