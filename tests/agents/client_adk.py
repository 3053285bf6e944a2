"""The remote agent of Google's Agent Development Kit (google-adk 2.x) at every server: `client_adk WAY URL TOKEN`.

WAY is `legacy` or `extension`: how the kit turns what an agent says into its own events. No model takes part: the
remote agent is the whole application, and what the user says are instructions.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import warnings
from collections.abc import Awaitable, Callable
from typing import Any

from google.adk.agents.remote_a2a_agent import RemoteA2aAgent
from google.adk.runners import InMemoryRunner
from google.genai import types

from tests.agents.tool_requests import ASKING, EXACT, SERVERS, STEPS, TALKING, failing, report, tool_request

STEP_SECONDS = 60.0
USER = "ann"

Found = dict[str, Any]


class ServerSteps:
    """The steps at one server, each in a session of its own."""

    def __init__(self, runner: InMemoryRunner, server: str) -> None:
        self._runner = runner
        self._server = server
        self._session = ""

    async def step(self, name: str, do: Callable[[], Awaitable[Found]]) -> None:
        """Do one step and report; what goes wrong is a report too."""
        try:
            async with asyncio.timeout(STEP_SECONDS):
                session = await self._runner.session_service.create_session(app_name="agents", user_id=USER)
                self._session = session.id
                found = await do()
        except Exception as error:  # noqa: BLE001 (the test shows it, and the other steps go on)
            found = {"broken": repr(error)[:2000]}
        report(self._server, name, **found)

    async def instruct(self, instruction: Found) -> list[Found]:
        """Say an instruction; the events that come of it."""
        return await self.say(types.Part(text=json.dumps(instruction)))

    async def say(self, part: types.Part) -> list[Found]:
        """Say something in the session."""
        said = types.Content(role="user", parts=[part])
        events = self._runner.run_async(user_id=USER, session_id=self._session, new_message=said)
        return [_plain(event) async for event in events]

    async def call(self) -> Found:
        """Run a tool."""
        return {"events": await self.instruct(tool_request(self._server, "tell", value=EXACT))}

    async def count(self) -> Found:
        """Run a tool that reports."""
        return {"events": await self.instruct(tool_request(self._server, "count", steps=STEPS))}

    async def fail(self) -> Found:
        """Run a tool that fails."""
        return {"events": await self.instruct(failing(self._server))}

    async def show(self) -> Found:
        """Run a tool whose result is files."""
        return {"events": await self.instruct(tool_request(self._server, "gallery"))}

    async def answer(self) -> Found:
        """Run a tool that asks; the kit makes a call of the question, and of the user's answer its response."""
        asked = await self.instruct(tool_request(self._server, "ask"))
        [call] = [part["function_call"] for event in asked for part in event["parts"] if "function_call" in part]
        reply = types.FunctionResponse(id=call["id"], name=call["name"], response={"name": "Ann"})
        return {"asked": asked, "events": await self.say(types.Part(function_response=reply))}


def _plain(event: Any) -> Found:
    parts = event.content.parts if event.content is not None else ()
    said = [part.model_dump(mode="json", exclude_none=True, exclude={"part_metadata"}) for part in parts or ()]
    about = {key.removeprefix("a2a:"): value for key, value in (event.custom_metadata or {}).items()}
    return {"parts": said, "error": event.error_message, "task": about.get("task_id"), "partial": event.partial}


async def run_steps(runner: InMemoryRunner) -> None:
    """Every step at every server."""
    for server in SERVERS:
        server_steps = ServerSteps(runner, server)
        await server_steps.step("called", server_steps.call)
        await server_steps.step("failed", server_steps.fail)
        if server in TALKING:
            await server_steps.step("counted", server_steps.count)
            await server_steps.step("shown", server_steps.show)
        if server in ASKING:
            await server_steps.step("asked", server_steps.answer)


async def main() -> None:
    """Run every step."""
    logging.disable()
    way, url, _ = sys.argv[1:]
    card = f"{url}/.well-known/agent-card.json"
    agent = RemoteA2aAgent(name="hub", agent_card=card, use_legacy=way == "legacy")
    runner = InMemoryRunner(agent=agent, app_name="agents")
    await run_steps(runner)
    await runner.close()


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # the kit calls its own agent experimental
    asyncio.run(main())
