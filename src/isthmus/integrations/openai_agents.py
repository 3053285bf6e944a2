"""The tools of a service in the OpenAI Agents SDK: `hub_tools` for a list, `HubServer` for the hub as one MCP server.

A function tool has the JSON Schema of its server (not strict: strict schemas require every argument), and the hub
checks arguments against it. A failure is text for the model, as the SDK expects; the result of a call is `custom_data`
of its output item (`result_record`). A run's stream has no place for progress: use `on_event`. Run agents with
`hub_run_config`: without it, the SDK ends a run whose model calls an unknown tool.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary, WeakSet

try:
    import agents as _agents  # noqa: F401 - to name the missing package
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "openai-agents is not installed here: pip install 'isthmus[openai-agents]'", name=error.name, path=error.path
    ) from error

from agents import AgentBase, FunctionTool, RunConfig, RunContextWrapper, ToolErrorFormatterArgs
from agents.exceptions import UserError
from agents.mcp import MCPServer, MCPToolCustomDataContext, MCPToolMetaContext
from agents.tool import FunctionToolCustomDataContext, ToolErrorFunction, ToolOutputImage, ToolOutputText
from agents.tool_context import ToolContext
from mcp.types import CallToolResult, GetPromptResult, ListPromptsResult
from mcp.types import Tool as MCPTool

from isthmus.library.agent_tools import (
    AgentTools,
    Approval,
    CallOptions,
    Selection,
    check_values,
    llm_name_of,
    not_approved,
    parse_arguments,
    unreadable_arguments,
)
from isthmus.library.errors import ServiceClosedError, ToolNotFoundError
from isthmus.library.outcomes_to_results import refused_result
from isthmus.library.provider_formats import (
    ModelImage,
    model_parts,
    provider_schema,
    result_record,
    result_text,
    to_json,
)
from isthmus.library.public_types import ToolRequest, ToolResult, ToolStreamChunk, UniversalTool, UserContext
from isthmus.library.service import SESSION_KEY, ToolService

UserOf: TypeAlias = UserContext | Callable[[RunContextWrapper[Any]], UserContext | None] | None
"""The user, or a function that reads the user from a run's context."""

Listener: TypeAlias = Callable[[ToolContext[Any], ToolStreamChunk], Awaitable[None] | None]
"""Called with the context of a call and its `progress` and `log` chunks while the tool runs."""

SessionOf: TypeAlias = str | Callable[[RunContextWrapper[Any]], str | None] | None
"""The conversation, sent to servers; by default the run's `group_id`."""

HeadersOf: TypeAlias = Mapping[str, str] | Callable[[RunContextWrapper[Any]], Mapping[str, str] | None] | None
"""Sent to servers that are configured to receive them."""

OnRefusal: TypeAlias = Callable[[str, ToolResult], Awaitable[None] | None]
"""Called with the id and the result of a call to an unknown or denied tool."""

STATUS_KEY = "isthmus/result"
"""The member of `_meta` in which `HubServer` returns the result of a call."""


async def hub_tools(
    service: ToolService,
    names: Selection | None = None,
    user_context: UserOf = None,
    *,
    session_id: SessionOf = None,
    headers: HeadersOf = None,
    needs_approval: Approval = False,
    timeout: float | None = None,
    on_event: Listener | None = None,
) -> list[FunctionTool]:
    """Tools for `Agent(tools=...)`, to be run with `hub_run_config`.

    The model does not see tools that their server removed, or that the run's user may not use, unless the run has
    already shown them.

    Args:
        service: an initialized service.
        names: names in any form, or the tools of a task request; by default all that the user may use.
        user_context: the user of the calls. A function is called at every turn and does not filter the list.
        session_id: the conversation, sent to servers.
        headers: sent to servers that are configured to receive them.
        needs_approval: calls that first interrupt the run (`result.interruptions`).
        timeout: seconds for a call.
        on_event: called with progress and log chunks.

    Raises:
        ToolError, UnresolvedToolsError: a name is unknown or denied.
    """
    tools = AgentTools(service, names, needs_approval=needs_approval)
    kit = _OpenAIAgentsTools(tools, CallOptions(user_context, session_id, headers, timeout), on_event)
    return [_function_tool(kit, tool) for tool in await tools.tools(kit.options.list_user)]


