"""Fleets: servers with the same tools, which callers see as one server.

`config` fills in `FleetSettings`, which are compared on reload. The hub keeps one `Fleet` for each. Before a snapshot
is made, `Fleet.update` learns which servers have changed, and the fleet's own status joins the others. So a fleet is
listed, permitted and picked for sets like any server. `core.calls.fleet_calls` makes its calls.

A tool is the same on two members if they have it under the same name with the same input schema. If members differ, the
schema that most of them have is listed, and only these are called. The rest of a definition is the most frequent one.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from isthmus.core.access.policy import AGENT, HINT, TAG, check_pattern, is_of_agent
from isthmus.core.catalog.names import BUILTIN
from isthmus.core.catalog.snapshot import ServerStatus
from isthmus.core.catalog.tool_rules import ToolRules, compile_defaults, labels_of, without_required
from isthmus.core.catalog.view import ServerState
from isthmus.model.features import Ability, Tool
from isthmus.model.names import FeatureName, ServerName, name_filter, parse_server_name

DIALIN = "dialin:"
"""The prefix of a pattern for the names of servers that dialled in."""

ALL_MEMBERS = "all"
ANY_MEMBER = "any"

MEMBER_ARGUMENT = "fleet_member"
"""The argument that says which members are called. Underscores are added to it where a tool has an argument of that
name."""

MEMBERS_TOOL = FeatureName("fleet_members")
"""The tool of every fleet that lists its members."""

DEADLINE_SECONDS = 30.0
DEADLINE_SECONDS_MAX = 3600.0
AT_ONCE = 32
AT_ONCE_MAX = 256
"""More could not be cancelled without holding the event loop."""
RESULT_BYTES = 1024 * 1024
RESULT_BYTES_MIN = 4 * 1024
RESULT_BYTES_MAX = 8 * 1024 * 1024
"""More could not be written without holding the event loop."""

CARRIER = "fleet"
"""What is shown as the transport of a fleet."""

LISTS_MEMBERS_MAX = 1000
NAMED_MAX = 5
"""Members that a note names."""

_DROPPED = ("outputSchema", "execution", "_meta", "icons")
"""Members of a definition that are not true of a fleet: a gathered result has another form, members run no tasks for
it, and `_meta` may name resources of one member."""

_KEPT_META = "isthmus/flags"
"""What the hub itself found in a definition (`core.catalog.definition_review`)."""


# -- settings ----------------------------------------------------------------------------------------------------------


def check_member_pattern(text: str) -> None:
    """Accept a well-formed pattern of members.

    Raises:
        ValueError: it is malformed; the message says what to write instead.
    """
    forms = f"server-*, {DIALIN}server-*, agent:KEY or tag:NAME"
    if is_of_agent(text) or text.startswith(TAG):
        check_pattern(text)
        return
    name = text.removeprefix(DIALIN)
    try:
        parse_server_name(name.replace("*", "") or "x")
    except ValueError:
        raise ValueError(f"a member must be {forms}, not {text!r}") from None
    if not name:
        raise ValueError(f"a member must be {forms}, not {text!r}: the name is missing")


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """One fleet: patterns of its members, and how they are called."""

    members: tuple[str, ...]
    """`NAME` for configured servers and `dialin:NAME` for those that dialled in, with `*` for any characters; or
    `agent:KEY` and `tag:NAME`, as in permissions."""
    hide_members: bool = True
    """Whether the members' own tools are left out of lists of several servers."""
    deadline: float = DEADLINE_SECONDS
    """How long a call of all members, or of any, may take."""
    at_once: int = AT_ONCE
    """How many members one call reaches at once; the others wait."""
    result_bytes: int = RESULT_BYTES
    """How long the results of one call of all members may be in all. Each member may use an equal share."""
    read_only: tuple[str, ...] = ()
    """Tools that only read, as the operator says; `*` for all."""
    _tests: tuple[Callable[[ServerStatus], bool], ...] = field(default=(), init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.members:
            raise ValueError('members must have a pattern, such as "sensor-*"')
        for pattern in self.members:
            check_member_pattern(pattern)
        if not 0.05 <= self.deadline <= DEADLINE_SECONDS_MAX:
            raise ValueError(f"deadline must be 0.05 to {DEADLINE_SECONDS_MAX:g} seconds, not {self.deadline:g}")
        if not 1 <= self.at_once <= AT_ONCE_MAX:
            raise ValueError(f"at_once must be 1 to {AT_ONCE_MAX}, not {self.at_once}")
        if not RESULT_BYTES_MIN <= self.result_bytes <= RESULT_BYTES_MAX:
            raise ValueError(f"result_bytes must be {RESULT_BYTES_MIN} to {RESULT_BYTES_MAX}, not {self.result_bytes}")

        object.__setattr__(self, "_tests", tuple(map(_test_of, self.members)))

    @property
    def is_dialled(self) -> bool:
        """Whether all members dial in."""
        return all(_is_of_dialled(pattern) for pattern in self.members)

    @property
    def may_dial(self) -> bool:
        """Whether some members may dial in."""
        return any(_is_of_dialled(pattern) for pattern in self.members)

    def matches(self, status: ServerStatus) -> bool:
        """Whether a server matches a pattern. The hub's own tools and fleets never do."""
        return status.server != BUILTIN and status.carrier != CARRIER and any(test(status) for test in self._tests)


def _is_of_dialled(pattern: str) -> bool:
    return is_of_agent(pattern) or pattern.startswith(DIALIN)


def _test_of(pattern: str) -> Callable[[ServerStatus], bool]:
    if is_of_agent(pattern):
        return lambda status: status.agent is not None and pattern == f"{AGENT}{status.agent}"
    if pattern.startswith(TAG):
        return lambda status: pattern.removeprefix(TAG) in status.rules.tags_of_all
    is_dialin, fits = pattern.startswith(DIALIN), name_filter(pattern.removeprefix(DIALIN))
    return lambda status: is_dialin == (status.agent is not None) and fits(status.server)


def hidden_by(fleets: Iterable[FleetSettings]) -> Callable[[ServerStatus], bool] | None:
    """Whether lists of several servers leave out a server's tools, because a fleet has them; None if none do."""
    hiding = [settings for settings in fleets if settings.hide_members]
    return (lambda status: any(settings.matches(status) for settings in hiding)) if hiding else None


# -- the tools of a fleet ----------------------------------------------------------------------------------------------


class FleetTool(msgspec.Struct, frozen=True, eq=False):
    """A tool as a fleet lists it."""

    tool: Tool
    argument: str
    """The argument that says which members are called."""
    schema: bytes
    """A digest of the members' input schema."""


class _Variant:
    """The members that have a tool with the same input schema."""

    __slots__ = ("definitions", "members", "readers")

    def __init__(self) -> None:
        self.members: dict[ServerName, Tool] = {}
        self.readers: set[ServerName] = set()
        """Members that are believed to only read."""
        self.definitions: Counter[bytes] = Counter()
        """By digest."""


class Fleet:
    """The members of one fleet now, and its tools."""

    def __init__(self, name: ServerName, settings: FleetSettings) -> None:
        self.name = name
        self.settings = settings
        self.members: dict[ServerName, ServerStatus] = {}
        self.changes = 0
        """How often a member joined or left."""
        self.tools: dict[str, FleetTool] = {}
        """What is listed, by name."""
        self._variants: dict[str, dict[bytes, _Variant]] = {}
        """By tool and input schema."""
        self._listed: dict[tuple[str, bytes, bool], FleetTool] = {}
        """Changed definitions, by name, the member's definition and whether any member may answer."""
        self._left_out: dict[str, str] = {}
        self._members_tool = _members_tool(name)
        self.status = self._make_status()

    def variant(self, tool: str) -> Mapping[ServerName, Tool]:
        """The members that can be called for a listed tool."""
        return self._variants[tool][self.tools[tool].schema].members

    def readers(self, tool: str) -> set[ServerName]:
        """Those of them that may be asked at the same time, of which the first answer counts."""
        return self._variants[tool][self.tools[tool].schema].readers

    def update(self, changed: Mapping[ServerName, ServerStatus | None]) -> None:
        """Learn what became of servers; None for a removed one."""
        touched: set[str] = set()
        is_changed = False
        for server, status in changed.items():
            before = self.members.get(server)
            after = (
                status if status is not None and status.state != "disabled" and self.settings.matches(status) else None
            )
            if before is after:
                continue
            is_changed = True
            self.changes += (before is None) != (after is None)
            if after is None:
                del self.members[server]
            else:
                self.members[server] = after
            if before is None or after is None or before.tools != after.tools or before.rules != after.rules:
                if before is not None:
                    touched |= self._remove(before)
                if after is not None:
                    touched |= self._add(after)
        for name in touched:
            self._choose(name)
        if is_changed:
            status = self._make_status()
            self.status = self.status if status == self.status else status

    def _add(self, status: ServerStatus) -> set[str]:
        touched: set[str] = set()
        for tool, schema in _visible_tools(status):
            touched.add(tool.name)
            variant = self._variants.setdefault(tool.name, {}).setdefault(schema, _Variant())
            variant.members[status.server] = tool
            variant.definitions[tool.digest] += 1
            if self._only_reads(tool, status.rules):
                variant.readers.add(status.server)
        return touched

    def _remove(self, status: ServerStatus) -> set[str]:
        touched: set[str] = set()
        for tool, schema in _visible_tools(status):
            touched.add(tool.name)
            variant = self._variants[tool.name][schema]
            del variant.members[status.server]
            variant.readers.discard(status.server)
            variant.definitions[tool.digest] -= 1
            if not variant.members:
                del self._variants[tool.name][schema]
                if not self._variants[tool.name]:
                    del self._variants[tool.name]
        return touched

    def _only_reads(self, tool: Tool, rules: ToolRules) -> bool:
        if tool.name in self.settings.read_only or "*" in self.settings.read_only:
            return True
        return f"{HINT}read-only" in labels_of(tool, rules).believed

    def _choose(self, name: str) -> None:
        """Decide which input schema of a tool is listed: the most frequent one; if there are several, the last one."""
        listed, variants = self.tools.pop(name, None), self._variants.get(name, {})
        self._left_out.pop(name, None)
        if not variants:
            return
        if name == MEMBERS_TOOL:
            self._left_out[name] = "the fleet has a tool of that name"
            return
        before = None if listed is None else listed.schema
        schema, variant = max(
            variants.items(),
            key=lambda each: (len(each[1].members), each[0] == before, _by_first_member(each[1].members)),
        )
        digest, _ = max(variant.definitions.items(), key=lambda item: (item[1], item[0]))
        can_race = bool(variant.readers)
        made = self._listed.get((name, digest, can_race))
        if made is None:
            source = next(tool for tool in variant.members.values() if tool.digest == digest)
            try:
                made = _fleet_tool(self.name, source, schema, can_race=can_race)
            except ValueError as error:
                self._left_out[name] = str(error)
                return
            if len(self._listed) >= LISTS_MEMBERS_MAX:
                self._listed.clear()
            self._listed[name, digest, can_race] = made
        self.tools[name] = made

    # -- its status ----------------------------------------------------------------------------------------------------

    def _make_status(self) -> ServerStatus:
        state, reason = self._state()
        tools = tuple(self.tools[name].tool for name in sorted(self.tools))
        abilities: frozenset[Ability] = frozenset({"tools"} if tools else ())
        is_trusted = bool(self.members) and all(member.rules.is_trusted for member in self.members.values())
        return ServerStatus(
            self.name,
            state,
            reason,
            tools=(self._members_tool, *tools) if tools else (),
            abilities=abilities,
            is_settled=True,
            carrier=CARRIER,
            notes=tuple(self._notes()),
            rules=_TRUSTED if is_trusted else _PLAIN,
        )

    def _state(self) -> tuple[ServerState, str | None]:
        """Its state, and why it is not ready."""
        if not self.members:
            patterns = ", ".join(self.settings.members)
            return "away", f"the fleet has no members: no server matches {patterns}"
        states = Counter(member.state for member in self.members.values())
        if not states["ready"]:
            state: ServerState = "starting" if states["starting"] else "away"
            return state, f"no member of the fleet is connected ({_names(self.members)})"
        if not self.tools:
            return "away", f"the members of the fleet list no tools ({_names(self.members)})"
        return "ready", None

    def _notes(self) -> Iterable[str]:
        """What the operator should know."""
        for name in sorted(self._variants):
            if name in self._left_out:
                yield f"{name!r} left out: {self._left_out[name]}"
            elif len(self._variants[name]) > 1:
                listed = self.tools[name].schema
                others = [
                    member
                    for schema, variant in self._variants[name].items()
                    if schema != listed
                    for member in variant.members
                ]
                yield f"{name!r} has another input schema at {_names(others)}: the fleet does not call it there"
        taken = [each for each in (ALL_MEMBERS, ANY_MEMBER) if each in self.members]
        yield from (f"the member {each!r} cannot be called by its name, which means something else" for each in taken)


_TRUSTED = ToolRules(is_trusted=True)
_PLAIN = ToolRules()


def _visible_tools(status: ServerStatus) -> Iterable[tuple[Tool, bytes]]:
    """The tools that callers of a member would see, each with a digest of its input schema."""
    rules = status.rules
    for tool in status.tools:
        if rules.shows(tool.name):
            defaults = rules.defaults.get(tool.name)
            seen = tool if defaults is None else without_required(tool, compile_defaults(defaults))
            schema = seen.definition.get("inputSchema", b"{}")
            yield seen, hashlib.blake2b(schema, digest_size=12).digest()


def _by_first_member(members: Mapping[ServerName, object]) -> tuple[int, ...]:
    """The sort key of a variant: the variant with the alphabetically first member is greatest."""
    return tuple(-ord(character) for character in min(members))


def _names(members: Iterable[str]) -> str:
    ordered = sorted(members)
    more = len(ordered) - NAMED_MAX
    return ", ".join(ordered[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")


def _fleet_tool(fleet: ServerName, source: Tool, schema: bytes, *, can_race: bool) -> FleetTool:
    """A member's tool as its fleet lists it: with the argument that says which members are called.

    Raises:
        ValueError: its input schema cannot be extended.
    """
    try:
        own: Any = msgspec.json.decode(bytes(source.definition.get("inputSchema", b"{}")))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError("its inputSchema cannot be read") from error
    properties = own.get("properties", {}) if isinstance(own, dict) else None
    if not isinstance(properties, dict):
        raise ValueError("its inputSchema declares no arguments")
    argument = MEMBER_ARGUMENT
    taken = {name.casefold() for name in properties}
    while argument in taken:
        argument += "_"
    race = f"; {ANY_MEMBER!r} for the first answer" if can_race else ""
    about = (
        f"Which member of the fleet {fleet} runs it: an id of {MEMBERS_TOOL}; {ALL_MEMBERS!r} for all, with one outcome"
        f" for each{race}. Without it, one that is free."
    )
    extended = {**own, "properties": {**properties, argument: {"type": "string", "description": about}}}
    definition = {key: value for key, value in source.definition.items() if key not in _DROPPED}
    definition["inputSchema"] = msgspec.Raw(msgspec.json.encode(extended))
    if (flags := _flags(source)) is not None:
        definition["_meta"] = msgspec.Raw(msgspec.json.encode({_KEPT_META: flags}))
    return FleetTool(Tool.of(fleet, source.name, definition), argument, schema)


def _flags(tool: Tool) -> msgspec.Raw | None:
    try:
        return msgspec.json.decode(tool.definition.get("_meta", b"{}"), type=dict[str, msgspec.Raw]).get(_KEPT_META)
    except msgspec.MsgspecError:
        return None


def _members_tool(fleet: ServerName) -> Tool:
    definition: dict[str, Any] = {
        "name": MEMBERS_TOOL,
        "title": "Fleet members",
        "description": f"List the members of the fleet {fleet}: id, state, and how many calls each runs.",
        "inputSchema": {
            "type": "object",
            "properties": {
                "pattern": {"type": "string", "description": "Only ids like this, with * for any characters."},
                "limit": {"type": "integer", "minimum": 1, "maximum": LISTS_MEMBERS_MAX, "default": 100},
            },
            "additionalProperties": False,
        },
        "annotations": {"readOnlyHint": True, "openWorldHint": False},
    }
    members = {key: msgspec.Raw(msgspec.json.encode(value)) for key, value in definition.items()}
    return Tool.of(fleet, MEMBERS_TOOL, members)
