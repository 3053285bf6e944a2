"""`AdkDomainAgent`: an agent of google-adk that runs a task with the tools that the task names.

    agent = AdkDomainAgent("helper", AgentConfig(model="gemini-2.5-flash", system_prompt="Be brief."))
    response = await agent.execute(AgentRequest(task_request=task_request))

It makes the agent, runs it, and combines the events into one response. Conversations last as long as the object: a task
with the session of an earlier one continues it.
"""

from __future__ import annotations

import inspect
import logging
import re
import uuid
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, fields, replace
from typing import Any, cast

from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig
from google.adk.events.event import Event
from google.adk.runners import Runner
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext
from google.genai import errors as genai_errors
from google.genai import types

from isthmus.integrations.adk.names import OfferedTools, is_unknown_tool, refusal_of, unknown_tool_result
from isthmus.integrations.adk.results import tool_response
from isthmus.integrations.adk.tool import NO_USER, HubTool, ToolOptions
from isthmus.library.errors import (
    ConfigurationError,
    LibraryError,
    ServiceClosedError,
    ToolUnreachableError,
    UnresolvedToolsError,
)
from isthmus.library.public_types import (
    AgentConfig,
    AgentRequest,
    AgentResponse,
    ErrorCode,
    ErrorPayload,
    TaskRequest,
    ToolResult,
    UniversalTool,
)
from isthmus.library.resolver import default_service, resolve_all
from isthmus.library.service import ToolService

logger = logging.getLogger(__name__)

APP_NAME = "isthmus"
CONFIRMATION = "adk_request_confirmation"
AGENT_ROLES = frozenset({"assistant", "model", "agent"})
REQUIRES_APPROVAL = "requires_approval"
"""The member of a tool's metadata that requires a person's approval of each call."""


