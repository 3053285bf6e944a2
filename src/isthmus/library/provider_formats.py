"""Tools and results in the form that language models take.

`ToolDef` and the function schemas are for OpenAI, Anthropic and Gemini; `model_parts` turns a result into text and
images. Nothing here reaches a server. Servers are not trusted: references in a schema are bounded, and a content block
with invalid data becomes text. Called by the manager, the clients, the dispatcher and the integrations.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

import jsonschema_rs
import msgspec

from isthmus.library.public_types import ToolResult, ToolStatus

MCP_RESULT_CHARS = 5_000
"""The length at which results of MCP tools are cut for language models; they tend to be longer than one's own."""

WriteEffect: TypeAlias = Literal["none", "workspace_write", "external_write", "dynamic", "unknown"]
"""What a tool changes: nothing, files of the workspace, other things, depending on its arguments, or unknown."""

OpenAIMode: TypeAlias = Literal["responses", "chat_completions"]


@dataclass(slots=True)
class ToolDef:
    """A tool of a registry."""

    name: str
    description: str
    input_schema: dict[str, Any]
    func: Callable[..., Any]
    """Takes the arguments by name and blocks until there is a result."""
    async_func: Callable[..., Awaitable[Any]] | None = None
    """The async version; without it, `func` is called in its place."""
    sensitive_fields: Collection[str] = ()
    """Arguments whose values must not be displayed; the library displays none."""
    max_result_chars: int = 3000
    """Longer text results are cut; 0 for no limit."""
    truncate_head_chars: int | None = None
    """Characters kept from the beginning; by default all but `truncate_tail_chars`."""
    truncate_tail_chars: int = 0
    write_effect: WriteEffect = "unknown"
    origin: tuple[str, str] | None = None
    """The server, and its name for the tool; None for a tool of the program."""

    def truncate_result(self, text: str) -> str:
        """The text, cut to its beginning and end if it is too long, with a note of the omitted length."""
        return truncate(text, self.max_result_chars, self.truncate_head_chars, self.truncate_tail_chars)

    def to_openai_schema(self, mode: OpenAIMode = "responses") -> dict[str, Any]:
        """The tool for OpenAI's Responses or Chat Completions API."""
        return openai_schema(self.name, self.description, self.input_schema, mode)

    def to_anthropic_schema(self) -> dict[str, Any]:
        """The tool for Anthropic's Messages API."""
        return anthropic_schema(self.name, self.description, self.input_schema)

    def to_gemini_schema(self) -> dict[str, Any]:
        """The function declaration for Gemini."""
        return gemini_schema(self.name, self.description, self.input_schema)


def openai_schema(
    name: str, description: str, schema: Mapping[str, Any], mode: OpenAIMode = "responses"
) -> dict[str, Any]:
    """A tool for OpenAI's Responses or Chat Completions API."""
    function = {"name": name, "description": description, "parameters": provider_schema(schema)}
    match mode:
        case "responses":
            # The default is true, which would make every argument required.
            return {"type": "function", **function, "strict": False}
        case "chat_completions":
            return {"type": "function", "function": function}
        case _:
            raise ValueError(f"mode must be responses or chat_completions, not {mode!r}")


