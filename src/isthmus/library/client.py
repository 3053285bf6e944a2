"""A client of one MCP server: a service with a single server under it, and that server's own names.

For programs that think in servers rather than in tools. Connections, limits and outcomes are the hub's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any

from isthmus.library.catalog import check_name
from isthmus.library.contracts import ToolRequest, ToolStreamChunk, UniversalTool
from isthmus.library.errors import ServerConnectionError, ToolExecutionError
from isthmus.library.executions import ChunkStream
from isthmus.library.owner import Owner, OwnersLock
from isthmus.library.questions import Questions
from isthmus.library.running import HasCatalog, ended
from isthmus.library.servers import MCPServerConfig
from isthmus.library.service import ToolService


class MCPClient:
    """One server, connected when it is first needed; whoever makes a client closes it."""

    def __init__(self, config: MCPServerConfig | Mapping[str, Any], *, questions: Questions | None = None) -> None:
        self.config = MCPServerConfig.of(config)
        self._questions = questions
        self._service: ToolService | None = None
        self._connecting = OwnersLock()

    @property
    def is_connected(self) -> bool:
        """Whether it was connected and not closed; a server that is lost meanwhile is connected again by itself."""
        return self.service is not None

    @property
    def service(self) -> ToolService | None:
        """What it is connected by, as long as it is; in a forked process nothing, until it is needed there."""
        return None if self._service is None or self._service.is_inherited else self._service

    async def connect(self) -> None:
        """Connect; nothing happens if it is connected.

        Raises:
            ServerConnectionError: it cannot be reached; a later attempt starts anew.
        """
        await self._connected()

    async def discover_tools(self) -> list[UniversalTool]:
        """The server's tools, as it lists them now."""
        service = await self._connected()
        catalog = await service.catalog()
        return [entry.tool for entry in catalog.entries.values() if entry.server == self.config.name]

    async def call_tool(self, name: str, arguments: Mapping[str, Any] | None = None) -> Any:
        """Execute a tool, by the server's own name for it or by its full name, and return what it returned.

        Raises:
            ToolExecutionError: it failed, or there is none; `result` says how.
        """
        service = await self._connected()
        result = await service.execute_tool(await self._request(service, name, arguments))
        if not result.is_success:
            raise ToolExecutionError(name, result.error_message or f"{name} failed: {result.status}", result)
        return result.result_data

    def call_tool_stream(self, name: str, arguments: Mapping[str, Any] | None = None) -> ChunkDicts:
        """Execute a tool and tell what happens, when it happens; a failure is the last chunk."""

        async def begin() -> ChunkStream:
            service = await self._connected()
            return service.execute_tool_stream(await self._request(service, name, arguments))

        return ChunkDicts(begin)

    async def close(self) -> None:
        """Close the connection, if there is one; what still runs is cancelled."""
        await Owner.shared().run(self._disconnect())

    async def __aenter__(self) -> MCPClient:
        await self.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # -- the service underneath --------------------------------------------------------------------------------------

    async def _connected(self) -> ToolService:
        service = self.service
        return service if service is not None else await Owner.shared().run(self._connect())

    async def _connect(self) -> ToolService:
        async with self._connecting:
            service = self.service
            if service is None:
                service = self._service = await self._start()
            return service

    async def _start(self) -> ToolService:
        service = ToolService(questions=self._questions)
        try:
            await service.initialize({"mcp_servers": [self.config]})
            ended(service)  # it is this client's own: nobody is to find it who looks for the service of the process
            for server, why in service.failures.items():
                raise ServerConnectionError(server, why)
        except BaseException:
            await service.shutdown()
            raise
        return service

    async def _disconnect(self) -> None:
        async with self._connecting:
            service, self._service = self._service, None
            if service is not None:
                await service.shutdown()

    async def _request(self, service: HasCatalog, name: str, arguments: Mapping[str, Any] | None) -> ToolRequest:
        check_name(name)
        own = f"{self.config.name}.{name}"
        is_own = "." not in name or own in (await service.catalog()).entries
        return ToolRequest(own if is_own else name, self.config.name, as_parameters(arguments))


def as_parameters(arguments: Any) -> Any:
    """Arguments as a request has them; what are none are for the hub to refuse."""
    if arguments is None or isinstance(arguments, Mapping):
        return dict(arguments or {})
    return arguments


class ChunkDicts:
    """The chunks of one execution as dictionaries; closing it, or leaving it behind, cancels what still runs."""

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
        return as_dict(await self._chunks.__anext__())

    async def aclose(self) -> None:
        """Stop; what still runs is cancelled at the server."""
        self._is_closed = True
        if self._chunks is not None:
            await self._chunks.aclose()


def as_dict(chunk: ToolStreamChunk) -> dict[str, Any]:
    """A chunk without its class."""
    return {
        "type": chunk.chunk_type,
        "content": chunk.content,
        "is_final": chunk.is_final,
        "sequence_id": chunk.sequence_id,
        "timestamp": chunk.timestamp,
    }