@dataclass(frozen=True, slots=True)
class _OpenAIAgentsTools:
    """What the tools of one list share: selection, call options and listener."""

    tools: AgentTools
    options: CallOptions[RunContextWrapper[Any]]
    on_event: Listener | None

    async def execute(self, tool: UniversalTool, context: ToolContext[Any], parameters: dict[str, Any]) -> ToolResult:
        """Execute a call and pass its events to the listener."""
        request = self.options.request(tool, parameters, context, _group_of(context))
        listener = self.on_event
        on_event = None if listener is None else lambda chunk: listener(context, chunk)
        return await self.tools.explain(tool, await self.tools.execute(request, on_event), request.user_context)

    def noted(self, refusal: ToolResult, arguments: object, context: RunContextWrapper[Any]) -> ToolResult:
        """Record a refusal in the audit log; see `ToolService.noted`."""
        user, session = self.options.user(context), self.options.session(context, _group_of(context))
        return self.tools.service.noted(refusal, arguments, user, session)


def _group_of(context: RunContextWrapper[Any]) -> str | None:
    group: str | None = getattr(getattr(context, "run_config", None), "group_id", None)
    return group


def _function_tool(kit: _OpenAIAgentsTools, tool: UniversalTool) -> FunctionTool:
    results: WeakKeyDictionary[ToolContext[Any], ToolResult] = WeakKeyDictionary()
    shown: WeakSet[RunContextWrapper[Any]] = WeakSet()

    async def invoke(context: ToolContext[Any], arguments: str) -> Any:
        parameters = parse_arguments(arguments)
        if parameters is None:
            result = kit.noted(unreadable_arguments(tool.name), arguments, context)
        else:
            result = await kit.execute(tool, context, parameters)
        results[context] = result
        parts = model_parts(result)
        if not any(isinstance(part, ModelImage) for part in parts):
            return result_text(result)
        return [
            ToolOutputImage(image_url=part.url) if isinstance(part, ModelImage) else ToolOutputText(text=part.text)
            for part in parts
        ]

    async def is_enabled(context: RunContextWrapper[Any], agent: Any) -> bool:
        # The SDK checks again after the model has called the tool, and would end the run if it were gone by then.
        if context not in shown and await kit.tools.find(llm_name_of(tool), kit.options.user(context)) is not None:
            shown.add(context)
        return context in shown

    async def needs_approval(context: RunContextWrapper[Any], parameters: dict[str, Any], call_id: str) -> bool:
        return kit.tools.is_approval_needed(tool, parameters)

    def record(call: FunctionToolCustomDataContext) -> Mapping[str, Any] | None:
        result = results.pop(call.tool_context, None)
        return None if result is None else result_record(result)

    fixed = kit.tools.fixed_approval(tool)
    return FunctionTool(
        name=llm_name_of(tool),
        description=tool.description,
        params_json_schema=provider_schema(tool.parameters_schema),
        on_invoke_tool=invoke,
        strict_json_schema=False,
        is_enabled=is_enabled,
        # With a function, the SDK requires approval of every call whose arguments it cannot read.
        needs_approval=needs_approval if fixed is None else fixed,
        custom_data_extractor=record,
    )


# -- unknown tools -----------------------------------------------------------------------------------------------------


