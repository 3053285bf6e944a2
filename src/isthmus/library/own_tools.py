"""A program's own tools: functions registered by `@tool`, and `Tool` objects; `MCPTool` is a tool of the service.

`@tool` returns the function unchanged and adds its description to the table of registered functions, from which every
hub of the process serves it as `builtin.<name>`, in process and on every frontend. A `Tool` object is served only by
the hub of the service that it was registered with.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar, overload

import msgspec

from isthmus.core.catalog.names import BUILTIN
from isthmus.library.errors import ConfigurationError
from isthmus.library.outcomes_to_results import FailedResult
from isthmus.library.provider_formats import schema_problem
from isthmus.library.public_types import ToolRequest, ToolResult, ToolStatus, ToolStreamChunk, UniversalTool
from isthmus.model.calls import LogMessage
from isthmus.upstream.python.builtin import HubFunctions
from isthmus.upstream.python.context import Context as ToolContext
from isthmus.upstream.python.context import NoAnswerError
from isthmus.upstream.python.registry import REGISTRY, FunctionOrigin, NameTaken
from isthmus.upstream.python.signatures import BadArgument, Function, Traits, Unusable, encode_hook
from isthmus.wire.jsonrpc import Payload
from isthmus.wire.mcp.forwarded_methods import failed_tool_result

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
        """`namespace.name`."""
        return self._entry.full_name

    @property
    def supports_streaming(self) -> bool:
        """Always: progress and logs of its server are chunks."""
        return True

    def universal(self) -> UniversalTool:
        """The tool for frameworks."""
        return self._entry.tool

    async def execute(self, tool_request: ToolRequest) -> ToolResult:
        """Execute this tool; the request's tool name is ignored."""
        return await self._service.execute_tool(replace(tool_request, tool_name=self.full_name, tool_namespace=None))

    def execute_stream(self, tool_request: ToolRequest) -> ChunkStream:
        """Execute the tool and yield chunks; closing the stream cancels the call at the server."""
        return self._service.execute_tool_stream(replace(tool_request, tool_name=self.full_name, tool_namespace=None))


__all__ = ["NoAnswerError", "ToolContext", "tool"]

F = TypeVar("F", bound=Callable[..., Any])

NAME_LENGTH_MAX = 128
"""The limit of MCP."""


class ToolDecorator:
    """Registers functions as tools: `@tool` or `@tool(name=…)`; `tool.remove(name)` removes one."""

    @overload
    def __call__(self, function: F, /) -> F: ...

    @overload
    def __call__(
        self,
        function: None = None,
        /,
        *,
        name: str | None = None,
        description: str | None = None,
        annotations: Mapping[str, Any] | None = None,
        permissions: str | Iterable[str] = (),
        inline: bool = False,
    ) -> Callable[[F], F]: ...

    def __call__(
        self,
        function: Any = None,
        /,
        *,
        name: str | None = None,
        description: str | None = None,
        annotations: Mapping[str, Any] | None = None,
        permissions: str | Iterable[str] = (),
        inline: bool = False,
    ) -> Any:
        """Register a function as a tool; return it unchanged.

        The schema comes from the signature and the docstring. The hub fills parameters annotated with `ToolContext`. A
        `def` runs in a thread, or, if it is `inline`, on the hub's loop, where it must neither wait nor compute. An
        `async def` runs on the hub's loop.

        Args:
            function: The function, for `@tool` without arguments.
            name: The tool's name; by default that of the function.
            description: The tool's description; by default the docstring.
            annotations: MCP's hints, such as `{"readOnlyHint": True}`.
            permissions: Permissions that a `UserContext` must all have, besides the tool itself. For callers on the
                network only their `allow` counts.
            inline: Call the function without a thread.

        Raises:
            ConfigurationError: the function cannot be described, or another tool has the name.
        """
        required = (permissions,) if isinstance(permissions, str) else tuple(permissions)
        traits = Traits(description, annotations, required, inline)
        if function is not None:
            return _register(function, name, traits)

        def decorate(decorated: F) -> F:
            return _register(decorated, name, traits)

        return decorate

    def remove(self, tool: str | Callable[..., Any]) -> bool:
        """Remove a tool from every hub, by its name or its function; False for an unknown tool."""
        if isinstance(tool, str):
            return REGISTRY.remove(tool.removeprefix("builtin."))
        names = [name for name, known in REGISTRY.functions().items() if getattr(known, "function", None) is tool]
        for name in names:
            REGISTRY.remove(name)
        return bool(names)


tool = ToolDecorator()


def _register(function: F, name: str | None, traits: Traits) -> F:
    if name is None:
        name = str(getattr(function, "__name__", ""))
        if not name.isidentifier():
            raise ConfigurationError(f"{function!r} has no name for a tool: give one, as @tool(name=...)")
    _check_name(name)
    # Callers would have to pass `self` to a method of a class.
    outer = function.__qualname__.rpartition(".")[0] if inspect.isfunction(function) else ""
    is_method = bool(outer) and not outer.endswith("<locals>")
    if is_method and next(iter(inspect.signature(function).parameters), "") in ("self", "cls"):
        raise ConfigurationError(f"{name} cannot be a tool: it is an unbound method; use tool(object.{name})")
    code = getattr(inspect.unwrap(function), "__code__", None)
    file = "" if code is None or code.co_filename.startswith("<") else code.co_filename
    qualname = getattr(function, "__qualname__", type(function).__qualname__)
    try:
        REGISTRY.add(Function(name, function, traits), FunctionOrigin(function.__module__ or "", qualname, file))
    except (Unusable, NameTaken) as error:
        raise ConfigurationError(f"{name} cannot be a tool: {error}") from error
    return function


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not 0 < len(name) <= NAME_LENGTH_MAX or not name.isprintable() or " " in name:
        rule = f"use 1 to {NAME_LENGTH_MAX} printable characters without spaces"
        raise ConfigurationError(f"{name!r} cannot be the name of a tool: {rule}")


