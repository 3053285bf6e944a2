"""Load a `Configuration` from files and an environment.

Only files are read: `app` and the command line pass the environment, the working folder and the home folder in. Nothing
is started and no socket is opened.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal, TypeAlias

from isthmus.config import finding_codes
from isthmus.config.callers import (
    APPROVALS,
    BUDGETS,
    CALLERS,
    FLEETS,
    ISSUERS,
    SETS,
    TENANTS,
    KnownCaller,
    misspelt_grants,
    read_callers,
    read_issuers,
    read_tenants,
)
from isthmus.config.client_entries_to_hub import entries_of, has_place_for_servers, mapped_servers
from isthmus.config.client_file_reader import IMPORT, ClientFiles, HostContext, named_imports, read_client_files
from isthmus.config.client_formats import OWN, ClientDialect
from isthmus.config.entries_to_settings import RESERVED, EntryContext, LoadedServers, look_alikes
from isthmus.config.extensions import EXTENSIONS, Extensions, read_extensions
from isthmus.config.files import ParsedFile, find_file, read_document
from isthmus.config.findings import ConfigError, Finding, Place, closest_match
from isthmus.config.named_tables import idle_rules, read_approvals, read_budgets, read_fleets, read_sets, unknown_names
from isthmus.config.settings import Configuration, HubSettings
from isthmus.config.tables import (
    CLUSTER,
    CREDENTIALS,
    HUB,
    HUB_TABLES,
    LOG,
    STORAGE,
    TIMEOUT_VARIABLE,
    call_seconds,
    read_hub,
    read_tables,
)
from isthmus.config.value_sources import origins_of
from isthmus.config.variables import ENV_NAME, Variables, variables_of
from isthmus.upstream.targets.settings import TargetSettings

AccessMode = Literal["open", "keys"]

StoredTables: TypeAlias = tuple[int, Mapping[str, object]]
"""A version of the configuration in a database."""

NODE_TABLES = (CLUSTER, STORAGE, LOG)
NODE_SETTINGS = ("host", "port", "state")
"""Keys of `[hub]` that each node of a cluster sets itself, if the rest of the configuration is in the database."""

_NEEDED = (CALLERS, TENANTS, ISSUERS, EXTENSIONS, APPROVALS, BUDGETS)
"""Tables whose absence would lift restrictions."""

_TABLES = dict.fromkeys((*HUB_TABLES, *_NEEDED, IMPORT, CREDENTIALS, SETS, FLEETS, "mcpServers", "servers"))


def load(  # noqa: PLR0913 - all but the first are named, or always the same
    path: Path | None,
    environment: Mapping[str, str],
    cwd: Path,
    home: Path,
    *,
    host: str | None = None,
    port: int | None = None,
    log_level: str | None = None,
    dialect: ClientDialect | None = None,
    stored: StoredTables | None = None,
) -> Configuration:
    """Find, read and check the configuration; without any file, return the defaults.

    `host`, `port` and `log_level` are options of the command line and win over the file. `stored` are the tables in the
    database of a cluster: the file then has only the settings of this node, and relative paths start at its folder.

    Raises:
        ConfigError: the named file is missing, the file cannot be parsed, or a table of the hub or of callers
            is not acceptable.
    """
    options = {"host": host, "port": port, "log_level": log_level}
    given = {key: value for key, value in options.items() if value is not None}
    around = HostContext(environment, cwd, home)
    file = find_file(path, environment, cwd, home)
    document = None if file is None else read_document(file, dialect)
    if stored is None or document is None:
        return _Loading(around, given).configuration(document)
    version, tables = stored
    read = _Loading(around, given).configuration(replace(document, table=_joined(document, tables), dialect=OWN))
    return replace(read, version=version)


def _joined(document: ParsedFile, tables: Mapping[str, object]) -> dict[str, object]:
    """The settings of a node and the tables that all nodes share.

    Raises:
        ConfigError: the file has more than the settings of a node: nodes would differ.
    """
    table = dict(document.table)
    if outside := sorted(_outside(table, keeps=True)):
        problem = 'belongs in the database, because of [cluster] config = "database"'
        advice = "push it with isthmus config push, and remove it from this file"
        places = [Place(document.file, path) for path in outside]
        raise ConfigError(*(place.finding(problem, advice=advice, code=finding_codes.BAD_VALUE) for place in places))
    return {**tables, **table, HUB: {**replace(document, table=dict(tables)).section(HUB), **document.section(HUB)}}


def local_settings(table: Mapping[str, object]) -> list[str]:
    """The settings in a table that belong to one node, not to the database of a cluster."""
    return sorted(_outside(table, keeps=False))


def _outside(table: Mapping[str, object], *, keeps: bool) -> Iterator[str]:
    """Paths of the settings that belong to one node; with `keeps`, of all others."""
    for root, value in table.items():
        if root == HUB and isinstance(value, dict):
            yield from (f"{root}.{key}" for key in value if (key in NODE_SETTINGS) != keeps)
        elif (root in NODE_TABLES) != keeps:
            yield root


def load_for_keys(path: Path | None, environment: Mapping[str, str], cwd: Path, home: Path) -> Configuration:
    """Load only what a command needs to edit the list of keys; no variable is read.

    A key must be revocable by a person who does not have the variables and files of the running hub.

    Raises:
        ConfigError: the file is missing or cannot be parsed, or a table of the hub or of tenants is not acceptable.
    """
    file = find_file(path, environment, cwd, home)
    document = None if file is None else read_document(file, None)
    if document is not None and CLUSTER in document.table and STORAGE in document.table:
        # The state folder would be the wrong place: its list is read by no node.
        problem = "has the keys of this cluster: fix everything else in the file first"
        raise ConfigError(Place(document.file, STORAGE).finding(problem, advice="isthmus config check lists it"))
    hub, _ = read_hub(document, environment, home, {}, None)
    tenants, _ = read_tenants(document)
    return Configuration(file=file, hub=hub, tenants=tenants, named=_caller_names(document))


def _caller_names(document: ParsedFile | None) -> frozenset[str]:
    return frozenset() if document is None or not document.dialect.has_hub else frozenset(document.section(CALLERS))


class _Loading:
    """One load: collects servers, findings and files on the way."""

    def __init__(self, around: HostContext, given: Mapping[str, object]) -> None:
        self._around = around
        self._given = given
        self._loaded = LoadedServers()
        self._findings: list[Finding] = []
        self._files: list[Path] = []
        self._extensions = Extensions()
        self._limits = HubSettings().limits

    def configuration(self, document: ParsedFile | None) -> Configuration:
        """Read the file and its imports, then the environment."""
        self._extensions, findings = read_extensions(document, self._variables(document))
        variables = self._variables(document)
        seconds, seconds_findings = call_seconds(self._around.environment)
        around = self._around
        hub, hub_findings = read_hub(document, around.environment, around.home, self._given, seconds)
        self._limits = hub.limits
        tables, table_findings = read_tables(
            document, variables, [each.name for each in self._extensions.in_group("storage")]
        )
        self._findings += [*findings, *table_findings.pop(CREDENTIALS)]
        if document is not None:
            self._findings += [*document.warnings, *_check_tables(document)]
        self._findings += [*seconds_findings, *hub_findings]
        self._findings += [finding for each in table_findings.values() for finding in each]
        imported = ClientFiles() if document is None else self._read_servers(document)
        mapped, map_findings = mapped_servers(self._around.environment)
        self._findings += map_findings
        home, cwd = self._around.home, self._around.cwd
        # A file wins over the map, without a finding.
        mapped = [entry for entry in mapped if entry.name not in self._loaded.called]
        visible = Variables(self._around.environment, cwd, home)
        self._loaded.add(mapped, EntryContext(visible, cwd, home, hub.limits))
        self._findings += [*self._loaded.findings, *look_alikes(self._loaded)]
        if hub.open_programs == "refuse":
            self._loaded.refuse_open_programs()
        tenants, tenant_findings = read_tenants(document)
        tenants = replace(tenants, has_policies=bool(self._extensions.in_group("policy")))
        callers: tuple[KnownCaller, ...] = ()
        expiries: dict[bytes, float] = {}
        caller_findings: tuple[Finding, ...] = ()
        if document is not None and document.dialect.has_hub:
            callers, expiries, caller_findings = read_callers(document, variables, tenants)
        issuers, issuer_findings = read_issuers(document, hub.public_url, tenants)
        self._findings += [*tenant_findings, *caller_findings, *issuer_findings]
        fleets, fleet_findings = read_fleets(document, {*self._loaded.entries, *RESERVED})
        self._findings += fleet_findings
        servers = {*self._loaded.entries, *RESERVED, *fleets}
        sets, set_findings = read_sets(document, variables, servers)
        self._findings += [*misspelt_grants(document, servers), *set_findings]
        budgets = read_budgets(document)
        approvals = read_approvals(document, variables, {budget.name for budget in budgets})
        self._findings += idle_rules(approvals, document, {budget.name: budget for budget in budgets})
        names = {"callers": {caller.name for _, caller in callers}, "tenants": tenants.known, "sets": sets}
        place = Place(None if document is None else document.file)
        self._findings += unknown_names(budgets, place.at(BUDGETS), names)
        names = {"callers": names["callers"]}
        self._findings += unknown_names(approvals, place.at(APPROVALS), names, finding_codes.IDLE_APPROVAL_RULE)
        defaults = {} if seconds is None else {"limits.call_seconds": TIMEOUT_VARIABLE}
        return Configuration(
            file=None if document is None else document.file,
            hub=hub,
            **tables,
            extensions=self._extensions,
            servers=tuple(self._loaded.servers.values()),
            sets=sets,
            fleets=fleets,
            approvals=approvals,
            budgets=budgets,
            callers=callers,
            named=_caller_names(document),
            tenants=tenants,
            expiries=expiries,
            issuers=issuers,
            warnings=tuple(self._findings),
            files=tuple(dict.fromkeys([*self._files, *self._loaded.files])),
            broken=tuple(name for name in self._loaded.entries if name not in self._loaded.servers),
            unread=tuple(imported.unread),
            unresolved=self._loaded.unresolved,
            origins=origins_of(document, self._loaded, self._given, defaults),
        )

    def _read_servers(self, document: ParsedFile) -> ClientFiles:
        """Read the servers of a file, then those of the files that it imports."""
        place = Place(document.file, IMPORT)
        self._read_entries(document)
        importers = {each.name: each for each in self._extensions.in_group("importers")}
        folder = document.file.parent
        imported = read_client_files(named_imports(document), place, folder, self._around, importers=importers)
        self._findings += imported.findings
        self._files += imported.sought
        for other in imported.documents:
            try:
                self._read_entries(other)
            except ConfigError as error:
                self._findings += error.findings
        return imported

    def _read_entries(self, document: ParsedFile) -> None:
        self._files += [document.file, document.file.with_name(ENV_NAME)]
        home, cwd = self._around.home, self._around.cwd
        visible, findings = variables_of(document.file, self._around.environment)
        folder = document.base(home, cwd)
        entries, entry_findings = entries_of(document, home, cwd)
        self._findings += [*findings, *entry_findings]
        sources = self._extensions.sources() if document.dialect.is_own else None
        self._loaded.add(entries, EntryContext(Variables(visible, folder, home, sources), folder, home, self._limits))

    def _variables(self, document: ParsedFile | None) -> Variables:
        """Return the variables that the hub's own tables can use; findings of `.env` come with the servers."""
        home, environment = self._around.home, self._around.environment
        if document is None:
            return Variables(environment, self._around.cwd, home)
        sources = self._extensions.sources()
        return Variables(variables_of(document.file, environment)[0], document.file.parent, home, sources)


