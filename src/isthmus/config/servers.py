"""The server entries of files, in our own words already, into `ServerSettings`.

Which name a server goes by, what its variables hold and how it is switched off is known here; how it is
reached in `config.reaches`; whether the values make sense is checked by `upstream.settings`; nothing is
started or dialled. A broken entry becomes a finding and costs only itself. Called by `config.load`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast, get_args

from isthmus.config import codes, reaches, redaction, values
from isthmus.config.contents import contents_of
from isthmus.config.dialects.syntax import INPUT_PREFIX
from isthmus.config.entries import EXTRA, Entry
from isthmus.config.files import located
from isthmus.config.findings import Finding, Place
from isthmus.config.oauth import credentials_of, is_secret_at
from isthmus.config.tool_rules import rules_of
from isthmus.config.variables import Borrowed, Variables, read_env
from isthmus.core.catalog.pins import PINNINGS, Pinning
from isthmus.core.settings import Limits
from isthmus.model.names import ServerName, legal_server_name, server_name_with_digits
from isthmus.transport.tls import tls_settings
from isthmus.upstream.settings import TIMEOUT_SECONDS_MAX, Isolation, ServerSettings

RESERVED = frozenset({"builtin"})
"""Names that the hub's own tools live under."""

CA_BYTES_MAX = 1024 * 1024
"""Of a file of certificates; a system's whole collection is a quarter of it."""

UNSAID_SECONDS_MAX = 600.0
"""A timeout beyond this, in a format that does not say its unit, is taken for milliseconds."""

_LITERAL = frozenset({"tools", "cache", EXTRA})
"""Keys in which a placeholder is text like any other: a schema may well hold one."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What it takes to read entries: what surrounds the file they are in."""

    variables: Variables
    folder: Path
    """Where relative paths begin."""
    home: Path
    limits: Limits


@dataclass(slots=True)
class Roster:
    """The servers that were found, in order, each under a name of its own."""

    servers: dict[ServerName, ServerSettings] = field(default_factory=dict)
    entries: dict[ServerName, Entry] = field(default_factory=dict)
    """Where each of them comes from."""
    findings: list[Finding] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)
    """Files that entries themselves name, such as one with variables."""
    called: dict[str, ServerName] = field(default_factory=dict)
    """By the name that a file has: the one that the server goes by."""
    unresolved: dict[ServerName, tuple[str, ...]] = field(default_factory=dict)
    """Placeholders that stayed literal, by the server that has them."""

    def add(self, entries: Iterable[Entry], reading: Reading) -> None:
        """Read entries; whoever came first keeps its name."""
        entries = list(entries)
        names = server_names((entry.name for entry in entries), taken=self.entries)
        for entry in entries:
            if entry.name in self.called:
                self._tell_of_another(entry)
                continue
            name = names[entry.name]
            self.findings += _told_of_name(entry, name)
            server, told = self._read(name, entry, reading)
            self.findings += told
            self.entries[name] = entry
            self.called[entry.name] = name
            if server is not None:
                self.servers[name] = server

    def _tell_of_another(self, entry: Entry) -> None:
        first = self.entries[self.called[entry.name]]
        if (first.fields, first.extra) == (entry.fields, entry.extra):
            return  # the same server written down twice, as people do who use several clients
        if first.place.file == entry.place.file:
            root = first.place.path.partition(".")[0]
            told = f"is already under {root} and is left out"
        elif first.dialect.is_own:
            return  # what our own file says is meant to win
        else:
            told = f"is already in {first.place.file} and is left out"
        self.findings.append(entry.place.finding(told, code=codes.TAKEN_NAME))

    def _read(self, name: ServerName, entry: Entry, reading: Reading) -> tuple[ServerSettings | None, list[Finding]]:
        draft = _Draft(reading, entry)
        server = _read(name, draft)
        self.files += draft.files
        if draft.unresolved:
            self.unresolved[name] = tuple(draft.unresolved)
        secrets = redaction.secrets_of(draft.fields) | redaction.with_parts(draft.borrowed.secrets)
        if server is not None:
            server = replace(server, secrets=frozenset(secrets))
        return server, [redaction.without(secrets, finding) for finding in (*entry.findings, *draft.findings)]


@dataclass(slots=True)
class _Draft:
    """One entry while it is read."""

    reading: Reading
    entry: Entry
    fields: dict[str, object] = field(default_factory=dict)
    borrowed: Borrowed = field(default_factory=Borrowed)
    findings: list[Finding] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)
    unresolved: list[str] = field(default_factory=list)

    def env_of(self, file: Path) -> Mapping[str, str]:
        """Return the variables in a file; all of them may be secret."""
        found, told = read_env(file, self.entry.at("env_file"))
        self.files.append(file)
        self.findings += told
        self.borrowed.secrets.update(value for value in found.values() if value)
        return found


