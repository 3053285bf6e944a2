"""What a program has of its own as tools: functions by `@tool`, for every hub of this process, and `Tool` objects.

A function stays what it was; a description of it goes into the table of `upstream.python.registry`, from which each hub
shows it as `builtin.<name>`, in process and on every face. An object is shown by the hub of the one service that it
was given to. Imported by programs, by way of `isthmus.library`, and by the service.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, overload

import msgspec

from isthmus.app.hub import RunningHub
from isthmus.core.catalog.names import BUILTIN
from isthmus.library.contracts import ToolRequest, ToolResult, ToolStatus, ToolStreamChunk
from isthmus.library.errors import ConfigurationError
from isthmus.library.function_schemas import schema_problem
from isthmus.library.results import ToolFailure
from isthmus.library.tools import Tool, partial_output
from isthmus.upstream.python.context import Context as ToolContext
from isthmus.upstream.python.context import NoAnswerError
from isthmus.upstream.python.registry import REGISTRY, FunctionOrigin, NameTaken
from isthmus.upstream.python.signatures import BadArgument, Function, Traits, Unusable
from isthmus.wire.jsonrpc import Payload
from isthmus.wire.mcp.calls import failed_tool_result

__all__ = ["NoAnswerError", "ToolContext", "tool"]

F = TypeVar("F", bound=Callable[..., Any])

NAME_LENGTH_MAX = 128
"""As the protocol has it."""


class ToolDecorator:
    """Makes tools of functions: `@tool`, or `@tool(name=…)`; `tool.remove(name)` takes one away."""

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
        """Make a tool of a function, which is returned as it was.

        Its schema is read from the signature: annotations are types, those of `ToolContext` are given by the hub, and
        the docstring describes it and its parameters. A plain function runs in a thread, unless it is `inline`: then
        it runs on the hub's loop, and must neither wait nor compute. An asynchronous one runs on the hub's loop.

        Args:
            function: The function, where nothing else is said.
            name: What the tool is called; the function's own name if it is not said.
            description: What agents are told; the docstring if it is not said.
            annotations: MCP's hints, such as `{"readOnlyHint": True}`.
            permissions: What a `UserContext` must have been given to use it, all of it, beside the tool itself.
                Callers on the network are held to their `allow` alone.
            inline: It is quick, and is called without a thread.

        Raises:
            ConfigurationError: it cannot be described, or another tool has the name.
        """
        needed = (permissions,) if isinstance(permissions, str) else tuple(permissions)
        traits = Traits(description, annotations, needed, inline)
        if function is not None:
            return _register(function, name, traits)

        def decorate(decorated: F) -> F:
            return _register(decorated, name, traits)

        return decorate

    def remove(self, tool: str | Callable[..., Any]) -> bool:
        """Take a tool away from every hub, by its name or by its function; False if there is none."""
        if isinstance(tool, str):
            return REGISTRY.remove(tool.removeprefix("builtin."))
        names = [name for name, known in REGISTRY.functions().items() if getattr(known, "function", None) is tool]
        for name in names:
            REGISTRY.remove(name)
        return bool(names)


tool = ToolDecorator()


def _register(function: F, name: str | None, traits: Traits) -> F:
    called = _name_of(function) if name is None else name
    _check_name(called)
    if _is_unbound(function):
        raise ConfigurationError(
            f"{called} cannot be a tool: it is a method; make one of a bound one, tool(object.{called})"
        )
    try:
        REGISTRY.add(Function(called, function, traits), _origin_of(function))
    except Unusable as unusable:
        raise ConfigurationError(f"{called} cannot be a tool: {unusable}") from unusable
    except NameTaken as taken:
        raise ConfigurationError(f"{called} cannot be a tool: {taken}") from taken
    return function


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not 0 < len(name) <= NAME_LENGTH_MAX or not name.isprintable() or " " in name:
        said = f"use 1 to {NAME_LENGTH_MAX} characters without spaces"
        raise ConfigurationError(f"{name!r} cannot be the name of a tool: {said}")


def _name_of(function: Callable[..., Any]) -> str:
    found = getattr(function, "__name__", "")
    if not found or not found.isidentifier():
        raise ConfigurationError(f"{function!r} has no name that a tool can have: say one, as @tool(name=...)")
    return str(found)


def _is_unbound(function: Callable[..., Any]) -> bool:
    """Whether it is a method as its class has it, which would want its own object of callers."""
    if not inspect.isfunction(function):
        return False
    outer = function.__qualname__.rpartition(".")[0]
    first = next(iter(inspect.signature(function).parameters), "")
    return bool(outer) and not outer.endswith("<locals>") and first in ("self", "cls")


def _origin_of(function: Callable[..., Any]) -> FunctionOrigin:
    code = getattr(inspect.unwrap(function), "__code__", None)
    file = "" if code is None or code.co_filename.startswith("<") else code.co_filename
    qualname = getattr(function, "__qualname__", type(function).__qualname__)
    return FunctionOrigin(function.__module__ or "", qualname, file)


# -- tools that are objects --------------------------------------------------------------------------------------------


def register_tool(running: RunningHub, tool: Tool) -> None:
    """Have a hub show a `Tool` as `builtin.name`, or as `namespace.name`. On the hub's loop only.

    Raises:
        ConfigurationError: its name is taken, or cannot be used, or it cannot be described.
        TypeError: it is no `Tool`.
    """
    if not isinstance(tool, Tool):
        raise TypeError(f"only a Tool can be registered, not {type(tool).__name__}: make one of a function by @tool")
    _check_name(tool.name)
    try:
        function = ToolFunction(tool)
        _check_description(tool, function)
        running.functions.add(function, tool.namespace or BUILTIN)
    except ValueError as error:
        raise ConfigurationError(f"{tool.full_name} cannot be a tool: {error}") from error


def _check_description(tool: Tool, function: ToolFunction) -> None:
    """Refuse what cannot be shown: one tool that cannot would cost all that are shown with it."""
    if not isinstance(tool.namespace, str | None):
        raise ValueError(f"its namespace must be a text, not {tool.namespace!r}")
    try:
        function.definition()
    except TypeError as error:
        raise ValueError(f"its description is no JSON: {error}") from error
    if (problem := schema_problem(tool.parameters_schema or {})) is not None:
        raise ValueError(f"its parameters_schema is wrong: {problem}")


_ARGUMENTS = msgspec.json.Decoder(dict[str, Any])


class ToolFunction:
    """A `Tool` as what a hub runs."""

    is_async = True
    is_inline = False

    def __init__(self, tool: Tool) -> None:
        self._tool = tool
        self.name = tool.name

    @property
    def takes_context(self) -> bool:
        """Whether it tells something while it works."""
        return self._tool.supports_streaming

    def definition(self) -> dict[str, msgspec.Raw]:
        """Its description, as it says itself."""
        described: dict[str, Any] = {"name": self.name, "description": self._tool.description}
        described["inputSchema"] = self._tool.parameters_schema or {"type": "object"}
        return {key: msgspec.Raw(msgspec.json.encode(value)) for key, value in described.items() if value}

    def read(self, arguments: Payload) -> dict[str, Any]:
        """The arguments as they are: the hub has checked them against the schema."""
        try:
            return _ARGUMENTS.decode(arguments)
        except msgspec.MsgspecError as error:
            raise BadArgument(str(error)) from error

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        """Execute it, and return its result in the words of MCP."""
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
            if not _is_chunk(chunk):
                raise TypeError(f"its stream must yield a ToolStreamChunk, not {type(chunk).__name__}")
            if last is not None and _is_end(last):
                continue  # it has ended, and tidies up
            last = chunk
            if not _is_end(chunk):
                _pass_on(chunk, context)
        if last is None or (last.chunk_type in ("progress", "log") and not last.is_final):
            raise RuntimeError("its stream ended without a final chunk")
        return _value_of(_result_of(last))


def _is_chunk(yielded: object) -> bool:
    return isinstance(yielded, ToolStreamChunk)


def _is_end(chunk: ToolStreamChunk) -> bool:
    """Whether nothing comes after it, also where its author left out to say so."""
    return chunk.is_final or chunk.chunk_type in ("complete", "error")


def _pass_on(chunk: ToolStreamChunk, context: ToolContext) -> None:
    content: Any = chunk.content
    match chunk.chunk_type:
        case "progress":
            context.progress(*_progress_in(content))
        case "log":
            said = content if isinstance(content, dict) else {"data": content}
            context.log(said.get("level", "info"), str(said.get("data", said.get("message", ""))))
        case _:
            context.tell(partial_output(content))


def _progress_in(content: Any) -> tuple[float, float | None, str | None]:
    if isinstance(content, dict):
        return content.get("progress", 0), content.get("total"), content.get("message")
    return (content, None, None) if isinstance(content, int | float) else (0, None, str(content))


def _result_of(chunk: ToolStreamChunk) -> ToolResult:
    known = chunk.metadata.get("result")
    if isinstance(known, ToolResult):
        return known
    if chunk.chunk_type == "error":
        return ToolResult(chunk.tool_name, ToolStatus.ERROR, error_message=str(chunk.content))
    return ToolResult(chunk.tool_name, ToolStatus.SUCCESS, result_data=chunk.content)


def _value_of(result: object) -> Any:
    """A result as a function would return it; of one that failed, what went wrong and in which way."""
    if not isinstance(result, ToolResult):
        raise TypeError(f"it must give a ToolResult, not {type(result).__name__}")
    if result.is_success:
        return result.result_data
    status = _status_of(result)
    words = result.error_message or (result.error and result.error.message) or result.text or str(status)
    return ToolFailure(failed_tool_result(words).payload, is_error=True, status=status, error=result.error)


def _status_of(result: ToolResult) -> ToolStatus:
    try:
        return ToolStatus(result.status)
    except ValueError:
        raise ValueError(f"its status must be one of {', '.join(ToolStatus)}, not {result.status!r}") from None
