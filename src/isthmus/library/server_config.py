"""The configuration of a program's servers: one server, an `mcp.json`, or the argument of a service.

`MCPServerConfig` accepts the common spellings (`endpoint` or `url`, with or without `transport`) and converts to the
hub's own `ServerSettings`, whose checks apply as well. `MCPConfigLoader` finds and reads an `mcp.json` for an agent.
It logs problems instead of raising, since an agent should start without its servers too. `read_plan` reads the
arguments of `ToolService.initialize`. Used by the service, the clients and the manager.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeAlias, get_args
from urllib.parse import urlsplit

import structlog

from isthmus.config import values
from isthmus.config.client_file_reader import HostContext
from isthmus.config.client_formats import STANDARD
from isthmus.config.entries_to_settings import TRANSPORT_WORDS, LoadedServers, cache_rules, server_names
from isthmus.config.files import ParsedFile, home_folder, read_document, resolve_path, resolve_program
from isthmus.config.findings import ConfigError
from isthmus.config.importing import load_servers
from isthmus.config.load import load
from isthmus.config.settings import Configuration, HubSettings, unfiled_settings
from isthmus.core.catalog.tool_rules import NO_TOOL_RULES, ToolRules
from isthmus.core.settings import HARD_SECONDS_MAX, MIB, Limits
from isthmus.library.errors import ConfigurationError
from isthmus.model.calls import EVERYTHING, Surface
from isthmus.model.names import ServerName, parse_server_name
from isthmus.telemetry.audit_writer import AuditMode
from isthmus.upstream.server_settings import (
    Carrier,
    HttpSettings,
    Reach,
    ServerSettings,
    StdioSettings,
    WebSocketSettings,
)

log = structlog.get_logger(__name__)
_loader_log = logging.getLogger(__name__)
"""`MCPConfigLoader` is for agents, which configure `logging`."""

TIMEOUT_SECONDS = 30.0
TIMEOUT_SECONDS_MIN = 1.0
TIMEOUT_SECONDS_MAX = Limits().hard_seconds
"""The hub ends every call after this time."""

TRANSPORTS: dict[str, str] = {
    **{word: kind for word, kind in TRANSPORT_WORDS.items() if kind in ("stdio", "http", "sse", "ws", "auto")},
    "streamableHttp": "http",
}
"""Common names of transports, and the transport that each means."""


@dataclass(slots=True)
class MCPServerConfig:
    """How one server is reached.

    Raises:
        ConfigurationError: (a ValueError) a field is invalid; the message begins with its name.
    """

    name: str
    endpoint: str | None = None
    """The address; `url` is an alias."""
    headers: dict[str, str] = field(default_factory=dict, repr=False)
    timeout: float = 30
    """Seconds for a call: at least 1, at most the hub's limit for any call."""
    transport: str | None = None
    """`stdio`, `http` or `sse`. By default derived from the other fields; for an address it is detected."""
    command: str | None = None
    args: list[str] | None = None
    env: dict[str, str] | None = field(default=None, repr=False)
    url: str | None = None
    cwd: str | None = None
    max_connect_retries: int = 3
    """Accepted for compatibility and ignored: the hub always reconnects."""
    retry_backoff_seconds: float = 5.0
    """Accepted for compatibility and ignored."""
    user_headers: Sequence[str] = ()
    """Names of headers that requests may forward for a user; by default none."""
    cache: dict[str, Any] | None = None
    """`{"tools": [...], "ttl": seconds}`: tools whose results are cached, by default for 60 seconds; `*` means all."""
    trusted: bool = False
    """Whether the server's annotations are trusted, such as that a tool is not destructive."""
    base: ServerSettings | None = field(default=None, repr=False, compare=False)
    """Settings of a file that have no field here, such as tools to leave out."""

    def __post_init__(self) -> None:
        self.settings()

    @classmethod
    def of(cls, given: Mapping[str, Any] | MCPServerConfig) -> MCPServerConfig:
        """Make one from a dictionary with the same keys. An illegal `name` is made legal, as in a file.

        Raises:
            ConfigurationError: a key is missing or unknown, or its value is invalid.
        """
        if isinstance(given, cls):
            return given
        if not isinstance(given, Mapping):
            raise ConfigurationError(f"a server must be a dictionary or an MCPServerConfig, not {type(given).__name__}")
        known = [name for name in cls.__dataclass_fields__ if name != "base"]  # set by the loader only
        if unknown := [str(key) for key in given if key not in known]:
            raise ConfigurationError(
                f"server {given.get('name', '?')!r} has unknown keys: {', '.join(unknown)}; known: {', '.join(known)}"
            )
        if "name" not in given:
            raise ConfigurationError("a server needs a name")
        name = given["name"]
        return cls(**{**given, "name": server_names([name])[name] if isinstance(name, str) else name})

    def settings(self) -> ServerSettings:
        """The hub's settings for this server.

        Raises:
            ConfigurationError: a field is invalid.
        """
        try:
            _check_types(self)
            rules = NO_TOOL_RULES
            if self.trusted or self.cache:
                rules = ToolRules(**cache_rules(self.cache or {}, is_strict=True), is_trusted=self.trusted)
            settings = ServerSettings(
                parse_server_name(self.name),
                self._reach(),
                timeout=float(self.timeout),
                secrets=frozenset([*(self.headers or {}).values(), *(self.env or {}).values()]),
                rules=rules,
            )
            return settings if self.base is None else _completed(settings, self.base)
        except ConfigurationError:
            raise
        except ValueError as error:
            raise ConfigurationError(f"server {self.name!r}: {error}") from None

    def _reach(self) -> Reach:
        if self.transport is not None and self.transport not in TRANSPORTS:
            known = ", ".join(TRANSPORTS)
            raise ConfigurationError(f"server {self.name!r}: transport must be one of {known}, not {self.transport!r}")
        if self.transport is not None:
            transport = TRANSPORTS[self.transport]
        elif self.command:
            transport = "stdio"
        else:
            is_websocket = (self.endpoint or self.url or "").startswith(("ws://", "wss://"))
            transport = "ws" if is_websocket else "auto"
        if self.command and self._address() and (self.transport is None or transport == "auto"):
            raise ConfigurationError(
                f"server {self.name!r}: give a command or an address, or set transport to say which to use"
            )
        if self.user_headers and transport in ("stdio", "ws"):
            how = "started by a command" if transport == "stdio" else "reached by WebSocket"
            raise ConfigurationError(f"server {self.name!r}: user_headers need an HTTP address, but it is {how}")
        if transport == "stdio":
            if not self.command:
                raise ConfigurationError(f"server {self.name!r}: stdio needs a command")
            # Relative to this program's folder, not to the server's `cwd`; in a file, to the file's folder.
            here = Path.cwd() if self.cwd or "/" in self.command else Path()  # the current folder may not exist
            home = home_folder()
            cwd = str(resolve_path(self.cwd, here, home)) if self.cwd else self.cwd
            return StdioSettings(
                resolve_program(self.command, here, home), tuple(self.args or ()), dict(self.env or {}), cwd
            )
        address = self._address()
        if address is None:
            raise ConfigurationError(f"server {self.name!r}: give an endpoint (or url) or a command")
        if transport == "ws":
            return WebSocketSettings(address, dict(self.headers or {}))
        carriers: dict[str, Carrier] = {"sse": "sse", "http": "http", "auto": "auto"}
        user_headers = tuple(self.user_headers or ())
        return HttpSettings(address, dict(self.headers or {}), carrier=carriers[transport], user_headers=user_headers)

    def _address(self) -> str | None:
        if self.endpoint and self.url and self.url != self.endpoint:
            raise ConfigurationError(f"server {self.name!r}: endpoint and url are aliases but differ: give one of them")
        return self.endpoint or self.url or None


