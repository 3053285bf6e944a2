"""`isthmus import`: decide which servers of other files are new to our file, and make its new text.

`ImportPlan` decides; `own_fields` and `config.text_editing` write. Texts in, texts out: the command line opens
the files. Servers that the file already has are never changed unless the user asks for it. Variables are written as
placeholders, never their values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, time
from pathlib import Path
from typing import Literal

from isthmus.config.client_entries_to_hub import EXTRA, EXTRA_JSON, TRANSPORT_KEYS, Entry, entries_of, entry_of
from isthmus.config.client_file_reader import HostContext
from isthmus.config.client_formats import OWN
from isthmus.config.entries_to_settings import EntryContext, LoadedServers
from isthmus.config.entry_secrets import any_secret, secrets_of
from isthmus.config.files import ParsedFile
from isthmus.config.finding_codes import UNRESOLVED_VARIABLE
from isthmus.config.findings import ConfigError, Finding, Place
from isthmus.config.text_editing import SERVERS, merge_tables, toml_table
from isthmus.config.values import map_texts
from isthmus.config.variables import Variables, variables_of
from isthmus.core.settings import Limits
from isthmus.model.names import ServerName
from isthmus.upstream.server_settings import (
    SERVER_KEYS,
    WAYS,
    AgentSettings,
    HttpSettings,
    JsonRpcSettings,
    PythonSettings,
    Reach,
    ServerSettings,
    StdioSettings,
    WebSocketSettings,
    way_of,
)

Outcome = Literal["new", "same", "differs", "replaced", "broken"]

_REFERENCE = re.compile(r"(?:env|file|keyring):")
_EMPTY: tuple[object, ...] = (None, "", [], {})


@dataclass(frozen=True, slots=True)
class ImportCandidate:
    """One server that was found, and what happens to it."""

    name: ServerName
    entry: Entry
    server: ServerSettings | None
    outcome: Outcome
    table: str = field(default="", repr=False)
    """Its lines in our own file."""

    @property
    def is_taken(self) -> bool:
        """Whether it goes into the file."""
        return self.outcome in ("new", "replaced")

    @property
    def has_secrets(self) -> bool:
        """Whether it contains a secret in plain text instead of the name of a variable."""

        def literal(value: object) -> object:
            return map_texts(value, lambda text, *_: "" if "${" in text else text)

        fields = {key: literal(value) for key, value in self.entry.fields.items()}
        return bool(secrets_of(fields) or any_secret(literal(dict(self.entry.extra))))


@dataclass(slots=True)
class ImportPlan:
    """What goes into one file."""

    file: Path
    context: HostContext
    may_replace: bool
    candidates: list[ImportCandidate] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    _known: dict[str, ServerSettings | None] = field(default_factory=dict)
    """By name: the servers that the file has, or will have; None for broken ones."""
    _in_file: set[str] = field(default_factory=set)

    def begin(self, target: ParsedFile | None) -> None:
        """Note the servers that the file already has.

        Raises:
            ConfigError: the key for servers holds something else.
        """
        if target is not None:
            loaded = load_servers(target, self.context)
            self._known = {name: loaded.servers.get(name) for name in loaded.entries}
            self._in_file = set(self._known)

    def add(self, documents: Iterable[ParsedFile]) -> None:
        """Decide about the servers of other files, in order: of two with one name the first counts."""
        for document in documents:
            try:
                loaded = load_servers(document, self.context, runs_in=self.file.parent)
            except ConfigError as error:
                self.findings += error.findings
                continue
            self.findings += loaded.findings
            for name, entry in loaded.entries.items():
                self._decide(name, entry, loaded.servers.get(name))

    def _decide(self, name: ServerName, entry: Entry, server: ServerSettings | None) -> None:
        if server is None:
            self.candidates.append(ImportCandidate(name, entry, None, "broken"))
            return
        fields = own_fields(entry, server)
        written = self._as_written(name, fields)
        known = self._known.get(name)
        outcome: Outcome = "replaced" if self.may_replace and name in self._in_file else "differs"
        if name not in self._known:
            outcome = "new"
        elif known is not None and written is not None and has_same_effect(known, written):
            outcome = "same"
        self.candidates.append(ImportCandidate(name, entry, server, outcome, toml_table(name, fields)))
        if outcome in ("new", "replaced"):
            self._known[name] = written
        if outcome != "differs":
            # Of two with one name the first counts: if the second replaced it, the next run would swap them again.
            self._in_file.discard(name)

    def _as_written(self, name: ServerName, fields: Mapping[str, object]) -> ServerSettings | None:
        """Return the server as the file would have it; variables may have other values there."""
        loaded = LoadedServers()
        entry = entry_of(name, dict(fields), Place(self.file, SERVERS).at(name), OWN)
        loaded.add([entry], context_of(self.file, self.file.parent, self.context))
        reported = {(finding.code, finding.message) for finding in self.findings}
        self.findings += [
            finding
            for finding in loaded.findings
            if finding.code == UNRESOLVED_VARIABLE and (finding.code, finding.message) not in reported
        ]
        return loaded.servers.get(name)

    @property
    def can_replace(self) -> bool:
        """Whether a server in the file differs from one that was found."""
        return any(found.outcome == "differs" and found.name in self._in_file for found in self.candidates)

    def merged_into(self, text: str) -> str:
        """Return the file's text with the chosen servers.

        Raises:
            CannotEdit: the file cannot be extended.
        """
        tables = {str(candidate.name): candidate.table for candidate in self.candidates if candidate.is_taken}
        replaced = [candidate.name for candidate in self.candidates if candidate.outcome == "replaced"]
        return merge_tables(text, tables, replaced)


def has_same_effect(one: ServerSettings, other: ServerSettings) -> bool:
    """Whether two entries mean the same server, whatever keys they keep for other programs."""
    one, other = (replace(each, secrets=frozenset(), extra={}) for each in (one, other))
    return one == other


def load_servers(
    document: ParsedFile, context: HostContext, limits: Limits | None = None, *, runs_in: Path | None = None
) -> LoadedServers:
    """Return the servers of one file without the rest of it, by default with the default limits.

    `runs_in` as in `entries_of`.

    Raises:
        ConfigError: the key for servers holds something else.
    """
    loaded = LoadedServers()
    entries, findings = entries_of(document, context.home, context.cwd, runs_in)
    loaded.findings += findings
    loaded.add(entries, context_of(document.file, document.base(context.home, context.cwd), context, limits))
    return loaded


def context_of(file: Path, folder: Path, context: HostContext, limits: Limits | None = None) -> EntryContext:
    """Return what the entries of a file are read with."""
    visible, _ = variables_of(file, context.environment)
    return EntryContext(Variables(visible, folder, context.home), folder, context.home, limits or Limits())


def transport_of(reach: Reach) -> str:
    """Return the transport of a server, as the configuration names it."""
    match reach:
        case StdioSettings():
            return "stdio"
        case HttpSettings(carrier="auto"):
            return "http or sse"
        case HttpSettings(carrier=carrier):
            return carrier
        case WebSocketSettings():
            return "ws"
        case JsonRpcSettings():
            return "rpc"
        case AgentSettings():
            return "agent"
        case PythonSettings():
            return "python"


# -- an entry in our own format ------------------------------------------------------------------------------


def own_fields(entry: Entry, server: ServerSettings) -> dict[str, object]:
    """Return the keys that make an entry mean the same in our own file.

    Every key is written as the entry has it, with its placeholders, except for those that a client writes in its own
    way: for these the settings say what they mean.
    """
    way = way_of(server.reach)
    written = {**entry.fields, **_normalized(entry, server)}
    fields: dict[str, object] = {}
    for name, key in SERVER_KEYS.items():
        if name not in written or way not in key.beside:
            continue
        # An empty list of tools has a meaning; an empty key of the transport has none.
        if written[name] is not None and (key.beside == WAYS or written[name] not in _EMPTY):
            fields[name] = written[name]
    sayable = {key: value for key, value in entry.extra.items() if _is_toml_value({key: value})}
    rest = {key: value for key, value in entry.extra.items() if key not in sayable}
    fields |= {EXTRA: sayable} if sayable else {}
    return {**fields, EXTRA_JSON: json.dumps(rest, default=str)} if rest else fields


def _normalized(entry: Entry, server: ServerSettings) -> dict[str, object]:
    """Return the keys whose value comes from the settings; None removes a key."""
    raw, reach = entry.fields, server.reach
    made: dict[str, object] = dict.fromkeys((*TRANSPORT_KEYS, "enabled"))
    made["disabled"] = True if server.disabled else None
    if "timeout" in raw:
        made["timeout"] = int(server.timeout) if server.timeout % 1 == 0 else server.timeout
    for key in ("env", "headers"):
        table = raw.get(key)
        if key in raw:
            made[key] = table
        if not entry.dialect.is_own and isinstance(table, dict):
            # Texts of another client's file that would be references in ours are escaped, such as `file:data.db`.
            made[key] = {
                name: f"${{:-{value}}}"
                if isinstance(value, str) and _REFERENCE.match(value) and not set(value) & set("{}")
                else value
                for name, value in table.items()
                if value is not None
            }
    match reach:
        case StdioSettings():
            made["cwd"] = reach.cwd
        case PythonSettings():
            made["path"] = reach.path
        case HttpSettings() if reach.carrier != "auto":
            made["type"] = reach.carrier
        case WebSocketSettings():
            made["type"] = "ws"
        case JsonRpcSettings():
            made["rpc"] = raw.get("rpc") or raw["url"]
        case _:
            pass
    return made


def _is_toml_value(value: object) -> bool:
    """Whether TOML can hold a value: it has no null, and no text with lone surrogates."""
    match value:
        case str():
            return not any("\ud800" <= character <= "\udfff" for character in value)
        case list():
            return all(map(_is_toml_value, value))
        case dict():
            return all(
                isinstance(key, str) and _is_toml_value(key) and _is_toml_value(item) for key, item in value.items()
            )
        case _:
            return isinstance(value, bool | int | float | date | time)
