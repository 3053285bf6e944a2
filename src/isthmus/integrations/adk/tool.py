"""A tool of the hub as a tool of google-adk.

It gives the model the tool's own JSON Schema, executes through the service, so that the hub's permissions, limits and
checks hold, and never raises. Made by `HubToolset` and `AdkDomainAgent`, or by hand for a single tool.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from google.adk.agents.readonly_context import ReadonlyContext
from google.adk.events.event import Event
from google.adk.models.llm_request import LlmRequest
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from isthmus.core.catalog.names import BUILTIN, LLM_LENGTH_MAX
from isthmus.integrations.adk.names import (
    OfferedTools,
    OffersTools,
    agent_of,
    explain_unknown_tool,
    function_name,
    handle_unknown_tools,
    listing_problem,
    refusal_of,
)
from isthmus.integrations.adk.results import (
    PENDING_MAX,
    Background,
    can_send_progress,
    progress_event,
    send_progress,
    tool_response,
)
from isthmus.integrations.untrusted_descriptions import PREAMBLE, fence, fence_schema
from isthmus.library.contracts import (
    ErrorCode,
    ErrorPayload,
    ToolRequest,
    ToolResult,
    ToolStatus,
    UniversalTool,
    UserContext,
)
from isthmus.library.errors import ServiceClosedError
from isthmus.library.function_schemas import without_dangling_refs
from isthmus.library.integration_base import check_timeout, not_approved
from isthmus.library.service import ToolService

logger = logging.getLogger(__name__)

NO_USER = "isthmus:nobody-in-particular"
"""Whose conversations those are for which no user is named; ADK wants a user, and no user can be this one."""

LONG_RUNNING_NOTE = (
    "This operation may go on after the tool has answered. If the answer says that it is pending, do not call the tool "
    "again: the result will be given to you."
)

Confirmation: TypeAlias = bool | Callable[..., bool | Awaitable[bool]]
"""Whether a person is asked first. A function is given what it names: arguments of the tool, `tool_context`, `tool`,
and all arguments as `parameters`; so `library.is_destructive` is one."""

UserProvider: TypeAlias = Callable[[ReadonlyContext], UserContext | Awaitable[UserContext | None] | None]
HeaderProvider: TypeAlias = Callable[[ReadonlyContext], Mapping[str, str] | Awaitable[Mapping[str, str] | None] | None]


@dataclass(frozen=True, slots=True)
class ToolOptions:
    """How a tool is executed for an agent."""

    user_context: UserContext | None = None
    user_context_provider: UserProvider | None = None
    """Asked before each execution, instead."""
    header_provider: HeaderProvider | None = None
    """Headers of the user's; they reach only servers that are configured with `user_headers` of these names."""
    require_confirmation: Confirmation = False
    is_long_running: bool = False
    is_fenced: bool = True
    """Whether what the server says of the tool is marked as the server's."""
    shows_progress: bool = True
    background: Background | None = None
    """Where the tool goes on running while the agent does something else; then it is long-running in any case."""
    timeout: float | None = None
    name_length: int = LLM_LENGTH_MAX
    """How long the name may be that the model is told."""
    on_result: Callable[[ToolResult], None] | None = None
    """Told of every result, before the model is."""

    def __post_init__(self) -> None:
        """Refuse a timeout that is none: it is the program's mistake, and not for a model to hear of.

        Raises:
            ConfigurationError: it is none.
        """
        check_timeout(self.timeout)

    async def user_for(self, context: ReadonlyContext | None) -> UserContext | None:
        """On whose behalf; the invocation's user, where the permissions are given for nobody in particular."""
        user = self.user_context
        if self.user_context_provider is not None and context is not None:
            user = await _settled(self.user_context_provider(context))
        if user is not None and context is not None and context.user_id != NO_USER and _is_anybody(user):
            user = replace(user, user_id=context.user_id)
        return user

    async def headers_for(self, context: ReadonlyContext) -> dict[str, str]:
        """The user's headers."""
        given = None if self.header_provider is None else await _settled(self.header_provider(context))
        return dict(given or {})


