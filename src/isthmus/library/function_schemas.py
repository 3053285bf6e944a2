"""A tool as a registry keeps it, and the forms in which language models and their programs take it.

Plain values and functions: a definition, its schema for each provider, a text cut to size. Nothing here reaches a
server. Called by the registry and by those who fill it.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import jsonschema_rs
import msgspec

MCP_RESULT_CHARS = 5_000
"""How much of an MCP tool's result a language model is shown; others' tools say more than one's own."""

WriteEffect: TypeAlias = Literal["none", "workspace_write", "external_write", "dynamic", "unknown"]
"""What a tool changes: nothing, files of the workspace, something elsewhere, what its arguments say, or who knows."""

OpenAIMode: TypeAlias = Literal["responses", "chat_completions"]


@dataclass(slots=True)
class ToolDef:
    """A tool of a registry."""

    name: str
    description: str
    input_schema: dict[str, Any]
    func: Callable[..., Any]
    """Takes the arguments by name, and blocks until there is a result."""
    async_func: Callable[..., Awaitable[Any]] | None = None
    """The same to be awaited; without it, `func` is called there too."""
    sensitive_fields: Collection[str] = ()
    """Arguments whose values nobody should be shown; nothing here shows any."""
    max_result_chars: int = 3000
    """How much of a result that is text is kept; 0 for all."""
    truncate_head_chars: int | None = None
    """How much of that is from the beginning; all that `truncate_tail_chars` leaves, unless said."""
    truncate_tail_chars: int = 0
    write_effect: WriteEffect = "unknown"
    origin: tuple[str, str] | None = None
    """The server, and what that calls the tool; None for a tool of one's own."""

    def truncate_result(self, text: str) -> str:
        """The text if it is short enough, otherwise its beginning and end and how much was left out."""
        return cut(text, self.max_result_chars, self.truncate_head_chars, self.truncate_tail_chars)

    def to_openai_schema(self, mode: OpenAIMode = "responses") -> dict[str, Any]:
        """What OpenAI's Responses or Chat Completions take for a tool."""
        return openai_form(self.name, self.description, self.input_schema, mode)

    def to_anthropic_schema(self) -> dict[str, Any]:
        """What Anthropic's Messages take for a tool."""
        return anthropic_form(self.name, self.description, self.input_schema)

    def to_gemini_schema(self) -> dict[str, Any]:
        """What Gemini takes for a function's declaration."""
        return gemini_form(self.name, self.description, self.input_schema)


def openai_form(
    name: str, description: str, schema: Mapping[str, Any], mode: OpenAIMode = "responses"
) -> dict[str, Any]:
    """A tool for OpenAI's Responses or Chat Completions."""
    function = {"name": name, "description": description, "parameters": for_model(schema)}
    match mode:
        case "responses":
            # Left out it would mean true there, and make every argument a required one.
            return {"type": "function", **function, "strict": False}
        case "chat_completions":
            return {"type": "function", "function": function}
        case _:
            raise ValueError(f"mode must be responses or chat_completions, not {mode!r}")


