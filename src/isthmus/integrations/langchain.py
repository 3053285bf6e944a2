"""The tools of a service in LangChain and LangGraph.

`hub_tools` returns a list of tools, `HubMiddleware` keeps the tools of an agent current, `hub_tool_node` is a node for
your own graph.

A tool has the JSON Schema of its server. The hub checks arguments against it; LangChain does not check such schemas. A
failure is LangChain's `ToolException`; if it is handled, it becomes a `ToolMessage` with status `error`. The
`ToolMessage` of every call has its result as `artifact` (`result_record`), including structured content. Progress goes
to the graph's stream (`stream_mode="custom"`) while the tool runs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Literal, NoReturn, TypeAlias, TypedDict, Unpack

try:
    import langchain as _langchain  # noqa: F401 - to name the missing package
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "langchain is not installed here: pip install 'isthmus[langchain]'", name=error.name, path=error.path
    ) from error

from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ensure_config
from langchain_core.tools import BaseTool, ToolException
from langgraph.config import get_stream_writer
from langgraph.prebuilt import ToolNode, tool_node
from langgraph.types import interrupt
from pydantic import Field

from isthmus.library.agent_tools import (
    AgentTools,
    Approval,
    CallOptions,
    Listener,
    Selection,
    llm_name_of,
    not_approved,
    unreadable_arguments,
)
from isthmus.library.loop_thread import LoopThread
from isthmus.library.provider_formats import (
    ModelImage,
    ModelText,
    model_parts,
    provider_schema,
    result_record,
    result_text,
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

INVALID_TOOL_NAME: str = getattr(
    tool_node,
    "INVALID_TOOL_NAME_ERROR_TEMPLATE",
    "Error: {requested_tool} is not a valid tool, try one of [{available_tools}].",
)
"""LangGraph's reply to an unknown tool name; the default is the text of earlier releases."""

UserOf: TypeAlias = UserContext | Callable[[RunnableConfig], UserContext | None] | None
"""The user, or a function that reads the user from a call's configuration."""

SessionOf: TypeAlias = str | Callable[[RunnableConfig], str | None] | None
"""The conversation, sent to servers; by default the `thread_id` of the graph."""

HeadersOf: TypeAlias = Mapping[str, str] | Callable[[RunnableConfig], Mapping[str, str] | None] | None
"""Sent to servers that are configured to receive them."""


class HubToolException(ToolException):
    """A tool failed or was not executed; `result.status` says how."""

    def __init__(self, message: str, result: ToolResult) -> None:
        super().__init__(message)
        self.result = result


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
) -> list[BaseTool]:
    """Tools for `model.bind_tools(tools)` or `create_agent(model, tools)`.

    Calls to unknown names are answered by LangGraph itself, without a status of the hub. `HubMiddleware` and
    `hub_tool_node` answer them with one.

    Args:
        service: an initialized service.
        names: names in any form, or the tools of a task request; by default all that the user may use.
        user_context: the user of the calls. A function is called for every call and does not filter the list.
        session_id: the conversation, sent to servers; by default the `thread_id` of the graph.
        headers: sent to servers that are configured to receive them.
        needs_approval: calls that first `interrupt` the graph, to be resumed by `Command(resume=True)`.
        timeout: seconds for a call.
        on_event: called with progress and log chunks, besides the graph's stream.

    Raises:
        ToolError, UnresolvedToolsError: a name is unknown or denied.
    """
    tools = AgentTools(service, names, needs_approval=needs_approval)
    return await _list_tools(_LangChainTools(tools, CallOptions(user_context, session_id, headers, timeout), on_event))


class Options(TypedDict, total=False):
    """Optional arguments of `hub_tools`."""

    session_id: SessionOf
    headers: HeadersOf
    needs_approval: Approval
    timeout: float | None
    on_event: Listener | None


def hub_tools_blocking(
    service: ToolService,
    names: Selection | None = None,
    user_context: UserOf = None,
    **options: Unpack[Options],
) -> list[BaseTool]:
    """`hub_tools` for a program without a loop."""
    return LoopThread.shared().run_blocking(hub_tools(service, names, user_context, **options))


async def hub_tool_node(
    service: ToolService,
    names: Selection | None = None,
    user_context: UserOf = None,
    **options: Unpack[Options],
) -> ToolNode:
    """The tools as a node for your own graph, which also answers calls to unknown names.

    Bind `list(node.tools_by_name.values())` to the model.
    """
    # Both parts must have the same names, user and approval: the middleware executes whatever it knows.
    hub = HubMiddleware(service, names, user_context, **options)
    return ToolNode(await hub.listed(), wrap_tool_call=hub.wrap_tool_call, awrap_tool_call=hub.awrap_tool_call)