class AdkDomainAgent:
    """Executes agent requests; one object may execute many, also concurrently."""

    def __init__(
        self,
        agent_id: str,
        config: AgentConfig | Mapping[str, Any],
        runtime_context: Mapping[str, Any] | None = None,
    ) -> None:
        """Starts nothing before `execute`.

        Args:
            agent_id: The name of the agent.
            config: Its configuration, or a mapping of its fields; a request may have another.
            runtime_context: `tool_service`, if the process has several; `session_service` of ADK, to keep
                conversations longer; `approve(tool_name, arguments)`, called for tools that need approval;
                `header_provider`, as for `HubToolset`.

        Raises:
            ConfigurationError: the configuration is invalid or has an unknown field.
        """
        context = runtime_context or {}
        self.agent_id = agent_id
        self.config = _config_of(config)
        self._service: ToolService | None = context.get("tool_service")
        self._sessions = context.get("session_service") or InMemorySessionService()
        self._approve = context.get("approve")
        self._header_provider = context.get("header_provider")

    async def execute(self, request: AgentRequest) -> AgentResponse:
        """Run the task; errors are in the response."""
        run = _TaskRun(request)
        try:
            async with aclosing(self._run(request, run)) as events:
                async for event in events:
                    run.add(event)
        except ServiceClosedError as error:
            run.fail(ErrorCode.TOOL_UNAVAILABLE, str(error))
        except LibraryError as error:
            problems = error.problems.values() if isinstance(error, UnresolvedToolsError) else [error]
            is_unreachable = all(isinstance(problem, ToolUnreachableError) for problem in problems)
            run.fail(ErrorCode.TOOL_UNAVAILABLE if is_unreachable else ErrorCode.VALIDATION, str(error))
        except genai_errors.APIError as error:
            run.fail(ErrorCode.MODEL_UPSTREAM, str(error))
        except Exception as error:
            # An error of a model, a plugin or ADK ends this task, not the program.
            logger.exception("task %s failed", request.task_request.task_id)
            run.fail(ErrorCode.FRAMEWORK_EXECUTION, f"{type(error).__name__}: {error}")
        return run.response()

    def execute_stream(self, request: AgentRequest) -> AsyncGenerator[Event, None]:
        """Run the task and yield ADK's events; partial ones are progress of tools and parts of the model's text.

        Closing the stream cancels the task.

        Raises:
            LibraryError: a tool, the service or the configuration is missing or invalid.
        """
        return self._run(request, _TaskRun(request))

    async def _run(self, request: AgentRequest, run: _TaskRun) -> AsyncGenerator[Event, None]:
        task = request.task_request
        config = _config_of(request.agent_config or task.agent_config or self.config)
        tools = await self._tools(task, config, run.results)
        settings = dict(config.model_config)
        model = config.model or settings.pop("model", None)
        agent = LlmAgent(
            name=_identifier(self.agent_id),
            description=config.description,
            # A function, since ADK would replace braces in a string by its state.
            instruction=lambda _context: config.system_prompt,
            generate_content_config=types.GenerateContentConfig(**settings) if settings else None,
            tools=tools,
            on_tool_error_callback=self._explainer(task, tools, run.results),
            **({"model": model} if model else {}),
        )
        runner = Runner(app_name=APP_NAME, agent=agent, session_service=self._sessions)
        names = {tool.name: tool.tool.name for tool in tools}
        try:
            message: types.Content | None = await self._first_message(request, run)
            while message is not None:
                pending = _PendingApprovals(names)
                events = runner.run_async(
                    user_id=_user_id(task),
                    session_id=run.session_id,
                    new_message=message,
                    run_config=RunConfig(**config.framework_config.get("run_config", {})),
                )
                async with aclosing(events):
                    async for event in events:
                        pending.add(event)
                        yield event
                message = await self._decisions(pending)
                run.pending = [] if message is not None else pending.asked
        finally:
            await runner.close()

    # -- agent and tools -----------------------------------------------------------------------------------------------

    async def _tools(self, task: TaskRequest, config: AgentConfig, results: list[ToolResult]) -> list[HubTool]:
        """The tools of the task and of the agent that the user may use."""
        if not task.available_tools and not config.available_tools:
            return []
        service = self._tool_service()
        catalog = await service.catalog()
        tools: dict[str, UniversalTool] = {}
        for tool in task.available_tools:
            entry = catalog.entries.get(tool.name)
            if entry is None or catalog.may_use(task.user_context, entry):  # a call of a removed tool will explain it
                tools[tool.name] = tool
        resolution = resolve_all(catalog, config.available_tools or [], task.user_context)
        if resolution.unknown:
            raise UnresolvedToolsError(resolution.unknown)
        tools |= {tool.name: tool for tool in resolution.tools if tool.name not in tools}
        options = ToolOptions(
            user_context=task.user_context, header_provider=self._header_provider, on_result=results.append
        )
        return [
            HubTool(tool, service, replace(options, require_confirmation=tool.metadata.get(REQUIRES_APPROVAL) is True))
            for tool in tools.values()
        ]

    def _explainer(self, task: TaskRequest, tools: list[HubTool], results: list[ToolResult]) -> Any:
        """The callback that replies to calls of unknown or denied tools."""

        async def explain(
            tool: BaseTool, args: dict[str, Any], tool_context: ToolContext, error: Exception
        ) -> dict[str, Any] | None:
            if not is_unknown_tool(tool):
                return None
            offer = OfferedTools([tool.name for tool in tools])
            with suppress(ConfigurationError, ServiceClosedError):  # a task without tools is done without a service
                service = self._tool_service()
                refusal = refusal_of(tool.name, await service.catalog(), task.user_context)
                offer = replace(offer, refusal=refusal, service=service, user=task.user_context)
            result = unknown_tool_result(tool.name, [offer], args, tool_context.session.id)
            results.append(result)
            return tool_response(result)

        return explain

    def _tool_service(self) -> ToolService:
        if self._service is not None:
            return self._service
        try:
            return cast("ToolService", default_service())
        except ServiceClosedError as error:
            raise ConfigurationError(
                f"agent {self.agent_id!r} cannot execute tools: {error} Pass the service as "
                'AdkDomainAgent(..., runtime_context={"tool_service": service}).'
            ) from error

    # -- the conversation ----------------------------------------------------------------------------------------------

    async def _first_message(self, request: AgentRequest, run: _TaskRun) -> types.Content:
        """The message for the agent, in a session with all earlier messages."""
        key = {"app_name": APP_NAME, "user_id": _user_id(request.task_request), "session_id": run.session_id}
        session = await self._sessions.get_session(**key)
        approvals = request.runtime_options.get("approvals")
        if approvals:
            return _approval_content(approvals)
        *earlier, message = task_contents(request.task_request)
        if session is None:
            session = await self._sessions.create_session(**key)
            for content in earlier:
                author = _identifier(self.agent_id) if content.role == "model" else "user"
                event = Event(author=author, content=content, invocation_id=f"before-{uuid.uuid4()}")
                await self._sessions.append_event(session, event)
        return message

    async def _decisions(self, pending: _PendingApprovals) -> types.Content | None:
        """The decisions of `approve` on pending calls; None without pending calls or without `approve`."""
        if not pending.asked or self._approve is None:
            return None
        decisions: dict[str, bool] = {}
        for question in pending.asked:
            decision = self._approve(question["tool_name"], question["arguments"])
            decisions[question["id"]] = bool(await decision if inspect.isawaitable(decision) else decision)
        return _approval_content(decisions)


