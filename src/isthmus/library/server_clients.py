"""Clients of a single MCP server, on a service of their own: `MCPClient` and `MCPClientWrapper`.

For programs that think in servers rather than in tools. `MCPClient` returns values; `MCPClientWrapper` returns text for
language models: a slow or disconnected server is reported as text, and a failure of the tool itself is raised. The
manager makes one wrapper per server, all on one service.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from isthmus.core.catalog.names import canonical
from isthmus.library.catalog import ToolEntry, check_name
from isthmus.library.errors import ServerConnectionError, ServiceClosedError, ToolExecutionError
from isthmus.library.loop_thread import LoopThread, LoopThreadLock
from isthmus.library.provider_formats import MCP_RESULT_CHARS, result_text, to_json, truncate
from isthmus.library.public_types import ToolRequest, ToolResult, ToolStatus, UniversalTool
from isthmus.library.questions import Questions
from isthmus.library.resolver import HasCatalog, unregister_service
from isthmus.library.server_config import MCPServerConfig
from isthmus.library.service import ToolService
from isthmus.library.streaming import ChunkStream
from isthmus.model.names import FeatureName, ServerName


class MCPClient:
    """A client of one server. Connects on first use; call `close` in the end."""

    def __init__(self, config: MCPServerConfig | Mapping[str, Any], *, questions: Questions | None = None) -> None:
        self.config = MCPServerConfig.of(config)
        self._questions = questions
        self._service: ToolService | None = None
        self._connecting = LoopThreadLock()

    @property
    def is_connected(self) -> bool:
        """Whether it was connected and not closed. The hub reconnects to a lost server by itself."""
        return self.service is not None

    @property
    def service(self) -> ToolService | None:
        """The service of the connection; None if not connected, and in a forked child until its first use there."""
        return None if self._service is None or self._service.is_inherited else self._service

    async def connect(self) -> None:
        """Connect, unless connected.

        Raises:
            ServerConnectionError: the server cannot be reached. A later call tries again.
        """
        await self._connected()

    async def discover_tools(self) -> list[UniversalTool]:
        """The server's current tools."""
        service = await self._connected()
        catalog = await service.catalog()
        return [entry.tool for entry in catalog.entries.values() if entry.server == self.config.name]

    async def call_tool(self, name: str, arguments: Mapping[str, Any] | None = None) -> Any:
        """Execute a tool, by the server's own name for it or by its full name, and return its value.

        Raises:
            ToolExecutionError: it failed or does not exist; `result` says why.
        """
        service = await self._connected()
        result = await service.execute_tool(await self._request(service, name, arguments))
        if not result.is_success:
            raise ToolExecutionError(name, result.error_message or f"{name} failed: {result.status}", result)
        return result.result_data

    def call_tool_stream(self, name: str, arguments: Mapping[str, Any] | None = None) -> ChunkDicts:
        """Execute a tool and yield its chunks as dictionaries; a failure is the last chunk."""

        async def begin() -> ChunkStream:
            service = await self._connected()
            return service.execute_tool_stream(await self._request(service, name, arguments))

        return ChunkDicts(begin)

    async def close(self) -> None:
        """Close the connection, if there is one; running calls are cancelled."""

        async def disconnect() -> None:
            async with self._connecting:
                service, self._service = self._service, None
                if service is not None:
                    await service.shutdown()

        await LoopThread.shared().run(disconnect())

    async def __aenter__(self) -> MCPClient:
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _connected(self) -> ToolService:
        service = self.service
        if service is not None:
            return service

        async def connect() -> ToolService:
            async with self._connecting:
                connected = self.service
                if connected is not None:
                    return connected
                service = ToolService(questions=self._questions)
                try:
                    await service.initialize({"mcp_servers": [self.config]})
                    unregister_service(service)  # private to this client: not the default service of the process
                    for server, why in service.failures.items():
                        raise ServerConnectionError(server, why)
                except BaseException:
                    await service.shutdown()
                    raise
                self._service = service
                return service

        return await LoopThread.shared().run(connect())

    async def _request(self, service: HasCatalog, name: str, arguments: Mapping[str, Any] | None) -> ToolRequest:
        check_name(name)
        full_name = f"{self.config.name}.{name}"
        is_short = "." not in name or full_name in (await service.catalog()).entries
        return ToolRequest(full_name if is_short else name, self.config.name, as_parameters(arguments))


def as_parameters(arguments: Any) -> Any:
    """Arguments as the parameters of a request; the hub refuses invalid ones."""
    if arguments is None or isinstance(arguments, Mapping):
        return dict(arguments or {})
    return arguments


class ChunkDicts:
    """The chunks of one execution as dictionaries. Closing or dropping it cancels the call."""

    def __init__(self, begin: Callable[[], Awaitable[ChunkStream]]) -> None:
        self._begin = begin
        self._chunks: ChunkStream | None = None
        self._is_closed = False

    def __aiter__(self) -> ChunkDicts:
        return self

    async def __anext__(self) -> dict[str, Any]:
        if self._is_closed:
            raise StopAsyncIteration
        if self._chunks is None:
            self._chunks = await self._begin()
            if self._is_closed:  # meanwhile
                raise StopAsyncIteration
        chunk = await self._chunks.__anext__()
        return {
            "type": chunk.chunk_type,
            "content": chunk.content,
            "is_final": chunk.is_final,
            "sequence_id": chunk.sequence_id,
            "timestamp": chunk.timestamp,
        }

    async def aclose(self) -> None:
        """Stop reading; a running call is cancelled at the server."""
        self._is_closed = True
        if self._chunks is not None:
            await self._chunks.aclose()


