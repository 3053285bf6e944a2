"""What callers see of a server's lists: without withheld and unusable tools, and with flags on suspicious definitions.

Withheld tools are not approved (`catalog.pins`); unusable ones are left out (an outside reference in a schema). The hub
reviews every server status before it publishes it. The same lists come again with each change of a server's state, so
that the last result is cached.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeVar
from urllib.parse import urldefrag, urljoin

import msgspec

from isthmus.core.catalog.pins import Pins, canonical_definition
from isthmus.core.catalog.snapshot import FeatureLists, ServerStatus
from isthmus.core.event_loop import at_once, offload, pause
from isthmus.model.calls import NO_CAPABILITIES, ClientCapabilities
from isthmus.model.features import Feature, Prompt, Tool
from isthmus.model.hidden_characters import CONTROL, INVISIBLE, MISJOINED
from isthmus.model.names import FeatureName, ServerName

MARK: Final = "isthmus/flags"
"""The member of `_meta` that contains the flags."""

DESCRIPTION_BYTES: Final = 2048
"""A longer description is flagged."""

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
"""The characters that MCP allows in names: letters of another alphabet may look the same."""

_HINTS: Final = (
    *(b"<", b"ignore", b"disregard", b"forget", b"override", b"ssh", b"id_rsa", b".env"),
    *(b"do not", b"do  ", b"using this", b"using any", b"using  "),
)
"""JSON without any of these contains no orders, so the slow search for them is skipped."""

_IGNORE_PATTERN = re.compile(
    r"\b.{0,40}?\b(?:previous|prior|above|earlier|all other|other)\b.{0,30}?"
    r"\b(?:instructions?|rules|prompts?|messages|tools?)\b"
)
_SILENCE_PATTERN = re.compile(r" (?:tell|mention|inform|show|reveal|notify)\b.{0,40}?\b(?:user|human|person|anyone)\b")
_FIRST_PATTERN = re.compile(r" (?:this|any other) tool\b.{0,60}?\b(?:read|send|pass|include|call)\b")
_TAG_PATTERN = re.compile(r" ?/? ?(?:important|system|instructions?|secret) ?>")

_ORDER_PATTERNS: Final = {
    "<": _TAG_PATTERN,
    **dict.fromkeys(("ignore", "disregard", "forget", "override"), _IGNORE_PATTERN),
    "do not": _SILENCE_PATTERN,
    **dict.fromkeys(("before using", "when using"), _FIRST_PATTERN),
    "~/.ssh": re.compile(""),
    "id_rsa": re.compile(r"\b"),
    ".env": re.compile(r"\b.{0,40}?\bcontents?\b"),
}
"""How orders begin, and how they continue, with one space between words."""

BEGINNINGS_MAX: Final = 30
"""A definition with more beginnings of one kind is flagged without looking further, which would delay every call."""

F = TypeVar("F", bound=Feature)


def flags_of(feature: Feature) -> tuple[str, ...]:
    """The flags of a suspicious definition, as callers receive them."""
    texts = [] if _is_plain(feature) else list(_texts(feature))
    odd = [text for text in texts if not (text.isascii() and text.isprintable())]
    found = {
        "control-characters": any(CONTROL.search(text) for text in odd),
        "invisible-characters": any(INVISIBLE.search(text) or MISJOINED.search(text) for text in odd),
        "unusual-name": isinstance(feature, Tool | Prompt) and _NAME.fullmatch(feature.name) is None,
        "long-description": len(memoryview(feature.definition.get("description", b""))) > DESCRIPTION_BYTES,
        "reads-like-orders": _reads_like_orders(texts),
    }
    return tuple(flag for flag, is_found in found.items() if is_found)


def with_flags(feature: F, flags: tuple[str, ...]) -> F:
    """The feature with its flags in its `_meta`, beside the server's own members."""
    raw = feature.definition.get("_meta")
    try:
        meta = {} if raw is None else msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    except msgspec.MsgspecError:
        meta = {}
    meta[MARK] = msgspec.Raw(msgspec.json.encode(flags))
    definition = {**feature.definition, "_meta": msgspec.Raw(msgspec.json.encode(meta))}
    return type(feature).of(feature.server, feature.name, definition)