def _completed(settings: ServerSettings, base: ServerSettings) -> ServerSettings:
    """`base`, overridden by `settings`."""
    reach, known = settings.reach, base.reach
    if type(known) is type(reach):
        # Only the era has no field here.
        reach = replace(
            known, **{field.name: getattr(reach, field.name) for field in fields(reach) if field.name != "era"}
        )
    secrets = settings.secrets | base.secrets
    own, rules = settings.rules, base.rules
    if own.is_trusted:
        rules = replace(rules, is_trusted=True)
    if own.cached:
        rules = replace(rules, cached=own.cached, cache_seconds=own.cache_seconds)
    return replace(base, name=settings.name, reach=reach, timeout=settings.timeout, secrets=secrets, rules=rules)


def _check_types(config: MCPServerConfig) -> None:
    if not isinstance(config.name, str):
        raise ValueError(f"name must be a string, not {config.name!r}")
    for key in ("endpoint", "url", "transport", "command", "cwd"):
        if not isinstance(getattr(config, key), str | None):
            raise ValueError(f"{key} must be a string, not {type(getattr(config, key)).__name__}")
    if not isinstance(config.trusted, bool):
        raise ValueError(f"trusted must be True or False, not {config.trusted!r}")
    timeout: object = config.timeout
    is_number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if not is_number or not TIMEOUT_SECONDS_MIN <= timeout <= TIMEOUT_SECONDS_MAX:  # type: ignore[operator]
        raise ValueError(f"timeout must be {TIMEOUT_SECONDS_MIN:g} to {TIMEOUT_SECONDS_MAX:g} seconds, not {timeout!r}")
    for key in ("headers", "env"):
        table = getattr(config, key)
        if table is not None and not (
            isinstance(table, Mapping) and all(isinstance(part, str) for pair in table.items() for part in pair)
        ):
            raise ValueError(f"{key} must be a dictionary of strings")
    for key in ("args", "user_headers"):
        given = getattr(config, key)
        is_list = isinstance(given, Iterable) and not isinstance(given, str)
        if given is not None and not (is_list and all(isinstance(each, str) for each in given)):
            raise ValueError(f"{key} must be a list of strings")


