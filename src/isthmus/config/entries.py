"""The server entries of a file, whoever wrote it, in our own words.

Finding them in the file, and turning a client's keys and variables into ours; nothing is looked up, opened or
judged, so that an entry can be read for the hub (`config.servers`) and written down again (`config.writing`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from isthmus.config import codes, values
from isthmus.config.dialects.dialect import OWN, Dialect, Root
from isthmus.config.dialects.draft import Draft
from isthmus.config.dialects.steps import COMMON, RENAMED
from isthmus.config.dialects.syntax import Surroundings, in_our_words, input_variable, inputs_used
from isthmus.config.files import Document, located, program
from isthmus.config.findings import ConfigError, Finding, Place
from isthmus.model.names import server_name_with_digits

DEPTH_MAX = 32
"""How deep an entry may nest: far more than any has, far less than what a walk through it could not stand."""

TRANSPORT_KEYS = ("type", "transport", "transportType")
STDIO_KEYS = frozenset({"command", "args", "env", "cwd", "env_file"})
URL_KEYS = frozenset({"url", "headers", "user_headers", "ca"})
RPC_KEYS = frozenset({"rpc", "headers", "user_headers", "tools", "ca"})
AGENT_KEYS = frozenset({"agent", "headers", "origins", "ca"})
PYTHON_KEYS = frozenset({"python", "path"})
LOGIN_KEYS = frozenset({"oauth", "callers", "credentials"})
REACH_KEYS = STDIO_KEYS | URL_KEYS | RPC_KEYS | AGENT_KEYS | PYTHON_KEYS
EXTRA = "extra"
"""Holds, in our own file, what other clients had in an entry besides."""
EXTRA_JSON = "extra_json"
"""Holds, as JSON in a text, what of that our own file has no words for."""

_SHARED = frozenset({"timeout", "disabled", "enabled", "include_tools", "exclude_tools", *TRANSPORT_KEYS})
_OURS_ALONE = frozenset(
    {"era", "limits", "sha256", "max_calls", "max_queued", "isolation", "pin", "defaults", "cache", "trusted", "tags"}
)
_KEPT = frozenset({EXTRA, EXTRA_JSON})
KEYS = REACH_KEYS | _SHARED | _OURS_ALONE | LOGIN_KEYS | _KEPT
_THEIR_KEYS = (STDIO_KEYS | URL_KEYS | _SHARED) - {"ca"}
_TEXTUAL = (REACH_KEYS | {"include_tools", "exclude_tools", "tags"}) - {"tools"}
"""Keys with texts in them, which stay in the letters that the file has."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One server as a file has it, in our words; variables are still placeholders."""

    name: str
    place: Place
    dialect: Dialect
    fields: Mapping[str, object] = field(default_factory=dict)
    extra: Mapping[str, object] = field(default_factory=dict)
    """What nobody here reads, as it was."""
    spelt: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By our key: the path at which the file has it, where that differs."""
    findings: tuple[Finding, ...] = ()
    is_table: bool = True

    def at(self, key: str, *below: str | int) -> Place:
        """Return where the file has what we call `key`, or something below it."""
        return self.place.at(*self.spelt.get(key, (key,)), *below)


def entry_of(name: str, fields: object, place: Place, dialect: Dialect, around: Surroundings | None = None) -> Entry:
    """Put one entry into our words."""
    if not isinstance(fields, dict):
        told = place.finding("must be a table", value=values.shown(fields))
        return Entry(name, place, dialect, findings=(told,), is_table=False)
    if _depth(fields) > DEPTH_MAX:
        told = place.finding(f"must nest at most {DEPTH_MAX} levels deep, not deeper")
        return Entry(name, place, dialect, findings=(told,), is_table=False)
    draft = Draft(place, {str(key): value for key, value in fields.items() if value is not None})
    if not dialect.is_own:
        for step in (*dialect.steps, *COMMON):
            step(draft)
    known = KEYS if dialect.has_hub else _THEIR_KEYS
    extra = _extra(draft, known, [str(key) for key, value in fields.items() if value is None])
    if dialect.is_own:
        draft.findings += [place.unknown(key, sorted(KEYS)) for key in draft.fields if key not in known]
    return Entry(
        name=name,
        place=place,
        dialect=dialect,
        fields=_read(draft, known - _KEPT, dialect, around),
        extra=extra,
        spelt=draft.spelt,
        findings=tuple(draft.findings),
    )


def _read(draft: Draft, known: Iterable[str], dialect: Dialect, around: Surroundings | None) -> dict[str, object]:
    """Return what is read of an entry, as it means the same outside of its file."""
    fields = {
        key: value if key in _TEXTUAL else values.plain(value) for key, value in draft.fields.items() if key in known
    }
    if around is None:
        return fields
    if not dialect.is_own:
        draft.findings += _unasked(fields, draft.place, around)
        fields = {key: _translated(value, dialect, around) for key, value in fields.items()}
    return {**fields, **_absolute(fields, around)}


def _extra(draft: Draft, known: Set[str], nothings: Iterable[str]) -> dict[str, object]:
    """Return what is only kept, just as it is; our own file may have some from another one."""
    kept = draft.fields.get(EXTRA) if EXTRA in known else None
    extra = dict(kept) if isinstance(kept, dict) else {}
    extra.update(_from_json(draft) if EXTRA_JSON in known else {})
    extra.update({key: value for key, value in draft.fields.items() if key not in known})
    extra.update({key: None for key in nothings if key not in known | RENAMED.keys()})
    return {str(key): values.plain(value) for key, value in extra.items()}


def _from_json(draft: Draft) -> dict[str, object]:
    try:
        return values.table(EXTRA_JSON, json.loads(values.text(EXTRA_JSON, draft.fields.get(EXTRA_JSON, "{}"))))
    except (ValueError, RecursionError):
        draft.findings.append(draft.place.at(EXTRA_JSON).finding("must be a JSON object in a text, not another value"))
        return {}


def _depth(value: object) -> int:
    """Return how deep tables and lists nest, going no further than matters."""
    level, depth = [value], 0
    while level and depth <= DEPTH_MAX:
        level = [inner for outer in level for inner in _members(outer)]
        depth += 1
    return depth


def _members(value: object) -> list[object]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _translated(value: object, dialect: Dialect, around: Surroundings) -> object:
    match value:
        case str():
            return in_our_words(value, dialect, around)
        case list():
            return [_translated(item, dialect, around) for item in value]
        case dict():
            return {key: _translated(item, dialect, around) for key, item in value.items()}
        case _:
            return value


def _absolute(fields: Mapping[str, object], around: Surroundings) -> dict[str, object]:
    """Return paths as they are seen from everywhere, so that an entry means the same in another file."""
    paths = {
        key: path
        for key in ("command", "cwd", "env_file", "path", "ca")
        if isinstance(path := fields.get(key), str) and path and "${" not in path
    }
    found = {key: str(located(path, around.folder, around.home)) for key, path in paths.items()}
    return {**found, **{key: program(paths[key], around.folder, around.home) for key in paths if key == "command"}}


def _unasked(value: object, place: Place, around: Surroundings) -> list[Finding]:
    """Tell of inputs whose answer would come from a program of the editor."""
    if isinstance(value, str):
        programs = [id for id in inputs_used(value) if around.inputs.get(id, {}).get("type") == "command"]
        return [
            place.finding(
                f"has ${{input:{id}}}, which runs a command of the editor, and reading a file runs none",
                advice=f"set {input_variable(id)} instead",
                code=codes.CODE_NOT_RUN,
            )
            for id in programs
        ]
    keyed = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [told for key, item in keyed for told in _unasked(item, place.at(key), around)]


SWITCHES: tuple[Root, ...] = (("enable_mcp",), ("tool_service", "enable_mcp"))
"""Where a program's own file says whether any server is to be connected."""