class HubTool(BaseTool, OffersTools):
    """One tool of a service."""

    def __init__(self, tool: UniversalTool, service: ToolService, options: ToolOptions | None = None) -> None:
        self.options = options or ToolOptions()
        self.tool = tool
        self._service = service
        super().__init__(
            name=function_name(tool, self.options.name_length),
            description=tool.description,
            is_long_running=self.options.is_long_running or self.options.background is not None,
            custom_metadata={"tool_name": tool.name, "namespace": tool.namespace},
        )

    # -- what the model is told ----------------------------------------------------------------------------------------

    def _get_declaration(self) -> types.FunctionDeclaration:
        """As its server says; what goes to the model is fenced by `process_llm_request`."""
        return self._declaration(is_fenced=False)

    def _declaration(self, *, is_fenced: bool) -> types.FunctionDeclaration:
        given = self.tool.parameters_schema or {"type": "object", "properties": {}}
        schema: Any = without_dangling_refs(given, given)
        description = self.description
        if is_fenced:
            schema, description = fence_schema(schema), fence(description)
        if self.is_long_running:
            description = f"{description}\n\n{LONG_RUNNING_NOTE}".lstrip()
        return types.FunctionDeclaration(name=self.name, description=description, parameters_json_schema=schema)

    async def process_llm_request(self, *, tool_context: ToolContext, llm_request: LlmRequest) -> None:
        """Add the tool to what the model is asked; by itself, it also says what there is of other names."""
        await super().process_llm_request(tool_context=tool_context, llm_request=llm_request)
        agent = agent_of(tool_context)
        if agent is not None and self in agent.tools:  # those of a toolset are not
            handle_unknown_tools(agent, self.on_tool_error)
        if not self._is_fenced():
            return
        self._fence(llm_request)
        instruction = llm_request.config.system_instruction or ""
        # It can be added to text only; without it the markers still say what they are.
        if isinstance(instruction, str) and PREAMBLE not in instruction:
            llm_request.append_instructions([PREAMBLE])

    def _is_fenced(self) -> bool:
        return self.options.is_fenced and self.tool.namespace != BUILTIN  # what is built in speaks for the program

    def _fence(self, llm_request: LlmRequest) -> None:
        for tool in llm_request.config.tools or ():
            declarations: list[types.FunctionDeclaration] = getattr(tool, "function_declarations", None) or []
            for place, declaration in enumerate(declarations):
                if declaration.name == self.name:
                    declarations[place] = self._declaration(is_fenced=True)

    async def on_tool_error(
        self, tool: BaseTool, args: dict[str, Any], tool_context: ToolContext, error: Exception
    ) -> dict[str, Any] | None:
        """What the model is told of a name that is no tool's, or not the user's to use; of other errors, nothing."""
        return await explain_unknown_tool(tool, args, tool_context, self)

    async def offer(self, called: str, context: ReadonlyContext) -> OfferedTools:
        """See `OffersTools`."""
        try:
            catalog, user = await self._service.catalog(), await self.options.user_for(context)
        except Exception as error:
            logger.exception("%s was called, and the tools of the hub could not be listed", called)
            return OfferedTools([], trouble=listing_problem(error))
        return OfferedTools([self.name], refusal_of(called, catalog, user), service=self._service, user=user)

    # -- asking a person first -----------------------------------------------------------------------------------------

    async def check_require_confirmation(self, args: dict[str, Any], tool_context: ToolContext) -> bool:
        """Asked by the flow before each execution."""
        is_wanted = await self._is_confirmation_wanted(args, tool_context)
        confirmation = tool_context.tool_confirmation
        if is_wanted and confirmation is not None and not confirmation.confirmed:
            await self._note_rejected(args, tool_context)  # whoever asks here does not execute it then
        return is_wanted

    async def _note_rejected(self, args: dict[str, Any], tool_context: ToolContext) -> None:
        """Have a person's no in the audit log; the flows of today tell the model of it by themselves."""
        try:
            user = await self.options.user_for(tool_context)
        except Exception:
            logger.exception("%s was rejected, and on whose behalf it was called cannot be told", self.tool.name)
            return
        self._service.noted(not_approved(self.tool), args, user, tool_context.session.id)

    async def _is_confirmation_wanted(self, args: dict[str, Any], tool_context: ToolContext) -> bool:
        wanted = self.options.require_confirmation
        if not callable(wanted):
            return wanted
        try:
            known = {**args, "tool_context": tool_context, "tool": self.tool, "parameters": args}
            return bool(await _settled(wanted(**_named_by(wanted, known))))
        except Exception:
            # Foreign code, which was to say whether this is dangerous: who cannot say so does not get it past a person.
            logger.exception("whether %s needs confirmation could not be decided, so it does", self.tool.name)
            return True

    async def _held_back(self, args: dict[str, Any], tool_context: ToolContext) -> dict[str, Any] | None:
        """What the model is told while a person has not agreed.

        The flows of today ask by themselves before they come here; the first of ADK 2 leave it to the tool.
        """
        if not await self.check_require_confirmation(args, tool_context):
            return None
        confirmation = tool_context.tool_confirmation
        if confirmation is None:
            tool_context.request_confirmation(hint=f"May the tool {self.tool.name} be executed with these arguments?")
            # It is not for the model to go on: it would call the tool again.
            tool_context.actions.skip_summarization = True
            return {"status": "pending", "error": "This tool call requires confirmation, please approve or reject."}
        if not confirmation.confirmed:
            return {"status": ToolStatus.CANCELLED.value, "error": "This tool call is rejected."}
        return None

    # -- executing -----------------------------------------------------------------------------------------------------

    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> dict[str, Any]:
        """Execute it; whatever happens is an answer for the model, with a status."""
        if (held_back := await self._held_back(args, tool_context)) is not None:
            return held_back
        try:
            request = await self._request(args, tool_context)
            if self.options.background is not None:
                return self._begun(request, tool_context.function_call_id, self.options.background)
            result = await self._result(request, tool_context)
        except Exception as error:  # noqa: BLE001 - an exception would end the invocation with all its other tools
            result = self._broken(error)
        return self._told(result)

    def _told(self, result: ToolResult) -> dict[str, Any]:
        if self.options.on_result is not None:
            self.options.on_result(result)
        return tool_response(result)

    async def _result(self, request: ToolRequest, tool_context: ToolContext) -> ToolResult:
        if not self.options.shows_progress or not can_send_progress(tool_context):
            return await self._service.execute_tool(request)
        results: list[ToolResult] = []
        await send_progress(self._events(request, tool_context.function_call_id, results), self.name, tool_context)
        if results:
            return results[0]
        # The runner stopped listening. Executing it again could do twice what was to be done once.
        return self._failure(
            ToolStatus.CANCELLED, ErrorCode.TOOL_CANCELLED, f"{self.tool.name} was cancelled", "unknown"
        )

    def _begun(self, request: ToolRequest, call_id: str | None, background: Background) -> dict[str, Any]:
        if call_id is None:
            return self._told(self._not_begun("its call has no id, by which its result could be fetched"))
        if not background.has_room():
            refusal = self._not_begun(f"the results of {PENDING_MAX} others have not been fetched", "overloaded")
            user, session = request.user_context, request.session_id
            return self._told(self._service.noted(refusal, request.parameters, user, session))
        background.begin(call_id, self.name, self._later(request))
        return {"status": "pending", "tool_name": self.tool.name, "namespace": self.tool.namespace}

    def _not_begun(self, why: str, reason: str = "") -> ToolResult:
        message = f"{self.tool.name} was not begun: {why}"
        return self._failure(ToolStatus.UNAVAILABLE, ErrorCode.TOOL_UNAVAILABLE, message, reason=reason)

    async def _later(self, request: ToolRequest) -> dict[str, Any]:
        try:
            result = await self._service.execute_tool(request)
        except Exception as error:  # noqa: BLE001 - whoever waits for it is to be told like everybody else
            result = self._broken(error)
        return self._told(result)

    async def _request(self, args: dict[str, Any], tool_context: ToolContext) -> ToolRequest:
        headers = await self.options.headers_for(tool_context)
        return ToolRequest(
            tool_name=self.tool.name,
            parameters=args,
            user_context=await self.options.user_for(tool_context),
            timeout=self.options.timeout,
            metadata={"headers": headers} if headers else {},
            session_id=tool_context.session.id,
        )

    async def _events(
        self, request: ToolRequest, call_id: str | None, results: list[ToolResult]
    ) -> AsyncIterator[Event]:
        """What there is to tell while it runs; how it ended goes into `results`.

        It does not raise either: a node that fails is an error event of its own.
        """
        try:
            async with self._service.execute_tool_stream(request) as stream:
                async for chunk in stream:
                    if chunk.is_final:
                        results.append(chunk.metadata["result"])
                    elif (event := progress_event(chunk, call_id)) is not None:
                        yield event
        except ServiceClosedError as error:
            results.append(self._broken(error))

    def _broken(self, error: Exception) -> ToolResult:
        """What is told of an exception.

        Those of foreign code, such as a provider of headers, may hold secrets: their words are for the log only.
        """
        if isinstance(error, ServiceClosedError):
            return self._failure(ToolStatus.UNAVAILABLE, ErrorCode.TOOL_UNAVAILABLE, str(error))
        logger.error("%s could not be executed", self.tool.name, exc_info=error)
        message = f"{self.tool.name} could not be executed: {type(error).__name__} (the log says more)"
        return self._failure(ToolStatus.ERROR, ErrorCode.INTERNAL, message)

    def _failure(
        self, status: ToolStatus, code: ErrorCode, message: str, executed: Any = "no", reason: str = ""
    ) -> ToolResult:
        error = ErrorPayload(code, message, executed, reason, self.tool.namespace)
        return ToolResult(self.tool.name, status, self.tool.namespace, error_message=message, error=error)

    def _detect_error_in_response(self, response: Any) -> str | None:
        """ADK's telemetry asks: what to count it as."""
        if isinstance(response, dict) and "error" in response:
            return str(response.get("status", "error")).upper()
        return None


def _is_anybody(user: UserContext) -> bool:
    """Whether nothing tells who it is; with a name or a token, it is not for ADK to say so."""
    return not (user.user_id or user.user_name or user.session_token)


def _named_by(function: Callable[..., Any], known: dict[str, Any]) -> dict[str, Any]:
    """Those that a function names, or takes whatever they are called."""
    parameters = inspect.signature(function).parameters
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values()):
        return known
    return {name: value for name, value in known.items() if name in parameters}


async def _settled(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value
