"""A service's tools in the OpenAI Agents SDK: `hub_tools` for a list of them, `HubServer` for all as one server.

A function tool has the raw JSON Schema of its server (not strict: strict schemas require every argument), and the hub
checks arguments against it. A failure is text for the model, as the SDK wants it; how a call ended is `custom_data` of
its output item (`record_of`). The SDK has no place for progress in a run's stream: `on_event` is told of it.
Run with `hub_run_config`: without, the SDK ends a run whose model calls what is no tool, and asks nobody here.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary, WeakSet

try:
    import agents as _agents  # noqa: F401 - to say what is missing, if it is
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

from isthmus.library.contracts import ToolRequest, ToolResult, ToolStreamChunk, UniversalTool, UserContext
from isthmus.library.errors import ServiceClosedError, ToolNotFoundError
from isthmus.library.forms import for_model
from isthmus.library.parts import Image, Part, json_of, parts_of, record_of, said_by
from isthmus.library.results import refused
from isthmus.library.service import SESSION_KEY, ToolService
from isthmus.library.toolbox import (
    Approval,
    Selection,
    Terms,
    Toolbox,
    check_values,
    llm_name_of,
    not_approved,
    unreadable,
)

UserOf: TypeAlias = UserContext | Callable[[RunContextWrapper[Any]], UserContext | None] | None
"""On whose behalf: one user, or a function that reads the user from a run's context."""

Listener: TypeAlias = Callable[[ToolContext[Any], ToolStreamChunk], Awaitable[None] | None]
"""Told of `progress` and `log` chunks while a tool runs, with the context of its call."""

SessionOf: TypeAlias = str | Callable[[RunContextWrapper[Any]], str | None] | None
"""What servers are told as the conversation; without, the run's `group_id`."""

HeadersOf: TypeAlias = Mapping[str, str] | Callable[[RunContextWrapper[Any]], Mapping[str, str] | None] | None
"""Sent to those servers that are configured to receive them."""

OnRefusal: TypeAlias = Callable[[str, ToolResult], Awaitable[None] | None]
"""Told of a call, by its id, of what is no tool, or not the user's to use, with how it ended."""

