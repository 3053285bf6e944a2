"""What happens during a call, before its outcome."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import msgspec

from isthmus.model.names import ServerName

LogLevel: TypeAlias = Literal["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]
LOG_LEVELS: tuple[LogLevel, ...] = get_args(LogLevel)
"""From the most talkative to the gravest."""


class Progress(msgspec.Struct, frozen=True):
    """A progress report as the server gave it (`progress`, `total`, `message`, …), without its token.

    Tokens belong to one wire: the link removes its own, the face adds the caller's.
    """

    members: dict[str, msgspec.Raw]
    task_of: ServerName | None = None
    """It may name a task, by the id that this server gave it."""


class Log(msgspec.Struct, frozen=True):
    """A line that the server logged while it worked on the call, as it gave it (`level`, `logger`, `data`)."""

    level: LogLevel
    members: dict[str, msgspec.Raw]
    task_of: ServerName | None = None
    """As with progress."""


Event: TypeAlias = Progress | Log


def is_at_least(level: LogLevel, wanted: LogLevel) -> bool:
    """Whether a line of this level is grave enough for somebody who wants `wanted` and above."""
    return LOG_LEVELS.index(level) >= LOG_LEVELS.index(wanted)