def _is_plain(feature: Feature) -> bool:
    """Whether a quick search of the JSON rules out every flag that depends on its texts."""
    raw = b"".join((feature.name.encode("utf-8", "surrogatepass"), *_searched_members(feature).values()))
    if not raw.isascii() or b"\x7f" in raw:
        return False
    if b"\\" in raw:
        raw = raw.replace(rb"\n", b" ").replace(rb"\"", b'"')
        if b"\\" in raw:  # the escape may stand for any character
            return False
    raw = raw.lower()
    return not any(hint in raw for hint in _HINTS)


def _searched_members(feature: Feature) -> dict[str, msgspec.Raw]:
    """Everything but `_meta`, which models do not see."""
    return {key: raw for key, raw in feature.definition.items() if key != "_meta"}


def _reads_like_orders(texts: list[str]) -> bool:
    # One line per text: patterns do not match across lines.
    joined = "\n".join(" ".join(text.lower().split()) for text in texts)
    for beginning, rest in _ORDER_PATTERNS.items():
        at = joined.find(beginning)
        for _ in range(BEGINNINGS_MAX):
            if at < 0:
                break
            if rest.match(joined, at + len(beginning)):
                return True
            at = joined.find(beginning, at + 1)
        if at >= 0 and beginning != "<":
            return True
    return False


def _texts(feature: Feature) -> Iterator[str]:
    """Every text of a definition, including member names."""
    yield feature.name
    for raw in _searched_members(feature).values():
        try:
            value = msgspec.json.decode(raw)
        except (msgspec.MsgspecError, RecursionError, ValueError):
            continue  # a client cannot read it either
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


SCHEMAS: Final = ("inputSchema", "outputSchema")
SHOWN_LENGTH_MAX: Final = 100
"""How much of a reference is quoted."""

PARTS_MAX: Final = 10_000
"""Objects and arrays of a schema that is searched; large real schemas have a few thousand. More would delay every call.
"""

_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
_DEFINITIONS: Final = ("$defs", "definitions")

_ESCAPES: Final = (rb"\\", rb"\"", rb"\n", rb"\t", rb"\r", rb"\/")
"""Escapes of characters that no reference contains; `\\\\` must be replaced first."""

_REFERENCE_PATTERN = re.compile(rb'"\$(?:ref|dynamicRef|recursiveRef|schema)"\s*:\s*(?:"([^"]*)")?')

_KNOWN_SCHEMAS = re.compile(
    r"https?://json-schema\.org/(?:draft-0\d/|draft/[\w-]+/)?(?:(?:hyper-)?schema|meta/[\w-]+)(?:#[!-~]*)?"
    r"|https?://spec\.openapis\.org/oas/3\.\d/[a-z]+/[\w.-]+"
)
"""The JSON Schema drafts themselves, which every program has, with and without `s` and `#`."""

_ADDRESS = re.compile(r"\s*(?:[A-Za-z][A-Za-z0-9+.-]*:)?//")

_Kind: TypeAlias = Literal["schema", "definitions", "other"]
"""Only a schema itself, or one under definitions, can be referred to by its own `$id`."""

_Place: TypeAlias = tuple[Any, str, _Kind]
"""A part of a schema, the base URI of its references, and its kind."""


def outside_reference(tool: Tool) -> str | None:
    """Why a schema of the tool cannot be used: what it refers to outside of itself; None if it does not."""
    for member in SCHEMAS:
        raw = tool.definition.get(member)
        if raw is None or _is_within_itself(text := bytes(raw)):
            continue
        if text.count(b"{") + text.count(b"[") > PARTS_MAX:
            return f"its {member} has over {PARTS_MAX} parts, and may refer to what is not in it"
        try:
            why = _first_outside(msgspec.json.decode(text))
        except (msgspec.MsgspecError, RecursionError, ValueError):
            # Other programs may be able to read it, such as a number of a thousand digits, and follow its references.
            why = "cannot be read, and may refer to what is not in it"
        if why is not None:
            return f"its {member} {why}"
    return None


def _is_within_itself(text: bytes) -> bool:
    """Whether a quick search shows that all references stay inside, as in nearly every schema."""
    if b"\\" in text:
        for escape in _ESCAPES:
            text = text.replace(escape, b"?")
        if b"\\" in text:  # the escape may stand for any letter
            return False
    values = (value.decode("utf-8", "replace") for value in _REFERENCE_PATTERN.findall(text))
    return all(not value or value.startswith("#") or _KNOWN_SCHEMAS.fullmatch(value) for value in values)


