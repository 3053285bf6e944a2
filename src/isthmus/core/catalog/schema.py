"""Checking arguments against a tool's own schema, safely: the schema comes from a server and is not trusted.

No reference is fetched, patterns run in linear time, and size and work are bounded. A schema that cannot be used
under these rules costs only the check here (the server still makes its own), and says why in `Unchecked`.
"""

from __future__ import annotations

from typing import Any, NoReturn, Protocol

import jsonschema_rs
import msgspec

from isthmus.core.catalog.unfolding import check_bounded

DETAIL_LENGTH_MAX = 300
"""An explanation may quote the value; a caller needs its beginning, not a megabyte of it."""

EXPLAINED_BYTES_MAX = 64 * 1024
"""Arguments up to this long are told what is wrong with them: to find out, all of them are copied and quoted."""

CONTAINERS_MAX = 100_000
"""Arguments with more arrays and objects are left to the server's own check: each takes more time than its bytes do."""


class Check(Protocol):
    """Says what is wrong with arguments, or None."""

    def __call__(self, arguments: msgspec.Raw) -> str | None: ...


class Unchecked(ValueError):
    """The schema cannot be used for checking; the message says why."""


def compile_check(schema: msgspec.Raw, *, limit_bytes: int) -> Check:
    """Make the check for one tool.

    Raises:
        Unchecked: too large, not a schema, or one that points outside itself.
    """
    text = bytes(schema)
    if len(text) > limit_bytes:
        raise Unchecked(f"its schema has {len(text)} bytes, the limit is {limit_bytes}")
    try:
        decoded = msgspec.json.decode(text)
        check_bounded(decoded)
        validator = jsonschema_rs.validator_for(
            decoded,
            retriever=_refuse,
            pattern_options=jsonschema_rs.RegexOptions(size_limit=1 << 20, dfa_size_limit=1 << 20),
        )
    except (ValueError, TypeError, msgspec.MsgspecError, RecursionError) as error:
        raise Unchecked(f"its schema cannot be used: {str(error)[:DETAIL_LENGTH_MAX]}") from error
    return _Check(validator)


def _refuse(uri: str) -> NoReturn:
    raise ValueError(f"the schema refers to {uri}, which is not fetched")


class _Check:
    __slots__ = ("_validator",)

    def __init__(self, validator: jsonschema_rs.Validator) -> None:
        self._validator = validator

    def __call__(self, arguments: msgspec.Raw) -> str | None:
        size = len(memoryview(arguments))
        if size > CONTAINERS_MAX and _has_many_containers(bytes(arguments)):
            return None
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
            return _explanation(error, value)
        return None


def _has_many_containers(text: bytes) -> bool:
    return text.count(b"[") + text.count(b"{") > CONTAINERS_MAX


def _explanation(error: jsonschema_rs.ValidationError, value: Any) -> str:
    where = ".".join(str(step) for step in error.instance_path)
    message = _surplus(error, value) or error.message
    text = f"{where}: {message}" if where else message
    return text[:DETAIL_LENGTH_MAX]


def _surplus(error: jsonschema_rs.ValidationError, value: Any) -> str | None:
    """What is too much for a schema that takes no member at all: its error has a value, and not whose it is."""
    is_closed = isinstance(error.kind, jsonschema_rs.ValidationErrorKind.FalseSchema)
    if not is_closed or error.schema_path[-1:] != ["additionalProperties"]:
        return None
    for step in error.instance_path:
        value = value[step]
    if not isinstance(value, dict):  # a member may be called so
        return None
    names = ", ".join(f"'{name}'" for name in value)
    return f"Additional properties are not allowed ({names} {'was' if len(value) == 1 else 'were'} unexpected)"
