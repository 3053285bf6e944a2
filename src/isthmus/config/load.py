"""From files and an environment to a `Configuration`: the one way in.

It reads files and nothing else: the environment, the working folder and the home folder are handed in by
`app` or the command line, so that a test can have its own. It opens no socket and starts nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from isthmus.config import codes
from isthmus.config.a2a import ROOT as A2A
from isthmus.config.a2a import read_a2a
from isthmus.config.callers import ROOT as CALLERS
from isthmus.config.callers import KnownCaller, read_callers
from isthmus.config.dialects.dialect import Dialect
from isthmus.config.entries import entries_of, has_place_for_servers
from isthmus.config.environment import TIMEOUT_VARIABLE, call_seconds, mapped_servers
from isthmus.config.files import Document, find, read
from isthmus.config.findings import ConfigError, Finding, Place, nearest
from isthmus.config.hub import read_hub
from isthmus.config.imports import KEY as IMPORT
from isthmus.config.imports import Around, Imported, look_up, named_imports
from isthmus.config.origins import origins_of
from isthmus.config.relay import ROOT as RELAY
from isthmus.config.relay import read_relay
from isthmus.config.servers import Reading, Roster, look_alikes
from isthmus.config.settings import Configuration, HubSettings
from isthmus.config.storage import ROOT as STORAGE
from isthmus.config.storage import read_storage
from isthmus.config.targets import ROOT as TARGETS
from isthmus.config.targets import read_targets
from isthmus.config.tasks import ROOT as TASKS
from isthmus.config.tasks import read_tasks
from isthmus.config.variables import ENV_NAME, Variables, seen_from
from isthmus.core.settings import Limits

AccessMode = Literal["open", "keys"]

_TABLES = dict.fromkeys(
    ("hub", "log", "limits", A2A, TASKS, TARGETS, STORAGE, RELAY, CALLERS, IMPORT, "mcpServers", "servers")
)


def load(
    path: Path | None,
    environment: Mapping[str, str],
    cwd: Path,
    home: Path,
    *,
    host: str | None = None,
    port: int | None = None,
    dialect: Dialect | None = None,
) -> Configuration:
    """Find, read and check the configuration; with no file anywhere, return the defaults.

    `host` and `port` are the command line's and win. They are taken here and not put in afterwards, because
    what makes a key strong enough depends on the host.

    Raises:
        ConfigError: the named file is missing, the file cannot be parsed, or what it says of the hub or of
            callers cannot be honoured.
    """
    given = {key: value for key, value in (("host", host), ("port", port)) if value is not None}
    around = Around(environment, cwd, home)
    file = find(path, environment, cwd, home)
    document = None if file is None else read(file, dialect)
    return _Loading(around, given).configuration(document)


class _Loading:
    """One run through all that there is to read."""

    def __init__(self, around: Around, given: Mapping[str, object]) -> None:
        self._around = around
        self._given = given
        self._roster = Roster()
        self._findings: list[Finding] = []
        self._files: list[Path] = []

    def configuration(self, document: Document | None) -> Configuration:
        """Read the file and what it imports, then what the environment adds."""
        seconds, told = call_seconds(self._around.environment)
        hub, of_hub = read_hub(document, self._around.home, self._given, seconds)
        a2a, of_a2a = read_a2a(document)
        tasks, of_tasks = read_tasks(document)
        targets, of_targets = read_targets(document)
        storage, of_storage = read_storage(document, self._variables(document))
        relay, of_relay = read_relay(document, self._variables(document), is_loopback=hub.is_loopback)
        if document is not None:
            self._findings += [*document.warnings, *_of_tables(document)]
        self._findings += [*told, *of_hub, *of_a2a, *of_tasks, *of_targets, *of_storage, *of_relay]
        imported = Imported() if document is None else self._servers(document, hub.limits)
        self._mapped(hub.limits)
        self._findings += [*self._roster.findings, *look_alikes(self._roster)]
        callers = () if document is None else self._callers(document, hub)
        return Configuration(
            file=None if document is None else document.file,
            hub=hub,
            a2a=a2a,
            tasks=tasks,
            targets=targets,
            storage=storage,
            relay=relay,
            servers=tuple(self._roster.servers.values()),
            callers=callers,
            warnings=tuple(self._findings),
            files=tuple(dict.fromkeys([*self._files, *self._roster.files])),
            broken=tuple(name for name in self._roster.entries if name not in self._roster.servers),
            unread=tuple(imported.unread),
            unresolved=self._roster.unresolved,
            origins=origins_of(
                document,
                self._roster,
                self._given,
                {} if seconds is None else {"limits.call_seconds": TIMEOUT_VARIABLE},
            ),
        )

    def _servers(self, document: Document, limits: Limits) -> Imported:
        place = Place(document.file, IMPORT)
        self._read(document, limits)
        imported = look_up(named_imports(document), place, document.file.parent, self._around)
        self._findings += imported.findings
        self._files += imported.sought
        for other in imported.documents:
            try:
                self._read(other, limits)
            except ConfigError as error:
                self._findings += error.findings
        return imported

    def _read(self, document: Document, limits: Limits) -> None:
        self._files += [document.file, document.file.with_name(ENV_NAME)]
        home, cwd = self._around.home, self._around.cwd
        seen, told = seen_from(document.file, self._around.environment)
        folder = document.base(home, cwd)
        entries, odd = entries_of(document, home, cwd)
        self._findings += [*told, *odd]
        self._roster.add(entries, Reading(Variables(seen, folder, home), folder, home, limits))

    def _mapped(self, limits: Limits) -> None:
        entries, told = mapped_servers(self._around.environment)
        self._findings += told
        home, cwd = self._around.home, self._around.cwd
        # A name that a file has already is the file's; nobody has to be told of it.
        entries = [entry for entry in entries if entry.name not in self._roster.called]
        self._roster.add(entries, Reading(Variables(self._around.environment, cwd, home), cwd, home, limits))

    def _callers(self, document: Document, hub: HubSettings) -> tuple[KnownCaller, ...]:
        if not document.dialect.has_hub:
            return ()
        callers, told = read_callers(document, self._variables(document), is_loopback=hub.is_loopback)
        self._findings += told
        return callers

    def _variables(self, document: Document | None) -> Variables:
        """What the hub's own tables can borrow; what is odd in a `.env` is told with the servers."""
        home, environment = self._around.home, self._around.environment
        if document is None:
            return Variables(environment, self._around.cwd, home)
        return Variables(seen_from(document.file, environment)[0], document.file.parent, home)


