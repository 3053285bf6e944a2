"""The arguments of a call, from words like `text=hello`, `count=3`, `tags:=["a"]`, `body=@file`, to JSON.

What the words mean depends on the tool's own schema: `3` is a number where a number is wanted and text
elsewhere. Values that are JSON already keep their exact text, so that no digit of a large number is lost.
Called by `isthmus call`; files are read by the function it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from isthmus.cli.exits import CommandFailed, Exit
from isthmus.wire.jsonrpc import object_members, render

Read: TypeAlias = Callable[[str], str]
"""Returns the text of a file, `-` being standard input; raises `OSError` or `UnicodeError`."""

HOW = "Write name=text, name:=JSON or name=@FILE (@- is standard input); or give all of them as --args JSON."


def arguments_of(words: Sequence[str], whole: str | None, schema: msgspec.Raw | None, read: Read) -> msgspec.Raw:
    """Return the arguments as one JSON object.

    Raises:
        CommandFailed: a word cannot be understood; the message names it.
    """
    if whole is not None and words:
        raise _wrong("--args and name=value exclude each other")
    if whole is not None:
        return _whole(_contents("--args", whole, read))
    properties = _properties(schema)
    members: dict[str, bytes] = {}
    for word in words:
        name, value = _member(word, properties, read)
        if name in members:
            raise _wrong(f"{name} is given twice")
        members[name] = value
    return msgspec.Raw(render(members))


def _whole(text: str) -> msgspec.Raw:
    value = _json("--args", text, "a JSON object")
    if object_members(value) is None:
        raise _wrong("--args must be a JSON object in which no name is repeated")
    return msgspec.Raw(value)


def _member(word: str, properties: Mapping[str, Any], read: Read) -> tuple[str, bytes]:
    name, equals, text = word.partition("=")
    is_json = name.endswith(":")
    name = name.removesuffix(":")
    if not equals or not name:
        raise _wrong(f"{word!r} is not an argument")
    text = _contents(name, text, read)
    kinds = _kinds(properties.get(name))
    if is_json:
        return name, _json(name, text, "JSON")
    if not kinds or "string" in kinds:
        return name, _text(name, text)
    return name, _json(name, text, " or ".join(sorted(kinds)))


def _contents(name: str, text: str, read: Read) -> str:
    if not text.startswith("@"):
        return text
    try:
        return read(text[1:])
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        advice = f"If the text itself begins with @, write {name}:='\"{text}\"'."
        raise CommandFailed(Exit.USAGE, f"{name}: cannot read {text[1:]!r}: {why}", advice) from None


def _json(name: str, text: str, wanted: str) -> bytes:
    """Return JSON as it is written, once it is known to be JSON."""
    try:
        raw = text.strip().encode()
        msgspec.json.decode(raw)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise _wrong(f"{name} must be {wanted}, not {_cut(text)} ({error})") from None
    return raw


def _text(name: str, text: str) -> bytes:
    try:
        return msgspec.json.encode(text)
    except ValueError:  # UnicodeEncodeError: bytes that are no UTF-8 arrive as lone surrogates
        raise _wrong(f"{name} is not UTF-8 text") from None


def _cut(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}…")


def _wrong(text: str) -> CommandFailed:
    return CommandFailed(Exit.USAGE, text, HOW)


# -- what the schema says ------------------------------------------------------------------------------------


def _properties(schema: msgspec.Raw | None) -> dict[str, Any]:
    """Return the schema of each argument, with references of the kind that generators write followed."""
    try:
        root = msgspec.json.decode(schema) if schema is not None else {}
    except (msgspec.MsgspecError, RecursionError):
        return {}
    properties = root.get("properties") if isinstance(root, dict) else None
    if not isinstance(properties, dict):
        return {}
    return {name: _followed(property, root) for name, property in properties.items()}


def _followed(schema: Any, root: Mapping[str, Any]) -> Any:
    reference = schema.get("$ref") if isinstance(schema, dict) else None
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return schema
    found: Any = root
    for step in reference[2:].split("/"):
        found = found.get(step) if isinstance(found, dict) else None
    return found


def _kinds(schema: Any) -> set[str]:
    """Return the JSON types that an argument may have; none if the schema does not say."""
    if not isinstance(schema, dict):
        return set()
    named = schema.get("type", [])
    kinds = {kind for kind in ([named] if isinstance(named, str) else named) if isinstance(kind, str)}
    for key in ("anyOf", "oneOf"):
        for choice in schema.get(key) or ():
            kinds |= _kinds(choice)
    return kinds
