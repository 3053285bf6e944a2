"""Function names of a hub's tools in google-adk, and replies to calls of names that the agent does not have.

ADK finds no tool for such a name, and calls the agent's error callbacks for a reply to the model. Used by `HubTool`,
`HubToolset` and `AdkDomainAgent`.
"""

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
from isthmus.library.agent_tools import llm_name_of
from isthmus.library.catalog import Catalog
from isthmus.library.errors import LibraryError, ToolDeniedError, ToolError, ToolNotFoundError
from isthmus.library.outcomes_to_results import refused_result, unavailable_result
from isthmus.library.public_types import ToolRequest, ToolResult, UniversalTool, UserContext
from isthmus.library.service import ToolService
from isthmus.model.location_redaction import without_locations

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
"""ADK's own function names: a tool with one of them would replace it."""


PREFIX_LENGTH_MAX = 32
"""The longest prefix of a toolset; it leaves half of the name for the tool."""

_PREFIX = re.compile(rf"[A-Za-z0-9_-]{{1,{PREFIX_LENGTH_MAX}}}")
_DIGITS = 6


def function_name(tool: UniversalTool, room: int = LLM_LENGTH_MAX) -> str:
    """The function name of a tool: its unique `llm_name`, changed if ADK reserves it.

    A name longer than `room` is cut and ends in hex digits of a hash of the full name.
    """
    name = re.sub(r"[^A-Za-z0-9_-]", "_", llm_name_of(tool))
    name = f"mcp_{name}" if name in RESERVED else name
    if len(name) <= room:
        return name
    digest = hashlib.blake2b(tool.name.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{name[: room - _DIGITS - 1]}_{digest[:_DIGITS]}"


def name_room(prefix: str | None) -> int:
    """The longest function name that fits behind a prefix.

    Raises:
        ValueError: the prefix is invalid.
    """
    if not prefix:
        return LLM_LENGTH_MAX
    if not _PREFIX.fullmatch(prefix):
        raise ValueError(
            f"tool_name_prefix must be at most {PREFIX_LENGTH_MAX} of A-Z, a-z, 0-9, _ and -, not {prefix!r}: "
            "providers accept no other function names"
        )
    return LLM_LENGTH_MAX - len(prefix) - 1


def agent_of(context: ToolContext) -> LlmAgent | None:
    """The agent of a call, if it is an `LlmAgent`."""
    agent = getattr(getattr(context, "_invocation_context", None), "agent", None)
    return agent if isinstance(agent, LlmAgent) else None


def handle_unknown_tools(agent: LlmAgent, explain: Callable[..., Any]) -> None:
    """Add `explain` to the agent's error callbacks, after its own."""
    callbacks = agent.canonical_on_tool_error_callbacks
    if explain not in callbacks:
        agent.on_tool_error_callback = [*callbacks, explain]


def is_unknown_tool(tool: BaseTool) -> bool:
    """Whether a failed tool is ADK's placeholder for an unknown name."""
    return type(tool) is BaseTool


@dataclass(frozen=True, slots=True)
class OfferedTools:
    """The tools of one service that the model has, and why the called one is not among them."""

    names: list[str]
    refusal: ToolError | None = None
    """Why the called tool is not among them, if more is known than that."""
    problem: str | None = None
    """Why the tools cannot be listed."""
    service: ToolService | None = None
    """The service whose audit log records the refusal; None if the user is unknown."""
    user: UserContext | None = None

    @property
    def priority(self) -> int:
        """Which of several explanations is used: the one with the lowest number."""
        if self.refusal is not None:
            return 0 if isinstance(self.refusal, ToolDeniedError) else 1
        return 3 if self.problem is None else 2


class OffersTools(ABC):
    """A toolset or single tool of a hub, which can explain calls of unknown names."""

    @abstractmethod
    async def offer(self, called: str, context: ReadonlyContext) -> OfferedTools:
        """The tools that the model has from here, and why the called one is not among them."""


async def explain_unknown_tool(
    tool: BaseTool, args: Mapping[str, Any], tool_context: ToolContext, asked: OffersTools
) -> dict[str, Any] | None:
    """The reply to a call of an unknown name; None if a known tool failed.

    ADK uses the first reply, so it covers all hubs of the agent.
    """
    if not is_unknown_tool(tool):
        return None
    agent = agent_of(tool_context)
    offering = [tool for tool in agent.tools if isinstance(tool, OffersTools)] if agent is not None else []
    if asked not in offering:
        offering.insert(0, asked)
    offers = [await each.offer(tool.name, tool_context) for each in offering]
    return tool_response(unknown_tool_result(tool.name, offers, args, tool_context.session.id))


def unknown_tool_result(
    called: str, offers: Sequence[OfferedTools], args: Mapping[str, Any], session: str
) -> ToolResult:
    """The result of a call of an unknown name. If any hub denies it, it is denied, and recorded in that audit log."""
    best = min(offers, key=lambda each: each.priority)
    known = [name for offer in offers for name in offer.names]
    request = ToolRequest(called)
    if best.refusal is not None:
        result = refused_result(request, best.refusal)
    elif best.problem is not None:
        result = unavailable_result(request, f"There is no tool {called!r}: {best.problem}")
    elif called in known:
        result = refused_result(request, ToolNotFoundError(called, hint="It is new: call it again."))
    else:
        result = refused_result(request, ToolNotFoundError(called, suggestions(called, known)))
    return result if best.service is None else best.service.noted(result, args, best.user, session)


def listing_problem(error: Exception) -> str:
    """Why tools cannot be listed, for the model. Messages of foreign code, such as a user provider, are left out."""
    return without_locations(str(error)) if isinstance(error, LibraryError) else type(error).__name__


def refusal_of(name: str, catalog: Catalog, user: UserContext | None, room: int = LLM_LENGTH_MAX) -> ToolError | None:
    """Why the model does not have the tool with this function name; None if unknown, or if it could have it."""
    for entry in catalog.entries.values():
        if entry.llm_name == name or function_name(entry.tool, room) == name:
            is_denied = not catalog.may_use(user, entry)
            return ToolDeniedError(entry.full_name, user.user_id if user else None) if is_denied else None
    return catalog.unreachable(name, user)