# -- where they are in a file --------------------------------------------------------------------------------


def entries_of(document: Document, home: Path, cwd: Path | None = None) -> tuple[list[Entry], list[Finding]]:
    """Return the entries of a file in its order, and what is odd about where they are.

    Raises:
        ConfigError: the place where entries should be holds something else.
    """
    dialect = document.dialect
    around = Surroundings(document.base(home, cwd), home, _inputs(document.table))
    entries: list[Entry] = []
    findings: list[Finding] = []
    for root, table in _roots(document):
        place = Place(document.file).at(*root)
        entries += [entry_of(name, fields, place.at(step), dialect, around) for name, step, fields in _named(table)]
    if cwd is not None and dialect.has_projects:
        entries += _of_project(document, cwd, around)
        findings += _other_projects(document, cwd)
    entries, told = _without_own_kinds(entries, document)
    return _switched(entries, document), [*findings, *told]


def has_place_for_servers(document: Document) -> bool:
    """Tell whether there is anything in a file under which servers could be."""
    return any(True for _ in _roots(document))


def _roots(document: Document) -> Iterator[tuple[Root, object]]:
    found = [(root, table) for root in document.dialect.roots if (table := _below(document.table, root)) is not None]
    both = [(root, table) for root, table in found if root in OWN.roots]
    chosen = both or found[:1]
    if not chosen and not document.dialect.is_own and _is_bare(document.table):
        chosen = [((), document.table)]
    for root, table in chosen:
        if not isinstance(table, dict | list):
            raise ConfigError(Place(document.file).at(*root).finding("must be a table", value=values.shown(table)))
        if isinstance(table, list) and document.dialect.is_own:
            raise ConfigError(Place(document.file).at(*root).finding("must be a table", value="a list"))
        yield root, table


