"""What is told of a name that the model called and the agent does not have.

ADK finds no tool by it, and asks the agent's callbacks for tools that fail what to tell the model. Called by
`HubToolset` and `AdkDomainAgent`.
"""

from __future__ import annotations

from collections.abc import Iterable

from google.adk.tools.base_tool import BaseTool

from isthmus.core.catalog.names import suggestions
from isthmus.integrations.adk.tool import function_name
from isthmus.library.catalog import Catalog
from isthmus.library.contracts import ToolRequest, ToolResult, UserContext
from isthmus.library.errors import ToolDeniedError, ToolNotFoundError
from isthmus.library.results import refused


def is_miss(tool: BaseTool) -> bool:
    """Whether a tool that failed is only the name of one: ADK stands a bare one in for it."""
    return type(tool) is BaseTool


def miss(
    called: str, offered: Iterable[str], catalog: Catalog | None, user: UserContext | None, prefix: str = ""
) -> ToolResult:
    """How such a call ends; `offered` are the names of the tools that the model has, which all begin with `prefix`."""
    denied = None if catalog is None else _denied(called.removeprefix(prefix), catalog, user)
    if denied is not None:
        return refused(ToolRequest(called), ToolDeniedError(denied, user.user_id if user else None))
    return refused(ToolRequest(called), ToolNotFoundError(called, suggestions(called, offered)))


def _denied(name: str, catalog: Catalog, user: UserContext | None) -> str | None:
    for entry in catalog.entries.values():
        if entry.llm_name == name or function_name(entry.tool) == name:
            return None if catalog.may_use(user, entry) else entry.full_name
    return None
