"""A pydantic-ai agent with the tools of an MCP server. Runs offline: the model is a script.

    pip install '.[pydantic-ai]'
    python examples/library/pydantic_ai_agent.py

With a real model, say `Agent("openai:gpt-5", ...)` instead of `Agent(script(...), ...)`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from pydantic_ai.run import AgentRunResultEvent

from isthmus.integrations.pydantic_ai import HubProgressEvent, HubResultEvent, HubToolset
from isthmus.library import ToolService, UserContext, UserPermissions

WORKSHOP = Path(__file__).resolve().parents[1] / "workshop_server.py"
CONFIG = {"mcp_servers": [{"name": "workshop", "command": sys.executable, "args": [str(WORKSHOP)]}]}


def script(tool: str, arguments: dict[str, Any], answer: str) -> FunctionModel:
    """A model that calls a tool and then answers."""

    async def say(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        print("  offered:  ", [each.name for each in info.function_tools])
        if len(messages) == 1:
            yield {0: DeltaToolCall(tool, json.dumps(arguments))}
        else:
            yield answer

    return FunctionModel(stream_function=say)


async def show(agent: Agent[Any, str], question: str, user: UserContext | None = None) -> None:
    """Run an agent and print what happens."""
    async with agent.run_stream_events(question, deps=user) as events:
        async for event in events:
            match event:
                case HubProgressEvent():
                    print("  meanwhile:", event.message)
                case HubResultEvent():
                    print("  ended:    ", event.tool, event.status)
                case AgentRunResultEvent():
                    print("  answer:   ", event.result.output)


async def main() -> None:
    """One service, two agents."""
    service = ToolService()
    await service.initialize(CONFIG)
    try:
        print("names as a person types them")
        surveyor = script("mcp_workshop_survey", {"topic": "tides"}, "Tides are everywhere.")
        await show(Agent(surveyor, toolsets=[HubToolset(service, ["survey", "echo"])]), "Where are tides?")
        print("what the run's own user may use")
        user = UserContext("ann", permissions=UserPermissions(["workshop.measure"]))
        measurer = script("mcp_workshop_measure", {"text": "low tide, high tide"}, "Four words.")
        toolset: HubToolset[Any] = HubToolset(service, user_context=lambda ctx: ctx.deps)
        await show(Agent(measurer, deps_type=UserContext, toolsets=[toolset]), "How long is this?", user)
    finally:
        await service.shutdown()


if __name__ == "__main__":
    asyncio.run(main())