def _below(table: object, root: Root) -> object:
    for key in root:
        table = table.get(key) if isinstance(table, dict) else None
    # A server may itself be called `servers`: then the table holds what an entry holds.
    is_entry = len(root) > 1 and isinstance(table, dict) and bool(table.keys() & {"type", "command", "url"})
    return None if is_entry else table


def _is_bare(table: Mapping[str, object]) -> bool:
    """Tell whether a file is nothing but entries by name."""
    ways = {"command", "url", "serverUrl", "httpUrl"}
    return bool(table) and all(isinstance(entry, dict) and entry.keys() & ways for entry in table.values())


def _named(table: object) -> Iterator[tuple[str, str | int, object]]:
    """Yield name, step in the path and content of each entry of a table, or of a list whose entries have names."""
    if isinstance(table, dict):
        yield from ((str(name), str(name), fields) for name, fields in table.items())
        return
    for position, fields in enumerate(cast("list[object]", table)):
        name = fields.get("name") if isinstance(fields, dict) else None
        rest = {key: value for key, value in fields.items() if key != "name"} if isinstance(fields, dict) else fields
        yield name if isinstance(name, str) and name else _name_by_content(rest), position, rest


def _name_by_content(fields: object) -> str:
    """Return a name for an entry that has none: it stays the same when entries change places, or a key is replaced."""
    known = {key: fields.get(key) for key in ("command", "args", "url")} if isinstance(fields, dict) else fields
    return server_name_with_digits(json.dumps(known, default=str), stem="server")


def _inputs(table: Mapping[str, object]) -> dict[str, Mapping[str, object]]:
    listed = table.get("inputs")
    declared = [item for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []
    return {str(item.get("id")): item for item in declared}


def _of_project(document: Document, cwd: Path, around: Surroundings) -> list[Entry]:
    """Return what a file keeps for the folder that we are in, or for one around it."""
    found: list[Entry] = []
    for folder in (str(cwd), *map(str, cwd.parents)):
        table = _below(document.table, ("projects", folder, "mcpServers"))
        if isinstance(table, dict):
            place = Place(document.file).at("projects", folder, "mcpServers")
            found += [
                entry_of(str(name), fields, place.at(str(name)), document.dialect, around)
                for name, fields in table.items()
            ]
    return found


def _other_projects(document: Document, cwd: Path) -> list[Finding]:
    projects = document.table.get("projects")
    if not isinstance(projects, dict):
        return []
    around = {str(cwd), *map(str, cwd.parents)}
    others = [folder for folder in projects if folder not in around and _below(projects, (folder, "mcpServers"))]
    said = f"has servers for {len(others)} other folders, which are left out"
    place = Place(document.file, "projects")
    return [place.finding(said, code=codes.OTHER_PROJECTS)] if others else []


def _without_own_kinds(entries: list[Entry], document: Document) -> tuple[list[Entry], list[Finding]]:
    """Leave out what only the client can run."""
    kinds = document.dialect.own_kinds
    own = [entry for entry in entries if str(entry.fields.get("type")) in kinds] if kinds else []
    names = ", ".join(entry.name for entry in own)
    said = f"has what only {document.dialect.title} itself can run, which is left out: {names}"
    told = (
        [Place(document.file, own[0].place.path.partition(".")[0]).finding(said, code=codes.NOT_A_SERVER)]
        if own
        else []
    )
    return [entry for entry in entries if entry not in own], told


def _switched(entries: list[Entry], document: Document) -> list[Entry]:
    """Switch off what the file excludes by name, in a table apart from the entries, or all of them by one word."""
    is_none_on = _is_all_off(document)
    table = _below(document.table, document.dialect.switches) if document.dialect.switches else None
    allowed, excluded = (table.get("allowed"), table.get("excluded")) if isinstance(table, dict) else (None, None)

    def is_off(name: str) -> bool:
        is_allowed = not isinstance(allowed, list) or not allowed or name in allowed
        return is_none_on or not is_allowed or (isinstance(excluded, list) and name in excluded)

    return [
        replace(entry, fields={**entry.fields, "disabled": True}) if is_off(entry.name) else entry for entry in entries
    ]


def _is_all_off(document: Document) -> bool:
    """Whether the file has no server connected, in the words that a `ToolService` is initialized with.

    Raises:
        ConfigError: it says neither yes nor no.
    """
    for root in () if document.dialect.is_own else SWITCHES:
        is_on = _below(document.table, root)
        if is_on is not None and not isinstance(is_on, bool):
            said = Place(document.file).at(*root)
            raise ConfigError(said.finding("must be true or false", value=values.shown(is_on)))
        if is_on is False:
            return True
    return False
