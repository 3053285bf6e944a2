"""Sets: tools, prompts and resources of several servers, picked and changed for one purpose.

`config` fills in `SetSettings`, which are compared on reload; a `Snapshot` compiles them into views. A set only
narrows: it picks from what a caller may use anyway. Its tools may have other names and descriptions, and arguments that
callers neither see nor send; so may its prompts, and its resources have other names and descriptions. A tool or prompt
whose arguments cannot be changed safely is left out, never half usable.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import msgspec

from isthmus.core.catalog.argument_validation import EXPENSIVE, CheckCache
from isthmus.core.catalog.names import LLM_LENGTH_MAX, Pair, canonical, llm_form, llm_table, with_digits
from isthmus.core.catalog.tool_rules import Defaults, compile_defaults
from isthmus.model.callers import Exposure
from isthmus.model.calls import Style
from isthmus.model.descriptions import shortened
from isthmus.model.features import Feature, ListName, Prompt, Resource, Template, Tool

DESCRIPTION_LENGTH_MIN = 20
"""A shorter bound leaves no sentence."""

VARIANTS_MAX = 100_000
"""Changed features that are kept for one set."""

NO_TEXT = msgspec.Raw(b'""')
NO_ARGUMENTS = msgspec.Raw(b"[]")


ChangeTable: TypeAlias = Literal["tool", "prompt", "resource"]
"""The tables of a set with its changes, as they are named in the file."""

CHANGE_TABLES: Mapping[ListName, ChangeTable] = {
    "tools": "tool",
    "prompts": "prompt",
    "resources": "resource",
    "templates": "resource",
}


@dataclass(frozen=True, slots=True)
class SetChange:
    """What a set changes of one tool, prompt, resource or template of resources."""

    name: str | None = None
    """Its name in the set; None for the usual one. That of a resource is only shown: its URI identifies it."""
    title: str | None = None
    """Its title in the set; None for the server's."""
    description: str | None = None
    """Its description in the set; None for the server's."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Arguments that always have this value. Callers neither see nor send them."""
    hide: tuple[str, ...] = ()
    """Optional arguments that callers neither see nor send."""

    def __post_init__(self) -> None:
        if both := sorted(self.fixed.keys() & set(self.hide)):
            raise ValueError(f"hide must not name an argument that is in fixed, not {both[0]!r}")


@dataclass(frozen=True, slots=True)
class SetSettings:
    """One set: patterns of what is in it, as in permissions, and what it changes."""

    tools: tuple[str, ...] = ()
    prompts: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    """What is not in it, whatever the others say."""
    description: str = ""
    """What it is for. Clients show it to models as the instructions of the server."""
    description_max: int | None = None
    """The longest description in its lists; longer ones are cut after a sentence, or else a word."""
    tool: Mapping[str, SetChange] = field(default_factory=dict)
    """Changes by tool, named `server.tool`."""
    prompt: Mapping[str, SetChange] = field(default_factory=dict)
    """Changes by prompt, named `server.prompt`. Fixed arguments are texts."""
    resource: Mapping[str, SetChange] = field(default_factory=dict)
    """Changes by resource or template, named `server.uri`. They have no arguments."""
    expose: Exposure | None = None
    """Which tools its lists have; None for what the hub says."""
    max_result_bytes: int | None = None
    """Larger results are cut; None for what the server or the hub says."""
    variants: dict[tuple[type[Feature], str, bytes, tuple[str, ...]], SetVariant | str] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )
    """What became of features; see `variant_of`."""

    def __post_init__(self) -> None:
        if self.description_max is not None and self.description_max < DESCRIPTION_LENGTH_MIN:
            raise ValueError(f"description_max must be {DESCRIPTION_LENGTH_MIN} or more, not {self.description_max}")
        for table, changes in (("tool", self.tool), ("prompt", self.prompt)):
            for full, change in changes.items():
                if change.name is not None and _NAME.fullmatch(change.name) is None:
                    wanted = "1 to 128 letters, digits, _, -, . or /"
                    raise ValueError(f'{table}."{full}".name must be {wanted}, not {change.name!r}')
        for full, change in self.prompt.items():
            if others := sorted(name for name, value in change.fixed.items() if not isinstance(value, str)):
                raise ValueError(f'prompt."{full}".fixed.{others[0]} must be a text in quotation marks')

    def patterns_of(self, listed: ListName) -> tuple[str, ...]:
        """The patterns that pick what one list has."""
        match listed:
            case "tools":
                return self.tools
            case "prompts":
                return self.prompts
            case "resources" | "templates":
                return self.resources

    @property
    def changes(self) -> Mapping[ChangeTable, Mapping[str, SetChange]]:
        """All changes, by their table."""
        return {"tool": self.tool, "prompt": self.prompt, "resource": self.resource}

    def changes_of(self, listed: ListName) -> Mapping[str, SetChange]:
        """The changes of what one list has."""
        return self.changes[CHANGE_TABLES[listed]]


NO_SET = SetSettings()
"""A set that does not exist, and so has nothing in it."""

