"""`isthmus.connect`: the shortest way from an `mcp.json` to a tool's result.

A thin layer over `ToolService`, which `hub.service` returns for everything that is not here. A failed call raises, and
the exception's `executed` says whether the tool ran.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Generator, Mapping
from typing import Any

from isthmus.library.errors import ToolExecutionError
from isthmus.library.public_types import ToolRequest, ToolResult, ToolStatus, ToolStreamChunk, UniversalTool
from isthmus.library.questions import Questions
from isthmus.library.server_config import CONFIG_KEYS
from isthmus.library.service import BlockingToolService, ToolService


def connect(
    config: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    *,
    key: str | None = None,
    timeout: float | None = None,
    questions: Questions | None = None,
) -> HubConnection:
    """Connect to MCP servers; use the result with `async with` or, in code that blocks, with `with`.

    Args:
        config: the path of an `mcp.json` or `isthmus.toml`; a dictionary of servers by name, as in an `mcp.json`; the
            address of a running hub; or None, for the built-in tools and those of `@tool`.
        key: the key of this program at a running hub.
        timeout: seconds for each call.
        questions: handlers for requests from servers.

    Raises:
        ConfigurationError: by `with`, if the configuration is invalid or the running hub cannot be reached.
    """
    return HubConnection(config, key=key, timeout=timeout, questions=questions)


class HubConnection:
    """Opens a hub for `async with` (a `ConnectedHub`) or `with` (a `BlockingHub`)."""

    def __init__(
        self,
        config: Mapping[str, Any] | str | os.PathLike[str] | None,
        *,
        key: str | None,
        timeout: float | None,
        questions: Questions | None,
    ) -> None:
        address = None
        if isinstance(config, str) and config.startswith(("http://", "https://")):
            config, address = None, config
        elif isinstance(config, Mapping) and config and CONFIG_KEYS.isdisjoint(config):
            config = {"mcpServers": config}
        self._service = ToolService(config, hub=address, key=key, questions=questions)
        self._timeout = timeout

    async def __aenter__(self) -> ConnectedHub:
        await self._service.initialize()
        return ConnectedHub(self._service, self._timeout)

    async def __aexit__(self, *_: object) -> None:
        await self._service.shutdown()

    def __enter__(self) -> BlockingHub:
        self._service.blocking.initialize()
        return BlockingHub(self._service.blocking, self._timeout)

    def __exit__(self, *_: object) -> None:
        self._service.blocking.shutdown()


class ConnectedHub:
    """The tools of all servers, for code that awaits."""

    def __init__(self, service: ToolService, timeout: float | None) -> None:
        self.service = service
        """The whole library: users, sessions, resources, prompts."""
        self._timeout = timeout

    @property
    def failures(self) -> dict[str, str]:
        """Servers that are not connected, and why. The hub reconnects in the background."""
        return self.service.failures

    async def tools(self) -> list[UniversalTool]:
        """The tools, with `name`, `description` and `parameters_schema`."""
        return await self.service.universal_tools()

    async def call(self, name: str, arguments: Mapping[str, Any] | None = None, /, **named: Any) -> ToolResult:
        """Call a tool, with arguments by name, in a dictionary, or both.

        Raises:
            ToolNotFoundError: no tool has this name.
            AmbiguousToolError: several tools have it.
            ToolExecutionError: the call failed; `executed` says whether the tool ran.
        """
        result = await self.service.execute_tool(_request(name, arguments, named, self._timeout))
        if result.status == ToolStatus.NOT_FOUND:
            await self.service.resolve(name)  # raises the error with its suggestions
        return _checked(result)

    async def stream(
        self, name: str, arguments: Mapping[str, Any] | None = None, /, **named: Any
    ) -> AsyncGenerator[ToolStreamChunk]:
        """Call a tool and yield its progress, logs and output as they happen; the last chunk has the `result`.

        Leaving the loop cancels the tool at its server.

        Raises:
            ToolExecutionError: the call failed; `executed` says whether the tool ran.
        """
        request = _request(name, arguments, named, self._timeout)
        async with self.service.execute_tool_stream(request) as chunks:
            async for chunk in chunks:
                if chunk.result is not None:
                    _checked(chunk.result)
                yield chunk


class BlockingHub:
    """`ConnectedHub` for code that blocks."""

    def __init__(self, service: BlockingToolService, timeout: float | None) -> None:
        self.service = service
        """The service, for everything that is not here."""
        self._timeout = timeout

    @property
    def failures(self) -> dict[str, str]:
        """Servers that are not connected, and why. The hub reconnects in the background."""
        return self.service.failures

    def tools(self) -> list[UniversalTool]:
        """The tools, with `name`, `description` and `parameters_schema`."""
        return self.service.universal_tools()

    def call(self, name: str, arguments: Mapping[str, Any] | None = None, /, **named: Any) -> ToolResult:
        """Call a tool, with arguments by name, in a dictionary, or both."""
        result = self.service.execute_tool(_request(name, arguments, named, self._timeout))
        if result.status == ToolStatus.NOT_FOUND:
            self.service.resolve(name)
        return _checked(result)

    def stream(
        self, name: str, arguments: Mapping[str, Any] | None = None, /, **named: Any
    ) -> Generator[ToolStreamChunk]:
        """Call a tool and yield its progress, logs and output as they happen; the last chunk has the `result`."""
        with self.service.execute_tool_stream(_request(name, arguments, named, self._timeout)) as chunks:
            for chunk in chunks:
                if chunk.result is not None:
                    _checked(chunk.result)
                yield chunk


def _request(
    name: str, arguments: Mapping[str, Any] | None, named: dict[str, Any], timeout: float | None
) -> ToolRequest:
    return ToolRequest(name, parameters={**(arguments or {}), **named}, timeout=timeout)


def _checked(result: ToolResult) -> ToolResult:
    if not result.is_success:
        raise ToolExecutionError(result.tool_name, result.error_message or f"It is {result.status}", result)
    return result
