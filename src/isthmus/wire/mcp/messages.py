"""What both eras of MCP write alike: who speaks, and the notifications of both directions.

Used by faces (to read a caller's and write ours) and by links (the other way round).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from isthmus.model.calls import LOG_LEVELS, LogLevel, LogMessage, Progress
from isthmus.model.features import Topic
from isthmus.model.names import ServerName
from isthmus.wire.jsonrpc import Payload, render

Members: TypeAlias = dict[str, msgspec.Raw]

PROGRESS = "notifications/progress"
CANCELLED = "notifications/cancelled"
LOGGED = "notifications/message"
UPDATED = "notifications/resources/updated"
TOOLS_CHANGED = "notifications/tools/list_changed"
PROMPTS_CHANGED = "notifications/prompts/list_changed"
RESOURCES_CHANGED = "notifications/resources/list_changed"
PROGRESS_TOKEN = "progressToken"

CHANGED: dict[Topic, str] = {
    "tools": TOOLS_CHANGED,
    "prompts": PROMPTS_CHANGED,
    "resources": RESOURCES_CHANGED,
}
"""How a change of each list is announced."""

TOPIC_OF: dict[str, Topic] = {method: topic for topic, method in CHANGED.items()}


class Implementation(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who one end says it is."""

    name: str
    version: str
    title: str | None = None


def progress_params(token: Payload, members: Mapping[str, Payload]) -> bytes:
    """Write a progress notification's parameters under the receiver's own token."""
    return render({PROGRESS_TOKEN: token, **members})


def read_progress(params: Members, server: ServerName) -> Progress:
    """A server's progress report, without the token of its hop."""
    members = {key: value for key, value in params.items() if key != PROGRESS_TOKEN}
    return Progress(members, server if "_meta" in members else None)


def token_of(params: Members) -> int:
    """The token of a progress report, which is always an id of ours; -1, which is none, if it is anything else."""
    try:
        return int(bytes(params.get(PROGRESS_TOKEN, b"")))
    except ValueError:
        return -1


def cancelled_params(request_id: Payload, reason: str) -> bytes:
    """Write a cancellation's parameters."""
    return b"".join((b'{"requestId":', request_id, b',"reason":', msgspec.json.encode(reason), b"}"))


def read_log(params: Members) -> LogMessage | None:
    """Read a line that a server logged; None if it has no level or nothing to say."""
    level = read_level(params.get("level"))
    return None if level is None or "data" not in params else LogMessage(level, params)


def read_level(raw: msgspec.Raw | None) -> LogLevel | None:
    """A level's name; None if it is absent or none."""
    if raw is None:
        return None
    text = read_string(raw)
    return next((level for level in LOG_LEVELS if level == text), None)


def read_string(raw: msgspec.Raw | None) -> str | None:
    """A JSON string's value; None if it is absent or no string."""
    if raw is None:
        return None
    try:
        return _STRING.decode(raw)
    except msgspec.MsgspecError:
        return None


_STRING = msgspec.json.Decoder(str)


def read_seconds(raw: msgspec.Raw) -> float | None:
    """A number of milliseconds as seconds, none below zero; None if it is no number."""
    try:
        return max(_NUMBER.decode(raw), 0.0) / 1000
    except msgspec.MsgspecError:
        return None


_NUMBER = msgspec.json.Decoder(float)


_BRACE = ord("{")


def is_object(raw: msgspec.Raw) -> bool:
    """Whether a checked payload is an object."""
    return bool(raw) and memoryview(raw)[0] == _BRACE
