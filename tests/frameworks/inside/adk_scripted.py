"""Shared by the tests of google-adk: a model with scripted responses, and a server to call."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.events.event import Event
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import InMemoryRunner
from google.genai import types
from pydantic import Field

CHECKOUT = Path(__file__).resolve().parents[3]
SERVER = [sys.executable, "-m", "tests.frameworks.inside.adk_server"]
ENVIRONMENT = {"PYTHONPATH": os.pathsep.join([str(CHECKOUT / "src"), str(CHECKOUT)])}
APP = "tests"
USER = "ann"

Turn = str | dict[str, Any] | Callable[[LlmRequest], "str | dict[str, Any]"]
"""What the model says: text, or the calls of functions by name."""


class Scripted(BaseLlm):
    """Says one turn after the other, and keeps what it was asked."""

    model: str = "scripted"
    turns: list[Any] = Field(default_factory=list)
    requests: list[Any] = Field(default_factory=list)

    async def generate_content_async(
        self,
        llm_request: LlmRequest,
        stream: bool = False,  # noqa: FBT001, FBT002 - ADK's signature
    ) -> AsyncGenerator[LlmResponse, None]:
        """See `BaseLlm`."""
        self.requests.append(llm_request)
        turn = self.turns.pop(0)
        said = turn(llm_request) if callable(turn) else turn
        yield LlmResponse(content=types.Content(role="model", parts=_parts(said)))

    def declarations(self, request: int = -1) -> dict[str, types.FunctionDeclaration]:
        """The functions that it was offered."""
        tools = self.requests[request].config.tools or []
        return {each.name: each for tool in tools for each in tool.function_declarations or []}


def _parts(said: str | dict[str, Any]) -> list[types.Part]:
    if isinstance(said, str):
        return [types.Part(text=said)]
    return [types.Part(function_call=types.FunctionCall(name=name, args=args)) for name, args in said.items()]


def last_response(request: LlmRequest) -> dict[str, Any]:
    """The last function's result as the model receives it."""
    answered = request.contents[-1].parts[-1].function_response
    assert answered is not None
    return dict(answered.response)


def repeat_answer(request: LlmRequest) -> str:
    """A turn that says what the function said."""
    answer = last_response(request)
    return str(answer.get("result", answer.get("error")))


class Conversation:
    """One session with an agent that has these tools."""

    def __init__(self, tools: list[Any], *turns: Turn, session_id: str = "session-1") -> None:
        self.model = Scripted(turns=list(turns))
        self.runner = InMemoryRunner(agent=LlmAgent(name="helper", model=self.model, tools=tools), app_name=APP)
        self.session_id = session_id
        self._is_begun = False

    async def say(self, message: str | types.Part) -> list[Event]:
        """Say something to the agent and hear all its events."""
        return [event async for event in self.stream(message)]

    async def stream(self, message: str | types.Part) -> AsyncGenerator[Event, None]:
        """The same, as they come."""
        if not self._is_begun:
            self._is_begun = True
            await self.runner.session_service.create_session(app_name=APP, user_id=USER, session_id=self.session_id)
        part = types.Part(text=message) if isinstance(message, str) else message
        async for event in self.runner.run_async(
            user_id=USER, session_id=self.session_id, new_message=types.Content(role="user", parts=[part])
        ):
            yield event

    async def stored(self) -> list[Event]:
        """What the session keeps."""
        session = await self.runner.session_service.get_session(app_name=APP, user_id=USER, session_id=self.session_id)
        return list(session.events)


def answers(events: list[Event]) -> list[dict[str, Any]]:
    """What functions answered."""
    return [dict(each.response) for event in events if not event.partial for each in event.get_function_responses()]


def text_of(events: list[Event]) -> str:
    """What the agent said at the end."""
    return "".join(part.text or "" for part in events[-1].content.parts)


class Ledger:
    """What the server did, in lines that it wrote."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def lines(self) -> list[str]:
        """All so far."""
        return self.file.read_text().splitlines() if self.file.exists() else []

    async def has(self, line: str) -> None:
        """Wait until it has been written."""
        while line not in self.lines():  # noqa: ASYNC110 - nobody tells when another process writes
            await asyncio.sleep(0.01)


@contextmanager
def http_server(ledger: Ledger) -> Iterator[str]:
    """A server's address, for as long as it runs."""
    environment = {**os.environ, **ENVIRONMENT, "LEDGER": str(ledger.file)}
    with subprocess.Popen(
        SERVER, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True
    ) as process:
        assert process.stdout is not None
        try:
            word, port = process.stdout.readline().split()
            assert word == "PORT"
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def mortal_server() -> dict[str, Any]:
    """A server that is the hub's child, and dies when it is called."""
    return {"name": "mortal", "command": sys.executable, "args": [str(Path(__file__).parent / "adk_mortal.py")]}
