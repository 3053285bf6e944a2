"""What is told of a name that the model called and the agent does not have.

ADK finds no tool by it, and asks the agent's callbacks for tools that fail what to tell the model. Called by
`HubToolset` and `AdkDomainAgent`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from google.adk.tools.base_tool import BaseTool

from isthmus.core.catalog.names import suggestions
from isthmus.integrations.adk.tool import function_name
from isthmus.library.catalog import Catalog
from isthmus.library.contracts import ToolRequest, ToolResult, UserContext
from isthmus.library.errors import ToolDeniedError, ToolError, ToolNotFoundError
from isthmus.library.results import refused


def is_miss(tool: BaseTool) -> bool:
    """Whether a tool that failed is only the name of one: ADK stands a bare one in for it."""
    return type(tool) is BaseTool


@dataclass(frozen=True, slots=True)
class Offer:
    """What the model has of one service."""

    names: list[str]
    refusal: ToolError | None = None
    """Why the tool that it called is not among them, if more is known of it than that."""


def miss(called: str, offers: Iterable[Offer]) -> ToolResult:
    """How such a call ends: one that is denied anywhere is denied."""
    offers = list(offers)
    refusals = [offer.refusal for offer in offers if offer.refusal is not None]
    refusals.sort(key=lambda each: not isinstance(each, ToolDeniedError))
    if refusals:
        return refused(ToolRequest(called), refusals[0])
    known = [name for offer in offers for name in offer.names]
    return refused(ToolRequest(called), ToolNotFoundError(called, suggestions(called, known)))


def refusal_of(name: str, catalog: Catalog, user: UserContext | None) -> ToolError | None:
    """Why a tool that has this name for language models is not there; None if it might be, or if there is none."""
    for entry in catalog.entries.values():
        if entry.llm_name == name or function_name(entry.tool) == name:
            is_denied = not catalog.may_use(user, entry)
            return ToolDeniedError(entry.full_name, user.user_id if user else None) if is_denied else None
    return catalog.unreachable(name)