# -- the mcp.json of an agent ------------------------------------------------------------------------------------------

FILE_VARIABLE = "EXCELMANUS_MCP_CONFIG"
FILE_NAME = "mcp.json"
HOME_FILE = ".excelmanus/mcp.json"
ROOT = "mcpServers"
LIMITS = Limits(call_seconds=TIMEOUT_SECONDS)
"""Defaults of entries: an agent's timeout differs from a hub's."""


class MCPConfigLoader:
    """Finds and reads the servers of an `mcp.json`."""

    @staticmethod
    def load(config_path: str | Path | None = None, workspace_root: str | Path = ".") -> list[MCPServerConfig]:
        """Read the servers of the first file that exists.

        The places are `EXCELMANUS_MCP_CONFIG`, `config_path`, `mcp.json` in the workspace, and
        `~/.excelmanus/mcp.json`. Returns an empty list without a readable file. Skipped entries are logged as WARNING,
        an unreadable file as ERROR.
        """
        workspace = Path(workspace_root).absolute()
        file = next(_existing(config_path, workspace), None)
        if file is None:
            return []
        try:
            return _configs_of(read_document(file), _around(workspace))
        except ConfigError as error:
            _loader_log.error("%s is invalid, so there are no MCP servers: %s", file, error)
            return []

    @staticmethod
    def _parse_config(data: Any) -> list[MCPServerConfig]:
        """The servers of a parsed file; invalid ones are skipped with a WARNING."""
        if not isinstance(data, Mapping):
            _loader_log.error("MCP servers must be in an object under %s, not in %s.", ROOT, type(data).__name__)
            return []
        try:
            return _configs_of(ParsedFile(Path.cwd() / FILE_NAME, dict(data), STANDARD), _around(Path.cwd()))
        except ConfigError as error:
            _loader_log.error("The MCP servers are invalid: %s", error)
            return []

    @staticmethod
    def _validate_server_config(entry: Any) -> MCPServerConfig | None:
        """One server with its `name` among its fields; None, with a WARNING, if it is invalid."""
        name = entry.get("name") if isinstance(entry, Mapping) else None
        if not isinstance(name, str):
            _loader_log.warning("An MCP server without a name was skipped.")
            return None
        rest = {key: value for key, value in entry.items() if key != "name"}
        return next(iter(MCPConfigLoader._parse_config({ROOT: {name: rest}})), None)


