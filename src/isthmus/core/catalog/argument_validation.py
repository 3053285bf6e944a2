"""Checks arguments against a tool's own schema, which comes from a server and is not trusted.

No reference is fetched, patterns run in linear time, and size and work are bounded. If a schema cannot be used under
these rules, only the check here is skipped (`UnusableSchema`); the server still checks. A check that would block the
event loop for long returns `EXPENSIVE`, and a worker process does it (`core.ports.ArgumentValidator`).
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final, NoReturn, Protocol

import jsonschema_rs
import msgspec

from isthmus.core.catalog.schema_cost import Cost, measure
from isthmus.model.features import Tool
from isthmus.model.long_objects import known_members

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
            message = self._misspelt(error, value) or _surplus(error, value) or error.message
            return (f"{where}: {message}" if where else message)[:DETAIL_LENGTH_MAX]
        return None

    def _without_long_texts(self, arguments: msgspec.Raw) -> msgspec.Raw | None:
        """Arguments that are as valid as long ones, and short; None if there are none such.

        Of members that the schema does not name, and of texts that must only be texts, the content does not matter.
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

    def _misspelt(self, error: jsonschema_rs.ValidationError, value: Any) -> str | None:
        """Name the arguments that the tool does not have, if the arguments fail as a whole; None if it has all."""
        if error.instance_path or not isinstance(value, dict) or not self._names:
            return None
        unknown = [name for name in value if name not in self._names]
        if not unknown:
            return None
        near = difflib.get_close_matches(unknown[0][:NAME_LENGTH_MAX], self._names, n=1)
        advice = f"did you mean {near[0]!r}?" if near else f"it takes {', '.join(self._names)}"
        missing = "" if _is_surplus(error) else f"{error.message}, and "
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
"""Arguments that are checked without a thought of their length."""

NAME_LENGTH_MAX = 64
"""How much of an unknown name is compared with the tool's arguments."""

LAYOUT_BYTES_MAX = 4096
"""Bytes between members that may be spaces; a dropped member of that size costs little."""

_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_NAMES_ELSEWHERE = frozenset({"patternProperties", "$ref", "allOf", "anyOf", "oneOf", "if", "dependentSchemas"})
_SAYS_NOTHING = frozenset({"$schema", "$id", "$comment", "title", "description", "examples", "default"})


def _allows_any_object(schema: object) -> bool:
    """Whether every object fits: many tools have only `{"type": "object"}`."""
    if not isinstance(schema, dict):
        return schema is True
    rest = schema.keys() - _SAYS_NOTHING
    return rest <= {"type"} and schema.get("type", "object") == "object"


def _plain_properties(schema: object) -> dict[str, bool] | None:
    """The properties of an object, and whether each may be any text; None if the schema says more than their types."""
    if not isinstance(schema, dict) or not schema.keys() - _SAYS_NOTHING <= {"type", "properties", "required"}:
        return None
    properties = schema.get("properties", {})
    if not isinstance(properties, dict) or schema.get("type", "object") != "object":
        return None
    return {
        name: isinstance(each, dict) and each.keys() - _SAYS_NOTHING == {"type"} and each["type"] == "string"
        for name, each in properties.items()
    }


def _names_in(schema: object) -> tuple[str, ...]:
    """The arguments of a tool; none for a schema whose names are only patterns, or are listed elsewhere too."""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict) or not isinstance(schema, dict) or schema.keys() & _NAMES_ELSEWHERE:
        return ()
    return tuple(properties)


def _is_surplus(error: jsonschema_rs.ValidationError) -> bool:
    """Whether it is about members that the schema does not allow."""
    return "additionalProperties" in map(str, error.schema_path[-1:])


def _surplus(error: jsonschema_rs.ValidationError, value: Any) -> str | None:
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

    def of(self, tool: Tool) -> Callable[[msgspec.Raw], str | None]:
        """The check of this tool; it is compiled on the first call."""
        return partial(self._run, tool)

    def _run(self, tool: Tool, arguments: msgspec.Raw) -> str | None:
        try:
            check = self._checks[tool.digest]
        except KeyError:
            check = self._compile(tool)
        return None if check is None else check(arguments)

    def _compile(self, tool: Tool) -> ArgumentCheck | None:
        check: ArgumentCheck | None = None
        if (schema := tool.definition.get("inputSchema")) is not None:
            with suppress(UnusableSchema):  # the server still checks
                check = compile_check(schema, limit_bytes=self._limit_bytes)
        if len(self._checks) >= self._capacity:
            self._checks.clear()
        self._checks[tool.digest] = check
        return check


def no_check(_: msgspec.Raw) -> str | None:
    """The check of a tool without a schema: its server checks."""
    return None
