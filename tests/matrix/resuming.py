"""A client on the official SDK, of either generation, that leaves in the middle of a call and comes back to it.

It runs in the environment that has the SDK: `python resuming.py URL TOOL ARGUMENTS EVENTS` calls the tool, lets its
connection go once it has a token for so many events and says `left`, begins anew in the same session with the last
token, and prints what it got: `{"text": …, "tokens": […]}`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import anyio
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import ClientMessageMetadata

IS_SECOND = find_spec("mcp_types") is not None
http: Any = import_module("httpx2" if IS_SECOND else "httpx")
types: Any = import_module("mcp_types" if IS_SECOND else "mcp.types")

SECONDS = 60.0
VERSION = "2025-11-25"


def request_for(tool: str, arguments: dict[str, Any]) -> Any:
    """The call, as each generation wraps it."""
    params = types.CallToolRequestParams(name=tool, arguments=arguments)
    request = types.CallToolRequest(method="tools/call", params=params)
    return request if IS_SECOND else types.ClientRequest(request)


class ResumingClient:
    """One caller, through as many connections as it takes."""

    def __init__(self, url: str, request: Any) -> None:
        self._url = url
        self._request = request
        self._session = ""
        self.tokens: list[str] = []

    async def _note_session(self, response: Any) -> None:
        self._session = response.headers.get("mcp-session-id", self._session)

    async def leave_after(self, events: int) -> None:
        """Call, and let everything go once so many events were heard."""
        enough = anyio.Event()

        async def note(token: str) -> None:
            self.tokens.append(token)
            if len(self.tokens) >= events:
                enough.set()

        hooks = {"response": [self._note_session]}
        async with self._connected(event_hooks=hooks) as session, anyio.create_task_group() as group:
            await session.initialize()
            metadata = ClientMessageMetadata(on_resumption_token_update=note)
            group.start_soon(self._send, session, metadata, _ignore)
            await enough.wait()
            group.cancel_scope.cancel()

    async def come_back(self) -> str:
        """Go on with the last token; returns the text of the result."""

        async def note(token: str) -> None:
            self.tokens.append(token)

        headers = {"mcp-session-id": self._session, "mcp-protocol-version": VERSION}
        async with self._connected(headers=headers) as session:
            result = await self._send(session, ClientMessageMetadata(self.tokens[-1], note), None)
            return str(result.content[0].text)

    @asynccontextmanager
    async def _connected(self, **options: Any) -> AsyncIterator[Any]:
        client = http.AsyncClient(timeout=SECONDS, trust_env=False, **options)
        carrier = streamable_http_client(self._url, http_client=client, terminate_on_close=False)
        async with client, carrier as streams, ClientSession(streams[0], streams[1]) as session:
            yield session

    async def _send(self, session: Any, metadata: ClientMessageMetadata, progress: Any) -> Any:
        return await session.send_request(
            self._request, types.CallToolResult, metadata=metadata, progress_callback=progress
        )


async def _ignore(*_: Any) -> None:
    """Progress is asked for so that there are events to come back to."""


async def main(*words: str) -> None:
    """Call twice and report."""
    url, tool, arguments, events = words
    resuming_client = ResumingClient(url, request_for(tool, json.loads(arguments)))
    with anyio.fail_after(SECONDS):
        await resuming_client.leave_after(int(events))
        print("left", flush=True)
        text = await resuming_client.come_back()
    print(json.dumps({"text": text, "tokens": resuming_client.tokens}))


if __name__ == "__main__":
    anyio.run(main, *sys.argv[1:])
