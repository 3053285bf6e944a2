"""An official client of mcp 2.x that knows tasks, in front of a server that has none: its calls become the hub's tasks.

The SDK has a place for the extension and leaves its rules to others: they are here, as short as they go.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any, Literal

import httpx2
from mcp import Client
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, ElicitRequestParams, ElicitResult, Request, RequestParams, Result
from pydantic import Field

from tests.frontends import plain_server
from tests.hubs import PATIENT, serving, stdio

SECONDS = 60.0
AFTER = 0.1


class Created(Result):
    """A task instead of a result."""

    result_type: Literal["task"] = Field(alias="resultType")
    task_id: str = Field(alias="taskId")


class Standing(Result):
    """How a task stands."""

    result_type: Literal["complete"] = Field(alias="resultType")
    status: str
    result: dict[str, Any] | None = None
    asked: dict[str, Any] | None = Field(default=None, alias="inputRequests")


class Acknowledged(Result):
    """It was heard."""

    result_type: Literal["complete"] = Field(alias="resultType")


class About(RequestParams):
    """What a request about a task names."""

    task_id: str = Field(serialization_alias="taskId")


class Answers(About):
    """The same, with what the task wanted to know."""

    answers: dict[str, Any] = Field(serialization_alias="inputResponses")


class Get(Request[About, Literal["tasks/get"]]):
    """How does it stand?"""

    method: Literal["tasks/get"] = "tasks/get"
    params: About
    name_param = "taskId"


class Update(Request[Answers, Literal["tasks/update"]]):
    """This is what it wanted to know."""

    method: Literal["tasks/update"] = "tasks/update"
    params: Answers
    name_param = "taskId"


class Knowing(ClientExtension):
    """A client that waits for tasks to end, and lets what they wait for happen."""

    identifier = "io.modelcontextprotocol/tasks"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.seen: list[str] = []

    def claims(self) -> list[ResultClaim[Any]]:
        """See `ClientExtension`."""
        return [ResultClaim(result_type="task", model=Created, resolve=self._wait)]

    async def _wait(self, created: Created, context: ClaimContext) -> CallToolResult:
        if context.tool_name == "plain.late":
            (self._folder / "release-x").touch()
        while True:
            params = About(task_id=created.task_id)
            server_status = await context.session.send_request(Get(params=params), Standing)
            self.seen.append(server_status.status)
            if server_status.result is not None:
                return CallToolResult.model_validate(server_status.result)
            if server_status.asked:
                answers = {key: {"action": "accept", "content": {"ok": True}} for key in server_status.asked}
                update = Update(params=Answers(task_id=created.task_id, answers=answers))
                await context.session.send_request(update, Acknowledged)
            await asyncio.sleep(0.01)


async def never(context: Any, params: ElicitRequestParams) -> ElicitResult:
    """A question that comes after the task was given is part of how that stands."""
    raise AssertionError(f"asked otherwise: {params} of {context}")


async def test_an_official_client_that_knows_tasks_gets_its_results_from_a_server_that_has_none(tmp_path: Path) -> None:
    server = stdio([sys.executable, plain_server.__file__, str(tmp_path)])
    knowing = Knowing(tmp_path)
    async with (
        serving(tmp_path, {"plain": server}, limits=PATIENT, tasks={"after": AFTER}) as hub,
        httpx2.AsyncClient(trust_env=False, timeout=SECONDS) as http,
        Client(
            streamable_http_client(hub.url, http_client=http),
            mode="2026-07-28",
            extensions=[knowing],
            elicitation_callback=never,
            cache=None,
        ) as client,
        asyncio.timeout(SECONDS),
    ):
        quick = await client.call_tool("plain.echo", {"nonce": "x"})
        knowing.seen.clear()  # on a busy machine it may have become one, too
        slow = await client.call_tool("plain.late", {"nonce": "x"})
    assert quick.content == slow.content
    assert slow.structured_content == {"heard": {"action": "accept", "content": {"ok": True}}}
    assert {"input_required", "completed"} <= set(knowing.seen)
    assert (tmp_path / "ledger").read_text().splitlines() == ["echo x", "late x"]
