"""The hub inside a `ToolService`: its configuration, its current tools, and its logging.

Runs on the loop thread; only the catalog may be read by other threads. Made by the service.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args
from urllib.parse import urlsplit

import msgspec
import structlog

from isthmus.app.hub import RunningHub
from isthmus.config.client_files import HostContext
from isthmus.config.dialects import STANDARD
from isthmus.config.files import Document, home_folder, resolve_path
from isthmus.config.findings import ConfigError
from isthmus.config.importing import load_servers
from isthmus.config.load import load
from isthmus.config.servers import server_names
from isthmus.config.settings import Configuration, HubSettings, unfiled_settings
from isthmus.core.catalog.names import AmbiguousName, Pair, llm_aliases, llm_table, resolve
from isthmus.core.catalog.pins import WITHHOLDING
from isthmus.core.catalog.view import Route
from isthmus.core.settings import HARD_SECONDS_MAX, Limits
from isthmus.library.catalog import Catalog, ToolEntry
from isthmus.library.contracts import ToolResult, UserContext
from isthmus.library.errors import AmbiguousToolError, ConfigurationError, ToolError
from isthmus.library.permissions import UNRESTRICTED
from isthmus.library.questions import Questions
from isthmus.library.results import fault_of
from isthmus.library.server_config import MCPServerConfig
from isthmus.model.calls import EVERYTHING, Call, Surface
from isthmus.model.faults import UnknownTool
from isthmus.model.names import FeatureName, ServerName
from isthmus.storage.memory import MemoryJournal
from isthmus.telemetry.audit import AuditMode
from isthmus.upstream.python.registry import REGISTRY
from isthmus.upstream.settings import HttpSettings, ServerSettings

if TYPE_CHECKING:
    from isthmus.app.audit import AuditLog
    from isthmus.app.definitions import DefinitionPins


log = structlog.get_logger(__name__)

REMOTE_HUB = ServerName("hub")
"""The server name of the running hub that a service is attached to."""

FRONTEND = "library"
"""The name of this hub, and of its frontend, in the audit log."""

SETTLE_SECONDS = 120.0
"""How long a service waits for all first connection attempts; each attempt has a shorter limit of its own."""

REMOTE_HUB_LIMITS = Limits(
    call_seconds=HARD_SECONDS_MAX,
    hard_seconds=HARD_SECONDS_MAX,
    tools_per_server=100_000,
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
        configuration = Configuration(None, _without_audit(unfiled_settings()))
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
        configuration = _load_file(Path(given))
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
    settings = _without_audit(replace(unfiled_settings(), limits=REMOTE_HUB_LIMITS))
    return EnginePlan(Configuration(None, settings, (server,)), Surface("own", REMOTE_HUB), is_remote=True)


def _load_file(file: Path) -> Configuration:
    try:
        configuration = load(file, os.environ, Path.cwd(), home_folder())
    except ConfigError as error:
        raise _invalid(error, f"the configuration {file}") from None
    for finding in configuration.warnings:
        log.warning("configuration", finding=str(finding))
    if {"hub.audit", "hub.state"}.isdisjoint(configuration.origins):
        return replace(configuration, hub=_without_audit(configuration.hub))
    return configuration


def _without_audit(settings: HubSettings) -> HubSettings:
    """An embedded hub writes an audit log only if its configuration asks for one."""
    return replace(settings, audit="off")


_KNOWN = ("enable_mcp", "mcp_servers", "mcpServers", "servers", "inputs", "audit", "state")
_NAMED = ("mcpServers", "servers", "mcp_servers")
"""Keys that may hold a table of servers by name, as in a file."""


def _settings(table: Mapping[str, Any]) -> HubSettings:
    """The hub's settings: it has an audit log if the table has `audit`, `state` or both."""
    defaults = unfiled_settings()
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
        document = Document(here / "mcp.json", {"mcpServers": dict(servers), "inputs": table.get("inputs")}, STANDARD)
        roster = load_servers(document, HostContext(os.environ, here, home_folder()))
        for finding in roster.findings:
            log.warning("configuration", finding=str(replace(finding, file=None)))
        for name, entry in roster.entries.items():
            below = f"{entry.place.path}."
            problems = [str(replace(each, file=None)) for each in roster.findings if f"{each.path}.".startswith(below)]
            yield name, f"{key}.{entry.name}", roster.servers.get(name, "; ".join(problems))


def _pins_of(configuration: Configuration) -> DefinitionPins | None:
    """Tool pins, if the configuration withholds changed tools. Otherwise SQLite is not even imported."""
    if not WITHHOLDING & {configuration.hub.pin, *(server.pin for server in configuration.servers)}:
        return None
    from isthmus.app.definitions import DefinitionPins  # noqa: PLC0415

    try:
        return DefinitionPins(configuration, is_lasting=False)
    except ConfigError as error:
        raise _invalid(error, "the configuration") from None


def _invalid(error: ConfigError, subject: str) -> ConfigurationError:
    findings = "; ".join(str(finding) for finding in error.findings)
    return ConfigurationError(f"{subject} is invalid: {findings}")


