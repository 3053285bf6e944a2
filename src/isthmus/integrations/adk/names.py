"""What language models call a hub's tools in google-adk. Called by `HubTool`, and where a name is no tool's."""

from __future__ import annotations

import hashlib
import re

from isthmus.core.catalog.names import LLM_LENGTH_MAX
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


def room_beside(prefix: str | None) -> int:
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
