"""Python signatures of tools, from their JSON schemas.

A script calls a tool by a Python name with keyword arguments. The signatures here are what a model reads
(`tool_signatures`) and what its script is checked against before it runs. Names, descriptions and schemas are text of
servers: nothing of it becomes code, only names, literals and docstrings. Everything is bounded: what is too large or
too deep becomes `Any`. Pure functions; `code.scripts` and `code.sandbox_in_child` call them.
"""

from __future__ import annotations

import builtins
import hashlib
import keyword
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw

from isthmus.model.hidden_characters import CONTROL, INVISIBLE

_USED: Final = ("Any", "Literal", "NotRequired", "TypedDict")
HEADER = f"from typing import {', '.join(_USED)}\n"
"""What the signatures use."""

SCHEMA_BYTES_MAX = 64 * 1024
"""A tool with a larger schema takes any arguments: reading it would hold the event loop."""

DEPTH_MAX = 8
NODES_MAX = 400
CLASSES_MAX = 40
LITERALS_MAX = 60
"""The bounds of one signature; what is beyond them is `Any`."""

SUMMARY_LENGTH_MAX = 160

NUMBER_BYTES = 3
"""The digest that tells tools apart whose names would be equal; longer where these digests are equal, too."""

_RESERVED: Final = frozenset(dir(builtins)) | {
    *keyword.kwlist,
    *keyword.softkwlist,
    *_USED,
    *("asyncio", "json", "math", "re", "datetime", "time", "typing"),
}
"""Names that a tool must not hide."""

_PARTS: Final = re.compile(r"[A-Za-z0-9]+")
_WORDS: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLAIN: Final = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "null": "None",
}


def python_names(exposed: Iterable[str]) -> dict[str, str]:
    """The Python name of each tool, by its exposed name. Tools whose names would be equal get six hex digits more."""
    spelled = {name: _spelled(name) for name in exposed}
    alike: dict[str, list[str]] = {}
    for name, spelling in spelled.items():
        alike.setdefault(spelling, []).append(name)
    waiting = [spelling for spelling, names in alike.items() if len(names) > 1]
    while waiting:
        spelling = waiting.pop()
        for name, numbered in _numbered(alike.pop(spelling, ()), spelling):
            spelled[name] = numbered
            if numbered in alike:  # a server may call a tool so, to be called instead
                waiting.append(numbered)
    return spelled


def _spelled(name: str) -> str:
    spelling = re.sub(r"[^A-Za-z0-9_]", "_", name) or "_"
    # Names with a leading underscore belong to the hub.
    if not spelling[0].isalpha():
        spelling = f"tool_{spelling.lstrip('_')}"
    return f"{spelling}_" if spelling in _RESERVED else spelling


def _numbered(names: Collection[str], spelling: str) -> list[tuple[str, str]]:
    """Different names for tools of one spelling."""
    size = NUMBER_BYTES
    while True:
        digests = [
            hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=size).hexdigest() for name in names
        ]
        if len(set(digests)) == len(digests):
            return [(name, f"{spelling}_{digest}") for name, digest in zip(names, digests, strict=True)]
        size += 1


def words_in(script: str) -> frozenset[str]:
    """All names that a script could use; a superset."""
    return frozenset(_WORDS.findall(script))


def signatures(tools: Iterable[tuple[str, str, Mapping[str, Raw]]]) -> str:
    """The stubs of tools, each with its Python name, its exposed name and its definition.

    A stub is an `async def` with keyword-only arguments, below its classes. No two classes have one name: the type
    checker would take each of them for either.
    """
    listed = list(tools)
    taken = {*_USED, *(name for name, _, _ in listed)}
    return "\n".join([HEADER, *(_Signature(name, taken).write(exposed, given) for name, exposed, given in listed)])


