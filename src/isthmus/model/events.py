"""What happens during a call, before its outcome."""

from __future__ import annotations

from typing import TypeAlias

import msgspec


class Progress(msgspec.Struct, frozen=True):
    """A progress report as the server gave it (`progress`, `total`, `message`, …), without its token.

    Tokens belong to one wire: the link removes its own, the face adds the caller's.
    """

    members: dict[str, msgspec.Raw]


Event: TypeAlias = Progress
