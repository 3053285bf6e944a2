"""Read `[extensions]`: code of other packages that the operator lets the hub load by entry point.

Nothing is loaded because it is installed: only extensions that our own file names are. A mistake must not widen access,
so a name that cannot be used refuses the whole file. Reading a file uses the groups `secrets` and `importers`;
`app.extensions` uses the others. Called by `config.load`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Literal, Protocol, TypeAlias, cast, get_args

from isthmus.config import values
from isthmus.config.codes import BAD_EXTENSION
from isthmus.config.files import Document
from isthmus.config.findings import ConfigError, Finding, Place
from isthmus.config.variables import SecretSource, UsedVariables, Variables

EXTENSIONS = "extensions"
SETTINGS = "settings"
PREFIX = "isthmus."
"""Prefix of the groups of entry points."""

Group: TypeAlias = Literal["identity", "policy", "storage", "secrets", "importers"]
GROUPS: tuple[Group, ...] = get_args(Group)

Settings: TypeAlias = Mapping[str, object]
"""`[extensions.settings.NAME]` of one extension, with variables replaced."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,49}")
_SCHEME = re.compile(r"[a-z][a-z0-9-]{0,49}")
_TAKEN: Mapping[Group, tuple[str, ...]] = {
    "secrets": ("env", "file", "keyring", "http", "https", "ws", "wss"),
    "storage": ("postgresql", "postgres"),
}
"""Prefixes of secrets and addresses that are already taken."""


class Importer(Protocol):
    """Reads the files of another program."""

    title: str
    """The program's name in messages."""

    def places(self, home: Path, cwd: Path, environment: Mapping[str, str]) -> Iterable[Path]:
        """Return where its files may be, whether or not they exist."""

    def servers(self, content: bytes) -> Mapping[str, Mapping[str, object]]:
        """Return the servers of a file by name, each written as under `mcpServers`; raise if it is another file."""


@dataclass(frozen=True, slots=True)
class Extension:
    """One entry point that a file names."""

    group: Group
    name: str
    settings: Settings = field(default_factory=dict, repr=False)
    place: Place = field(default_factory=lambda: Place(None), compare=False)
    """Where the file names it."""
    _made: list[object] = field(default_factory=list, repr=False, compare=False)

    def check(self) -> metadata.EntryPoint:
        """Return its entry point without loading it.

        Raises:
            ConfigError: it is not installed, or several packages have it.
        """
        points = metadata.entry_points(group=PREFIX + self.group)
        found = {point.value: point for point in points if point.name == self.name}
        if len(found) == 1:
            return next(iter(found.values()))
        if found:
            # Which of them would be loaded is decided by the order of a path: one could come in for the other.
            said = f"must be one entry point of {PREFIX}{self.group}, and is {' and '.join(sorted(found))}"
            raise self._refused(said, advice="uninstall the package of one of them")
        known = sorted({point.name for point in points})
        advice = f"installed are {', '.join(known)}" if known else "install its package where the hub is"
        raise self._refused(f"must be an entry point of {PREFIX}{self.group} that is installed", advice=advice)

    def make(self, *needed: str) -> object:
        """Load it once, with its settings, and return the object that it makes.

        That is done once: the same is returned from then on.

        Raises:
            ConfigError: it cannot be had; the entry point is named.
        """
        if not self._made:
            self._made.append(self._make(needed or ("__call__",)))
        return self._made[0]

    def _make(self, needed: Iterable[str]) -> object:
        point = self.check()
        try:
            made = point.load()(self.settings)
        except Exception as error:  # another's code may fail in any way, and the operator is to hear which it was
            # Of its words only those are passed on that are for whoever writes settings, or tell what is missing.
            words = f": {error}" if isinstance(error, ValueError | ImportError) else ""
            said = f"cannot be used: the entry point {point.value} raised {type(error).__name__}{words}"
            raise ConfigError(self.place.finding(said, code=BAD_EXTENSION)) from error
        lacking = [name for name in needed if not callable(getattr(made, name, None))]
        if lacking:
            said = f"cannot be used: what the entry point {point.value} makes has no {', '.join(lacking)}"
            raise ConfigError(self.place.finding(said, code=BAD_EXTENSION))
        return made

    def _refused(self, said: str, *, advice: str) -> ConfigError:
        return ConfigError(self.place.finding(said, value=repr(self.name), advice=advice, code=BAD_EXTENSION))


