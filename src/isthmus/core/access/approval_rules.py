"""Which calls a person must allow first, and when two calls have the same arguments.

`config` fills in `ApprovalRule`, and `core.calls.approvals` asks the rules about each call. Arguments are compared as
JSON values: the order of members, escapes, white space and the spelling of numbers do not matter; all else does.
Nothing here waits, and everything takes time in proportion to arguments of at most `ARGUMENTS_BYTES_MAX`.
"""

from __future__ import annotations

import decimal
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import islice
from typing import Any, Literal, TypeAlias, get_args

import jsonschema_rs
import msgspec

ARGUMENTS_BYTES_MAX = 64 * 1024
"""A person reads the arguments before the call. Nobody reads longer ones, and reading them at once would hold the loop.
"""

EXPIRES_SECONDS = 3600.0
EXPIRES_SECONDS_MAX = 7 * 86_400.0

EXPONENT_LENGTH_MAX = 18
"""Digits of an exponent; a longer one means nothing to any server."""

PATTERN_BYTES_MAX = 1024 * 1024
"""The size of a compiled pattern."""

VALUES_MAX = 1000
"""Values that one test compares. Where a path has more, a rule holds the call and an exemption does not apply."""

SCHEMA_STEPS_MAX = 200
"""Steps from one schema to the next while a path is looked for; where there are more, the path may be there."""

ANY = "*"
"""A step of a path that stands for every member or element."""

ApprovedBy: TypeAlias = Literal["operator", "caller"]
Test: TypeAlias = Literal["equals", "one_of", "matches", "above", "below"]
TESTS: tuple[Test, ...] = get_args(Test)


# -- arguments as values -----------------------------------------------------------------------------------------------


class UnclearArguments(ValueError):
    """Arguments that two readers could understand differently, so that nobody can approve them."""


class JsonNumber(str):
    """A number in its only spelling: digits without zeros at either end, and a power of ten."""

    __slots__ = ()


def canonical_number(text: str) -> JsonNumber:
    """The only spelling of a number: 100, 1e2 and 100.0 are one number, exactly, however many digits it has.

    Raises:
        UnclearArguments: its exponent is too long.
    """
    if text.isdecimal() and text[-1] != "0":  # the short way: a whole number is written so already
        return JsonNumber(text)
    mantissa, _, exponent = text.replace("E", "e").partition("e")
    if len(exponent) > EXPONENT_LENGTH_MAX:
        raise UnclearArguments("a number has too long an exponent")
    whole, _, fraction = mantissa.removeprefix("-").partition(".")
    digits = (whole + fraction).lstrip("0")
    short = digits.rstrip("0")
    if not short:
        return JsonNumber("0")
    power = (int(exponent) if exponent else 0) - len(fraction) + len(digits) - len(short)
    sign = "-" if mantissa.startswith("-") else ""
    return JsonNumber(f"{sign}{short}e{power}" if power else f"{sign}{short}")