def _existing(named: str | Path | None, workspace: Path) -> Iterator[Path]:
    """The existing files, the first choice first; log those that were named but are not files."""
    for source, path in ((FILE_VARIABLE, os.environ.get(FILE_VARIABLE)), ("config_path", named)):
        if path:
            file = resolve_path(str(path), Path.cwd(), home_folder())
            if _is_file(file):
                yield file
            else:
                _loader_log.warning(
                    "%s is %s, which is not a file: trying the next place for MCP servers.", source, file
                )
    for file in (workspace / FILE_NAME, home_folder() / HOME_FILE):
        if _is_file(file):
            yield file
        elif os.path.lexists(file):  # a folder or a broken link: probably a mistake
            _loader_log.warning("%s is not a file: trying the next place for MCP servers.", file)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # the path is too long, or a folder of it is not accessible
        return False


def _around(workspace: Path) -> HostContext:
    return HostContext(os.environ, workspace, home_folder())


def _configs_of(document: ParsedFile, around: HostContext) -> list[MCPServerConfig]:
    servers = document.table.get(ROOT, {})
    table, dialect = document.table, document.dialect
    if not isinstance(servers, dict) and not (isinstance(servers, list) and servers):
        found = "an empty list" if servers == [] else values.quoted(servers)
        _loader_log.warning("%s: %s must be an object of servers, not %s.", document.file, ROOT, found)
        table = {key: value for key, value in table.items() if key != ROOT}
    if dialect.unit == "unsaid":  # a hub would have to guess; agents write seconds
        dialect = replace(dialect, unit="seconds")
    roster = load_servers(replace(document, table=table, dialect=dialect), around, LIMITS)
    for finding in (*document.warnings, *roster.findings):
        _loader_log.warning("%s", finding)
    folder = str(document.base(around.home, around.cwd))
    configs = (_config_of(name, settings, roster, folder) for name, settings in roster.servers.items())
    return [config for config in configs if config is not None]


def _config_of(
    name: ServerName, settings: ServerSettings, roster: LoadedServers, folder: str
) -> MCPServerConfig | None:
    if settings.disabled:
        _loader_log.info("MCP server %s is disabled and was skipped.", name)
        return None
    written = roster.entries[name].fields
    timeout = float(max(settings.timeout, TIMEOUT_SECONDS_MIN))
    if timeout != settings.timeout:
        _loader_log.warning(
            "MCP server %s has a timeout of %g seconds; %g is used instead.", name, settings.timeout, timeout
        )
    timeout = int(timeout) if timeout.is_integer() else timeout
    match settings.reach:
        case StdioSettings(command=command, args=args, env=env, cwd=cwd):
            return MCPServerConfig(
                name,
                transport="stdio",
                command=command,
                args=list(args) if "args" in written else None,
                env=dict(env) if "env" in written or env else None,
                cwd=cwd or folder,  # relative paths among its arguments start there too
                url=_idle(written, "url"),
                timeout=timeout,
                base=settings,
            )
        case HttpSettings(url=url, headers=headers) | WebSocketSettings(url=url, headers=headers) as reach:
            return MCPServerConfig(
                name,
                transport=reach.carrier if isinstance(reach, HttpSettings) else "ws",
                command=_idle(written, "command"),
                url=url,
                headers=dict(headers),
                timeout=timeout,
                user_headers=reach.user_headers if isinstance(reach, HttpSettings) else (),
                base=settings,
            )
        case _:
            _loader_log.warning(
                "MCP server %s has a transport that only ToolService.initialize(path) supports, and was skipped.",
                name,
            )
            return None


def _idle(written: Mapping[str, object], key: str) -> str | None:
    """A member for another transport than the chosen one, as written."""
    value = written.get(key)
    return value if isinstance(value, str) else None


# -- the configuration of a service ------------------------------------------------------------------------------------

REMOTE_HUB = ServerName("hub")
"""The server name of the running hub that a service is attached to."""

SETTLE_SECONDS = 120.0
"""How long a service waits for all first connection attempts; each attempt has a shorter limit of its own."""

REMOTE_HUB_LIMITS = Limits(
    call_seconds=HARD_SECONDS_MAX,
    hard_seconds=HARD_SECONDS_MAX,
    tools_per_server=100_000,
    list_bytes=512 * MIB,
    listing_seconds=SETTLE_SECONDS,
)
"""The running hub has its own limits, and lists the tools of all its servers. These only contain a defect of it."""


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """The configuration of an engine."""

    configuration: Configuration
    surface: Surface = EVERYTHING
    """The surface that has its tools."""
    is_remote: bool = False
    """Whether its only server is a running hub, without which the service cannot open."""
    failures: Mapping[str, str] = field(default_factory=dict)
    """Servers of the configuration that are invalid, and why."""


