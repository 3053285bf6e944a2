"""Functions that a hub runs in its own process and that return whatever is heavy: a server of T71."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from isthmus.telemetry.loop_lag import LoopMonitor
from tests.security import heavy_shapes

_monitors: list[LoopMonitor] = []


async def busy() -> dict[str, int]:
    """Return how often the hub's event loop was busy for longer than so many seconds, since the first call."""
    if not _monitors:
        _monitors.append(LoopMonitor())
        _monitors[0].start()
    found: dict[str, int] = _monitors[0].figures()["busy_over"]
    return found


def give(shape: str, size: int) -> dict[str, Any]:
    """Return a value of a shape."""
    return {"value": _value(shape, size)}


def tell(shape: str, size: int) -> str:
    """Return a text."""
    return str(_value(shape, size))


@cache
def _value(shape: str, size: int) -> Any:
    # What a function does before it returns is its own: while it parses, it holds the interpreter's lock.
    return json.loads(heavy_shapes.value(shape, size))


def take(**_: Any) -> str:
    """Take whatever is given."""
    return "done"
