"""What the dialects of A2A share: members read without raising to anybody outside, times, histories, odd data.

A reader takes a request's parameters apart with `required` and `optional`, which raise `Unreadable` with the place in
it; `read_by` is where that ends and becomes a `Problem`. Nothing here knows a generation's words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Annotated, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, Raw

from isthmus.model.conversation import ABSENT, Message
from isthmus.wire.a2a.operations import Operation, Problem
from isthmus.wire.jsonrpc import Payload, object_members, render

Members: TypeAlias = Mapping[str, Raw]
Reader: TypeAlias = Callable[[Members], Operation]

ID_LENGTH_MAX = 256
"""Ids that callers choose are kept as they are; this is several times the longest that a client is known to make."""

PARTS_MAX = 1_000
"""Parts of one message; each is kept and told again, and more than these were never meant to be read."""

WORDS_MAX = 300
"""Length of what a caller is told of its mistake: a bad value is part of it, and may be the whole body."""

_T = TypeVar("_T")
_NOT_READABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

STRING = msgspec.json.Decoder(str)
ID = msgspec.json.Decoder(Annotated[str, Meta(min_length=1, max_length=ID_LENGTH_MAX)])
COUNT = msgspec.json.Decoder(Annotated[int, Meta(ge=0, le=2**31 - 1)])
FLAG = msgspec.json.Decoder(bool)


class Unreadable(Exception):
    """What a caller sent cannot be read; raised and caught inside this package only."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


def read_by(readers: Mapping[str, Reader], method: str, params: Members) -> Operation | Problem:
    """What a request asks for, by the reader of its method."""
    reader = readers.get(method)
    if reader is None:
        return unknown_method(method)
    try:
        return reader(params)
    except Unreadable as unreadable:
        return unreadable.problem


def camel_members(params: Members) -> Members:
    """Members by their names in JSON; every reader of protobuf's form takes those of the protobuf itself as well."""
    if not any("_" in name for name in params):
        return params
    return {**{_CAMEL.sub(_raised, name): value for name, value in params.items()}, **params}


_CAMEL = re.compile(r"_([a-z])")


def _raised(found: re.Match[str]) -> str:
    return found[1].upper()


def unknown_method(method: str) -> Problem:
    """There is no such method."""
    return Problem("unknown_method", f"there is no method {method[:WORDS_MAX]!r}")


def invalid(field: str, why: str) -> Problem:
    """A member is not as it must be."""
    return Problem("invalid_params", f"{field} {why}"[:WORDS_MAX], {"field": field})


def required(decoder: msgspec.json.Decoder[_T], params: Members, name: str) -> _T:
    """A member that must be there."""
    found = optional(decoder, params, name)
    if found is None:
        raise Unreadable(invalid(name, "is required"))
    return found


def optional(decoder: msgspec.json.Decoder[_T], params: Members, name: str) -> _T | None:
    """A member that may be absent, or null, which is the same."""
    raw = params.get(name)
    return None if raw is None or is_null(raw) else decoded(decoder, raw, name)


def decoded(decoder: msgspec.json.Decoder[_T], raw: Payload, name: str) -> _T:
    """The value of a member."""
    try:
        return decoder.decode(raw)
    except _NOT_READABLE as error:
        raise Unreadable(_misread(name, str(error))) from error