STATUS_KEY = "isthmus/result"
"""Where `HubServer` puts how a call ended, in `_meta`."""


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

    One that its server has taken back, or which the run's user may not use, is not shown to the model, unless the run
    has shown it already.

    Args:
        service: an initialised service.
        names: in any form, or the tools of a task request; without, everything that the user may use.
        user_context: on whose behalf. A function can filter no list, and is asked at every turn.
        session_id: what servers are told as the conversation.
        headers: sent to those servers that are configured to receive them.
        needs_approval: which calls first interrupt the run (`result.interruptions`).
        timeout: seconds that a call may take.
        on_event: told of progress and logs.

    Raises:
        ToolError, UnresolvedToolsError: a name is no tool's, or not this user's to use.
    """
    box = Toolbox(service, names, needs_approval=needs_approval)
    kit = _Kit(box, Terms(user_context, session_id, headers, timeout), on_event)
    return [_function_tool(kit, tool) for tool in await box.tools(kit.terms.lister)]


@dataclass(frozen=True, slots=True)
class _Kit:
    """What the tools of one list share."""

    box: Toolbox
    terms: Terms[RunContextWrapper[Any]]
    on_event: Listener | None

    async def execute(self, tool: UniversalTool, context: ToolContext[Any], parameters: dict[str, Any]) -> ToolResult:
        """Execute one, and tell of it meanwhile."""
        request = self.terms.request(tool, parameters, context, _group_of(context))
        listener = self.on_event
        tell = None if listener is None else lambda chunk: listener(context, chunk)
        return await self.box.told(tool, await self.box.execute(request, tell), request.user_context)

    def noted(self, refusal: ToolResult, arguments: object, context: RunContextWrapper[Any]) -> ToolResult:
        """What is refused here, as it is; see `ToolService.noted`."""
        user, session = self.terms.user(context), self.terms.session(context, _group_of(context))
        return self.box.service.noted(refusal, arguments, user, session)


def _group_of(context: RunContextWrapper[Any]) -> str | None:
    group: str | None = getattr(getattr(context, "run_config", None), "group_id", None)
    return group


def _function_tool(kit: _Kit, tool: UniversalTool) -> FunctionTool:
    results: WeakKeyDictionary[ToolContext[Any], ToolResult] = WeakKeyDictionary()
    shown: WeakSet[RunContextWrapper[Any]] = WeakSet()

    async def invoke(context: ToolContext[Any], arguments: str) -> Any:
        parameters = _read(arguments)
        if parameters is None:
            result = kit.noted(unreadable(tool.name), arguments, context)
        else:
            result = await kit.execute(tool, context, parameters)
        results[context] = result
        return _output(result)

    async def is_there(context: RunContextWrapper[Any], agent: Any) -> bool:
        # The SDK asks again when the model has called it, and would end the run if it were gone by then.
        if context not in shown and await kit.box.find(llm_name_of(tool), kit.terms.user(context)) is not None:
            shown.add(context)
        return context in shown

    async def must_wait(context: RunContextWrapper[Any], parameters: dict[str, Any], call_id: str) -> bool:
        return kit.box.is_approval_needed(tool, parameters)

    def record(call: FunctionToolCustomDataContext) -> Mapping[str, Any] | None:
        result = results.pop(call.tool_context, None)
        return None if result is None else record_of(result)

    server_status = kit.box.standing_approval(tool)
    return FunctionTool(
        name=llm_name_of(tool),
        description=tool.description,
        params_json_schema=for_model(tool.parameters_schema),
        on_invoke_tool=invoke,
        strict_json_schema=False,
        is_enabled=is_there,
        # Given a function, the SDK asks somebody about every call whose arguments it cannot read.
        needs_approval=must_wait if server_status is None else server_status,
        custom_data_extractor=record,
    )


def _read(arguments: str) -> dict[str, Any] | None:
    try:
        parameters = json.loads(arguments) if arguments.strip() else {}
    except (ValueError, RecursionError):
        return None
    return parameters if isinstance(parameters, dict) else None


def _output(result: ToolResult) -> Any:
    parts = parts_of(result)
    if not any(isinstance(part, Image) for part in parts):
        return said_by(result)
    return [_output_item(part) for part in parts]


def _output_item(part: Part) -> ToolOutputText | ToolOutputImage:
    return ToolOutputImage(image_url=part.url) if isinstance(part, Image) else ToolOutputText(text=part.text)


# -- names that the agent does not have --------------------------------------------------------------------------------


def hub_run_config(
    service: ToolService,
    names: Selection | None = None,
    user_context: UserOf = None,
    *,
    session_id: SessionOf = None,
    run_config: RunConfig | None = None,
    on_refusal: OnRefusal | None = None,
) -> RunConfig:
    """A configuration with which a run goes on after its model has called what is no tool, or not the user's to use.

    The SDK looks for a tool before it asks anybody, and ends the run if there is none; only the run's configuration can
    change that, and no tool, server, agent or hook is asked before. The model is told what is wrong, and which tools
    are called nearly so. Nothing is executed here, whatever the names.

    Args:
        service: the same as for `hub_tools` or `HubServer`.
        names: the same.
        user_context: the same.
        session_id: the same; here it is for the audit log alone.
        run_config: what else is to hold for the run; it stays as it is.
        on_refusal: told how such a call ended, since its output item has no `custom_data`.
    """
    given = run_config or RunConfig()
    box, terms, otherwise = Toolbox(service, names), Terms(user_context, session_id), given.tool_error_formatter

    def noted(refusal: ToolResult, call: ToolErrorFormatterArgs[Any]) -> ToolResult:
        user, session = terms.user(call.run_context), terms.session(call.run_context, given.group_id)
        return service.noted(refusal, None, user, session)  # the SDK does not say what the arguments were

    async def rejected(call: ToolErrorFormatterArgs[Any]) -> UniversalTool | None:
        with suppress(ServiceClosedError):  # whoever says no may do so later than that
            return await box.find(call.tool_name, terms.user(call.run_context))
        return None

    async def explain(call: ToolErrorFormatterArgs[Any]) -> str | None:
        if call.kind == "approval_rejected" and (tool := await rejected(call)) is not None:
            noted(not_approved(tool), call)
        if call.kind != "tool_not_found":
            return None if otherwise is None else await _settled(otherwise(call))
        result = noted(await _miss(box, call.tool_name, terms.user(call.run_context)), call)
        if on_refusal is not None:
            await _settled(on_refusal(call.call_id, result))
        return said_by(result)

    return replace(given, tool_not_found_behavior="return_error_to_model", tool_error_formatter=explain)


async def _miss(box: Toolbox, name: str, user: UserContext | None) -> ToolResult:
    """How a call of what an agent does not have ends; a tool of the hub may be another agent's, or new."""
    found = await box.look_up(name, user)
    return found if isinstance(found, ToolResult) else refused(ToolRequest(name), ToolNotFoundError(name))


