"""A client on the official SDK, mcp 1.x, that answers questions of servers: a script in an environment of its own.

On stdin: behaviours (capabilities and answers) and visits (an address, and steps: a tool and its arguments). For each
visit it prints one JSON object: the results and questions of every behaviour, by step. Run by `answering_clients.run`.
"""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from typing import Any

import anyio
import httpx
from mcp import ClientSession, McpError, types
from mcp.client.streamable_http import streamable_http_client

CALL_SECONDS = 30.0


class Answerer:
    """Answers as configured, and records the questions."""

    def __init__(self, words: dict[str, Any]) -> None:
        self._words = words
        self.asked: list[list[str]] = []

    async def fill_in(self, _: Any, params: types.ElicitRequestParams) -> types.ElicitResult | types.ErrorData:
        """Answer a form."""
        self.asked.append(["elicitation/create", params.message])
        if self._words["action"] == "error":
            return types.ErrorData(code=-1, message="User rejected")
        content = self._words["forms"]["colour" if "colour" in params.message else "name"]
        accepts = self._words["action"] == "accept"
        return types.ElicitResult(action=self._words["action"], content=content if accepts else None)

    async def sample(self, _: Any, params: types.CreateMessageRequestParams) -> types.CreateMessageResult:
        """Answer for the model."""
        content = params.messages[0].content
        self.asked.append(["sampling/createMessage", getattr(content, "text", "")])
        text = types.TextContent(type="text", text="Paris")
        return types.CreateMessageResult(role="assistant", content=text, model="test")

    async def list_roots(self, _: Any) -> types.ListRootsResult:
        """Return one root."""
        self.asked.append(["roots/list", ""])
        return types.ListRootsResult(roots=[types.Root(uri="file:///work")])

    def session(self, read: Any, write: Any) -> ClientSession:
        """A session with the capabilities of this behaviour."""
        can = self._words["can"]
        return ClientSession(
            read,
            write,
            read_timeout_seconds=timedelta(seconds=CALL_SECONDS),
            elicitation_callback=self.fill_in if "elicitation" in can else None,
            sampling_callback=self.sample if "sampling" in can else None,
            list_roots_callback=self.list_roots if "roots" in can else None,
        )

    async def call(self, session: ClientSession, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Call, and return the result or the error, and the questions."""
        self.asked.clear()
        try:
            result = await session.call_tool(tool, arguments)
        except McpError as refused:
            return {"error": refused.error.message, "asked": sorted(self.asked)}
        return {"text": result.content[0].text, "asked": sorted(self.asked)}


async def visit(url: str, behaviours: dict[str, Any], steps: dict[str, Any], results: dict[str, Any]) -> None:
    """Call one address with every behaviour in turn."""
    async with httpx.AsyncClient(trust_env=False, timeout=CALL_SECONDS) as http:
        for name, words in behaviours.items():
            answerer = Answerer(words)
            async with (
                streamable_http_client(url, http_client=http) as (read, write, _),
                answerer.session(read, write) as session,
            ):
                await session.initialize()
                results[name] = {
                    step: await answerer.call(session, *steps[step]) for step in words.get("does") or steps
                }


async def main() -> None:
    """Visit all addresses at the same time."""
    todo = json.loads(sys.stdin.read())
    results: list[dict[str, Any]] = [{} for _ in todo["visits"]]
    async with anyio.create_task_group() as group:
        for (url, steps), here in zip(todo["visits"], results, strict=True):
            group.start_soon(visit, url, todo["behaviours"], steps, here)
    print(json.dumps(results))


if __name__ == "__main__":
    anyio.run(main)
