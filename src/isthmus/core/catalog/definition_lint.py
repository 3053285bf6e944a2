"""What is odd about a definition that a model will read: characters that nobody sees, orders, names that deceive.

Nothing is changed or left out for it: what is odd is listed as its server wrote it, with a mark in its `_meta`. Who
means to deceive a model in plain words cannot be told from who describes a tool; what is found here is the careless
part of them. `core.catalog.review` calls it for whatever a server lists.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, Literal, TypeAlias, TypeVar
from urllib.parse import urldefrag, urljoin

import msgspec

from isthmus.model.features import Feature, Prompt, Tool
from isthmus.model.unsafe_characters import CONTROL, INVISIBLE, MISJOINED

MARK: Final = "isthmus/flags"
"""The member of `_meta` under which a model's program finds them."""

DESCRIPTION_BYTES: Final = 2048
"""A longer description is no description any more."""

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
"""What the protocol wants names to be made of: letters of another alphabet may look just like these."""

_HINTS: Final = (
    *(b"<", b"ignore", b"disregard", b"forget", b"override", b"ssh", b"id_rsa", b".env"),
    *(b"do not", b"do  ", b"using this", b"using any", b"using  "),
)
"""What of JSON has none of these is not searched for orders: that takes far longer."""

_OTHERS = re.compile(
    r"\b.{0,40}?\b(?:previous|prior|above|earlier|all other|other)\b.{0,30}?"
    r"\b(?:instructions?|rules|prompts?|messages|tools?)\b"
)
_SILENCE = re.compile(r" (?:tell|mention|inform|show|reveal|notify)\b.{0,40}?\b(?:user|human|person|anyone)\b")
_FIRST = re.compile(r" (?:this|any other) tool\b.{0,60}?\b(?:read|send|pass|include|call)\b")
_TAG = re.compile(r" ?/? ?(?:important|system|instructions?|secret) ?>")

_ORDERS: Final = {
    "<": _TAG,
    **dict.fromkeys(("ignore", "disregard", "forget", "override"), _OTHERS),
    "do not": _SILENCE,
    **dict.fromkeys(("before using", "when using"), _FIRST),
    "~/.ssh": re.compile(""),
    "id_rsa": re.compile(r"\b"),
    ".env": re.compile(r"\b.{0,40}?\bcontents?\b"),
}
"""How orders begin, and how they go on, with one blank between words."""

BEGINNINGS_MAX: Final = 30
"""A definition with more beginnings of one kind is marked for them: to look behind each would hold up every call."""

F = TypeVar("F", bound=Feature)


def flags_of(feature: Feature) -> tuple[str, ...]:
    """What is odd about a definition, in the words that callers are told."""
    texts = [] if _is_plain(feature) else list(_texts(feature))
    odd = [text for text in texts if not (text.isascii() and text.isprintable())]
    found = {
        "control-characters": any(CONTROL.search(text) for text in odd),
        "invisible-characters": any(INVISIBLE.search(text) or MISJOINED.search(text) for text in odd),
        "unusual-name": isinstance(feature, Tool | Prompt) and _NAME.fullmatch(feature.name) is None,
        "long-description": _bytes_of(feature, "description") > DESCRIPTION_BYTES,
        "reads-like-orders": _read_like_orders(texts),
    }
    return tuple(flag for flag, is_so in found.items() if is_so)


def with_flags(feature: F, flags: tuple[str, ...]) -> F:
    """The feature with its flags in its `_meta`, beside whatever its server has there."""
    meta = _object(feature.definition.get("_meta"))
    meta[MARK] = msgspec.Raw(msgspec.json.encode(flags))
    definition = {**feature.definition, "_meta": msgspec.Raw(msgspec.json.encode(meta))}
    return type(feature).of(feature.server, feature.name, definition)


def _bytes_of(feature: Feature, member: str) -> int:
    raw = feature.definition.get(member)
    return 0 if raw is None else len(memoryview(raw))


def _is_plain(feature: Feature) -> bool:
    """Whether nothing that is looked for can be in it, as its JSON tells at a glance."""
    raw = b"".join((feature.name.encode("utf-8", "surrogatepass"), *_looked_at(feature).values()))
    if not raw.isascii() or b"\x7f" in raw:
        return False
    if b"\\" in raw:
        raw = raw.replace(rb"\n", b" ").replace(rb"\"", b'"')
        if b"\\" in raw:  # it may stand for any character
            return False
    raw = raw.lower()
    return not any(hint in raw for hint in _HINTS)


def _looked_at(feature: Feature) -> dict[str, msgspec.Raw]:
    """All but what no model is shown."""
    return {key: raw for key, raw in feature.definition.items() if key != "_meta"}


def _read_like_orders(texts: list[str]) -> bool:
    # A line for each, which no pattern reads across.
    joined = "\n".join(" ".join(text.lower().split()) for text in texts)
    return any(_begins_orders(joined, beginning, rest) for beginning, rest in _ORDERS.items())


def _begins_orders(text: str, beginning: str, rest: re.Pattern[str]) -> bool:
    at = text.find(beginning)
    for _ in range(BEGINNINGS_MAX):
        if at < 0:
            return False
        if rest.match(text, at + len(beginning)):
            return True
        at = text.find(beginning, at + 1)
    return beginning != "<" and at >= 0


