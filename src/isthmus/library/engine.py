"""The hub inside a `ToolService`: its current tools, its failures, and its logging.

Runs on the loop thread; only the catalog may be read by other threads. Made by the service.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import structlog

from isthmus.app.hub import RunningHub
from isthmus.config.findings import ConfigError
from isthmus.core.catalog.pins import WITHHOLDING
from isthmus.core.catalog.view import Route
from isthmus.library.catalog import Catalog, resolve_prompt
from isthmus.library.errors import ToolError
from isthmus.library.outcomes_to_results import fault_of
from isthmus.library.permissions import UNRESTRICTED
from isthmus.library.public_types import ToolResult, UserContext
from isthmus.library.questions import Questions
from isthmus.library.server_config import REMOTE_HUB, EnginePlan, invalid_config
from isthmus.model.calls import EVERYTHING, Call, Surface
from isthmus.model.fault_table import UnknownTool
from isthmus.model.names import ServerName
from isthmus.model.stderr_summary import telling_line
from isthmus.storage.memory import MemoryJournal
from isthmus.upstream.python.registry import REGISTRY

if TYPE_CHECKING:
    from isthmus.app.audit import AuditLog
    from isthmus.app.definition_pins import DefinitionPins


log = structlog.get_logger(__name__)

FRONTEND = "library"
"""The name of this hub, and of its frontend, in the audit log."""


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
        raise invalid_config(error, "the configuration") from None
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
        self._pins: DefinitionPins | None = None
        settings = plan.configuration
        if WITHHOLDING & {settings.hub.pin, *(server.pin for server in settings.servers)}:
            from isthmus.app.definition_pins import DefinitionPins  # noqa: PLC0415 - needs SQLite

            try:
                self._pins = DefinitionPins(settings, is_lasting=False)
            except ConfigError as error:
                raise invalid_config(error, "the configuration") from None
        self._audit_log = audit_log
        audit = None if audit_log is None else audit_log.audit
        try:
            self.running = RunningHub(
                plan.configuration, os.environ, journal, client_caps=client_caps, pins=self._pins, audit=audit
            )
        except ConfigError as error:
            raise invalid_config(error, "the configuration") from None
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
        """Write a call that was refused outside the hub to the audit log, with its tool if the name is right."""
        if self._audit_log is None:
            return
        fault = fault_of(refusal)
        server: ServerName | None = None
        if not isinstance(fault, UnknownTool):
            namespace: object = refusal.tool_namespace
            with suppress(ToolError, TypeError):  # TypeError: the user is not a UserContext
                entry = self.catalog().resolve_for(
                    user, refusal.tool_name, namespace if isinstance(namespace, str) else None
                )
                server, call = entry.server, msgspec.structs.replace(call, name=entry.exposed)
        self._audit_log.audit.add((time.time(), call, server, fault, 0.0, False, ""))

    async def wait_connected(self) -> None:
        """Wait until each server has connected or failed."""
        await self.running.hub.wait_connected(EVERYTHING)

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
            problems = [str(warning) for warning in configuration.warnings if str(name) in warning.path.split(".")[1:2]]
            failures[str(name)] = "; ".join(problems) or "its entry is invalid: see the log"
        failures |= self._plan.failures
        for status in self.running.hub.snapshot.server_statuses.values():
            if status.state not in ("ready", "disabled"):
                line = telling_line(status.detail or "")
                why = status.reason or f"it is {status.state}"
                failures[str(status.server)] = f"{why}; its last output: {line}" if line else why
        return failures

    def remote_hub_problem(self) -> str | None:
        """Why the remote hub is not connected; None if it is, or if the hub is local."""
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
    def current_catalog(self) -> Catalog | None:
        """The catalog, or None if it is outdated. Any thread may read it."""
        # A function registered a moment ago reaches the hub on its loop; `catalog` there includes it.
        return self._catalog if self._registered == REGISTRY.version else None

    def catalog(self) -> Catalog:
        """The current tools."""
        if self.current_catalog is None:
            self._registered = self.running.functions.version
            tables: dict[Surface, Mapping[str, Route]] = {}
            view = self.running.hub.snapshot.view(UNRESTRICTED, self._plan.surface)
            tables[self._plan.surface] = {**view.routes, **view.virtual}
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
        """The full name of a prompt; see `catalog.resolve_prompt`."""
        return resolve_prompt(name, [route.exposed for route in self.features("prompts")])

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

    def as_record(logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
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

    structlog.configure(processors=[as_record, *known["processors"]], logger_factory=factory)
