"""An official client whose messages from the hub are kept as the bytes that arrived."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import (
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequestParams,
    ElicitResult,
    ListRootsResult,
    Root,
    TextContent,
)

from tests.hubs import TRUSTED
from tests.peers.client_sdk2 import CALL_SECONDS, Mode

ANSWER: dict[str, str | int | float | bool | list[str] | None] = {
    "name": "Zoë",
    "check": True,
    "colour": "blue",
    "interpretation": "snake",
}


class Messages:
    """Everything that a client received, as bytes: JSON bodies, and the data of events."""

    def __init__(self) -> None:
        self._bodies: list[list[bytes]] = []

    def new_body(self) -> list[bytes]:
        """Where the chunks of the next response go."""
        self._bodies.append([])
        return self._bodies[-1]

    def all(self) -> list[bytes]:
        """Every message, in the order in which its stream began."""
        found: list[bytes] = []
        for chunks in self._bodies:
            body = b"".join(chunks)
            if body.startswith(b"{"):
                found.append(body.strip())
            else:
                found += [line[5:].strip() for line in body.splitlines() if line.startswith(b"data:")]
        return [message for message in found if message]

    def responses(self) -> dict[str, bytes]:
        """The responses by the id of their request."""
        return {json.dumps(json.loads(each)["id"]): bare(each) for each in self.all() if b'"method":' not in each[:60]}

    def others(self) -> list[bytes]:
        """Notifications and questions, sorted: streams of their own may be read earlier or later."""
        return sorted(bare(each) for each in self.all() if b'"method":' in each[:60] and b"list_changed" not in each)


def bare(message: bytes) -> bytes:
    """A message without what a hub makes up: its own id, ids of its questions and tasks, and sealed states."""
    message = re.sub(rb'"[0-9a-f]{16}":0', b'"":0', message)
    message = re.sub(rb'"requestState":"[^"]*"', b'"requestState":""', message)
    message = re.sub(rb'"(requestId|elicitationId|taskId)":"[^"]*"', rb'"\1":""', message)
    return re.sub(rb'"id":("[^"]*"|\d+),"method"', b'"id":0,"method"', message)


class _Tee(httpx2.AsyncByteStream):
    def __init__(self, stream: Any, chunks: list[bytes]) -> None:
        self._stream = stream
        self._chunks = chunks

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._stream:
            self._chunks.append(chunk)
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


class _Transport(httpx2.AsyncBaseTransport):
    def __init__(self, messages: Messages) -> None:
        self._inner = httpx2.AsyncHTTPTransport(verify=TRUSTED, trust_env=False)
        self._messages = messages

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await self._inner.handle_async_request(request)
        response.stream = _Tee(response.stream, self._messages.new_body())
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


async def _fill_in(context: Any, params: ElicitRequestParams) -> ElicitResult:
    schema: dict[str, Any] = getattr(params, "requested_schema", {})
    content = {name: value for name, value in ANSWER.items() if name in schema.get("properties", {})}
    return ElicitResult(action="accept", content=content)


async def _sample(context: Any, params: CreateMessageRequestParams) -> CreateMessageResult:
    return CreateMessageResult(role="assistant", content=TextContent(type="text", text="Paris"), model="test")


async def _roots(context: Any) -> ListRootsResult:
    return ListRootsResult(roots=[Root.model_validate({"uri": "file:///work", "name": "work"})])


@asynccontextmanager
async def teed_client(url: str, mode: Mode) -> AsyncIterator[tuple[Client, Messages]]:
    """A connected client that answers every question, and what it receives."""
    messages = Messages()
    async with AsyncExitStack() as stack:
        http = httpx2.AsyncClient(transport=_Transport(messages), timeout=httpx2.Timeout(CALL_SECONDS))
        await stack.enter_async_context(http)
        client = Client(
            streamable_http_client(url, http_client=http),
            mode=mode,
            read_timeout_seconds=CALL_SECONDS,
            elicitation_callback=_fill_in,
            sampling_callback=_sample,
            list_roots_callback=_roots,
            log_level="debug" if mode != "legacy" else None,
            cache=None,
        )
        yield await stack.enter_async_context(client), messages
