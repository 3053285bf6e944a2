"""The tools of a service in pydantic-ai: `HubToolset` for `Agent(toolsets=[...])`, current at every step of a run.

A tool has the JSON Schema of its server, and the hub checks arguments against it: invalid ones are `ModelRetry`, every
other failure is `ToolFailed`. The model gets structured content if there is any. The result of a call is the `metadata`
of its return and a `HubResultEvent`; progress and logs are `HubProgressEvent` and `HubLogEvent` of the run's stream.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Generic, TypeAlias, TypeGuard, TypeVar

try:
    import pydantic_ai as _pydantic_ai  # noqa: F401 - to name the missing package
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "pydantic-ai is not installed here: pip install 'isthmus[pydantic-ai]'", name=error.name, path=error.path
    ) from error

from pydantic_ai import BinaryContent, CustomEvent, RunContext, ToolDefinition, ToolReturn
from pydantic_ai.exceptions import ApprovalRequired, ModelRetry, ToolFailed, UserError
from pydantic_ai.messages import ModelRequest, RetryPromptPart, ToolCallPart, ToolReturnPart
from pydantic_ai.toolsets import AbstractToolset, ToolsetTool
from pydantic_core import SchemaValidator, ValidationError, core_schema

from isthmus.library.agent_tools import (
    AgentTools,
    Approval,
    CallOptions,
    Selection,
    llm_name_of,
    not_approved,
    unreadable_arguments,
)
from isthmus.library.errors import ToolDeniedError, ToolError, ToolNotFoundError, ToolUnreachableError
from isthmus.library.outcomes_to_results import refused_result
from isthmus.library.provider_formats import (
    ModelImage,
    model_parts,
    provider_schema,
    result_record,
    result_text,
    result_value,
)
from isthmus.library.public_types import (
    ToolRequest,
    ToolResult,
    ToolStatus,
    ToolStreamChunk,
    UniversalTool,
    UserContext,
)
from isthmus.library.service import ToolService

DepsT = TypeVar("DepsT")

UserOf: TypeAlias = UserContext | Callable[[RunContext[Any]], UserContext | None] | None
"""The user, or a function that reads the user from a run's context (`ctx.deps`)."""

SessionOf: TypeAlias = str | Callable[[RunContext[Any]], str | None] | None
"""The conversation, sent to servers; by default the run's `conversation_id`."""

HeadersOf: TypeAlias = Mapping[str, str] | Callable[[RunContext[Any]], Mapping[str, str] | None] | None
"""Sent to servers that are configured to receive them."""

_CallAnswer: TypeAlias = ToolReturnPart | RetryPromptPart

_ANY_OBJECT = SchemaValidator(core_schema.dict_schema(core_schema.str_schema(), core_schema.any_schema()))


@dataclass(kw_only=True)
class HubProgressEvent(CustomEvent):
    """Progress of a tool."""

    tool: str
    progress: float
    timestamp: datetime
    total: float | None = None
    message: str | None = None


@dataclass(kw_only=True)
class HubLogEvent(CustomEvent):
    """A log line of a tool's server."""

    tool: str
    level: str
    timestamp: datetime
    content: Any = None


@dataclass(kw_only=True)
class HubResultEvent(CustomEvent):
    """The result of a call, as `result_record` returns it."""

    tool: str
    status: str
    record: dict[str, Any]


class HubToolFailed(ToolFailed):
    """A tool failed or was not executed; `result.status` says how."""

    def __init__(self, message: str, result: ToolResult) -> None:
        super().__init__(message)
        self.result = result


