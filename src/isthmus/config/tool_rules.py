"""What an entry says of its server's tools, into the `Rules` of the catalog.

Types and names are checked here, ranges by the rules themselves. Called by `config.servers`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from isthmus.config import values
from isthmus.config.entries import Entry
from isthmus.config.findings import Finding
from isthmus.core.access.policy import check_tag
from isthmus.core.catalog.rules import CACHE_SECONDS, EVERY, NO_RULES, Rules
from isthmus.upstream.settings import DeclaredTool

CACHE_KEYS = ("tools", "ttl")
_TOOL_KEYS = ("description", "input_schema", "inputSchema")


def rules_of(fields: Mapping[str, object], entry: Entry, findings: list[Finding]) -> Rules:
    """Return the rules of one server.

    Raises:
        ValueError: one of them makes no sense, in the words "<key> must …".
    """
    if not fields.keys() & {"include_tools", "exclude_tools", "defaults", "cache", "trusted", "tags"}:
        return NO_RULES
    cache = values.table("cache", fields.get("cache", {}))
    findings += [entry.at("cache").unknown(key, CACHE_KEYS) for key in cache if key not in CACHE_KEYS]
    return Rules(
        only=_texts("include_tools", fields) if "include_tools" in fields else None,
        hidden=_texts("exclude_tools", fields),
        defaults=_defaults(fields),
        cached=values.texts("cache.tools", cache.get("tools", [])),
        cache_seconds=values.number("cache.ttl", cache.get("ttl", CACHE_SECONDS)),
        is_trusted=values.flag("trusted", fields.get("trusted", False)),
        tags=_tags(fields.get("tags", [])),
    )


def _texts(key: str, fields: Mapping[str, object]) -> tuple[str, ...]:
    return values.texts(key, fields.get(key, []))


def _defaults(fields: Mapping[str, object]) -> dict[str, Mapping[str, Any]]:
    by_tool = values.table("defaults", fields.get("defaults", {}))
    return {tool: _json_table(f"defaults.{tool}", arguments) for tool, arguments in by_tool.items()}


def _tags(value: object) -> dict[str, tuple[str, ...]]:
    """Tags of everything, or by tool, prompt or resource; all that a table says of `*` is everything's."""
    by_name = value if isinstance(value, dict) else {EVERY: value}
    tags = {name: values.texts("tags" if by_name is not value else f"tags.{name}", of) for name, of in by_name.items()}
    for tag in (tag for of in tags.values() for tag in of):
        try:
            check_tag(tag)
        except ValueError:
            raise ValueError(f"tags must have only printable texts, not {values.shown(tag)}") from None
    return {name: of for name, of in tags.items() if of}


def _json_table(key: str, value: object) -> dict[str, Any]:
    """Return a table that can travel in a message: TOML and YAML have values that JSON has not."""
    table = values.table(key, value)
    try:
        made: dict[str, Any] = json.loads(json.dumps(table, allow_nan=False))
    except (TypeError, ValueError):
        raise ValueError(f"{key} must have only values that JSON has, not dates or infinite numbers") from None
    return made


def declared_tools(fields: Mapping[str, object], entry: Entry, findings: list[Finding]) -> tuple[DeclaredTool, ...]:
    """Return the tools that an entry describes because its server cannot.

    Raises:
        ValueError: one of them makes no sense, in the words "<key> must …".
    """
    tools = values.table("tools", fields.get("tools", {}))
    return tuple(_declared(name, tool, entry, findings) for name, tool in tools.items())


def _declared(name: str, value: object, entry: Entry, findings: list[Finding]) -> DeclaredTool:
    key = f"tools.{name}"
    tool = values.table(key, value)
    findings += [entry.at("tools", name).unknown(part, _TOOL_KEYS) for part in tool if part not in _TOOL_KEYS]
    spelling = "inputSchema" if "inputSchema" in tool else "input_schema"
    return DeclaredTool(
        name=name,
        description=values.text(f"{key}.description", tool.get("description", "")),
        input_schema=_json_table(f"{key}.{spelling}", tool.get(spelling, {"type": "object"})),
    )