def _of_tables(document: Document) -> list[Finding]:
    """Look at the outermost keys of a file.

    Raises:
        ConfigError: one is probably a mistyped `callers`, without which the hub would be open.
    """
    place, dialect = Place(document.file), document.dialect
    unknown = [key for key in document.table if key not in _TABLES]
    for key in unknown:
        if dialect.has_hub and nearest(key, _TABLES) == CALLERS:
            raise ConfigError(place.unknown(key, _TABLES, code=codes.UNKNOWN_TABLE))
    if dialect.is_own:
        return [place.unknown(key, _TABLES, code=codes.UNKNOWN_TABLE) for key in unknown]
    if has_place_for_servers(document) or (dialect.has_hub and document.table.keys() & _TABLES.keys()):
        return []
    advice = f"they belong under {'.'.join(dialect.roots[0])}"
    return [place.finding("has no servers", advice=advice, code=codes.NO_SERVERS)]


def access_mode(hub: HubSettings, callers: tuple[KnownCaller, ...]) -> AccessMode:
    """Say who may call: whoever holds a key, or, on loopback with no caller configured, every local program.

    Raises:
        ConfigError: others can reach the hub and no caller is configured. It is never open to a network.
    """
    if callers:
        return "keys"
    if hub.is_loopback:
        return "open"
    raise ConfigError(
        Place(None, "hub.host").finding(
            "must be loopback while no caller is configured",
            value=repr(hub.host),
            advice='add [callers.NAME] with key = "env:NAME_KEY" and allow = ["*"], or listen on 127.0.0.1',
            code=codes.OPEN_TO_NETWORK,
        )
    )