class HubToolset(AbstractToolset[DepsT], Generic[DepsT]):
    """Tools of a hub. Leaving the toolset does not shut the service down."""

    def __init__(  # noqa: PLR0913 - independent options
        self,
        service: ToolService,
        names: Selection | None = None,
        user_context: UserOf = None,
        *,
        session_id: SessionOf = None,
        headers: HeadersOf = None,
        needs_approval: Approval = False,
        timeout: float | None = None,
        max_retries: int = 1,
        id: str | None = None,
    ) -> None:
        """Select the tools and the user of the calls.

        Args:
            service: an initialized service.
            names: names in any form, or the tools of a task request; by default all that the user may use.
            user_context: the user of the calls. With a function, a run has the tools that its user may use.
            session_id: the conversation, sent to servers.
            headers: sent to servers that are configured to receive them.
            needs_approval: calls that need approval (`DeferredToolRequests`).
            timeout: seconds for a call.
            max_retries: how often a model may retry after invalid arguments.
            id: the id for durable execution.
        """
        self._tools = AgentTools(service, names, needs_approval=needs_approval)
        self._options: CallOptions[RunContext[Any]] = CallOptions(user_context, session_id, headers, timeout)
        self._max_retries = max_retries
        self._id = id

    @property
    def id(self) -> str | None:
        """The id for durable execution."""
        return self._id

    async def get_tools(self, ctx: RunContext[DepsT]) -> dict[str, ToolsetTool[DepsT]]:
        """The current tools for a step of a run, by name; no request to a server is needed.

        Raises:
            ToolError, UnresolvedToolsError: the first time, for names that are unknown or denied.
        """
        user = self._options.user(ctx)
        tools = await self._tools.tools(user, is_shared=self._options.is_shared)
        # Tools are listed just before the model gets the last message, which may still be changed.
        last = ctx.messages[-1] if ctx.messages else None
        for part in last.parts if isinstance(last, ModelRequest) else ():
            if _is_unknown_tool(part):
                await self._explain(part, user, ctx)
            elif isinstance(text := getattr(part, "content", None), _FailureText):
                # The result belongs where a successful call has it, and the message needs the plain text.
                part.content = str(text)
                if isinstance(part, ToolReturnPart):
                    part.metadata = result_record(text.result)
                if not text.is_emitted:
                    await _emit(ctx, _result_event(text.result))
            elif (
                isinstance(part, ToolReturnPart)
                and getattr(part, "outcome", None) == "denied"
                and part.metadata is None
                and (denied := await self._tools.find(part.tool_name, user)) is not None
            ):
                # pydantic-ai tells the model, in its own words or in those of the person who rejected the call.
                result = self._noted(ctx, not_approved(denied), _arguments_of(part, ctx))
                part.metadata = result_record(result)
                await _emit(ctx, _result_event(result))
        return {llm_name_of(tool): self._toolset_tool(tool, partial(self._noted, ctx)) for tool in tools}

    def _noted(self, ctx: RunContext[DepsT], refusal: ToolResult, arguments: object) -> ToolResult:
        user, session = self._options.user(ctx), self._options.session(ctx, ctx.conversation_id)
        return self._tools.service.noted(refusal, arguments, user, session)

    async def _explain(self, part: _CallAnswer, user: UserContext | None, ctx: RunContext[DepsT]) -> None:
        """Replace pydantic-ai's reply to an unknown tool by the hub's."""
        name = str(part.tool_name)
        refusal: ToolError = ToolNotFoundError(name)
        try:
            await self._tools.resolve(name, user)  # found: it is new, or a wrapper has filtered it
        except (ToolDeniedError, ToolUnreachableError) as error:
            refusal = error
        except ToolNotFoundError as error:
            # pydantic-ai's reply lists the model's tools, as wrapping toolsets have renamed or filtered them.
            refusal = ToolNotFoundError(
                name, [similar for similar in error.suggestions if repr(similar) in str(part.content)]
            )
        result = refused_result(ToolRequest(name), refusal)
        stored = part.metadata if isinstance(part, ToolReturnPart) else None
        # Another toolset may have stored a result, but one that knows the tool overrules it.
        if stored is None or (
            stored.get("status") == ToolStatus.NOT_FOUND and result.status is not ToolStatus.NOT_FOUND
        ):
            part.content = result_text(self._noted(ctx, result, _arguments_of(part, ctx)))
            if isinstance(part, ToolReturnPart):
                part.metadata = result_record(result)
            await _emit(ctx, _result_event(result))

    def _toolset_tool(
        self, tool: UniversalTool, noted: Callable[[ToolResult, object], ToolResult]
    ) -> ToolsetTool[DepsT]:
        return HubToolsetTool(
            toolset=self,
            tool_def=ToolDefinition(
                name=llm_name_of(tool),
                description=tool.description or None,
                parameters_json_schema=provider_schema(tool.parameters_schema),
                strict=False,  # a strict schema requires every argument
                metadata={
                    "tool": tool.name,
                    "server": tool.namespace,
                    "annotations": tool.metadata.get("annotations") or {},
                },
            ),
            max_retries=self._max_retries,
            args_validator=_ObjectValidator(tool, noted),
            universal=tool,
        )

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[DepsT], tool: ToolsetTool[DepsT]
    ) -> Any:
        """Execute a call.

        Raises:
            ApprovalRequired: the call needs approval.
            ModelRetry: the arguments are invalid.
            ToolFailed: the call failed in another way.
        """
        assert isinstance(tool, HubToolsetTool)
        universal = tool.universal
        if not ctx.tool_call_approved and self._tools.is_approval_needed(universal, tool_args):
            raise ApprovalRequired(metadata={"tool": universal.name, "server": universal.namespace})
        request = self._options.request(universal, tool_args, ctx, ctx.conversation_id)
        result = await self._tools.execute(request, lambda chunk: _emit_chunk(ctx, chunk))
        result = await self._tools.explain(universal, result, request.user_context)
        await _emit(ctx, _result_event(result))
        if result.status is ToolStatus.INVALID_PARAMETERS:
            raise ModelRetry(_failure_text(result))
        if not result.is_success:
            raise HubToolFailed(_failure_text(result), result)
        parts = model_parts(result)
        value = result_value(result)
        if any(isinstance(part, ModelImage) for part in parts):
            value = [
                BinaryContent(data=base64.b64decode(part.data), media_type=part.mime)
                if isinstance(part, ModelImage)
                else part.text
                for part in parts
            ]
        return ToolReturn(return_value=value, metadata=result_record(result))


