"""What all framework integrations share: the tools of one agent, their approval, and their execution.

`dispatcher` and the integrations use it, so in every framework a user has the same tools, the same calls need approval,
and cancelling a run cancels its tools.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

from isthmus.core.catalog.names import suggestions
from isthmus.library.catalog import Catalog, ToolEntry, all_names
from isthmus.library.errors import (
    AmbiguousToolError,
    ConfigurationError,
    ToolDeniedError,
    ToolError,
    ToolNotFoundError,
)
from isthmus.library.loop_thread import LoopThread
from isthmus.library.outcomes_to_results import invalid_request, refused_result
from isthmus.library.permissions import check_user
from isthmus.library.public_types import (
    ErrorCode,
    ErrorPayload,
    ToolRequest,
    ToolResult,
    ToolStatus,
    ToolStreamChunk,
    UniversalTool,
    UserContext,
)
from isthmus.library.request_checks import timeout_problem
from isthmus.library.resolver import Resolution, resolve_all
from isthmus.library.service import ToolService

Selection: TypeAlias = Iterable[str | UniversalTool]
"""Tools by name, in any form, or the tools of a task request."""

Approval: TypeAlias = bool | Iterable[str] | Callable[[UniversalTool, Mapping[str, Any]], bool]
"""Which calls need approval: all or none, tools by name, or those for which a function returns True."""

Listener: TypeAlias = Callable[[ToolStreamChunk], Awaitable[None] | None]
"""Called with `progress` and `log` chunks while a tool runs."""


NOT_AWAITED = "is an async function, which is not awaited here: use a plain function."

C_contra = TypeVar("C_contra", contravariant=True)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CallOptions(Generic[C_contra]):
    """User, conversation, headers and timeout of calls: fixed, or functions of the framework's context of a call."""

    user_context: UserContext | Callable[[C_contra], UserContext | None] | None = None
    session_id: str | Callable[[C_contra], str | None] | None = None
    """The conversation, sent to servers."""
    headers: Mapping[str, str] | Callable[[C_contra], Mapping[str, str] | None] | None = field(default=None, repr=False)
    """Sent to servers that are configured to receive them (`user_headers`)."""
    timeout: float | None = None
    """Seconds for a call."""

    def __post_init__(self) -> None:
        """Check the options now: mistakes of the program must not become errors for the model.

        Raises:
            TypeError: a function is async.
            ConfigurationError: the timeout is invalid.
        """
        for name in ("user_context", "session_id", "headers"):
            check_not_async(name, getattr(self, name))
        check_timeout(self.timeout)

    @property
    def list_user(self) -> UserContext | None:
        """The user for lists, before there is a call. A function cannot be called yet: then nothing is restricted."""
        return None if callable(self.user_context) else self.user_context

    @property
    def is_shared(self) -> bool:
        """Whether the calls have several users."""
        return callable(self.user_context)

    def user(self, context: C_contra) -> UserContext | None:
        """The user of a call."""
        if not callable(self.user_context):
            return self.user_context
        user = _not_awaitable("user_context", self.user_context(context))
        check_user(user)
        return user

    def session(self, context: C_contra, default: str | None = None) -> str | None:
        """The conversation of a call; by default the framework's own."""
        if callable(self.session_id):
            session = _not_awaitable("session_id", self.session_id(context))
            if not isinstance(session, str | None):
                raise TypeError(f"session_id must be a string, not {type(session).__name__}")
            return session
        return self.session_id or default

    def request(
        self, tool: UniversalTool, parameters: Mapping[str, Any], context: C_contra, session: str | None = None
    ) -> ToolRequest:
        """The request for a call; `session` is the framework's own conversation."""
        headers = _not_awaitable("headers", self.headers(context)) if callable(self.headers) else self.headers
        if not isinstance(headers, Mapping | None):
            raise TypeError(f"headers must be a dictionary of strings, not {type(headers).__name__}")
        return ToolRequest(
            tool.name,
            parameters=dict(parameters),
            user_context=self.user(context),
            timeout=self.timeout,
            metadata={"headers": dict(headers)} if headers else {},
            session_id=self.session(context, session),
        )


