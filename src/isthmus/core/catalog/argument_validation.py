"""Checks arguments against a tool's own schema, which comes from a server and is not trusted.

No reference is fetched, patterns run in linear time, and size and work are bounded. If a schema cannot be used under
these rules, only the check here is skipped (`UnusableSchema`); the server still checks. A check that would block the
event loop for long returns `EXPENSIVE`, and a worker process does it (`core.ports.ArgumentValidator`).
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, NoReturn, Protocol
from urllib.parse import unquote

import jsonschema_rs
import msgspec

from isthmus.model.features import Tool
from isthmus.model.json_members import known_members

DETAIL_LENGTH_MAX = 300
"""An explanation may quote the value; a caller needs its beginning, not a megabyte."""

EXPLAINED_BYTES_MAX = 64 * 1024
"""For longer arguments there is no explanation: finding one copies and quotes all of them."""

BUDGET_NS = 6_000_000
"""How long one check may block the event loop, by its estimate, which is an upper bound: about twice the real time."""

INLINE_SCHEMA_BYTES = 32 * 1024
INLINE_KEYWORDS = 4_000
INLINE_PATTERNS = 100
"""A schema with more of any of these takes over 10 ms to measure or compile, so only the worker does that."""


EXPENSIVE: Final = "schema too expensive: checking these arguments would take too long"
"""The result of a check that would block the event loop too long. Compare by identity: it is also the error text."""


class ArgumentCheck(Protocol):
    """Returns what is wrong with arguments, or None; `EXPENSIVE` if finding out takes too long here."""

    def __call__(self, arguments: msgspec.Raw) -> str | None: ...


PATTERN_BYTES_MAX = 1 << 20
"""The size of a compiled pattern."""


class UnusableSchema(ValueError):
    """The schema cannot be used for checking; the message says why."""


def compile_check(schema: msgspec.Raw, *, limit_bytes: int, budget: int | None = BUDGET_NS) -> ArgumentCheck:
    """Create the check of one tool. Without a `budget`, as in a worker, no check is too expensive.

    Raises:
        UnusableSchema: too large, not a schema, or one with outside references.
    """
    text = bytes(schema)
    if len(text) > limit_bytes:
        raise UnusableSchema(f"its schema has {len(text)} bytes, the limit is {limit_bytes}")
    if budget is not None and len(text) > INLINE_SCHEMA_BYTES:
        return _always_expensive
    try:
        decoded = msgspec.json.decode(text)
        cost = measure(decoded)
        is_small = cost.keywords <= INLINE_KEYWORDS and cost.patterns <= INLINE_PATTERNS
        if budget is not None and not is_small:
            return _always_expensive
        validator = _validator(decoded)
    except (ValueError, TypeError, msgspec.MsgspecError, RecursionError) as error:
        raise UnusableSchema(f"its schema cannot be used: {str(error)[:DETAIL_LENGTH_MAX]}") from error
    return _Check(validator, cost, budget, decoded)


def _validator(schema: Any) -> jsonschema_rs.Validator:
    def refuse(uri: str) -> NoReturn:
        raise ValueError(f"the schema refers to {uri}, which is not fetched")

    options = jsonschema_rs.RegexOptions(size_limit=PATTERN_BYTES_MAX, dfa_size_limit=PATTERN_BYTES_MAX)
    return jsonschema_rs.validator_for(schema, retriever=refuse, pattern_options=options)


def _always_expensive(arguments: msgspec.Raw) -> str:
    return EXPENSIVE


class _Check:
    __slots__ = ("_allows_any_object", "_budget", "_cheap_bytes", "_cost", "_names", "_plain", "_validator")

    def __init__(self, validator: jsonschema_rs.Validator, cost: Cost, budget: int | None, schema: Any) -> None:
        self._validator = validator
        self._allows_any_object = _allows_any_object(schema)
        self._names = _names_in(schema)
        self._plain = _plain_properties(schema)
        self._cost = cost
        self._budget = budget
        self._cheap_bytes = float("inf") if budget is None else cost.bytes_within(budget)

    def __call__(self, arguments: msgspec.Raw) -> str | None:
        size = len(memoryview(arguments))
        if size > self._cheap_bytes:
            if self._allows_any_object and bytes(memoryview(arguments)[:1]) == b"{":
                return None
            if (short := self._without_long_texts(arguments)) is not None:
                arguments = short
            elif self._is_expensive(arguments):
                return EXPENSIVE
        try:
            value = msgspec.json.decode(arguments)
        except (msgspec.MsgspecError, RecursionError, ValueError) as error:
            return f"not usable JSON ({error})"
        if size > EXPLAINED_BYTES_MAX:
            return None if self._validator.is_valid(value) else f"{size} bytes that do not fit the tool's inputSchema"
        try:
            # Not `iter_errors`: it finds all of them first, which under `anyOf` takes quadratic time.
            self._validator.validate(value)
        except jsonschema_rs.ValidationError as error:
            where = ".".join(str(step) for step in error.instance_path)
            message = self._unknown_arguments(error, value) or _surplus_message(error, value) or error.message
            return (f"{where}: {message}" if where else message)[:DETAIL_LENGTH_MAX]
        return None

    def _without_long_texts(self, arguments: msgspec.Raw) -> msgspec.Raw | None:
        """Short arguments that are as valid as the given long ones; None if they cannot be shortened.

        The content does not matter of members that the schema does not name, and of members that may be any text.
        """
        members = None if self._plain is None else known_members(arguments)
        if members is None or self._plain is None:
            return None
        named = [(name, members[name]) for name in self._plain if name in members]
        texts = [
            (name, b'""' if self._plain[name] and bytes(memoryview(value)[:1]) == b'"' else bytes(value))
            for name, value in named
            if len(memoryview(value)) <= SHORT_BYTES or self._plain[name]
        ]
        if len(texts) < len(named) or sum(len(text) for _, text in texts) > SHORT_BYTES:
            return None
        return msgspec.Raw(b"{%b}" % b",".join(msgspec.json.encode(name) + b":" + text for name, text in texts))

    def _unknown_arguments(self, error: jsonschema_rs.ValidationError, value: Any) -> str | None:
        """A message about arguments that the tool does not have; None if it has all, or the error is inside of one."""
        if error.instance_path or not isinstance(value, dict) or not self._names:
            return None
        unknown = [name for name in value if name not in self._names]
        if not unknown:
            return None
        near = difflib.get_close_matches(unknown[0][:NAME_LENGTH_MAX], self._names, n=1)
        advice = f"did you mean {near[0]!r}?" if near else f"it takes {', '.join(self._names)}"
        is_only_unknown = "additionalProperties" in map(str, error.schema_path[-1:])
        missing = "" if is_only_unknown else f"{error.message}, and "
        return f"{missing}{unknown[0]!r} is not an argument of this tool; {advice}"

    def _is_expensive(self, arguments: msgspec.Raw) -> bool:
        # A long text as a member is one value. Elsewhere commas and brackets inside strings count too: the estimate
        # may be too high.
        size = len(memoryview(arguments))
        found = known_members(arguments)
        if found is None:
            try:
                found = _MEMBERS.decode(arguments)
            except msgspec.MsgspecError:
                found = {}
        # The decoder drops all but the last of equal keys. Members that do not fill the text prove nothing.
        written = sum(len(key.encode()) + len(memoryview(member)) + 4 for key, member in found.items())
        values = 1
        for member in found.values() if size - written < LAYOUT_BYTES_MAX else (arguments,):
            if bytes(memoryview(member)[:1]) == b'"':
                values += 1
                continue
            text = bytes(member)
            values += 1 + text.count(b",") + text.count(b"[") + text.count(b"{")
        return self._budget is not None and self._cost.nanoseconds(values, size) > self._budget


SHORT_BYTES = 64 * 1024
"""Arguments up to this size are checked whatever they contain."""

NAME_LENGTH_MAX = 64
"""How much of an unknown name is compared with the tool's arguments."""

