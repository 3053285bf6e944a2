"""The hub of one service, on the owner's loop: what it is made of, what it offers now, and its end.

Everything here happens on that loop, except that anybody may read the catalog. Made by the service.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args
from urllib.parse import urlsplit

import msgspec
import structlog

from isthmus.app.hub import RunningHub
from isthmus.config.client_files import HostContext
from isthmus.config.dialects.clients import STANDARD
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


import logging
from collections.abc import MutableMapping

log = structlog.get_logger(__name__)

REMOTE_HUB = ServerName("hub")
"""What a running hub is called where a service has it as its only server."""

FRONTEND = "library"
"""What the audit log calls this hub, and the way in to it."""

SETTLE_SECONDS = 120.0
"""How long a service waits for first attempts to connect; each has a shorter limit of its own."""

REMOTE_HUB_LIMITS = Limits(
    call_seconds=HARD_SECONDS_MAX,
    hard_seconds=HARD_SECONDS_MAX,
    tools_per_server=100_000,
    listing_seconds=SETTLE_SECONDS,
)
"""A running hub has its own limits, and lists the tools of all its servers; these only bound a defect."""


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """What a service is to be made of."""

    configuration: Configuration
    surface: Surface = EVERYTHING
    """Where its tools are found."""
    required: bool = False
    """Whether it is nothing without its one server, a running hub."""
    failures: Mapping[str, str] = field(default_factory=dict)
    """Servers that were given and cannot be used, and why."""


def read_plan(given: Mapping[str, Any] | str | os.PathLike[str] | None, hub: str | None, key: str | None) -> EnginePlan:
    """Read what somebody gave `ToolService.initialize`.

    Raises:
        ConfigurationError: it cannot be used; the message names what.
    """
    if hub is not None:
        if given is not None:
            raise ConfigurationError("give a configuration or hub=, not both: a running hub has its own")
        _check_texts(hub, key)
        return _attached(hub, key)
    if key is not None:
        raise ConfigurationError("key= is for a running hub: give its address as hub=")
    if given is None:
        return EnginePlan(_patient(Configuration(None, _unaudited(unfiled_settings()))))
    if isinstance(given, Mapping):
        table = _table(given)
        servers, failures = _servers(table)
        return EnginePlan(_patient(Configuration(None, _settings(table), tuple(servers))), failures=failures)
    return EnginePlan(_patient(_audited_if_said(_loaded(_file(given)))))


def _check_texts(hub: object, key: object) -> None:
    if not isinstance(hub, str):
        raise ConfigurationError(f"hub must be the address of a running hub, not {hub!r}")
    if not isinstance(key, str | None):
        raise ConfigurationError(f"key must be a text, not {type(key).__name__}")


def _file(given: object) -> Path:
    if isinstance(given, str | os.PathLike):
        return Path(given)
    if isinstance(given, list | tuple):
        raise ConfigurationError("servers belong into a dictionary, as a list under mcp_servers")
    raise ConfigurationError(f"a configuration must be a dictionary or the path of a file, not {given!r}")


def _attached(address: str, key: str | None) -> EnginePlan:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        HttpSettings(address)  # before it is taken apart
        parts = urlsplit(address)
        endpoint = parts._replace(path=parts.path.rstrip("/") or "/mcp").geturl()
        reach = HttpSettings(endpoint, headers)
    except ValueError as error:
        raise ConfigurationError(f"hub: {error}") from None
    server = ServerSettings(
        REMOTE_HUB, reach, timeout=REMOTE_HUB_LIMITS.call_seconds, secrets=frozenset([key] if key else [])
    )
    settings = _unaudited(replace(unfiled_settings(), limits=REMOTE_HUB_LIMITS))
    return EnginePlan(Configuration(None, settings, (server,)), Surface("own", REMOTE_HUB), required=True)


def _loaded(file: Path) -> Configuration:
    try:
        configuration = load(file, os.environ, Path.cwd(), home_folder())
    except ConfigError as error:
        told = "; ".join(str(finding) for finding in error.findings)
        raise ConfigurationError(f"the configuration {file} cannot be used: {told}") from None
    for finding in configuration.warnings:
        log.warning("configuration", finding=str(finding))
    return configuration


def _broken(configuration: Configuration) -> dict[str, str]:
    """Servers whose entries cannot be used, and why: to whoever looks for their tools they failed like others."""
    return {str(name): _told_of(str(name), configuration) for name in configuration.broken}


def _told_of(name: str, configuration: Configuration) -> str:
    told = [str(finding) for finding in configuration.warnings if name in finding.path.split(".")[1:2]]
    return "; ".join(told) or "its entry cannot be used: the log says why"


def _patient(configuration: Configuration) -> Configuration:
    limits = replace(configuration.hub.limits, listing_seconds=SETTLE_SECONDS)
    return replace(configuration, hub=replace(configuration.hub, limits=limits))


def _unaudited(settings: HubSettings) -> HubSettings:
    """A program that was not told to keep a log writes none into anybody's folder."""
    return replace(settings, audit="off")


