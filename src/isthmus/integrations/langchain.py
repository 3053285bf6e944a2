"""A service's tools in LangChain and LangGraph: `hub_tools` for a list of them, `HubMiddleware` for a live one.

`hub_tool_node` is the list as a node for a graph of one's own.

A tool has the raw JSON Schema of its server, and the hub checks arguments against it, which LangChain does not for such
schemas. A failure is LangChain's own `ToolException` (handled, it becomes a `ToolMessage` with status `error`). The
`ToolMessage` of every call has how it ended as its `artifact` (`record_of`), structured content included.
Progress goes to the graph's stream (`stream_mode="custom"`) while the tool runs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Literal, NoReturn, TypeAlias, TypedDict, Unpack

try:
    import langchain as _langchain  # noqa: F401 - to say what is missing, if it is
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

from isthmus.library.contracts import ToolRequest, ToolResult, ToolStatus, ToolStreamChunk, UniversalTool, UserContext
from isthmus.library.forms import for_model
from isthmus.library.owner import Owner
from isthmus.library.parts import Image, Part, Text, parts_of, record_of, said_by
from isthmus.library.service import ToolService
from isthmus.library.toolbox import (
    Approval,
    Listener,
    Selection,
    Terms,
    Toolbox,
    llm_name_of,
    not_approved,
    unreadable,
)

INVALID_TOOL_NAME: str = getattr(
    tool_node,
    "INVALID_TOOL_NAME_ERROR_TEMPLATE",
    "Error: {requested_tool} is not a valid tool, try one of [{available_tools}].",
)
"""What LangGraph says of a name that is no tool's; if it does not tell any more, what it said."""

UserOf: TypeAlias = UserContext | Callable[[RunnableConfig], UserContext | None] | None
"""On whose behalf: one user, or a function that reads the user from a call's configuration."""

SessionOf: TypeAlias = str | Callable[[RunnableConfig], str | None] | None
"""What servers are told as the conversation; without, the `thread_id` of the graph."""

HeadersOf: TypeAlias = Mapping[str, str] | Callable[[RunnableConfig], Mapping[str, str] | None] | None
"""Sent to those servers that are configured to receive them."""


class HubToolException(ToolException):
    """A tool failed, or was not executed; `result` says how, by its `status`."""

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
    """Tools for `model.bind_tools(tools)`, or for `create_agent(model, tools)`.

    Of names that are none of these LangGraph says by itself that they are not valid, with no status of the hub's:
    `HubMiddleware` and `hub_tool_node` are asked about them too.

    Args:
        service: an initialised service.
        names: in any form, or the tools of a task request; without, everything that the user may use.
        user_context: on whose behalf. A function can filter no list, and is asked at every call.
        session_id: what servers are told as the conversation; without, the `thread_id` of the graph.
        headers: sent to those servers that are configured to receive them.
        needs_approval: which calls first `interrupt` the graph, to be resumed by `Command(resume=True)`.
        timeout: seconds that a call may take.
        on_event: told of progress and logs, beside the graph's stream.

    Raises:
        ToolError, UnresolvedToolsError: a name is no tool's, or not this user's to use.
    """
    box = Toolbox(service, names, needs_approval=needs_approval)
    return await _listed(_Kit(box, Terms(user_context, session_id, headers, timeout), on_event))


class Options(TypedDict, total=False):
    """What may be said of tools besides which and whose, as for `hub_tools`."""

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
    """The same for a program without a loop."""
    return Owner.shared().wait(hub_tools(service, names, user_context, **options))


async def hub_tool_node(
    service: ToolService,
    names: Selection | None = None,
    user_context: UserOf = None,
    **options: Unpack[Options],
) -> ToolNode:
    """The same tools as a node for a graph of one's own, which also answers names that it does not have.

    Such an answer is the hub's to give on the same terms, so both are made here: whoever answers decides what the
    model may call. `list(node.tools_by_name.values())` is what to bind to the model.
    """
    hub = HubMiddleware(service, names, user_context, **options)
    return ToolNode(await hub.listed(), wrap_tool_call=hub.wrap_tool_call, awrap_tool_call=hub.awrap_tool_call)