@dataclass(kw_only=True)
class HubToolsetTool(ToolsetTool[DepsT], Generic[DepsT]):
    """A tool with its definition in the hub."""

    universal: UniversalTool


@dataclass(frozen=True, slots=True)
class _ObjectValidator:
    """Checks only that arguments are an object; the hub checks the rest."""

    tool: UniversalTool
    noted: Callable[[ToolResult, object], ToolResult]

    def validate_json(self, input: str | bytes | bytearray, **options: Any) -> Any:
        """Check arguments that are still JSON."""
        return self._checked(_ANY_OBJECT.validate_json, input, options)

    def validate_python(self, input: Any, **options: Any) -> Any:
        """Check arguments that are parsed."""
        return self._checked(_ANY_OBJECT.validate_python, input, options)

    def _checked(self, validate: Callable[..., Any], given: Any, options: dict[str, Any]) -> Any:
        try:
            return validate(given, **options)
        except ValidationError as error:
            result = self.noted(unreadable_arguments(self.tool.name), given)
            raise ModelRetry(_failure_text(result, is_emitted=False)) from error


# -- unknown and denied tools ------------------------------------------------------------------------------------------


def _arguments_of(part: _CallAnswer, ctx: RunContext[Any]) -> object:
    """The arguments of the answered call; unparsed if they are not an object."""
    parts = (part for message in reversed(ctx.messages) for part in message.parts)
    calls = (each for each in parts if isinstance(each, ToolCallPart) and each.tool_call_id == part.tool_call_id)
    args = next((call.args for call in calls), None)
    try:
        return _ANY_OBJECT.validate_json(args or "{}") if isinstance(args, str) else args
    except ValidationError:
        return args


def _is_unknown_tool(part: Any) -> TypeGuard[_CallAnswer]:
    """Whether it is pydantic-ai's own reply to an unknown tool; toolsets are not asked about those."""
    if isinstance(part, ToolReturnPart):
        retry = getattr(part, "retry", None)
        return retry is not None and retry.cause == "unknown_tool"
    # In releases without a cause, the part has no metadata: there only `HubResultEvent` has the status.
    return isinstance(part, RetryPromptPart) and str(part.content).startswith(f"Unknown tool name: {part.tool_name!r}.")


# -- events ------------------------------------------------------------------------------------------------------------


async def _emit_chunk(ctx: RunContext[Any], chunk: ToolStreamChunk) -> None:
    content = chunk.content if isinstance(chunk.content, dict) else {}
    event: CustomEvent
    if chunk.chunk_type == "progress":
        # Values of the wrong type are dropped: servers may send anything.
        progress, total, message = content.get("progress"), content.get("total"), content.get("message")
        event = HubProgressEvent(
            tool=chunk.tool_name,
            progress=progress if isinstance(progress, int | float) else 0.0,
            timestamp=chunk.timestamp,
            total=total if isinstance(total, int | float) else None,
            message=message if isinstance(message, str) else None,
        )
    else:
        level = str(content.get("level", "info"))
        event = HubLogEvent(tool=chunk.tool_name, level=level, timestamp=chunk.timestamp, content=content.get("data"))
    await _emit(ctx, event)


async def _emit(ctx: RunContext[Any], event: CustomEvent) -> None:
    with suppress(UserError):  # outside a run there is no stream
        await ctx.emit(event)


# -- results -----------------------------------------------------------------------------------------------------------


def _result_event(result: ToolResult) -> HubResultEvent:
    return HubResultEvent(tool=result.tool_name, status=str(result.status), record=result_record(result))


class _FailureText(str):
    """The text of a failure for the model, with the result of the call.

    pydantic-ai copies only the text of an exception into the messages.
    """

    result: ToolResult
    is_emitted: bool
    """Whether the run's stream already has the result."""


def _failure_text(result: ToolResult, *, is_emitted: bool = True) -> _FailureText:
    text = _FailureText(result_text(result))
    text.result, text.is_emitted = result, is_emitted
    return text
