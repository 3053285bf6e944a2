"""From files and an environment to a `Configuration`: the one way in.

It reads files and nothing else: the environment, the working folder and the home folder are handed in by
`app` or the command line, so that a test can have its own. It opens no socket and starts nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

from isthmus.config import codes
from isthmus.config.callers import (
    CALLERS,
    ISSUERS,
    TENANTS,
    KnownCaller,
    misspelt_grants,
    read_callers,
    read_issuers,
    read_tenants,
)
from isthmus.config.client_files import IMPORT, ClientFiles, HostContext, named_imports, read_client_files
from isthmus.config.dialects.clients import Dialect
from isthmus.config.entries import entries_of, has_place_for_servers
from isthmus.config.environment import TIMEOUT_VARIABLE, call_seconds, mapped_servers
from isthmus.config.extensions import EXTENSIONS, Extensions, read_extensions
from isthmus.config.files import Document, find_file, read_document
from isthmus.config.findings import ConfigError, Finding, Place, closest_match
from isthmus.config.origins import origins_of
from isthmus.config.servers import CREDENTIALS, EntryContext, LoadedServers, look_alikes, read_credentials
from isthmus.config.settings import Configuration, HubSettings
from isthmus.config.tables import (
    A2A,
    AUDIT,
    RELAY,
    STORAGE,
    TARGETS,
    TASKS,
    read_a2a,
    read_audit,
    read_hub,
    read_relay,
    read_storage,
    read_targets,
    read_tasks,
)
from isthmus.config.variables import ENV_NAME, Variables, variables_of
from isthmus.core.access.tenants import Tenants
from isthmus.core.catalog.names import BUILTIN
from isthmus.core.settings import Limits
from isthmus.upstream.settings import ServerSettings, StdioSettings
from isthmus.upstream.targets.settings import TargetSettings

AccessMode = Literal["open", "keys"]

_TABLES = dict.fromkeys((
    "hub", "log", "limits", A2A, TASKS, TARGETS, STORAGE, AUDIT, RELAY, CALLERS, TENANTS, ISSUERS, IMPORT, CREDENTIALS,
    EXTENSIONS, "mcpServers", "servers",
))  # fmt: skip


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

    `host` and `port` are the command line's and win.

    Raises:
        ConfigError: the named file is missing, the file cannot be parsed, or what it says of the hub or of
            callers cannot be honoured.
    """
    given = {key: value for key, value in (("host", host), ("port", port)) if value is not None}
    around = HostContext(environment, cwd, home)
    file = find_file(path, environment, cwd, home)
    document = None if file is None else read_document(file, dialect)
    return _Loading(around, given).configuration(document)


def load_for_keys(path: Path | None, environment: Mapping[str, str], cwd: Path, home: Path) -> Configuration:
    """The part of a configuration that a command needs to work on the list of keys, without anything that is borrowed.

    Keys must be revoked by whoever is at hand, who may not have the variables and files that the hub was started with.

    Raises:
        ConfigError: the file is missing or cannot be parsed, or what it says of the hub or of tenants is wrong.
    """
    file = find_file(path, environment, cwd, home)
    document = None if file is None else read_document(file, None)
    hub, _ = read_hub(document, home, {}, None)
    tenants, _ = read_tenants(document)
    return Configuration(file=file, hub=hub, tenants=tenants, named=_named(document))


def _named(document: Document | None) -> frozenset[str]:
    return frozenset() if document is None or not document.dialect.has_hub else frozenset(document.section(CALLERS))


