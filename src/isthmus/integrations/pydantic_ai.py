"""A service's tools in pydantic-ai: `HubToolset` for `Agent(toolsets=[...])`, live at every step of a run.

A tool has the raw JSON Schema of its server, and the hub checks arguments against it: bad ones are `ModelRetry`, every
other failure is `ToolFailed`. The model is given structured content where the tool gave some. How a call ended is the
`metadata` of its return and a `HubResultEvent`; progress and logs are `HubProgressEvent` and `HubLogEvent` of the
run's stream while the tool runs.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Generic, TypeAlias, TypeGuard, TypeVar

try:
    import pydantic_ai as _pydantic_ai  # noqa: F401 - to say what is missing, if it is
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "pydantic-ai is not installed here: pip install 'isthmus[pydantic-ai]'", name=error.name, path=error.path
    ) from error

from pydantic_ai import BinaryContent, CustomEvent, RunContext, ToolDefinition, ToolReturn
from pydantic_ai.exceptions import ApprovalRequired, ModelRetry, ToolFailed, UserError
from pydantic_ai.messages import ModelRequest, RetryPromptPart, ToolCallPart, ToolReturnPart
from pydantic_ai.toolsets import AbstractToolset, ToolsetTool
from pydantic_core import SchemaValidator, ValidationError, core_schema

from isthmus.library.contracts import ToolRequest, ToolResult, ToolStatus, ToolStreamChunk, UniversalTool, UserContext
from isthmus.library.errors import ToolDeniedError, ToolNotFoundError, ToolUnreachableError
from isthmus.library.forms import for_model
from isthmus.library.parts import Image, Part, parts_of, record_of, said_by, value_of
from isthmus.library.results import refused
from isthmus.library.service import ToolService
from isthmus.library.toolbox import Approval, Selection, Terms, Toolbox, llm_name_of, not_approved, unreadable

DepsT = TypeVar("DepsT")

UserOf: TypeAlias = UserContext | Callable[[RunContext[Any]], UserContext | None] | None
"""On whose behalf: one user, or a function that reads the user from a run's context (`ctx.deps`)."""

SessionOf: TypeAlias = str | Callable[[RunContext[Any]], str | None] | None
"""What servers are told as the conversation; without, the run's `conversation_id`."""

HeadersOf: TypeAlias = Mapping[str, str] | Callable[[RunContext[Any]], Mapping[str, str] | None] | None
"""Sent to those servers that are configured to receive them."""

_Answer: TypeAlias = ToolReturnPart | RetryPromptPart

_ANY_OBJECT = SchemaValidator(core_schema.dict_schema(core_schema.str_schema(), core_schema.any_schema()))


@dataclass(kw_only=True)
class HubProgressEvent(CustomEvent):
    """How far a tool is."""

    tool: str
    progress: float
    timestamp: datetime
    total: float | None = None
    message: str | None = None


@dataclass(kw_only=True)
class HubLogEvent(CustomEvent):
    """What a tool's server logs meanwhile."""

    tool: str
    level: str
    timestamp: datetime
    content: Any = None


@dataclass(kw_only=True)
class HubResultEvent(CustomEvent):
    """How a call ended, as `record_of` says it; `status` tells the ways to fail apart."""

    tool: str
    status: str
    record: dict[str, Any]


class HubToolFailed(ToolFailed):
    """A tool failed, or was not executed; `result` says how, by its `status`."""

    def __init__(self, message: str, result: ToolResult) -> None:
        super().__init__(message)
        self.result = result


