"""Reading plain values out of a parsed file: the checks of type, not of range.

Each function takes a key and what the file has there and returns it in the type that a setting wants, or
raises `ValueError` in the words "<key> must be …, not <value>". Ranges are the business of the settings
themselves. The values of some keys may be secret or hold one; those are never quoted. Called by the other
modules of this room.
"""

from __future__ import annotations

import json

_SHOWN_LENGTH = 60
_HIDDEN = frozenset(
    {"key", "env", "headers", "url", "rpc", "agent", "args", "defaults", "oauth", "callers", "old_keys"}
    | {"credentials", "settings"}
)
"""Keys whose values are named by kind only."""


class Lent(str):
    """A text that holds something from a variable, and so perhaps a secret."""

    __slots__ = ()


class Spelt(str):
    """A number or a boolean in letters that its value alone would not tell, such as `1.10` or `007`.

    It is a text where a text is wanted, so that nobody gets another one than was written.
    """

    __slots__ = ("value",)
    value: float


def spelt(text: str, value: float) -> float | Spelt:
    """Return a value that a file has in these letters."""
    if _written(value) == text:
        return value
    made = Spelt(text)
    made.value = value
    return made


def plain(value: object) -> object:
    """Return a value without what is only known of its letters, in lists and tables too."""
    match value:
        case Spelt():
            return value.value
        case list():
            return [plain(item) for item in value]
        case dict():
            return {key: plain(item) for key, item in value.items()}
        case _:
            return value


def _meant(value: object) -> object:
    return value.value if isinstance(value, Spelt) else value


def _written(value: float) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if _is_short(value) else ""


def shown(value: object) -> str:
    """Return a value as a message may quote it."""
    value = _meant(value)
    if isinstance(value, Lent):
        return "what its variable holds"
    if isinstance(value, str):
        return repr(value if len(value) <= _SHOWN_LENGTH else value[: _SHOWN_LENGTH - 1] + "…")
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return str(value) if isinstance(value, int | float) and _is_short(value) else _kind(value)


def _is_short(number: float) -> bool:
    # Past some four thousand digits Python refuses to write an integer at all.
    return not isinstance(number, int) or number.bit_length() < 128


def _kind(value: object) -> str:
    match _meant(value):
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
    return ValueError(f"{key} must be {wanted}, not {_kind(value) if is_hidden else shown(value)}")


def text(key: str, value: object) -> str:
    """Return a text."""
    if not isinstance(value, str):
        raise _wrong(key, "a text", value)
    return str(value)  # no longer as `Lent`: settings hold plain texts


def texts(key: str, value: object) -> tuple[str, ...]:
    """Return a list of texts."""
    if not isinstance(value, list):
        raise _wrong(key, "a list of texts", value)
    return tuple(text(f"{key}.{position}", item) for position, item in enumerate(value))


def word(key: str, value: object) -> str:
    """Return a text; a number or a boolean is written out, as people leave the quotes away."""
    if isinstance(value, bool | float) or (isinstance(value, int) and _is_short(value)):
        return _written(value)
    return text(key, value)


def words(key: str, value: object) -> tuple[str, ...]:
    """Return a list of words."""
    if not isinstance(value, list):
        raise _wrong(key, "a list of texts", value)
    return tuple(word(f"{key}.{position}", item) for position, item in enumerate(value))


def table_of_words(key: str, value: object) -> dict[str, str]:
    """Return a table of words; a null is as if the line were not there."""
    return {name: word(f"{key}.{name}", item) for name, item in table(key, value).items() if item is not None}


def table(key: str, value: object) -> dict[str, object]:
    """Return a table."""
    if not isinstance(value, dict):
        raise _wrong(key, "a table", value)
    return value


def flag(key: str, value: object) -> bool:
    """Return a boolean; the words true and false do too, since a variable can only be a text."""
    value = _meant(value)
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    raise _wrong(key, "true or false", value)


def number(key: str, value: object) -> float:
    """Return a number; a text that reads as one does too."""
    value = _meant(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value if _is_short(value) else float("inf")
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            pass
    raise _wrong(key, "a number", value)


def integer(key: str, value: object) -> int:
    """Return a whole number; a text that reads as one does too."""
    value = _meant(value)
    if isinstance(value, int) and not isinstance(value, bool) and _is_short(value):
        return value
    if isinstance(value, str) and value.strip().isdecimal() and len(value) < _SHOWN_LENGTH:
        return int(value)
    raise _wrong(key, "a whole number", value)