class _Loading:
    """One run through all that there is to read."""

    def __init__(self, around: HostContext, given: Mapping[str, object]) -> None:
        self._around = around
        self._given = given
        self._roster = LoadedServers()
        self._findings: list[Finding] = []
        self._files: list[Path] = []
        self._extensions = Extensions()

    def configuration(self, document: Document | None) -> Configuration:
        """Read the file and what it imports, then what the environment adds."""
        self._extensions, of_extensions = read_extensions(document, self._variables(document))
        self._findings += of_extensions
        seconds, told = call_seconds(self._around.environment)
        hub, of_hub = read_hub(document, self._around.home, self._given, seconds)
        a2a, of_a2a = read_a2a(document)
        tasks, of_tasks = read_tasks(document)
        targets, of_targets = read_targets(document)
        schemes = [each.name for each in self._extensions.of("storage")]
        storage, of_storage = read_storage(document, self._variables(document), schemes)
        audit, of_audit = read_audit(document)
        credentials, of_credentials = read_credentials(document, self._variables(document))
        self._findings += of_credentials
        relay, of_relay = read_relay(document, self._variables(document))
        if document is not None:
            self._findings += [*document.warnings, *_of_tables(document)]
        self._findings += [*told, *of_hub, *of_a2a, *of_tasks, *of_targets, *of_storage, *of_audit, *of_relay]
        imported = ClientFiles() if document is None else self._servers(document, hub.limits)
        self._mapped(hub.limits)
        self._findings += [*self._roster.findings, *look_alikes(self._roster)]
        tenants, of_tenants = read_tenants(document)
        tenants = replace(tenants, has_policies=bool(self._extensions.of("policy")))
        self._findings += of_tenants
        callers, expiries = self._callers(document, tenants)
        issuers, of_issuers = read_issuers(document, hub.public_url, tenants)
        self._findings += [*of_issuers, *misspelt_grants(document, {*self._roster.entries, BUILTIN})]
        return Configuration(
            file=None if document is None else document.file,
            hub=hub,
            a2a=a2a,
            tasks=tasks,
            targets=targets,
            storage=storage,
            audit=audit,
            credentials=credentials,
            relay=relay,
            extensions=self._extensions,
            servers=tuple(_held(server, hub) for server in self._roster.servers.values()),
            callers=callers,
            named=_named(document),
            tenants=tenants,
            expiries=expiries,
            issuers=issuers,
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

    def _servers(self, document: Document, limits: Limits) -> ClientFiles:
        place = Place(document.file, IMPORT)
        self._read(document, limits)
        importers = {each.name: each for each in self._extensions.of("importers")}
        imported = read_client_files(named_imports(document), place, document.file.parent, self._around, importers=importers)
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
        seen, told = variables_of(document.file, self._around.environment)
        folder = document.base(home, cwd)
        entries, odd = entries_of(document, home, cwd)
        self._findings += [*told, *odd]
        sources = self._extensions.sources() if document.dialect.is_own else None
        self._roster.add(entries, EntryContext(Variables(seen, folder, home, sources), folder, home, limits))

    def _mapped(self, limits: Limits) -> None:
        entries, told = mapped_servers(self._around.environment)
        self._findings += told
        home, cwd = self._around.home, self._around.cwd
        # A name that a file has already is the file's; nobody has to be told of it.
        entries = [entry for entry in entries if entry.name not in self._roster.called]
        self._roster.add(entries, EntryContext(Variables(self._around.environment, cwd, home), cwd, home, limits))

    def _callers(
        self, document: Document | None, tenants: Tenants
    ) -> tuple[tuple[KnownCaller, ...], dict[bytes, float]]:
        if document is None or not document.dialect.has_hub:
            return (), {}
        callers, expiries, told = read_callers(document, self._variables(document), tenants)
        self._findings += told
        return callers, expiries

    def _variables(self, document: Document | None) -> Variables:
        """What the hub's own tables can borrow; what is odd in a `.env` is told with the servers."""
        home, environment = self._around.home, self._around.environment
        if document is None:
            return Variables(environment, self._around.cwd, home)
        sources = self._extensions.sources()
        return Variables(variables_of(document.file, environment)[0], document.file.parent, home, sources)


def _held(server: ServerSettings, hub: HubSettings) -> ServerSettings:
    """Hold a server to what is said for all of them."""
    if hub.open_programs == "warn" or not isinstance(server.reach, StdioSettings):
        return server
    return replace(server, reach=replace(server.reach, may_be_open=False))


def _of_tables(document: Document) -> list[Finding]:
    """Look at the outermost keys of a file.

    Raises:
        ConfigError: one is probably a mistyped `callers` or `issuers`, without which the hub would be open, or a
            mistyped `tenants` or `extensions`, without which nobody would be held to anything.
    """
    place, dialect = Place(document.file), document.dialect
    unknown = [key for key in document.table if key not in _TABLES]
    for key in unknown:
        if dialect.has_hub and closest_match(key, _TABLES) in (CALLERS, ISSUERS, TENANTS, EXTENSIONS):
            raise ConfigError(place.unknown(key, _TABLES, code=codes.UNKNOWN_TABLE))
    if dialect.is_own:
        return [place.unknown(key, _TABLES, code=codes.UNKNOWN_TABLE) for key in unknown]
    if has_place_for_servers(document) or (dialect.has_hub and document.table.keys() & _TABLES.keys()):
        return []
    advice = f"they belong under {'.'.join(dialect.roots[0])}"
    return [place.finding("has no servers", advice=advice, code=codes.NO_SERVERS)]


def access_mode(
    hub: HubSettings,
    callers: tuple[KnownCaller, ...],
    *,
    has_others: bool = False,
    is_insecure: bool = False,
    targets: TargetSettings | None = None,
) -> AccessMode:
    """Say who may call: whoever proves who they are, or, on loopback with no caller configured, every local program.

    `has_others` says that callers are known from elsewhere, such as keys in the state folder. `is_insecure` leaves
    the hub open wherever it listens.

    Raises:
        ConfigError: others can reach the hub and no caller is configured. It is never open to a network unasked.
            Or `targets` are open to everybody, and somebody else than the programs of this machine may call.
    """
    is_local = hub.is_loopback and not hub.is_published
    if targets is not None and targets.open and (callers or has_others or not is_local):
        raise ConfigError(
            Place(None, "targets.open").finding(
                "must be false unless the hub listens on loopback alone, without callers or a public_url",
                value="true",
                advice="give each caller that may name addresses a key and targets = true instead",
                code=codes.BAD_VALUE,
            )
        )
    if callers or has_others:
        return "keys"
    if hub.is_loopback or is_insecure:
        return "open"
    raise ConfigError(
        Place(None, "hub.host").finding(
            "must be loopback while no caller is configured",
            value=repr(hub.host),
            advice=(
                'make a key with: isthmus token create NAME --allow "*", or add [callers.NAME] with'
                ' key = "env:NAME_KEY" and allow = ["*"], or listen on 127.0.0.1; isthmus serve --insecure'
                " lets everybody in who can reach it"
            ),
            code=codes.OPEN_TO_NETWORK,
        )
    )
