"""Server entries of a file, with the keys and variables of its client translated into ours.

This module finds the entries (`entries_of`, and `mapped_servers` for the environment) and translates them
(`entry_of`). It opens no file, replaces no variable and judges no value: `config.entries_to_settings` reads an entry
for the hub, `config.importing` writes it into another file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

from isthmus.config import finding_codes, values
from isthmus.config.client_formats import (
    COMMON_STEPS,
    OWN,
    RENAMED_KEYS,
    STANDARD,
    ClientDialect,
    DraftEntry,
    Root,
    WorkspaceContext,
    input_variable,
    inputs_used,
    with_hub_variables,
)
from isthmus.config.files import MAP_VARIABLE, ParsedFile, resolve_path, resolve_program
from isthmus.config.findings import ConfigError, Finding, Place
from isthmus.model.names import server_name_with_digits
from isthmus.upstream.server_settings import SERVER_KEYS

DEPTH_MAX = 32
"""How deep an entry may nest: deeper than any real entry, and shallow enough to walk by recursion."""

TRANSPORT_KEYS = ("type", "transport", "transportType")
EXTRA = "extra"
"""The key that keeps, in our own file, keys of other clients."""
EXTRA_JSON = "extra_json"
"""The same as JSON text, for values that TOML cannot hold."""

SWITCHES: tuple[Root, ...] = (("enable_mcp",), ("tool_service", "enable_mcp"))
"""Where the file of a `ToolService` program says whether any server is connected."""

RPC_PATH = "/rpc"
"""Path of the servers in `MCP_SERVER_MAP`, below the address in the map."""

LOOPBACK = ("127.0.0.1", "localhost", "::1")

_KEPT = frozenset({EXTRA, EXTRA_JSON})
_CLIENT_KEYS = frozenset(name for name, key in SERVER_KEYS.items() if key.in_clients)
_MCP_ENDINGS = ("/mcp", "/sse")


@dataclass(frozen=True, slots=True)
class Entry:
    """One server as a file has it, with our keys; variables are still placeholders."""

    name: str
    place: Place
    dialect: ClientDialect
    fields: Mapping[str, object] = field(default_factory=dict)
    extra: Mapping[str, object] = field(default_factory=dict)
    """Keys that the hub does not know, unchanged."""
    written_at: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By our key: its path in the file, where that differs."""
    findings: tuple[Finding, ...] = ()
    is_table: bool = True
    folder: str | None = None
    """The folder of its file, where that has become its `cwd`."""

    def at(self, key: str, *below: str | int) -> Place:
        """Return the place of one of our keys in the file, or of something below it."""
        return self.place.at(*self.written_at.get(key, (key,)), *below)


def entry_of(
    name: str, fields: object, place: Place, dialect: ClientDialect, context: WorkspaceContext | None = None
) -> Entry:
    """Translate one entry into our keys."""
    if not isinstance(fields, dict):
        finding = place.finding("must be a table", value=values.quoted(fields))
        return Entry(name, place, dialect, findings=(finding,), is_table=False)
    level, depth = list[object]([fields]), 0
    while level and depth <= DEPTH_MAX:
        inner: list[object] = []
        for outer in level:
            inner += outer.values() if isinstance(outer, dict) else outer if isinstance(outer, list) else ()
        level, depth = inner, depth + 1
    if depth > DEPTH_MAX:
        finding = place.finding(f"must nest at most {DEPTH_MAX} levels deep, not deeper")
        return Entry(name, place, dialect, findings=(finding,), is_table=False)
    draft = DraftEntry(place, {str(key): value for key, value in fields.items() if value is not None})
    if not dialect.is_own:
        for step in (*dialect.steps, *COMMON_STEPS):
            step(draft)
    known = SERVER_KEYS.keys() if dialect.has_hub else _CLIENT_KEYS
    extra = _extra(draft, known, [str(key) for key, value in fields.items() if value is None])
    if dialect.is_own:
        draft.findings += [place.unknown(key, sorted(SERVER_KEYS)) for key in draft.fields if key not in known]
    read = {
        key: value if SERVER_KEYS[key].is_text else values.plain(value)
        for key, value in draft.fields.items()
        if key in known and key not in _KEPT
    }
    if context is not None:
        if not dialect.is_own:
            draft.findings += _command_inputs(read, draft.place, context)
            read = {
                key: values.map_texts(value, lambda text, *_: with_hub_variables(text, dialect, context))
                for key, value in read.items()
            }
        # Paths become absolute, so that the entry means the same in a file of another folder.
        for key, value in read.items():
            kind = SERVER_KEYS[key].path
            if kind and isinstance(value, str) and value and "${" not in value:
                resolve = resolve_program if kind == "program" else resolve_path
                read[key] = str(resolve(value, context.folder, context.home))
    return Entry(name, place, dialect, read, extra, draft.written_at, tuple(draft.findings))


