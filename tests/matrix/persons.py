"""Callers who are asked something, each in its own way: the same persons on every official client.

`visit` sends all of them to one address and says what each was told and asked. They hear only what the client shows
them, so that what the hub did to a question is seen where it matters.
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
"""For all persons and steps together; several run at the same time."""
FORMS = {"name": {"name": "Ada"}, "colour": {"color": "blue"}}
SCRIPT = Path(__file__).with_name("asked_sdk1.py")


@dataclass(frozen=True, slots=True)
class Person:
    """What a caller says it can be asked, and how it takes it."""

    can: tuple[str, ...] = ("elicitation", "sampling", "roots")
    action: Action = "accept"
    does: tuple[str, ...] | None = None
    """The steps that it takes of those of a visit: None for all. The others say nothing of how it differs."""


PERSONS = {
    "able": Person(),
    "declining": Person(action="decline", does=("form", "rounds", "plain")),
    "cancelling": Person(action="cancel", does=("form", "rounds", "plain")),
    "refusing": Person(action="error", does=("form", "roots", "plain")),
    "without a user": Person(("sampling", "roots"), does=("form", "roots", "possible", "plain")),
    "unable": Person((), does=("form", "sampling", "roots", "possible", "plain")),
}


@dataclass(slots=True)
class Mouth:
    """A person on the mcp 2.x client."""

    person: Person
    asked: list[list[str]] = field(default_factory=list)

    async def fill_in(self, context: Any, params: ElicitRequestParams) -> ElicitResult | ErrorData:
        """Answer a form."""
        self.asked.append(["elicitation/create", params.message])
        if self.person.action == "error":
            return ErrorData(code=-1, message="User rejected")
        if self.person.action != "accept":
            return ElicitResult(action=self.person.action)
        return ElicitResult(action="accept", content={**FORMS["colour" if "colour" in params.message else "name"]})

    async def sample(self, context: Any, params: CreateMessageRequestParams) -> CreateMessageResult:
        """Answer for the model."""
        self.asked.append(["sampling/createMessage", getattr(params.messages[0].content, "text", "")])
        return CreateMessageResult(role="assistant", content=TextContent(text="Paris"), model="test")

    async def list_roots(self, context: Any) -> ListRootsResult:
        """Say where it works."""
        self.asked.append(["roots/list", ""])
        return ListRootsResult(roots=[Root(uri=FileUrl("file:///work"))])

    async def call(self, client: Client, tool: str, arguments: dict[str, Any]) -> ToolCallResult:
        """What a call came to."""
        self.asked.clear()
        try:
            result = await client.call_tool(tool, arguments)
        except MCPError as refused:
            return {"error": refused.message, "asked": sorted(self.asked)}
        return {"text": getattr(result.content[0], "text", None), "asked": sorted(self.asked)}


async def client_of(stack: AsyncExitStack, url: str, mouth: Mouth, client_name: ClientName) -> Client:
    """A connected mcp 2.x client that says what its person can."""
    http = httpx2.AsyncClient(trust_env=False, timeout=CALL_SECONDS, verify=TRUSTED)
    await stack.enter_async_context(http)
    return await stack.enter_async_context(_client(streamable_http_client(url, http_client=http), mouth, client_name))


@asynccontextmanager
async def command_client(
    command: Sequence[str], env: Mapping[str, str], mouth: Mouth, client_name: ClientName
) -> AsyncIterator[Client]:
    """The same at a command that it starts itself."""
    words = StdioServerParameters(command=command[0], args=[*command[1:]], env=dict(env))
    async with _client(words, mouth, client_name) as client:
        yield client


def _client(target: Any, mouth: Mouth, client_name: ClientName) -> Client:
    can = mouth.person.can
    return Client(
        target,
        mode="legacy" if client_name == "sdk2-legacy" else "2026-07-28",
        read_timeout_seconds=CALL_SECONDS,
        cache=None,
        elicitation_callback=mouth.fill_in if "elicitation" in can else None,
        sampling_callback=mouth.sample if "sampling" in can else None,
        list_roots_callback=mouth.list_roots if "roots" in can else None,
    )


Steps: TypeAlias = Mapping[str, tuple[str, dict[str, Any]]]


async def run(
    client_name: ClientName, visits: Sequence[tuple[str, Steps]]
) -> list[dict[str, dict[str, ToolCallResult]]]:
    """What every person was told by step, at each of these addresses; all are visited at the same time."""
    if client_name == "sdk1":
        return await _run_sdk1(visits)
    return await asyncio.gather(*(_run_sdk2(client_name, url, steps) for url, steps in visits))


async def _run_sdk2(client_name: ClientName, url: str, steps: Steps) -> dict[str, dict[str, ToolCallResult]]:
    told: dict[str, dict[str, ToolCallResult]] = {}
    for name, person in PERSONS.items():
        mouth = Mouth(person)
        async with AsyncExitStack() as stack:
            client = await client_of(stack, url, mouth, client_name)
            does = steps if person.does is None else person.does
            told[name] = {step: await mouth.call(client, *steps[step]) for step in does}
    return told


async def _run_sdk1(visits: Sequence[tuple[str, Steps]]) -> list[dict[str, dict[str, ToolCallResult]]]:
    persons = {
        name: {"can": person.can, "action": person.action, "does": person.does, "forms": FORMS}
        for name, person in PERSONS.items()
    }
    process = await asyncio.create_subprocess_exec(
        *quickly([mcp1_python(), str(SCRIPT)]), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(RUN_SECONDS):
            said, _ = await process.communicate(json.dumps({"persons": persons, "visits": visits}).encode())
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, "the mcp 1.x client broke off; its reason is on stderr"
    told: list[dict[str, dict[str, ToolCallResult]]] = json.loads(said)
    return told