NO_CHANGE = SetChange()

_NAME = re.compile(r"[A-Za-z0-9_./-]{1,128}")
"""The names of tools that MCP recommends, and so of prompts."""
_LLM_NAME = re.compile(rf"[A-Za-z0-9_-]{{1,{LLM_LENGTH_MAX}}}")


# -- names -------------------------------------------------------------------------------------------------------------


def set_names(pairs: Iterable[Pair], changes: Mapping[str, SetChange], style: Style) -> dict[Pair, str]:
    """The names of a set's tools, or of its prompts: what the set calls one, else its own name if no other has it.

    Other names are those of the common surface, `server.tool` or the form for language models. The table covers all of
    the set, not only what one caller sees, so that a name means the same to all callers.
    """
    everything = dict.fromkeys(pairs)
    table: dict[Pair, str] = {}
    taken: set[str] = set()
    if any(change.name is not None for change in changes.values()):
        for pair in sorted(everything):
            name = changes.get(canonical(pair), NO_CHANGE).name
            if name is not None and name not in taken:  # the first keeps it; `colliding_names` reports the second
                table[pair] = name
                taken.add(name)
    others = [pair for pair in everything if pair not in table]
    shared = Counter([name for _, name in others])
    for pair in others:
        name = pair[1]
        if shared[name] == 1 and name not in taken and (style != "llm" or _LLM_NAME.fullmatch(name)):
            table[pair] = name
    taken.update(table.values())
    if rest := sorted(pair for pair in others if pair not in table):
        qualified = llm_table(others) if style == "llm" else {pair: canonical(pair) for pair in rest}
        for pair in rest:
            name = qualified[pair]
            table[pair] = name if name not in taken else with_digits(llm_form(pair), pair, taken)
            taken.add(table[pair])
    return table


def colliding_names(changes: Mapping[str, SetChange]) -> dict[str, list[str]]:
    """The names that a set gives to several tools or prompts, with these; the first of them keeps the name."""
    named: dict[str, list[str]] = {}
    for full, change in sorted(changes.items()):
        if change.name is not None:
            named.setdefault(change.name, []).append(full)
    return {name: several for name, several in named.items() if len(several) > 1}


# -- arguments ---------------------------------------------------------------------------------------------------------

_COMBINED = (
    "$ref",
    "$dynamicRef",
    "$recursiveRef",
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "if",
    "then",
    "else",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "minProperties",
    "maxProperties",
    "const",
    "enum",
)
"""Keywords that may say something about an argument beside `properties` and `required`, or about all at once: then an
error message could quote a fixed value."""

_TELLTALE = ("default", "examples")
"""Members of a schema that may show values of removed arguments."""

_OPEN = ("additionalProperties", "patternProperties", "unevaluatedProperties")
"""Keywords that allow arguments which are not declared, or describe them."""


class UnusableInSet(ValueError):
    """A tool or prompt cannot be in a set as it is configured; the message says why."""


class SetNote(msgspec.Struct, frozen=True):
    """Something about a set that its settings alone do not tell: where in its table, and what."""

    path: tuple[str, ...]
    text: str


class SetVariant(msgspec.Struct, frozen=True):
    """A feature as a set has it."""

    feature: Feature
    fixed: Defaults = {}
    """Arguments that the hub fills in."""
    accepted: frozenset[str] | None = None
    """The only arguments that callers may send; None for all."""


def change_feature(
    feature: Feature, change: SetChange, defaults: Collection[str] = (), description_max: int | None = None
) -> SetVariant:
    """The feature as the set has it. `defaults` are arguments of a tool that the operator adds anyway.

    Raises:
        UnusableInSet: its arguments cannot be changed as configured.
    """
    definition = dict(feature.definition)
    if change.name is not None and isinstance(feature, Resource | Template):
        definition["name"] = _raw(change.name)
    if change.title is not None:
        definition["title"] = _raw(change.title)
    if change.description is not None:
        definition["description"] = _raw(change.description)
    elif (
        description_max is not None
        and len(memoryview(raw := definition.get("description", NO_TEXT))) > description_max
        and (text := _text(raw)) is not None
    ):
        definition["description"] = _raw(shortened(text, description_max))
    accepted: frozenset[str] | None = None
    removed = {*change.fixed, *change.hide}
    if removed and isinstance(feature, Tool):
        schema, accepted = _schema_without(feature, removed, {*change.fixed, *defaults})
        definition["inputSchema"] = _raw(schema)
    elif removed and isinstance(feature, Prompt):
        arguments, accepted = _arguments_without(feature, removed, change.fixed)
        definition["arguments"] = _raw(arguments)
    if definition == feature.definition:
        return SetVariant(feature)
    changed = type(feature).of(feature.server, feature.name, definition)
    return SetVariant(changed, compile_defaults(change.fixed), accepted)


