"""The configuration of a cluster in its database: versions that `isthmus config push` stores and all nodes follow.

A node's own file has only what belongs to the node: `[cluster]`, `[storage]`, `[log]`, and host, port and state of
`[hub]`. With `[cluster] config = "database"` everything else comes from the last version. Secrets stay references,
which each node resolves.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from isthmus.config.findings import ConfigError, Place
from isthmus.config.formats import PARSERS, parse
from isthmus.config.load import StoredTables, load, local_settings
from isthmus.config.settings import Configuration
from isthmus.config.tables import CLUSTER
from isthmus.core.journal import SharedState, StateDocument

CONFIGURATION: Final = "configuration"
"""The kind of the shared documents with versions."""

VERSIONS_KEPT: Final = 100
TEXT_BYTES_MAX: Final = 4 * 1024 * 1024


class ConfigVersion(msgspec.Struct, frozen=True):
    """A stored version: the text of a file, as it was pushed."""

    number: int
    text: str
    suffix: str
    """Of the file's name: it tells the format."""
    author: str
    at: float
    note: str = ""

    @property
    def digest(self) -> str:
        """The SHA-256 of the text."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def tables(self) -> dict[str, object]:
        """The text as tables. Raises `ConfigError`."""
        return parse(Path(f"version-{self.number}{self.suffix}"), self.text)[0]


class ConfigConflict(Exception):
    """Somebody has pushed a version that the author has not seen."""

    def __init__(self, latest: int) -> None:
        super().__init__(f"version {latest} was pushed meanwhile")
        self.latest = latest


class DatabaseConfig:
    """The stored versions. Every method may raise `OSError`."""

    def __init__(self, state: SharedState) -> None:
        self._state = state
        state.follow(CONFIGURATION)

    @property
    def revision(self) -> int:
        """A number that changes with each version."""
        return self._state.revision(CONFIGURATION)

    def versions(self) -> list[ConfigVersion]:
        """The versions that are kept, oldest first."""
        found = [msgspec.json.decode(each.body or b"", type=ConfigVersion) for each in self._all().values()]
        return sorted(found, key=lambda version: version.number)

    def latest(self) -> ConfigVersion | None:
        """The version that nodes use."""
        found = self._all()
        if not found:
            return None
        return msgspec.json.decode(found[max(found, key=int)].body or b"", type=ConfigVersion)

    def push(self, version: ConfigVersion, base: int | None) -> ConfigVersion:
        """Store a text as the next version; its own number does not count. `base` is the version that it replaces.

        Raises:
            ConfigConflict: another version is the latest.
        """
        while True:
            found = self._all()
            latest = max(map(int, found), default=0)
            if base is not None and base != latest:
                raise ConfigConflict(latest)
            new = msgspec.structs.replace(version, number=latest + 1)
            old = sorted(found, key=int)[: -(VERSIONS_KEPT - 1)]
            changes = {id: StateDocument(found[id].version, None) for id in old}
            # The number is new: of two that push at once, the second one finds it taken.
            changes[str(new.number)] = StateDocument(0, msgspec.json.encode(new))
            if self._state.write(CONFIGURATION, changes):
                return new

    def _all(self) -> Mapping[str, StateDocument]:
        return self._state.all(CONFIGURATION)


def database_config(configuration: Configuration) -> DatabaseConfig | None:
    """Where the configuration of the nodes is stored; None without a database of a cluster. Raises `ConfigError`."""
    from isthmus.app.shared_state import shared_state  # noqa: PLC0415 - few need it

    state = shared_state(configuration)
    return None if state is None else DatabaseConfig(state)


def load_configuration(
    path: Path | None,
    environment: Mapping[str, str],
    cwd: Path,
    home: Path,
    *,
    host: str | None = None,
    port: int | None = None,
    log_level: str | None = None,
    stored: StoredTables | None = None,
) -> Configuration:
    """As `config.load.load`; what the file leaves to the database is read from there, unless it is `stored`.

    Raises:
        ConfigError: the configuration cannot be used, or none was pushed yet.
    """
    read = load(path, environment, cwd, home, host=host, port=port, log_level=log_level)
    if read.cluster.config != "database":
        return read
    if stored is None:
        found = database_config(read)
        version = None if found is None else found.latest()
        if version is None:
            place, advice = Place(read.file, CLUSTER).at("config"), "store one with: isthmus config push FILE"
            raise ConfigError(place.finding("is database, and no configuration was pushed yet", advice=advice))
        stored = version.number, version.tables
    return load(path, environment, cwd, home, host=host, port=port, log_level=log_level, stored=stored)


def tables_to_push(file: Path, text: str) -> dict[str, object]:
    """What a file has for all nodes.

    Raises:
        ConfigError: it cannot be read, or has settings of a single node.
    """
    if file.suffix.lower() not in PARSERS:
        raise ConfigError(Place(file).finding("must be a .toml, .yaml or .json file", value=f"{file.suffix!r}"))
    if len(text.encode()) > TEXT_BYTES_MAX:
        raise ConfigError(Place(file).finding(f"is longer than {TEXT_BYTES_MAX >> 20} MiB"))
    tables, _ = parse(file, text)
    advice = "keep it in the file of each node, and remove it from this one"
    if local := local_settings(tables):
        raise ConfigError(*(Place(file, path).finding("belongs to a single node", advice=advice) for path in local))
    return tables
