"""Convert plain values of a parsed file into the types that settings have.

Each function gets a key and its value, and returns the value in one type or raises `ValueError` with the sentence
"<key> must be …, not <value>". `typed` chooses the function by a type annotation. Ranges are checked by the settings
classes. Values of keys that may hold a secret are never quoted. Used by all modules of `config`.
"""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from isthmus.config.findings import UnknownKey, closest_match

T = TypeVar("T")

_QUOTED_LENGTH = 60
_HIDDEN = frozenset(
    {"key", "env", "headers", "url", "rpc", "agent", "args", "defaults", "oauth", "callers", "old_keys"}
    | {"credentials", "settings", "fixed", ""}
)
"""Keys whose values may hold a secret, and the whole entry: messages name only their kind."""


class VariableText(str):
    """A text that contains the value of a variable, so it may be a secret."""

    __slots__ = ()


class WrittenNumber(str):
    """A number or a boolean whose characters in the file its value does not tell, such as `1.10` or `007`.

    It is a text where a text is wanted: `args: [1.10]` passes `1.10`, not `1.1`.
    """

    __slots__ = ("value",)
    value: float


def keep_written(text: str, value: float) -> float | WrittenNumber:
    """Return a number, with its characters if they would get lost."""
    if _written(value) == text:
        return value
    made = WrittenNumber(text)
    made.value = value
    return made


def plain(value: object) -> object:
    """Return a value with every `WrittenNumber` in it as a number."""
    match value:
        case WrittenNumber():
            return value.value
        case list():
            return [plain(item) for item in value]
        case dict():
            return {key: plain(item) for key, item in value.items()}
        case _:
            return value


def map_texts(value: object, change: Callable[..., object], *path: str | int) -> object:
    """Return a value with every text in it, at any depth, replaced by `change(text, *path)`."""
    match value:
        case str():
            return change(value, *path)
        case list():
            return [map_texts(item, change, *path, position) for position, item in enumerate(value)]
        case dict():
            return {key: map_texts(item, change, *path, key) for key, item in value.items()}
        case _:
            return value


def _written(value: float) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if _is_short(value) else ""


def _is_short(number: float) -> bool:
    # Python refuses to write integers of more than some four thousand digits.
    return not isinstance(number, int) or number.bit_length() < 128


def quoted(value: object) -> str:
    """Return a value as a message may quote it."""
    if isinstance(value, WrittenNumber):
        value = value.value
    if isinstance(value, VariableText):
        return "what its variable holds"
    if isinstance(value, str):
        return repr(value if len(value) <= _QUOTED_LENGTH else value[: _QUOTED_LENGTH - 1] + "…")
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return str(value) if isinstance(value, int | float) and _is_short(value) else _kind(value)


def _kind(value: object) -> str:
    match value.value if isinstance(value, WrittenNumber) else value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a text"
        case list():
            return "a list"
        case dict():
            return "a table"
        case _:
            return f"a {type(value).__name__}"


def _wrong(key: str, wanted: str, value: object) -> ValueError:
    is_hidden = key.partition(".")[0] in _HIDDEN
    return ValueError(f"{key} must be {wanted}, not {_kind(value) if is_hidden else quoted(value)}".lstrip())


# -- one type each -------------------------------------------------------------------------------------------


def text(key: str, value: object) -> str:
    """Return a text."""
    if not isinstance(value, str):
        raise _wrong(key, "a text", value)
    return str(value)  # a plain `str`: settings hold no subclass


def texts(key: str, value: object) -> tuple[str, ...]:
    """Return a list of texts."""
    if not isinstance(value, list):
        raise _wrong(key, "a list of texts", value)
    return tuple(text(f"{key}.{position}", item) for position, item in enumerate(value))


def word(key: str, value: object) -> str:
    """Return a text; a number or a boolean without quotes becomes one."""
    if isinstance(value, bool | float) or (isinstance(value, int) and _is_short(value)):
        return _written(value)
    return text(key, value)


def words(key: str, value: object) -> tuple[str, ...]:
    """Return a list of texts; numbers and booleans in it become texts."""
    if not isinstance(value, list):
        raise _wrong(key, "a list of texts", value)
    return tuple(word(f"{key}.{position}", item) for position, item in enumerate(value))


def table_of_words(key: str, value: object) -> dict[str, str]:
    """Return a table of texts; numbers and booleans become texts, and nulls are left out."""
    return {name: word(f"{key}.{name}", item) for name, item in table(key, value).items() if item is not None}


def table(key: str, value: object, known: Collection[str] | None = None) -> dict[str, object]:
    """Return a table. With `known`, reject other keys: a mistyped limit must not mean no limit."""
    if not isinstance(value, dict):
        raise _wrong(key, "a table", value)
    for name in value:
        if known is not None and name not in known:
            text = f"{key} must have only {', '.join(known)}, not {quoted(name)}".lstrip()
            raise UnknownKey(text, closest_match(name, known))
    return value


@contextmanager
def below(key: str) -> Iterator[None]:
    """Put a key in front of the keys that `ValueError`s of the block name."""
    try:
        yield
    except ValueError as error:
        is_about_key = str(error).startswith(("must ", "needs "))
        error.args = (f"{key} {error}" if is_about_key else f"{key}.{error}",)
        raise


def settings(key: str, kind: type[T], value: object) -> T:
    """Return an instance of a settings class from a table whose keys are its fields."""
    hints = get_type_hints(kind)
    given = table(key, value, sorted(hints))
    read = {name: typed(f"{key}.{name}", hints[name], item) for name, item in given.items()}
    with below(key):
        return kind(**read)


def flag(key: str, value: object) -> bool:
    """Return a boolean; the texts `true` and `false` too, since a variable is always a text."""
    value = plain(value)
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    raise _wrong(key, "true or false", value)


def number(key: str, value: object) -> float:
    """Return a number, also from a text."""
    value = plain(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value if _is_short(value) else float("inf")
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            pass
    raise _wrong(key, "a number", value)


def integer(key: str, value: object) -> int:
    """Return a whole number, also from a text."""
    value = plain(value)
    if isinstance(value, int) and not isinstance(value, bool) and _is_short(value):
        return value
    if isinstance(value, str) and value.strip().isdecimal() and len(value) < _QUOTED_LENGTH:
        return int(value)
    raise _wrong(key, "a whole number", value)


_BY_TYPE: Mapping[object, Any] = {
    bool: flag,
    int: integer,
    float: number,
    str: text,
    tuple[str, ...]: texts,
    Mapping[str, str]: table_of_words,
}


def typed(key: str, hint: object, value: object) -> Any:
    """Return a value in the type of an annotation; of `X | None`, as X.

    Raises:
        ValueError: the value has another type.
    """
    hint = _without_none(hint)
    if get_origin(hint) is Literal:
        known = get_args(hint)
        if value not in known:
            raise ValueError(f"{key} must be one of {', '.join(known)}, not {quoted(value)}")
        return str(value)
    return _BY_TYPE[hint](key, value)


def _without_none(hint: object) -> object:
    if get_origin(hint) in (Union, types.UnionType):
        [hint] = [arg for arg in get_args(hint) if arg is not type(None)]
    return hint
