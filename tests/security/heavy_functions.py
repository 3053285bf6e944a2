"""Functions that a hub runs in its own process and that return whatever is heavy: a server of T71."""

from __future__ import annotations

import json
from typing import Any

from tests.security import heavy_shapes


def give(shape: str, size: int) -> dict[str, Any]:
    """Return a value of a shape."""
    return {"value": json.loads(heavy_shapes.value(shape, size))}


def tell(shape: str, size: int) -> str:
    """Return a text."""
    return str(json.loads(heavy_shapes.value(shape, size)))


def take(**_: Any) -> str:
    """Take whatever is given."""
    return "done"
