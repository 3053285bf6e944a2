"""Which of the servers that were found elsewhere are new to a file, and what the file becomes with them.

It decides and writes nothing: `isthmus import` shows the candidates and writes the text. What is in a file
already is never changed without being asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from isthmus.config.codes import UNRESOLVED_VARIABLE
from isthmus.config.dialects.dialect import OWN
from isthmus.config.entries import Entry, entries_of, entry_of
from isthmus.config.files import Document
from isthmus.config.findings import ConfigError, Finding, Place
from isthmus.config.imports import Around
from isthmus.config.redaction import any_secret, secrets_of
from isthmus.config.servers import Reading, Roster
from isthmus.config.variables import Variables, seen_from
from isthmus.config.writing import ROOT, merged, own_fields, toml_table
from isthmus.core.settings import Limits
from isthmus.model.names import ServerName
from isthmus.upstream.settings import ServerSettings

Outcome = Literal["new", "same", "differs", "replaced", "broken"]


@dataclass(frozen=True, slots=True)
class Candidate:
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
class Merging:
    """What is to go into one file."""

    file: Path
    around: Around
    may_replace: bool
    candidates: list[Candidate] = field(default_factory=list)
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
            roster = roster_of(target, self.around)
            self._known = {name: roster.servers.get(name) for name in roster.entries}
            self._in_file = set(self._known)

    def add(self, documents: Iterable[Document]) -> None:
        """Weigh the servers of other files, in order: of two with one name the first counts."""
        for document in documents:
            try:
                roster = roster_of(document, self.around)
            except ConfigError as error:
                self.findings += error.findings
                continue
            self.findings += roster.findings
            for name, entry in roster.entries.items():
                self._weigh(name, entry, roster.servers.get(name))

    def _weigh(self, name: ServerName, entry: Entry, server: ServerSettings | None) -> None:
        if server is None:
            self.candidates.append(Candidate(name, entry, None, "broken"))
            return
        fields = own_fields(entry, server)
        written = self._as_written(name, fields)
        outcome = self._outcome(name, written)
        self.candidates.append(Candidate(name, entry, server, outcome, toml_table(name, fields)))
        if outcome in ("new", "replaced"):
            self._known[name] = written
        if outcome != "differs":
            # Of two under one name the first counts: were the second taken, the next run would take the first again.
            self._in_file.discard(name)

    def _as_written(self, name: ServerName, fields: Mapping[str, object]) -> ServerSettings | None:
        """Return what the file would have; variables may be others there than where an entry comes from."""
        roster = Roster()
        entry = entry_of(name, dict(fields), Place(self.file, ROOT).at(name), OWN)
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
        return merged(text, tables, _names(self.candidates, "replaced"))


def _names(candidates: Sequence[Candidate], outcome: Outcome) -> list[str]:
    return [candidate.name for candidate in candidates if candidate.outcome == outcome]


def _told(server: ServerSettings) -> ServerSettings:
    """Return what an entry says, without what is only known of it."""
    return replace(server, secrets=frozenset(), extra={})


def roster_of(document: Document, around: Around, limits: Limits | None = None) -> Roster:
    """Return the servers of one file, read by themselves; the usual limits hold for them, unless said.

    Raises:
        ConfigError: the place where servers should be holds something else.
    """
    roster = Roster()
    entries, odd = entries_of(document, around.home, around.cwd)
    roster.findings += odd
    roster.add(entries, _reading(document.file, document.base(around.home, around.cwd), around, limits))
    return roster


def _reading(file: Path, folder: Path, around: Around, limits: Limits | None = None) -> Reading:
    seen, _ = seen_from(file, around.environment)
    return Reading(Variables(seen, folder, around.home), folder, around.home, limits or Limits())
