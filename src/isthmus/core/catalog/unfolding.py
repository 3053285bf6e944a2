"""How much work a schema can make, found without doing the work.

A few hundred bytes of definitions that each refer twice to the next are a schema that takes hours to check against
anything, and the check runs where every other call waits. So references are followed here first, each once. What
cannot be bounded this way is refused, which costs only the early check: a server checks its arguments itself.
Called by `catalog.schema` before it compiles.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

SUBSCHEMAS_MAX = 100_000
"""Subschemas that one value may meet, a millisecond's work; large real schemas unfold to a few thousand."""

_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")


def check_bounded(schema: object) -> None:
    """Accept a schema whose work grows no faster than the arguments do.

    Raises:
        ValueError: it unfolds to too much, branches into itself, or refers to something by other than its place.
    """
    _Unfolding(schema).of(schema)


class _Unfolding:
    """Counts subschemas; a definition that was counted is not entered again, unless it leads back out of itself."""

    def __init__(self, root: object) -> None:
        self._root = root
        is_old = isinstance(root, dict) and "draft-04" in str(root.get("$schema"))
        self._anchors = ("id", "$id") if is_old else ("$id",)
        self._sizes: dict[int, int] = {}
        self._returns: dict[int, int] = {id(root): 0}
        """How often each definition that is being counted was met again inside of itself."""
        self._outermost = 0
        """How many of them were open when the outermost one that was met again had been entered."""

    def of(self, node: object) -> int:
        """The number of subschemas in a part of the schema, with those that it refers to."""
        total = 0
        if isinstance(node, list):
            total = sum(self.of(element) for element in node)
        elif isinstance(node, dict):
            total = 1 + sum(self.of(member) for member in node.values()) + self._of_references(node)
        if total > SUBSCHEMAS_MAX:
            raise ValueError(f"it unfolds to over {SUBSCHEMAS_MAX} subschemas")
        return total

    def _of_references(self, node: dict[str, Any]) -> int:
        if node is not self._root and any(isinstance(node.get(key), str) for key in self._anchors):
            raise ValueError("a part of it has an id, from which its references would be read")
        found = [node[key] for key in _REFERENCES if isinstance(node.get(key), str)]
        return sum(self._of_target(self._target(reference)) for reference in found)

    def _of_target(self, target: object) -> int:
        key = id(target)
        if key in self._sizes:
            return self._sizes[key]
        if key in self._returns:
            return self._again(key)
        depth = len(self._returns)
        self._returns[key] = 0
        outermost, self._outermost = self._outermost, depth
        size = self.of(target)
        del self._returns[key]
        if self._outermost >= depth:  # nothing around it was met, so it counts the same wherever it is met
            self._sizes[key] = size
        self._outermost = min(outermost, self._outermost)
        return size

    def _again(self, key: int) -> int:
        self._returns[key] += 1
        if self._returns[key] > 1:
            raise ValueError("it refers to itself more than once, which may double the work at every level")
        self._outermost = min(self._outermost, list(self._returns).index(key))
        return 1

    def _target(self, reference: str) -> object:
        if not reference.startswith("#/") and reference != "#":
            raise ValueError(f"it refers to {reference[:100]}, which is not followed")
        found = self._root
        for step in unquote(reference[1:]).split("/")[1:]:
            found = _member(found, step.replace("~1", "/").replace("~0", "~"), reference)
        return found


def _member(node: object, step: str, reference: str) -> object:
    if isinstance(node, dict) and step in node:
        return node[step]
    if isinstance(node, list) and step.isdecimal() and int(step) < len(node):
        return node[int(step)]
    raise ValueError(f"it refers to {reference[:100]}, which is not there")