@dataclass(frozen=True, slots=True)
class Extensions:
    """All extensions that a file names."""

    named: tuple[Extension, ...] = ()

    def of(self, group: Group) -> tuple[Extension, ...]:
        """Return the extensions of one group, in the order of the file."""
        return tuple(each for each in self.named if each.group == group)

    def sources(self) -> dict[str, SecretSource]:
        """Return additional sources of secrets by their prefix; each is loaded when it is first used."""
        return {each.name: partial(_secret, each) for each in self.of("secrets")}


def _secret(extension: Extension, name: str) -> str:
    """Raises: ConfigError if the extension cannot be used, and any error of the extension."""
    return cast("SecretSource", extension.make())(name)


def read_extensions(document: Document | None, variables: Variables) -> tuple[Extensions, tuple[Finding, ...]]:
    """Return the extensions that a file names, with findings.

    Raises:
        ConfigError: a value is not acceptable, something is not installed, or the file was not written for the hub.
    """
    if document is None or EXTENSIONS not in document.table or not document.dialect.has_hub:
        return Extensions(), ()
    place = Place(document.file, EXTENSIONS)
    if not document.dialect.is_own:
        _check_belongs_to_other(document.table[EXTENSIONS], place)
        return Extensions(), ()
    table = document.section(EXTENSIONS)
    try:
        _check_keys(table)
        named = [(group, name) for group in GROUPS for name in _names(group, table.get(group, []))]
        settings = _settings(table.get(SETTINGS, {}), {name for _, name in named}, variables)
    except ValueError as error:
        raise ConfigError(place.mistake(error, code=BAD_EXTENSION)) from error
    found = tuple(Extension(group, name, settings.get(name, {}), place.at(group, name)) for group, name in named)
    for extension in found:
        extension.check()
        if extension.group == "policy":
            # Whatever makes a hub of the file must have it: what it refuses is to be refused everywhere.
            extension.make("allows")
    return Extensions(found), ()


def _check_belongs_to_other(table: object, place: Place) -> None:
    """Reject hub extensions in another client's file, where `extensions` may also hold servers."""
    if isinstance(table, dict) and any(isinstance(table.get(group), list) for group in GROUPS):
        said = "must be in a file that was written for the hub, such as isthmus.toml"
        raise ConfigError(place.finding(said, code=BAD_EXTENSION))


def _check_keys(table: Mapping[str, object]) -> None:
    for key in table:
        if key not in (*GROUPS, SETTINGS):
            # It may be a mistyped `policy`, without which everybody could do more.
            raise ValueError(f"must have only {', '.join((*GROUPS, SETTINGS))}, not {values.quoted(key)}")


def _names(group: Group, given: object) -> tuple[str, ...]:
    names = values.texts(group, given)
    form = _SCHEME if group in _TAKEN else _NAME
    for position, name in enumerate(names):
        if form.fullmatch(name) is None or name in _TAKEN.get(group, ()):
            raise ValueError(f"{group}.{position} must be the name of an extension, not {values.quoted(name)}")
        if name in names[:position]:
            raise ValueError(f"{group}.{position} must be another one, not {values.quoted(name)} again")
    return names


def _settings(given: object, everybody: set[str], variables: Variables) -> dict[str, Settings]:
    read: dict[str, Settings] = {}
    for name, table in values.table(SETTINGS, given).items():
        key = f"{SETTINGS}.{name}"
        if name not in everybody:
            raise ValueError(f"{key} must be of an extension that is named, not of another")
        told = values.table(key, table)
        read[name] = {each: _lent(f"{key}.{each}", value, variables) for each, value in told.items()}
    return read


def _lent(key: str, value: object, variables: Variables) -> object:
    """Replace variables in a text; lists and tables stay as written."""
    if not isinstance(value, str):
        return values.plain(value)
    borrowed = UsedVariables()
    lent = variables.secret(key, value, borrowed)
    if borrowed.unresolved:
        raise ValueError(f"{key} must have only variables that are set, not {borrowed.unresolved[0]}")
    return lent
