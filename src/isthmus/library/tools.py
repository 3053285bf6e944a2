"""Tools as objects: `Tool`, the base class for a program's own tools, and `MCPTool`, a tool of the service."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from isthmus.library.contracts import ToolRequest, ToolResult, ToolStreamChunk, UniversalTool
from isthmus.model.calls import LogMessage
from isthmus.upstream.python.signatures import encode_hook

if TYPE_CHECKING:
    from isthmus.library.catalog import ToolEntry
    from isthmus.library.service import ToolService
    from isthmus.library.streaming import ChunkStream


class Tool(ABC):
    """An executable tool. Subclass it and pass it to `ToolService.register_tool`, or use `@tool` on a function."""

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
        """Execute the tool; a failure is a status of the result."""

    async def execute_stream(self, tool_request: ToolRequest) -> AsyncIterator[ToolStreamChunk]:
        """Execute the tool and yield chunks; by default only those of the result."""
        result = await self.execute(tool_request)
        for chunk in final_chunks(result):
            yield chunk

    @property
    def supports_streaming(self) -> bool:
        """Whether a subclass overrides `execute_stream`."""
        return type(self).execute_stream is not Tool.execute_stream

    def universal(self) -> UniversalTool:
        """The tool for frameworks."""
        return UniversalTool(
            self.full_name,
            self.description,
            self.parameters_schema,
            self.namespace,
            [self.full_name],
            self.supports_streaming,
        )


class PartialOutput(LogMessage, frozen=True):
    """Part of a tool's output, before its end. Code that does not know this class sees a log line."""


def partial_output(content: Any) -> PartialOutput:
    """Make an event of part of a tool's output."""
    members = {"level": "info", "data": content}
    return PartialOutput(
        "info", {key: msgspec.Raw(msgspec.json.encode(value, enc_hook=encode_hook)) for key, value in members.items()}
    )


def final_chunks(result: ToolResult, at: datetime | None = None) -> list[ToolStreamChunk]:
    """The chunks of a finished execution: output and end, or the error."""
    when = at if at is not None else datetime.now(UTC)
    whole: dict[str, Any] = {"result": result}
    if not result.is_success:
        return [ToolStreamChunk(result.tool_name, "error", result.error_message, True, 0, whole, when)]
    return [
        ToolStreamChunk(result.tool_name, "data", result.result_data, False, 0, {}, when),
        ToolStreamChunk(result.tool_name, "complete", result.result_data, True, 1, whole, when),
    ]


class MCPTool(Tool):
    """A tool of the service's hub."""

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
        """Always: progress and logs of its server are chunks."""
        return True

    def universal(self) -> UniversalTool:
        """See `Tool`."""
        return self._entry.tool

    async def execute(self, tool_request: ToolRequest) -> ToolResult:
        """Execute this tool; the request's tool name is ignored."""
        return await self._service.execute_tool(replace(tool_request, tool_name=self.full_name, tool_namespace=None))

    def execute_stream(self, tool_request: ToolRequest) -> ChunkStream:
        """See `Tool`; closing the stream cancels the call at the server."""
        return self._service.execute_tool_stream(replace(tool_request, tool_name=self.full_name, tool_namespace=None))