class AgentTools:
    """Tools of a service: those selected by name, or all that a user may use."""

    def __init__(
        self,
        service: ToolService,
        names: Selection | None = None,
        *,
        needs_approval: Approval = False,
    ) -> None:
        self.service = service
        if isinstance(names, str):
            names = [names]
        self._names = (
            None if names is None else [name.name if isinstance(name, UniversalTool) else name for name in names]
        )
        check_not_async("needs_approval", needs_approval)
        self._needs_approval: bool | frozenset[str] | Callable[[UniversalTool, Mapping[str, Any]], bool]
        if isinstance(needs_approval, bool) or callable(needs_approval):
            self._needs_approval = needs_approval
        else:
            self._needs_approval = frozenset([needs_approval] if isinstance(needs_approval, str) else needs_approval)
        self._has_listed = False
        self._known: tuple[Catalog, Resolution] | None = None

    # -- selection -----------------------------------------------------------------------------------------------------

    async def tools(self, user: UserContext | None = None, *, is_shared: bool = False) -> list[UniversalTool]:
        """The current tools of this user. `is_shared`: the names were selected for several users.

        The first time, every name must have a tool. Later, a tool that was removed or denied is left out until it is
        back: an agent continues with the others.

        Raises:
            ToolError, UnresolvedToolsError: the first time, for names that are unknown or denied, including those that
                need approval.
        """
        catalog = await self.service.catalog()
        if not self._has_listed:
            if isinstance(self._needs_approval, frozenset):
                check_approval_names(self._needs_approval, catalog)
            if self._names is not None:
                resolve_all(catalog, self._names, None if is_shared else user).check()
            self._has_listed = True
        if self._names is None:
            return [entry.tool for entry in catalog.reachable(user)]
        return resolve_all(catalog, self._names, user).tools

    def tools_blocking(self, user: UserContext | None = None, *, is_shared: bool = False) -> list[UniversalTool]:
        """`tools`, blocking."""
        return LoopThread.shared().run_blocking(self.tools(user, is_shared=is_shared))

    async def resolve(self, llm_name: str, user: UserContext | None = None) -> UniversalTool:
        """Find a tool by its name for language models; no other form counts.

        Raises:
            ToolNotFoundError: no selected tool has this name.
            ToolUnreachableError: the tool's server is not connected.
            ToolDeniedError: the user may not use it.
        """
        catalog = await self.service.catalog()
        entry = catalog.by_llm_name(llm_name)
        if entry is not None and not catalog.may_use(user, entry):
            # Even if it was not selected: a task's tools never include those that its user may not use.
            raise ToolDeniedError(entry.full_name, user.user_id if user else None)
        if entry is None and (unreachable := catalog.unreachable(llm_name, user)) is not None:
            raise unreachable
        selected = self._selected(catalog, user)
        if entry is None or entry.full_name not in selected:
            known = [each.llm_name for each in selected.values() if catalog.may_use(user, each)]
            raise ToolNotFoundError(llm_name, suggestions(llm_name, known))
        return entry.tool

    async def look_up(self, llm_name: str, user: UserContext | None = None) -> UniversalTool | ToolResult:
        """Find a tool, or return the result of a call to it if it is unknown, unreachable or denied."""
        try:
            return await self.resolve(llm_name, user)
        except ToolError as error:
            return refused_result(ToolRequest(llm_name), error)

    def look_up_blocking(self, llm_name: str, user: UserContext | None = None) -> UniversalTool | ToolResult:
        """`look_up`, blocking."""
        return LoopThread.shared().run_blocking(self.look_up(llm_name, user))

    async def explain(self, tool: UniversalTool, result: ToolResult, user: UserContext | None) -> ToolResult:
        """The result of a call; if the tool is gone, with names for language models."""
        if result.status is not ToolStatus.NOT_FOUND:
            return result
        found = await self.look_up(llm_name_of(tool), user)
        return found if isinstance(found, ToolResult) else result

    def explain_blocking(self, tool: UniversalTool, result: ToolResult, user: UserContext | None) -> ToolResult:
        """`explain`, blocking."""
        is_gone = result.status is ToolStatus.NOT_FOUND
        return LoopThread.shared().run_blocking(self.explain(tool, result, user)) if is_gone else result

    async def find(self, llm_name: str, user: UserContext | None = None) -> UniversalTool | None:
        """Find a tool; None if it is unknown, unreachable or denied."""
        try:
            return await self.resolve(llm_name, user)
        except ToolError:
            return None

    def _selected(self, catalog: Catalog, user: UserContext | None) -> Mapping[str, ToolEntry]:
        """The selected tools by full name. Cached until the catalog changes.

        Ambiguous names depend on the user and are not cached.
        """
        if self._names is None:
            return catalog.entries
        known = self._known
        if known is None or known[0] is not catalog:
            self._known = known = (catalog, resolve_all(catalog, self._names, None))
        several = [name for name, why in known[1].unknown.items() if isinstance(why, AmbiguousToolError)]
        if user is None or not several:
            return known[1].found
        return {**known[1].found, **resolve_all(catalog, several, user).found}

    # -- execution -----------------------------------------------------------------------------------------------------

    def fixed_approval(self, tool: UniversalTool) -> bool | None:
        """Whether every call of a tool needs approval; None if that depends on the arguments."""
        match self._needs_approval:
            case bool(always):
                return always
            case decide if callable(decide):
                return None
            case names:
                return is_named(tool, names)

    def is_approval_needed(self, tool: UniversalTool, parameters: Mapping[str, Any]) -> bool:
        """Whether this call needs approval."""
        is_needed = self.fixed_approval(tool)
        if is_needed is not None:
            return is_needed
        assert callable(self._needs_approval)
        return _not_awaitable("needs_approval", self._needs_approval(tool, parameters))

    async def execute(self, request: ToolRequest, on_event: Listener | None = None) -> ToolResult:
        """Execute a call; cancelling the caller, or an error in `on_event`, cancels it at its server."""
        if on_event is None:
            return await self.service.execute_tool(request)
        async with self.service.execute_tool_stream(request) as chunks:
            chunk = await anext(chunks)
            while not chunk.is_final:
                if chunk.chunk_type != "data" and inspect.isawaitable(pending := on_event(chunk)):
                    await pending
                chunk = await anext(chunks)
            return chunk.metadata["result"]  # type: ignore[no-any-return]

    def execute_blocking(
        self, request: ToolRequest, on_event: Callable[[ToolStreamChunk], Any] | None = None
    ) -> ToolResult:
        """`execute`, blocking; `on_event` must be a plain function."""
        if on_event is None:
            return self.service.blocking.execute_tool(request)
        with self.service.blocking.execute_tool_stream(request) as chunks:
            chunk = next(chunks)
            while not chunk.is_final:
                if chunk.chunk_type != "data" and inspect.isawaitable(pending := on_event(chunk)):
                    _close(pending)
                    raise TypeError(f"on_event {NOT_AWAITED}")
                chunk = next(chunks)
            return chunk.metadata["result"]  # type: ignore[no-any-return]