def read_server(entry: Entry, reading: Reading) -> tuple[ServerSettings | None, list[Finding]]:
    """Return one entry's settings, or None if it is broken, and what there is to say about it."""
    roster = Roster()
    roster.add([entry], reading)
    return next(iter(roster.servers.values()), None), roster.findings


def look_alikes(roster: Roster) -> list[Finding]:
    """Tell of names that a person or a language model would mistake for each other."""
    groups: dict[str, list[ServerName]] = {}
    for name in roster.servers:
        groups.setdefault(name.lower().replace("-", "_"), []).append(name)
    said = "has names that differ only by case or by - and _: "
    return [
        Place(roster.entries[group[0]].place.file, "servers").finding(said + ", ".join(group), code=codes.LOOK_ALIKES)
        for group in groups.values()
        if len(group) > 1
    ]


# -- names ---------------------------------------------------------------------------------------------------


def server_names(wanted: Iterable[str], taken: Collection[str] = ()) -> dict[str, ServerName]:
    """Return what servers are called, by their own names; those that cannot be used are made legal.

    The order of the servers does not matter: a name that two of them would be given is neither's.
    """
    texts = set(wanted)
    made = Counter(map(legal_server_name, texts))
    barred = {*taken, *texts, *RESERVED, *(name for name, times in made.items() if times > 1)}
    return {text: ServerName(text) if _is_legal(text) else _renamed(text, barred) for text in texts}


def _is_legal(text: str) -> bool:
    return text not in RESERVED and legal_server_name(text) == text


def _renamed(text: str, barred: Collection[str]) -> ServerName:
    name = legal_server_name(text)
    while name in barred:
        name, text = server_name_with_digits(text), f"{text} "
    return name


def _told_of_name(entry: Entry, name: ServerName) -> list[Finding]:
    if name == entry.name:
        return []
    why = "is what the hub's own tools live under" if entry.name in RESERVED else "cannot be a server's name"
    said = f"{why}, so the server is called {name}"
    advice = "use 1 to 50 letters, digits, _ and -"
    return [entry.place.finding(said, advice="" if entry.name in RESERVED else advice, code=codes.RENAMED)]


# -- one entry -----------------------------------------------------------------------------------------------


def _read(name: ServerName, draft: _Draft) -> ServerSettings | None:
    if not draft.entry.is_table:
        return None
    draft.fields = dict(draft.entry.fields)  # what is secret in them is so even if they cannot be read
    try:
        draft.fields = {key: _expanded(key, value, draft) for key, value in draft.fields.items()}
        return _settings(name, draft)
    except ValueError as error:
        draft.findings.append(_mistake(error, draft.entry))
        return None


def _mistake(error: ValueError, entry: Entry) -> Finding:
    """Name what the author wrote, whatever we call it."""
    found = entry.place.mistake(error)
    key, dot, below = str(error).partition(" must ")[0].partition(".")
    spelt = entry.spelt.get(key)
    return replace(found, path=f"{entry.place.at(*spelt).path}{dot}{below}") if spelt is not None else found


def _settings(name: ServerName, draft: _Draft) -> ServerSettings:
    fields, limits, entry = draft.fields, draft.reading.limits, draft.entry
    how = reaches.Filled(entry, fields, draft.findings, draft.reading.folder, draft.reading.home, draft.env_of)
    return ServerSettings(
        name=name,
        reach=reaches.reach_of(how),
        timeout=_timeout(draft),
        max_calls=values.integer("max_calls", fields.get("max_calls", limits.max_calls)),
        max_queued=values.integer("max_queued", fields.get("max_queued", limits.max_queued)),
        disabled=_is_disabled(fields),
        isolation=_isolation(fields),
        credentials=credentials_of(fields),
        pin=_pin(fields),
        ca=_authority(draft),
        rules=rules_of(fields, entry, draft.findings),
        extra=entry.extra,
    )


def _isolation(fields: Mapping[str, object]) -> Isolation:
    word = fields.get("isolation", "shared")
    if word not in get_args(Isolation):
        raise ValueError(f"isolation must be one of {', '.join(get_args(Isolation))}, not {values.shown(word)}")
    return cast(Isolation, word)


def _pin(fields: Mapping[str, object]) -> Pinning | None:
    word = fields.get("pin")
    if word is not None and word not in PINNINGS:
        raise ValueError(f"pin must be one of {', '.join(PINNINGS)}, not {values.shown(word)}")
    return cast("Pinning | None", word)