class HubToolset(AbstractToolset[DepsT], Generic[DepsT]):
    """Tools of a hub. The service stays its owner's: leaving the toolset does not shut it down."""

    def __init__(  # noqa: PLR0913 - each is a choice of its own
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
        """What an agent has.

        Args:
            service: an initialised service.
            names: in any form, or the tools of a task request; without, everything that the user may use.
            user_context: on whose behalf. Where it is a function, a run has those tools that its user may use.
            session_id: what servers are told as the conversation.
            headers: sent to those servers that are configured to receive them.
            needs_approval: which calls wait for approval (`DeferredToolRequests`).
            timeout: seconds that a call may take.
            max_retries: how often a model may try again after bad arguments.
            id: what durable execution knows it by.
        """
        self._box = Toolbox(service, names, needs_approval=needs_approval)
        self._terms: Terms[RunContext[Any]] = Terms(user_context, session_id, headers, timeout)
        self._max_retries = max_retries
        self._id = id

    @property
    def id(self) -> str | None:
        """See `AbstractToolset`."""
        return self._id

    async def get_tools(self, ctx: RunContext[DepsT]) -> dict[str, ToolsetTool[DepsT]]:
        """See `AbstractToolset`; nothing is asked of a server.

        Raises:
            ToolError, UnresolvedToolsError: at first, for names that are no tool's or not this user's to use.
        """
        user = self._terms.user(ctx)
        tools = await self._box.tools(user, is_shared=self._terms.is_shared)
        for part in _last_parts(ctx):
            if _is_miss(part):
                await self._explain(part, user, ctx)
            elif isinstance(words := getattr(part, "content", None), _Words):
                await _record(part, words, ctx)
            elif _is_denied(part) and (denied := await self._box.find(part.tool_name, user)) is not None:
                # The model is told by pydantic-ai, in words of its own or of whoever said no.
                result = self._noted(ctx, not_approved(denied), _given(part, ctx))
                part.metadata = record_of(result)
                await _emit(ctx, _ended(result))
        return {llm_name_of(tool): self._toolset_tool(tool, partial(self._noted, ctx)) for tool in tools}

    def _noted(self, ctx: RunContext[DepsT], refusal: ToolResult, arguments: object) -> ToolResult:
        user, session = self._terms.user(ctx), self._terms.session(ctx, ctx.conversation_id)
        return self._box.service.noted(refusal, arguments, user, session)

    async def _explain(self, part: _Answer, user: UserContext | None, ctx: RunContext[DepsT]) -> None:
        """Put how the call ended into what the model is about to be told of it."""
        result = await self._miss(str(part.tool_name), str(part.content), user)
        if _is_news(part, result):
            part.content = said_by(self._noted(ctx, result, _given(part, ctx)))
            if isinstance(part, ToolReturnPart):
                part.metadata = record_of(result)
            await _emit(ctx, _ended(result))

    async def _miss(self, name: str, told: str, user: UserContext | None) -> ToolResult:
        """How the call ended; there may be such a tool, which came since, or which a wrapped toolset left out."""
        try:
            await self._box.called(name, user)
        except (ToolDeniedError, ToolUnreachableError) as error:
            return refused(ToolRequest(name), error)
        except ToolNotFoundError as error:
            # What pydantic-ai said names all that the model has, as wrapped toolsets have renamed or filtered it.
            known = [each for each in error.suggestions if repr(each) in told]
            return refused(ToolRequest(name), ToolNotFoundError(name, known))
        return refused(ToolRequest(name), ToolNotFoundError(name))

    def _toolset_tool(
        self, tool: UniversalTool, noted: Callable[[ToolResult, object], ToolResult]
    ) -> ToolsetTool[DepsT]:
        return HubToolsetTool(
            toolset=self,
            tool_def=_definition(tool),
            max_retries=self._max_retries,
            args_validator=_Arguments(tool, noted),
            universal=tool,
        )

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[DepsT], tool: ToolsetTool[DepsT]
    ) -> Any:
        """See `AbstractToolset`.

        Raises:
            ApprovalRequired: somebody has to agree first.
            ModelRetry: the arguments do not fit the tool.
            ToolFailed: the call failed in any other way.
        """
        assert isinstance(tool, HubToolsetTool)
        universal = tool.universal
        if not ctx.tool_call_approved and self._box.is_approval_needed(universal, tool_args):
            raise ApprovalRequired(metadata={"tool": universal.name, "server": universal.namespace})
        request = self._terms.request(universal, tool_args, ctx, ctx.conversation_id)
        result = await self._box.execute(request, lambda chunk: _tell(ctx, chunk))
        result = await self._box.told(universal, result, request.user_context)
        await _emit(ctx, _ended(result))
        return _returned(result)


@dataclass(kw_only=True)
class HubToolsetTool(ToolsetTool[DepsT], Generic[DepsT]):
    """A tool that knows which one of the hub it is."""

    universal: UniversalTool


@dataclass(frozen=True, slots=True)
class _Arguments:
    """The hub checks arguments; here they only have to be an object."""

    tool: UniversalTool
    noted: Callable[[ToolResult, object], ToolResult]

    def validate_json(self, input: str | bytes | bytearray, **options: Any) -> Any:
        """See `SchemaValidator`."""
        return self._checked(_ANY_OBJECT.validate_json, input, options)

    def validate_python(self, input: Any, **options: Any) -> Any:
        """See `SchemaValidator`."""
        return self._checked(_ANY_OBJECT.validate_python, input, options)

    def _checked(self, validate: Callable[..., Any], given: Any, options: dict[str, Any]) -> Any:
        try:
            return validate(given, **options)
        except ValidationError as error:
            result = self.noted(unreadable(self.tool.name), given)
            raise ModelRetry(_words_of(result, is_told=False)) from error


def _definition(tool: UniversalTool) -> ToolDefinition:
    return ToolDefinition(
        name=llm_name_of(tool),
        description=tool.description or None,
        parameters_json_schema=for_model(tool.parameters_schema),
        strict=False,  # a strict schema requires every argument
        metadata={"tool": tool.name, "server": tool.namespace, "annotations": tool.metadata.get("annotations") or {}},
    )


# -- names that the agent does not have --------------------------------------------------------------------------------