def _unique_members(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise UnclearArguments("a member is repeated")
    return members


def _no_constant(text: str) -> object:
    raise UnclearArguments(f"{text} is not JSON")


_READER = json.JSONDecoder(
    object_pairs_hook=_unique_members,
    parse_int=canonical_number,
    parse_float=canonical_number,
    parse_constant=_no_constant,
)


def read_arguments(arguments: bytes | msgspec.Raw) -> object:
    """Arguments as values; numbers are `JsonNumber`.

    Raises:
        UnclearArguments: they are too long to be read by a person, not JSON, or not clear.
    """
    size = len(memoryview(arguments))
    if size > ARGUMENTS_BYTES_MAX:
        raise UnclearArguments(f"{size} bytes are more than a person can review; the limit is {ARGUMENTS_BYTES_MAX}")
    try:
        return _READER.decode(bytes(arguments).decode())
    except UnclearArguments:
        raise
    except (ValueError, RecursionError) as error:
        raise UnclearArguments("they cannot be read as JSON") from error


def canonical_text(value: object) -> bytes:
    """Values as text: the same for equal values, and only for these.

    Raises:
        UnclearArguments: they are nested too deeply.
    """
    parts: list[str] = []
    try:
        _write(value, parts)
    except RecursionError as error:
        raise UnclearArguments("they are nested too deeply") from error
    return "".join(parts).encode()


_quote = json.encoder.encode_basestring_ascii  # also writes half of a surrogate pair


def _write(value: object, parts: list[str]) -> None:
    match value:
        case JsonNumber():
            parts.append(value)
        case str():
            parts.append(_quote(value))
        case dict():
            separator = "{"
            for name in sorted(value):
                parts += (separator, _quote(name), ":")
                _write(value[name], parts)
                separator = ","
            parts.append("}" if value else "{}")
        case list():
            separator = "["
            for item in value:
                parts.append(separator)
                _write(item, parts)
                separator = ","
            parts.append("]" if value else "[]")
        case _:
            parts.append("null" if value is None else "true" if value else "false")


def request_digest(*parts: str | bytes | None) -> str:
    """The digest of a request for approval: of who calls what, and with which arguments."""
    digest = hashlib.sha256(b"isthmus approval 1")
    for part in parts:
        text = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        digest.update(b"-" if text is None else b"%d:" % len(text) + text)
    return digest.hexdigest()


# -- rules -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ArgumentTest:
    """A test of the arguments at one path."""

    path: tuple[str, ...]
    test: Test
    value: Any
    """As the file has it: a list for `one_of`, a text for `matches`, a number for `above` and `deeper`."""

    _wanted: frozenset[bytes] = field(default=frozenset(), init=False, repr=False, compare=False)
    """What `equals` and `one_of` look for."""
    _bound: Decimal = field(default=Decimal(), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        match self.test:
            case "matches":
                pattern_of(self.value)
            case "above" | "below":
                object.__setattr__(self, "_bound", Decimal(str(self.value)))
            case "equals" | "one_of":
                wanted = [self.value] if self.test == "equals" else self.value
                texts = frozenset(canonical_text(_READER.decode(json.dumps(each))) for each in wanted)
                object.__setattr__(self, "_wanted", texts)

    def passes(self, arguments: object, *, is_exemption: bool) -> bool:
        """Whether the test passes.

        What cannot be compared, such as a text with a number, counts against the caller: it passes the test of a rule
        that holds calls, and fails that of an exemption. Of several values, one is enough to hold a call, and all are
        needed to exempt it. Without a value there is nothing to test.
        """
        found = list(islice(_values_at(arguments, self.path), VALUES_MAX + 1))
        if len(found) > VALUES_MAX:
            return not is_exemption
        verdicts = [self._compare(value) for value in found]
        if is_exemption:
            return bool(verdicts) and all(verdict is True for verdict in verdicts)
        return any(verdict is not False for verdict in verdicts)

    def _compare(self, value: object) -> bool | None:
        """Whether one value passes; None if the two cannot be compared."""
        if self.test in ("equals", "one_of"):
            return canonical_text(value) in self._wanted
        if self.test == "matches":
            if isinstance(value, JsonNumber) or not isinstance(value, str):
                return None
            try:
                return pattern_of(self.value).is_valid(value)
            except (ValueError, UnicodeError):  # half of a surrogate pair
                return None
        if not isinstance(value, JsonNumber):
            return None
        try:
            given = Decimal(value)
            return given > self._bound if self.test == "above" else given < self._bound
        except decimal.DecimalException:
            return None


_PATTERNS: dict[str, jsonschema_rs.Validator] = {}


def pattern_of(text: str) -> jsonschema_rs.Validator:
    """A compiled pattern. Matching takes linear time, whatever the pattern and the text.

    Raises:
        ValueError: it is no such pattern.
    """
    if text not in _PATTERNS:
        options = jsonschema_rs.RegexOptions(size_limit=PATTERN_BYTES_MAX, dfa_size_limit=PATTERN_BYTES_MAX)
        _PATTERNS[text] = jsonschema_rs.validator_for({"pattern": text}, pattern_options=options)
    return _PATTERNS[text]


def path_of(text: str) -> tuple[str, ...]:
    """The steps of a path: `a.b.0`, or `/a/b/0` (RFC 6901) where a name contains a dot.

    Raises:
        ValueError: a step is empty.
    """
    if text.startswith("/"):
        steps = tuple(step.replace("~1", "/").replace("~0", "~") for step in text[1:].split("/"))
    else:
        steps = tuple(text.split("."))
    if not all(steps):
        raise ValueError(f"must be a path such as amount or order.lines.*.price, not {text!r}")
    return steps


def _values_at(value: object, path: Sequence[str]) -> Iterator[object]:
    if not path:
        yield value
        return
    step, rest = path[0], path[1:]
    if isinstance(value, dict):
        for each in value.values() if step == ANY else [value[step]] if step in value else ():
            yield from _values_at(each, rest)
    elif isinstance(value, list):
        if step == ANY:
            for each in value:
                yield from _values_at(each, rest)
        elif step.isdecimal() and len(step) < EXPONENT_LENGTH_MAX and int(step) < len(value):
            yield from _values_at(value[int(step)], rest)


def may_have(schema: object, path: Sequence[str]) -> bool:
    """Whether arguments of this schema may have a value at a path; True where the schema does not tell.

    What a schema with `properties` does not declare is not there, unless it has `additionalProperties`: a rule that
    tests it is probably mistyped.
    """
    return _SchemaSearch(schema).may_have(schema, path)


class _SchemaSearch:
    def __init__(self, root: object) -> None:
        self._root = root
        self._steps = 0

    def may_have(self, schema: object, path: Sequence[str]) -> bool:
        self._steps += 1
        if not path or self._steps > SCHEMA_STEPS_MAX or not isinstance(schema, dict):
            return True
        same_place = [element for key in ("allOf", "anyOf", "oneOf") for element in _elements(schema.get(key))]
        same_place += [schema[key] for key in ("then", "else") if key in schema]
        if "$ref" in schema:
            same_place.append(self._target(schema["$ref"]))
        deeper = list(_schemas_at(schema, path[0]))
        if not same_place and not deeper and not _DECLARATIONS & schema.keys():
            types = schema.get("type", "object")
            return bool({"object", "array"}.intersection([types] if isinstance(types, str) else _elements(types)))
        return any(self.may_have(each, path) for each in same_place) or any(
            self.may_have(each, path[1:]) for each in deeper
        )

    def _target(self, reference: object) -> object:
        """The schema that a reference names; if it is not found, True, the schema of any value."""
        found = self._root
        if not isinstance(reference, str) or not reference.startswith("#"):
            return True
        for step in reference.removeprefix("#").removeprefix("/").split("/"):
            name = step.replace("~1", "/").replace("~0", "~")
            if name:
                found = found.get(name, True) if isinstance(found, dict) else True
        return found


_DECLARATIONS = frozenset({"properties", "additionalProperties", "items", "prefixItems"})


def _schemas_at(schema: Mapping[str, object], step: str) -> Iterator[object]:
    """The schemas of the values that a step leads to."""
    properties = schema.get("properties")
    if isinstance(properties, dict):
        yield from properties.values() if step == ANY else [properties[step]] if step in properties else ()
    if "patternProperties" in schema:
        yield True
    if schema.get("additionalProperties", False) is not False:
        yield schema["additionalProperties"]
    if step == ANY or step.isdecimal():
        yield from _elements(schema.get("prefixItems"))
        if schema.get("items", False) is not False:
            yield schema["items"]


def _elements(value: object) -> list[object]:
    return value if isinstance(value, list) else []


@dataclass(frozen=True, slots=True)
class SpentTest:
    """Passes if the calls of a budget's counter in its period, with this call, cost more than `above`."""

    budget: str
    above: float


@dataclass(frozen=True, slots=True)
class ApprovalRule:
    """One rule: which calls it is about, and who decides. The first rule that matches a call decides."""

    name: str
    tools: tuple[str, ...] = ()
    """Patterns, as in permissions; none for all tools."""
    destructive: bool = False
    """Only tools that may destroy something, as their servers say; see `hint:destructive` for servers that may lie."""
    arguments: tuple[ArgumentTest, ...] = ()
    """All of them must pass."""
    callers: tuple[str, ...] = ()
    """Names of callers; none for all."""
    spent: SpentTest | None = None
    """Only calls with which a budget has cost more than this."""
    approve: bool = True
    """False exempts calls from the rules that follow."""
    by: ApprovedBy = "operator"
    expires: float = EXPIRES_SECONDS
    """How long a request waits for a decision, and how long a decision is valid."""
    webhook: str | None = None
    """Where requests are announced."""
    webhook_arguments: bool = False
    """Whether the announcement contains the arguments."""

    def __post_init__(self) -> None:
        if not (self.tools or self.destructive):
            raise ValueError('needs tools or destructive = true; for all tools write tools = ["*"]')
        if self.by not in get_args(ApprovedBy):
            raise ValueError(f"by must be operator or caller, not {self.by!r}")
        if not 1 <= self.expires <= EXPIRES_SECONDS_MAX:
            raise ValueError(f"expires must be 1 to {EXPIRES_SECONDS_MAX:g} seconds, not {self.expires:g}")
        if self.webhook is not None and not self.webhook.startswith(("https://", "http://")):
            raise ValueError("webhook must be an http or https address")
        if not self.approve and (self.webhook is not None or self.by != "operator"):
            raise ValueError("approve must be true where by or webhook is set, not false")
        if not self.approve and self.spent is not None:
            raise ValueError("approve must be true where spent is set, not false")

    def is_about(self, caller: str) -> bool:
        """Whether it is about calls of this caller."""
        return not self.callers or caller in self.callers

    def passes(self, arguments: object) -> bool:
        """Whether it is about a call with these arguments."""
        return all(test.passes(arguments, is_exemption=not self.approve) for test in self.arguments)
