"""What the operator said of one server's tools: which are shown, what is filled in, what is remembered.

Values only, compared on reload. `config` fills them in; a `Snapshot` compiles them into its routes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from isthmus.core.access.policy import HINT, TAG, Hint, Labels
from isthmus.model.features import Feature, Tool

EVERY = "*"
"""Stands for every tool, alone and not as a part of a name."""

CACHE_SECONDS = 60.0
CACHE_SECONDS_MAX = 86_400.0


@dataclass(frozen=True, slots=True)
class ToolRules:
    """The operator's word on one server's tools, by the names that the server itself gives them."""

    only: tuple[str, ...] | None = None
    """The tools that are shown; None for all of them."""
    hidden: tuple[str, ...] = ()
    """Tools that are not shown, whatever `only` says."""
    defaults: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By tool: arguments that are filled in when a caller leaves them out."""
    cached: tuple[str, ...] = ()
    """Tools whose results may be given again for the same caller and the same arguments."""
    cache_seconds: float = CACHE_SECONDS
    is_trusted: bool = False
    """Whether what the server says of its tools, in annotations and tags, counts where something is allowed by it."""
    tags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The operator's own tags by tool, prompt or resource; those of `*` are everything's."""

    def __post_init__(self) -> None:
        if not 0 < self.cache_seconds <= CACHE_SECONDS_MAX:
            raise ValueError(f"cache.ttl must be over 0 and at most 86400 seconds, not {self.cache_seconds}")

    def shows(self, tool: str) -> bool:
        """Whether callers may know of this tool at all."""
        if tool in self.hidden or EVERY in self.hidden:
            return False
        return self.only is None or tool in self.only or EVERY in self.only

    @property
    def tags_of_all(self) -> tuple[str, ...]:
        """The tags that everything of the server has, known yet or not."""
        return self.tags.get(EVERY, ())

    @property
    def changes_nothing(self) -> bool:
        """Whether the server's tools are there as it has them, all of them."""
        return self.only is None and not (self.hidden or self.defaults or self.cached)

    def keeps(self, tool: str) -> bool:
        """Whether this tool's results may be given again."""
        return tool in self.cached or EVERY in self.cached


NO_TOOL_RULES = ToolRules()

Defaults = Mapping[str, msgspec.Raw]
"""Arguments as JSON text, by name."""

_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_encode = msgspec.json.encode


def compile_defaults(values: Mapping[str, Any]) -> Defaults:
    """The operator's values as text."""
    return {name: msgspec.Raw(_encode(value)) for name, value in values.items()}


def fill_defaults(arguments: msgspec.Raw, defaults: Defaults) -> msgspec.Raw:
    """The arguments with those added that the caller left out; what it gave stays as it is."""
    try:
        given = _MEMBERS.decode(arguments)
    except msgspec.MsgspecError:
        return arguments  # not an object: the check that follows says so
    absent = {name: value for name, value in defaults.items() if name not in given}
    return msgspec.Raw(_encode({**given, **absent})) if absent else arguments


def without_required(tool: Tool, defaults: Defaults) -> Tool:
    """The tool as callers see it: what is filled in for them is not required of them."""
    schema = tool.definition.get("inputSchema")
    try:
        members = {} if schema is None else _MEMBERS.decode(schema)
        required = msgspec.json.decode(members["required"], type=list[str]) if "required" in members else []
    except msgspec.MsgspecError:
        return tool
    left = [name for name in required if name not in defaults]
    if left == required:
        return tool
    members["required"] = msgspec.Raw(_encode(left))
    return Tool.of(tool.server, tool.name, {**tool.definition, "inputSchema": msgspec.Raw(_encode(members))})


HINT_MEMBERS: dict[Hint, tuple[str, bool]] = {
    "read-only": ("readOnlyHint", False),
    "destructive": ("destructiveHint", True),
    "idempotent": ("idempotentHint", False),
    "open-world": ("openWorldHint", True),
}
"""What servers call the hints, and what is so where they say nothing (MCP, `ToolAnnotations`)."""

_META = ("fastmcp", "_fastmcp")
"""Under which of its members FastMCP puts tags, today and before its version 3."""


def labels_of(feature: Feature, rules: ToolRules) -> Labels:
    """What is said of one feature, and whether it is believed."""
    own = frozenset(f"{TAG}{tag}" for tag in (*rules.tags_of_all, *rules.tags.get(feature.name, ())))
    claimed = _claimed(_text_of(feature, "_meta"))
    hints = _hints(_text_of(feature, "annotations")) if isinstance(feature, Tool) else {}
    said = claimed | {f"{HINT}{hint}" for hint, is_so in hints.items() if is_so}
    if rules.is_trusted:
        return Labels(own | said, own | said)
    feared = {f"{HINT}{hint}" for hint in hints if HINT_MEMBERS[hint][1]}
    return Labels(own, own | said | feared)


def _text_of(feature: Feature, member: str) -> bytes:
    return bytes(feature.definition.get(member, b""))


def _claimed(meta: bytes) -> frozenset[str]:
    """The tags that a server gives."""
    said = _object(meta)
    tables = [said.get(name) for name in _META]
    lists = [table.get("tags") for table in tables if isinstance(table, dict)]
    return frozenset(f"{TAG}{tag}" for tags in lists if isinstance(tags, list) for tag in tags if isinstance(tag, str))


def _hints(annotations: bytes) -> dict[Hint, bool]:
    """What is so of a tool by its annotations; a value that is no boolean says nothing."""
    said = _object(annotations)
    hints: dict[Hint, bool] = {}
    for hint, (member, default) in HINT_MEMBERS.items():
        value = said.get(member)
        hints[hint] = value if isinstance(value, bool) else default
    if hints["read-only"]:
        hints["destructive"] = False  # it means something only of a tool that changes things
    return hints


def _object(text: bytes) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(text) if text else {}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}  # such as a number that is longer than any here: nothing is said
    return found if isinstance(found, dict) else {}