def _authority(draft: _Draft) -> str:
    """The certificates in the file that an entry names, read now so that a reload sees when they change."""
    named = values.text("ca", draft.fields.get("ca", ""))
    if not named:
        return ""
    file = located(named, draft.reading.folder, draft.reading.home)
    draft.files.append(file)
    try:
        text = contents_of(file, CA_BYTES_MAX).decode("utf-8", "replace")
        tls_settings(text)
    except OSError as error:
        raise ValueError(f"ca must be a file that can be read, not {named!r}: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"ca must be a file of certificates in PEM form, not {named!r}") from error
    return text


def _timeout(draft: _Draft) -> float:
    limits, fields = draft.reading.limits, draft.fields
    if "timeout" not in fields:
        return limits.call_seconds
    given = values.number("timeout", fields["timeout"])
    seconds = given if draft.entry.dialect.is_own else _their_seconds(given, draft)
    if limits.hard_seconds < seconds <= TIMEOUT_SECONDS_MAX:
        raise ValueError(f"timeout must be at most limits.hard_seconds ({limits.hard_seconds:g}), not {seconds:g}")
    return seconds


def _their_seconds(given: float, draft: _Draft) -> float:
    """Return a timeout of somebody else's file in seconds, within what the hub allows."""
    dialect, place, limits = draft.entry.dialect, draft.entry.at("timeout"), draft.reading.limits
    if 0 < given < dialect.ignored_below:
        said = f"is below {dialect.ignored_below:g}, which {dialect.title} takes for none"
        advice = f"write it in {dialect.unit}, or take it out"
        draft.findings.append(place.finding(said, advice=advice, code=codes.MILLISECONDS))
        return limits.call_seconds
    if dialect.unit == "milliseconds":
        given /= 1000
    elif dialect.unit == "unsaid" and given > UNSAID_SECONDS_MAX:
        # Half of the programs that share this format count in milliseconds; nobody waits 1000 s for a tool.
        given /= 1000
        said = f"is over {UNSAID_SECONDS_MAX:g} and so taken for milliseconds, {given:g} seconds"
        draft.findings.append(place.finding(said, code=codes.MILLISECONDS))
    if given > limits.hard_seconds:
        said = f"is {given:g} seconds, and no call may take more than {limits.hard_seconds:g}"
        draft.findings.append(place.finding(said, code=codes.CAPPED))
    return min(given, limits.hard_seconds)


def _is_disabled(fields: Mapping[str, object]) -> bool:
    is_disabled = values.flag("disabled", fields.get("disabled", False))
    is_enabled = values.flag("enabled", fields.get("enabled", True))
    return is_disabled or not is_enabled


# -- variables -----------------------------------------------------------------------------------------------


def _expanded(key: str, value: object, draft: _Draft, *below: str | int) -> object:
    """Return a value with its variables replaced, in lists and tables too."""
    match value:
        case _ if key in _LITERAL:
            return value
        case str():
            return _borrowed(key, below, value, draft)
        case list():
            return [_expanded(key, item, draft, *below, position) for position, item in enumerate(value)]
        case dict():
            return {name: _expanded(key, item, draft, *below, name) for name, item in value.items()}
        case _:
            return value


def _borrowed(key: str, below: tuple[str | int, ...], value: str, draft: _Draft) -> str:
    variables, borrowed = draft.reading.variables, draft.borrowed
    # In other programs' files `file:` in a variable is a database's address, and they mean it literally.
    is_header = key == "headers" and draft.entry.dialect.has_hub
    if is_header or is_secret_at(key, below) or (key == "env" and draft.entry.dialect.is_own):
        text = variables.secret(".".join(map(str, (key, *below))), value, borrowed)
    else:
        text = variables.expand(value, borrowed)
    for placeholder in borrowed.unresolved:
        draft.findings.append(_unresolved(placeholder, draft.entry.at(key, *below)))
        draft.unresolved.append(placeholder)
    borrowed.unresolved.clear()
    return text if text == value else values.Lent(text)


def _unresolved(placeholder: str, place: Place) -> Finding:
    if placeholder.startswith("${file:"):
        said = f"has {values.shown(placeholder)}, which is no short text file that can be read; it stays as it is"
        return place.finding(said, code=codes.UNREADABLE_SECRET)
    is_input = placeholder.startswith(f"${{{INPUT_PREFIX}")
    code = codes.UNANSWERED_INPUT if is_input else codes.UNRESOLVED_VARIABLE
    return place.finding(f"has {values.shown(placeholder)}, which is not set; it stays as it is", code=code)