LAYOUT_BYTES_MAX = 4096
"""Bytes between members that may be spaces; a dropped member of that size costs little."""

_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_NAMES_ELSEWHERE = frozenset({"patternProperties", "$ref", "allOf", "anyOf", "oneOf", "if", "dependentSchemas"})
_ANNOTATIONS = frozenset({"$schema", "$id", "$comment", "title", "description", "examples", "default"})


def _allows_any_object(schema: object) -> bool:
    """Whether every object fits: many tools have only `{"type": "object"}`."""
    if not isinstance(schema, dict):
        return schema is True
    rest = schema.keys() - _ANNOTATIONS
    return rest <= {"type"} and schema.get("type", "object") == "object"


def _plain_properties(schema: object) -> dict[str, bool] | None:
    """The properties of an object, and whether each may be any text; None if the schema says more than their types."""
    if not isinstance(schema, dict) or not schema.keys() - _ANNOTATIONS <= {"type", "properties", "required"}:
        return None
    properties = schema.get("properties", {})
    if not isinstance(properties, dict) or schema.get("type", "object") != "object":
        return None
    return {
        name: isinstance(each, dict) and each.keys() - _ANNOTATIONS == {"type"} and each["type"] == "string"
        for name, each in properties.items()
    }


def _names_in(schema: object) -> tuple[str, ...]:
    """The arguments of a tool; none for a schema whose names are only patterns, or are listed elsewhere too."""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict) or not isinstance(schema, dict) or schema.keys() & _NAMES_ELSEWHERE:
        return ()
    return tuple(properties)