# -- tools that are objects --------------------------------------------------------------------------------------------


def register_tool(functions: HubFunctions, tool: Tool) -> None:
    """Serve a `Tool` as `builtin.name` or `namespace.name`. On the hub's loop only.

    Raises:
        ConfigurationError: its name is taken or invalid, or its description is invalid.
        TypeError: it is not a `Tool`.
    """
    if not isinstance(tool, Tool):
        raise TypeError(f"register_tool needs a Tool, not {type(tool).__name__}: for a function, use @tool")
    _check_name(tool.name)
    try:
        # One invalid definition would break the list of all tools.
        if not isinstance(tool.namespace, str | None):
            raise ValueError(f"its namespace must be a string, not {tool.namespace!r}")
        function = ToolFunction(tool)
        try:
            function.definition()
        except TypeError as error:
            raise ValueError(f"its description cannot be written as JSON: {error}") from error
        if (problem := schema_problem(tool.parameters_schema or {})) is not None:
            raise ValueError(f"its parameters_schema is wrong: {problem}")
        functions.add(function, tool.namespace or BUILTIN)
    except ValueError as error:
        raise ConfigurationError(f"{tool.full_name} cannot be a tool: {error}") from error


_ARGUMENTS = msgspec.json.Decoder(dict[str, Any])


class ToolFunction:
    """A `Tool` as a function that the hub runs."""

    is_async = True
    is_inline = False

    def __init__(self, tool: Tool) -> None:
        self._tool = tool
        self.name = tool.name

    @property
    def takes_context(self) -> bool:
        """Whether it needs a context to report progress."""
        return self._tool.supports_streaming

    def definition(self) -> dict[str, msgspec.Raw]:
        """Its definition."""
        members: dict[str, Any] = {"name": self.name, "description": self._tool.description}
        members["inputSchema"] = self._tool.parameters_schema or {"type": "object"}
        return {key: msgspec.Raw(msgspec.json.encode(value)) for key, value in members.items() if value}

    def read(self, arguments: Payload) -> dict[str, Any]:
        """Decode the arguments; the hub has already checked them against the schema."""
        try:
            return _ARGUMENTS.decode(arguments)
        except msgspec.MsgspecError as error:
            raise BadArgument(str(error)) from error

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        """Execute it and return its result as a function would."""
        request = ToolRequest(
            self.name,
            tool_namespace=self._tool.namespace,
            parameters=arguments,
            metadata={"caller": context.caller},
            session_id=context.session or None,
        )
        if not self._tool.supports_streaming:
            return _value_of(await self._tool.execute(request))
        last: ToolStreamChunk | None = None
        async for chunk in self._tool.execute_stream(request):
            if not isinstance(chunk, ToolStreamChunk):
                raise TypeError(f"its stream must yield a ToolStreamChunk, not {type(chunk).__name__}")
            if last is not None and _is_end(last):
                continue  # after its end it only cleans up
            last = chunk
            if not _is_end(chunk):
                _pass_on(chunk, context)
        if last is None or (last.chunk_type in ("progress", "log") and not last.is_final):
            raise RuntimeError("its stream ended without a final chunk")
        known = last.metadata.get("result")
        if isinstance(known, ToolResult):
            return _value_of(known)
        if last.chunk_type == "error":
            return _value_of(ToolResult(last.tool_name, ToolStatus.ERROR, error_message=str(last.content)))
        return last.content


def _is_end(chunk: ToolStreamChunk) -> bool:
    """Whether it is the last chunk, even if its author did not set `is_final`."""
    return chunk.is_final or chunk.chunk_type in ("complete", "error")


def _pass_on(chunk: ToolStreamChunk, context: ToolContext) -> None:
    content: Any = chunk.content
    match chunk.chunk_type:
        case "progress":
            if isinstance(content, dict):
                context.progress(content.get("progress", 0), content.get("total"), content.get("message"))
            elif isinstance(content, int | float):
                context.progress(content, None, None)
            else:
                context.progress(0, None, str(content))
        case "log":
            members = content if isinstance(content, dict) else {"data": content}
            context.log(members.get("level", "info"), str(members.get("data", members.get("message", ""))))
        case _:
            encoded = {"level": msgspec.json.encode("info"), "data": msgspec.json.encode(content, enc_hook=encode_hook)}
            context.emit(PartialOutput("info", {key: msgspec.Raw(value) for key, value in encoded.items()}))


def _value_of(result: object) -> Any:
    """A result as a function would return it; a failure keeps its message and status."""
    if not isinstance(result, ToolResult):
        raise TypeError(f"it must return a ToolResult, not {type(result).__name__}")
    if result.is_success:
        return result.result_data
    try:
        status = ToolStatus(result.status)
    except ValueError:
        raise ValueError(f"its status must be one of {', '.join(ToolStatus)}, not {result.status!r}") from None
    message = result.error_message or (result.error and result.error.message) or result.text or str(status)
    return FailedResult(failed_tool_result(message).payload, is_error=True, status=status, error=result.error)
