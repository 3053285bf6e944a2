"""Hooks for msgspec: pydantic models and paths as types of parameters and results.

Models are recognized by their methods, so that pydantic is not a dependency.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import fields, is_dataclass
from pathlib import PurePath
from typing import Annotated, Any, get_args, get_origin

import msgspec

REF = "#/$defs/"

LIMITS = ("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "pattern")
"""What a type may be limited by; msgspec has the same words."""


_ODD = re.compile(r"[^A-Za-z0-9_-]")
"""What cannot stand in a reference as it is, such as the brackets of a generic model; pydantic does the same."""


class SameName(ValueError):
    """Two types of one name in one signature."""


def schema_of(kind: type, parts: dict[str, Any]) -> dict[str, Any]:
    """The schema of a type; what it refers to is added to `parts`, by names that say whose they are.

    Raises:
        NotImplementedError: it is none of these types, as msgspec wants to hear it.
        TypeError: it has no schema.
        SameName: another type of this name is there already.
    """
    if _is_path(kind):
        return {"type": "string", "format": "path"}
    if not _is_model(kind):
        raise NotImplementedError
    owner = _ODD.sub("_", kind.__name__)
    try:
        schema: dict[str, Any] = kind.model_json_schema(ref_template=f"{REF}{owner}.{{model}}")  # type: ignore[attr-defined]
    except Exception as error:
        # A field that JSON has not, or a name that is not defined yet; further lines lead to pydantic's own pages.
        raise TypeError(str(error).partition("\n")[0]) from error
    for name, part in schema.pop("$defs", {}).items():
        if parts.setdefault(f"{owner}.{name}", part) != part:
            raise SameName(f"two of its types are called {owner}, and differ: rename one")
    return schema


def decoded(kind: type, value: Any) -> Any:
    """A value of JSON as one of a type.

    Raises:
        ValueError: it is none; the message says of which of its fields that is so.
        NotImplementedError: as `schema_of`.
    """
    if _is_model(kind):
        try:
            # As JSON, and not as Python's values: models that are strict take a date that is a text there only.
            return kind.model_validate_json(msgspec.json.encode(value))  # type: ignore[attr-defined]
        except ValueError as error:
            raise ValueError(_words_of(error)) from error
    if _is_path(kind):
        if not isinstance(value, str):
            raise ValueError(f"Expected `str`, got `{type(value).__name__}`")
        return kind(value)
    raise NotImplementedError


def encoded(value: Any) -> Any:
    """A value as one that JSON has.

    Raises:
        TypeError: it has no such form; the message says what has.
    """
    if _is_model(type(value)):
        return value.model_dump(mode="json", by_alias=True)
    if isinstance(value, PurePath):
        return str(value)
    if inspect.iscoroutine(value):
        value.close()  # nobody will await it, and Python would complain about that
        raise TypeError("the tool's result is to be awaited: write the function as an `async def`, not inline")
    raise TypeError(
        f"the tool's result has a value of type {type(value).__name__}, which JSON has not: "
        "return text, numbers, lists, dictionaries, dataclasses or models"
    )


def with_limits(annotation: Any) -> Any:
    """The same type with the limits that `Annotated` says in pydantic's words, or in those of annotated-types.

    Raises:
        TypeError: they cannot be described.
    """
    if get_origin(annotation) is not Annotated:
        return annotation
    said = [one for extra in get_args(annotation)[1:] for one in (extra, *_parts_of(extra))]
    found = {name: getattr(one, name, None) for one in said for name in LIMITS if _has(one, name)}
    return Annotated[annotation, msgspec.Meta(**found)] if found else annotation


def with_defaults(value: Any) -> Any:
    """The same value, where every dataclass has its defaults as fields of its own.

    msgspec leaves those that were not given to the class, where it does not look when it writes one: a function that
    returned what it was given would lose them.
    """
    if isinstance(value, dict):
        for part in value.values():
            with_defaults(part)
    elif isinstance(value, list | tuple | set | frozenset):
        for part in value:
            with_defaults(part)
    elif is_dataclass(value) and not isinstance(value, type):
        held = getattr(value, "__dict__", {})
        for field in fields(value):
            part = getattr(value, field.name)
            held.setdefault(field.name, part)
            with_defaults(part)
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            with_defaults(getattr(value, name))
    return value


def _is_model(kind: Any) -> bool:
    return hasattr(kind, "model_json_schema") and hasattr(kind, "model_validate_json")


def is_field(default: Any) -> bool:
    """Whether a parameter's default is what pydantic has for a model's field, and no value."""
    return type(default).__name__ == "FieldInfo" and hasattr(default, "metadata")


def _parts_of(extra: Any) -> tuple[Any, ...]:
    return tuple(extra.metadata) if is_field(extra) else ()


def _has(said: Any, name: str) -> bool:
    return not isinstance(said, msgspec.Meta) and getattr(said, name, None) is not None


def _is_path(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, PurePath)


def _words_of(error: ValueError) -> str:
    """What is wrong, field by field, without pydantic's advertisement of its own pages."""
    told = getattr(error, "errors", None)
    if told is None:
        return str(error)
    return "; ".join(f"{'.'.join(map(str, one['loc'])) or 'it'}: {one['msg']}" for one in told())
