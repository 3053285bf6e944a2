"""The operator's rules for one server's tools: which are visible, default arguments, caching, tags; and tool labels.

`config` fills in `ToolRules`, which are compared on reload; a `Snapshot` compiles them into its routes. What they and a
set change in a call is a `CallChanges`.

Labels are what permissions can match besides names: tags, of the operator (`ToolRules.tags`) or of the server (`_meta`,
as FastMCP writes them), and hints, of the server alone (a tool's `annotations`). A server may lie: what it claims
allows something only if the operator trusts it, and it cannot avoid a denial by leaving a hint out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec.structs import replace

from isthmus.core.access.policy import HINT, TAG, Hint, Labels
from isthmus.core.catalog.argument_validation import DETAIL_LENGTH_MAX
from isthmus.model.calls import Call
from isthmus.model.features import Feature, Tool

EVERY = "*"
"""Matches every tool; it does not work as part of a name."""

CACHE_SECONDS = 60.0
CACHE_SECONDS_MAX = 86_400.0


@dataclass(frozen=True, slots=True)
class ToolRules:
    """The operator's rules, by the server's own tool names."""

    only: tuple[str, ...] | None = None
    """The visible tools; None for all."""
    hidden: tuple[str, ...] = ()
    """Hidden tools, whatever `only` says."""
    defaults: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By tool: arguments to add if a caller leaves them out."""
    cached: tuple[str, ...] = ()
    """Tools whose results may be cached for the same caller and the same arguments."""
    cache_seconds: float = CACHE_SECONDS
    is_trusted: bool = False
    """Whether the server's annotations and tags may allow something."""
    tags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The operator's own tags by tool, prompt or resource; those of `*` apply to everything."""

    def __post_init__(self) -> None:
        if not 0 < self.cache_seconds <= CACHE_SECONDS_MAX:
            raise ValueError(f"cache.ttl must be over 0 and at most 86400 seconds, not {self.cache_seconds}")

    def shows(self, tool: str) -> bool:
        """Whether callers may see this tool."""
        if tool in self.hidden or EVERY in self.hidden:
            return False
        return self.only is None or tool in self.only or EVERY in self.only

    @property
    def tags_of_all(self) -> tuple[str, ...]:
        """The tags of everything that the server has or may have."""
        return self.tags.get(EVERY, ())

    @property
    def changes_nothing(self) -> bool:
        """Whether all tools are visible as the server lists them."""
        return self.only is None and not (self.hidden or self.defaults or self.cached)

    def keeps(self, tool: str) -> bool:
        """Whether this tool's results may be cached."""
        return tool in self.cached or EVERY in self.cached


NO_TOOL_RULES = ToolRules()

Defaults = Mapping[str, msgspec.Raw]
"""Arguments as JSON text, by name."""

_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_encode = msgspec.json.encode


def compile_defaults(values: Mapping[str, Any]) -> Defaults:
    """The operator's values as JSON text."""
    return {name: msgspec.Raw(_encode(value)) for name, value in values.items()}


