"""From tool names to tools: `ToolResolver`, task requests, and the default service of the process.

The catalog says what one name means (`library.catalog`). Here whole lists of names are looked up in one catalog, so
that all results are of the same moment. Called by programs and by integrations.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypedDict, Unpack
from weakref import ref

from isthmus.library.catalog import Catalog, ToolEntry, check_name
from isthmus.library.errors import (
    ServiceClosedError,
    ToolDeniedError,
    ToolError,
    ToolNotFoundError,
    UnresolvedToolsError,
)
from isthmus.library.public_types import (
    AgentConfig,
    ExecutionContext,
    SessionContext,
    TaskRequest,
    UniversalTool,
    UserContext,
)


class HasCatalog(Protocol):
    """The part of a service that resolving names needs."""

    async def catalog(self) -> Catalog:
        """Its current tools."""


_services: dict[tuple[int, int], ref[HasCatalog]] = {}
"""Initialized services, by process and identity. Each access is one operation: a lock could stay locked in a fork."""


def register_service(service: HasCatalog) -> None:
    """Add an initialized service."""
    _services[os.getpid(), id(service)] = ref(service)


def unregister_service(service: HasCatalog) -> None:
    """Remove a service that was shut down, or that belongs to another object."""
    _services.pop((os.getpid(), id(service)), None)


def default_service() -> HasCatalog:
    """The only initialized service of this process.

    Raises:
        ServiceClosedError: no service is open, or several are.
    """
    held = [service() for (process, _), service in list(_services.items()) if process == os.getpid()]
    services = [service for service in held if service is not None]
    if len(services) == 1:
        return services[0]
    if not services:
        raise ServiceClosedError("This process has no initialized ToolService: initialize one, or pass tool_service=.")
    raise ServiceClosedError(f"This process has {len(services)} services: pass the one to use as tool_service=.")


@dataclass(slots=True)
class Resolution:
    """The tools of a list of names, each once and in order, and the names without a tool."""

    found: dict[str, ToolEntry] = field(default_factory=dict)
    """By full name."""
    denied: dict[str, ToolDeniedError] = field(default_factory=dict)
    """By the given name."""
    unknown: dict[str, ToolError] = field(default_factory=dict)
    """Names of no tool or of several, by the given name."""

    @property
    def tools(self) -> list[UniversalTool]:
        """The tools that were found."""
        return [entry.tool for entry in self.found.values()]

    def check(self) -> None:
        """Raise the error of one name, or an `UnresolvedToolsError` for several."""
        problems: dict[str, ToolError] = {**self.unknown, **self.denied}
        if len(problems) > 1:
            raise UnresolvedToolsError(problems)
        for problem in problems.values():
            raise problem


def resolve_all(catalog: Catalog, names: Iterable[str], user: UserContext | None) -> Resolution:
    """Look up every name; errors are collected, so that all of them can be reported at once."""
    resolution = Resolution()
    for name in name_list(names):
        try:
            entry = catalog.resolve_for(user, name)
        except ToolDeniedError as error:
            resolution.denied[name] = error
        except ToolError as error:
            resolution.unknown[name] = error
        else:
            resolution.found[entry.full_name] = entry
    return resolution


def name_list(names: Iterable[str]) -> list[str]:
    """Names as a list; a single string is a list of one.

    Raises:
        TypeError: it is not a list of strings.
    """
    if not isinstance(names, Iterable):
        raise TypeError(f"tool_names must be a list of names, not {type(names).__name__}")
    found = [names] if isinstance(names, str) else list(names)
    for name in found:
        check_name(name)
    return found


class ToolResolver:
    """Finds tools of one service by name."""

    def __init__(self, tool_service: HasCatalog) -> None:
        self._service = tool_service

    async def resolve_tools(
        self, tool_names: Iterable[str], user_context: UserContext | None = None
    ) -> list[UniversalTool]:
        """Find tools, in the order of the names; a tool that is named twice, in any form, is returned once.

        Raises:
            ToolNotFoundError: no tool has this name; similar names are suggested.
            AmbiguousToolError: several tools have it.
            ToolDeniedError: the user may not use it.
            UnresolvedToolsError: several names failed; `problems` has the error of each.
        """
        resolution = resolve_all(await self._service.catalog(), tool_names, user_context)
        resolution.check()
        return resolution.tools

    async def resolve_tool(self, tool_name: str, user_context: UserContext | None = None) -> UniversalTool:
        """Find one tool; raises the same errors."""
        (tool,) = await self.resolve_tools([tool_name], user_context)
        return tool


DENIED = "denied_tools"
"""The member of a task's metadata with the full names of tools that its user may not use.

