"""A google-adk agent with the tools of an MCP server, in two ways. Runs offline: the model is a script.

    pip install '.[adk]'
    python examples/library/adk_agent.py

First an agent of your own with `HubToolset` among its tools; then a whole task, from the names that a user types to
the response. With a real model, say `model="gemini-2.5-flash"` instead of `Script(...)`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import InMemoryRunner
from google.genai import types

from isthmus.integrations.adk import AdkDomainAgent, HubToolset
from isthmus.library import AgentConfig, AgentRequest, TaskEngine, ToolService, UserContext, UserPermissions

WORKSHOP = Path(__file__).resolve().parents[1] / "workshop_server.py"
CONFIG = {
    "enable_mcp": True,
    "mcp_servers": [{"name": "workshop", "transport": "stdio", "command": sys.executable, "args": [str(WORKSHOP)]}],
}


class Script(BaseLlm):
    """A model that calls one function and then repeats what it answered."""

    model: str = "script"
    function: str
    arguments: dict[str, Any]

    async def generate_content_async(
        self,
        llm_request: LlmRequest,
        stream: bool = False,  # noqa: FBT001, FBT002 - ADK's signature
    ) -> AsyncGenerator[LlmResponse, None]:
        """Say the next thing."""
        answered = llm_request.contents[-1].parts[-1].function_response
        if answered is None:
            part = types.Part(function_call=types.FunctionCall(name=self.function, args=self.arguments))
        else:
            part = types.Part(text=str(answered.response.get("result", answered.response.get("error"))))
        used = types.GenerateContentResponseUsageMetadata(prompt_token_count=0, candidates_token_count=0)
        yield LlmResponse(content=types.Content(role="model", parts=[part]), usage_metadata=used)


async def run_an_agent_of_your_own(service: ToolService) -> None:
    """Everything that the hub has is a tool of the agent's, and what a tool says while it runs is seen."""
    model = Script(function="mcp_workshop_survey", arguments={"topic": "tides"})
    agent = LlmAgent(name="surveyor", model=model, tools=[HubToolset(service)])
    runner = InMemoryRunner(agent=agent, app_name="example")
    session = await runner.session_service.create_session(app_name="example", user_id="ann")
    question = types.Content(role="user", parts=[types.Part(text="Where are tides mentioned?")])
    async for event in runner.run_async(user_id="ann", session_id=session.id, new_message=question):
        if told := (event.custom_metadata or {}).get("tool_progress"):
            print("  meanwhile:", told["message"])
        elif event.is_final_response():
            print("  answer:   ", event.content.parts[0].text)
    await runner.close()


async def run_a_task(service: ToolService) -> None:
    """Names are resolved, what the user may not use is left out, and the agent gets the rest."""
    user = UserContext(user_id="ann", permissions=UserPermissions(permissions=["workshop.measure"]))
    task = await TaskEngine(service).create_task_request(
        tool_names=["measure", "workshop.publish"], description="How long is this?", user_context=user, session_id="s1"
    )
    print("  tools:    ", [tool.name for tool in task.available_tools], "denied:", task.metadata["denied_tools"])
    model = Script(function="mcp_workshop_measure", arguments={"text": "low tide, high tide"})
    config = AgentConfig(model=model, system_prompt="Be brief.")
    agent = AdkDomainAgent("measurer", config, {"tool_service": service})
    response = await agent.execute(AgentRequest(task_request=task))
    print("  response: ", response.status, response.text)


async def main() -> None:
    """One service for both."""
    service = ToolService()
    await service.initialize(CONFIG)
    try:
        print("an agent of your own")
        await run_an_agent_of_your_own(service)
        print("a task")
        await run_a_task(service)
    finally:
        await service.shutdown()


if __name__ == "__main__":
    asyncio.run(main())