def _surplus_message(error: jsonschema_rs.ValidationError, value: Any) -> str | None:
    """The unexpected members for a schema that allows none: the library's error has the value without the names."""
    is_closed = isinstance(error.kind, jsonschema_rs.ValidationErrorKind.FalseSchema)
    if not is_closed or error.schema_path[-1:] != ["additionalProperties"]:
        return None
    for step in error.instance_path:
        value = value[step]
    if not isinstance(value, dict):  # a property may have the name of the keyword
        return None
    names = ", ".join(f"'{name}'" for name in value)
    return f"Additional properties are not allowed ({names} {'was' if len(value) == 1 else 'were'} unexpected)"


class CheckCache:
    """Compiled checks by tool definition; each is compiled once, on the first call of its tool.

    Thousands of agents may run the same server program: they share one check.
    """

    def __init__(self, *, limit_bytes: int, capacity: int = 20_000) -> None:
        self._limit_bytes = limit_bytes
        self._capacity = capacity
        self._checks: dict[bytes, ArgumentCheck | None] = {}

    def check_for(self, tool: Tool) -> Callable[[msgspec.Raw], str | None]:
        """The check of this tool; it is compiled on the first call."""
        return _ToolCheck(self._checks, self, tool)

    def compile(self, tool: Tool) -> ArgumentCheck | None:
        """Compile the check of a tool and keep it; None if there is nothing to check."""
        check: ArgumentCheck | None = None
        if (schema := tool.definition.get("inputSchema")) is not None:
            with suppress(UnusableSchema):  # the server still checks
                check = compile_check(schema, limit_bytes=self._limit_bytes)
        if len(self._checks) >= self._capacity:
            self._checks.clear()
        self._checks[tool.digest] = check
        return check


class _ToolCheck(msgspec.Struct, frozen=True, eq=False, gc=False):
    """The check of one tool. Views have one for each tool, so the collector does not scan them."""

    checks: dict[bytes, ArgumentCheck | None]
    cache: CheckCache
    tool: Tool

    def __call__(self, arguments: msgspec.Raw) -> str | None:
        try:
            check = self.checks[self.tool.digest]
        except KeyError:
            check = self.cache.compile(self.tool)
        return None if check is None else check(arguments)


def no_check(_: msgspec.Raw) -> str | None:
    """The check of a tool without a schema: its server checks."""
    return None


# -- what validating costs ---------------------------------------------------------------------------------------------
#
# Estimated before validating, which would hold the event loop; schemas come from servers. A few hundred
# bytes of definitions that each refer twice to the next take hours to validate against anything; a schema of 12 KB can
# take milliseconds for every number of a long array. `measure` follows each reference once and returns bounds. It
# rejects schemas whose work it cannot bound: the hub then does not validate, and the server's own check stands alone.

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
    total = expansion.subschemas_of(schema)
    keywords, patterns = _size(schema)
    work = _AppliedWork(expansion)
    here, below = work.work_at(schema)
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


class _AppliedWork:
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

    def work_at(self, schema: object) -> tuple[_Work, _Work]:
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
        here, below = _work_of_keywords(schema), _Work(UNIQUE_KEYWORDS * bool(schema.get("uniqueItems")) + count, count)
        for same in self._same_value(schema):
            more, deeper = self.work_at(same)
            here, below = here.and_also(more), below.and_also(deeper)
        for keyword in self._ONE_OF:
            most = _Work()
            for subschema in _subschemas(schema.get(keyword), is_map=keyword == "properties"):
                most = most.or_more(self._max_work(subschema))
            below = below.and_also(most)
        for keyword in self._EACH:
            for subschema in _subschemas(schema.get(keyword), is_map=keyword == "patternProperties"):
                below = below.and_also(self._max_work(subschema))
        if "unevaluatedProperties" in schema or "unevaluatedItems" in schema:
            here, below = here.times(UNEVALUATED_FACTOR), below.times(UNEVALUATED_FACTOR)
            self.unevaluated += 1
        self._open.discard(key)
        self._known[key] = here, below
        return here, below

    def _max_work(self, schema: object) -> _Work:
        here, below = self.work_at(schema)
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


def _work_of_keywords(schema: dict[str, Any]) -> _Work:
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

    def subschemas_of(self, node: object) -> int:
        """The number of subschemas in a part of the schema, including those that it refers to."""
        total = 0
        if isinstance(node, list):
            total = sum(self.subschemas_of(element) for element in node)
        elif isinstance(node, dict):
            total = 1 + sum(self.subschemas_of(member) for member in node.values())
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
        size = self.subschemas_of(target)
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
