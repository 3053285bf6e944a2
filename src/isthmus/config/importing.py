"""Which of the servers that were found elsewhere are new to a file, and what the file becomes with them.

It decides and writes nothing: `isthmus import` shows the candidates and writes the text. What is in a file
already is never changed without being asked for.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, time
from pathlib import Path
from typing import Any, Literal, assert_never

from isthmus.config.client_files import HostContext
from isthmus.config.codes import UNRESOLVED_VARIABLE
from isthmus.config.dialects.clients import OWN
from isthmus.config.entries import EXTRA, EXTRA_JSON, Entry, entries_of, entry_of
from isthmus.config.files import Document
from isthmus.config.findings import ConfigError, Finding, Place
from isthmus.config.redaction import any_secret, secrets_of
from isthmus.config.servers import EntryContext, LoadedServers
from isthmus.config.variables import Variables, variables_of
from isthmus.core.settings import Limits
from isthmus.model.names import ServerName
from isthmus.upstream.settings import (
    AgentSettings,
    HttpSettings,
    JsonRpcSettings,
    PythonSettings,
    ServerSettings,
    StdioSettings,
    WebSocketSettings,
)

SERVERS = "servers"

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
        case WebSocketSettings():
            return {"url": raw["url"], "type": "ws", **_headers(entry)}
        case JsonRpcSettings():
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
    lines = [f"[{SERVERS}.{_toml_key(name)}]"]
    lines += [f"{_toml_key(key)} = {_toml_value(value)}" for key, value in fields.items() if value is not None]
    return "\n".join(lines) + "\n"


def _toml_key(text: str) -> str:
    return text if _BARE_KEY.fullmatch(text) else _toml_text(text)


def _toml_text(text: str) -> str:
    # JSON's escapes are TOML's, but for the slash and for what is beyond the first plane: both stay as they are.
    escaped = json.dumps(text.encode(errors="replace").decode(), ensure_ascii=False)
    return escaped.replace("\x7f", "\\u007f")


def _toml_value(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case list() | tuple():
            return f"[{', '.join(_toml_value(item) for item in value if item is not None)}]"
        case dict():
            members = (
                f"{_toml_key(str(key))} = {_toml_value(item)}" for key, item in value.items() if item is not None
            )
            inside = ", ".join(members)
            return f"{{ {inside} }}" if inside else "{}"
        case datetime() | date() | time():
            return value.isoformat()
        case _:
            return _toml_text(str(value))


# -- a file --------------------------------------------------------------------------------------------------


def merge_tables(text: str, tables: Mapping[str, str], replaced: Sequence[str] = ()) -> str:
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
    _check_merge(before, made, set(tables), set(replaced))
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
    root = next((root for root in (SERVERS, "mcpServers") if root in table), None)
    return root is not None and bool(table[root].keys() & set(names))


def _check_merge(before: dict[str, Any], made: str, added: set[str], replaced: set[str]) -> None:
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
        for root in (SERVERS, "mcpServers")
        if isinstance(table.get(root), dict)
    }
    # An empty table is as none: the last of its servers may have been replaced.
    return {key: value for key, value in {**table, **roots}.items() if value != {}}


Outcome = Literal["new", "same", "differs", "replaced", "broken"]


@dataclass(frozen=True, slots=True)
class ImportCandidate:
    """One server that was found, and what becomes of it."""

    name: ServerName
    entry: Entry
    server: ServerSettings | None
    outcome: Outcome
    table: str = field(default="", repr=False)
    """Its lines in our own words."""

    @property
    def is_taken(self) -> bool:
        """Whether it goes into the file."""
        return self.outcome in ("new", "replaced")

    @property
    def has_secrets(self) -> bool:
        """Whether a secret stands in it as it is, and not by the name of a variable."""
        literal = {key: _without_placeholders(value) for key, value in self.entry.fields.items()}
        return bool(secrets_of(literal) or any_secret(_without_placeholders(dict(self.entry.extra))))


def _without_placeholders(value: object) -> object:
    match value:
        case str():
            return "" if "${" in value else value
        case list():
            return [_without_placeholders(item) for item in value]
        case dict():
            return {key: _without_placeholders(item) for key, item in value.items()}
        case _:
            return value


@dataclass(slots=True)
class ImportPlan:
    """What is to go into one file."""

    file: Path
    around: HostContext
    may_replace: bool
    candidates: list[ImportCandidate] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    _known: dict[str, ServerSettings | None] = field(default_factory=dict)
    """By name: what the file has, or will have; None for what is broken there."""
    _in_file: set[str] = field(default_factory=set)

    def begin(self, target: Document | None) -> None:
        """Look at what the file has already.

        Raises:
            ConfigError: the place where its servers should be holds something else.
        """
        if target is not None:
            roster = load_servers(target, self.around)
            self._known = {name: roster.servers.get(name) for name in roster.entries}
            self._in_file = set(self._known)

    def add(self, documents: Iterable[Document]) -> None:
        """Weigh the servers of other files, in order: of two with one name the first counts."""
        for document in documents:
            try:
                roster = load_servers(document, self.around)
            except ConfigError as error:
                self.findings += error.findings
                continue
            self.findings += roster.findings
            for name, entry in roster.entries.items():
                self._weigh(name, entry, roster.servers.get(name))

    def _weigh(self, name: ServerName, entry: Entry, server: ServerSettings | None) -> None:
        if server is None:
            self.candidates.append(ImportCandidate(name, entry, None, "broken"))
            return
        fields = own_fields(entry, server)
        written = self._as_written(name, fields)
        outcome = self._outcome(name, written)
        self.candidates.append(ImportCandidate(name, entry, server, outcome, toml_table(name, fields)))
        if outcome in ("new", "replaced"):
            self._known[name] = written
        if outcome != "differs":
            # Of two under one name the first counts: were the second taken, the next run would take the first again.
            self._in_file.discard(name)

    def _as_written(self, name: ServerName, fields: Mapping[str, object]) -> ServerSettings | None:
        """Return what the file would have; variables may be others there than where an entry comes from."""
        roster = LoadedServers()
        entry = entry_of(name, dict(fields), Place(self.file, SERVERS).at(name), OWN)
        roster.add([entry], _reading(self.file, self.file.parent, self.around))
        said = {(told.code, told.message) for told in self.findings}
        self.findings += [
            told
            for told in roster.findings
            if told.code == UNRESOLVED_VARIABLE and (told.code, told.message) not in said
        ]
        return roster.servers.get(name)

    def _outcome(self, name: ServerName, written: ServerSettings | None) -> Outcome:
        if name not in self._known:
            return "new"
        known = self._known[name]
        if known is not None and written is not None and _told(known) == _told(written):
            return "same"
        return "replaced" if self.may_replace and name in self._in_file else "differs"

    @property
    def can_replace(self) -> bool:
        """Whether something in the file differs from what was found."""
        return any(found.outcome == "differs" and found.name in self._in_file for found in self.candidates)

    def merged_into(self, text: str) -> str:
        """Return the file's text with what is taken.

        Raises:
            CannotMerge: the file is written in a way that cannot be added to.
        """
        tables = {str(candidate.name): candidate.table for candidate in self.candidates if candidate.is_taken}
        return merge_tables(text, tables, _names(self.candidates, "replaced"))


def _names(candidates: Sequence[ImportCandidate], outcome: Outcome) -> list[str]:
    return [candidate.name for candidate in candidates if candidate.outcome == outcome]


def _told(server: ServerSettings) -> ServerSettings:
    """Return what an entry says, without what is only known of it."""
    return replace(server, secrets=frozenset(), extra={})


def load_servers(document: Document, around: HostContext, limits: Limits | None = None) -> LoadedServers:
    """Return the servers of one file, read by themselves; the usual limits hold for them, unless said.

    Raises:
        ConfigError: the place where servers should be holds something else.
    """
    roster = LoadedServers()
    entries, odd = entries_of(document, around.home, around.cwd)
    roster.findings += odd
    roster.add(entries, _reading(document.file, document.base(around.home, around.cwd), around, limits))
    return roster


def _reading(file: Path, folder: Path, around: HostContext, limits: Limits | None = None) -> EntryContext:
    seen, _ = variables_of(file, around.environment)
    return EntryContext(Variables(seen, folder, around.home), folder, around.home, limits or Limits())