class _Signature:
    """Writes one signature."""

    def __init__(self, name: str, taken: set[str]) -> None:
        """`taken` are the names that no class may have; those of its own are added."""
        self._name = name
        self._prefix = "".join(part[:1].upper() + part[1:] for part in _PARTS.findall(name)) or "Tool"
        self._classes: list[str] = []
        self._taken = taken
        self._class_count = 0
        self._refs: dict[str, str] = {}
        """The class of each `$ref` that has one: a schema may contain itself."""
        self._nodes = 0
        self._root: Mapping[str, Any] = {}

    def write(self, exposed: str, definition: Mapping[str, Raw]) -> str:
        arguments = self._arguments(_decoded(definition.get("inputSchema")))
        returned = "Any"
        output = _decoded(definition.get("outputSchema"))
        if output:
            self._root, self._refs = output, {}
            returned = self._type(output, "Result", 0)
        summary = _summary(definition.get("description"))
        said = f"{_quoted(exposed)}{': ' if summary else ''}{summary}"
        head = f"async def {self._name}({arguments}) -> {returned}:"
        return "\n".join([*self._classes, head, f'    """{said}"""', "    ...\n"])

    def _arguments(self, schema: Mapping[str, Any] | None) -> str:
        if schema is None:
            return "**arguments: Any"
        self._root = schema
        schema = self._resolved(schema)
        properties = schema.get("properties")
        properties = properties if isinstance(properties, dict) else {}
        required = _names_in(schema.get("required"))
        written: list[str] = []
        takes_others = bool(schema.get("additionalProperties", not properties)) or "patternProperties" in schema
        for name, each in properties.items():
            if not _is_name(name) or len(written) >= NODES_MAX:
                takes_others = True  # `tool(**{"its-name": …})`
                continue
            written.append(f"{name}: {self._type(each, _camel(name), 0)}{'' if name in required else ' = ...'}")
        # Those that must be given come first, as everywhere.
        written.sort(key=lambda each: each.endswith(" = ..."))
        starred = ["*", *written] if written else []
        return ", ".join([*starred, *(["**arguments: Any"] if takes_others else [])])

    def _type(self, schema: object, path: str, depth: int) -> str:
        """The type of values that a schema allows, or a wider one."""
        self._nodes += 1
        if not isinstance(schema, dict) or depth > DEPTH_MAX or self._nodes > NODES_MAX:
            return "Any"
        reference = schema.get("$ref")
        if isinstance(reference, str):
            return self._referred(reference, depth)
        if "const" in schema or "enum" in schema:
            return _literal([schema["const"]] if "const" in schema else schema["enum"])
        for word in ("anyOf", "oneOf"):
            if isinstance(several := schema.get(word), list):
                return _union(self._type(each, f"{path}{at or ''}", depth + 1) for at, each in enumerate(several, 1))
        if isinstance(every := schema.get("allOf"), list):
            return self._type(every[0], path, depth + 1) if len(every) == 1 else "Any"
        kind = schema.get("type")
        if isinstance(kind, list):
            return _union(self._type({**schema, "type": each}, path, depth + 1) for each in kind)
        if kind == "array":
            items = schema.get("items")
            return f"list[{self._type(items, f'{path}Item', depth + 1) if items else 'Any'}]"
        if kind == "object" or "properties" in schema:
            return self._object(schema, path, depth)
        return _PLAIN.get(kind, "Any") if isinstance(kind, str) else "Any"

    def _object(self, schema: Mapping[str, Any], path: str, depth: int, name: str = "") -> str:
        properties = schema.get("properties")
        others = schema.get("additionalProperties")
        if not isinstance(properties, dict) or not properties:
            return f"dict[str, {self._type(others, f'{path}Value', depth + 1) if isinstance(others, dict) else 'Any'}]"
        if others or self._class_count >= CLASSES_MAX or len(properties) > NODES_MAX:
            return "dict[str, Any]"
        name = name or self._class_name(path)
        required = _names_in(schema.get("required"))
        fields: list[tuple[str, str]] = []
        for key, each in properties.items():
            written = self._type(each, f"{path}{_camel(key)}", depth + 1)
            fields.append((key, written if key in required else f"NotRequired[{written}]"))
        if all(_is_name(key) for key, _ in fields):
            body = [f"class {name}(TypedDict):", *(f"    {key}: {written}" for key, written in fields)]
        else:
            body = [f"{name} = TypedDict({name!r}, {{", *(f"    {key!a}: {written}," for key, written in fields), "})"]
        self._classes.extend(body)
        return name

    def _class_name(self, path: str) -> str:
        name = wanted = f"{self._prefix}{path}"[:80]
        number = 1
        while name in self._taken:
            number += 1
            name = f"{wanted}{number}"
        self._taken.add(name)
        self._class_count += 1
        return name

    def _referred(self, reference: str, depth: int) -> str:
        if reference in self._refs:
            return self._refs[reference]
        found = self._lookup(reference)
        if not isinstance(found, dict):
            return "Any"
        path = _camel(reference.rsplit("/", 1)[-1])
        if found.get("type") == "object" and isinstance(found.get("properties"), dict) and found["properties"]:
            if found.get("additionalProperties") or self._class_count >= CLASSES_MAX:
                return "dict[str, Any]"
            name = self._refs[reference] = self._class_name(path)
            return self._object(found, path, depth + 1, name)
        self._refs[reference] = "Any"  # while it is written: it may refer to itself
        self._refs[reference] = written = self._type(found, path, depth + 1)
        return written

    def _lookup(self, reference: str) -> object:
        if not reference.startswith("#/"):
            return None
        found: object = self._root
        for part in reference[2:].split("/")[:DEPTH_MAX]:
            found = found.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
        return found

    def _resolved(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        reference = schema.get("$ref")
        found = self._lookup(reference) if isinstance(reference, str) else None
        return found if isinstance(found, dict) else schema


def _decoded(schema: Raw | None) -> Mapping[str, Any] | None:
    if schema is None or len(memoryview(schema)) > SCHEMA_BYTES_MAX:
        return None
    try:
        decoded = msgspec.json.decode(schema)
    except (msgspec.MsgspecError, RecursionError):
        return None
    return decoded if isinstance(decoded, dict) else None


def _is_name(name: str) -> bool:
    return name.isascii() and name.isidentifier() and not keyword.iskeyword(name) and not name.startswith("__")


def _names_in(required: object) -> frozenset[str]:
    return frozenset(each for each in required if isinstance(each, str)) if isinstance(required, list) else frozenset()


def _camel(name: str) -> str:
    return "".join(part[:1].upper() + part[1:] for part in _PARTS.findall(name))[:40] or "Value"


def _union(types: Iterator[str]) -> str:
    found = list(dict.fromkeys(types))
    if not found or "Any" in found:
        return "Any"
    # None is last, as people write it.
    return " | ".join(sorted(found, key=lambda each: each == "None"))


def _literal(values: object) -> str:
    if not isinstance(values, list) or not 0 < len(values) <= LITERALS_MAX:
        return "Any"
    if not all(each is None or isinstance(each, str | int) for each in values):
        return "Any"
    # `ascii`: whatever a server writes there stays one literal.
    return f"Literal[{', '.join(ascii(each) for each in values)}]"


def _summary(description: Raw | None) -> str:
    """The first line of a description, fit for a docstring."""
    if description is None or len(memoryview(description)) > SCHEMA_BYTES_MAX:
        return ""
    try:
        text = msgspec.json.decode(description, type=str)
    except msgspec.MsgspecError:
        return ""
    line = next((each.strip() for each in text.splitlines() if each.strip()), "")
    cut = line if len(line) <= SUMMARY_LENGTH_MAX else f"{line[: SUMMARY_LENGTH_MAX - 1]}…"
    return _quoted(cut)


def _quoted(text: str) -> str:
    """A text that cannot end a docstring, and has nothing that hides or controls text."""
    return INVISIBLE.sub("", CONTROL.sub("", text)).replace("\\", "/").replace('"', "'")