async def open_engine(plan: EnginePlan, questions: Questions | None) -> HubEngine:
    """Start a hub, with an audit log if its configuration asks for one.

    Raises:
        ConfigurationError: the audit log cannot be opened although it is strict, or tools cannot be withheld.
    """
    if plan.configuration.hub.audit == "off":
        return HubEngine(plan, questions)
    # Imported only if it is used: it is large.
    from isthmus.app.audit import close_audit, open_audit  # noqa: PLC0415

    journal = MemoryJournal()
    try:
        audit_log = await open_audit(plan.configuration, journal, FRONTEND)
    except ConfigError as error:
        raise _invalid(error, "the configuration") from None
    try:
        return HubEngine(plan, questions, journal, audit_log)
    except BaseException:
        await close_audit(audit_log, journal)
        raise


class HubEngine:
    """A running hub and its current tools."""

    def __init__(
        self,
        plan: EnginePlan,
        questions: Questions | None,
        journal: MemoryJournal | None = None,
        audit_log: AuditLog | None = None,
    ) -> None:
        """Start every server in the background. On the loop thread only. Closing the engine closes `audit_log`."""
        client_caps = questions.client_caps if questions is not None else None
        self._plan = plan
        self._catalog: Catalog | None = None
        self._registered = REGISTRY.version
        self._watchers: dict[object, Callable[[], object]] = {}
        self._pins = _pins_of(plan.configuration)
        self._audit_log = audit_log
        audit = None if audit_log is None else audit_log.audit
        self.running = RunningHub(
            plan.configuration, os.environ, journal, client_caps=client_caps, pins=self._pins, audit=audit
        )
        if audit_log is not None:
            audit_log.follow(self.running, self._pins)
        self.running.hub.watch(self._changed)

    @property
    def is_attached(self) -> bool:
        """Whether its tools are those of a remote hub, which has its own permissions."""
        return self._plan.is_remote

    @property
    def is_audited(self) -> bool:
        """Whether calls are written to an audit log."""
        return self._audit_log is not None

    def record_refusal(self, call: Call, refusal: ToolResult, user: UserContext | None) -> None:
        """Write a call that was refused outside the hub to the audit log."""
        if self._audit_log is None:
            return
        fault = fault_of(refusal)
        entry = None if isinstance(fault, UnknownTool) else self._refused_tool(refusal, user)
        if entry is not None:
            call = msgspec.structs.replace(call, name=entry.exposed)
        self._audit_log.audit.add((time.time(), call, None if entry is None else entry.server, fault, 0.0, False, ""))

    def _refused_tool(self, refusal: ToolResult, user: UserContext | None) -> ToolEntry | None:
        """The tool that a refused call named; None if its name is wrong too."""
        namespace: object = refusal.tool_namespace
        try:
            return self.catalog().resolve_for(
                user, refusal.tool_name, namespace if isinstance(namespace, str) else None
            )
        except (ToolError, TypeError):  # TypeError: the user is not a UserContext
            return None

    async def settle(self) -> None:
        """Wait until each server has connected or failed."""
        await self.running.hub.settle(EVERYTHING)

    async def aclose(self) -> None:
        """Cancel running calls and close every connection."""
        self.running.refuse_new_calls()
        self.running.cancel_all("the service was shut down")
        await self.running.aclose()
        if self._pins is not None:
            await self._pins.aclose()
        audit_log, self._audit_log = self._audit_log, None  # refusals are not recorded from now on
        if audit_log is not None:
            await audit_log.stop()
            await audit_log.close()

    def failures(self) -> dict[str, str]:
        """Servers that are not connected, and why, including those of a remote hub."""
        return {**self._own_failures(), **self._remote_failures()}

    def _remote_failures(self) -> Mapping[str, str]:
        hub = self.running.hub.snapshot.server_statuses.get(REMOTE_HUB)
        return {} if hub is None or not self.is_attached else hub.missing

    def _own_failures(self) -> dict[str, str]:
        configuration = self._plan.configuration
        failures: dict[str, str] = {}
        for name in configuration.broken:
            problems = [str(each) for each in configuration.warnings if str(name) in each.path.split(".")[1:2]]
            failures[str(name)] = "; ".join(problems) or "its entry is invalid: see the log"
        failures |= self._plan.failures
        for status in self.running.hub.snapshot.server_statuses.values():
            if status.state not in ("ready", "disabled"):
                failures[str(status.server)] = status.reason or f"it is {status.state}"
        return failures

    def remote_hub_problem(self) -> str | None:
        """Why the remote hub is not connected; None if it is, or if there is none."""
        why = "; ".join(self._own_failures().values()) if self.is_attached else ""
        if "HTTP 401" not in why:
            return why or None
        (server,) = self._plan.configuration.servers
        return f"{why}: {'it rejected the key' if server.secrets else 'it needs a key: give key='}"

    def notes(self) -> dict[str, tuple[str, ...]]:
        """What was left out of the servers' lists, and why."""
        statuses = self.running.hub.snapshot.server_statuses.values()
        return {str(status.server): status.notes for status in statuses if status.notes}

    # -- tools and prompts ---------------------------------------------------------------------------------------------

    @property
    def known(self) -> Catalog | None:
        """The catalog, or None if it is outdated. Any thread may read it."""
        # A function registered a moment ago reaches the hub on its loop; `catalog` there includes it.
        return self._catalog if self._registered == REGISTRY.version else None

    def catalog(self) -> Catalog:
        """The current tools."""
        if self.known is None:
            self._registered = self.running.functions.version
            tables: dict[Surface, Mapping[str, Route]] = {}
            view = self.running.hub.snapshot.view(UNRESTRICTED, self._plan.surface)
            tables[self._plan.surface] = view.routes
            if self.is_attached:
                # The program's own functions; where both have a name, the remote hub's tool wins.
                routes = self.running.hub.snapshot.view(UNRESTRICTED, EVERYTHING).routes
                tables[EVERYTHING] = {
                    name: route for name, route in routes.items() if route.feature.server != REMOTE_HUB
                }
            # The remote hub itself is not the server of any tool.
            missing = self._remote_failures() if self.is_attached else self._own_failures()
            # Unlisted servers of a remote hub are not known here.
            self._catalog = Catalog(tables, missing, None if self.is_attached else view.find_unlisted)
        assert self._catalog is not None
        return self._catalog

    def features(self, kind: Literal["prompts", "resources"]) -> list[Route]:
        """The prompts or resources of all servers."""
        view = self.running.hub.snapshot.view(UNRESTRICTED, self._plan.surface)
        return list((view.prompts if kind == "prompts" else view.resources).values())

    def resolve_prompt(self, name: str) -> str:
        """The full name of a prompt, found by any form of its name; an unknown name is returned as it is.

        Raises:
            AmbiguousToolError: several prompts have it.
        """
        exposed = [route.exposed for route in self.features("prompts")]
        if name in exposed:
            return name
        pairs: dict[Pair, str] = {}
        for full in exposed:
            server, _, prompt = full.partition(".")
            pairs[ServerName(server), FeatureName(prompt)] = full
        try:
            pair = resolve(name, pairs)
        except AmbiguousName as several:
            raise AmbiguousToolError(name, several.candidates) from None
        if pair is not None:
            return pairs[pair]
        by_llm_name = {llm_name: pairs[each] for each, llm_name in llm_table(pairs).items()}
        return by_llm_name.get(llm_aliases(by_llm_name).get(name, name), name)

    @property
    def surface(self) -> Surface:
        """The surface that has its tools."""
        return self._plan.surface

    # -- changes -------------------------------------------------------------------------------------------------------

    def watch(self, key: object, callback: Callable[[], object]) -> None:
        """Call a function after every change of the tools."""
        self._watchers[key] = callback

    def unwatch(self, key: object) -> None:
        """Undo `watch`."""
        self._watchers.pop(key, None)

    def _changed(self) -> None:
        self._catalog = None
        for callback in list(self._watchers.values()):
            try:
                callback()
            except Exception:  # one callback's failure must not stop the others
                log.exception("a callback for changed tools failed")


