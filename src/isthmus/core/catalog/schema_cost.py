"""How much work it takes to validate arguments against a schema, estimated before any of it is done.

Validation holds the event loop, and schemas come from servers. A few hundred bytes of definitions that each refer
twice to the next take hours to validate against anything; a schema of 12 KB can take milliseconds for every number of
a long array. `measure` follows each reference once and returns bounds. It rejects schemas whose work it cannot bound:
the hub then does not validate, and the server's own check stands alone. Called by `argument_validation` before
it compiles.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import unquote

SUBSCHEMAS_MAX = 100_000
"""Subschemas that one value may meet, a millisecond's work; large real schemas unfold to a few thousand."""

_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")


KEYWORD_NS = 30
"""Time to apply one keyword to one value, measured with jsonschema-rs 0.30 and newer on a slow core."""

PATTERN_BYTE_NS = 6
"""Time for a pattern to read one byte of a string; patterns run in linear time."""

VALUE_NS = 100
"""Time to decode one value into a Python object and free it again."""

MULTIPLE_OF = (450, 50)
"""Keywords and patterns that take as long as one `multipleOf`: it calculates with exact fractions."""

FORMAT_PATTERNS = 2
UNIQUE_KEYWORDS = 15
"""`uniqueItems` hashes everything below it."""

UNEVALUATED_FACTOR = 3
"""`unevaluatedProperties` evaluates all schemas beside it once more, so that nested ones multiply."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Bounds on the work of one schema."""

    per_value: int
    """The most keywords that apply to a single value of the arguments."""
    per_byte: int
    """The most patterns that read a single byte of the arguments."""
    keywords: int
    """Keywords in the schema text, which determine the cost of compiling."""
    patterns: int
    """Patterns in the schema text."""

    def nanoseconds(self, values: int, size: int) -> int:
        """The longest time that arguments of so many values and bytes take."""
        return (self.per_value * KEYWORD_NS + VALUE_NS) * values + self.per_byte * PATTERN_BYTE_NS * size

    def bytes_within(self, nanoseconds: int) -> int:
        """The size up to which any arguments take no longer: a value needs two bytes at least."""
        return 2 * nanoseconds // (self.per_value * KEYWORD_NS + VALUE_NS + 2 * self.per_byte * PATTERN_BYTE_NS)


def measure(schema: object) -> Cost:
    """Bound the work of a schema.

    Raises:
        ValueError: it unfolds to too much, branches into itself, or has a reference that is not a JSON pointer.
    """
    expansion = _Expansion(schema)
    total = expansion.of(schema)
    keywords, patterns = _size(schema)
    work = _Applied(expansion)
    here, below = work.of(schema)
    most = here.or_more(below)
    if work.is_recursive:  # everything may apply at every level
        repeated = UNEVALUATED_FACTOR ** min(work.unevaluated, 20)
        most = most.or_more(_Work(total * 4 * repeated, patterns * total * repeated))
    return Cost(most.keywords, most.patterns, keywords, patterns)


class _Work(NamedTuple):
    """Keywords and patterns that one value meets."""

    keywords: int = 0
    patterns: int = 0

    def and_also(self, other: _Work) -> _Work:
        return _Work(self.keywords + other.keywords, self.patterns + other.patterns)

    def or_more(self, other: _Work) -> _Work:
        return _Work(max(self.keywords, other.keywords), max(self.patterns, other.patterns))

    def times(self, factor: int) -> _Work:
        return _Work(self.keywords * factor, self.patterns * factor)


class _Applied:
    """Which keywords apply to one value: those of one place, and those of the place below that has most.

    Schemas that apply to the same value (`allOf`, `$ref`, …) add up. Of the members of `properties`, or the elements of
    `prefixItems`, one applies to each value below.
    """

    _SAME_VALUE = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependencies")
    _ONE_OF = ("properties", "prefixItems")
    _EACH = (
        "items", "additionalItems", "additionalProperties", "contains", "propertyNames", "patternProperties",
        "unevaluatedItems", "unevaluatedProperties",
    )  # fmt: skip

    def __init__(self, expansion: _Expansion) -> None:
        self._expansion = expansion
        self._known: dict[int, tuple[_Work, _Work]] = {}
        self._open: set[int] = set()
        self.is_recursive = False
        self.unevaluated = 0

    def of(self, schema: object) -> tuple[_Work, _Work]:
        """The work for a value at this schema, and for any one value below it."""
        if not isinstance(schema, dict):
            return _Work(1), _Work()
        key = id(schema)
        if key in self._known:
            return self._known[key]
        if key in self._open:
            self.is_recursive = True
            return _Work(), _Work()
        self._open.add(key)
        # Below, the cost per member or element besides their own schemas.
        named = schema.get("patternProperties")
        count = len(named) if isinstance(named, dict) else 0
        here, below = _own_work(schema), _Work(UNIQUE_KEYWORDS * bool(schema.get("uniqueItems")) + count, count)
        for same in self._same_value(schema):
            more, deeper = self.of(same)
            here, below = here.and_also(more), below.and_also(deeper)
        for keyword in self._ONE_OF:
            most = _Work()
            for each in _subschemas(schema.get(keyword), is_map=keyword == "properties"):
                most = most.or_more(self._at_most(each))
            below = below.and_also(most)
        for keyword in self._EACH:
            for each in _subschemas(schema.get(keyword), is_map=keyword == "patternProperties"):
                below = below.and_also(self._at_most(each))
        if "unevaluatedProperties" in schema or "unevaluatedItems" in schema:
            here, below = here.times(UNEVALUATED_FACTOR), below.times(UNEVALUATED_FACTOR)
            self.unevaluated += 1
        self._open.discard(key)
        self._known[key] = here, below
        return here, below

    def _at_most(self, schema: object) -> _Work:
        here, below = self.of(schema)
        return here.or_more(below)

    def _same_value(self, schema: dict[str, Any]) -> Iterator[object]:
        for keyword in self._SAME_VALUE:
            is_map = keyword in {"dependentSchemas", "dependencies"}
            yield from _subschemas(schema.get(keyword), is_map=is_map)
        for keyword in _REFERENCES:
            if isinstance(schema.get(keyword), str):
                yield self._expansion.target(schema[keyword])