def _audited_if_said(configuration: Configuration) -> Configuration:
    if not {"hub.audit", "hub.state"}.isdisjoint(configuration.origins):
        return configuration
    return replace(configuration, hub=_unaudited(configuration.hub))


_KNOWN = ("enable_mcp", "mcp_servers", "mcpServers", "servers", "inputs", "audit", "state")
_NAMED = ("mcpServers", "servers", "mcp_servers")
"""Under which servers may be by their names, as in a file."""


def _table(given: Mapping[str, Any]) -> Mapping[str, Any]:
    table = given.get("tool_service", given)
    if not isinstance(table, Mapping):
        raise ConfigurationError(f"tool_service must be a dictionary, not {type(table).__name__}")
    _check_keys(table)
    return table


def _settings(table: Mapping[str, Any]) -> HubSettings:
    """Where the hub keeps an audit log, if the table says that it does: by how, by where, or by both."""
    usual = unfiled_settings()
    audit, state = table.get("audit"), table.get("state")
    if audit is None and state is None:
        return _unaudited(usual)
    if state is not None and (not isinstance(state, str | Path) or not str(state)):
        raise ConfigurationError(f"state must be the path of a folder, not {state!r}")
    folder = usual.state if state is None else str(resolve_path(str(state), Path.cwd(), home_folder()))
    if audit is not None and audit not in get_args(AuditMode):
        raise ConfigurationError(f"audit must be one of {', '.join(get_args(AuditMode))}, not {audit!r}")
    return replace(usual, audit=audit or usual.audit, state=folder)


def _servers(table: Mapping[str, Any]) -> tuple[list[ServerSettings], dict[str, str]]:
    """The servers of a dictionary, and why some of them cannot be used: each of these costs only itself.

    Raises:
        ConfigurationError: where servers should be is something else.
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
        why = server if isinstance(server, str) else f"another server is called {name!r}, too: give it another name"
        log.warning("server left out", server=name, reason=why)
        failures[place if name in found or name in failures else name] = why
    return list(found.values()), failures


Read: TypeAlias = tuple[str, str, ServerSettings | str]
"""What a server is called, where it was given, and how it is reached or why it cannot be used."""


def _listed_servers(listed: Iterable[Any]) -> Iterator[Read]:
    given = [] if isinstance(listed, Mapping) else list(listed)
    own = [server.get("name") if isinstance(server, Mapping) else None for server in given]
    names = server_names(name for name in own if isinstance(name, str))
    for position, (server, name) in enumerate(zip(given, own, strict=True)):
        place = f"mcp_servers[{position}]"
        called = names[name] if isinstance(name, str) else None
        if called is not None and called != name:
            log.warning("server renamed", name=name, server=called)
        try:
            settings = MCPServerConfig.of(server if called is None else {**server, "name": called}).settings()
            yield settings.name, place, settings
        except ConfigurationError as error:
            yield called or place, place, str(error)


def _named_servers(table: Mapping[str, Any]) -> Iterator[Read]:
    """Those that are there by their names, read as those of an `mcp.json` in this program's folder."""
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
            told = [str(replace(each, file=None)) for each in roster.findings if f"{each.path}.".startswith(below)]
            yield name, f"{key}.{entry.name}", roster.servers.get(name, "; ".join(told))


def _check_keys(table: Mapping[str, Any]) -> None:
    odd = [str(key) for key in table if key not in _KNOWN]
    if odd:
        raise ConfigurationError(f"{', '.join(odd)} is unknown here; known: {', '.join(_KNOWN)}")


def _pins_of(configuration: Configuration) -> DefinitionPins | None:
    """What withholds changed tools, where that is wanted; elsewhere a program needs no memory of them, and no SQL."""
    if not WITHHOLDING & {configuration.hub.pin, *(server.pin for server in configuration.servers)}:
        return None
    from isthmus.app.definitions import DefinitionPins  # noqa: PLC0415

    try:
        return DefinitionPins(configuration, is_lasting=False)
    except ConfigError as error:
        raise _unusable(error) from None