def _check_tables(document: ParsedFile) -> list[Finding]:
    """Return findings about the outermost keys of a file.

    Raises:
        ConfigError: a key is probably a mistyped `callers`, `issuers`, `tenants`, `approvals`, `budgets` or
            `extensions`.
            Ignoring it would leave the hub open, or lift restrictions.
    """
    place, dialect = Place(document.file), document.dialect
    unknown = [key for key in document.table if key not in _TABLES]
    for key in unknown:
        if dialect.has_hub and closest_match(key, _TABLES) in _NEEDED:
            raise ConfigError(place.unknown(key, _TABLES, code=finding_codes.UNKNOWN_TABLE))
    if dialect.is_own:
        return [place.unknown(key, _TABLES, code=finding_codes.UNKNOWN_TABLE) for key in unknown]
    if has_place_for_servers(document) or (dialect.has_hub and document.table.keys() & _TABLES.keys()):
        return []
    advice = f"servers belong under {'.'.join(dialect.roots[0])}"
    return [place.finding("has no servers", advice=advice, code=finding_codes.NO_SERVERS)]


def access_mode(
    hub: HubSettings,
    callers: tuple[KnownCaller, ...],
    *,
    has_others: bool = False,
    is_insecure: bool = False,
    targets: TargetSettings | None = None,
) -> AccessMode:
    """Return whether callers need a key; on loopback without callers, every local program may call.

    `has_others` says that there are callers elsewhere, such as keys in the state folder. `is_insecure` leaves the hub
    open wherever it listens.

    Raises:
        ConfigError: others can reach the hub and no caller is configured, or `targets` are open to everybody and not
            only local programs may call.
    """
    is_local = hub.is_loopback and not hub.is_published
    if targets is not None and targets.open and (callers or has_others or not is_local):
        raise ConfigError(
            Place(None, "targets.open").finding(
                "must be false unless the hub listens on loopback only, without callers or a public_url",
                value="true",
                advice="give each caller that may name addresses a key and targets = true instead",
                code=finding_codes.BAD_VALUE,
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
                " accepts everybody who can reach it"
            ),
            code=finding_codes.OPEN_TO_NETWORK,
        )
    )
