"""Read and write single JSON fields, the same way in every generation of A2A.

`required` and `optional` raise `Unreadable`, which names the field; `read_with` turns that into an `A2aProblem`.
Called by the modules of the generations.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Annotated, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, Raw

from isthmus.model.tasks import ABSENT, Message
from isthmus.wire.a2a.operations import A2aProblem, Operation
from isthmus.wire.jsonrpc import Payload, object_members, render

Members: TypeAlias = Mapping[str, Raw]
Reader: TypeAlias = Callable[[Members], Operation]

ID_LENGTH_MAX = 256
"""Ids chosen by callers are stored unchanged. No known client makes ids a quarter as long."""

PARTS_MAX = 1_000
"""Parts of one message. Each is stored and repeated in every response about the task."""

WORDS_MAX = 300
"""Length of an error message: it may quote a bad value, which may be the whole body."""

_T = TypeVar("_T")
_NOT_READABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

STRING = msgspec.json.Decoder(str)
ID = msgspec.json.Decoder(Annotated[str, Meta(min_length=1, max_length=ID_LENGTH_MAX)])
COUNT = msgspec.json.Decoder(Annotated[int, Meta(ge=0, le=2**31 - 1)])
FLAG = msgspec.json.Decoder(bool)


class Unreadable(Exception):
    """The request cannot be read. Raised and caught inside this package only."""

    def __init__(self, problem: A2aProblem) -> None:
        super().__init__(problem.message)
        self.problem = problem


def read_with(readers: Mapping[str, Reader], method: str, params: Members) -> Operation | A2aProblem:
    """Read a request with the reader of its method."""
    reader = readers.get(method)
    if reader is None:
        return unknown_method(method)
    try:
        return reader(params)
    except Unreadable as unreadable:
        return unreadable.problem


def camel_members(params: Members) -> Members:
    """Members under their camelCase names: the JSON form of protobuf allows the snake_case names as well."""
    if not any("_" in name for name in params):
        return params
    return {**{_CAMEL.sub(lambda found: found[1].upper(), name): value for name, value in params.items()}, **params}


_CAMEL = re.compile(r"_([a-z])")


def unknown_method(method: str) -> A2aProblem:
    """The problem of a method that no generation has."""
    return A2aProblem("unknown_method", f"unknown method {method[:WORDS_MAX]!r}")


def invalid(field: str, why: str) -> A2aProblem:
    """The problem of a field with an invalid value."""
    return A2aProblem("invalid_params", f"{field} {why}"[:WORDS_MAX], {"field": field})


def required(decoder: msgspec.json.Decoder[_T], params: Members, name: str) -> _T:
    """Read a field that must be present."""
    found = optional(decoder, params, name)
    if found is None:
        raise Unreadable(invalid(name, "is required"))
    return found


def optional(decoder: msgspec.json.Decoder[_T], params: Members, name: str) -> _T | None:
    """Read a field that may be absent or null."""
    raw = params.get(name)
    return None if raw is None or is_null(raw) else decoded(decoder, raw, name)


def decoded(decoder: msgspec.json.Decoder[_T], raw: Payload, name: str) -> _T:
    """Decode the value of a field."""
    try:
        return decoder.decode(raw)
    except _NOT_READABLE as error:
        raise Unreadable(_misread(name, str(error))) from error


_MISREAD = re.compile(r"(?P<why>.*?)(?: - at `\$(?P<place>[^`]*)`)?", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<field>\w+)`")


def _misread(name: str, words: str) -> A2aProblem:
    """The decoder's message, with the path of the bad value in front."""
    found = _MISREAD.fullmatch(words)
    why, place = (found["why"], found["place"] or "") if found else (words, "")
    if missing := _MISSING.fullmatch(why):
        return invalid(f"{name}{place}.{missing['field']}", "is required")
    return invalid(f"{name}{place}", f"cannot be read: {why}")


def optional_id(params: Members, name: str) -> str | None:
    """Read an id that may be absent. An empty id counts as absent, as in the protobuf form of A2A."""
    text = optional(STRING, params, name)
    return bounded_id(text, name) if text else None


