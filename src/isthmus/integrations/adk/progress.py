"""What a tool says while it runs, as partial events of the runner.

A plain `BaseTool` has no events of its own: it returns one answer. So the execution runs as a node under the tool's
context, as ADK's own generator functions do, and each piece of progress is a partial event of that node: the runner's
consumer has it at once, and neither the session nor the model ever sees it. Called by `HubTool`.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from google.adk.events.event import Event
from google.adk.tools.tool_context import ToolContext
from google.adk.workflow import BaseNode
from google.genai import types

from isthmus.library.contracts import ToolStreamChunk

SAID_OF_PROGRESS = {"progress": None, "total": None, "message": None}
"""What there is to read of progress, whatever a server leaves out."""

PROGRESS_KEY = "tool_progress"
LOG_KEY = "tool_log"
"""Where in an event's `custom_metadata` it stands."""


def can_show(tool_context: ToolContext) -> bool:
    """Whether there is a runner that takes events while a tool runs.

    An agent run by hand has none, and in a live session ADK gives its own generators another way.
    """
    invocation = getattr(tool_context, "_invocation_context", None)
    is_live = getattr(invocation, "live_request_queue", None) is not None
    return getattr(invocation, "_event_queue", None) is not None and not is_live


async def show(events: AsyncIterator[Event], tool_name: str, tool_context: ToolContext) -> None:
    """Give these to the runner, as they come."""
    call_id = tool_context.function_call_id
    # The consumer knows the agent, and not that a tool is a node.
    tool_context.event_author = tool_context.agent_name
    node = _Events(name=_identifier(tool_name), events=events)
    # A number alone would be taken for one of the runner's own.
    await tool_context.run_node(node, run_id=f"call_{call_id}" if call_id else None)


class _Events(BaseNode):
    """A node that only has something to say; what comes of it is nobody's output."""

    rerun_on_resume: bool = True
    events: Any

    async def _run_impl(self, *, ctx: Any, node_input: Any) -> AsyncGenerator[Event, None]:
        async for event in self.events:
            yield event


def event_of(chunk: ToolStreamChunk, call_id: str | None) -> Event | None:
    """A partial event, if this is something that a consumer may want to know before the end."""
    if chunk.chunk_type not in ("progress", "log") or not isinstance(chunk.content, dict):
        return None
    if chunk.chunk_type == "progress":
        key, text, said = PROGRESS_KEY, _progress_text(chunk.content), {**SAID_OF_PROGRESS, **chunk.content}
    else:
        key, text, said = LOG_KEY, _log_text(chunk.content), chunk.content
    about = {"tool_name": chunk.tool_name, "function_call_id": call_id, "sequence_id": chunk.sequence_id}
    return Event(
        partial=True,
        # A thought: shown by who shows these, and not part of the answer for who joins the text of all events.
        content=types.Content(role="model", parts=[types.Part(text=text, thought=True)]),
        custom_metadata={key: {**about, **said}},
        timestamp=chunk.timestamp.timestamp(),
    )


def _progress_text(content: dict[str, Any]) -> str:
    done, total, message = content.get("progress"), content.get("total"), content.get("message")
    share = f"{done:g}" if isinstance(done, int | float) else "…"
    if isinstance(total, int | float):
        share += f"/{total:g}"
    return f"{share} {message}" if message else share


def _log_text(content: dict[str, Any]) -> str:
    return f"[{content.get('level')}] {content.get('data')}"


def _identifier(name: str) -> str:
    legal = re.sub(r"[^A-Za-z0-9_]", "_", name)
    return legal if legal.isidentifier() else f"_{legal}"
