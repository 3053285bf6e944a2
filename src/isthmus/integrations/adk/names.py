"""What language models call a hub's tools in google-adk. Called by `HubTool`, and where a name is no tool's."""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.agents.readonly_context import ReadonlyContext
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext

from isthmus.core.catalog.names import LLM_LENGTH_MAX, suggestions
from isthmus.integrations.adk.results import tool_response
from isthmus.library.catalog import Catalog
from isthmus.library.contracts import ToolRequest, ToolResult, UniversalTool, UserContext
from isthmus.library.errors import LibraryError, ToolDeniedError, ToolError, ToolNotFoundError
from isthmus.library.integration_base import llm_name_of
from isthmus.library.results import refused_result, unavailable_result
from isthmus.library.service import ToolService
from isthmus.model.locations import without_locations

RESERVED = frozenset(
    {
        "adk_request_confirmation",
        "adk_request_credential",
        "adk_request_input",
        "finish_task",
        "set_model_response",
        "stop_streaming",
        "transfer_to_agent",
    }
)
"""Names by which ADK calls itself: a tool that had one would be called in its place."""


PREFIX_LENGTH_MAX = 32
"""Of a toolset's prefix: half of a name is left for the tool's own."""

_PREFIX = re.compile(rf"[A-Za-z0-9_-]{{1,{PREFIX_LENGTH_MAX}}}")
_DIGITS = 6


def function_name(tool: UniversalTool, room: int = LLM_LENGTH_MAX) -> str:
    """What the model calls it: its `llm_name`, which no other tool of the hub has, and which is none of ADK's own.

    One that is longer than there is room for is cut, and ends in hex digits of the whole.
    """
    name = re.sub(r"[^A-Za-z0-9_-]", "_", llm_name_of(tool))
    name = f"mcp_{name}" if name in RESERVED else name
    if len(name) <= room:
        return name
    digest = hashlib.blake2b(tool.name.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{name[: room - _DIGITS - 1]}_{digest[:_DIGITS]}"


def name_room(prefix: str | None) -> int:
    """How long names may be to which ADK adds a prefix.

    Raises:
        ValueError: no provider would take a name that begins like this.
    """
    if not prefix:
        return LLM_LENGTH_MAX
    if not _PREFIX.fullmatch(prefix):
        raise ValueError(
            f"tool_name_prefix must be at most {PREFIX_LENGTH_MAX} of A-Z, a-z, 0-9, _ and -, not {prefix!r}: it "
            "begins the names that language models are told"
        )
    return LLM_LENGTH_MAX - len(prefix) - 1


def agent_of(context: ToolContext) -> LlmAgent | None:
    """Whose tools are meant."""
    agent = getattr(getattr(context, "_invocation_context", None), "agent", None)
    return agent if isinstance(agent, LlmAgent) else None


def handle_unknown_tools(agent: LlmAgent, explain: Callable[..., Any]) -> None:
    """See that the agent asks about names that it does not have; its own callbacks are asked first."""
    callbacks = agent.canonical_on_tool_error_callbacks
    if explain not in callbacks:
        agent.on_tool_error_callback = [*callbacks, explain]


def is_unknown_tool(tool: BaseTool) -> bool:
    """Whether a tool that failed is only the name of one: ADK stands a bare one in for it."""
    return type(tool) is BaseTool


@dataclass(frozen=True, slots=True)
class OfferedTools:
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


class OffersTools(ABC):
    """A toolset, or a tool by itself; of a hub, whatever else other tools may offer."""

    @abstractmethod
    async def offer(self, called: str, context: ReadonlyContext) -> OfferedTools:
        """What the model has of this, and why what it called is not among it."""


async def explain_unknown_tool(
    tool: BaseTool, args: Mapping[str, Any], tool_context: ToolContext, asked: OffersTools
) -> dict[str, Any] | None:
    """What the model is told of a name; None if it is a tool's, which failed.

    ADK takes the first answer: it is given for all that the agent has of any hub.
    """
    if not is_unknown_tool(tool):
        return None
    agent = agent_of(tool_context)
    beside = [each for each in agent.tools if isinstance(each, OffersTools)] if agent is not None else []
    everybody = beside if asked in beside else [asked, *beside]
    offers = [await each.offer(tool.name, tool_context) for each in everybody]
    return tool_response(unknown_tool_result(tool.name, offers, args, tool_context.session.id))


def unknown_tool_result(
    called: str, offers: Sequence[OfferedTools], args: Mapping[str, Any], session: str
) -> ToolResult:
    """How such a call ends: one that is denied anywhere is denied. It is in the audit log of whoever says so."""
    heard = min(offers, key=lambda each: each.weight)
    result = _ending(called, heard, [name for offer in offers for name in offer.names])
    return result if heard.service is None else heard.service.noted(result, args, heard.user, session)


def _ending(called: str, heard: OfferedTools, known: list[str]) -> ToolResult:
    request = ToolRequest(called)
    if heard.refusal is not None:
        return refused_result(request, heard.refusal)
    if heard.trouble is not None:
        return unavailable_result(request, f"There is no tool {called!r}: {heard.trouble}")
    if called in known:
        return refused_result(request, ToolNotFoundError(called, hint="It has come since: call it again."))
    return refused_result(request, ToolNotFoundError(called, suggestions(called, known)))


def listing_problem(error: Exception) -> str:
    """What the model is told where no list can be had; foreign words, such as a provider of users has, stay here."""
    return without_locations(str(error)) if isinstance(error, LibraryError) else type(error).__name__


def refusal_of(name: str, catalog: Catalog, user: UserContext | None, room: int = LLM_LENGTH_MAX) -> ToolError | None:
    """Why a tool that has this name for language models is not there; None if it might be, or if there is none."""
    for entry in catalog.entries.values():
        if entry.llm_name == name or function_name(entry.tool, room) == name:
            is_denied = not catalog.may_use(user, entry)
            return ToolDeniedError(entry.full_name, user.user_id if user else None) if is_denied else None
    return catalog.unreachable(name, user)