@dataclass(frozen=True, slots=True)
class _LangChainTools:
    """What the tools of one list share: selection, call options and listener."""

    tools: AgentTools
    options: CallOptions[RunnableConfig]
    on_event: Listener | None = None

    def noted(self, refusal: ToolResult, arguments: object) -> ToolResult:
        """Record a refusal in the audit log; see `ToolService.noted`."""
        config = ensure_config()
        user, session = self.options.user(config), self.options.session(config, _thread_of(config))
        return self.tools.service.noted(refusal, arguments, user, session)


class HubTool(BaseTool):
    """One tool of a hub."""

    kit: Any = Field(exclude=True, repr=False)
    universal: Any = Field(exclude=True, repr=False)
    response_format: Literal["content", "content_and_artifact"] = "content_and_artifact"
    handle_tool_error: Any = True

    # Arguments come as keywords with any names, so this method has no other keyword parameters.
    def _run(self, /, **parameters: Any) -> tuple[Any, dict[str, Any]]:
        request = self._request(parameters)
        result = self.kit.tools.execute_blocking(request, _event_writer(self.kit.on_event))
        return _content_and_artifact(self.kit.tools.explain_blocking(self.universal, result, request.user_context))

    async def _arun(self, /, **parameters: Any) -> tuple[Any, dict[str, Any]]:
        request = self._request(parameters)
        result = await self.kit.tools.execute(request, _event_writer(self.kit.on_event))
        return _content_and_artifact(await self.kit.tools.explain(self.universal, result, request.user_context))

    def _request(self, parameters: dict[str, Any]) -> ToolRequest:
        config = ensure_config()
        if self.kit.tools.is_approval_needed(self.universal, parameters):
            _require_approval(self.kit, self.universal, parameters)
        request: ToolRequest = self.kit.options.request(self.universal, parameters, config, _thread_of(config))
        return request

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Run the tool; the message of a failed call gets its result as `artifact`."""
        with _failures() as failures:
            return _with_artifact(super().run(*args, **kwargs), failures)

    async def arun(self, *args: Any, **kwargs: Any) -> Any:
        """The same on the loop."""
        with _failures() as failures:
            return _with_artifact(await super().arun(*args, **kwargs), failures)


class HubMiddleware(AgentMiddleware[Any, Any, Any]):
    """The current tools of a hub at each turn, for `create_agent(model, middleware=[HubMiddleware(service)])`.

    The model sees added and removed tools at its next turn. No request to a server is needed for that.
    """

    def __init__(
        self,
        service: ToolService,
        names: Selection | None = None,
        user_context: UserOf = None,
        *,
        session_id: SessionOf = None,
        headers: HeadersOf = None,
        needs_approval: Approval = False,
        timeout: float | None = None,
        on_event: Listener | None = None,
    ) -> None:
        """Arguments as for `hub_tools`; a `user_context` function is called at every turn and filters the list."""
        super().__init__()
        tools = AgentTools(service, names, needs_approval=needs_approval)
        self._kit = _LangChainTools(tools, CallOptions(user_context, session_id, headers, timeout), on_event)

    async def listed(self) -> list[BaseTool]:
        """The current tools, as `hub_tools` returns them."""
        return await _list_tools(self._kit)

    async def awrap_model_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        """Show the model the current tools."""
        tools = await self._kit.tools.tools(self._user(), is_shared=self._kit.options.is_shared)
        turn = _ModelTurn(self._kit, self._with_tools(request, tools), tools)
        while (response := turn.receive(await handler(turn.request))) is None:
            pass
        return response

    def wrap_model_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """The same for a program without a loop."""
        tools = self._kit.tools.tools_blocking(self._user(), is_shared=self._kit.options.is_shared)
        turn = _ModelTurn(self._kit, self._with_tools(request, tools), tools)
        while (response := turn.receive(handler(turn.request))) is None:
            pass
        return response

    async def awrap_tool_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        """Execute a call with the current tool of its name; refuse it if no tool of the agent has the name."""
        if request.tool is not None:
            return await handler(request)
        found = await self._kit.tools.look_up(request.tool_call["name"], self._user())
        return self._unless_unknown(request, found, await handler(self._with_tool(request, found)))

    def wrap_tool_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """The same for a program without a loop."""
        if request.tool is not None:
            return handler(request)
        found = self._kit.tools.look_up_blocking(request.tool_call["name"], self._user())
        return self._unless_unknown(request, found, handler(self._with_tool(request, found)))

    def _user(self) -> UserContext | None:
        return self._kit.options.user(ensure_config())

    def _unless_unknown(self, request: Any, found: UniversalTool | ToolResult, output: Any) -> Any:
        """The output of a call; for a tool that no middleware knows, the refusal of this one.

        Another middleware may know the tool, so the others are called first.
        """
        call = request.tool_call
        if not isinstance(found, ToolResult) or not isinstance(output, ToolMessage):
            return output
        # LangGraph itself replied. The tools that it lists are those it was made with, not the model's.
        prefix = INVALID_TOOL_NAME.format(requested_tool=call["name"], available_tools="").partition("[")[0]
        is_unknown = output.status == "error" and str(output.content).startswith(prefix)
        # Another hub does not know the tool, but this one does: it denies it, or its server is not connected.
        record = output.artifact if isinstance(output.artifact, dict) else {}
        is_overruled = record.get("status") == ToolStatus.NOT_FOUND and found.status is not ToolStatus.NOT_FOUND
        return _refusal(call, self._kit.noted(found, call["args"])) if is_unknown or is_overruled else output

    def _with_tools(self, request: Any, tools: list[UniversalTool]) -> Any:
        return request.override(tools=[*request.tools, *(_hub_tool(self._kit, tool) for tool in tools)])

    def _with_tool(self, request: Any, found: UniversalTool | ToolResult) -> Any:
        return request if isinstance(found, ToolResult) else request.override(tool=_hub_tool(self._kit, found))


async def _list_tools(kit: _LangChainTools) -> list[BaseTool]:
    return [_hub_tool(kit, tool) for tool in await kit.tools.tools(kit.options.list_user)]


def _hub_tool(kit: _LangChainTools, tool: UniversalTool) -> HubTool:
    return HubTool(
        name=llm_name_of(tool),
        description=tool.description,
        args_schema=_readable(provider_schema(tool.parameters_schema)),
        metadata={"tool": tool.name, "server": tool.namespace, "annotations": tool.metadata.get("annotations") or {}},
        kit=kit,
        universal=tool,
    )


def _readable(schema: Any) -> Any:
    """A schema without properties called `$ref`: LangChain takes them for references and fails with all tools.

    The hub still accepts such an argument.
    """
    match schema:
        case dict():
            return {key: _readable(each) for key, each in schema.items() if key != "$ref" or isinstance(each, str)}
        case list():
            return [_readable(each) for each in schema]
        case _:
            return schema


# -- calls with unreadable arguments -----------------------------------------------------------------------------------

UNREADABLE_TURNS_MAX = 3
"""How often a model may repeat a call with unreadable arguments."""


class _ModelTurn:
    """One turn of the model, repeated while its reply has only calls whose arguments are not JSON objects.

    LangChain puts these into `invalid_tool_calls`, executes none, and takes a message without calls for the final
    answer: the run would end without one.
    """

    def __init__(self, kit: _LangChainTools, request: Any, tools: list[UniversalTool]) -> None:
        self.request = request
        self._kit = kit
        self._tools = {llm_name_of(tool): tool for tool in tools}
        self._said: list[Any] = []
        self._left = UNREADABLE_TURNS_MAX

    def receive(self, response: Any) -> Any | None:
        """The response of the turn; None if the model must be called again with `request`."""
        message = next((each for each in reversed(response.result) if isinstance(each, AIMessage)), None)
        refusals = [] if message is None else self._refusals(message, response.result)
        if not refusals and not self._said:
            return response
        said = [*response.result, *refusals]
        if not refusals or message is None or message.tool_calls or not self._left:
            return replace(response, result=[*self._said, *said])
        self._left -= 1
        self._said += said
        self.request = self.request.override(messages=[*self.request.messages, *said])
        return None

    def _refusals(self, message: AIMessage, said: list[Any]) -> list[ToolMessage]:
        """Messages that refuse such calls, if one of them is for this hub and no middleware has answered it.

        Then all of them are refused: providers reject a conversation in which a call has no reply.
        """
        answered = {each.tool_call_id for each in said if isinstance(each, ToolMessage)}
        calls = [call for call in message.invalid_tool_calls if call.get("id") and call.get("name")]
        left = [call for call in calls if call["id"] not in answered]
        if not any(self._is_own(call["name"]) for call in left):
            return []
        refusals: list[ToolMessage] = []
        for call in left:
            tool = self._tools.get(call["name"])
            result = unreadable_arguments(str(call["name"]) if tool is None else tool.name)
            if self._is_own(call["name"]):
                result = self._kit.noted(result, call["args"])
            refusals.append(_refusal(call, result))
        return refusals

    def _is_own(self, called: Any) -> bool:
        """Whether this hub answers a name: it has the tool, or no other tool has this name."""
        if called in self._tools:
            return True
        # The response format is a tool as well, which is not in the list.
        if self.request.response_format is not None:
            return False
        for tool in self.request.tools:  # objects, or definitions in a provider's form
            function = tool.get("function") if isinstance(tool, dict) else None
            definition = function if isinstance(function, dict) else tool
            name = definition.get("name") if isinstance(definition, dict) else getattr(tool, "name", None)
            if called == name:
                return False
        return True


def _refusal(call: Any, result: ToolResult) -> ToolMessage:
    return ToolMessage(
        result_text(result), name=call["name"], tool_call_id=call["id"], status="error", artifact=result_record(result)
    )


def _thread_of(config: RunnableConfig) -> str | None:
    thread = config.get("configurable", {}).get("thread_id")
    return None if thread is None else str(thread)


# -- approval ----------------------------------------------------------------------------------------------------------


def _require_approval(kit: _LangChainTools, tool: UniversalTool, parameters: Mapping[str, Any]) -> None:
    """Interrupt the graph until the call is approved. On resumption the tool starts over; nothing was sent yet.

    Raises:
        HubToolException: the call was rejected.
    """
    question = {"type": "approval", "tool": tool.name, "parameters": dict(parameters)}
    try:
        reply = interrupt(question)
    except (KeyError, RuntimeError) as error:
        raise RuntimeError(
            f"{tool.name} needs approval, which needs a graph with a checkpointer: run it in one."
        ) from error
    is_approved, why = _read_reply(reply)
    if not is_approved:
        _fail(kit.noted(not_approved(tool, why), parameters))


def _read_reply(reply: Any) -> tuple[bool, str]:
    """Whether a reply approves (`True`, or the forms of LangChain's own middleware), and the reason if not."""
    match reply:
        case {"decisions": [decision]}:  # the form for all calls of a turn; here each call is asked about alone
            return _read_reply(decision)
        case {"type": "approve"} | "approve":
            return True, ""
        case {"message": str(why)}:
            return False, why
        case _:
            return reply is True, ""


# -- progress ----------------------------------------------------------------------------------------------------------


def _event_writer(on_event: Listener | None) -> Listener | None:
    """A listener that writes to the graph's stream and calls the program's own listener."""
    try:
        write: Callable[[Any], None] = get_stream_writer()
    except (KeyError, RuntimeError):  # not inside a graph
        return on_event

    def write_event(chunk: ToolStreamChunk) -> Awaitable[None] | None:
        content = chunk.content if isinstance(chunk.content, dict) else {"data": chunk.content}
        about = {"type": chunk.chunk_type, "tool": chunk.tool_name, "timestamp": chunk.timestamp.isoformat()}
        write({**content, **about})
        return on_event(chunk) if on_event is not None else None

    return write_event


# -- results -----------------------------------------------------------------------------------------------------------

_failed: ContextVar[list[ToolResult] | None] = ContextVar("_failed", default=None)
"""The result of a failing call: LangChain passes only the message of an exception on to the `ToolMessage`."""


@contextmanager
def _failures() -> Iterator[list[ToolResult]]:
    failures: list[ToolResult] = []
    token = _failed.set(failures)
    try:
        yield failures
    finally:
        _failed.reset(token)


def _with_artifact(output: Any, failures: list[ToolResult]) -> Any:
    if failures and isinstance(output, ToolMessage):
        output.artifact = result_record(failures[-1])
    return output


def _content_and_artifact(result: ToolResult) -> tuple[Any, dict[str, Any]]:
    """Content and artifact of a successful call.

    Raises:
        HubToolException: the call failed.
    """
    if not result.is_success:
        _fail(result)
    parts = model_parts(result)
    content: Any = result_text(result)
    if any(isinstance(part, ModelImage) for part in parts):
        content = [
            {"type": "text", "text": part.text}
            if isinstance(part, ModelText)
            else {"type": "image", "base64": part.data, "mime_type": part.mime}
            for part in parts
        ]
    return content, result_record(result)


def _fail(result: ToolResult) -> NoReturn:
    failures = _failed.get()
    if failures is not None:
        failures.append(result)
    raise HubToolException(result_text(result), result)
