"""An agent of the OpenAI Agents SDK with the tools of an MCP server. Runs offline: the model is a script.

    pip install '.[openai-agents]'
    python examples/library/openai_agents_agent.py

With a real model, leave `model=` out.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from agents import Agent, RunConfig, Runner
from agents.testing import ScriptedModel, assistant_message, function_call

from isthmus.integrations.openai_agents import HubServer, hub_run_config, hub_tools
from isthmus.library import ToolResult, ToolService, ToolStreamChunk

WORKSHOP = Path(__file__).resolve().parents[1] / "workshop_server.py"
CONFIG = {"mcp_servers": [{"name": "workshop", "command": sys.executable, "args": [str(WORKSHOP)]}]}
OFFLINE = RunConfig(tracing_disabled=True, group_id="tides")


def script(tool: str, arguments: dict[str, Any], answer: str) -> ScriptedModel:
    """A model that calls a tool and then answers."""
    return ScriptedModel([[function_call(tool, arguments, call_id="call_1")], [assistant_message(answer)]])


def tell(context: Any, chunk: ToolStreamChunk) -> None:
    """Print what a tool says while it runs."""
    if chunk.chunk_type == "progress":  # the other kind is "log"
        print("  meanwhile:", chunk.content.get("message"))


async def run_with_tools(service: ToolService) -> None:
    """Names as a person types them, and progress."""
    names = ["survey", "workshop.measure"]
    tools = await hub_tools(service, names, on_event=tell)
    model = script("mcp_workshop_survey", {"topic": "tides"}, "Tides are everywhere.")
    agent = Agent("surveyor", model=model, tools=[*tools])
    config = hub_run_config(service, names, run_config=OFFLINE)
    result = await Runner.run(agent, "Where are tides?", run_config=config)
    print("  answer:   ", result.final_output)


async def run_with_server(service: ToolService) -> None:
    """The whole hub as one server, whose tools are live."""
    model = script("mcp_workshop_measure", {"text": "low tide, high tide"}, "Four words.")
    agent = Agent("measurer", model=model, mcp_servers=[HubServer(service)])
    result = await Runner.run(agent, "How long is this?", run_config=hub_run_config(service, run_config=OFFLINE))
    (told,) = [item for item in result.new_items if item.type == "tool_call_output_item"]
    print("  told:     ", told.custom_data["status"], told.custom_data["structured_content"])
    print("  answer:   ", result.final_output)


async def run_with_a_slip(service: ToolService) -> None:
    """A name that the model made up: it is told so, and the run goes on."""

    def tell_refusal(call_id: str, result: ToolResult) -> None:
        print("  refused:  ", result.status, result.error_message)

    tools = await hub_tools(service, ["measure"])
    agent = Agent("measurer", model=script("mcp_workshop_mesure", {"text": "ebb"}, "I cannot."), tools=[*tools])
    config = hub_run_config(service, ["measure"], run_config=OFFLINE, on_refusal=tell_refusal)
    result = await Runner.run(agent, "How long is this?", run_config=config)
    print("  answer:   ", result.final_output)


async def run_with_approval(service: ToolService) -> None:
    """A tool that runs only when somebody has agreed."""
    tools = await hub_tools(service, ["measure"], needs_approval=True)
    agent = Agent("measurer", model=script("mcp_workshop_measure", {"text": "ebb"}, "One word."), tools=[*tools])
    config = hub_run_config(service, ["measure"], run_config=OFFLINE)
    result = await Runner.run(agent, "How long is this?", run_config=config)
    state = result.to_state()
    for waiting in result.interruptions:
        print("  may it?   ", waiting.name, waiting.arguments)
        state.approve(waiting)
    result = await Runner.run(agent, state, run_config=config)
    print("  answer:   ", result.final_output)


async def main() -> None:
    """One service for all."""
    service = ToolService()
    await service.initialize(CONFIG)
    try:
        print("tools")
        await run_with_tools(service)
        print("server")
        await run_with_server(service)
        print("a slip")
        await run_with_a_slip(service)
        print("approval")
        await run_with_approval(service)
    finally:
        await service.shutdown()


if __name__ == "__main__":
    asyncio.run(main())