def _first_outside(schema: Any) -> str | None:
    own: set[str] = {""}
    found: list[tuple[str, str]] = []
    for node, base, kind in _objects_in(schema):
        if kind == "schema":
            own.add(base)
        found += [(node[key], base) for key in _REFERENCES if isinstance(node.get(key), str)]
        dialect = node.get("$schema") if node is schema or "$id" in node else None
        if isinstance(dialect, str) and _ADDRESS.match(dialect) and not _KNOWN_SCHEMAS.fullmatch(dialect):
            return f"is written in {dialect[:SHOWN_LENGTH_MAX]}, which is not fetched"
    for reference, base in found:
        if not (reference.startswith("#") or _document(base, reference) in own or _KNOWN_SCHEMAS.fullmatch(reference)):
            return f"refers to {reference[:SHOWN_LENGTH_MAX]}, which is not in it and not fetched"
    return None


def _objects_in(schema: Any) -> Iterator[_Place]:
    """Every object of a schema, including examples and defaults: some programs follow references there, too."""
    waiting: list[_Place] = [(schema, "", "schema")]
    while waiting:
        node, base, kind = waiting.pop()
        if isinstance(node, list):
            waiting += [(each, base, "other") for each in node if isinstance(each, dict | list)]
        elif isinstance(node, dict):
            if isinstance(id := node.get("$id"), str):
                base = _document(base, id)
            yield node, base, kind
            for key, each in node.items():
                if isinstance(each, dict | list):
                    is_table = kind == "schema" and key in _DEFINITIONS
                    below: _Kind = "schema" if kind == "definitions" else "definitions" if is_table else "other"
                    waiting.append((each, base, below))


def _document(base: str, reference: str) -> str:
    """The document that a reference points into. Raises `ValueError` if it is not a URL."""
    return urldefrag(urljoin(base, reference)).url


FINDINGS_MAX: Final = 200_000
"""Findings that are kept, more than a hub has tools: 150 bytes each."""

NOTES_MAX: Final = 20
SLICE_SECONDS: Final = 0.0005
"""How long the loop is blocked at a time."""

LONG_DEFINITION_BYTES: Final = 32 * 1024
"""A longer definition is examined elsewhere: 200 KB take 6 ms."""

LeftOut = Mapping[FeatureName, str]
"""Tools that are left out, and why."""


class _ReviewedStatus(NamedTuple):
    raw: ServerStatus
    shown: ServerStatus


class _Findings(NamedTuple):
    """The findings of one definition."""

    flags: tuple[str, ...]
    outside_reference: str | None


class _VisibleLists(NamedTuple):
    """The visible part of one variant of a server's lists."""

    offer: FeatureLists
    withheld: list[FeatureName]
    left_out: LeftOut


class _PreparedLists(NamedTuple):
    """Lists with their visible part, as long as the state of the pins is the same."""

    lists: FeatureLists
    pins_state: object
    visible: _VisibleLists

    def is_about(self, lists: FeatureLists) -> bool:
        """Whether these are the same lists, and not only equal ones."""
        mine = self.lists
        return (
            mine.tools is lists.tools
            and mine.prompts is lists.prompts
            and mine.resources is lists.resources
            and mine.templates is lists.templates
        )


REVIEWED_AT_ONCE: Final = 50
"""Definitions between two looks at the clock."""


