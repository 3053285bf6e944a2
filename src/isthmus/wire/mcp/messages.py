"""What both eras of MCP write alike: `Implementation`, notifications, and readers of small JSON values.

Frontends and links use it, in opposite directions.
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
"""The notification of a change of each list."""

TOPIC_OF: dict[str, Topic] = {method: topic for topic, method in CHANGED.items()}


class Implementation(msgspec.Struct, frozen=True, omit_defaults=True):
    """The name and version of a client or server."""

    name: str
    version: str
    title: str | None = None


def progress_params(token: Payload, members: Mapping[str, Payload]) -> bytes:
    """Write a progress notification's parameters under the receiver's own token."""
    return render({PROGRESS_TOKEN: token, **members})


def read_progress(params: Members, server: ServerName) -> Progress:
    """A server's progress notification, without the hub's progress token."""
    members = {key: value for key, value in params.items() if key != PROGRESS_TOKEN}
    return Progress(members, server if "_meta" in members else None)


def token_of(params: Members) -> int:
    """The progress token of a notification, which is a request id of the hub; -1 if it is anything else."""
    try:
        return int(bytes(params.get(PROGRESS_TOKEN, b"")))
    except ValueError:
        return -1


def cancelled_params(request_id: Payload, reason: str) -> bytes:
    """Write a cancellation's parameters."""
    return b"".join((b'{"requestId":', request_id, b',"reason":', msgspec.json.encode(reason), b"}"))


def read_log(params: Members) -> LogMessage | None:
    """Read a server's log message; None if it has no level or no data."""
    level = read_level(params.get("level"))
    return None if level is None or "data" not in params else LogMessage(level, params)


def read_level(raw: msgspec.Raw | None) -> LogLevel | None:
    """A log level; None if it is absent or invalid."""
    if raw is None:
        return None
    text = read_string(raw)
    return next((level for level in LOG_LEVELS if level == text), None)


def read_string(raw: msgspec.Raw | None) -> str | None:
    """The value of a JSON string; None if it is absent or not a string."""
    if raw is None:
        return None
    try:
        return _STRING.decode(raw)
    except msgspec.MsgspecError:
        return None


_STRING = msgspec.json.Decoder(str)


def read_seconds(raw: msgspec.Raw) -> float | None:
    """Milliseconds as seconds, at least 0; None if it is not a number."""
    try:
        return max(_NUMBER.decode(raw), 0.0) / 1000
    except msgspec.MsgspecError:
        return None


_NUMBER = msgspec.json.Decoder(float)


_BRACE = ord("{")


def is_object(raw: msgspec.Raw) -> bool:
    """Whether a checked payload is an object."""
    return bool(raw) and memoryview(raw)[0] == _BRACE