_MISREAD = re.compile(r"(?P<why>.*?)(?: - at `\$(?P<place>[^`]*)`)?", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<field>\w+)`")


def _misread(name: str, words: str) -> Problem:
    """The decoder's words, with the place that they speak of in front."""
    found = _MISREAD.fullmatch(words)
    why, place = (found["why"], found["place"] or "") if found else (words, "")
    if missing := _MISSING.fullmatch(why):
        return invalid(f"{name}{place}.{missing['field']}", "is required")
    return invalid(f"{name}{place}", f"cannot be read: {why}")


def optional_id(params: Members, name: str) -> str | None:
    """An id that may be absent; an empty one is absent too, as the protobuf form of A2A has it."""
    text = optional(STRING, params, name)
    return bounded_id(text, name) if text else None


def bounded_id(text: str | None, name: str) -> str | None:
    """An id that may be absent or empty, if it is not too long."""
    if text and len(text) > ID_LENGTH_MAX:
        raise Unreadable(invalid(name, f"is longer than {ID_LENGTH_MAX}"))
    return text or None


def optional_object(params: Members, name: str) -> Raw:
    """A member that is an object or absent."""
    raw = said(params.get(name, ABSENT))
    if raw and not is_object(raw):
        raise Unreadable(invalid(name, "must be an object"))
    return raw


def check_parts(parts: Sequence[object], name: str) -> None:
    """A message says something, and not without end."""
    if not 1 <= len(parts) <= PARTS_MAX:
        raise Unreadable(invalid(name, f"must have between 1 and {PARTS_MAX} elements"))


# Shapes check themselves while they are decoded, which gives the place of what is wrong with them for nothing.


def check_object(raw: Raw, name: str) -> None:
    """Raise for a member that is there and no object.

    Raises:
        ValueError: it is something else; the decoder says where.
    """
    if raw and not is_object(raw) and not is_null(raw):
        raise ValueError(f"{name} must be an object")


_BRACE = ord("{")


def is_object(raw: Raw) -> bool:
    """Whether checked JSON is an object."""
    return bool(raw) and memoryview(raw)[0] == _BRACE


def is_null(raw: Raw) -> bool:
    """Whether checked JSON is null."""
    return len(raw) == 4 and bytes(raw) == b"null"


def said(raw: Raw) -> Raw:
    """A member of which null says no more than its absence."""
    return ABSENT if is_null(raw) else raw


# Data. Before 1.0 it had to be an object. The official SDK puts anything else into one and says so; so is it here.

_MARK = "data_part_compat"


def as_object(data: Raw) -> Raw:
    """Data of any kind as an object."""
    return data if is_object(data) else Raw(b'{"value":%b}' % bytes(data))


def marked(data: Raw, metadata: Raw) -> Raw:
    """The metadata beside `as_object(data)`."""
    if is_object(data):
        return metadata
    members: dict[str, Payload] = dict(object_members(metadata) or {}) if metadata else {}
    return Raw(render({**members, _MARK: b"true"}))


def unmarked(data: Raw, metadata: Raw) -> tuple[Raw, Raw]:
    """Data and metadata as they were before `as_object` and `marked`."""
    if _MARK.encode() not in bytes(metadata):
        return data, metadata
    members = object_members(metadata) or {}
    value = (object_members(data) or {}).get("value")
    if bytes(members.pop(_MARK, b"")) != b"true" or value is None:
        return data, metadata
    return value, Raw(render(members)) if members else ABSENT


# Times.


def timestamp(at: float) -> str:
    """A moment as RFC 3339 has it, in UTC, to the millisecond."""
    seconds, rest = divmod(round(at * 1_000_000), 1_000_000)
    return f"{_second(seconds)}.{rest // 1000:03}Z"


def exact_timestamp(at: float) -> str:
    """The same to the microsecond."""
    seconds, rest = divmod(round(at * 1_000_000), 1_000_000)
    return f"{_second(seconds)}.{rest:06}Z"


@lru_cache(maxsize=64)
def _second(at: int) -> str:
    # A task names several moments of one second, and a calendar costs more than all else in writing it.
    return datetime.fromtimestamp(at, UTC).isoformat()[:19]


def moment(text: str | None) -> float | None:
    """The moment that a timestamp names, in UTC if it names no zone; None if it is none."""
    try:
        when = datetime.fromisoformat(text or "")
        return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def latest(history: tuple[Message, ...], length: int | None) -> tuple[Message, ...]:
    """The last messages of a history: all of them if nobody says how many."""
    if length is None:
        return history
    return history[-length:] if length else ()