def _extra(draft: DraftEntry, known: Set[str], nulls: Iterable[str]) -> dict[str, object]:
    """Return the keys that are only kept; our own file may have some from an import."""
    kept = draft.fields.get(EXTRA) if EXTRA in known else None
    extra = dict(kept) if isinstance(kept, dict) else {}
    if EXTRA_JSON in known and EXTRA_JSON in draft.fields:
        try:
            text = values.text(EXTRA_JSON, draft.fields[EXTRA_JSON])
            extra.update(values.table(EXTRA_JSON, json.loads(text)))
        except (ValueError, RecursionError):
            place = draft.place.at(EXTRA_JSON)
            draft.findings.append(place.finding("must be a JSON object in a text, not another value"))
    extra.update({key: value for key, value in draft.fields.items() if key not in known})
    extra.update({key: None for key in nulls if key not in known and key not in RENAMED_KEYS})
    return {str(key): values.plain(value) for key, value in extra.items()}


def _command_inputs(value: object, place: Place, context: WorkspaceContext) -> list[Finding]:
    """Return a finding for each input whose value would come from a program of the editor."""
    if isinstance(value, str):
        return [
            place.finding(
                f"has ${{input:{id}}}, which runs a command of the editor; the hub does not run it",
                advice=f"set {input_variable(id)} instead",
                code=finding_codes.CODE_NOT_RUN,
            )
            for id in inputs_used(value)
            if context.inputs.get(id, {}).get("type") == "command"
        ]
    keyed = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [finding for key, item in keyed for finding in _command_inputs(item, place.at(key), context)]


# -- the entries of a file -----------------------------------------------------------------------------------