def anthropic_form(name: str, description: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """A tool for Anthropic's Messages."""
    return {"name": name, "description": description, "input_schema": for_model(schema)}


def gemini_form(name: str, description: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """A function's declaration for Gemini."""
    return {"name": name, "description": description, "parametersJsonSchema": for_model(schema)}


NOTE_LENGTH_MAX = 60

_NOTE = re.compile(r"\[[\d,]+ of [\d,]+ characters left out\]")


def cut(text: str, limit: int, head: int | None = None, tail: int = 0) -> str:
    """At most `limit` characters of a text, and between them how many were left out."""
    if limit <= 0 or len(text) <= limit or (len(text) <= limit + NOTE_LENGTH_MAX and _NOTE.search(text)):
        return text  # short enough, or cut already by somebody with the same limit
    tail = max(0, min(tail, limit))
    head = limit - tail if head is None else max(0, min(head, limit - tail))
    note = f"[{len(text) - head - tail:,} of {len(text):,} characters left out]"
    return "\n".join(part for part in (text[:head], note, text[len(text) - tail :]) if part)


# -- schemas -----------------------------------------------------------------------------------------------------------

PROBLEM_LENGTH_MAX = 200

_DRAFTS = (
    "https://json-schema.org/draft/2020-12/schema",
    "http://json-schema.org/draft-07/schema#",
    "http://json-schema.org/draft-04/schema#",
)
"""What servers write their schemas by, few of which say so."""

_NOT_OUTERMOST = ("anyOf", "oneOf", "allOf", "not", "enum", "if", "then", "else")
"""What no provider takes in the outermost schema of a function's arguments."""

ALTERNATIVES_DEPTH_MAX = 16
"""How far alternatives within alternatives are looked into; people write two or three."""

REFERENCES_MAX = 16
"""How many references are followed one after the other; people write one or two."""

MEMBERS_MAX = 10_000
"""How many members alternatives may have together, each as often as it is referred to; people write tens."""

MENDED_MAX = 10_000
"""How many values may be written out in the places of references: each could mean as much as the schema has."""


def problem_of(schema: object) -> str | None:
    """Why something is not the schema of a tool's arguments; None if it is one."""
    if not isinstance(schema, dict):
        return f"it is not an object but {type(schema).__name__}"
    if schema.get("type", "object") != "object":
        return f"it is for {str(schema['type'])[:40]!r} and not for an object"
    # Its own word for its draft is not asked: it may be an address, and would be fetched.
    newest = _problem_under(_DRAFTS[0], schema)
    return newest if newest and all(_problem_under(draft, schema) for draft in _DRAFTS[1:]) else None


def _problem_under(draft: str, schema: dict[str, Any]) -> str | None:
    try:
        jsonschema_rs.meta.validate({**schema, "$schema": draft})
    except jsonschema_rs.ValidationError as error:
        where = ".".join(str(step) for step in error.instance_path)
        return f"{f'{where}: ' if where else ''}{error.message}"[:PROBLEM_LENGTH_MAX]
    except ValueError as error:
        return str(error)[:PROBLEM_LENGTH_MAX]
    return None


def for_model(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema that every provider takes: for an object, with properties, and without alternatives outermost.

    Of alternatives it has the properties of all of them, and requires what all of them do. That allows more than the
    tool does; its own schema is what arguments are checked against.
    """
    outer = _followed(schema, schema)
    shown = {key: value for key, value in outer.items() if key not in _NOT_OUTERMOST}
    properties, required = _Members(schema).of(outer)
    shown |= {"type": "object", "properties": properties}
    if required:
        shown["required"] = required
    return mended(shown, schema)


def mended(shown: dict[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """What is shown of a schema, without references that lead nowhere.

    Frameworks, and providers, fail over one, with all other tools.
    """
    whole: dict[str, Any] = _Mending(shown, schema).of(shown) if _refers(shown) else shown
    return whole


class _Members:
    """What an object may have and must have by a schema, alternatives included.

    The schema comes from a server: what is referred to is looked at once, and what is found is bounded.
    """

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._known: dict[str, tuple[dict[str, Any], list[str]]] = {}
        self._left = MEMBERS_MAX

    def of(self, schema: Mapping[str, Any], depth: int = 0) -> tuple[dict[str, Any], list[str]]:
        if depth > ALTERNATIVES_DEPTH_MAX or self._left <= 0:
            return {}, []
        reference = str(schema.get("$ref", ""))
        found = self._known.get(reference)
        if found is None:
            if reference:
                self._known[reference] = ({}, [])  # for who refers to itself
            found = self._found(_followed(schema, self._root), depth)
            if reference:
                self._known[reference] = found
        self._left -= 1 + len(found[0]) + len(found[1])
        return found

    def _found(self, schema: Mapping[str, Any], depth: int) -> tuple[dict[str, Any], list[str]]:
        tables = [_table(schema.get("properties"))]
        required = dict.fromkeys(_names(schema.get("required")))
        for key in ("allOf", "anyOf", "oneOf"):
            branches = [self.of(each, depth + 1) for each in _list(schema.get(key)) if isinstance(each, dict)]
            tables += [theirs for theirs, _ in branches]
            required.update(dict.fromkeys(_required_by([names for _, names in branches], is_each=key == "allOf")))
        properties: dict[str, Any] = {}
        for table in reversed(tables):  # what comes first counts
            properties.update(table)
        return properties, list(required)


def _followed(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema itself, or the one of the same document that it merely refers to."""
    seen: set[str] = set()
    while len(seen) < REFERENCES_MAX and (found := _referred(schema, root, seen)) is not None:
        schema = {**{key: value for key, value in schema.items() if key != "$ref"}, **found}
    return schema


def _referred(schema: Mapping[str, Any], root: Mapping[str, Any], seen: set[str]) -> dict[str, Any] | None:
    reference = schema.get("$ref")
    steps = reference.split("/") if isinstance(reference, str) and reference not in seen else []
    if len(steps) != 3 or steps[0] != "#" or steps[1] not in ("$defs", "definitions"):
        return None
    seen.add("/".join(steps))
    found = _table(root.get(steps[1])).get(steps[2].replace("~1", "/").replace("~0", "~"))
    return found if isinstance(found, dict) else None


def _required_by(wanted: list[list[str]], *, is_each: bool) -> list[str]:
    if is_each:
        return [name for names in wanted for name in names]
    common = set(wanted[0]).intersection(*wanted[1:]) if wanted else set()
    return [name for name in wanted[0] if name in common] if common else []


def _parts(value: object) -> Iterator[object]:
    """A value, and all that is in it."""
    left = [value]
    while left:
        yield (part := left.pop())
        if isinstance(part, dict):
            left += part.values()
        elif isinstance(part, list):
            left += part


def _refers(value: object) -> bool:
    return any(isinstance(part, dict) and isinstance(part.get("$ref"), str) for part in _parts(value))


class _Mending:
    """Has what leads nowhere in what is shown be what it meant in the whole schema, or anything."""

    def __init__(self, shown: Mapping[str, Any], schema: Mapping[str, Any]) -> None:
        self._shown = shown
        self._schema = schema
        self._known: dict[str, tuple[dict[str, Any], int]] = {}
        self._left = MENDED_MAX

    def of(self, value: Any) -> Any:
        """A part of what is shown."""
        match value:
            case {"$ref": str(reference), **others} if _at(reference, self._shown) is None:
                return {**self._meant_by(reference), **self.of(others)}
            case dict():
                return {key: self.of(each) for key, each in value.items()}
            case list():
                return [self.of(each) for each in value]
            case _:
                return value

    def _meant_by(self, reference: str) -> dict[str, Any]:
        if reference not in self._known:
            meant = _at(reference, self._schema)
            meant = {} if meant is None or _refers(meant) else meant
            self._known[reference] = meant, sum(1 for _ in _parts(meant))
        meant, size = self._known[reference]
        if size > self._left:
            return {}
        self._left -= size
        return meant


def _at(reference: str, schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """What a pointer points to, read as LangChain does, which knows no escapes."""
    start, *steps = reference.split("/")
    found: Any = schema if start == "#" else None
    for step in steps:
        if isinstance(found, dict):
            found = found.get(step)
        elif isinstance(found, list) and _is_index(step, len(found)):
            found = found[int(step)]
        else:
            return None
    return found if isinstance(found, dict) else None


def _is_index(step: str, length: int) -> bool:
    is_number = step.isascii() and step.isdecimal() and len(step) <= len(str(length))  # `int` refuses very long ones
    return is_number and int(step) < length


def _table(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _names(value: object) -> list[str]:
    return [name for name in _list(value) if isinstance(name, str)]


# -- content -----------------------------------------------------------------------------------------------------------


def block_text(block: Mapping[str, Any]) -> str:
    """One block of a tool's answer in words: what is no text is named, with its size."""
    match block:
        case {"type": "text", "text": str(text)} | {"type": "resource", "resource": {"text": str(text)}}:
            return text
        case {"type": "resource_link", "uri": str(uri)}:
            return f"[resource {uri}]"
        case {"type": "resource", "resource": {"uri": str(uri), "blob": str(data)}}:
            return f"[resource {uri}, {_bytes_in(data)} bytes]"
        case {"type": "image" | "audio" as kind, "data": str(data)}:
            return f"[{kind} {block.get('mimeType', 'of unknown kind')}, {_bytes_in(data)} bytes]"
        case _:
            return msgspec.json.encode(block, enc_hook=str).decode()


def _bytes_in(base64: str) -> str:
    return f"{len(base64.rstrip('=')) * 3 // 4:,}"