def hub_run_config(
    service: ToolService,
    names: Selection | None = None,
    user_context: UserOf = None,
    *,
    session_id: SessionOf = None,
    run_config: RunConfig | None = None,
    on_refusal: OnRefusal | None = None,
) -> RunConfig:
    """A run configuration with which a run goes on after its model has called an unknown or denied tool.

    Without it the SDK ends the run: it looks the tool up before it calls any tool, server, agent or hook. The model
    gets the reason and similar names. Nothing is executed here.

    Args:
        service: as for `hub_tools` or `HubServer`.
        names: as for `hub_tools` or `HubServer`.
        user_context: as for `hub_tools` or `HubServer`.
        session_id: as for `hub_tools`; used for the audit log only.
        run_config: other settings of the run; it is not changed.
        on_refusal: called with the result of such a call, since its output item has no `custom_data`.
    """
    base = run_config or RunConfig()
    tools, options = AgentTools(service, names), CallOptions(user_context, session_id)
    default_formatter = base.tool_error_formatter

    def noted(refusal: ToolResult, call: ToolErrorFormatterArgs[Any]) -> ToolResult:
        user, session = options.user(call.run_context), options.session(call.run_context, base.group_id)
        return service.noted(refusal, None, user, session)  # the SDK does not pass the arguments

    async def explain(call: ToolErrorFormatterArgs[Any]) -> str | None:
        user = options.user(call.run_context) if call.kind in ("approval_rejected", "tool_not_found") else None
        if call.kind == "approval_rejected":
            with suppress(ServiceClosedError):  # the rejection may come after the service was closed
                if (tool := await tools.find(call.tool_name, user)) is not None:
                    noted(not_approved(tool), call)
        if call.kind != "tool_not_found":
            return None if default_formatter is None else await _awaited(default_formatter(call))
        found = await tools.look_up(call.tool_name, user)
        if not isinstance(found, ToolResult):  # a tool of another agent, or a new one
            found = refused_result(ToolRequest(call.tool_name), ToolNotFoundError(call.tool_name))
        result = noted(found, call)
        if on_refusal is not None:
            await _awaited(on_refusal(call.call_id, result))
        return result_text(result)

    return replace(base, tool_not_found_behavior="return_error_to_model", tool_error_formatter=explain)


async def _awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


# -- the hub as one MCP server -----------------------------------------------------------------------------------------