def _unusable(error: ConfigError) -> ConfigurationError:
    told = "; ".join(str(finding) for finding in error.findings)
    return ConfigurationError(f"the configuration cannot be used: {told}")


async def open_engine(plan: EnginePlan, questions: Questions | None) -> HubEngine:
    """A hub, with the audit log that its configuration asks for.

    Raises:
        ConfigurationError: every call is to be in the log, and there can be none; or tools cannot be withheld.
    """
    if plan.configuration.hub.audit == "off":
        return HubEngine(plan, questions)
    # Only who wants it pays for what it takes.
    from isthmus.app.audit import close_audit, open_audit  # noqa: PLC0415

    journal = MemoryJournal()
    try:
        books = await open_audit(plan.configuration, journal, FRONTEND)
    except ConfigError as error:
        raise _unusable(error) from None
    try:
        return HubEngine(plan, questions, journal, books)
    except BaseException:
        await close_audit(books, journal)
        raise


class HubEngine:
    """A hub that runs, and what it offers now."""

    def __init__(
        self,
        plan: EnginePlan,
        questions: Questions | None,
        journal: MemoryJournal | None = None,
        books: AuditLog | None = None,
    ) -> None:
        """Start every server in the background. Needs the owner's loop. `books` is closed with it."""
        client_caps = questions.client_caps if questions is not None else None
        self._plan = plan
        self._catalog: Catalog | None = None
        self._registered = REGISTRY.version
        self._watchers: dict[object, Callable[[], object]] = {}
        self._pins = _pins_of(plan.configuration)
        self._books = books
        audit = None if books is None else books.audit
        self.running = RunningHub(
            plan.configuration, os.environ, journal, client_caps=client_caps, pins=self._pins, audit=audit
        )
        if books is not None:
            books.follow(self.running, self._pins)
        self.running.hub.watch(self._changed)

    @property
    def is_attached(self) -> bool:
        """Whether its tools are those of a hub elsewhere, which has its own idea of who may use them."""
        return self._plan.required

    @property
    def is_audited(self) -> bool:
        """Whether what is asked of it is in an audit log."""
        return self._books is not None

    def record_refusal(self, call: Call, refusal: ToolResult, user: UserContext | None) -> None:
        """What was refused before the hub heard of it is in the log as the hub would have it."""
        if self._books is None:
            return
        why = fault_of(refusal)
        entry = None if isinstance(why, UnknownTool) else self._meant(refusal, user)
        if entry is not None:
            call = msgspec.structs.replace(call, name=entry.exposed)
        self._books.audit.add((time.time(), call, None if entry is None else entry.server, why, 0.0, False, ""))

    def _meant(self, refusal: ToolResult, user: UserContext | None) -> ToolEntry | None:
        """The tool of which more was wrong than its name; None if that was, too."""
        space: object = refusal.tool_namespace
        try:
            return self.catalog().resolve_for(user, refusal.tool_name, space if isinstance(space, str) else None)
        except (ToolError, TypeError):  # also a user that is none
            return None

    async def settle(self) -> None:
        """Wait until each server has connected or failed."""
        await self.running.hub.settle(EVERYTHING)

    async def aclose(self) -> None:
        """Cancel what runs, and close every connection."""
        self.running.refuse_new_calls()
        self.running.cancel_all("the service was shut down")
        await self.running.aclose()
        if self._pins is not None:
            await self._pins.aclose()
        books, self._books = self._books, None  # whoever refuses a call from now on tells nobody
        if books is not None:
            await books.stop()
            await books.close()

    def failures(self) -> dict[str, str]:
        """Servers that are not there, and why; of a hub elsewhere also those behind it."""
        return {**self._own_failures(), **self._failures_behind()}

    def _failures_behind(self) -> Mapping[str, str]:
        hub = self.running.hub.snapshot.server_statuses.get(REMOTE_HUB)
        return {} if hub is None or not self.is_attached else hub.missing

    def _own_failures(self) -> dict[str, str]:
        server_statuses = self.running.hub.snapshot.server_statuses.values()
        missing = [
            server_status for server_status in server_statuses if server_status.state not in ("ready", "disabled")
        ]
        told = {
            str(server_status.server): server_status.reason or f"it is {server_status.state}"
            for server_status in missing
        }
        return {**_broken(self._plan.configuration), **self._plan.failures, **told}

    def unreached(self) -> str | None:
        """Why the hub elsewhere is not there, without which this one is nothing; None if it is, or there is none."""
        why = "; ".join(self._own_failures().values()) if self.is_attached else ""
        if "HTTP 401" not in why:
            return why or None
        (server,) = self._plan.configuration.servers
        return f"{why}: {'it does not take the key' if server.secrets else 'it wants a key, which is given as key='}"

    def notes(self) -> dict[str, tuple[str, ...]]:
        """What was left out of the servers' lists, and why."""
        server_statuses = self.running.hub.snapshot.server_statuses.values()
        return {
            str(server_status.server): server_status.notes for server_status in server_statuses if server_status.notes
        }

    # -- what it offers ------------------------------------------------------------------------------------------------

    @property
    def known(self) -> Catalog | None:
        """The catalog, unless something has changed since; anybody may look."""
        # A function that was made a tool a moment ago is on its way to the hub, and to be found by who asks there.
        return self._catalog if self._registered == REGISTRY.version else None

    def catalog(self) -> Catalog:
        """What it offers now."""
        if self.known is None:
            self._registered = self.running.functions.version
            tables: dict[Surface, Mapping[str, Route]] = {}
            view = self.running.hub.snapshot.view(UNRESTRICTED, self._plan.surface)
            tables[self._plan.surface] = view.routes
            if self.is_attached:
                tables[EVERYTHING] = self._own_functions()
            # A hub elsewhere has said what it has before anybody asked, and is no server of any tool.
            missing = self._failures_behind() if self.is_attached else self._own_failures()
            # Of another hub's unlisted servers nothing is known here.
            self._catalog = Catalog(tables, missing, None if self.is_attached else view.find_unlisted)
        assert self._catalog is not None
        return self._catalog

    def _own_functions(self) -> dict[str, Route]:
        """Functions of this program, beside the tools of a hub elsewhere, which come first where both have the name."""
        routes = self.running.hub.snapshot.view(UNRESTRICTED, EVERYTHING).routes
        return {name: route for name, route in routes.items() if route.feature.server != REMOTE_HUB}

    def features(self, kind: Literal["prompts", "resources"]) -> list[Route]:
        """Prompts or resources, by the names that they go by here."""
        view = self.running.hub.snapshot.view(UNRESTRICTED, self._plan.surface)
        return list((view.prompts if kind == "prompts" else view.resources).values())

    def prompt_named(self, name: str) -> str:
        """What a prompt goes by here that is meant by a name of any form; the name itself if no prompt has it.

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
        """Where its tools are found."""
        return self._plan.surface

    # -- news ----------------------------------------------------------------------------------------------------------

    def watch(self, key: object, callback: Callable[[], object]) -> None:
        """Have a function called whenever something has changed."""
        self._watchers[key] = callback

    def unwatch(self, key: object) -> None:
        """Call it no more."""
        self._watchers.pop(key, None)

    def _changed(self) -> None:
        self._catalog = None
        for callback in list(self._watchers.values()):
            try:
                callback()
            except Exception:  # one that fails must not keep the others from the news
                log.exception("somebody who watches the tools failed")


VALUE_LENGTH_MAX = 2000
"""What a server or caller said may be in a line, and needs not all be there."""

_LEVELS = {"exception": logging.ERROR, "warn": logging.WARNING, "fatal": logging.CRITICAL}


class _Named:
    """Stands for a logger of `logging`, which is looked up when there is something to say."""

    def __init__(self, name: str) -> None:
        self.name = name


def use_standard_logging() -> None:
    """Have the hub's lines become records of `logging`, unless the program has configured structlog."""
    if structlog.is_configured():
        return
    known = structlog.get_config()
    others = known["logger_factory"]

    def factory(*args: Any) -> Any:
        is_own = bool(args) and isinstance(args[0], str) and args[0].startswith("isthmus.")
        return _Named(args[0]) if is_own else others(*args)

    structlog.configure(processors=[_as_record, *known["processors"]], logger_factory=factory)


def _as_record(logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    if not isinstance(logger, _Named):
        return event
    level = _LEVELS.get(method) or logging.getLevelNamesMapping().get(method.upper(), logging.INFO)
    target = logging.getLogger(logger.name)
    if target.isEnabledFor(level):
        error = event.pop("exc_info", method == "exception")
        target.log(level, "%s", _line(event), exc_info=error)
    raise structlog.DropEvent


def _line(event: MutableMapping[str, Any]) -> str:
    values = " ".join(f"{key}={_bounded(value)}" for key, value in event.items() if key != "event")
    return f"{event.get('event', '')} {values}".rstrip()


def _bounded(value: Any) -> str:
    # In quotes nothing can forge a line or drive a terminal.
    return repr(value[:VALUE_LENGTH_MAX] if isinstance(value, str) else value)[: VALUE_LENGTH_MAX + 2]
