"""The hub of one service, on the owner's loop: what it is made of, what it offers now, and its end.

Everything here happens on that loop, except that anybody may read the catalog. Made by the service.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

import structlog

from isthmus.app.hub import RunningHub
from isthmus.config.findings import ConfigError
from isthmus.config.load import load
from isthmus.config.settings import Configuration, HubSettings
from isthmus.core.catalog.names import BUILTIN
from isthmus.core.catalog.pins import WITHHOLDING
from isthmus.core.catalog.view import Route
from isthmus.core.settings import Limits
from isthmus.library.catalog import Catalog
from isthmus.library.errors import ConfigurationError
from isthmus.library.permissions import UNRESTRICTED
from isthmus.library.questions import Questions
from isthmus.library.servers import MCPServerConfig
from isthmus.model.calls import EVERYTHING, Surface
from isthmus.model.names import ServerName
from isthmus.upstream.registered import REGISTRY
from isthmus.upstream.settings import HttpSettings, ServerSettings

if TYPE_CHECKING:
    from isthmus.app.definitions import DefinitionPins

log = structlog.get_logger(__name__)

HUB = ServerName("hub")
"""What a running hub is called where a service has it as its only server."""

SETTLE_SECONDS = 120.0
"""How long a service waits for first attempts to connect; each has a shorter limit of its own."""

ATTACHED = Limits(call_seconds=600.0, tools_per_server=100_000, listing_seconds=SETTLE_SECONDS)
"""A running hub has its own limits, and lists the tools of all its servers; these only bound a defect."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a service is to be made of."""

    configuration: Configuration
    surface: Surface = EVERYTHING
    """Where its tools are found."""
    required: bool = False
    """Whether it is nothing without its one server, a running hub."""


def plan_of(given: Mapping[str, Any] | str | os.PathLike[str] | None, hub: str | None, key: str | None) -> Plan:
    """Read what somebody gave `ToolService.initialize`.

    Raises:
        ConfigurationError: it cannot be used; the message names what.
    """
    if hub is not None:
        if given is not None:
            raise ConfigurationError("give a configuration or hub=, not both: a running hub has its own")
        return _attached(hub, key)
    if key is not None:
        raise ConfigurationError("key= is for a running hub: give its address as hub=")
    if given is None:
        return Plan(_patient(Configuration(None, HubSettings())))
    if isinstance(given, Mapping):
        return Plan(_patient(Configuration(None, HubSettings(), tuple(_servers(given)))))
    return Plan(_patient(_loaded(Path(given))))


def _attached(address: str, key: str | None) -> Plan:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        HttpSettings(address)  # before it is taken apart
        parts = urlsplit(address)
        endpoint = parts._replace(path="/mcp").geturl() if parts.path in ("", "/") else address
        reach = HttpSettings(endpoint, headers)
    except ValueError as error:
        raise ConfigurationError(f"hub: {error}") from None
    server = ServerSettings(HUB, reach, timeout=ATTACHED.call_seconds, secrets=frozenset([key] if key else []))
    return Plan(Configuration(None, HubSettings(limits=ATTACHED), (server,)), Surface("own", HUB), required=True)


def _loaded(file: Path) -> Configuration:
    try:
        return load(file, os.environ, Path.cwd(), Path.home())
    except ConfigError as error:
        told = "; ".join(str(finding) for finding in error.findings)
        raise ConfigurationError(f"the configuration {file} cannot be used: {told}") from None


def _patient(configuration: Configuration) -> Configuration:
    limits = replace(configuration.hub.limits, listing_seconds=SETTLE_SECONDS)
    return replace(configuration, hub=replace(configuration.hub, limits=limits))


_KNOWN = ("enable_mcp", "mcp_servers")