def _subschemas(value: object, *, is_map: bool = False) -> Iterator[object]:
    """The schemas of a keyword: one, a list, or some by name."""
    if isinstance(value, list):
        yield from value
    elif isinstance(value, dict) and is_map:
        yield from value.values()
    elif value is not None:
        yield value


def _own_work(schema: dict[str, Any]) -> _Work:
    """The cost of the keywords of one schema that only look at the value itself."""
    lists = (schema.get("enum"), schema.get("const"), schema.get("required"), schema.get("dependentRequired"))
    keywords = 1 + len(schema) + sum(_nodes(each) for each in lists)
    patterns = ("pattern" in schema) + FORMAT_PATTERNS * ("format" in schema)
    if "multipleOf" in schema:
        keywords, patterns = keywords + MULTIPLE_OF[0], patterns + MULTIPLE_OF[1]
    return _Work(keywords, patterns)


def _nodes(value: object) -> int:
    if isinstance(value, dict):
        return sum(1 + _nodes(member) for member in value.values())
    return sum(1 + _nodes(element) for element in value) if isinstance(value, list) else 0


def _size(schema: object) -> tuple[int, int]:
    """The number of members and elements of a schema, and of its patterns."""
    if isinstance(schema, list):
        inner = [_size(each) for each in schema]
        return len(schema) + sum(size for size, _ in inner), sum(patterns for _, patterns in inner)
    if not isinstance(schema, dict):
        return 0, 0
    named = schema.get("patternProperties")
    own = isinstance(schema.get("pattern"), str) + (len(named) if isinstance(named, dict) else 0)
    inner = [_size(each) for each in schema.values()]
    return len(schema) + sum(size for size, _ in inner), own + sum(patterns for _, patterns in inner)


class _Expansion:
    """Counts subschemas; a counted definition is not entered again, unless it refers to an enclosing one."""

    def __init__(self, root: object) -> None:
        self._root = root
        is_old = isinstance(root, dict) and "draft-04" in str(root.get("$schema"))
        self._anchors = ("id", "$id") if is_old else ("$id",)
        self._sizes: dict[int, int] = {}
        self._returns: dict[int, int] = {id(root): 0}
        """How often each definition that is being counted was met again inside itself."""
        self._outermost = 0
        """How many of them were open when the outermost one that was met again had been entered."""

    def of(self, node: object) -> int:
        """The number of subschemas in a part of the schema, including those that it refers to."""
        total = 0
        if isinstance(node, list):
            total = sum(self.of(element) for element in node)
        elif isinstance(node, dict):
            total = 1 + sum(self.of(member) for member in node.values())
            if node is not self._root and any(isinstance(node.get(key), str) for key in self._anchors):
                raise ValueError("a part of it has an id, which would be the base of its references")
            found = [node[key] for key in _REFERENCES if isinstance(node.get(key), str)]
            total += sum(self._of_target(self.target(reference)) for reference in found)
        if total > SUBSCHEMAS_MAX:
            raise ValueError(f"it unfolds to over {SUBSCHEMAS_MAX} subschemas")
        return total

    def _of_target(self, target: object) -> int:
        key = id(target)
        if key in self._sizes:
            return self._sizes[key]
        if key in self._returns:
            self._returns[key] += 1
            if self._returns[key] > 1:
                raise ValueError("it refers to itself more than once, which may double the work at every level")
            self._outermost = min(self._outermost, list(self._returns).index(key))
            return 1
        depth = len(self._returns)
        self._returns[key] = 0
        outermost, self._outermost = self._outermost, depth
        size = self.of(target)
        del self._returns[key]
        if self._outermost >= depth:  # it refers to nothing around it, so it counts the same everywhere
            self._sizes[key] = size
        self._outermost = min(outermost, self._outermost)
        return size

    def target(self, reference: str) -> object:
        """The target of a reference.

        Raises:
            ValueError: it is outside of the schema, or does not exist.
        """
        if not reference.startswith("#/") and reference != "#":
            raise ValueError(f"it refers to {reference[:100]}, which is not followed")
        found = self._root
        for step in unquote(reference[1:]).split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict) and name in found:
                found = found[name]
            elif isinstance(found, list) and name.isdecimal() and int(name) < len(found):
                found = found[int(name)]
            else:
                raise ValueError(f"it refers to {reference[:100]}, which is not there")
        return found
