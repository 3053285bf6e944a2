"""Read `[sets.NAME]`: tools, prompts and resources of several servers, picked and changed for one purpose.

The keys are declared once, here: their sentences in the reference, and the fields of `core.catalog.sets` that they
fill. A set with a mistake is left out whole, and callers that are bound to it see nothing. Called by `config.load`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from isthmus.config import codes, values
from isthmus.config.callers import CALLERS, ISSUERS, SETS, exposure, patterns, result_limit
from isthmus.config.entry_conversion import json_table
from isthmus.config.files import Document
from isthmus.config.findings import Finding, Place, closest_match, fix_of
from isthmus.config.variables import UsedVariables, Variables
from isthmus.core.access.policy import Policy, check_pattern, is_of_agent, is_of_label
from isthmus.core.catalog.sets import SetSettings, SetTool, colliding_names
from isthmus.model.callers import Grants
from isthmus.model.names import FeatureName, ServerName, parse_server_name

TOOL = "tool"

SET_KEYS: Mapping[str, str] = {
    "tools": 'Tools of the set, in the patterns of permissions: `"server.*"`, `"server.tool"`, `"tag:NAME"`,'
    ' `"hint:read-only"`, `"*"`.',
    "prompts": "Prompts of the set, in the same patterns; none if not set.",
    "resources": "Resources and templates of the set, in the same patterns; none if not set.",
    "exclude": "What is not in the set, whatever the others say.",
    "description": "What the set is for. MCP clients get it as the instructions of the server.",
    "description_max": "Longest description of a tool, in characters; longer ones are cut at the end of a sentence."
    " 20 or more.",
    "expose": "Which tools the set lists, as in `[hub]`; the hub's `expose` if not set.",
    "max_result_bytes": "Larger results are [cut](budgets.md#large-results), as in `[hub]`; what the server or the hub"
    " says if not set.",
    TOOL: 'Changes of single tools: `[sets.NAME.tool."server.tool"]`, with the keys below.',
}
"""The keys of `[sets.NAME]`, with their sentence in the reference."""

SET_TOOL_KEYS: Mapping[str, str] = {
    "name": "Its name in the set.",
    "description": "Its description in the set.",
    "fixed": "Table of arguments that always have this value. They are removed from the schema; a caller that sends one"
    " gets `bad_arguments`. Texts may contain `${VAR}`.",
    "hide": "Optional arguments that are removed from the schema; a caller that sends one gets `bad_arguments`.",
}
"""The keys of `[sets.NAME.tool."server.tool"]`."""


_FIXES = (
    ("must have another name than a server", "rename the set"),
    ("must have a name like that of a server", "name the set with 1 to 50 letters, digits, _ and -"),
    ("must be server.tool in quotation marks", 'write [sets.NAME.tool."server.tool"]'),
    ("must be *, server.*", 'write a pattern such as "server.*", "server.tool" or "hint:read-only"'),
    ("must be a list", 'write a list, such as ["server.*"] for tools'),
    ("must have only variables that are set", "set the variable where the hub starts, or in the .env beside the file"),
    ("must have only", "correct the spelling of the key, or remove it"),
    ("must not name an argument that is in fixed", "remove the argument from hide"),
)
"""Parts of the mistakes in a set, and what to write instead; the first match counts."""


def read_sets(
    document: Document | None, variables: Variables, servers: Collection[str]
) -> tuple[dict[str, SetSettings], list[Finding]]:
    """Return the sets of a file by name, with findings. `servers` are the names that a set cannot have."""
    if document is None or not document.dialect.has_hub:
        return {}, []
    root = Place(document.file, SETS)
    sets: dict[str, SetSettings] = {}
    findings: list[Finding] = []
    for name, entry in document.section(SETS).items():
        place = root.at(name)
        try:
            sets[name] = settings = _read_set(name, entry, variables, servers)
        except ValueError as error:
            advice = fix_of(error, _FIXES, "callers that are bound to it see nothing")
            findings.append(place.mistake(error, advice=advice, code=codes.BAD_SET))
            continue
        if not (settings.tools or settings.prompts or settings.resources):
            advice = 'to pick all tools of a server, write tools = ["server.*"]'
            findings.append(place.finding("picks nothing", advice=advice, code=codes.IDLE_SET_ENTRY))
        for tool in _unpicked(settings):
            advice = f"correct its spelling, add {json.dumps(tool)} to tools, or remove it"
            place_of_tool = place.at(TOOL, tool)
            findings.append(
                place_of_tool.finding("is not among the tools of the set", advice=advice, code=codes.IDLE_SET_ENTRY)
            )
        for shared, tools in colliding_names(settings).items():
            findings.append(
                place.finding(f"gives the name {shared} to {', '.join(tools)}", code=codes.SET_NAMES_COLLIDE)
            )
    findings += _unknown_bindings(document, sets)
    return sets, findings


def _unpicked(settings: SetSettings) -> list[str]:
    """Return the changed tools that no pattern picks; empty where patterns match labels, which servers tell."""
    picked, unpicked = Policy(Grants(settings.tools, settings.exclude)), []
    if any(is_of_label(pattern) or is_of_agent(pattern) for pattern in settings.tools):
        return []
    for tool in settings.tool:
        server, _, own = tool.partition(".")
        if not picked.allows(ServerName(server), FeatureName(own)):
            unpicked.append(tool)
    return unpicked


def _unknown_bindings(document: Document, sets: Collection[str]) -> list[Finding]:
    """Return findings about callers and issuers that are bound to a set that does not exist."""
    findings: list[Finding] = []
    for root in (CALLERS, ISSUERS):
        for name, entry in document.section(root).items():
            given = entry.get("set") if isinstance(entry, dict) else None
            if isinstance(given, str) and given not in sets:
                meant = closest_match(given, sets)
                advice = "" if meant is None else f"did you mean {meant}?"
                finding = (
                    Place(document.file, root)
                    .at(name, "set")
                    .finding("must be the name of a set", value=repr(given), advice=advice, code=codes.UNKNOWN_SET)
                )
                findings.append(finding)
    return findings


def _read_set(name: str, entry: object, variables: Variables, servers: Collection[str]) -> SetSettings:
    try:
        parse_server_name(name)
    except ValueError as error:
        raise ValueError(f"must have a name like that of a server, not {values.quoted(name)}: {error}") from error
    if name in servers:
        raise ValueError(f"must have another name than a server, not {values.quoted(name)}")
    fields = values.table("", entry, SET_KEYS)
    given: dict[str, Any] = {key: patterns(key, fields) for key in ("tools", "prompts", "resources", "exclude")}
    if "description" in fields:
        given["description"] = values.text("description", fields["description"])
    if "description_max" in fields:
        given["description_max"] = values.integer("description_max", fields["description_max"])
    given["expose"] = exposure(fields)
    given["max_result_bytes"] = result_limit(fields)
    tools = values.table(TOOL, fields.get(TOOL, {}))
    with values.below(TOOL):
        given[TOOL] = {tool: _read_tool(tool, table, variables) for tool, table in tools.items()}
    return SetSettings(**given)


def _read_tool(tool: str, entry: object, variables: Variables) -> SetTool:
    server, _, own = tool.partition(".")
    if not own:
        raise ValueError(f"{server} must be server.tool in quotation marks, not {values.quoted(tool)}")
    check_pattern(tool)
    with values.below(f'"{tool}"'):
        fields = values.table("", entry, SET_TOOL_KEYS)
        used = UsedVariables()
        fixed = values.map_texts(
            json_table("fixed", fields.get("fixed", {})), lambda text, *_: variables.expand(text, used)
        )
        if used.unresolved:
            raise ValueError(f"fixed must have only variables that are set, not {used.unresolved[0]}")
        return SetTool(
            name=None if "name" not in fields else values.text("name", fields["name"]),
            description=None if "description" not in fields else values.text("description", fields["description"]),
            fixed=values.table("fixed", fixed),
            hide=values.texts("hide", fields.get("hide", [])),
        )