def bounded_id(text: str | None, name: str) -> str | None:
    """Check the length of an id that may be absent or empty."""
    if text and len(text) > ID_LENGTH_MAX:
        raise Unreadable(invalid(name, f"is longer than {ID_LENGTH_MAX}"))
    return text or None


def optional_object(params: Members, name: str) -> Raw:
    """Read a field that is an object, null or absent."""
    raw = null_as_absent(params.get(name, ABSENT))
    if raw and not is_object(raw):
        raise Unreadable(invalid(name, "must be an object"))
    return raw


def check_parts(parts: Sequence[object], name: str) -> None:
    """Check that a message has parts, but not too many."""
    if not 1 <= len(parts) <= PARTS_MAX:
        raise Unreadable(invalid(name, f"must have between 1 and {PARTS_MAX} elements"))


# Structs call this while they are decoded, so that the decoder adds the path of the bad value.


def check_object(raw: Raw, name: str) -> None:
    """Check that a field is an object, null or absent.

    Raises:
        ValueError: it is another kind of value.
    """
    if raw and not is_object(raw) and not is_null(raw):
        raise ValueError(f"{name} must be an object")


_BRACE = ord("{")


def is_object(raw: Raw) -> bool:
    """Whether valid JSON is an object."""
    return bool(raw) and memoryview(raw)[0] == _BRACE


def is_null(raw: Raw) -> bool:
    """Whether valid JSON is null."""
    return len(raw) == 4 and bytes(raw) == b"null"


def null_as_absent(raw: Raw) -> Raw:
    """The value of a field where null means the same as absence."""
    return ABSENT if is_null(raw) else raw


# Data parts. Before 1.0 their data must be an object. Like the official SDK, wrap any other value, and mark that.

_MARK = "data_part_compat"


def data_as_object(data: Raw) -> Raw:
    """Wrap data that is not an object."""
    return data if is_object(data) else Raw(b'{"value":%b}' % bytes(data))


def data_metadata(data: Raw, metadata: Raw) -> Raw:
    """The metadata that goes with `data_as_object(data)`: it marks data that was wrapped."""
    if is_object(data):
        return metadata
    members: dict[str, Payload] = dict(object_members(metadata) or {}) if metadata else {}
    return Raw(render({**members, _MARK: b"true"}))


def restore_data(data: Raw, metadata: Raw) -> tuple[Raw, Raw]:
    """Undo `data_as_object` and `data_metadata`."""
    if _MARK.encode() not in bytes(metadata):
        return data, metadata
    members = object_members(metadata) or {}
    value = (object_members(data) or {}).get("value")
    if bytes(members.pop(_MARK, b"")) != b"true" or value is None:
        return data, metadata
    return value, Raw(render(members)) if members else ABSENT


# Timestamps.


def format_timestamp(at: float) -> str:
    """A time in RFC 3339 format, in UTC, with milliseconds."""
    seconds, rest = divmod(round(at * 1_000_000), 1_000_000)
    return f"{_second(seconds)}.{rest // 1000:03}Z"


def format_timestamp_micros(at: float) -> str:
    """A time in RFC 3339 format, in UTC, with microseconds."""
    seconds, rest = divmod(round(at * 1_000_000), 1_000_000)
    return f"{_second(seconds)}.{rest:06}Z"


@lru_cache(maxsize=64)
def _second(at: int) -> str:
    # A task has several timestamps within one second, and the calendar is the most expensive part of writing it.
    return datetime.fromtimestamp(at, UTC).isoformat()[:19]


def parse_timestamp(text: str | None) -> float | None:
    """Parse a timestamp, as UTC if it has no zone; None if it is invalid."""
    try:
        when = datetime.fromisoformat(text or "")
        return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def last_messages(history: tuple[Message, ...], length: int | None) -> tuple[Message, ...]:
    """The last messages of a history; all of them if `length` is None."""
    if length is None:
        return history
    return history[-length:] if length else ()
