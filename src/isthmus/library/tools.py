"""Tools as objects: the base class for one's own, and what the service gives for those of its hub."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from isthmus.library.contracts import ToolRequest, ToolResult, ToolStreamChunk, UniversalTool
from isthmus.model.events import LogMessage
from isthmus.upstream.python.model_types import encoded

if TYPE_CHECKING:
    from isthmus.library.catalog import ToolEntry
    from isthmus.library.service import ToolService
    from isthmus.library.streaming import ChunkStream


class Tool(ABC):
    """Something that can be executed. Subclass it and give it to `ToolService.register_tool`, or use `@tool`."""

    def __init__(
        self,
        name: str,
        namespace: str | None = None,
        *,
        description: str = "",
        parameters_schema: dict[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.namespace = namespace
        self.description = description
        self.parameters_schema = parameters_schema if parameters_schema is not None else {"type": "object"}

    @property
    def full_name(self) -> str:
        """`namespace.name`."""
        return f"{self.namespace}.{self.name}" if self.namespace else self.name

    @abstractmethod
    async def execute(self, tool_request: ToolRequest) -> ToolResult:
        """Do it; a failure is a status."""

    async def execute_stream(self, tool_request: ToolRequest) -> AsyncIterator[ToolStreamChunk]:
        """Do it and tell what happens: by default there is only the end."""
        result = await self.execute(tool_request)
        for chunk in final_chunks(result):
            yield chunk

    @property
    def supports_streaming(self) -> bool:
        """Whether `execute_stream` tells more than the end, as one does that somebody has written."""
        return type(self).execute_stream is not Tool.execute_stream

    def universal(self) -> UniversalTool:
        """The same for a framework."""
        return UniversalTool(
            self.full_name,
            self.description,
            self.parameters_schema,
            self.namespace,
            [self.full_name],
            self.supports_streaming,
        )


class PartialOutput(LogMessage, frozen=True):
    """Some of what a tool gives, before its end; to who does not know of pieces, a line of the log."""


def partial_output(content: Any) -> PartialOutput:
    """Something that a tool gave, to be told at once."""
    members = {"level": "info", "data": content}
    return PartialOutput(
        "info", {key: msgspec.Raw(msgspec.json.encode(value, enc_hook=encoded)) for key, value in members.items()}
    )


def final_chunks(result: ToolResult, at: datetime | None = None) -> list[ToolStreamChunk]:
    """The chunks of an execution of which nothing is told but its end."""
    when = at if at is not None else datetime.now(UTC)
    whole: dict[str, Any] = {"result": result}
    if not result.is_success:
        return [ToolStreamChunk(result.tool_name, "error", result.error_message, True, 0, whole, when)]
    return [
        ToolStreamChunk(result.tool_name, "data", result.result_data, False, 0, {}, when),
        ToolStreamChunk(result.tool_name, "complete", result.result_data, True, 1, whole, when),
    ]


class MCPTool(Tool):
    """A tool of the service's hub, wherever its server is."""

    def __init__(self, service: ToolService, entry: ToolEntry) -> None:
        super().__init__(
            entry.name, entry.namespace, description=entry.description, parameters_schema=entry.parameters_schema
        )
        self._service = service
        self._entry = entry

    @property
    def full_name(self) -> str:
        """See `Tool`."""
        return self._entry.full_name

    @property
    def supports_streaming(self) -> bool:
        """Whatever its server reports is told."""
        return True

    def universal(self) -> UniversalTool:
        """See `Tool`."""
        return self._entry.tool

    async def execute(self, tool_request: ToolRequest) -> ToolResult:
        """Execute this tool, whatever tool the request names."""
        return await self._service.execute_tool(self._mine(tool_request))

    def execute_stream(self, tool_request: ToolRequest) -> ChunkStream:
        """See `Tool`; closing it cancels what still runs at the server."""
        return self._service.execute_tool_stream(self._mine(tool_request))

    def _mine(self, request: ToolRequest) -> ToolRequest:
        return replace(request, tool_name=self.full_name, tool_namespace=None)