def anthropic_schema(name: str, description: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """A tool for Anthropic's Messages API."""
    return {"name": name, "description": description, "input_schema": provider_schema(schema)}


def gemini_schema(name: str, description: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """A function declaration for Gemini."""
    return {"name": name, "description": description, "parametersJsonSchema": provider_schema(schema)}


NOTE_LENGTH_MAX = 60

_NOTE = re.compile(r"\[[\d,]+ of [\d,]+ characters left out\]")


def truncate(text: str, limit: int, head: int | None = None, tail: int = 0) -> str:
    """Cut a text to `limit` characters from its beginning and end, with a note between them."""
    if limit <= 0 or len(text) <= limit or (len(text) <= limit + NOTE_LENGTH_MAX and _NOTE.search(text)):
        return text  # short enough, or already cut to this limit
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
"""The drafts that servers use; few schemas name theirs."""

_NOT_OUTERMOST = ("anyOf", "oneOf", "allOf", "not", "enum", "if", "then", "else")
"""Keywords that no provider accepts at the top level of a function's schema."""

ALTERNATIVES_DEPTH_MAX = 16
"""Nesting depth of alternatives; real schemas have two or three."""

REFERENCES_MAX = 16
"""Length of a chain of references; real schemas have one or two."""

MEMBERS_MAX = 10_000
"""Total members of all alternatives, counted per reference; real schemas have tens."""

INLINED_MAX = 10_000
"""Total values inlined for references: each reference could stand for the whole schema."""


def schema_problem(schema: object) -> str | None:
    """Why a value is not a valid schema of a tool's arguments; None if it is."""
    if not isinstance(schema, dict):
        return f"it must be an object, not {type(schema).__name__}"
    if schema.get("type", "object") != "object":
        return f"its type must be 'object', not {str(schema['type'])[:40]!r}"
    # `$schema` is ignored: it may be an address that the validator would fetch.
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


def provider_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema that every provider accepts: an object with properties, without top-level alternatives.

    Alternatives are merged: all their properties, and the required members that all of them share. That accepts more
    than the tool does; the hub checks arguments against the tool's own schema.
    """
    outer = _dereference(schema, schema)
    shown = {key: value for key, value in outer.items() if key not in _NOT_OUTERMOST}
    properties, required = _MemberCollector(schema).collect(outer)
    shown |= {"type": "object", "properties": properties}
    if required:
        shown["required"] = required
    return without_dangling_refs(shown, schema)


def without_dangling_refs(shown: dict[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """`shown`, a part of `schema`, without references to missing targets.

    Frameworks and providers fail on one, and with it on all other tools.
    """
    if not _has_refs(shown):
        return shown
    inlined: dict[str, Any] = _RefInliner(shown, schema).inline(shown)
    return inlined


class _MemberCollector:
    """Collects the properties and required members of a schema, including its alternatives.

    The schema comes from a server: each reference is read once, and the result is bounded.
    """

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._known: dict[str, tuple[dict[str, Any], list[str]]] = {}
        self._left = MEMBERS_MAX

    def collect(self, schema: Mapping[str, Any], depth: int = 0) -> tuple[dict[str, Any], list[str]]:
        if depth > ALTERNATIVES_DEPTH_MAX or self._left <= 0:
            return {}, []
        reference = str(schema.get("$ref", ""))
        found = self._known.get(reference)
        if found is None:
            if reference:
                self._known[reference] = ({}, [])  # ends a recursive reference
            found = self._read_members(_dereference(schema, self._root), depth)
            if reference:
                self._known[reference] = found
        self._left -= 1 + len(found[0]) + len(found[1])
        return found

    def _read_members(self, schema: Mapping[str, Any], depth: int) -> tuple[dict[str, Any], list[str]]:
        tables = [_table(schema.get("properties"))]
        required = {name: None for name in _list(schema.get("required")) if isinstance(name, str)}
        for key in ("allOf", "anyOf", "oneOf"):
            branches = [self.collect(each, depth + 1) for each in _list(schema.get(key)) if isinstance(each, dict)]
            tables += [table for table, _ in branches]
            lists = [names for _, names in branches]
            common = set(lists[0]).intersection(*lists[1:]) if lists else set()
            # All of `allOf` apply. Of other alternatives one applies, so only shared names are required.
            names = [name for each in lists for name in each] if key == "allOf" else lists[0] if lists else []
            required.update({name: None for name in names if key == "allOf" or name in common})
        properties: dict[str, Any] = {}
        for table in reversed(tables):  # the first table wins
            properties.update(table)
        return properties, list(required)


def _dereference(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema, with a top-level reference within the document replaced by its target."""
    seen: set[str] = set()
    while len(seen) < REFERENCES_MAX:
        reference = schema.get("$ref")
        steps = reference.split("/") if isinstance(reference, str) and reference not in seen else []
        if len(steps) != 3 or steps[0] != "#" or steps[1] not in ("$defs", "definitions"):
            break
        seen.add("/".join(steps))
        target = _table(root.get(steps[1])).get(steps[2].replace("~1", "/").replace("~0", "~"))
        if not isinstance(target, dict):
            break
        schema = {**{key: value for key, value in schema.items() if key != "$ref"}, **target}
    return schema


def _walk(value: object) -> Iterator[object]:
    """Yield a value and everything inside it."""
    left = [value]
    while left:
        yield (part := left.pop())
        if isinstance(part, dict):
            left += part.values()
        elif isinstance(part, list):
            left += part


def _has_refs(value: object) -> bool:
    return any(isinstance(part, dict) and isinstance(part.get("$ref"), str) for part in _walk(value))


class _RefInliner:
    """Replaces references without a target in `shown` by their target in the whole schema, or by `{}`."""

    def __init__(self, shown: Mapping[str, Any], schema: Mapping[str, Any]) -> None:
        self._shown = shown
        self._schema = schema
        self._known: dict[str, tuple[dict[str, Any], int]] = {}
        self._left = INLINED_MAX

    def inline(self, value: Any) -> Any:
        """Return a copy of a part of `shown`."""
        match value:
            case {"$ref": str(reference), **others} if _at(reference, self._shown) is None:
                if reference not in self._known:
                    target = _at(reference, self._schema)
                    target = {} if target is None or _has_refs(target) else target
                    self._known[reference] = target, sum(1 for _ in _walk(target))
                target, size = self._known[reference]
                if size > self._left:
                    return self.inline(others)
                self._left -= size
                return {**target, **self.inline(others)}
            case dict():
                return {key: self.inline(each) for key, each in value.items()}
            case list():
                return [self.inline(each) for each in value]
            case _:
                return value


def _at(reference: str, schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """The target of a JSON pointer, read like LangChain, which ignores escapes."""
    start, *steps = reference.split("/")
    found: Any = schema if start == "#" else None
    for step in steps:
        if isinstance(found, dict):
            found = found.get(step)
        elif (
            isinstance(found, list)
            and step.isascii()
            and step.isdecimal()
            and len(step) <= len(str(len(found)))  # `int` rejects very long numbers
            and int(step) < len(found)
        ):
            found = found[int(step)]
        else:
            return None
    return found if isinstance(found, dict) else None


def _table(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


# -- results -----------------------------------------------------------------------------------------------------------

IMAGE_TYPES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""Image types that providers accept. With any other, such as SVG, they reject the whole conversation."""


@dataclass(frozen=True, slots=True)
class ModelText:
    """Text."""

    text: str


@dataclass(frozen=True, slots=True)
class ModelImage:
    """An image, in base64."""

    data: str
    mime: str

    @property
    def url(self) -> str:
        """The image as a data URL."""
        return f"data:{self.mime};base64,{self.data}"


ModelPart: TypeAlias = ModelText | ModelImage


def model_parts(result: ToolResult) -> list[ModelPart]:
    """The content of a result in order, or the error message of a failure; never an empty list.

    Blank texts are left out, since providers reject them; a result without content is one empty text.
    """
    return [part for part in _all_parts(result) if not _is_blank(part)] or [ModelText("")]


def result_text(result: ToolResult) -> str:
    """The content of a result as text; an image is only named."""
    return "\n".join(
        part.text
        if isinstance(part, ModelText)
        else block_text({"type": "image", "data": part.data, "mimeType": part.mime})
        for part in _all_parts(result)
    )


def result_value(result: ToolResult) -> Any:
    """The structured content of a result if there is any, otherwise its text.

    Servers wrap values that are not objects as `{"result": value}`; they are unwrapped.
    """
    if not _is_structured(result):
        return result_text(result)
    match result.result_data:
        case {"result": value, **others} if not others:
            return value
        case value:
            return value


def result_record(result: ToolResult) -> dict[str, Any]:
    """A result as plain JSON for programs: status, structured content and error."""
    record: dict[str, Any] = {
        "status": str(result.status),
        "tool": result.tool_name,
        "server": result.tool_namespace,
        "execution_time": result.execution_time,
        "session_id": result.session_id,
    }
    if _is_structured(result):
        record["structured_content"] = result.result_data
    if result.error is not None:
        record["error"] = {**asdict(result.error), "code": str(result.error.code)}
    return record


def to_json(value: Any) -> str:
    """A value as JSON; other types as their `str`."""
    return msgspec.json.encode(value, enc_hook=str).decode()


def _all_parts(result: ToolResult) -> list[ModelPart]:
    content: list[dict[str, Any]] = result.metadata.get("content") or []
    parts = [image_from_block(block) or ModelText(block_text(block)) for block in content]
    has_content = bool(parts) and (
        result.status is ToolStatus.SUCCESS
        or (result.status is ToolStatus.ERROR and not all(_is_blank(part) for part in parts))
    )
    if has_content:
        return parts
    if result.status is not ToolStatus.SUCCESS:
        return [ModelText(result.error_message or f"{result.tool_name} failed: {result.status}")]
    return [ModelText(to_json(result.result_data) if _is_structured(result) else "")]


def _is_structured(result: ToolResult) -> bool:
    return bool(result.metadata.get("structured"))


def image_from_block(block: dict[str, Any]) -> ModelImage | None:
    """A content block as an image that models accept; None if it is not one."""
    match block:
        case {"type": "image", "data": str(data), "mimeType": str(mime)}:
            kind = mime.partition(";")[0].strip().lower().replace("image/jpg", "image/jpeg")
            joined = "".join(data.split())  # e-mail and Python's `encodebytes` split base64 into lines
            try:
                is_valid = kind in IMAGE_TYPES and bool(binascii.a2b_base64(joined, strict_mode=True))
            except ValueError:
                is_valid = False
            return ModelImage(joined, kind) if is_valid else None
        case _:
            return None


def _is_blank(part: ModelPart) -> bool:
    return isinstance(part, ModelText) and not part.text.strip()


def block_text(block: Mapping[str, Any]) -> str:
    """A content block as text; other content is named, with its size."""
    match block:
        case {"type": "text", "text": str(text)} | {"type": "resource", "resource": {"text": str(text)}}:
            return text
        case {"type": "resource_link", "uri": str(uri)}:
            return f"[resource {uri}]"
        case {"type": "resource", "resource": {"uri": str(uri), "blob": str(data)}}:
            return f"[resource {uri}, {_bytes_in(data)} bytes]"
        case {"type": "image" | "audio" as kind, "data": str(data)}:
            return f"[{kind} {block.get('mimeType', 'of unknown type')}, {_bytes_in(data)} bytes]"
        case _:
            return to_json(block)


def _bytes_in(base64: str) -> str:
    return f"{len(base64.rstrip('=')) * 3 // 4:,}"
