"""The tools that one agent has: which of a service's, which of them only after somebody agreed, and their execution.

`dispatch` and the integrations are made of it, so that in every framework the same tools are there for the same user,
the same ones wait for approval, and whoever stops waiting stops the tool.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

from isthmus.core.catalog.names import suggestions
from isthmus.library.catalog import Catalog, Entry, names_of
from isthmus.library.contracts import (
    ErrorCode,
    ErrorPayload,
    ToolRequest,
    ToolResult,
    ToolStatus,
    ToolStreamChunk,
    UniversalTool,
    UserContext,
)
from isthmus.library.errors import (
    AmbiguousToolError,
    ConfigurationError,
    ToolDeniedError,
    ToolError,
    ToolNotFoundError,
)
from isthmus.library.owner import Owner
from isthmus.library.permissions import check_user
from isthmus.library.resolver import Resolution, resolve_all
from isthmus.library.results import refused, trouble_with_timeout, unusable
from isthmus.library.service import ToolService

Selection: TypeAlias = Iterable[str | UniversalTool]
"""Tools by any form of their names, or as a task request has them."""

Approval: TypeAlias = bool | Iterable[str] | Callable[[UniversalTool, Mapping[str, Any]], bool]
"""Which calls wait until somebody agrees: all or none, tools by name, or those of which a function says so."""

Listener: TypeAlias = Callable[[ToolStreamChunk], Awaitable[None] | None]
"""Told of `progress` and `log` chunks while a tool runs."""


NOT_AWAITED = "is an async function, and nothing awaits it here: give a plain one."

C_contra = TypeVar("C_contra", contravariant=True)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Terms(Generic[C_contra]):
    """On whose behalf tools are executed: fixed, or read by a function from the framework's own context of a call."""

    user_context: UserContext | Callable[[C_contra], UserContext | None] | None = None
    session_id: str | Callable[[C_contra], str | None] | None = None
    """What servers are told as the conversation."""
    headers: Mapping[str, str] | Callable[[C_contra], Mapping[str, str] | None] | None = field(default=None, repr=False)
    """What servers that are configured to receive them (`user_headers`) are sent."""
    timeout: float | None = None
    """Seconds that a call may take."""

    def __post_init__(self) -> None:
        """Refuse what no call could be made with: it is the program's mistake, and not for a model to hear of.

        Raises:
            TypeError: a function is one that would have to be awaited.
            ConfigurationError: the timeout is none.
        """
        for name in ("user_context", "session_id", "headers"):
            check_plain(name, getattr(self, name))
        check_timeout(self.timeout)

    @property
    def lister(self) -> UserContext | None:
        """Whose list it is before there is a call; a function knows nobody yet, and restricts nothing."""
        return None if callable(self.user_context) else self.user_context

    @property
    def is_shared(self) -> bool:
        """Whether calls are of several users."""
        return callable(self.user_context)

    def user(self, context: C_contra) -> UserContext | None:
        """Whose call it is."""
        if not callable(self.user_context):
            return self.user_context
        user = _checked("user_context", self.user_context(context))
        check_user(user)
        return user

    def session(self, context: C_contra, otherwise: str | None = None) -> str | None:
        """Which conversation it belongs to; unless something is said, the framework's own."""
        if callable(self.session_id):
            session = _checked("session_id", self.session_id(context))
            if not isinstance(session, str | None):
                raise TypeError(f"session_id must be text, not {type(session).__name__}")
            return session
        return self.session_id or otherwise

    def request(
        self, tool: UniversalTool, parameters: Mapping[str, Any], context: C_contra, session: str | None = None
    ) -> ToolRequest:
        """A call as the service takes it; `session` is the framework's own conversation."""
        headers = _checked("headers", self.headers(context)) if callable(self.headers) else self.headers
        if not isinstance(headers, Mapping | None):
            raise TypeError(f"headers must be a dictionary of names and texts, not {type(headers).__name__}")
        return ToolRequest(
            tool.name,
            parameters=dict(parameters),
            user_context=self.user(context),
            timeout=self.timeout,
            metadata={"headers": dict(headers)} if headers else {},
            session_id=self.session(context, session),
        )


