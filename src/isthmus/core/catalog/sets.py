"""Sets: tools, prompts and resources of several servers, picked and changed for one purpose.

`config` fills in `SetSettings`, which are compared on reload; a `Snapshot` compiles them into views. A set only
narrows: it picks from what a caller may use anyway. Its tools may have other names and descriptions, and arguments that
callers neither see nor send. A tool whose schema cannot be changed safely is left out, never half usable.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from isthmus.core.catalog.argument_validation import EXPENSIVE, CheckCache
from isthmus.core.catalog.names import LLM_LENGTH_MAX, Pair, canonical, llm_form, llm_table, with_digits
from isthmus.core.catalog.tool_rules import Defaults, compile_defaults
from isthmus.model.callers import Exposure
from isthmus.model.calls import Style
from isthmus.model.features import Tool

DESCRIPTION_LENGTH_MIN = 20
"""A shorter bound leaves no sentence."""

VARIANTS_MAX = 100_000
"""Changed tools that are kept for one set."""

NO_TEXT = msgspec.Raw(b'""')


@dataclass(frozen=True, slots=True)
class SetTool:
    """What a set changes of one tool."""

    name: str | None = None
    """Its name in the set; None for the usual one."""
    description: str | None = None
    """Its description in the set; None for the server's."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Arguments that always have this value. Callers neither see nor send them."""
    hide: tuple[str, ...] = ()
    """Optional arguments that callers neither see nor send."""

    def __post_init__(self) -> None:
        if self.name is not None and _NAME.fullmatch(self.name) is None:
            raise ValueError(f"name must be 1 to 128 letters, digits, _, -, . or /, not {self.name!r}")
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
    """The longest description of a tool; longer ones are cut after a sentence, or else a word."""
    tool: Mapping[str, SetTool] = field(default_factory=dict)
    """Changes by tool, named `server.tool`."""
    expose: Exposure | None = None
    """Which tools its lists have; None for what the hub says."""
    max_result_bytes: int | None = None
    """Larger results are cut; None for what the server or the hub says."""
    variants: dict[tuple[str, bytes, tuple[str, ...]], SetVariant | str] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )
    """What became of tools; see `variant_of`."""

    def __post_init__(self) -> None:
        if self.description_max is not None and self.description_max < DESCRIPTION_LENGTH_MIN:
            raise ValueError(f"description_max must be {DESCRIPTION_LENGTH_MIN} or more, not {self.description_max}")


NO_SET = SetSettings()
"""A set that does not exist, and so has nothing in it."""

NO_CHANGE = SetTool()

_NAME = re.compile(r"[A-Za-z0-9_./-]{1,128}")
"""The names of tools that MCP recommends."""
_LLM_NAME = re.compile(rf"[A-Za-z0-9_-]{{1,{LLM_LENGTH_MAX}}}")


# -- names -------------------------------------------------------------------------------------------------------------


def set_names(pairs: Iterable[Pair], settings: SetSettings, style: Style) -> dict[Pair, str]:
    """The name of everything in a set: what the set calls it, else its own name if no other has it.

    Other names are those of the common surface, `server.tool` or the form for language models. The table covers all of
    the set, not only what one caller sees, so that a name means the same to all callers.
    """
    everything = dict.fromkeys(pairs)
    table: dict[Pair, str] = {}
    taken: set[str] = set()
    if any(change.name is not None for change in settings.tool.values()):
        for pair in sorted(everything):
            name = settings.tool.get(canonical(pair), NO_CHANGE).name
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


def colliding_names(settings: SetSettings) -> dict[str, list[str]]:
    """The names that a set gives to several tools, with these tools; the first of them keeps the name."""
    named: dict[str, list[str]] = {}
    for tool, change in sorted(settings.tool.items()):
        if change.name is not None:
            named.setdefault(change.name, []).append(tool)
    return {name: tools for name, tools in named.items() if len(tools) > 1}


# -- descriptions ------------------------------------------------------------------------------------------------------

_SENTENCE_END = re.compile(r"[.!?](?=\s)|\n")


