"""Clients inside the test process, mcp 2.x and FastMCP 4, behind one small interface."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol

import fastmcp
from fastmcp.client.transports import StreamableHttpTransport
from mcp.client.subscriptions import listen
from mcp.shared.dispatcher import ProgressFnT
from mcp_types import CallToolResult, ListToolsResult

from tests.hubs import environment
from tests.peers.client_sdk2 import CALL_SECONDS, Listener, Mode, client_over_http, client_over_stdio


class InProcessClient(Protocol):
    """The methods of a connected client that the steps need; the client of mcp 2.x has exactly these."""

    @property
    def protocol_version(self) -> str: ...

    async def list_tools(self) -> ListToolsResult: ...

    async def call_tool(
        self,
        name: str,
        arguments: dict[str, Any] | None = None,
        *,
        progress_callback: ProgressFnT | None = None,
        meta: Any = None,
    ) -> CallToolResult: ...

    def listen(self, *, tools_list_changed: bool = False) -> AbstractAsyncContextManager[Any]: ...


Connect = Callable[[Mode, Listener], AbstractAsyncContextManager[InProcessClient]]


def sdk2_over_http(url: str) -> Connect:
    """The SDK, mcp 2.x, at an address."""

    def connect(mode: Mode, listener: Listener) -> AbstractAsyncContextManager[InProcessClient]:
        return client_over_http(url, mode=mode, listener=listener)

    return connect


def sdk2_over_stdio(frontend: Sequence[str]) -> Connect:
    """The SDK, mcp 2.x, at a command that it starts."""

    def connect(mode: Mode, listener: Listener) -> AbstractAsyncContextManager[InProcessClient]:
        return client_over_stdio(frontend, mode=mode, env=environment(), listener=listener)

    return connect


def fastmcp_over_http(url: str) -> Connect:
    """FastMCP 4 at an address."""

    @asynccontextmanager
    async def connect(mode: Mode, listener: Listener) -> AsyncIterator[InProcessClient]:
        transport = StreamableHttpTransport(url)
        async with fastmcp.Client(transport, mode=mode, message_handler=listener, timeout=CALL_SECONDS) as client:
            yield _FastMcp(client)

    return connect


class _FastMcp:
    def __init__(self, client: fastmcp.Client[Any]) -> None:
        self._client = client

    @property
    def protocol_version(self) -> str:
        return str(self._client.protocol_version)

    async def list_tools(self) -> ListToolsResult:
        return await self._client.list_tools_mcp()

    async def call_tool(
        self,
        name: str,
        arguments: dict[str, Any] | None = None,
        *,
        progress_callback: ProgressFnT | None = None,
        meta: Any = None,
    ) -> CallToolResult:
        return await self._client.call_tool_mcp(name, arguments or {}, progress_handler=progress_callback, meta=meta)

    def listen(self, *, tools_list_changed: bool = False) -> AbstractAsyncContextManager[Any]:
        # FastMCP has no method for it; the session below is the SDK's.
        return listen(self._client.session, tools_list_changed=tools_list_changed)
