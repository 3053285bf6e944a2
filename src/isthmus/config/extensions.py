"""Read `[extensions]`: code of other packages that the operator lets the hub load by entry point.

Nothing is loaded because it is installed: only extensions that our own file names are. A mistake must not widen access,
so a name that cannot be used refuses the whole file. Reading a file uses the groups `secrets` and `importers`;
`app.extensions` uses the others. Called by `config.load`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Literal, Protocol, TypeAlias, cast, get_args

from isthmus.config import values
from isthmus.config.files import ParsedFile
from isthmus.config.finding_codes import BAD_EXTENSION
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
            # The order of `sys.path` would choose one of them, and one could replace the other unnoticed.
            message = f"must be one entry point of {PREFIX}{self.group}, and is {' and '.join(sorted(found))}"
            raise self._refused(message, advice="uninstall the package of one of them")
        known = sorted({point.name for point in points})
        advice = f"installed are {', '.join(known)}" if known else "install its package where the hub is"
        raise self._refused(f"must be an entry point of {PREFIX}{self.group} that is installed", advice=advice)

    def make(self, *needed: str) -> object:
        """Load it with its settings and return the object that it makes; later calls return the same object.

        Raises:
            ConfigError: it fails, or its object lacks a `needed` method.
        """
        if self._made:
            return self._made[0]
        point = self.check()
        try:
            made = point.load()(self.settings)
        except Exception as error:  # code of another package may fail in any way
            # Other messages may contain a secret; these two explain bad settings and missing packages.
            reason = f": {error}" if isinstance(error, ValueError | ImportError) else ""
            message = f"cannot be used: the entry point {point.value} raised {type(error).__name__}{reason}"
            raise ConfigError(self.place.finding(message, code=BAD_EXTENSION)) from error
        missing = [name for name in needed or ("__call__",) if not callable(getattr(made, name, None))]
        if missing:
            message = f"cannot be used: what the entry point {point.value} makes has no {', '.join(missing)}"
            raise ConfigError(self.place.finding(message, code=BAD_EXTENSION))
        self._made.append(made)
        return made

    def secret(self, name: str) -> str:
        """Return a secret by its name, for the group `secrets`.

        Raises:
            ConfigError: the extension cannot be used. Its own errors pass through.
        """
        return cast("SecretSource", self.make())(name)

    def _refused(self, message: str, *, advice: str) -> ConfigError:
        return ConfigError(self.place.finding(message, value=repr(self.name), advice=advice, code=BAD_EXTENSION))


@dataclass(frozen=True, slots=True)
class Extensions:
    """All extensions that a file names."""

    named: tuple[Extension, ...] = ()

    def in_group(self, group: Group) -> tuple[Extension, ...]:
        """Return the extensions of one group, in the order of the file."""
        return tuple(each for each in self.named if each.group == group)

    def sources(self) -> dict[str, SecretSource]:
        """Return additional sources of secrets by their prefix; each is loaded when it is first used."""
        return {each.name: each.secret for each in self.in_group("secrets")}


def read_extensions(document: ParsedFile | None, variables: Variables) -> tuple[Extensions, tuple[Finding, ...]]:
    """Return the extensions that a file names, with findings.

    Raises:
        ConfigError: a value is not acceptable, something is not installed, or the file was not written for the hub.
    """
    if document is None or EXTENSIONS not in document.table or not document.dialect.has_hub:
        return Extensions(), ()
    place = Place(document.file, EXTENSIONS)
    if not document.dialect.is_own:
        # In another client's file `extensions` may hold servers, but not extensions of the hub.
        other = document.table[EXTENSIONS]
        if isinstance(other, dict) and any(isinstance(other.get(group), list) for group in GROUPS):
            message = "must be in a file that was written for the hub, such as isthmus.toml"
            raise ConfigError(place.finding(message, code=BAD_EXTENSION))
        return Extensions(), ()
    table = document.section(EXTENSIONS)
    try:
        # An unknown key may be a mistyped `policy`, without which everybody could do more.
        values.table("", table, (*GROUPS, SETTINGS))
        named = [(group, name) for group in GROUPS for name in _names(group, table.get(group, []))]
        settings = _settings(table.get(SETTINGS, {}), {name for _, name in named}, variables)
    except ValueError as error:
        raise ConfigError(place.mistake(error, code=BAD_EXTENSION)) from error
    found = tuple(Extension(group, name, settings.get(name, {}), place.at(group, name)) for group, name in named)
    for extension in found:
        extension.check()
        if extension.group == "policy":
            # Loaded at once: every program that uses the file must apply the policy.
            extension.make("allows")
    return Extensions(found), ()


def _names(group: Group, given: object) -> tuple[str, ...]:
    names = values.texts(group, given)
    form = _SCHEME if group in _TAKEN else _NAME
    for position, name in enumerate(names):
        if form.fullmatch(name) is None or name in _TAKEN.get(group, ()):
            raise ValueError(f"{group}.{position} must be the name of an extension, not {values.quoted(name)}")
        if name in names[:position]:
            raise ValueError(f"{group}.{position} must be another one, not {values.quoted(name)} again")
    return names


def _settings(given: object, named: set[str], variables: Variables) -> dict[str, Settings]:
    read: dict[str, Settings] = {}
    for name, table in values.table(SETTINGS, given).items():
        key = f"{SETTINGS}.{name}"
        if name not in named:
            raise ValueError(f"{key} must be of an extension that is named, not of another")
        members = values.table(key, table)
        settings: dict[str, object] = {}
        for each, value in members.items():
            # Lists and tables stay as written.
            settings[each] = values.plain(value)
            if isinstance(value, str):
                used = UsedVariables()
                settings[each] = variables.secret(f"{key}.{each}", value, used)
                if used.unresolved:
                    message = f"{key}.{each} must have only variables that are set, not {used.unresolved[0]}"
                    raise ValueError(message)
        read[name] = settings
    return read