class Toolbox:
    """Tools of a service, selected by name, or all that a user may use."""

    def __init__(
        self,
        service: ToolService,
        names: Selection | None = None,
        *,
        needs_approval: Approval = False,
    ) -> None:
        self.service = service
        self._names = None if names is None else [_name_of(name) for name in _listed(names)]
        self._needs_approval = _kept(needs_approval)
        self._has_listed = False
        self._known: tuple[Catalog, Resolution] | None = None

    # -- which ---------------------------------------------------------------------------------------------------------

    async def tools(self, user: UserContext | None = None, *, is_shared: bool = False) -> list[UniversalTool]:
        """What there is now for this user; of names that several users share, those that this one may use.

        The first time every name has to be a tool's. Later on one that its server has taken back, or which the user may
        not use any more, is left out until it is there again: an agent goes on with what there is.

        Raises:
            ToolError, UnresolvedToolsError: the first time, for names that are no tool's or not the user's to use, also
                among those that need approval.
        """
        catalog = await self.service.catalog()
        if not self._has_listed:
            self._check(catalog, None if is_shared else user)
        if self._names is None:
            return [entry.tool for entry in catalog.reachable(user)]
        return resolve_all(catalog, self._names, user).tools

    def _check(self, catalog: Catalog, user: UserContext | None) -> None:
        self._check_approval(catalog)
        if self._names is not None:
            resolve_all(catalog, self._names, user).check()
        self._has_listed = True

    def _check_approval(self, catalog: Catalog) -> None:
        if isinstance(self._needs_approval, frozenset):
            check_held_back(self._needs_approval, catalog)

    def tools_blocking(self, user: UserContext | None = None, *, is_shared: bool = False) -> list[UniversalTool]:
        """The same, standing still meanwhile."""
        return Owner.shared().wait(self.tools(user, is_shared=is_shared))

    async def called(self, llm_name: str, user: UserContext | None = None) -> UniversalTool:
        """The one of them that a language model was told has this name; no other form counts.

        Raises:
            ToolNotFoundError: it was told of no such tool, or the tool has gone.
            ToolUnreachableError: the same, since the tool's server did not come.
            ToolDeniedError: the user may not use it.
        """
        catalog = await self.service.catalog()
        entry = catalog.by_llm_name(llm_name)
        if entry is not None and not catalog.may_use(user, entry):
            # Whether it was selected or not: a task has none of those that its user may not use.
            raise ToolDeniedError(entry.full_name, user.user_id if user else None)
        if entry is None and (unreachable := catalog.unreachable(llm_name, user)) is not None:
            raise unreachable
        selected = self._selected(catalog, user)
        if entry is None or entry.full_name not in selected:
            known = [each.llm_name for each in selected.values() if catalog.may_use(user, each)]
            raise ToolNotFoundError(llm_name, suggestions(llm_name, known))
        return entry.tool

    async def look_up(self, llm_name: str, user: UserContext | None = None) -> UniversalTool | ToolResult:
        """The same, or how the call ends of what is no tool, or not the user's to use."""
        try:
            return await self.called(llm_name, user)
        except ToolError as error:
            return refused(ToolRequest(llm_name), error)

    def look_up_blocking(self, llm_name: str, user: UserContext | None = None) -> UniversalTool | ToolResult:
        """The same, standing still meanwhile."""
        return Owner.shared().wait(self.look_up(llm_name, user))

    async def told(self, tool: UniversalTool, result: ToolResult, user: UserContext | None) -> ToolResult:
        """How a call ended, in names that the model was told: a tool that has gone is found by no other any more."""
        if result.status is not ToolStatus.NOT_FOUND:
            return result
        found = await self.look_up(llm_name_of(tool), user)
        return found if isinstance(found, ToolResult) else result

    def told_blocking(self, tool: UniversalTool, result: ToolResult, user: UserContext | None) -> ToolResult:
        """The same, standing still meanwhile."""
        is_gone = result.status is ToolStatus.NOT_FOUND
        return Owner.shared().wait(self.told(tool, result, user)) if is_gone else result

    async def find(self, llm_name: str, user: UserContext | None = None) -> UniversalTool | None:
        """The tool, or None."""
        try:
            return await self.called(llm_name, user)
        except ToolError:
            return None

    def _selected(self, catalog: Catalog, user: UserContext | None) -> Mapping[str, Entry]:
        """By full names; kept for as long as nothing changes, since models call more often than that.

        What is meant by a name that several have depends on the user, and is not kept.
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

    def standing_approval(self, tool: UniversalTool) -> bool | None:
        """Whether somebody has to agree to every call of a tool; None if that depends on the arguments."""
        match self._needs_approval:
            case bool(always):
                return always
            case decide if callable(decide):
                return None
            case names:
                return is_named(tool, names)

    def is_approval_needed(self, tool: UniversalTool, parameters: Mapping[str, Any]) -> bool:
        """Whether somebody has to agree to this call first."""
        server_status = self.standing_approval(tool)
        if server_status is not None:
            return server_status
        assert callable(self._needs_approval)
        return _checked("needs_approval", self._needs_approval(tool, parameters))

    async def execute(self, request: ToolRequest, tell: Listener | None = None) -> ToolResult:
        """Execute it; whoever is cancelled meanwhile, or whose listener raises, cancels it at its server."""
        if tell is None:
            return await self.service.execute_tool(request)
        async with self.service.execute_tool_stream(request) as chunks:
            chunk = await anext(chunks)
            while not chunk.is_final:
                if chunk.chunk_type != "data" and inspect.isawaitable(told := tell(chunk)):
                    await told
                chunk = await anext(chunks)
            return _result_of(chunk)

    def execute_blocking(
        self, request: ToolRequest, tell: Callable[[ToolStreamChunk], Any] | None = None
    ) -> ToolResult:
        """The same, standing still meanwhile; `tell` has to be a plain function."""
        if tell is None:
            return self.service.blocking.execute_tool(request)
        with self.service.blocking.execute_tool_stream(request) as chunks:
            chunk = next(chunks)
            while not chunk.is_final:
                if chunk.chunk_type != "data" and inspect.isawaitable(told := tell(chunk)):
                    _drop(told)
                    raise TypeError(f"on_event {NOT_AWAITED}")
                chunk = next(chunks)
            return _result_of(chunk)


def is_destructive(tool: UniversalTool, parameters: Mapping[str, Any]) -> bool:
    """Whether a tool may destroy something, by the word of a server that is trusted; everything else may.

    For `needs_approval`: a server that could talk itself out of it would.
    """
    if tool.metadata.get("trusted") is not True:
        return True
    annotations = tool.metadata.get("annotations") or {}
    return annotations.get("readOnlyHint") is not True and annotations.get("destructiveHint") is not False


def llm_name_of(tool: UniversalTool) -> str:
    """What language models are told that it is called."""
    name: str = tool.metadata.get("llm_name") or tool.name
    return name


def not_approved(tool: UniversalTool, why: str = "") -> ToolResult:
    """What becomes of a call to which somebody said no."""
    message = f"{tool.name} was not executed: it was not approved{f' ({why})' if why else ''}."
    error = ErrorPayload(ErrorCode.TOOL_UNAUTHORIZED, message, "no", "not_approved", tool.namespace)
    return ToolResult(tool.name, ToolStatus.UNAUTHORIZED, tool.namespace, error_message=message, error=error)


def unreadable(name: str) -> ToolResult:
    """What becomes of a call whose arguments are no object: a model wrote them, and may write anything."""
    return unusable(ToolRequest(name), f"Invalid arguments for {name}: they are not a JSON object.")


def _name_of(given: str | UniversalTool) -> str:
    return given.name if isinstance(given, UniversalTool) else given


def is_named(tool: UniversalTool, names: frozenset[str]) -> bool:
    """Whether a tool is one of those that are held back; a name that several have is every one's."""
    server, dot, short = tool.name.partition(".")
    return not names_of(server if dot else "", short or tool.name, tool.name, llm_name_of(tool)).isdisjoint(names)


