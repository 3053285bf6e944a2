"""`HubTool`: a tool of the hub as a tool of google-adk.

The model gets the tool's own JSON Schema. Execution goes through the service, so the hub's permissions, limits and
checks apply, and it never raises. Made by `HubToolset` and `AdkDomainAgent`, or by hand for a single tool.
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
from isthmus.library.agent_tools import check_timeout, not_approved
from isthmus.library.errors import ServiceClosedError
from isthmus.library.provider_formats import without_dangling_refs
from isthmus.library.public_types import (
    ErrorCode,
    ErrorPayload,
    ToolRequest,
    ToolResult,
    ToolStatus,
    UniversalTool,
    UserContext,
)
from isthmus.library.service import ToolService

logger = logging.getLogger(__name__)

NO_USER = "isthmus:nobody-in-particular"
"""ADK's user id for conversations without a user; no real user may have it."""

LONG_RUNNING_NOTE = (
    "This operation may continue after the tool has replied. If the reply says that it is pending, do not call the "
    "tool again: the result will be sent to you."
)

Confirmation: TypeAlias = bool | Callable[..., bool | Awaitable[bool]]
"""Whether a person must confirm a call. A function gets the parameters that it names: arguments of the tool,
`tool_context`, `tool`, and all arguments as `parameters`. `library.is_destructive` is such a function."""

UserProvider: TypeAlias = Callable[[ReadonlyContext], UserContext | Awaitable[UserContext | None] | None]
HeaderProvider: TypeAlias = Callable[[ReadonlyContext], Mapping[str, str] | Awaitable[Mapping[str, str] | None] | None]