def _texts(feature: Feature) -> Iterator[str]:
    """Every text of a definition, names of members included."""
    yield feature.name
    for raw in _looked_at(feature).values():
        try:
            value = msgspec.json.decode(raw)
        except (msgspec.MsgspecError, RecursionError, ValueError):
            continue  # no model's program can read it either
        yield from _texts_in(value)


def _texts_in(value: Any) -> Iterator[str]:
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, str):
            yield each
        elif isinstance(each, dict):
            yield from each
            waiting += each.values()
        elif isinstance(each, list):
            waiting += each


def _object(raw: msgspec.Raw | None) -> dict[str, msgspec.Raw]:
    try:
        return {} if raw is None else msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    except msgspec.MsgspecError:
        return {}


SCHEMAS: Final = ("inputSchema", "outputSchema")
SHOWN_LENGTH_MAX: Final = 100
"""Of a reference, which may be as long as a definition."""

PARTS_MAX: Final = 10_000
"""Tables and lists of a schema that is looked through one by one; large real ones have a few thousand. More would hold
up every call."""

_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
_DEFINITIONS: Final = ("$defs", "definitions")

_ESCAPES: Final = (rb"\\", rb"\"", rb"\n", rb"\t", rb"\r", rb"\/")
"""What writes no letter that is looked for; the first of them first, as in what is read from left to right."""

_POINTING = re.compile(rb'"\$(?:ref|dynamicRef|recursiveRef|schema)"\s*:\s*(?:"([^"]*)")?')

_KNOWN = re.compile(
    r"https?://json-schema\.org/(?:draft-0\d/|draft/[\w-]+/)?(?:(?:hyper-)?schema|meta/[\w-]+)(?:#[!-~]*)?"
    r"|https?://spec\.openapis\.org/oas/3\.\d/[a-z]+/[\w.-]+"
)
"""The drafts themselves, which every program has at hand, under spellings with and without `s` and `#`."""

_ADDRESS = re.compile(r"\s*(?:[A-Za-z][A-Za-z0-9+.-]*:)?//")

_Kind: TypeAlias = Literal["schema", "definitions", "other"]
"""Only what is a schema for certain, itself or by way of definitions, can be referred to by its own address."""

_Place: TypeAlias = tuple[Any, str, _Kind]
"""A part of a schema, and the address from which its references are read."""


def outside_reference(tool: Tool) -> str | None:
    """Where a schema of the tool refers to outside of itself, in words; None if nowhere."""
    for member in SCHEMAS:
        raw = tool.definition.get(member)
        if raw is not None and (why := _way_out_of(bytes(raw))) is not None:
            return f"its {member} {why}"
    return None


def _way_out_of(text: bytes) -> str | None:
    if _is_within_itself(text):
        return None
    if text.count(b"{") + text.count(b"[") > PARTS_MAX:
        return f"has over {PARTS_MAX} parts, and may refer to what is not in it"
    try:
        return _first_outside(msgspec.json.decode(text))
    except (msgspec.MsgspecError, RecursionError, ValueError):
        # Other programs may read what this one cannot, a number of a thousand digits say, and follow what is beside it.
        return "cannot be read, and may refer to what is not in it"


def _is_within_itself(text: bytes) -> bool:
    """Whether that can be told at a glance, as of nearly every schema."""
    if b"\\" in text:
        for escape in _ESCAPES:
            text = text.replace(escape, b"?")
        if b"\\" in text:  # it may write any letter
            return False
    values = (value.decode("utf-8", "replace") for value in _POINTING.findall(text))
    return all(not value or value.startswith("#") or _KNOWN.fullmatch(value) for value in values)


def _first_outside(schema: Any) -> str | None:
    own: set[str] = {""}
    found: list[tuple[str, str]] = []
    for node, base, kind in _tables(schema):
        if kind == "schema":
            own.add(base)
        found += [(node[key], base) for key in _REFERENCES if isinstance(node.get(key), str)]
        dialect = node.get("$schema") if node is schema or "$id" in node else None
        if isinstance(dialect, str) and _ADDRESS.match(dialect) and not _KNOWN.fullmatch(dialect):
            return f"is written in {dialect[:SHOWN_LENGTH_MAX]}, which is not fetched"
    for reference, base in found:
        if not (reference.startswith("#") or _document(base, reference) in own or _KNOWN.fullmatch(reference)):
            return f"refers to {reference[:SHOWN_LENGTH_MAX]}, which is not in it and not fetched"
    return None


def _tables(schema: Any) -> Iterator[_Place]:
    """Every table of a schema, examples and defaults included: some programs follow what is written there, too."""
    waiting: list[_Place] = [(schema, "", "schema")]
    while waiting:
        node, base, kind = waiting.pop()
        if isinstance(node, list):
            waiting += [(each, base, "other") for each in node if isinstance(each, dict | list)]
        elif isinstance(node, dict):
            if isinstance(id := node.get("$id"), str):
                base = _document(base, id)
            yield node, base, kind
            members = ((key, each) for key, each in node.items() if isinstance(each, dict | list))
            waiting += [(each, base, _kind_of(key, kind)) for key, each in members]


def _kind_of(key: str, around: _Kind) -> _Kind:
    if around == "definitions":
        return "schema"
    return "definitions" if around == "schema" and key in _DEFINITIONS else "other"


def _document(base: str, reference: str) -> str:
    """The document that a reference is into. Raises `ValueError` if it is no address at all."""
    return urldefrag(urljoin(base, reference)).url