def is_destructive(tool: UniversalTool, parameters: Mapping[str, Any]) -> bool:
    """Whether a tool may destroy something. Only trusted servers are believed if they say it does not.

    For `needs_approval`.
    """
    if tool.metadata.get("trusted") is not True:
        return True
    annotations = tool.metadata.get("annotations") or {}
    return annotations.get("readOnlyHint") is not True and annotations.get("destructiveHint") is not False


def llm_name_of(tool: UniversalTool) -> str:
    """The tool's name for language models."""
    name: str = tool.metadata.get("llm_name") or tool.name
    return name


def not_approved(tool: UniversalTool, why: str = "") -> ToolResult:
    """The result of a call that was not approved."""
    message = f"{tool.name} was not executed: it was not approved{f' ({why})' if why else ''}."
    error = ErrorPayload(ErrorCode.TOOL_UNAUTHORIZED, message, "no", "not_approved", tool.namespace)
    return ToolResult(tool.name, ToolStatus.UNAUTHORIZED, tool.namespace, error_message=message, error=error)


def parse_arguments(given: Any) -> dict[str, Any] | None:
    """Arguments of a model, given as an object or as JSON; models may omit them. None if they are not an object."""
    if isinstance(given, str) and given.strip():
        try:
            given = json.loads(given)
        except (ValueError, RecursionError):
            return None
    elif given is None or isinstance(given, str):
        return {}
    return given if isinstance(given, dict) else None


def unreadable_arguments(name: str) -> ToolResult:
    """The result of a call whose arguments are not a JSON object."""
    return invalid_request(ToolRequest(name), f"Invalid arguments for {name}: they are not a JSON object.")


def is_named(tool: UniversalTool, names: frozenset[str]) -> bool:
    """Whether a tool has one of these names; an ambiguous name means every tool that has it."""
    server, dot, short = tool.name.partition(".")
    return not all_names(server if dot else "", short or tool.name, tool.name, llm_name_of(tool)).isdisjoint(names)


def check_approval_names(names: Iterable[str], catalog: Catalog) -> None:
    """Check the names of tools that need approval: a typing mistake must not let a call through.

    Raises:
        ToolNotFoundError: no tool has a name, and its server is connected.
    """
    known: set[str] = set().union(*(entry.names for entry in catalog.entries.values()))
    for name in names:
        is_away = name.partition(".")[0] in catalog.missing or catalog.unreachable(name) is not None
        if name not in known and not is_away:
            catalog.resolve(name)


def check_timeout(timeout: object) -> None:
    """Raise `ConfigurationError` for an invalid number of seconds."""
    if (problem := timeout_problem(timeout)) is not None:
        raise ConfigurationError(problem)


def check_not_async(name: str, given: object) -> None:
    """Raise `TypeError` for an async function."""
    is_async = inspect.iscoroutinefunction(given)
    if is_async or (callable(given) and inspect.iscoroutinefunction(type(given).__call__)):
        raise TypeError(f"{name} {NOT_AWAITED}")


def check_values(subject: str, **given: object) -> None:
    """Raise `TypeError` for functions, which need a context of the call; `subject` has none."""
    for name, value in given.items():
        if callable(value):
            raise TypeError(
                f"{name} must be a value, not a function: {subject} has no context of a call to pass to it."
            )


def _not_awaitable(name: str, answer: T) -> T:
    """The value that a function returned; a lambda may turn out to be async only now."""
    if inspect.isawaitable(answer):
        _close(answer)
        raise TypeError(f"{name} {NOT_AWAITED}")
    return answer


def _close(awaitable: Any) -> None:
    if inspect.iscoroutine(awaitable):
        awaitable.close()  # else Python warns that it was never awaited