def entries_of(
    document: ParsedFile, home: Path, cwd: Path | None = None, runs_in: Path | None = None
) -> tuple[list[Entry], list[Finding]]:
    """Return the entries of a file in its order, with findings about where they are.

    Programs of a file for another folder than `runs_in`, by default `cwd`, get its folder as their `cwd`: that is where
    relative arguments start.

    Raises:
        ConfigError: the key for servers holds something else.
    """
    dialect = document.dialect
    listed = document.table.get("inputs")
    inputs = [item for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []
    context = WorkspaceContext(document.base(home, cwd), home, {str(item.get("id")): item for item in inputs})
    entries: list[Entry] = []
    findings: list[Finding] = []
    for root, table in _roots(document):
        place = Place(document.file).at(*root)
        entries += [entry_of(name, fields, place.at(step), dialect, context) for name, step, fields in _named(table)]
    if cwd is not None and dialect.has_projects:
        project_entries, project_findings = _project_entries(document, cwd, context)
        entries += project_entries
        findings += project_findings
    if own := [entry for entry in entries if str(entry.fields.get("type")) in dialect.own_kinds]:
        names = ", ".join(entry.name for entry in own)
        place = Place(document.file, own[0].place.path.partition(".")[0])
        message = f"has entries that only {dialect.title} can run; the hub skips them: {names}"
        findings.append(place.finding(message, code=finding_codes.NOT_A_SERVER))
        entries = [entry for entry in entries if entry not in own]
    if not dialect.is_own:
        entries = [entry for entry in entries if not _is_this_hub(entry)]
    folder = document.project(home, cwd)
    if cwd is not None and folder is not None and folder != (runs_in or cwd):
        entries = [
            replace(entry, fields={**entry.fields, "cwd": str(folder)}, folder=str(folder))
            if entry.fields.get("command") and not entry.fields.get("cwd")
            else entry
            for entry in entries
        ]
    return _with_switches(entries, document), findings


def _is_this_hub(entry: Entry) -> bool:
    """Whether `isthmus connect` wrote the entry: a hub that read it would be its own server."""
    if entry.name != OWN.name:
        return False
    command, args, url = (entry.fields.get(key) for key in ("command", "args", "url"))
    if isinstance(url, str):
        try:
            parts = urlsplit(url)
            return parts.hostname in LOOPBACK and parts.path == "/mcp"
        except ValueError:
            return False
    words = [str(command), *(map(str, args) if isinstance(args, list) else ())]
    return "stdio" in words and any(Path(word).name == OWN.name for word in words)


def has_place_for_servers(document: ParsedFile) -> bool:
    """Whether a file has a key under which servers can be."""
    return any(True for _ in _roots(document))


def _roots(document: ParsedFile) -> Iterator[tuple[Root, object]]:
    found = [(root, table) for root in document.dialect.roots if (table := _below(document.table, root)) is not None]
    both = [(root, table) for root, table in found if root in OWN.roots]
    chosen = both or found[:1]
    if not chosen and not document.dialect.is_own and document.table:
        # A file may hold nothing but entries.
        ways = {"command", "url", "serverUrl", "httpUrl"}
        if all(isinstance(entry, dict) and entry.keys() & ways for entry in document.table.values()):
            chosen = [((), document.table)]
    for root, table in chosen:
        if not isinstance(table, dict | list):
            raise ConfigError(Place(document.file).at(*root).finding("must be a table", value=values.quoted(table)))
        if isinstance(table, list) and document.dialect.is_own:
            raise ConfigError(Place(document.file).at(*root).finding("must be a table", value="a list"))
        yield root, table


def _below(table: object, root: Root) -> object:
    for key in root:
        table = table.get(key) if isinstance(table, dict) else None
    # A server may itself be named `servers`: then the table holds the keys of an entry.
    is_entry = len(root) > 1 and isinstance(table, dict) and bool(table.keys() & {"type", "command", "url"})
    return None if is_entry else table


def _named(table: object) -> Iterator[tuple[str, str | int, object]]:
    """Yield name, step in the path and content of each entry of a table, or of a list whose entries have a `name`."""
    if isinstance(table, dict):
        yield from ((str(name), str(name), fields) for name, fields in table.items())
        return
    for position, fields in enumerate(cast("list[object]", table)):
        name = fields.get("name") if isinstance(fields, dict) else None
        rest = {key: value for key, value in fields.items() if key != "name"} if isinstance(fields, dict) else fields
        if not isinstance(name, str) or not name:
            # This name stays the same when entries move or a secret changes.
            known = {key: rest.get(key) for key in ("command", "args", "url")} if isinstance(rest, dict) else rest
            name = server_name_with_digits(json.dumps(known, default=str), stem="server")
        yield name, position, rest


def _project_entries(document: ParsedFile, cwd: Path, context: WorkspaceContext) -> tuple[list[Entry], list[Finding]]:
    """Return the entries that a file keeps for this folder or its parents, and a finding about other folders."""
    found: list[Entry] = []
    folders = [str(cwd), *map(str, cwd.parents)]
    for folder in folders:
        table = _below(document.table, ("projects", folder, "mcpServers"))
        if isinstance(table, dict):
            place = Place(document.file).at("projects", folder, "mcpServers")
            found += [
                entry_of(str(name), fields, place.at(str(name)), document.dialect, context)
                for name, fields in table.items()
            ]
    projects = document.table.get("projects")
    others = [
        folder
        for folder in (projects if isinstance(projects, dict) else ())
        if folder not in folders and _below(projects, (folder, "mcpServers"))
    ]
    message = f"has servers for {len(others)} other folders; the hub skips them"
    place = Place(document.file, "projects")
    return found, [place.finding(message, code=finding_codes.OTHER_PROJECTS)] if others else []


def _with_switches(entries: list[Entry], document: ParsedFile) -> list[Entry]:
    """Disable the entries that the file switches off outside of them: by name, or all by one key.

    Raises:
        ConfigError: that key is neither true nor false.
    """
    are_all_off = False
    for root in () if document.dialect.is_own else SWITCHES:
        is_on = _below(document.table, root)
        if is_on is not None and not isinstance(is_on, bool):
            place = Place(document.file).at(*root)
            raise ConfigError(place.finding("must be true or false", value=values.quoted(is_on)))
        are_all_off = are_all_off or is_on is False
    table = _below(document.table, document.dialect.switches) if document.dialect.switches else None
    allowed, excluded = (table.get("allowed"), table.get("excluded")) if isinstance(table, dict) else (None, None)

    def is_off(name: str) -> bool:
        is_allowed = not isinstance(allowed, list) or not allowed or name in allowed
        return are_all_off or not is_allowed or (isinstance(excluded, list) and name in excluded)

    return [
        replace(entry, fields={**entry.fields, "disabled": True}) if is_off(entry.name) else entry for entry in entries
    ]


# -- the entries of the environment --------------------------------------------------------------------------


def mapped_servers(environment: Mapping[str, str]) -> tuple[list[Entry], list[Finding]]:
    """Return the servers of `MCP_SERVER_MAP`, another program's variable: a JSON object of names and addresses."""
    text = environment.get(MAP_VARIABLE, "").strip()
    place = Place(None, MAP_VARIABLE)
    if not text:
        return [], []
    try:
        table = values.table(MAP_VARIABLE, json.loads(text))
    except (ValueError, RecursionError):
        # The text is not quoted: an address may contain a secret.
        message = "must be a JSON object of names and addresses, not another text"
        return [], [place.finding(message, code=finding_codes.SERVER_MAP)]
    entries: list[Entry] = []
    for name, url in table.items():
        here = place.at(name)
        if not isinstance(url, str):
            finding = here.finding("must be an address, not another value", code=finding_codes.SERVER_MAP)
            entries.append(Entry(name, here, STANDARD, findings=(finding,), is_table=False))
            continue
        try:
            path = urlsplit(url).path.rstrip("/")
        except ValueError:
            path = RPC_PATH  # the settings reject the address, with a reason
        key, address = "url" if path.endswith(_MCP_ENDINGS) else "rpc", url
        if key == "rpc" and not path.endswith(RPC_PATH):
            query = min((at for at in map(url.find, "?#") if at >= 0), default=len(url))
            address = url[:query].rstrip("/") + RPC_PATH + url[query:]
        entries.append(Entry(name, here, STANDARD, {key: address}, written_at={key: ()}))
    return entries, []
