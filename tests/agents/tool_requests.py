"""The tool requests of the agents' clients and their servers, shared by the tests and every client.

Clients run in environments with different SDKs, so this knows none of them.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Awaitable
from typing import Any

SERVERS = ("stdio", "sse", "stateful", "stateless", "rpc")
"""One server of each kind, by the names that the hub knows them by."""
TALKING = SERVERS[:4]
"""Those that speak MCP, and report what they do."""
ASKING = SERVERS[:3]
"""Servers with a session: they can ask questions and receive cancellations."""

QUICK = "quick"
"""One more, that answers as fast as a program can."""

EXACT = {
    "z": 9223372036854775807,
    "a": -9223372036854775808,
    "m": [1, 1.0, 1234567890123456789, None, True],
    "é": {"b": 0.1, "a": "two\nlines"},
}
"""A value that shows whether numbers and the order of members survive."""

STEPS = 3


def fresh(name: str) -> str:
    """An id that nobody has used."""
    return f"{name}-{uuid.uuid4().hex}"


def tool_request(server: str, tool: str, **arguments: Any) -> dict[str, Any]:
    """The instruction to run a tool, in the hub's own words."""
    return {"tool": f"{server}.{tool}", "arguments": arguments}


def execution(server: str, tool: str, **arguments: Any) -> dict[str, Any]:
    """The same in the words of AgentVault."""
    return {"target_mcp_server_id": server, "tool_name": tool, "arguments": arguments}


def holding(server: str, token: str) -> dict[str, Any]:
    """The instruction to run what does not end by itself."""
    return tool_request(server, "slow", seconds=600) if server == "rpc" else tool_request(server, "hold", token=token)


def failing(server: str) -> dict[str, Any]:
    """The instruction to run what fails."""
    return tool_request(server, "refuse" if server == "rpc" else "fail")


def report(server: str, step: str, **found: Any) -> None:
    """Tell the test what came of a step."""
    print(json.dumps({"server": server, "step": step, **found}), flush=True)


async def blamed(asking: Awaitable[object]) -> dict[str, Any]:
    """What an SDK raises, whatever it is; what it answers, if it raises nothing."""
    try:
        return {"answer": await asking}
    except Exception as error:  # noqa: BLE001 (whatever is raised is what is wanted)
        return blame(error)


def blame(error: Exception) -> dict[str, Any]:
    """What an exception says to a program."""
    inner = getattr(error, "error", None)
    code = getattr(inner, "code", None) or getattr(error, "status_code", None)
    return {"type": type(error).__name__, "code": code, "message": str(error)[:500]}
