"""Tasks for agents, made of the names of tools that people type.

Called by programs before they hand a task to an agent. Who may not use a tool gets the task without it, and is told;
a name that is no tool's is a mistake, and all mistakes are told at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypedDict, Unpack

from isthmus.library.contracts import AgentConfig, ExecutionContext, SessionContext, TaskRequest, UserContext
from isthmus.library.errors import ToolNotFoundError, UnresolvedToolsError
from isthmus.library.resolver import listed, resolve_all
from isthmus.library.running import HasCatalog, only_service

DENIED = "denied_tools"
"""The member of a task's metadata that has the full names of tools which its user may not use.

A name that several tools have, none of them the user's to use, is there as it was given."""

MISSING = "missing_tools"
"""The member of a task's metadata that has names which no tool has, as they were given, if that was asked for."""


class TaskFields(TypedDict, total=False):
    """What may be said of a task besides its tools; what is not said, or None, is as in `TaskRequest`."""

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
    """Makes tasks with the tools of one service; `agent_config` is that of tasks which bring none."""

    def __init__(self, tool_service: HasCatalog, agent_config: AgentConfig | None = None) -> None:
        self._service = tool_service
        self._agent_config = agent_config

    async def create_task_request(
        self, *, tool_names: Iterable[str], report_missing: bool = False, **task: Unpack[TaskFields]
    ) -> TaskRequest:
        """A task with these tools and, after them, those that its agent always has.

        Tools that the user may not use are left out, and named in `metadata["denied_tools"]`. With `report_missing`,
        names that no tool has are left out as well, and are in `metadata["missing_tools"]`.

        Raises:
            UnresolvedToolsError: names that are no tool's, or several tools'; `problems` has each.
            TypeError: something else is said of the task than it has.
        """
        given: dict[str, Any] = {name: value for name, value in task.items() if value is not None}
        if "available_tools" in given:
            raise TypeError("the tools of a task are named by tool_names; available_tools is what becomes of them")
        request = TaskRequest(**{"agent_config": self._agent_config, **given})
        if not isinstance(request.agent_config, AgentConfig | None):
            raise TypeError(f"agent_config must be an AgentConfig, not {type(request.agent_config).__name__}")
        request.metadata = dict(request.metadata)  # whoever gave it may use it for the next task too
        defaults = request.agent_config.available_tools if request.agent_config else []
        names = [*listed(tool_names), *listed(defaults or [])]
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
    """The same without an engine; without a service, with the only one that this process has initialized.

    Raises:
        UnresolvedToolsError: as above.
        ServiceClosedError: no service was given, and there is none, or several.
    """
    engine = TaskEngine(tool_service or only_service())
    return await engine.create_task_request(tool_names=tool_names, report_missing=report_missing, **task)