def read_plan(given: object, hub: str | None, key: str | None) -> EnginePlan:
    """Read the arguments of `ToolService.initialize`.

    Raises:
        ConfigurationError: they are invalid.
    """
    if hub is not None:
        if given is not None:
            raise ConfigurationError("give a configuration or hub=, not both: a running hub has its own configuration")
        return _remote_plan(hub, key)
    if key is not None:
        raise ConfigurationError("key= is for a running hub: give its address as hub=")
    failures: dict[str, str] = {}
    if given is None:
        configuration = Configuration(None, _without_audit(unfiled_settings(os.environ)))
    elif isinstance(given, Configuration):  # of `isthmus.testing`
        configuration = given
    elif isinstance(given, Mapping):
        table = given.get("tool_service", given)
        if not isinstance(table, Mapping):
            raise ConfigurationError(f"tool_service must be a dictionary, not {type(table).__name__}")
        if unknown := [str(key) for key in table if key not in _KNOWN]:
            raise ConfigurationError(f"unknown keys: {', '.join(unknown)}; known keys: {', '.join(_KNOWN)}")
        servers, failures = _servers(table)
        configuration = Configuration(None, _settings(table), tuple(servers))
    elif isinstance(given, list | tuple):
        raise ConfigurationError('a list of servers must be in a dictionary: {"mcp_servers": [...]}')
    elif not isinstance(given, str | os.PathLike):
        raise ConfigurationError(f"a configuration must be a dictionary or the path of a file, not {given!r}")
    else:
        try:
            configuration = load(Path(given), os.environ, Path.cwd(), home_folder())
        except ConfigError as error:
            raise invalid_config(error, f"the configuration {Path(given)}") from None
        if configuration.cluster.config == "database":
            text = (
                f"{Path(given)} leaves its servers to a database: name a file with servers, or connect to a node (hub=)"
            )
            raise ConfigurationError(text)
        for finding in configuration.warnings:
            log.warning("configuration", finding=str(finding))
        if {"hub.audit", "hub.state"}.isdisjoint(configuration.origins):
            configuration = replace(configuration, hub=_without_audit(configuration.hub))
    limits = replace(configuration.hub.limits, listing_seconds=SETTLE_SECONDS)
    return EnginePlan(replace(configuration, hub=replace(configuration.hub, limits=limits)), failures=failures)


def _remote_plan(address: object, key: object) -> EnginePlan:
    if not isinstance(address, str):
        raise ConfigurationError(f"hub must be the address of a running hub, not {address!r}")
    if not isinstance(key, str | None):
        raise ConfigurationError(f"key must be a string, not {type(key).__name__}")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        HttpSettings(address)  # validates it before it is split
        parts = urlsplit(address)
        endpoint = parts._replace(path=parts.path.rstrip("/") or "/mcp").geturl()
        reach = HttpSettings(endpoint, headers)
    except ValueError as error:
        raise ConfigurationError(f"hub: {error}") from None
    server = ServerSettings(
        REMOTE_HUB, reach, timeout=REMOTE_HUB_LIMITS.call_seconds, secrets=frozenset([key] if key else [])
    )
    settings = _without_audit(replace(unfiled_settings(os.environ), limits=REMOTE_HUB_LIMITS))
    return EnginePlan(Configuration(None, settings, (server,)), Surface("own", REMOTE_HUB), is_remote=True)


def _without_audit(settings: HubSettings) -> HubSettings:
    """An embedded hub writes an audit log only if its configuration asks for one."""
    return replace(settings, audit="off")


_KNOWN = ("enable_mcp", "mcp_servers", "mcpServers", "servers", "inputs", "audit", "state")
CONFIG_KEYS = frozenset({"tool_service", *_KNOWN})
"""The keys of a dictionary that is a configuration; one without any of them has servers by name."""
_NAMED = ("mcpServers", "servers", "mcp_servers")
"""Keys that may hold a table of servers by name, as in a file."""