class CallChanges(msgspec.Struct, frozen=True):
    """What the operator changes in each call of a tool or prompt before its arguments are checked."""

    defaults: Defaults = {}
    """Arguments to add if the caller leaves them out."""
    accepted: frozenset[str] | None = None
    """The only arguments that the caller may send; None for all. The others are fixed, or hidden from it."""
    tool: str = ""
    """The server's own name of the tool or prompt, where a set has another."""

    def applied_to(self, call: Call) -> Call | str:
        """The call with its arguments complete, or what is wrong with them."""
        if call.kind == "prompt_argument":
            return self._applied_to_completion(call)
        if (detail := self.refusal(call.arguments)) is not None:
            return detail
        arguments = fill_defaults(call.arguments, self.defaults) if self.defaults else call.arguments
        return replace(call, arguments=arguments, tool=self.tool)

    def _applied_to_completion(self, call: Call) -> Call | str:
        """The same for a completion, whose `context` has the other arguments of the prompt.

        Both objects are written anew, because a server may read another of repeated members.
        """
        if self.accepted is None:
            return replace(call, tool=self.tool)
        try:
            argument = msgspec.json.decode(call.arguments, type=_CompletedArgument)
            context = msgspec.json.decode(call.extra.get("context", EMPTY), type=_CompletionContext)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return "argument needs a name and a value, and context an object of arguments"
        named = msgspec.Raw(_encode({argument.name: None}))
        for arguments in (named, context.arguments):
            if (detail := self.refusal(arguments)) is not None:
                return detail
        extra = {name: member for name, member in call.extra.items() if name.casefold() != "context"}
        if filled := _MEMBERS.decode(fill_defaults(context.arguments, self.defaults)):
            extra["context"] = msgspec.Raw(_encode({"arguments": filled}))
        return replace(call, arguments=msgspec.Raw(_encode(argument)), extra=extra, tool=self.tool)

    def refusal(self, arguments: msgspec.Raw) -> str | None:
        """What is wrong with the caller's arguments; None if they may be sent.

        The names are compared after decoding, so that neither escapes nor repeated members hide one.
        """
        if self.accepted is None:
            return None
        try:
            given = _MEMBERS.decode(arguments)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return "must be a JSON object"
        refused = sorted(given.keys() - self.accepted)
        if not refused:
            return None
        names = ", ".join(sorted(self.accepted)) or "none"
        return f"not accepted here: {', '.join(refused)[:DETAIL_LENGTH_MAX]} (accepted: {names})"[:DETAIL_LENGTH_MAX]


EMPTY = msgspec.Raw(b"{}")


class _CompletedArgument(msgspec.Struct):
    name: str
    value: msgspec.Raw


class _CompletionContext(msgspec.Struct):
    arguments: msgspec.Raw = EMPTY


def fill_defaults(arguments: msgspec.Raw, defaults: Defaults) -> msgspec.Raw:
    """The arguments, with defaults for those that the caller left out."""
    try:
        given = _MEMBERS.decode(arguments)
    except msgspec.MsgspecError:
        return arguments  # not an object: the check that follows rejects it
    absent = {name: value for name, value in defaults.items() if name not in given}
    return msgspec.Raw(_encode({**given, **absent})) if absent else arguments


def without_required(tool: Tool, defaults: Collection[str]) -> Tool:
    """The tool as callers see it: arguments with defaults are not required."""
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
"""The names of the hints in MCP's `ToolAnnotations`, and their defaults."""

_META = ("fastmcp", "_fastmcp")
"""The members under which FastMCP writes tags, today and before its version 3."""


def labels_of(feature: Feature, rules: ToolRules) -> Labels:
    """The labels of one feature, by whether they are believed."""
    own = frozenset(f"{TAG}{tag}" for tag in (*rules.tags_of_all, *rules.tags.get(feature.name, ())))
    meta = _object(feature, "_meta")
    lists = [table.get("tags") for table in map(meta.get, _META) if isinstance(table, dict)]
    claimed = {f"{TAG}{tag}" for tags in lists if isinstance(tags, list) for tag in tags if isinstance(tag, str)}
    hints = hints_of(feature) if isinstance(feature, Tool) else {}
    claimed |= {f"{HINT}{hint}" for hint, is_set in hints.items() if is_set}
    if rules.is_trusted:
        return Labels(own | claimed, own | claimed)
    suspected = {f"{HINT}{hint}" for hint in hints if HINT_MEMBERS[hint][1]}
    return Labels(own, own | claimed | suspected)


def hints_of(tool: Tool) -> dict[Hint, bool]:
    """The hints of a tool; a value that is not a boolean counts as missing."""
    annotations = _object(tool, "annotations")
    hints: dict[Hint, bool] = {}
    for hint, (member, default) in HINT_MEMBERS.items():
        value = annotations.get(member)
        hints[hint] = value if isinstance(value, bool) else default
    if hints["read-only"]:
        hints["destructive"] = False  # only meaningful for a tool that changes something
    return hints


def _object(feature: Feature, member: str) -> dict[str, Any]:
    text = bytes(feature.definition.get(member, b""))
    try:
        found = msgspec.json.decode(text) if text else {}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}  # such as a number that Python cannot hold
    return found if isinstance(found, dict) else {}