class HubServer(MCPServer):
    """A hub as one MCP server, `Agent(mcp_servers=[HubServer(service)])`, with the current tools at each turn.

    To be run with `hub_run_config`. `cleanup` does not shut the service down. All runs have one user, since the SDK
    does not pass the run of a call. Options of `MCPServer` (`require_approval`, `use_structured_content`, …) are
    accepted too.
    """

    def __init__(
        self,
        service: ToolService,
        names: Selection | None = None,
        user_context: UserContext | None = None,
        *,
        name: str = "isthmus",
        session_id: SessionOf = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
        on_event: Callable[[ToolStreamChunk], Awaitable[None] | None] | None = None,
        **options: Any,
    ) -> None:
        """Arguments as for `hub_tools`; `on_event` gets only the chunk, since the SDK does not pass the context."""
        check_values("A HubServer", user_context=user_context, headers=headers)

        def extract_result(call: MCPToolCustomDataContext) -> Mapping[str, Any] | None:
            return None if call.result_meta is None else call.result_meta.get(STATUS_KEY)

        def resolve_meta(call: MCPToolMetaContext) -> dict[str, Any] | None:
            session = self._session(call.run_context)
            return None if session is None else {SESSION_KEY: session}

        options.setdefault("custom_data_extractor", extract_result)
        options.setdefault("tool_meta_resolver", resolve_meta)
        super().__init__(**options)
        self._tools = AgentTools(service, names)
        self._user = user_context
        self._options: CallOptions[str | None] = CallOptions(user_context, lambda session: session, headers, timeout)
        self._session_id = session_id
        self._name = name
        self._on_event = on_event

    @property
    def name(self) -> str:
        """The display name."""
        return self._name

    async def connect(self) -> None:
        """Check the names of the tools.

        Raises:
            ToolError, UnresolvedToolsError: a name is unknown or denied.
        """
        await self._tools.tools(self._user)

    async def cleanup(self) -> None:
        """Nothing to close."""

    async def __aenter__(self) -> HubServer:
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.cleanup()

    async def list_tools(
        self, run_context: RunContextWrapper[Any] | None = None, agent: AgentBase[Any] | None = None
    ) -> list[MCPTool]:
        """The current tools that the user may use; no request to a server is needed."""
        listed: list[MCPTool] = []
        for tool in await self._tools.tools(self._user):
            hints: Mapping[str, Any] = tool.metadata.get("annotations") or {}
            members = {
                "name": llm_name_of(tool),
                "title": tool.metadata.get("title"),
                "description": tool.description,
                "inputSchema": provider_schema(tool.parameters_schema),
                # Invalid hints are dropped: one of them would fail the whole list.
                "annotations": {
                    key: hint for key, hint in hints.items() if key.endswith("Hint") and isinstance(hint, bool)
                },
            }
            listed.append(MCPTool.model_validate({key: value for key, value in members.items() if value is not None}))
        return listed

    async def call_tool(
        self, tool_name: str, arguments: dict[str, Any] | None, meta: dict[str, Any] | None = None
    ) -> CallToolResult:
        """Execute a call; a failure is a result with `isError`."""
        tool = await self._tools.look_up(tool_name, self._user)
        if isinstance(tool, ToolResult):
            return _call_result(self._tools.service.noted(tool, arguments, self._user, (meta or {}).get(SESSION_KEY)))
        request = self._options.request(tool, arguments or {}, (meta or {}).get(SESSION_KEY))
        return _call_result(await self._tools.execute(request, self._on_event))

    def _get_failure_error_function(self, agent_failure_error_function: ToolErrorFunction | None) -> Any:
        """The function that explains a failed call to the model; None makes the SDK raise.

        The SDK parses arguments itself, and calls this function for arguments that are not a JSON object.
        """
        default = super()._get_failure_error_function(agent_failure_error_function)

        async def explain(context: RunContextWrapper[Any], error: Exception) -> str:
            if isinstance(context, ToolContext) and parse_arguments(context.tool_arguments) is None:
                tool = await self._tools.find(context.tool_name, self._user)
                result = unreadable_arguments(tool.name if tool is not None else context.tool_name)
                self._tools.service.noted(result, context.tool_arguments, self._user, self._session(context))
                # The SDK stores an extractor's result here, but calls no extractor after a failure.
                context._custom_data = result_record(result)
                return result_text(result)
            return str(await _awaited(default(context, error)))

        return None if default is None else explain

    async def list_prompts(self) -> ListPromptsResult:
        """All prompts; none if the server has a user, because permissions cover tools only."""
        prompts = await self._tools.service.list_prompts() if self._user is None else []
        return ListPromptsResult.model_validate({"prompts": prompts})

    async def get_prompt(self, name: str, arguments: dict[str, Any] | None = None) -> GetPromptResult:
        """Get a prompt of an MCP server.

        Raises:
            UserError: the server has a user.
            ToolExecutionError: the prompt cannot be read.
        """
        if self._user is not None:
            raise UserError(
                f"The prompt {name!r} is not available: {self.name} has a user, and permissions cover tools only."
            )
        return GetPromptResult.model_validate(await self._tools.service.get_prompt(name, arguments))

    def _session(self, context: RunContextWrapper[Any]) -> str | None:
        return CallOptions(session_id=self._session_id).session(context, _group_of(context))


def _call_result(result: ToolResult) -> CallToolResult:
    members: dict[str, Any] = {
        "content": [
            {"type": "image", "data": part.data, "mimeType": part.mime}
            if isinstance(part, ModelImage)
            else {"type": "text", "text": part.text}
            for part in model_parts(result)
        ],
        "isError": not result.is_success,
        "_meta": {STATUS_KEY: json.loads(to_json(result_record(result)))},
    }
    if isinstance(result.result_data, dict) and result.metadata.get("structured"):
        members["structuredContent"] = result.result_data
    return CallToolResult.model_validate(members)
