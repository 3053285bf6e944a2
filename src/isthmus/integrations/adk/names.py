"""What language models call a hub's tools in google-adk. Called by `HubTool`, and where a name is no tool's."""

from __future__ import annotations

import re

from isthmus.library.contracts import UniversalTool
from isthmus.library.toolbox import llm_name_of

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


def function_name(tool: UniversalTool) -> str:
    """What the model calls it: its `llm_name`, which no other tool of the hub has, and which is none of ADK's own."""
    name = re.sub(r"[^A-Za-z0-9_-]", "_", llm_name_of(tool))
    return f"mcp_{name}" if name in RESERVED else name