class Review:
    """Reviews server statuses. Without `pins` nothing is withheld.

    `on_left_out` receives each tool that is left out, once per reason.
    """

    def __init__(self, pins: Pins | None = None) -> None:
        self.pins = pins
        self.on_left_out: Callable[[ServerName, LeftOut], None] = lambda _server, _left_out: None
        self._findings_by_key: dict[bytes, _Findings] = {}
        self._last_reviewed: dict[ServerName, _ReviewedStatus] = {}
        self._reported: dict[ServerName, LeftOut] = {}
        self._prepared: dict[ServerName, _PreparedLists] = {}
        """Reviewed lists that are about to be published."""

    def reviewed(self, server_status: ServerStatus) -> ServerStatus:
        """The status as callers see it."""
        if not server_status.has_lists and not server_status.variants:
            return server_status
        seen, prepared = self._last_reviewed.get(server_status.server), self._prepared.pop(server_status.server, None)
        if seen is None or _reviewed_fields(seen.raw) != _reviewed_fields(server_status):
            shown = self._review(server_status, prepared)
            seen = self._last_reviewed[server_status.server] = _ReviewedStatus(server_status, shown)
        shown = seen.shown
        if shown is seen.raw:
            return server_status
        return msgspec.structs.replace(
            server_status,
            tools=shown.tools,
            prompts=shown.prompts,
            resources=shown.resources,
            templates=shown.templates,
            variants=shown.variants,
            withheld=shown.withheld,
            left_out=shown.left_out,
            notes=shown.notes,
        )

    async def prepare_lists(self, server: ServerName, lists: FeatureLists) -> None:
        """Review lists that are about to be published, in slices: a thousand tools would delay every call."""
        seen = self._last_reviewed.get(server)
        if seen is not None and _reviewed_fields(seen.raw)[:4] == (
            lists.tools,
            lists.prompts,
            lists.resources,
            lists.templates,
        ):
            return
        await self.prepare(chain(lists.tools, lists.prompts, lists.resources, lists.templates))
        pins_state = None if self.pins is None else self.pins.state_of(server)
        passes = self._visible_passes(lists, NO_CAPABILITIES)
        loop = asyncio.get_running_loop()
        until = loop.time() + SLICE_SECONDS
        while True:
            try:
                next(passes)
            except StopIteration as done:
                self._prepared[server] = _PreparedLists(lists, pins_state, done.value)
                return
            if loop.time() > until:
                await pause()
                until = loop.time() + SLICE_SECONDS

    async def prepare(self, features: Iterable[Feature]) -> None:
        """Lint definitions, in slices."""
        loop = asyncio.get_running_loop()
        until = loop.time() + SLICE_SECONDS
        for feature in features:
            size = sum(len(memoryview(member)) for member in feature.definition.values())
            definition = await self._examine_offloaded(feature, size) if size > LONG_DEFINITION_BYTES else None
            self._lint(feature)
            if self.pins is not None and isinstance(feature, Tool):
                self.pins.prepare(feature, definition)
            if loop.time() > until:
                await pause()
                until = loop.time() + SLICE_SECONDS

    async def _examine_offloaded(self, feature: Feature, size: int) -> bytes | None:
        """Lint a long definition elsewhere, and return its canonical form, if it is needed."""
        needs_form = self.pins is not None and isinstance(feature, Tool) and self.pins.needs(feature)
        if not needs_form and _key(feature) in self._findings_by_key:
            return None
        examining = partial(_examine, feature, needs_form=needs_form)
        found, definition = await offload(size, examining, over=LONG_DEFINITION_BYTES, owner=feature.server)
        self._store_findings(_key(feature), found)
        return definition

    def withholds(self, server: ServerName) -> bool:
        """Whether changed tools of this server are hidden."""
        return self.pins is not None and self.pins.withholds(server)

    def passes_on_own_link(self, tool: Tool, client_caps: ClientCapabilities) -> bool:
        """Whether a tool may be called that is listed like this on a link of single callers."""
        return self._lint(tool).outside_reference is None and (
            self.pins is None or self.pins.passes_on_own_link(tool, client_caps)
        )

    def last_published(self, server: ServerName) -> ServerStatus | None:
        """The last unreviewed status of a server, to be reviewed again because other tools may be visible now."""
        seen = self._last_reviewed.pop(server, None)
        return None if seen is None else seen.raw

    def forget(self, server: ServerName) -> None:
        """Drop the results of a removed server."""
        self._last_reviewed.pop(server, None)
        self._prepared.pop(server, None)
        self._reported.pop(server, None)

    def _review(self, server_status: ServerStatus, prepared: _PreparedLists | None) -> ServerStatus:
        lists, pins_state = _lists(server_status), None
        if self.pins is not None:
            pins_state = self.pins.state_of(server_status.server)
        if prepared is not None and prepared.pins_state == pins_state and prepared.is_about(lists):
            base, withheld, left_out = prepared.visible
            base = msgspec.structs.replace(base, abilities=lists.abilities)
        else:
            base, withheld, left_out = self._visible(lists, NO_CAPABILITIES)
        variants = dict(server_status.variants)
        for client_caps, offer in server_status.variants.items():
            variants[client_caps], missing, outside = self._visible(offer, client_caps)
            withheld += [name for name in missing if name not in withheld]
            left_out = {**outside, **left_out}
        reported = self._reported.get(server_status.server, {})
        if left_out != reported:
            self._reported[server_status.server] = left_out
            if news := {name: why for name, why in left_out.items() if reported.get(name) != why}:
                self.on_left_out(server_status.server, news)
        if base == _lists(server_status) and variants == server_status.variants:
            return server_status
        return msgspec.structs.replace(
            server_status,
            tools=base.tools,
            prompts=base.prompts,
            resources=base.resources,
            templates=base.templates,
            variants=variants,
            withheld=tuple(withheld),
            left_out={**server_status.left_out, **left_out},
            notes=(
                *server_status.notes,
                *_shortened(
                    [f"{name!r} is withheld: run isthmus approve {server_status.server}.{name}" for name in withheld],
                    "withheld",
                ),
                *_shortened([f"{name!r} left out: {why}" for name, why in left_out.items()], "left out"),
            ),
        )

    def _visible(self, offer: FeatureLists, client_caps: ClientCapabilities) -> _VisibleLists:
        return at_once(self._visible_passes(offer, client_caps))

    def _visible_passes(
        self, offer: FeatureLists, client_caps: ClientCapabilities
    ) -> Generator[None, None, _VisibleLists]:
        left_out: dict[FeatureName, str] = {}
        withheld: list[FeatureName] = []
        tools: list[Tool] = []
        for position, tool in enumerate(offer.tools):
            if not position % REVIEWED_AT_ONCE:
                yield
            found = self._lint(tool)
            if found.outside_reference is not None:
                left_out[tool.name] = found.outside_reference
            elif self.pins is not None and not self.pins.passes(tool, client_caps):
                withheld.append(tool.name)
            else:
                tools.append(with_flags(tool, found.flags) if found.flags else tool)
        changed = FeatureLists(
            tuple(tools),
            (yield from self._with_flags(offer.prompts)),
            (yield from self._with_flags(offer.resources)),
            (yield from self._with_flags(offer.templates)),
            offer.abilities,
        )
        return _VisibleLists(offer if changed == offer else changed, withheld, left_out)

    def _with_flags(self, features: tuple[F, ...]) -> Generator[None, None, tuple[F, ...]]:
        marked: list[F] = []
        for position, feature in enumerate(features):
            if not position % REVIEWED_AT_ONCE:
                yield
            flags = self._lint(feature).flags
            marked.append(with_flags(feature, flags) if flags else feature)
        return tuple(marked)

    def _lint(self, feature: Feature) -> _Findings:
        found = self._findings_by_key.get(_key(feature))
        return self._store_findings(_key(feature), _findings(feature)) if found is None else found

    def _store_findings(self, key: bytes, found: _Findings) -> _Findings:
        if len(self._findings_by_key) >= FINDINGS_MAX:
            self._findings_by_key.clear()
        self._findings_by_key[key] = found
        return found


def _key(feature: Feature) -> bytes:
    return feature.digest + feature.name.encode("utf-8", "surrogatepass")


def _findings(feature: Feature) -> _Findings:
    return _Findings(flags_of(feature), outside_reference(feature) if isinstance(feature, Tool) else None)


def _examine(feature: Feature, *, needs_form: bool) -> tuple[_Findings, bytes | None]:
    """The findings of a definition, and its canonical form."""
    return _findings(feature), canonical_definition(feature) if needs_form and isinstance(feature, Tool) else None


def _reviewed_fields(server_status: ServerStatus) -> tuple[object, ...]:
    """What a review depends on; equal until the server lists something else."""
    lists = (server_status.tools, server_status.prompts, server_status.resources, server_status.templates)
    return (*lists, server_status.variants, server_status.notes)


def _lists(server_status: ServerStatus) -> FeatureLists:
    return FeatureLists(
        server_status.tools,
        server_status.prompts,
        server_status.resources,
        server_status.templates,
        server_status.abilities,
    )


def _shortened(notes: list[str], what: str) -> list[str]:
    more = len(notes) - NOTES_MAX
    return notes if more <= 0 else [*notes[:NOTES_MAX], f"{more} more are {what}"]
