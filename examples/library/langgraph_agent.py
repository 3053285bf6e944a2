"""A LangChain agent (a LangGraph graph) with the tools of an MCP server. Runs offline: the model is a script.

    pip install '.[langchain]'
    python examples/library/langgraph_agent.py

With a real model, say `create_agent("anthropic:claude-sonnet-4-5", middleware=[hub])` instead of `script(...)`.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import MessagesState, StateGraph
from langgraph.prebuilt import tools_condition
from langgraph.types import Command

from isthmus.integrations.langchain import HubMiddleware, hub_tool_node
from isthmus.library import ToolService

WORKSHOP = Path(__file__).resolve().parents[1] / "workshop_server.py"
CONFIG = {"mcp_servers": [{"name": "workshop", "command": sys.executable, "args": [str(WORKSHOP)]}]}


class Script(GenericFakeChatModel):
    """A model that says one message after the other, whatever tools it is given."""

    def bind_tools(self, tools: Any, **kwargs: Any) -> Script:
        """See `BaseChatModel`."""
        return self


def script(tool: str, arguments: dict[str, Any], answer: str) -> Script:
    """One that calls a tool and then answers."""
    call = AIMessage("", tool_calls=[{"name": tool, "args": arguments, "id": "call_1"}])
    return Script(messages=iter([call, AIMessage(answer)]))


async def run_with_progress(service: ToolService) -> None:
    """Names as a person types them; what the tool says while it runs is in the graph's stream."""
    hub = HubMiddleware(service, ["survey", "workshop.measure"])
    agent = create_agent(script("mcp_workshop_survey", {"topic": "tides"}, "Tides are everywhere."), middleware=[hub])
    question = {"messages": [("user", "Where are tides mentioned?")]}
    async for mode, chunk in agent.astream(question, stream_mode=["custom", "updates"]):
        if mode == "updates":
            print("  step:     ", next(iter(chunk)))
        elif chunk["type"] == "progress":
            print("  meanwhile:", chunk.get("message"))


async def run_with_a_slip(service: ToolService) -> None:
    """A graph of one's own, and a name that the model made up: it is told so, and the graph goes on."""
    node = await hub_tool_node(service, ["measure"])
    model = script("mcp_workshop_mesure", {"text": "ebb"}, "I cannot.").bind_tools([*node.tools_by_name.values()])
    graph = StateGraph(MessagesState)
    graph.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
    graph.add_node("tools", node)
    graph.set_entry_point("model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    state = await graph.compile().ainvoke({"messages": [("user", "How long is this?")]})
    told = state["messages"][-2]
    print("  refused:  ", told.artifact["status"], told.content)
    print("  answer:   ", state["messages"][-1].content)


async def run_with_approval(service: ToolService) -> None:
    """Live tools, one of which runs only when somebody has agreed; the graph stops for that and goes on."""
    model = script("mcp_workshop_measure", {"text": "low tide, high tide"}, "Four words.")
    hub = HubMiddleware(service, needs_approval=["workshop.measure"])
    agent = create_agent(model, middleware=[hub], checkpointer=InMemorySaver())
    thread = {"configurable": {"thread_id": "tides"}}
    state = await agent.ainvoke({"messages": [("user", "How long is this?")]}, thread)
    print("  may it?   ", state["__interrupt__"][0].value)
    state = await agent.ainvoke(Command(resume=True), thread)
    told = state["messages"][-2]
    print("  told:     ", told.artifact["status"], told.artifact["structured_content"])
    print("  answer:   ", state["messages"][-1].content)


async def main() -> None:
    """One service for all."""
    service = ToolService()
    await service.initialize(CONFIG)
    try:
        print("progress")
        await run_with_progress(service)
        print("a slip")
        await run_with_a_slip(service)
        print("approval")
        await run_with_approval(service)
    finally:
        await service.shutdown()


if __name__ == "__main__":
    asyncio.run(main())
