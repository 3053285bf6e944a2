"""Servers written down as `isthmus.toml` has them, and put into such a file without touching the rest of it.

Texts in, texts out: files are opened by the command line. What is written are the placeholders that a file had
and never what they stand for. Called by `isthmus import`.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from datetime import date, datetime, time
from typing import Any, assert_never

from isthmus.config.entries import EXTRA, EXTRA_JSON, Entry
from isthmus.upstream.settings import (
    AgentSettings,
    HttpSettings,
    PythonSettings,
    RpcSettings,
    ServerSettings,
    SocketSettings,
    StdioSettings,
)

ROOT = "servers"

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_REFERENCE = re.compile(r"(?:env|file|keyring):")
_HEADER = re.compile(r"\s*\[\[?([^\[\]]+)\]\]?\s*(?:#.*)?")
_AS_THEY_ARE = (
    "include_tools",
    "exclude_tools",
    "era",
    "limits",
    "sha256",
    "max_calls",
    "max_queued",
    "isolation",
    "trusted",
    "tags",
    "pin",
    "ca",
    "defaults",
    "cache",
)


class CannotMerge(ValueError):
    """A file that would not be the same, apart from what is added, after a change; the text says why."""


# -- an entry in our words -----------------------------------------------------------------------------------


def own_fields(entry: Entry, server: ServerSettings) -> dict[str, object]:
    """Return what our own file has to say for an entry to mean the same there.

    The entry has the texts, variables unreplaced; the server says what its client's habits made of the rest.
    """
    fields = _reach_fields(entry, server)
    if "timeout" in entry.fields:
        fields["timeout"] = int(server.timeout) if server.timeout % 1 == 0 else server.timeout
    if server.disabled:
        fields["disabled"] = True
    fields.update({key: entry.fields[key] for key in _AS_THEY_ARE if key in entry.fields})
    return {**fields, **_extra_fields(entry.extra)}


def _extra_fields(extra: Mapping[str, object]) -> dict[str, object]:
    said = {key: value for key, value in extra.items() if _is_sayable({key: value})}
    rest = {key: value for key, value in extra.items() if key not in said}
    fields: dict[str, object] = {EXTRA: said} if said else {}
    return {**fields, EXTRA_JSON: json.dumps(rest, default=str)} if rest else fields


def _is_sayable(value: object) -> bool:
    """Tell whether TOML can hold a value: it has no null, and no text that is not Unicode."""
    match value:
        case str():
            return not any("\ud800" <= character <= "\udfff" for character in value)
        case list():
            return all(map(_is_sayable, value))
        case dict():
            return all(isinstance(key, str) and _is_sayable(key) and _is_sayable(item) for key, item in value.items())
        case _:
            return isinstance(value, bool | int | float | date | time)


def _reach_fields(entry: Entry, server: ServerSettings) -> dict[str, object]:
    raw, reach = entry.fields, server.reach
    match reach:
        case StdioSettings():
            fields = _taken(raw, "command", "args")
            fields |= {"env": _literal(raw["env"], entry)} if raw.get("env") else {}
            fields |= {"cwd": reach.cwd} if reach.cwd is not None else {}
            return fields | _taken(raw, "env_file")
        case HttpSettings():
            kind = {"type": reach.carrier} if reach.carrier != "auto" else {}
            return {"url": raw["url"], **kind, **_headers(entry), **_taken(raw, "user_headers")}
        case SocketSettings():
            return {"url": raw["url"], "type": "ws", **_headers(entry)}
        case RpcSettings():
            return {"rpc": raw.get("rpc") or raw["url"], **_headers(entry), **_taken(raw, "user_headers", "tools")}
        case AgentSettings():
            return {"agent": raw["agent"], **_headers(entry), **_taken(raw, "origins")}
        case PythonSettings():
            return {"python": raw["python"], **({"path": reach.path} if reach.path is not None else {})}
        case _:
            assert_never(reach)


def _taken(raw: Mapping[str, object], *keys: str) -> dict[str, object]:
    return {key: raw[key] for key in keys if raw.get(key) not in (None, "", [], {})}


def _headers(entry: Entry) -> dict[str, object]:
    headers = entry.fields.get("headers")
    return {"headers": _literal(headers, entry)} if headers else {}


def _literal(table: object, entry: Entry) -> object:
    """Keep what is a text in the file it comes from from being taken for a reference in ours."""
    if entry.dialect.is_own or not isinstance(table, dict):
        return table
    return {key: _escaped(value) for key, value in table.items() if value is not None}


def _escaped(value: object) -> object:
    is_reference = isinstance(value, str) and _REFERENCE.match(value) and not set(value) & set("{}")
    return f"${{:-{value}}}" if is_reference else value


# -- TOML ----------------------------------------------------------------------------------------------------


def toml_table(name: str, fields: Mapping[str, object]) -> str:
    """Return the lines of one server."""
    lines = [f"[{ROOT}.{_key(name)}]"]
    lines += [f"{_key(key)} = {_value(value)}" for key, value in fields.items() if value is not None]
    return "\n".join(lines) + "\n"


def _key(text: str) -> str:
    return text if _BARE_KEY.fullmatch(text) else _text(text)


def _text(text: str) -> str:
    # JSON's escapes are TOML's, but for the slash and for what is beyond the first plane: both stay as they are.
    escaped = json.dumps(text.encode(errors="replace").decode(), ensure_ascii=False)
    return escaped.replace("\x7f", "\\u007f")


def _value(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case list() | tuple():
            return f"[{', '.join(_value(item) for item in value if item is not None)}]"
        case dict():
            members = (f"{_key(str(key))} = {_value(item)}" for key, item in value.items() if item is not None)
            inside = ", ".join(members)
            return f"{{ {inside} }}" if inside else "{}"
        case datetime() | date() | time():
            return value.isoformat()
        case _:
            return _text(str(value))


# -- a file --------------------------------------------------------------------------------------------------


def merged(text: str, tables: Mapping[str, str], replaced: Sequence[str] = ()) -> str:
    """Return a file's text with tables added below, and those of `replaced` servers taken out before.

    Raises:
        CannotMerge: the file is written in a way that cannot be added to, or one of the servers to replace is.
    """
    before = tomllib.loads(text)
    kept = _without(text, replaced)
    line_end = "\r\n" if "\r\n" in text else "\n"
    parts = [kept if not kept or kept.endswith("\n") else kept + line_end]
    parts += [("\n" if kept or position else "") + table for position, table in enumerate(tables.values())]
    made = parts[0] + "".join(parts[1:]).replace("\n", line_end)
    _check(before, made, set(tables), set(replaced))
    return made


def _without(text: str, names: Sequence[str]) -> str:
    """Return a text without the tables of some servers; comments that lead to the next table stay."""
    lines = text.splitlines(keepends=True)
    kept: list[str] = []
    held: list[str] = []  # blank lines and comments since the last value, which may belong to what comes next
    is_dropped = False
    for line in lines:
        if found := _HEADER.fullmatch(line.rstrip("\r\n")):
            was_dropped, is_dropped = is_dropped, _is_of(found[1], names)
            kept += held if not (was_dropped and is_dropped) else []
            held = []
        if is_dropped and not line.strip().startswith("#") and line.strip():
            held = []
        elif is_dropped:
            held.append(line)
        else:
            kept.append(line)
    return "".join([*kept, *held])


def _is_of(header: str, names: Sequence[str]) -> bool:
    try:
        table: Any = tomllib.loads(f"[{header}]")
    except tomllib.TOMLDecodeError:
        return False
    root = next((root for root in (ROOT, "mcpServers") if root in table), None)
    return root is not None and bool(table[root].keys() & set(names))


def _check(before: dict[str, Any], made: str, added: set[str], replaced: set[str]) -> None:
    """Make sure that a change did what was meant and nothing else."""
    try:
        after = tomllib.loads(made)
    except tomllib.TOMLDecodeError as error:
        raise CannotMerge(f"its servers are written in a way that cannot be added to ({error})") from error
    if _rest(before, added | replaced) != _rest(after, added | replaced):
        raise CannotMerge("something else in it would change with them")


def _rest(table: dict[str, Any], names: set[str]) -> dict[str, Any]:
    roots = {
        root: {name: entry for name, entry in table[root].items() if name not in names}
        for root in (ROOT, "mcpServers")
        if isinstance(table.get(root), dict)
    }
    # An empty table is as none: the last of its servers may have been replaced.
    return {key: value for key, value in {**table, **roots}.items() if value != {}}