@dataclass(frozen=True, slots=True)
class ToolOptions:
    """Options of a tool for an agent."""

    user_context: UserContext | None = None
    user_context_provider: UserProvider | None = None
    """Called before each execution, instead of `user_context`."""
    header_provider: HeaderProvider | None = None
    """Returns the user's headers; sent only to servers whose `user_headers` name them."""
    require_confirmation: Confirmation = False
    is_long_running: bool = False
    is_fenced: bool = True
    """Whether the server's descriptions are marked as untrusted."""
    shows_progress: bool = True
    background: Background | None = None
    """Where the tool runs while the agent goes on; such a tool is always long-running."""
    timeout: float | None = None
    name_length: int = LLM_LENGTH_MAX
    """The longest function name."""
    on_result: Callable[[ToolResult], None] | None = None
    """Called with every result, before the model gets it."""

    def __post_init__(self) -> None:
        """Check the timeout now: a mistake of the program must not become an error for the model.

        Raises:
            ConfigurationError: the timeout is invalid.
        """
        check_timeout(self.timeout)

    async def user_for(self, context: ReadonlyContext | None) -> UserContext | None:
        """The user of a call; if it has no identity, it gets the id of the invocation's user."""
        user = self.user_context
        if self.user_context_provider is not None and context is not None:
            user = await _awaited(self.user_context_provider(context))
        if user is not None and context is not None and context.user_id != NO_USER:
            has_identity = user.user_id or user.user_name or user.session_token
            user = user if has_identity else replace(user, user_id=context.user_id)
        return user

    async def headers_for(self, context: ReadonlyContext) -> dict[str, str]:
        """The user's headers."""
        given = None if self.header_provider is None else await _awaited(self.header_provider(context))
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

    # -- declaration --------------------------------------------------------------------------------------------------

    def _get_declaration(self) -> types.FunctionDeclaration:
        """The declaration without markers; `process_llm_request` adds them for the model."""
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
        """Add the tool to the model's request; a tool without a toolset also handles unknown names."""
        await super().process_llm_request(tool_context=tool_context, llm_request=llm_request)
        agent = agent_of(tool_context)
        if agent is not None and self in agent.tools:  # those of a toolset are not
            handle_unknown_tools(agent, self.on_tool_error)
        if not self.options.is_fenced or self.tool.namespace == BUILTIN:  # built-in tools are the program's own
            return
        for tool in llm_request.config.tools or ():
            declarations: list[types.FunctionDeclaration] = getattr(tool, "function_declarations", None) or []
            for place, declaration in enumerate(declarations):
                if declaration.name == self.name:
                    declarations[place] = self._declaration(is_fenced=True)
        instruction = llm_request.config.system_instruction or ""
        # Only a text can be extended; without the preamble the markers still speak for themselves.
        if isinstance(instruction, str) and PREAMBLE not in instruction:
            llm_request.append_instructions([PREAMBLE])

    async def on_tool_error(
        self, tool: BaseTool, args: dict[str, Any], tool_context: ToolContext, error: Exception
    ) -> dict[str, Any] | None:
        """ADK's callback: the reply to a call of an unknown or denied tool; None for other errors."""
        return await explain_unknown_tool(tool, args, tool_context, self)

    async def offer(self, called: str, context: ReadonlyContext) -> OfferedTools:
        """The tools that the model has from here, and why the called one is not among them."""
        try:
            catalog, user = await self._service.catalog(), await self.options.user_for(context)
        except Exception as error:
            logger.exception("cannot list the tools of the hub to explain a call of %s", called)
            return OfferedTools([], problem=listing_problem(error))
        return OfferedTools([self.name], refusal_of(called, catalog, user), service=self._service, user=user)

    # -- confirmation --------------------------------------------------------------------------------------------------

    async def check_require_confirmation(self, args: dict[str, Any], tool_context: ToolContext) -> bool:
        """Called by ADK's flow before each execution."""
        is_required = await self._is_confirmation_required(args, tool_context)
        confirmation = tool_context.tool_confirmation
        if is_required and confirmation is not None and not confirmation.confirmed:
            # The call is not executed. Current flows reply to the model themselves; the audit log needs the rejection.
            try:
                user = await self.options.user_for(tool_context)
            except Exception:
                logger.exception("the user of a rejected call of %s is unknown", self.tool.name)
            else:
                self._service.noted(not_approved(self.tool), args, user, tool_context.session.id)
        return is_required

    async def _is_confirmation_required(self, args: dict[str, Any], tool_context: ToolContext) -> bool:
        required = self.options.require_confirmation
        if not callable(required):
            return required
        try:
            known = {**args, "tool_context": tool_context, "tool": self.tool, "parameters": args}
            parameters = inspect.signature(required).parameters
            if not any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
                known = {name: value for name, value in known.items() if name in parameters}
            return bool(await _awaited(required(**known)))
        except Exception:
            # The program's function failed to decide whether the call is dangerous: a person decides.
            logger.exception("require_confirmation failed for %s, so a confirmation is required", self.tool.name)
            return True

    # -- executing -----------------------------------------------------------------------------------------------------

    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> dict[str, Any]:
        """Execute the call; every outcome is a reply to the model, with a status."""
        # Current flows ask for confirmation themselves; those of the first ADK 2 releases leave it to the tool.
        if await self.check_require_confirmation(args, tool_context):
            confirmation = tool_context.tool_confirmation
            if confirmation is None:
                hint = f"May the tool {self.tool.name} be executed with these arguments?"
                tool_context.request_confirmation(hint=hint)
                # The model must not go on: it would call the tool again.
                tool_context.actions.skip_summarization = True
                return {"status": "pending", "error": "This tool call requires confirmation, please approve or reject."}
            if not confirmation.confirmed:
                return {"status": ToolStatus.CANCELLED.value, "error": "This tool call is rejected."}
        try:
            headers = await self.options.headers_for(tool_context)
            request = ToolRequest(
                tool_name=self.tool.name,
                parameters=args,
                user_context=await self.options.user_for(tool_context),
                timeout=self.options.timeout,
                metadata={"headers": headers} if headers else {},
                session_id=tool_context.session.id,
            )
            if self.options.background is not None:
                return self._start_background(request, tool_context.function_call_id, self.options.background)
            result = await self._result(request, tool_context)
        except Exception as error:  # noqa: BLE001 - an exception would end the invocation with all its other tools
            result = self._error_result(error)
        return self._respond(result)

    def _respond(self, result: ToolResult) -> dict[str, Any]:
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
        # The runner stopped listening. A second execution could repeat an effect.
        return self._failure(
            ToolStatus.CANCELLED, ErrorCode.TOOL_CANCELLED, f"{self.tool.name} was cancelled", "unknown"
        )

    def _start_background(self, request: ToolRequest, call_id: str | None, background: Background) -> dict[str, Any]:
        if call_id is None:
            return self._respond(self._not_started("its call has no id to fetch the result by"))
        if not background.has_room():
            refusal = self._not_started(f"the results of {PENDING_MAX} other calls are not fetched yet", "overloaded")
            user, session = request.user_context, request.session_id
            return self._respond(self._service.noted(refusal, request.parameters, user, session))

        async def execute() -> dict[str, Any]:
            try:
                result = await self._service.execute_tool(request)
            except Exception as error:  # noqa: BLE001 - a background call always has a reply
                result = self._error_result(error)
            return self._respond(result)

        background.begin(call_id, self.name, execute())
        return {"status": "pending", "tool_name": self.tool.name, "namespace": self.tool.namespace}

    def _not_started(self, why: str, reason: str = "") -> ToolResult:
        message = f"{self.tool.name} was not started: {why}"
        return self._failure(ToolStatus.UNAVAILABLE, ErrorCode.TOOL_UNAVAILABLE, message, reason=reason)

    async def _events(
        self, request: ToolRequest, call_id: str | None, results: list[ToolResult]
    ) -> AsyncIterator[Event]:
        """Yield progress events and append the result to `results`.

        Does not raise: a failing node would be an error event of its own.
        """
        try:
            async with self._service.execute_tool_stream(request) as stream:
                async for chunk in stream:
                    if chunk.is_final:
                        results.append(chunk.metadata["result"])
                    elif (event := progress_event(chunk, call_id)) is not None:
                        yield event
        except ServiceClosedError as error:
            results.append(self._error_result(error))

    def _error_result(self, error: Exception) -> ToolResult:
        """The result for an exception.

        Messages of foreign code, such as a header provider, may hold secrets: they are only logged.
        """
        if isinstance(error, ServiceClosedError):
            return self._failure(ToolStatus.UNAVAILABLE, ErrorCode.TOOL_UNAVAILABLE, str(error))
        logger.error("%s could not be executed", self.tool.name, exc_info=error)
        message = f"{self.tool.name} could not be executed: {type(error).__name__} (see the log)"
        return self._failure(ToolStatus.ERROR, ErrorCode.INTERNAL, message)

    def _failure(
        self, status: ToolStatus, code: ErrorCode, message: str, executed: Any = "no", reason: str = ""
    ) -> ToolResult:
        error = ErrorPayload(code, message, executed, reason, self.tool.namespace)
        return ToolResult(self.tool.name, status, self.tool.namespace, error_message=message, error=error)

    def _detect_error_in_response(self, response: Any) -> str | None:
        """The error type for ADK's telemetry."""
        if isinstance(response, dict) and "error" in response:
            return str(response.get("status", "error")).upper()
        return None


async def _awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value