class _PendingApprovals:
    """Calls that wait for approval."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names
        self.asked: list[dict[str, Any]] = []

    def add(self, event: Event) -> None:
        for call in event.get_function_calls():
            if call.name == CONFIRMATION and not event.partial:
                original = (call.args or {}).get("originalFunctionCall") or {}
                name = str(original.get("name"))
                arguments = original.get("args") or {}
                self.asked.append({"id": call.id, "tool_name": self._names.get(name, name), "arguments": arguments})


@dataclass(slots=True)
class _TaskRun:
    """Collects the events of a task for its response."""

    request: AgentRequest
    results: list[ToolResult] = field(default_factory=list)
    pending: list[dict[str, Any]] = field(default_factory=list)
    text: str = ""
    error: ErrorPayload | None = None
    session_id: str = ""

    def __post_init__(self) -> None:
        task = self.request.task_request
        context = task.session_context
        known = (self.request.session_id, task.session_id, context.session_id if context is not None else None)
        self.session_id = next((each for each in known if each), None) or str(uuid.uuid4())

    def add(self, event: Event) -> None:
        if event.partial:
            return
        if event.error_code:
            self.fail(ErrorCode.MODEL_UPSTREAM, f"{event.error_code}: {event.error_message or 'no details'}")
        elif event.is_final_response():
            parts = event.content.parts if event.content is not None else None
            text = "".join(part.text for part in parts or () if part.text and not part.thought)
            self.text = text or self.text

    def fail(self, code: ErrorCode, message: str) -> None:
        self.error = ErrorPayload(code, message, executed="unknown" if self.results else "no")

    def response(self) -> AgentResponse:
        task = self.request.task_request
        if self.pending and self.error is None:
            names = ", ".join(question["tool_name"] for question in self.pending)
            self.fail(
                ErrorCode.APPROVAL_TIMEOUT,
                f"{names} needs approval: execute the request again in this session with "
                'runtime_options={"approvals": {id: True}}; the ids are in metadata["pending_approvals"].',
            )
        return AgentResponse(
            task_id=task.task_id,
            status="error" if self.error is not None else "success",
            text=self.text,
            error=self.error,
            tool_results=self.results,
            session_id=self.session_id,
            metadata={"pending_approvals": self.pending} if self.pending else {},
        )


def _config_of(given: AgentConfig | Mapping[str, Any]) -> AgentConfig:
    if isinstance(given, AgentConfig):
        return given
    if not isinstance(given, Mapping):
        raise ConfigurationError(
            f"config must be an AgentConfig, or a mapping of its fields, not {type(given).__name__}"
        )
    known = [field.name for field in fields(AgentConfig)]
    if unknown := [str(key) for key in given if key not in known]:
        raise ConfigurationError(f"AgentConfig has no {', '.join(unknown)}: its fields are {', '.join(known)}")
    return AgentConfig(**given)


def _approval_content(decisions: Mapping[str, bool]) -> types.Content:
    parts = [
        types.Part(
            function_response=types.FunctionResponse(
                id=call_id, name=CONFIRMATION, response={"confirmed": bool(is_approved)}
            )
        )
        for call_id, is_approved in decisions.items()
    ]
    return types.Content(role="user", parts=parts)


def _user_id(task: TaskRequest) -> str:
    named = task.user_context.user_id if task.user_context is not None else None
    if named == NO_USER:
        raise ConfigurationError(f"user_id must not be {NO_USER!r}, which is reserved for tasks without a user")
    return named or NO_USER


def _identifier(name: str) -> str:
    """A legal ADK agent name; ADK reserves `user`."""
    legal = re.sub(r"[^A-Za-z0-9_]", "_", name)
    return legal if legal.isidentifier() and legal != "user" else f"agent_{legal}"


def task_contents(task: TaskRequest) -> list[types.Content]:
    """The messages of a task as ADK contents; without messages, the description.

    A message is a string, `{"role", "content"}`, an object with these members, or a content.

    Raises:
        ConfigurationError: there is no message to reply to, or a message is invalid.
    """
    contents: list[types.Content] = []
    for message in task.messages or ([task.description] if task.description else []):
        if isinstance(message, types.Content):
            contents.append(message)
            continue
        role: object = "user"
        text: object = message
        if isinstance(message, Mapping):
            role, text = message.get("role", "user"), message.get("content")
        elif not isinstance(message, str):
            role, text = getattr(message, "role", "user"), getattr(message, "content", None)
        if not isinstance(text, str):
            kind = type(text).__name__
            raise ConfigurationError(f"a message must be a string or have a string as content, not {kind}")
        model_role = "model" if str(role) in AGENT_ROLES else "user"
        contents.append(types.Content(role=model_role, parts=[types.Part(text=text)]))
    if not contents or contents[-1].role != "user":
        raise ConfigurationError(
            f"task {task.task_id} has no message to reply to: give it a description, or messages that end with a user's"
        )
    return contents
