"""How a task stands, as its server last said: what a call became whose result takes long."""

from __future__ import annotations

import msgspec


class TaskState(msgspec.Struct, frozen=True):
    """A task as its server told it, the id in it its server's own."""

    id: str
    status: str
    is_over: bool
    """Whether it has come to its end, whichever that is."""
    ttl_seconds: float | None
    """How long its server keeps it from its creation on; None if it does not say, or for ever."""
    members: dict[str, msgspec.Raw]