@dataclass(frozen=True, slots=True)
class _Kit:
    """What the tools of one list share."""

    box: Toolbox
    terms: Terms[RunnableConfig]
    on_event: Listener | None = None

    def noted(self, refusal: ToolResult, arguments: object) -> ToolResult:
        """What is refused here, as it is; see `ToolService.noted`."""
        config = ensure_config()
        user, session = self.terms.user(config), self.terms.session(config, _thread_of(config))
        return self.box.service.noted(refusal, arguments, user, session)


class HubTool(BaseTool):
    """One tool of a hub."""

    kit: Any = Field(exclude=True, repr=False)
    universal: Any = Field(exclude=True, repr=False)
    response_format: Literal["content", "content_and_artifact"] = "content_and_artifact"
    handle_tool_error: Any = True

    # Arguments come by their own names, which may be any: nothing else may be called by keyword here.
    def _run(self, /, **parameters: Any) -> tuple[Any, dict[str, Any]]:
        request = self._request(parameters)
        result = self.kit.box.execute_blocking(request, _teller(self.kit.on_event))
        return _answer(self.kit.box.told_blocking(self.universal, result, request.user_context))

    async def _arun(self, /, **parameters: Any) -> tuple[Any, dict[str, Any]]:
        request = self._request(parameters)
        result = await self.kit.box.execute(request, _teller(self.kit.on_event))
        return _answer(await self.kit.box.told(self.universal, result, request.user_context))

    def _request(self, parameters: dict[str, Any]) -> ToolRequest:
        config = ensure_config()
        if self.kit.box.is_approval_needed(self.universal, parameters):
            _ask(self.kit, self.universal, parameters)
        request: ToolRequest = self.kit.terms.request(self.universal, parameters, config, _thread_of(config))
        return request

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """See `BaseTool`."""
        with _failures() as failures:
            return _with_artifact(super().run(*args, **kwargs), failures)

    async def arun(self, *args: Any, **kwargs: Any) -> Any:
        """See `BaseTool`."""
        with _failures() as failures:
            return _with_artifact(await super().arun(*args, **kwargs), failures)


