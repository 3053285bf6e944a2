"""Clients on the official SDK, mcp 2.x, inside the test process.

Context managers that connect over HTTP or stdio in a chosen era, and the two things tests do with a connected
client that take more than one line: watch progress, and cancel a call that has begun.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.session import MessageHandlerFnT
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, ToolListChangedNotification

from tests.hubs import TRUSTED

Mode = Literal["legacy", "auto", "2026-07-28"]
Progress = tuple[float, float | None, str | None]
Hear = MessageHandlerFnT
"""A callback for the messages of a client, such as a `Listener`."""

CALL_SECONDS = 30.0
"""What a peer may take for one answer before the test fails instead of hanging."""


@dataclass(slots=True)
class Listener:
    """Hears a client's messages; `changed` is set by each legacy `list_changed` until a test clears it."""

    changed: asyncio.Event = field(default_factory=asyncio.Event)
    messages: list[Any] = field(default_factory=list)

    async def __call__(self, message: Any) -> None:
        """Keep the message."""
        self.messages.append(message)
        if isinstance(message, ToolListChangedNotification):
            self.changed.set()


@asynccontextmanager
async def client_over_http(
    url: str,
    *,
    mode: Mode = "auto",
    headers: Mapping[str, str] | None = None,
    listener: Hear | None = None,
) -> AsyncIterator[Client]:
    """A connected client for a Streamable HTTP address."""
    async with AsyncExitStack() as stack:
        # The SDK's own client reads proxies from the environment, which a test must not depend on.
        http = httpx2.AsyncClient(
            headers=headers, trust_env=False, timeout=httpx2.Timeout(CALL_SECONDS), verify=TRUSTED
        )
        await stack.enter_async_context(http)
        transport = streamable_http_client(url, http_client=http)
        yield await stack.enter_async_context(_client(transport, mode, listener))


@asynccontextmanager
async def client_over_sse(
    url: str, *, headers: Mapping[str, str] | None = None, listener: Hear | None = None
) -> AsyncIterator[Client]:
    """A connected client for an address of the old HTTP+SSE transport, which only the legacy era has."""
    transport = sse_client(url, dict(headers or {}), CALL_SECONDS, httpx_client_factory=_without_proxies)
    async with _client(transport, "legacy", listener) as client:
        yield client


@asynccontextmanager
async def client_over_stdio(
    command: Sequence[str],
    *,
    mode: Mode = "auto",
    env: Mapping[str, str] | None = None,
    listener: Hear | None = None,
) -> AsyncIterator[Client]:
    """A connected client for a command that it starts itself and ends on leaving."""
    words = StdioServerParameters(command=command[0], args=[*command[1:]], env={**os.environ, **(env or {})})
    async with _client(words, mode, listener) as client:
        yield client


def _without_proxies(
    headers: dict[str, str] | None = None, timeout: httpx2.Timeout | None = None, auth: httpx2.Auth | None = None
) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(headers=headers, timeout=timeout, auth=auth, trust_env=False, verify=TRUSTED)


def _client(target: Any, mode: Mode, listener: Hear | None) -> Client:
    return Client(target, mode=mode, message_handler=listener, read_timeout_seconds=CALL_SECONDS, cache=None)


async def call_with_progress(
    client: Client, tool: str, arguments: dict[str, Any]
) -> tuple[CallToolResult, list[Progress]]:
    """Call a tool; return the result and the progress that came before it."""
    seen: list[Progress] = []

    async def watch(progress: float, total: float | None, message: str | None) -> None:
        seen.append((progress, total, message))

    return await client.call_tool(tool, arguments, progress_callback=watch), seen


async def cancel_once_begun(
    client: Client, tool: str, arguments: dict[str, Any], *, begun: asyncio.Event | None = None
) -> None:
    """Call a tool and cancel at its first progress, or once `begun` is set where none can arrive."""
    started = begun or asyncio.Event()

    async def watch(progress: float, total: float | None, message: str | None) -> None:
        started.set()

    async with asyncio.timeout(CALL_SECONDS), asyncio.TaskGroup() as group:
        call = group.create_task(client.call_tool(tool, arguments, progress_callback=watch))
        await started.wait()
        call.cancel()