def check_held_back(names: Iterable[str], catalog: Catalog) -> None:
    """Refuse a name to be asked about that is no tool's: a slip of the pen must not let a call through.

    Raises:
        ToolNotFoundError: no tool has it, and its server is there.
    """
    known: set[str] = set().union(*(entry.names for entry in catalog.entries.values()))
    for name in names:
        is_away = name.partition(".")[0] in catalog.missing or catalog.unreachable(name) is not None
        if name not in known and not is_away:
            catalog.resolve(name)


def check_timeout(timeout: object) -> None:
    """Refuse what is no number of seconds.

    Raises:
        ConfigurationError: it is none.
    """
    if (trouble := trouble_with_timeout(timeout)) is not None:
        raise ConfigurationError(trouble)


def check_plain(name: str, given: object) -> None:
    """Refuse a function that would have to be awaited, where nothing awaits it.

    Raises:
        TypeError: it is one.
    """
    is_awaited = inspect.iscoroutinefunction(given)
    if is_awaited or (callable(given) and inspect.iscoroutinefunction(type(given).__call__)):
        raise TypeError(f"{name} {NOT_AWAITED}")


def check_values(who: str, **given: object) -> None:
    """Refuse functions, as other integrations take them, where there is no context of a call to ask them with.

    Raises:
        TypeError: there is one; asked with nothing, it could only guess whose call it is.
    """
    for name, value in given.items():
        if callable(value):
            raise TypeError(f"{name} must be a value, not a function: {who} knows nothing of a call to ask it with.")


def _checked(name: str, answer: T) -> T:
    """What a function answered, unless that would have to be awaited: a lambda does not tell before."""
    if inspect.isawaitable(answer):
        _drop(answer)
        raise TypeError(f"{name} {NOT_AWAITED}")
    return answer


def _kept(approval: Approval) -> bool | frozenset[str] | Callable[[UniversalTool, Mapping[str, Any]], bool]:
    """What is asked at every call; names that can be read only once are read now."""
    check_plain("needs_approval", approval)
    if isinstance(approval, bool) or callable(approval):
        return approval
    return frozenset([approval] if isinstance(approval, str) else approval)


def _drop(told: Any) -> None:
    if inspect.iscoroutine(told):
        told.close()


def _listed(names: Selection) -> Selection:
    """One name is one name, not its letters."""
    return [names] if isinstance(names, str) else names


def _result_of(chunk: ToolStreamChunk) -> ToolResult:
    result: ToolResult = chunk.metadata["result"]
    return result
