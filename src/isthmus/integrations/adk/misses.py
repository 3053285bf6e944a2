"""What is told of a name that the model called and the agent does not have.

ADK finds no tool by it, and asks the agent's callbacks for tools that fail what to tell the model. Called by
`HubToolset`, `AdkDomainAgent`, and a `HubTool` by itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.agents.readonly_context import ReadonlyContext
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext

from isthmus.core.catalog.names import LLM_LENGTH_MAX, suggestions
from isthmus.integrations.adk.answers import answer_of
from isthmus.integrations.adk.names import function_name
from isthmus.library.catalog import Catalog
from isthmus.library.contracts import ToolRequest, ToolResult, UserContext
from isthmus.library.errors import LibraryError, ToolDeniedError, ToolError, ToolNotFoundError
from isthmus.library.results import refused, unavailable
from isthmus.library.service import ToolService
from isthmus.model.places import without_places


def agent_of(context: ToolContext) -> LlmAgent | None:
    """Whose tools are meant."""
    agent = getattr(getattr(context, "_invocation_context", None), "agent", None)
    return agent if isinstance(agent, LlmAgent) else None


def ask_about_misses(agent: LlmAgent, explain: Callable[..., Any]) -> None:
    """See that the agent asks about names that it does not have; its own callbacks are asked first."""
    callbacks = agent.canonical_on_tool_error_callbacks
    if explain not in callbacks:
        agent.on_tool_error_callback = [*callbacks, explain]


def is_miss(tool: BaseTool) -> bool:
    """Whether a tool that failed is only the name of one: ADK stands a bare one in for it."""
    return type(tool) is BaseTool


@dataclass(frozen=True, slots=True)
class Offer:
    """What the model has of one service."""

    names: list[str]
    refusal: ToolError | None = None
    """Why the tool that it called is not among them, if more is known of it than that."""
    trouble: str | None = None
    """Why there is none, if nobody can tell what there is."""
    service: ToolService | None = None
    """Whose audit log has it that a call was refused; none, if nobody can tell whose call it is."""
    user: UserContext | None = None

    @property
    def weight(self) -> int:
        """Whose word counts: the lightest one's."""
        if self.refusal is not None:
            return 0 if isinstance(self.refusal, ToolDeniedError) else 1
        return 3 if self.trouble is None else 2


class Offering(ABC):
    """A toolset, or a tool by itself; of a hub, whatever else other tools may offer."""

    @abstractmethod
    async def offer(self, called: str, context: ReadonlyContext) -> Offer:
        """What the model has of this, and why what it called is not among it."""


async def explain_miss(
    tool: BaseTool, args: Mapping[str, Any], tool_context: ToolContext, asked: Offering
) -> dict[str, Any] | None:
    """What the model is told of a name; None if it is a tool's, which failed.

    ADK takes the first answer: it is given for all that the agent has of any hub.
    """
    if not is_miss(tool):
        return None
    agent = agent_of(tool_context)
    beside = [each for each in agent.tools if isinstance(each, Offering)] if agent is not None else []
    everybody = beside if asked in beside else [asked, *beside]
    offers = [await each.offer(tool.name, tool_context) for each in everybody]
    return answer_of(miss(tool.name, offers, args, tool_context.session.id))


def miss(called: str, offers: Sequence[Offer], args: Mapping[str, Any], session: str) -> ToolResult:
    """How such a call ends: one that is denied anywhere is denied. It is in the audit log of whoever says so."""
    heard = min(offers, key=lambda each: each.weight)
    result = _ending(called, heard, [name for offer in offers for name in offer.names])
    return result if heard.service is None else heard.service.noted(result, args, heard.user, session)


def _ending(called: str, heard: Offer, known: list[str]) -> ToolResult:
    request = ToolRequest(called)
    if heard.refusal is not None:
        return refused(request, heard.refusal)
    if heard.trouble is not None:
        return unavailable(request, f"There is no tool {called!r}: {heard.trouble}")
    if called in known:
        return refused(request, ToolNotFoundError(called, hint="It has come since: call it again."))
    return refused(request, ToolNotFoundError(called, suggestions(called, known)))


def without_list(error: Exception) -> str:
    """What the model is told where no list can be had; foreign words, such as a provider of users has, stay here."""
    return without_places(str(error)) if isinstance(error, LibraryError) else type(error).__name__


def refusal_of(name: str, catalog: Catalog, user: UserContext | None, room: int = LLM_LENGTH_MAX) -> ToolError | None:
    """Why a tool that has this name for language models is not there; None if it might be, or if there is none."""
    for entry in catalog.entries.values():
        if entry.llm_name == name or function_name(entry.tool, room) == name:
            is_denied = not catalog.may_use(user, entry)
            return ToolDeniedError(entry.full_name, user.user_id if user else None) if is_denied else None
    return catalog.unreachable(name, user)