class HubMiddleware(AgentMiddleware[Any, Any, Any]):
    """The tools of a hub as they are at each turn, for `create_agent(model, middleware=[HubMiddleware(service)])`.

    What servers add or remove, the model sees at its next turn. Nothing is asked of a server for that.
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
        """The same as for `hub_tools`; a function is asked for the user at every turn, and filters the list."""
        super().__init__()
        box = Toolbox(service, names, needs_approval=needs_approval)
        self._kit = _Kit(box, Terms(user_context, session_id, headers, timeout), on_event)

    async def listed(self) -> list[BaseTool]:
        """The tools as they are now, as `hub_tools` gives them."""
        return await _listed(self._kit)

    async def awrap_model_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        """See `AgentMiddleware`."""
        tools = await self._kit.box.tools(self._user(), is_shared=self._kit.terms.is_shared)
        turn = _Turn(self._kit, self._with_tools(request, tools), tools)
        while (response := turn.heard(await handler(turn.request))) is None:
            pass
        return response

    def wrap_model_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """See `AgentMiddleware`."""
        tools = self._kit.box.tools_blocking(self._user(), is_shared=self._kit.terms.is_shared)
        turn = _Turn(self._kit, self._with_tools(request, tools), tools)
        while (response := turn.heard(handler(turn.request))) is None:
            pass
        return response

    async def awrap_tool_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        """See `AgentMiddleware`."""
        if request.tool is not None:
            return await handler(request)
        found = await self._kit.box.look_up(*self._asked(request))
        return self._unless_unknown(request, found, await handler(self._with_tool(request, found)))

    def wrap_tool_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """See `AgentMiddleware`."""
        if request.tool is not None:
            return handler(request)
        found = self._kit.box.look_up_blocking(*self._asked(request))
        return self._unless_unknown(request, found, handler(self._with_tool(request, found)))

    def _asked(self, request: Any) -> tuple[str, UserContext | None]:
        return request.tool_call["name"], self._user()

    def _user(self) -> UserContext | None:
        return self._kit.terms.user(ensure_config())

    def _unless_unknown(self, request: Any, found: UniversalTool | ToolResult, output: Any) -> Any:
        """What came of a call; if nobody has the tool, what is said of it here.

        Another middleware may have a tool that this one does not have, so that the others are asked first.
        """
        call = request.tool_call
        if isinstance(found, ToolResult) and (_is_of_nobody(call["name"], output) or _is_overruled(found, output)):
            return _refusal(call, self._kit.noted(found, call["args"]))
        return output

    def _with_tools(self, request: Any, tools: list[UniversalTool]) -> Any:
        return request.override(tools=[*request.tools, *(_hub_tool(self._kit, tool) for tool in tools)])

    def _with_tool(self, request: Any, found: UniversalTool | ToolResult) -> Any:
        return request if isinstance(found, ToolResult) else request.override(tool=_hub_tool(self._kit, found))


async def _listed(kit: _Kit) -> list[BaseTool]:
    return [_hub_tool(kit, tool) for tool in await kit.box.tools(kit.terms.lister)]


def _hub_tool(kit: _Kit, tool: UniversalTool) -> HubTool:
    return HubTool(
        name=llm_name_of(tool),
        description=tool.description,
        args_schema=_readable(for_model(tool.parameters_schema)),
        metadata={"tool": tool.name, "server": tool.namespace, "annotations": tool.metadata.get("annotations") or {}},
        kit=kit,
        universal=tool,
    )


def _readable(schema: Any) -> Any:
    """A schema without members called `$ref`: LangChain takes the name for a reference, and fails with all other tools.

    Who calls the tool with one all the same is not kept from it.
    """
    match schema:
        case dict():
            return {key: _readable(each) for key, each in schema.items() if key != "$ref" or isinstance(each, str)}
        case list():
            return [_readable(each) for each in schema]
        case _:
            return schema


# -- calls that never become one ---------------------------------------------------------------------------------------

UNREADABLE_TURNS_MAX = 3
"""How often a model is asked again whose calls cannot be read; one that fails as often does not learn it."""


class _Turn:
    """A turn of the model, which is asked again while it says nothing but calls with arguments that are no object.

    LangChain keeps these aside (`invalid_tool_calls`), executes none, and takes a message without calls for the
    answer: the run would end with nothing said.
    """

    def __init__(self, kit: _Kit, request: Any, tools: list[UniversalTool]) -> None:
        self.request = request
        self._kit = kit
        self._tools = {llm_name_of(tool): tool for tool in tools}
        self._said: list[Any] = []
        self._left = UNREADABLE_TURNS_MAX

    def heard(self, response: Any) -> Any | None:
        """What the turn comes to; None if the model is to be asked again, with what it is told."""
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
        """What is told of such calls, if one is for this hub to answer, and no other middleware has answered it.

        Then it is told of all of them: a provider refuses a conversation in which a call has no answer.
        """
        answered = {each.tool_call_id for each in said if isinstance(each, ToolMessage)}
        calls = [call for call in message.invalid_tool_calls if call.get("id") and call.get("name")]
        left = [call for call in calls if call["id"] not in answered]
        if not any(self._is_own(call["name"]) for call in left):
            return []
        return [_refusal(call, self._unreadable(call)) for call in left]

    def _unreadable(self, call: Any) -> ToolResult:
        result = unreadable(self._name_of(call["name"]))
        return self._kit.noted(result, call["args"]) if self._is_own(call["name"]) else result

    def _is_own(self, called: Any) -> bool:
        """Whether a name is for this hub to answer: a tool's of its own, or nobody's."""
        if called in self._tools:
            return True
        # What answers are to look like is a tool as well, which is not in the list.
        return self.request.response_format is None and called not in map(_given_name, self.request.tools)

    def _name_of(self, called: Any) -> str:
        tool = self._tools.get(called)
        return str(called) if tool is None else tool.name


def _given_name(tool: Any) -> Any:
    """What the model calls a tool of anybody's: an object, or a description in a provider's form."""
    if not isinstance(tool, dict):
        return getattr(tool, "name", None)
    function = tool.get("function")
    return function.get("name") if isinstance(function, dict) else tool.get("name")


# -- names that the agent does not have --------------------------------------------------------------------------------


def _is_overruled(found: ToolResult, output: Any) -> bool:
    """Whether another hub does not know the tool, and this one does: it denies it, or cannot reach its server."""
    record = output.artifact if isinstance(output, ToolMessage) else None
    is_unknown = isinstance(record, dict) and record.get("status") == ToolStatus.NOT_FOUND
    return is_unknown and found.status is not ToolStatus.NOT_FOUND


def _is_of_nobody(name: str, output: Any) -> bool:
    """Whether LangGraph itself answered; the tools that it names are those it was made with, not the model's."""
    said = INVALID_TOOL_NAME.format(requested_tool=name, available_tools="")
    beginning = said.partition("[")[0]
    return isinstance(output, ToolMessage) and output.status == "error" and str(output.content).startswith(beginning)