async def _settled(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


# -- the hub as one MCP server -----------------------------------------------------------------------------------------


class HubServer(MCPServer):
    """A hub for `Agent(mcp_servers=[HubServer(service)])`: its tools as they are at each turn, under names for models.

    To be run with `hub_run_config`. The service stays its owner's: `cleanup` does not shut it down. All runs have one
    user, since the SDK does not say whose a call is. Options of `MCPServer` (`require_approval`,
    `use_structured_content`, …) may be given too.
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
        """The same as for `hub_tools`; `on_event` is told the chunk only, since the SDK does not say whose it is."""
        check_values("A HubServer", user_context=user_context, headers=headers)
        options.setdefault("custom_data_extractor", _meta_record)
        options.setdefault("tool_meta_resolver", self._meta)
        super().__init__(**options)
        self._box = Toolbox(service, names)
        self._user = user_context
        self._terms: Terms[str | None] = Terms(user_context, lambda session: session, headers, timeout)
        self._session_id = session_id
        self._name = name
        self._on_event = on_event

    @property
    def name(self) -> str:
        """What a person reads."""
        return self._name

    async def connect(self) -> None:
        """Find every tool that was named.

        Raises:
            ToolError, UnresolvedToolsError: a name is no tool's, or not this user's to use.
        """
        await self._box.tools(self._user)

    async def cleanup(self) -> None:
        """Nothing was opened here."""

    async def __aenter__(self) -> HubServer:
        await self.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.cleanup()

    async def list_tools(
        self, run_context: RunContextWrapper[Any] | None = None, agent: AgentBase[Any] | None = None
    ) -> list[MCPTool]:
        """See `MCPServer`; nothing is asked of a server."""
        return [_mcp_tool(tool) for tool in await self._box.tools(self._user)]

    async def call_tool(
        self, tool_name: str, arguments: dict[str, Any] | None, meta: dict[str, Any] | None = None
    ) -> CallToolResult:
        """See `MCPServer`."""
        tool = await self._box.look_up(tool_name, self._user)
        if isinstance(tool, ToolResult):
            return _call_result(self._box.service.noted(tool, arguments, self._user, (meta or {}).get(SESSION_KEY)))
        request = self._terms.request(tool, arguments or {}, (meta or {}).get(SESSION_KEY))
        return _call_result(await self._box.execute(request, self._on_event))

    def _get_failure_error_function(self, agent_failure_error_function: ToolErrorFunction | None) -> Any:
        """Asked by the SDK what to tell the model where a call failed before it came here.

        Arguments that are no object do: the SDK reads them itself, and says nothing of them. None has it raise.
        """
        otherwise = super()._get_failure_error_function(agent_failure_error_function)

        async def explain(context: RunContextWrapper[Any], error: Exception) -> str:
            if isinstance(context, ToolContext) and _read(context.tool_arguments) is None:
                return await self._unreadable(context)
            return str(await _settled(otherwise(context, error)))

        return None if otherwise is None else explain

    async def _unreadable(self, context: ToolContext[Any]) -> str:
        tool = await self._box.find(context.tool_name, self._user)
        result = unreadable(tool.name if tool is not None else context.tool_name)
        self._box.service.noted(result, context.tool_arguments, self._user, self._session(context))
        # Where the SDK puts what an extractor gives it; none is asked of a call that failed.
        context._custom_data = record_of(result)
        return said_by(result)

    async def list_prompts(self) -> ListPromptsResult:
        """See `MCPServer`; permissions are for tools, so that who has a user's has no prompts."""
        prompts = await self._box.service.list_prompts() if self._user is None else []
        return ListPromptsResult.model_validate({"prompts": prompts})

    async def get_prompt(self, name: str, arguments: dict[str, Any] | None = None) -> GetPromptResult:
        """See `MCPServer`.

        Raises:
            UserError: it is a user's server.
            ToolExecutionError: it cannot be had.
        """
        if self._user is not None:
            raise UserError(
                f"The prompt {name!r} cannot be had: {self.name} is a user's, and permissions are for tools."
            )
        return GetPromptResult.model_validate(await self._box.service.get_prompt(name, arguments))

    def _meta(self, call: MCPToolMetaContext) -> dict[str, Any] | None:
        session = self._session(call.run_context)
        return None if session is None else {SESSION_KEY: session}

    def _session(self, context: RunContextWrapper[Any]) -> str | None:
        return Terms(session_id=self._session_id).session(context, _group_of(context))


def _mcp_tool(tool: UniversalTool) -> MCPTool:
    said = {
        "name": llm_name_of(tool),
        "title": tool.metadata.get("title"),
        "description": tool.description,
        "inputSchema": for_model(tool.parameters_schema),
        "annotations": _hints(tool.metadata.get("annotations") or {}),
    }
    return MCPTool.model_validate({key: value for key, value in said.items() if value is not None})


def _hints(annotations: Mapping[str, Any]) -> dict[str, Any]:
    """What a server says of a tool, as far as it is what it must be: a wrong word must not cost the whole list."""
    return {key: value for key, value in annotations.items() if key.endswith("Hint") and isinstance(value, bool)}


def _call_result(result: ToolResult) -> CallToolResult:
    content = [_content_block(part) for part in parts_of(result)]
    answer: dict[str, Any] = {
        "content": content,
        "isError": not result.is_success,
        "_meta": {STATUS_KEY: json.loads(json_of(record_of(result)))},
    }
    if isinstance(result.result_data, dict) and result.metadata.get("structured"):
        answer["structuredContent"] = result.result_data
    return CallToolResult.model_validate(answer)


def _content_block(part: Part) -> dict[str, Any]:
    if isinstance(part, Image):
        return {"type": "image", "data": part.data, "mimeType": part.mime}
    return {"type": "text", "text": part.text}


def _meta_record(call: MCPToolCustomDataContext) -> Mapping[str, Any] | None:
    meta = call.result_meta
    return None if meta is None else meta.get(STATUS_KEY)
