"""What is odd about a definition that a model will read: characters that nobody sees, orders, names that deceive.

Nothing is changed or left out for it: what is odd is listed as its server wrote it, with a mark in its `_meta`. Who
means to deceive a model in plain words cannot be told from who describes a tool; what is found here is the careless
part of them. `core.catalog.review` calls it for whatever a server lists.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, TypeVar

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