def _refusal(call: Any, result: ToolResult) -> ToolMessage:
    return ToolMessage(
        said_by(result), name=call["name"], tool_call_id=call["id"], status="error", artifact=record_of(result)
    )


def _thread_of(config: RunnableConfig) -> str | None:
    thread = config.get("configurable", {}).get("thread_id")
    return None if thread is None else str(thread)


# -- approval ----------------------------------------------------------------------------------------------------------


def _ask(kit: _Kit, tool: UniversalTool, parameters: Mapping[str, Any]) -> None:
    """Stop the graph until somebody says yes; what is resumed begins here anew, and nothing has been sent yet.

    Raises:
        HubToolException: somebody said no.
    """
    question = {"type": "approval", "tool": tool.name, "parameters": dict(parameters)}
    try:
        reply = interrupt(question)
    except (KeyError, RuntimeError) as error:
        raise RuntimeError(
            f"{tool.name} needs approval, and there is nobody to ask: run it in a graph with a checkpointer."
        ) from error
    is_approved, why = _read_reply(reply)
    if not is_approved:
        _fail(kit.noted(not_approved(tool, why), parameters))


def _read_reply(reply: Any) -> tuple[bool, str]:
    """Whether it is `True`, or what LangChain's own middleware takes for that; and what is said to a no."""
    match reply:
        case {"decisions": [decision]}:  # its form for all calls of a turn; here each is asked about by itself
            return _read_reply(decision)
        case {"type": "approve"} | "approve":
            return True, ""
        case {"message": str(why)}:
            return False, why
        case _:
            return reply is True, ""


# -- while it runs -----------------------------------------------------------------------------------------------------


def _teller(on_event: Listener | None) -> Listener | None:
    """Who is told: the graph's stream, the program's own listener, or both."""
    write = _stream_writer()
    if write is None:
        return on_event

    def tell(chunk: ToolStreamChunk) -> Awaitable[None] | None:
        write(_event_of(chunk))
        return on_event(chunk) if on_event is not None else None

    return tell


def _stream_writer() -> Callable[[Any], None] | None:
    try:
        writer: Callable[[Any], None] = get_stream_writer()
    except (KeyError, RuntimeError):  # not inside a graph
        return None
    return writer


def _event_of(chunk: ToolStreamChunk) -> dict[str, Any]:
    said = chunk.content if isinstance(chunk.content, dict) else {"data": chunk.content}
    return {**said, "type": chunk.chunk_type, "tool": chunk.tool_name, "timestamp": chunk.timestamp.isoformat()}


# -- how it ended ------------------------------------------------------------------------------------------------------

_failed: ContextVar[list[ToolResult] | None] = ContextVar("_failed", default=None)
"""The result of the call that fails: on its way to a `ToolMessage` LangChain keeps no more of it than the message."""


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
        output.artifact = record_of(failures[-1])
    return output


def _answer(result: ToolResult) -> tuple[Any, dict[str, Any]]:
    """Content and artifact of a success.

    Raises:
        HubToolException: it is none.
    """
    if not result.is_success:
        _fail(result)
    return _content(result), record_of(result)


def _fail(result: ToolResult) -> NoReturn:
    failures = _failed.get()
    if failures is not None:
        failures.append(result)
    raise HubToolException(said_by(result), result)


def _content(result: ToolResult) -> Any:
    parts = parts_of(result)
    has_images = any(isinstance(part, Image) for part in parts)
    return [_block(part) for part in parts] if has_images else said_by(result)


def _block(part: Part) -> dict[str, Any]:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    return {"type": "image", "base64": part.data, "mime_type": part.mime}