def _servers(given: Mapping[str, Any]) -> list[ServerSettings]:
    table = given.get("tool_service", given)
    if not isinstance(table, Mapping):
        raise ConfigurationError(f"tool_service must be a dictionary, not {type(table).__name__}")
    _check_keys(table)
    is_enabled, servers = table.get("enable_mcp", True), table.get("mcp_servers", ())
    if not isinstance(is_enabled, bool):
        raise ConfigurationError(f"enable_mcp must be True or False, not {is_enabled!r}")
    if isinstance(servers, str | Mapping) or not hasattr(servers, "__iter__"):
        raise ConfigurationError(f"mcp_servers must be a list of servers, not {type(servers).__name__}")
    found = [MCPServerConfig.of(server).settings() for server in servers] if is_enabled else []
    _check_names(found)
    return found


def _check_keys(table: Mapping[str, Any]) -> None:
    if "mcpServers" in table or "servers" in table:
        raise ConfigurationError("servers by name belong into a file: give its path, or list them under mcp_servers")
    odd = [str(key) for key in table if key not in _KNOWN]
    if odd:
        raise ConfigurationError(f"{', '.join(odd)} is unknown here; known: {', '.join(_KNOWN)}")


def _check_names(servers: list[ServerSettings]) -> None:
    names = [server.name for server in servers]
    for name in names:
        if name == BUILTIN:
            raise ConfigurationError(f"a server cannot be called {BUILTIN}: the hub's own tools are")
        if names.count(name) > 1:
            raise ConfigurationError(f"two servers are called {name!r}: give one of them another name")


def _pins_of(configuration: Configuration) -> DefinitionPins | None:
    """What withholds changed tools, where that is wanted; elsewhere a program needs no memory of them, and no SQL."""
    if not WITHHOLDING & {configuration.hub.pin, *(server.pin for server in configuration.servers)}:
        return None
    from isthmus.app.definitions import DefinitionPins  # noqa: PLC0415

    try:
        return DefinitionPins(configuration, is_lasting=False)
    except ConfigError as error:
        told = "; ".join(str(finding) for finding in error.findings)
        raise ConfigurationError(f"the configuration cannot be used: {told}") from None


class Engine:
    """A hub that runs, and what it offers now."""

    def __init__(self, plan: Plan, questions: Questions | None) -> None:
        """Start every server in the background. Needs the owner's loop."""
        profile = questions.profile if questions is not None else None
        self._plan = plan
        self._catalog: Catalog | None = None
        self._registered = REGISTRY.version
        self._watchers: dict[object, Callable[[], object]] = {}
        self._pins = _pins_of(plan.configuration)
        self.running = RunningHub(plan.configuration, os.environ, profile=profile, pins=self._pins)
        self.running.hub.watch(self._changed)

    @property
    def is_attached(self) -> bool:
        """Whether its tools are those of a hub elsewhere, which has its own idea of who may use them."""
        return self._plan.required

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

    def failures(self) -> dict[str, str]:
        """Servers that are not there, and why."""
        standings = self.running.hub.snapshot.standings.values()
        missing = [standing for standing in standings if standing.state not in ("ready", "disabled")]
        return {str(standing.server): standing.reason or f"it is {standing.state}" for standing in missing}

    def notes(self) -> dict[str, tuple[str, ...]]:
        """What was left out of the servers' lists, and why."""
        standings = self.running.hub.snapshot.standings.values()
        return {str(standing.server): standing.notes for standing in standings if standing.notes}

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
            tables[self._plan.surface] = self.running.hub.snapshot.view(UNRESTRICTED, self._plan.surface).routes
            if self.is_attached:
                tables[EVERYTHING] = self._own_functions()
            self._catalog = Catalog(tables, self.failures())
        assert self._catalog is not None
        return self._catalog

    def _own_functions(self) -> dict[str, Route]:
        """Functions of this program, beside the tools of a hub elsewhere, which come first where both have the name."""
        routes = self.running.hub.snapshot.view(UNRESTRICTED, EVERYTHING).routes
        return {name: route for name, route in routes.items() if route.feature.server != HUB}

    def features(self, kind: Literal["prompts", "resources"]) -> list[Route]:
        """Prompts or resources, by the names that they go by here."""
        view = self.running.hub.snapshot.view(UNRESTRICTED, self._plan.surface)
        return list((view.prompts if kind == "prompts" else view.resources).values())

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
