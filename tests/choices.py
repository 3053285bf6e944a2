"""Which cells of a large matrix `make test` runs: enough that each fact is seen once. `ISTHMUS_FULL=1` runs all."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

IS_FULL = bool(os.environ.get("ISTHMUS_FULL") or os.environ.get("ISTHMUS_SOAK"))

Chosen = TypeVar("Chosen")


def representative(cells: Iterable[Chosen], facts: Callable[[Chosen], Iterable[Hashable]]) -> tuple[Chosen, ...]:
    """Few cells that together have every fact of all of them, the same ones each time; all with `ISTHMUS_FULL`.

    A fact is what a cell can show, such as a pair of a client's era and a server's transport.
    """
    left = {cell: set(facts(cell)) for cell in cells}
    if IS_FULL:
        return tuple(left)
    chosen: set[Chosen] = set()
    while new := frozenset(left[best := max(left, key=lambda cell: len(left[cell]))]):
        chosen.add(best)
        for facts_left in left.values():
            facts_left.difference_update(new)
    return tuple(cell for cell in left if cell in chosen)