# -- log lines of the hub ----------------------------------------------------------------------------------------------
#
# The hub logs with structlog, which prints to standard output until it is configured. If the program has not configured
# structlog, the hub's lines become records of `logging`, under the name of the module that wrote them. The program's
# own structlog lines stay as they were.

VALUE_LENGTH_MAX = 2000
"""Longer values are cut: they may come from servers or callers."""

_LEVELS = {"exception": logging.ERROR, "warn": logging.WARNING, "fatal": logging.CRITICAL}


class _LoggerName:
    """Names the `logging` logger, which is looked up for each line."""

    def __init__(self, name: str) -> None:
        self.name = name


def use_standard_logging() -> None:
    """Send the hub's log lines to `logging`, unless the program has configured structlog."""
    if structlog.is_configured():
        return
    known = structlog.get_config()
    others = known["logger_factory"]

    def factory(*args: Any) -> Any:
        is_own = bool(args) and isinstance(args[0], str) and args[0].startswith("isthmus.")
        return _LoggerName(args[0]) if is_own else others(*args)

    structlog.configure(processors=[_as_record, *known["processors"]], logger_factory=factory)


def _as_record(logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    if not isinstance(logger, _LoggerName):
        return event
    level = _LEVELS.get(method) or logging.getLevelNamesMapping().get(method.upper(), logging.INFO)
    target = logging.getLogger(logger.name)
    if target.isEnabledFor(level):
        error = event.pop("exc_info", method == "exception")
        # `repr` escapes control characters: a value can neither forge a line nor drive a terminal.
        values = (
            f"{key}={repr(value[:VALUE_LENGTH_MAX] if isinstance(value, str) else value)[: VALUE_LENGTH_MAX + 2]}"
            for key, value in event.items()
            if key != "event"
        )
        target.log(level, "%s", f"{event.get('event', '')} {' '.join(values)}".rstrip(), exc_info=error)
    raise structlog.DropEvent
