"""Official clients that answer questions of servers, with the same behaviours on every client.

`run` calls one address with each behaviour and returns the results and the questions as the client reported them, so
that tests see what the hub made of a question.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import httpx2
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp_types import (
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequestParams,
    ElicitResult,
    ErrorData,
    ListRootsResult,
    Root,
    TextContent,
)
from pydantic import FileUrl

from tests.hubs import TRUSTED
from tests.peers.forking import quickly
from tests.peers.launch import mcp1_python

ClientName: TypeAlias = Literal["sdk1", "sdk2-legacy", "sdk2-modern"]
ToolCallResult: TypeAlias = dict[str, Any]
"""A `text` or an `error`, and what was `asked`."""
Action: TypeAlias = Literal["accept", "decline", "cancel", "error"]

CALL_SECONDS = 30.0
RUN_SECONDS = 240.0
"""For all behaviours and steps together; several run at the same time."""
FORMS = {"name": {"name": "Ada"}, "colour": {"color": "blue"}}
SCRIPT = Path(__file__).with_name("asked_sdk1.py")


@dataclass(frozen=True, slots=True)
class Behaviour:
    """The capabilities that a client declares, and how it answers."""

    can: tuple[str, ...] = ("elicitation", "sampling", "roots")
    action: Action = "accept"
    does: tuple[str, ...] | None = None
    """The steps that it runs, None for all: those in which this behaviour makes a difference."""


BEHAVIOURS = {
    "able": Behaviour(),
    "declining": Behaviour(action="decline", does=("form", "rounds", "plain")),
    "cancelling": Behaviour(action="cancel", does=("form", "rounds", "plain")),
    "refusing": Behaviour(action="error", does=("form", "roots", "plain")),
    "without a user": Behaviour(("sampling", "roots"), does=("form", "roots", "possible", "plain")),
    "unable": Behaviour((), does=("form", "sampling", "roots", "possible", "plain")),
}


@dataclass(slots=True)
class Answerer:
    """A behaviour on the mcp 2.x client."""

    behaviour: Behaviour
    asked: list[list[str]] = field(default_factory=list)

    async def fill_in(self, context: Any, params: ElicitRequestParams) -> ElicitResult | ErrorData:
        """Answer a form."""
        self.asked.append(["elicitation/create", params.message])
        if self.behaviour.action == "error":
            return ErrorData(code=-1, message="User rejected")
        if self.behaviour.action != "accept":
            return ElicitResult(action=self.behaviour.action)
        return ElicitResult(action="accept", content={**FORMS["colour" if "colour" in params.message else "name"]})

    async def sample(self, context: Any, params: CreateMessageRequestParams) -> CreateMessageResult:
        """Answer for the model."""
        self.asked.append(["sampling/createMessage", getattr(params.messages[0].content, "text", "")])
        return CreateMessageResult(role="assistant", content=TextContent(text="Paris"), model="test")

    async def list_roots(self, context: Any) -> ListRootsResult:
        """Return one root."""
        self.asked.append(["roots/list", ""])
        return ListRootsResult(roots=[Root(uri=FileUrl("file:///work"))])

    async def call(self, client: Client, tool: str, arguments: dict[str, Any]) -> ToolCallResult:
        """Call, and return the result or the error, and the questions."""
        self.asked.clear()
        try:
            result = await client.call_tool(tool, arguments)
        except MCPError as refused:
            return {"error": refused.message, "asked": sorted(self.asked)}
        return {"text": getattr(result.content[0], "text", None), "asked": sorted(self.asked)}


async def client_of(stack: AsyncExitStack, url: str, answerer: Answerer, client_name: ClientName) -> Client:
    """A connected mcp 2.x client with the capabilities of its behaviour."""
    http = httpx2.AsyncClient(trust_env=False, timeout=CALL_SECONDS, verify=TRUSTED)
    await stack.enter_async_context(http)
    return await stack.enter_async_context(
        _client(streamable_http_client(url, http_client=http), answerer, client_name)
    )


@asynccontextmanager
async def command_client(
    command: Sequence[str], env: Mapping[str, str], answerer: Answerer, client_name: ClientName
) -> AsyncIterator[Client]:
    """The same at a command that it starts itself."""
    words = StdioServerParameters(command=command[0], args=[*command[1:]], env=dict(env))
    async with _client(words, answerer, client_name) as client:
        yield client


def _client(target: Any, answerer: Answerer, client_name: ClientName) -> Client:
    can = answerer.behaviour.can
    return Client(
        target,
        mode="legacy" if client_name == "sdk2-legacy" else "2026-07-28",
        read_timeout_seconds=CALL_SECONDS,
        cache=None,
        elicitation_callback=answerer.fill_in if "elicitation" in can else None,
        sampling_callback=answerer.sample if "sampling" in can else None,
        list_roots_callback=answerer.list_roots if "roots" in can else None,
    )


Steps: TypeAlias = Mapping[str, tuple[str, dict[str, Any]]]


async def run(
    client_name: ClientName, visits: Sequence[tuple[str, Steps]]
) -> list[dict[str, dict[str, ToolCallResult]]]:
    """The results of every behaviour by step, for each address; all addresses are called at the same time."""
    if client_name == "sdk1":
        return await _run_sdk1(visits)
    return await asyncio.gather(*(_run_sdk2(client_name, url, steps) for url, steps in visits))


async def _run_sdk2(client_name: ClientName, url: str, steps: Steps) -> dict[str, dict[str, ToolCallResult]]:
    results: dict[str, dict[str, ToolCallResult]] = {}
    for name, behaviour in BEHAVIOURS.items():
        answerer = Answerer(behaviour)
        async with AsyncExitStack() as stack:
            client = await client_of(stack, url, answerer, client_name)
            does = steps if behaviour.does is None else behaviour.does
            results[name] = {step: await answerer.call(client, *steps[step]) for step in does}
    return results


async def _run_sdk1(visits: Sequence[tuple[str, Steps]]) -> list[dict[str, dict[str, ToolCallResult]]]:
    behaviours = {
        name: {"can": behaviour.can, "action": behaviour.action, "does": behaviour.does, "forms": FORMS}
        for name, behaviour in BEHAVIOURS.items()
    }
    process = await asyncio.create_subprocess_exec(
        *quickly([mcp1_python(), str(SCRIPT)]), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(RUN_SECONDS):
            printed, _ = await process.communicate(json.dumps({"behaviours": behaviours, "visits": visits}).encode())
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, "the mcp 1.x client broke off; its reason is on stderr"
    results: list[dict[str, dict[str, ToolCallResult]]] = json.loads(printed)
    return results
