"""One MCP server for an agent that works with texts: its tools as the protocol describes them, and results as text.

The manager has one for each of its servers, all over one service; by itself, a wrapper makes a service of its own.
What a language model can be told is told as text, a server that is slow or away among it; what the tool itself
refused is raised.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Protocol

from isthmus.core.catalog.names import canonical
from isthmus.library.catalog import Catalog, Entry, check_name
from isthmus.library.client import MCPClient, as_parameters
from isthmus.library.contracts import ToolRequest, ToolResult, ToolStatus
from isthmus.library.errors import ServerConnectionError, ServiceClosedError, ToolExecutionError
from isthmus.library.forms import MCP_RESULT_CHARS, cut
from isthmus.library.parts import json_of, said_by
from isthmus.library.servers import MCPServerConfig
from isthmus.library.service import BlockingToolService
from isthmus.model.names import FeatureName, ServerName

log = logging.getLogger(__name__)

ERROR_PREFIX = "Error: "
"""How a text begins that is not a result."""

_TOLD = (ToolStatus.TIMEOUT, ToolStatus.UNAVAILABLE)
"""Ways to fail that are no fault of the call: a language model is told, and may try something else."""


class Service(Protocol):
    """What a wrapper needs of a `ToolService`."""

    @property
    def failures(self) -> dict[str, str]:
        """Servers that are not there, and why."""

    @property
    def blocking(self) -> BlockingToolService:
        """The same for threads."""

    async def catalog(self) -> Catalog:
        """All tools at this moment."""

    async def execute_tool(self, request: ToolRequest) -> ToolResult:
        """Execute a tool."""


class MCPClientWrapper:
    """One server: `connect` it, ask what it has, call it, `close` it."""

    def __init__(self, config: MCPServerConfig | Mapping[str, Any], *, service: Service | None = None) -> None:
        """`service` is one that has this server already, and stays open when this is closed."""
        self._config = MCPServerConfig.of(config)
        self._service: Service | None = service
        self._own = MCPClient(self._config) if service is None else None

    @property
    def is_connected(self) -> bool:
        """Whether the server is there now."""
        try:
            return self._service is not None and self._config.name not in self._service.failures
        except ServiceClosedError:
            return False

    async def connect(self) -> None:
        """Connect; nothing happens if it is connected.

        Raises:
            ServerConnectionError: it cannot be reached.
        """
        if self._own is not None:
            await self._own.connect()
            self._service = self._own.service
        why = self._service.failures.get(self._config.name) if self._service is not None else "it was closed"
        if why is not None:
            raise ServerConnectionError(self._config.name, why)

    async def close(self) -> None:
        """End the connection, if it is this wrapper's own; what still runs is cancelled."""
        self._service = None
        if self._own is not None and self._own.is_connected:
            await self._own.close()

    async def __aenter__(self) -> MCPClientWrapper:
        await self.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # -- tools ---------------------------------------------------------------------------------------------------------

    async def discover_tools(self) -> list[dict[str, Any]]:
        """The server's tools in the form of the protocol: `name`, `description`, `inputSchema` and so on.

        Raises:
            ServerConnectionError: it is not connected.
        """
        if self._service is None:
            raise ServerConnectionError(self._config.name, "it is not connected: call `connect` first")
        entries = (await self._service.catalog()).entries.values()
        return [definition_of(entry) for entry in entries if entry.server == self._config.name]

    async def call_tool(self, tool_name: str, arguments: Mapping[str, Any] | None = None) -> str:
        """Call a tool by the server's own name for it, and return all that it says.

        A server that does not answer in time, or is not there, gives a text that begins with `Error:`.

        Raises:
            ToolExecutionError: the tool refused, or the call could not be made as it is.
        """
        request = self._request(tool_name, arguments)
        if self._service is None:
            return self._away()
        began = _told_of(request)
        try:
            result = await self._service.execute_tool(request)
        except ServiceClosedError as error:
            return f"{ERROR_PREFIX}{error}"
        return self._said(result, began)

    def call_tool_blocking(self, tool_name: str, arguments: Mapping[str, Any] | None = None) -> str:
        """The same for a thread that may stand still.

        Raises:
            ToolExecutionError: see `call_tool`.
            WrongThreadError: this is the loop that would have to answer; `call_tool` can be awaited there.
        """
        request = self._request(tool_name, arguments)
        if self._service is None:
            return self._away()
        began = _told_of(request)
        try:
            result = self._service.blocking.execute_tool(request)
        except ServiceClosedError as error:
            return f"{ERROR_PREFIX}{error}"
        return self._said(result, began)

    def _request(self, tool_name: str, arguments: Mapping[str, Any] | None) -> ToolRequest:
        check_name(tool_name)
        name = canonical((ServerName(self._config.name), FeatureName(tool_name)))
        # Under a namespace no other server's tool can be meant, whatever that is called.
        return ToolRequest(name, self._config.name, as_parameters(arguments))

    def _away(self) -> str:
        return f"{ERROR_PREFIX}MCP server {self._config.name} is not connected."

    def _said(self, result: ToolResult, began: float) -> str:
        if result.is_success:
            text = said_by(result)
            _log_end(result, began, f"{len(text)} characters")
            return text
        _log_end(result, began, str(result.status))
        why = cut(result.error_message or f"{result.tool_name} failed", MCP_RESULT_CHARS)
        if result.status in _TOLD or (result.status is ToolStatus.NOT_FOUND and not self.is_connected):
            return f"{ERROR_PREFIX}{why}"
        raise ToolExecutionError(result.tool_name, why, result)


def definition_of(entry: Entry) -> dict[str, Any]:
    """A tool in the form of the protocol, under the server's own name for it."""
    tool = entry.tool
    definition: dict[str, Any] = {"name": str(entry.name), "description": tool.description}
    for member, key in (("title", "title"), ("annotations", "annotations"), ("outputSchema", "output_schema")):
        if key in tool.metadata:
            definition[member] = tool.metadata[key]
    return {**definition, "inputSchema": tool.parameters_schema or {"type": "object"}}


def _told_of(request: ToolRequest) -> float:
    """Log a call; of arguments only names and sizes, since a value may be anybody's secret."""
    if log.isEnabledFor(logging.DEBUG):
        given: object = request.parameters
        named = given if isinstance(given, dict) else {"what are no arguments": given}
        sizes = (f"{name!s} ({_size_of(value)})" for name, value in named.items())
        log.debug("Calling %s with %s", request.tool_name, ", ".join(sizes) or "no arguments")
    return time.perf_counter()


def _size_of(value: object) -> str:
    try:
        return str(len(json_of(value)))
    except (ValueError, TypeError, RecursionError):  # it is no JSON, which the hub will say
        return "?"


def _log_end(result: ToolResult, began: float, how: str) -> None:
    log.debug("%s ended after %.3f s: %s", result.tool_name, time.perf_counter() - began, how)