def _last_parts(ctx: RunContext[Any]) -> Sequence[Any]:
    """What the model is about to be told.

    The list of tools is made just before, and a run's history may be changed until then.
    """
    last = ctx.messages[-1] if ctx.messages else None
    return last.parts if isinstance(last, ModelRequest) else ()


def _given(part: _Answer, ctx: RunContext[Any]) -> object:
    """The arguments of the call that is answered; if they are no object, as they were written."""
    parts = (each for message in reversed(ctx.messages) for each in message.parts)
    calls = (each for each in parts if isinstance(each, ToolCallPart) and each.tool_call_id == part.tool_call_id)
    args = next((call.args for call in calls), None)
    try:
        return _ANY_OBJECT.validate_json(args or "{}") if isinstance(args, str) else args
    except ValidationError:
        return args


def _is_miss(part: Any) -> TypeGuard[_Answer]:
    """Whether pydantic-ai itself said that a name is no tool's; it asks no toolset about those."""
    if isinstance(part, ToolReturnPart):
        retry = getattr(part, "retry", None)
        return retry is not None and retry.cause == "unknown_tool"
    # Releases that give no cause have a part without metadata: there only `HubResultEvent` has the status.
    return isinstance(part, RetryPromptPart) and str(part.content).startswith(f"Unknown tool name: {part.tool_name!r}.")


def _is_denied(part: Any) -> TypeGuard[ToolReturnPart]:
    """Whether somebody said no to a call, and nobody has noted it yet."""
    return isinstance(part, ToolReturnPart) and getattr(part, "outcome", None) == "denied" and part.metadata is None


def _is_news(part: _Answer, result: ToolResult) -> bool:
    """Whether nobody has said how the call ended: another toolset may have, but one that knows the tool is heard."""
    said = part.metadata if isinstance(part, ToolReturnPart) else None
    return said is None or (said.get("status") == ToolStatus.NOT_FOUND and result.status is not ToolStatus.NOT_FOUND)


# -- while it runs -----------------------------------------------------------------------------------------------------


async def _tell(ctx: RunContext[Any], chunk: ToolStreamChunk) -> None:
    said = chunk.content if isinstance(chunk.content, dict) else {}
    if chunk.chunk_type == "progress":
        await _emit(ctx, _progress(chunk, said))
    else:
        level = str(said.get("level", "info"))
        await _emit(
            ctx, HubLogEvent(tool=chunk.tool_name, level=level, timestamp=chunk.timestamp, content=said.get("data"))
        )


def _progress(chunk: ToolStreamChunk, said: dict[str, Any]) -> HubProgressEvent:
    """What a server said of its progress, as far as it is what it must be."""
    progress, total, message = said.get("progress"), said.get("total"), said.get("message")
    return HubProgressEvent(
        tool=chunk.tool_name,
        progress=progress if isinstance(progress, int | float) else 0.0,
        timestamp=chunk.timestamp,
        total=total if isinstance(total, int | float) else None,
        message=message if isinstance(message, str) else None,
    )


async def _emit(ctx: RunContext[Any], event: CustomEvent) -> None:
    with suppress(UserError):  # outside a run there is nobody to tell
        await ctx.emit(event)


# -- how it ended ------------------------------------------------------------------------------------------------------


def _ended(result: ToolResult) -> HubResultEvent:
    return HubResultEvent(tool=result.tool_name, status=str(result.status), record=record_of(result))


class _Words(str):
    """What the model is told of a failure, which remembers how the call ended.

    On the way from an exception to a part of the messages pydantic-ai keeps nothing but these words.
    """

    result: ToolResult
    is_told: bool
    """Whether the run's stream has had how it ended."""


def _words_of(result: ToolResult, *, is_told: bool = True) -> _Words:
    words = _Words(said_by(result))
    words.result, words.is_told = result, is_told
    return words


async def _record(part: _Answer, words: _Words, ctx: RunContext[Any]) -> None:
    """Keep how a call failed where a success has it, and of the words only the text."""
    part.content = str(words)
    if isinstance(part, ToolReturnPart):
        part.metadata = record_of(words.result)
    if not words.is_told:
        await _emit(ctx, _ended(words.result))


def _returned(result: ToolResult) -> ToolReturn[Any]:
    if result.status is ToolStatus.INVALID_PARAMETERS:
        raise ModelRetry(_words_of(result))
    if not result.is_success:
        raise HubToolFailed(_words_of(result), result)
    return ToolReturn(return_value=_value(result), metadata=record_of(result))


def _value(result: ToolResult) -> Any:
    parts = parts_of(result)
    if any(isinstance(part, Image) for part in parts):
        return [_content(part) for part in parts]
    return value_of(result)


def _content(part: Part) -> str | BinaryContent:
    if not isinstance(part, Image):
        return part.text
    return BinaryContent(data=base64.b64decode(part.data), media_type=part.mime)