def _settings(table: Mapping[str, Any]) -> HubSettings:
    """The hub's settings: it has an audit log if the table has `audit`, `state` or both."""
    defaults = unfiled_settings(os.environ)
    audit, state = table.get("audit"), table.get("state")
    if audit is None and state is None:
        return _without_audit(defaults)
    if state is not None and (not isinstance(state, str | Path) or not str(state)):
        raise ConfigurationError(f"state must be the path of a folder, not {state!r}")
    folder = defaults.state if state is None else str(resolve_path(str(state), Path.cwd(), home_folder()))
    if audit is not None and audit not in get_args(AuditMode):
        raise ConfigurationError(f"audit must be one of {', '.join(get_args(AuditMode))}, not {audit!r}")
    return replace(defaults, audit=audit or defaults.audit, state=folder)


def _servers(table: Mapping[str, Any]) -> tuple[list[ServerSettings], dict[str, str]]:
    """The servers of a dictionary, and the reasons why others are skipped.

    Raises:
        ConfigurationError: `mcp_servers` or another member has the wrong type.
    """
    is_enabled, listed = table.get("enable_mcp", True), table.get("mcp_servers", ())
    if not isinstance(is_enabled, bool):
        raise ConfigurationError(f"enable_mcp must be True or False, not {is_enabled!r}")
    if isinstance(listed, str) or not hasattr(listed, "__iter__"):
        raise ConfigurationError(f"mcp_servers must be a list of servers, not {type(listed).__name__}")
    if not is_enabled:
        return [], {}
    found: dict[str, ServerSettings] = {}
    failures: dict[str, str] = {}
    for name, place, server in (*_listed_servers(listed), *_named_servers(table)):
        if isinstance(server, ServerSettings) and name not in found:
            found[name] = server
            continue
        why = server if isinstance(server, str) else f"another server has the name {name!r}: give this one another name"
        log.warning("server left out", server=name, reason=why)
        failures[place if name in found or name in failures else name] = why
    return list(found.values()), failures


ReadServer: TypeAlias = tuple[str, str, ServerSettings | str]
"""A server's name, its place in the configuration, and its settings or why it is invalid."""


def _listed_servers(listed: Iterable[Any]) -> Iterator[ReadServer]:
    servers = [] if isinstance(listed, Mapping) else list(listed)
    given = [server.get("name") if isinstance(server, Mapping) else None for server in servers]
    names = server_names(name for name in given if isinstance(name, str))
    for position, (server, name) in enumerate(zip(servers, given, strict=True)):
        place = f"mcp_servers[{position}]"
        legal_name = names[name] if isinstance(name, str) else None
        if legal_name is not None and legal_name != name:
            log.warning("server renamed", name=name, server=legal_name)
        try:
            settings = MCPServerConfig.of(server if legal_name is None else {**server, "name": legal_name}).settings()
            yield settings.name, place, settings
        except ConfigurationError as error:
            yield legal_name or place, place, str(error)


def _named_servers(table: Mapping[str, Any]) -> Iterator[ReadServer]:
    """Servers in tables by name, read like those of an `mcp.json` in the current folder."""
    for key in _NAMED:
        servers = table.get(key)
        if servers is None or (key == "mcp_servers" and not isinstance(servers, Mapping)):
            continue
        if not isinstance(servers, Mapping):
            raise ConfigurationError(f"{key} must be a dictionary of servers by name, not {type(servers).__name__}")
        here = Path.cwd()
        document = ParsedFile(here / "mcp.json", {"mcpServers": dict(servers), "inputs": table.get("inputs")}, STANDARD)
        roster = load_servers(document, HostContext(os.environ, here, home_folder()))
        for finding in roster.findings:
            log.warning("configuration", finding=str(replace(finding, file=None)))
        for name, entry in roster.entries.items():
            below = f"{entry.place.path}."
            problems = [
                str(replace(finding, file=None)) for finding in roster.findings if f"{finding.path}.".startswith(below)
            ]
            yield name, f"{key}.{entry.name}", roster.servers.get(name, "; ".join(problems))


def invalid_config(error: ConfigError, subject: str) -> ConfigurationError:
    """A hub's error as one of the library."""
    findings = "; ".join(str(finding) for finding in error.findings)
    return ConfigurationError(f"{subject} is invalid: {findings}")