log = logging.getLogger(__name__)

ERROR_PREFIX = "Error: "
"""Begins a text that is not a result."""

_REPORTED = (ToolStatus.TIMEOUT, ToolStatus.UNAVAILABLE)
"""Failures that are not the call's fault: reported as text, so that a language model can try something else."""


class MCPClientWrapper:
    """One server for an agent that works with text: `connect`, list its tools, call them, `close`."""

    def __init__(self, config: MCPServerConfig | Mapping[str, Any], *, service: ToolService | None = None) -> None:
        """`service` is one that already has this server; closing the wrapper leaves it open."""
        self._config = MCPServerConfig.of(config)
        self._service: ToolService | None = service
        self._own = MCPClient(self._config) if service is None else None

    @property
    def is_connected(self) -> bool:
        """Whether the server is connected now."""
        try:
            return self._service is not None and self._config.name not in self._service.failures
        except ServiceClosedError:
            return False

    async def connect(self) -> None:
        """Connect, unless connected.

        Raises:
            ServerConnectionError: the server cannot be reached.
        """
        if self._own is not None:
            await self._own.connect()
            self._service = self._own.service
        why = self._service.failures.get(self._config.name) if self._service is not None else "the wrapper was closed"
        if why is not None:
            raise ServerConnectionError(self._config.name, why)

    async def close(self) -> None:
        """Close the connection, if the wrapper made it; running calls are cancelled."""
        self._service = None
        if self._own is not None and self._own.is_connected:
            await self._own.close()

    async def __aenter__(self) -> MCPClientWrapper:
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # -- tools ---------------------------------------------------------------------------------------------------------

    async def discover_tools(self) -> list[dict[str, Any]]:
        """The server's tools as MCP definitions: `name`, `description`, `inputSchema` and so on.

        Raises:
            ServerConnectionError: the wrapper is not connected.
        """
        if self._service is None:
            raise ServerConnectionError(self._config.name, "it is not connected; call `connect` first")
        entries = (await self._service.catalog()).entries.values()
        return [definition_of(entry) for entry in entries if entry.server == self._config.name]

    async def call_tool(self, tool_name: str, arguments: Mapping[str, Any] | None = None) -> str:
        """Call a tool by the server's own name for it and return its text.

        If the server is not connected or does not reply in time, the text begins with `Error:`.

        Raises:
            ToolExecutionError: the tool failed, or the call is invalid.
        """
        request = self._request(tool_name, arguments)
        if self._service is None:
            return f"{ERROR_PREFIX}MCP server {self._config.name} is not connected."
        began = _log_call(request)
        try:
            result = await self._service.execute_tool(request)
        except ServiceClosedError as error:
            return f"{ERROR_PREFIX}{error}"
        return self._text(result, began)

    def call_tool_blocking(self, tool_name: str, arguments: Mapping[str, Any] | None = None) -> str:
        """`call_tool`, blocking.

        Raises:
            ToolExecutionError: see `call_tool`.
            WrongThreadError: the caller is on the hub's own loop; await `call_tool` there.
        """
        request = self._request(tool_name, arguments)
        if self._service is None:
            return f"{ERROR_PREFIX}MCP server {self._config.name} is not connected."
        began = _log_call(request)
        try:
            result = self._service.blocking.execute_tool(request)
        except ServiceClosedError as error:
            return f"{ERROR_PREFIX}{error}"
        return self._text(result, began)

    def _request(self, tool_name: str, arguments: Mapping[str, Any] | None) -> ToolRequest:
        check_name(tool_name)
        name = canonical((ServerName(self._config.name), FeatureName(tool_name)))
        # The namespace rules out tools of other servers, whatever their names.
        return ToolRequest(name, self._config.name, as_parameters(arguments))

    def _text(self, result: ToolResult, began: float) -> str:
        if result.is_success:
            text = result_text(result)
            _log_end(result, began, f"{len(text)} characters")
            return text
        _log_end(result, began, str(result.status))
        why = truncate(result.error_message or f"{result.tool_name} failed", MCP_RESULT_CHARS)
        if result.status in _REPORTED or (result.status is ToolStatus.NOT_FOUND and not self.is_connected):
            return f"{ERROR_PREFIX}{why}"
        raise ToolExecutionError(result.tool_name, why, result)


def definition_of(entry: ToolEntry) -> dict[str, Any]:
    """A tool as an MCP definition, under the server's own name for it."""
    tool = entry.tool
    definition: dict[str, Any] = {"name": str(entry.name), "description": tool.description}
    for member, key in (("title", "title"), ("annotations", "annotations"), ("outputSchema", "output_schema")):
        if key in tool.metadata:
            definition[member] = tool.metadata[key]
    return {**definition, "inputSchema": tool.parameters_schema or {"type": "object"}}


def _log_call(request: ToolRequest) -> float:
    """Log a call and return its start time. Of the arguments only names and sizes: values may be secrets."""
    if log.isEnabledFor(logging.DEBUG):
        given: object = request.parameters
        sizes: list[str] = []
        for name, value in (given if isinstance(given, dict) else {"invalid arguments": given}).items():
            try:
                sizes.append(f"{name!s} ({len(to_json(value))})")
            except (ValueError, TypeError, RecursionError):  # not JSON; the hub will refuse it
                sizes.append(f"{name!s} (?)")
        log.debug("Calling %s with %s", request.tool_name, ", ".join(sizes) or "no arguments")
    return time.perf_counter()


def _log_end(result: ToolResult, began: float, how: str) -> None:
    log.debug("%s ended after %.3f s: %s", result.tool_name, time.perf_counter() - began, how)