def shortened(text: str, length: int) -> str:
    """The first sentences of a text that fit; if not even one does, its first words and an ellipsis."""
    if len(text) <= length:
        return text
    ends = [found.end() for found in _SENTENCE_END.finditer(text, 0, length + 1) if found.end() <= length]
    if ends and (sentences := text[: ends[-1]].rstrip()):
        return sentences
    words = text[: length - 1]
    return f"{(words.rpartition(' ')[0] or words).rstrip()}…"


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
    """A tool cannot be in a set as it is configured; the message says why."""


class SetNote(msgspec.Struct, frozen=True):
    """Something about a set that its settings alone do not tell: where in its table, and what."""

    path: tuple[str, ...]
    text: str


class SetVariant(msgspec.Struct, frozen=True):
    """A tool as a set has it."""

    tool: Tool
    fixed: Defaults = {}
    """Arguments that the hub fills in."""
    accepted: frozenset[str] | None = None
    """The only arguments that callers may send; None for all."""


def change_tool(
    tool: Tool, change: SetTool, defaults: Collection[str] = (), description_max: int | None = None
) -> SetVariant:
    """The tool as the set has it. `defaults` are arguments that the operator adds anyway.

    Raises:
        UnusableInSet: its arguments cannot be changed as configured.
    """
    definition = dict(tool.definition)
    if change.description is not None:
        definition["description"] = _raw(change.description)
    elif (
        description_max is not None
        and len(memoryview(raw := definition.get("description", NO_TEXT))) > description_max
        and (text := _text(raw)) is not None
    ):
        definition["description"] = _raw(shortened(text, description_max))
    accepted: frozenset[str] | None = None
    if change.fixed or change.hide:
        schema, accepted = _without_arguments(tool, {*change.fixed, *change.hide}, {*change.fixed, *defaults})
        definition["inputSchema"] = _raw(schema)
    if definition == tool.definition:
        return SetVariant(tool)
    return SetVariant(Tool.of(tool.server, tool.name, definition), compile_defaults(change.fixed), accepted)


def variant_of(
    settings: SetSettings, tool: Tool, full: str, defaults: Collection[str], checks: CheckCache
) -> SetVariant | str:
    """A tool as the set has it, or why it cannot have it.

    Kept with the settings: a snapshot is replaced whenever any server changes, and most tools are not.
    """
    key = (full, tool.digest, tuple(defaults))
    found = settings.variants.get(key)
    if found is None:
        change = settings.tool.get(full, NO_CHANGE)
        try:
            found = change_tool(tool, change, defaults, settings.description_max)
            for name, value in change.fixed.items():
                # The message of the check quotes the value, which may be a secret.
                wrong = checks.check_for(_without_requirements(tool))(_raw({name: value}))
                if wrong is not None and wrong is not EXPENSIVE:
                    raise UnusableInSet(f"its inputSchema does not accept the value of fixed.{name}")
        except UnusableInSet as error:
            found = str(error)
        if len(settings.variants) >= VARIANTS_MAX:
            settings.variants.clear()
        settings.variants[key] = found
    return found


def _without_arguments(tool: Tool, removed: set[str], filled: set[str]) -> tuple[dict[str, Any], frozenset[str]]:
    """The schema of a tool without some arguments, and the names of those that are left."""
    schema = _schema(tool)
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list):
        raise UnusableInSet("its inputSchema is malformed")
    if combined := next((key for key in _COMBINED if key in schema), None):
        raise UnusableInSet(f"its inputSchema has {combined}, so that arguments cannot be removed safely")
    if unknown := sorted(removed - properties.keys()):
        raise UnusableInSet(f"it declares no argument {unknown[0]!r}")
    if needed := sorted((removed & {each for each in required if isinstance(each, str)}) - filled):
        raise UnusableInSet(f"its argument {needed[0]!r} is required: fix it instead of hiding it")
    left = {name: value for name, value in properties.items() if name not in removed}
    # Some servers do not distinguish case in names of arguments, and the last of two would win there.
    folded = {name.casefold() for name in removed}
    if alike := sorted(name for name in left if name.casefold() in folded):
        raise UnusableInSet(f"its argument {alike[0]!r} differs from a fixed or hidden one by case only")
    kept = {key: value for key, value in schema.items() if key not in (*_OPEN, *_TELLTALE)}
    changed = {
        **kept,
        "properties": left,
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