An ambiguous name is listed as given if the user may use none of its tools."""

MISSING = "missing_tools"
"""The member of a task's metadata with the names of no tool, if `report_missing` was set."""


class TaskFields(TypedDict, total=False):
    """Fields of a task besides its tools; a missing field, or None, is the default of `TaskRequest`."""

    task_id: str | None
    task_type: str | None
    description: str | None
    user_context: UserContext | None
    session_context: SessionContext | None
    execution_context: ExecutionContext | None
    messages: list[Any] | None
    available_knowledge: list[Any] | None
    execution_config: dict[str, Any] | None
    metadata: dict[str, Any] | None
    session_id: str | None
    agent_config: AgentConfig | None
    agent_id: str | None


class TaskEngine:
    """Makes task requests with the tools of one service; `agent_config` is the default for tasks without one."""

    def __init__(self, tool_service: HasCatalog, agent_config: AgentConfig | None = None) -> None:
        self._service = tool_service
        self._agent_config = agent_config

    async def create_task_request(
        self, *, tool_names: Iterable[str], report_missing: bool = False, **task: Unpack[TaskFields]
    ) -> TaskRequest:
        """Make a task with these tools, followed by the tools that its agent always has.

        Tools that the user may not use are left out and listed in `metadata["denied_tools"]`. With `report_missing`,
        unknown names are left out as well and listed in `metadata["missing_tools"]`.

        Raises:
            UnresolvedToolsError: some names are unknown or ambiguous; `problems` has the error of each.
            TypeError: a field is unknown or has the wrong type.
        """
        given: dict[str, Any] = {name: value for name, value in task.items() if value is not None}
        if "available_tools" in given:
            raise TypeError("give the names of tools as tool_names; available_tools is computed from them")
        request = TaskRequest(**{"agent_config": self._agent_config, **given})
        if not isinstance(request.agent_config, AgentConfig | None):
            raise TypeError(f"agent_config must be an AgentConfig, not {type(request.agent_config).__name__}")
        request.metadata = dict(request.metadata)  # the caller may reuse it for the next task
        defaults = request.agent_config.available_tools if request.agent_config else []
        names = [*name_list(tool_names), *name_list(defaults or [])]
        resolution = resolve_all(await self._service.catalog(), names, request.user_context)
        missing = [name for name, error in resolution.unknown.items() if isinstance(error, ToolNotFoundError)]
        if resolution.unknown.keys() - (missing if report_missing else ()):
            raise UnresolvedToolsError(resolution.unknown)
        if missing:
            request.metadata[MISSING] = missing
        request.available_tools = resolution.tools
        if resolution.denied:
            request.metadata[DENIED] = list(dict.fromkeys(denied.name for denied in resolution.denied.values()))
        return request


async def create_task_request(
    *,
    tool_names: Iterable[str],
    tool_service: HasCatalog | None = None,
    report_missing: bool = False,
    **task: Unpack[TaskFields],
) -> TaskRequest:
    """`TaskEngine.create_task_request` without an engine; `tool_service` defaults to the only one of the process.

    Raises:
        UnresolvedToolsError: as above.
        ServiceClosedError: `tool_service` is missing, and the process has no service or several.
    """
    engine = TaskEngine(tool_service or default_service())
    return await engine.create_task_request(tool_names=tool_names, report_missing=report_missing, **task)