def variant_of(
    settings: SetSettings,
    listed: ListName,
    feature: Feature,
    full: str,
    checks: CheckCache,
    defaults: Collection[str] = (),
) -> SetVariant | str:
    """A feature as the set has it, or why it cannot have it.

    Kept with the settings: a snapshot is replaced whenever any server changes, and most features are not.
    """
    key = (type(feature), full, feature.digest, tuple(defaults))
    found = settings.variants.get(key)
    if found is None:
        change = settings.changes_of(listed).get(full, NO_CHANGE)
        try:
            found = change_feature(feature, change, defaults, settings.description_max)
            if isinstance(feature, Tool):
                _check_fixed(feature, change.fixed, checks)
        except UnusableInSet as error:
            found = str(error)
        if len(settings.variants) >= VARIANTS_MAX:
            settings.variants.clear()
        settings.variants[key] = found
    return found


def _check_fixed(tool: Tool, fixed: Mapping[str, Any], checks: CheckCache) -> None:
    """Raises `UnusableInSet` if the tool's schema does not accept a fixed value."""
    for name, value in fixed.items():
        # The message of the check quotes the value, which may be a secret.
        wrong = checks.check_for(_without_requirements(tool))(_raw({name: value}))
        if wrong is not None and wrong is not EXPENSIVE:
            raise UnusableInSet(f"its inputSchema does not accept the value of fixed.{name}")


def _left(
    declared: Iterable[str], required: Iterable[str], removed: Collection[str], filled: Collection[str]
) -> list[str]:
    """The declared arguments without the removed ones. `filled` are those that the hub sends anyway.

    Raises:
        UnusableInSet: some cannot be removed.
    """
    declared = list(declared)
    if unknown := sorted(set(removed).difference(declared)):
        raise UnusableInSet(f"it declares no argument {unknown[0]!r}")
    if needed := sorted(set(required).intersection(removed).difference(filled)):
        raise UnusableInSet(f"its argument {needed[0]!r} is required: fix it instead of hiding it")
    left = [name for name in declared if name not in removed]
    # Some servers do not distinguish case in names of arguments, and the last of two would win there.
    folded = {name.casefold() for name in removed}
    if alike := sorted(name for name in left if name.casefold() in folded):
        raise UnusableInSet(f"its argument {alike[0]!r} differs from a fixed or hidden one by case only")
    return left


class _PromptArgument(msgspec.Struct):
    name: str
    required: bool | None = False


def _arguments_without(
    prompt: Prompt, removed: Collection[str], filled: Collection[str]
) -> tuple[list[msgspec.Raw], frozenset[str]]:
    """The arguments of a prompt without some, and the names of those that are left."""
    try:
        arguments = msgspec.json.decode(prompt.definition.get("arguments", NO_ARGUMENTS), type=list[msgspec.Raw] | None)
        declared = [(msgspec.json.decode(each, type=_PromptArgument), each) for each in arguments or ()]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UnusableInSet("its arguments are malformed") from error
    required = [each.name for each, _ in declared if each.required]
    left = _left((each.name for each, _ in declared), required, removed, filled)
    return [raw for each, raw in declared if each.name in left], frozenset(left)


def _schema_without(
    tool: Tool, removed: Collection[str], filled: Collection[str]
) -> tuple[dict[str, Any], frozenset[str]]:
    """The schema of a tool without some arguments, and the names of those that are left."""
    schema = _schema(tool)
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list):
        raise UnusableInSet("its inputSchema is malformed")
    if combined := next((key for key in _COMBINED if key in schema), None):
        raise UnusableInSet(f"its inputSchema has {combined}, so that arguments cannot be removed safely")
    left = _left(properties, (each for each in required if isinstance(each, str)), removed, filled)
    kept = {key: value for key, value in schema.items() if key not in (*_OPEN, *_TELLTALE)}
    changed = {
        **kept,
        "properties": {name: properties[name] for name in left},
        "required": [name for name in required if name not in removed],
        "additionalProperties": False,
    }
    if any(target == "#" or target.startswith("#/properties") for target in _references(changed)):
        raise UnusableInSet("its inputSchema refers to itself, so that arguments cannot be removed safely")
    if not changed["required"]:
        del changed["required"]
    return changed, frozenset(left)


def _without_requirements(tool: Tool) -> Tool:
    """The tool with all arguments optional: the check of its fixed values alone."""
    schema = {key: value for key, value in _schema(tool).items() if key != "required"}
    return Tool.of(tool.server, tool.name, {"inputSchema": _raw(schema)})


def _schema(tool: Tool) -> dict[str, Any]:
    text = bytes(tool.definition.get("inputSchema", b"{}"))
    try:
        schema = msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UnusableInSet("its inputSchema cannot be read") from error
    if not isinstance(schema, dict):
        raise UnusableInSet("its inputSchema declares no arguments")
    return schema


def _references(schema: object) -> Iterable[str]:
    """The targets of all references in a schema."""
    waiting = [schema]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            yield from (target for key in ("$ref", "$dynamicRef") if isinstance(target := value.get(key), str))
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value


def _text(raw: msgspec.Raw | None) -> str | None:
    try:
        return None if raw is None else msgspec.json.decode(raw, type=str)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))
