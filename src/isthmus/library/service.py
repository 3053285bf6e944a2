"""`ToolService`: every MCP server as tools, inside a Python program.

It is the same hub that `isthmus serve` runs, without a door: the same names, permissions, limits and outcomes. Its
connections live on the owner's loop; the methods here may be awaited on any loop, and `blocking` has the same for
programs without one.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Literal, NoReturn

import msgspec

from isthmus.library.catalog import Catalog, Entry
from isthmus.library.contracts import ToolRequest, ToolResult, UniversalTool, UserContext
from isthmus.library.crossing import Awaited, ToAsyncio, ToItself, ToThread, crossing_here
from isthmus.library.engine import FACE, Engine, Plan, open_engine, plan_of
from isthmus.library.errors import (
    ConfigurationError,
    ServiceClosedError,
    ToolError,
    ToolExecutionError,
)
from isthmus.library.executions import BlockingChunks, ChunkStream, Execution, Mailbox, OutcomeOnly, Sink, Telling
from isthmus.library.features import contents_of, described, written_for
from isthmus.library.functions import registered_tool
from isthmus.library.logs import use_standard_logging
from isthmus.library.owner import Owner, OwnersLock
from isthmus.library.program import is_on_hub
from isthmus.library.questions import Asking, Questions
from isthmus.library.results import (
    check_numbers,
    refused,
    result_from,
    session_of,
    trouble_with,
    unusable,
    whole,
)
from isthmus.library.running import begun, ended
from isthmus.library.tools import MCPTool, Tool, end_of
from isthmus.library.users import ME, as_given, asker_of, caller_for
from isthmus.model.calls import EVERYTHING, Call, Kind
from isthmus.model.events import LogLevel
from isthmus.model.faults import BadArguments
from isthmus.model.outcomes import Outcome
from isthmus.model.questions import NO_CAPABILITIES

HOW_TO_BEGIN = "use it in a `with`, or call `initialize`; of a ToolService, await it"

SESSION_KEY = "isthmus/session"
"""Where a server finds the conversation that a call belongs to, in `_meta`."""

LOG_LEVEL: LogLevel = "debug"
"""A stream tells all that a server logs meanwhile; who reads it chooses."""

_encode = msgspec.json.Encoder().encode

NOTHING_SAID = (None, None, None)
"""Of what to begin with: no configuration, no hub, no key."""


class ToolService:
    """The tools of any number of MCP servers, and of this program."""

    def __init__(
        self,
        config: Mapping[str, Any] | str | os.PathLike[str] | None = None,
        *,
        hub: str | None = None,
        key: str | None = None,
        questions: Questions | None = None,
    ) -> None:
        """Nothing is read or connected before `initialize` or `async with`, which take what is given here.

        `questions` says who answers what servers ask back.
        """
        self._given = (config, hub, key)
        self._questions = questions
        self._profile = questions.client_caps if questions is not None else NO_CAPABILITIES
        self._owner: Owner | None = None
        self._engine: Engine | None = None
        self._was_open = False
        self._changing = OwnersLock()
        """Held while it opens or closes."""

    # -- beginning and end ---------------------------------------------------------------------------------------------

    async def initialize(
        self,
        config: Mapping[str, Any] | str | os.PathLike[str] | None = None,
        *,
        hub: str | None = None,
        key: str | None = None,
    ) -> None:
        """Connect; return when each server has connected or failed. See `failures` for the latter.

        Args:
            config: `{"enable_mcp": True, "mcp_servers": [...]}`, by itself or under `"tool_service"`, or
                `{"mcpServers": {...}}`; or the path of an `isthmus.toml` or `mcp.json`; or nothing, for the built-in
                tools and those of `@tool`. Calls are in an audit log if it says `audit` or `state` (in a file, of
                `[hub]`).
            hub: instead, the address of a running hub.
            key: what that hub knows this program by.

        What the service was made with need not be said again.

        Raises:
            ConfigurationError: what was given cannot be used, was given already when the service was made, or the
                running hub cannot be reached. A single server that cannot be used is one of `failures`.
            ServiceClosedError: it was inherited by a fork, and is open in the process that it is of.
        """
        plan, owner = self._planned(config, hub, key)
        opened: list[Engine] = []
        try:
            await owner.run(self._open(plan, opened))
        except BaseException:
            owner.start(self._close(opened))  # it may have been opened just when its caller was cancelled
            raise

    def _planned(self, config: Any, hub: str | None, key: str | None) -> tuple[Plan, Owner]:
        use_standard_logging()
        said = (config, hub, key)
        if NOTHING_SAID not in (said, self._given):
            raise ConfigurationError(
                "what to begin with was given already when this was made: leave it out of `initialize`"
            )
        plan = plan_of(*(self._given if said == NOTHING_SAID else said))
        if self.is_inherited and self._engine is not None:
            self._open_engine()  # which says what to do instead
        self._owner = Owner.shared() if self._engine is None else self._owner
        return plan, Owner.shared()

    async def _open(self, plan: Plan, opened: list[Engine]) -> None:
        """Open, one after another with whatever else opens or closes; `opened` is told what was."""
        async with self._changing:
            if self._engine is not None:
                raise ConfigurationError(
                    "this service is initialized already, which `async with` does by itself: initialize it before "
                    "that, shut it down first, or make another"
                )
            owner = Owner.shared()
            owner.close_at_exit(self, partial(_given_up, asyncio.current_task()))
            try:
                engine = await self._settled(plan)
            except BaseException:
                owner.closed(self)
                raise
            self._engine, self._was_open = engine, True
            opened.append(engine)
            owner.close_at_exit(self, self._close)
            begun(self)

    async def _settled(self, plan: Plan) -> Engine:
        engine = await open_engine(plan, self._questions)
        try:
            await engine.settle()
            if (why := engine.unreached()) is not None:
                raise ConfigurationError(f"the hub cannot be reached: {why}")
        except BaseException:
            await engine.aclose()
            raise
        return engine

    async def shutdown(self) -> None:
        """Cancel what runs and close every connection; a service that is closed already stays so.

        Who is cancelled meanwhile stops waiting; closing goes on. One that was inherited by a fork is its parent's to
        shut down, and is left alone.
        """
        if self._owner is not None and not self.is_inherited:
            await self._owner.finish(self._close())

    async def _close(self, only: Sequence[Engine] | None = None) -> None:
        async with self._changing:
            engine = self._engine
            if engine is None or (only is not None and engine not in only):
                return
            self._engine = None
            ended(self)
            try:
                await engine.aclose()
            finally:
                Owner.shared().closed(self)  # not before: the end of the program waits for whoever is being closed

    async def __aenter__(self) -> ToolService:
        if self._engine is None:
            await self.initialize()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.shutdown()

    def __copy__(self) -> ToolService:
        return self  # there is one, whoever copies the agent that has it: connections have no copies

    def __deepcopy__(self, memo: dict[int, Any]) -> ToolService:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "A ToolService cannot be pickled, nor what has one: its connections are this process's. Make and "
            "initialize one in each process."
        )

    @property
    def is_initialized(self) -> bool:
        """Whether it is initialized, and was not shut down since."""
        return self._engine is not None

    @property
    def is_inherited(self) -> bool:
        """Whether it was initialized by a process from which this one was forked."""
        return self._owner is not None and self._owner.is_inherited

    def _open_engine(self) -> tuple[Owner, Engine]:
        owner, engine = self._owner, self._engine
        if owner is None or engine is None:
            state = "shut down" if self._was_open else f"not initialized: {HOW_TO_BEGIN}"
            raise ServiceClosedError(f"This ToolService is {state}.")
        owner.check()
        return owner, engine

    # -- what there is -------------------------------------------------------------------------------------------------

    async def catalog(self) -> Catalog:
        """All tools at this moment, by every name."""
        owner, engine = self._open_engine()
        known = engine.known
        return known if known is not None else await owner.fetch(engine.catalog)

    def _catalog_now(self) -> Catalog:
        owner, engine = self._open_engine()
        known = engine.known
        return known if known is not None else owner.call(engine.catalog)

    async def list_tools(self, user_context: UserContext | None = None) -> list[str]:
        """The full names of all tools, or of those that this user may use."""
        return [entry.full_name for entry in (await self.catalog()).reachable(user_context)]

    async def universal_tools(self, user_context: UserContext | None = None) -> list[UniversalTool]:
        """The same as frameworks are shown them."""
        return [entry.tool for entry in (await self.catalog()).reachable(user_context)]

    async def resolve(
        self, name: str, user_context: UserContext | None = None, namespace: str | None = None
    ) -> UniversalTool:
        """The one tool that is meant by a name of any form.

        Raises:
            ToolNotFoundError: there is none.
            AmbiguousToolError: there are several.
            ToolDeniedError: it is not this user's to use.
        """
        return (await self.catalog()).resolve_for(user_context, name, namespace).tool

    def get_tool(self, name: str) -> Tool:
        """The tool as an object that can be executed.

        Raises:
            ToolNotFoundError: there is none.
            AmbiguousToolError: there are several.
        """
        return MCPTool(self, self._catalog_now().resolve(name))

    @property
    def _tools(self) -> Mapping[str, Tool]:
        """All of them by their full names, at this moment."""
        return _Tools(self, self._catalog_now())

    @property
    def failures(self) -> dict[str, str]:
        """The servers that are not there, and why; they are tried again in the background."""
        owner, engine = self._open_engine()
        return owner.call(engine.failures)

    @property
    def notes(self) -> dict[str, tuple[str, ...]]:
        """What was left out of the servers' lists, and why, by server."""
        owner, engine = self._open_engine()
        return owner.call(engine.notes)

    def watch(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Have a function called, on the owner's thread, when tools may have changed; what is returned ends that."""
        owner, engine = self._open_engine()
        key = object()
        owner.call(engine.watch, key, callback)
        return partial(owner.post, engine.unwatch, key)

    def register_tool(self, tool: Tool) -> None:
        """Have a tool of the program's own served like all others, as `namespace.name`, or `builtin.name`.

        Raises:
            ConfigurationError: its name is taken, or cannot be used.
        """
        owner, engine = self._open_engine()
        owner.call(registered_tool, engine.running, tool)

    # -- executing -----------------------------------------------------------------------------------------------------

    async def execute_tool(self, request: ToolRequest) -> ToolResult:
        """Execute a tool; its failure is a status. Who is cancelled meanwhile cancels it at its server."""
        owner, engine = self._open_engine()
        began = time.perf_counter()
        catalog = engine.known
        if catalog is None:
            catalog = await self.catalog()
        prepared = self._prepared(engine, catalog, request, is_watched=False)
        if isinstance(prepared, ToolResult):
            return prepared
        entry, call = prepared
        outcome = await self._performed(owner, engine, call)
        return _concluded(request, entry, began, outcome)

    async def _performed(self, owner: Owner, engine: Engine, call: Call) -> Outcome:
        crossing: Awaited[Outcome] = ToItself(owner.loop) if owner.is_here() else crossing_here()
        execution = Execution(engine.running.hub, call, OutcomeOnly(crossing), owner, self._asking(crossing))
        crossing.send(owner.post, execution.start)
        try:
            outcome: Outcome = await crossing.wait()
        except BaseException:
            _withdraw(owner, execution)
            raise
        return outcome

    def execute_tool_stream(self, request: ToolRequest) -> ChunkStream:
        """Execute a tool and tell what happens as it happens; closing the stream cancels it at its server."""
        owner, _ = self._open_engine()
        return ChunkStream(owner, partial(self._begin, request))

    async def _begin(self, request: ToolRequest, mailbox: Mailbox) -> Execution | None:
        return self._started(request, await self.catalog(), mailbox, self._asking(crossing_here()))

    def _begin_here(self, request: ToolRequest, mailbox: Mailbox) -> Execution | None:
        return self._started(request, self._catalog_now(), mailbox, self._asking())

    def _asking(self, crossing: Awaited[Any] | None = None) -> Asking | None:
        """Who is asked what a server asks back; on the loop that waits, if one does that is the program's own."""
        if self._questions is None:
            return None
        loop = crossing.loop if isinstance(crossing, ToAsyncio) else None
        is_own = self._owner is None or loop is not self._owner.loop or is_on_hub()
        return Asking(self._questions, loop if is_own else None)

    def _started(
        self, request: ToolRequest, catalog: Catalog, mailbox: Mailbox, asking: Asking | None
    ) -> Execution | None:
        owner, engine = self._open_engine()
        began = time.perf_counter()
        prepared = self._prepared(engine, catalog, request, is_watched=True)
        if isinstance(prepared, ToolResult):
            mailbox.put(partial(end_of, prepared))
            return None
        entry, call = prepared
        sink: Sink = Telling(entry.full_name, mailbox, partial(_concluded, request, entry, began))
        execution = Execution(engine.running.hub, call, sink, owner, asking)
        owner.enter(execution.start)
        return execution

    def _prepared(
        self, engine: Engine, catalog: Catalog, request: ToolRequest, *, is_watched: bool
    ) -> tuple[Entry, Call] | ToolResult:
        """The tool that is meant and the call for it; or why there will be none."""
        if (trouble := trouble_with(request)) is not None:
            return self._noted(request, unusable(request, trouble))
        user = request.user_context
        try:
            entry = catalog.resolve_for(user, request.tool_name, request.tool_namespace)
        except ToolError as error:
            return self._noted(request, refused(request, error))
        try:
            arguments = _encode(request.parameters)
            check_numbers(arguments, request.parameters)
        except (TypeError, ValueError, RecursionError, OverflowError) as error:
            return self._noted(request, unusable(request, BadArguments(entry.full_name, str(error)).message))
        session = session_of(request)
        return entry, Call(
            ME if user is None else caller_for(user, session, is_attached=engine.is_attached),
            entry.surface,
            entry.exposed,
            msgspec.Raw(arguments),
            meta={} if session is None else {SESSION_KEY: msgspec.Raw(_encode(session))},
            wants_progress=is_watched,
            log_level=LOG_LEVEL if is_watched else None,
            client_caps=self._profile,
            session=session or "",
            timeout=request.timeout,
            headers=(request.metadata or {}).get("headers") or {},
            face=FACE,
        )

    def noted(
        self,
        refusal: ToolResult,
        arguments: object = None,
        user_context: UserContext | None = None,
        session_id: str | None = None,
    ) -> ToolResult:
        """How a call ended that was refused before the hub heard of it, as it is; the audit log has it then, too.

        For whoever refuses calls of these tools; what `execute_tool` gives is noted already. It may be called from any
        thread. Without an audit log, and over a service that is not open, nothing is noted.

        Args:
            refusal: How the call ended, under the name that was asked for.
            arguments: What was given with it, or the text that was to be read as that; None if nobody knows.
            user_context: On whose behalf.
            session_id: Which conversation it belongs to.
        """
        owner, engine = self._owner, self._engine
        if owner is not None and engine is not None and engine.is_audited:
            session = session_id if isinstance(session_id, str) else ""
            call = Call(
                asker_of(user_context, session, is_attached=engine.is_attached),
                EVERYTHING,
                whole(refusal.tool_name),
                msgspec.Raw(as_given(arguments)),
                session=session,
                face=FACE,
            )
            with suppress(ServiceClosedError):
                owner.post(engine.tell_refused, call, refusal, user_context)
        return refusal

    def _noted(self, request: ToolRequest, refusal: ToolResult) -> ToolResult:
        return self.noted(refusal, request.parameters, request.user_context, session_of(request))

    # -- resources and prompts -----------------------------------------------------------------------------------------

    async def list_resources(self) -> list[dict[str, Any]]:
        """Resources as their servers describe them, by the URIs that `read_resource` takes."""
        return await self._described("resources", "uri")

    async def list_prompts(self) -> list[dict[str, Any]]:
        """Prompts as their servers describe them, by the names that `get_prompt` takes."""
        return await self._described("prompts", "name")

    async def read_resource(self, uri: str) -> list[dict[str, Any]]:
        """The contents of a resource, text or base64.

        Raises:
            ToolExecutionError: it cannot be read; its `result` says why.
        """
        contents = (await self._asked("resource", uri, {})).get("contents")
        if not isinstance(contents, list):
            raise ToolExecutionError(uri, f"{uri} was answered without contents")
        return contents

    async def get_prompt(self, name: str, arguments: Mapping[str, str] | None = None) -> dict[str, Any]:
        """A prompt written out: `description` and `messages`. It is named as tools are, in full or in short.

        Raises:
            AmbiguousToolError: several prompts have this short name.
            ToolExecutionError: it cannot be had; its `result` says why.
        """
        owner, engine = self._open_engine()
        if isinstance(name, str):
            name = await owner.fetch(engine.prompt_named, name)
        return await self._asked("prompt", name, arguments or {})

    async def _described(self, kind: Literal["prompts", "resources"], key: str) -> list[dict[str, Any]]:
        owner, engine = self._open_engine()
        routes = await owner.fetch(engine.features, kind)
        return [{**described(route.feature.definition), key: route.exposed} for route in routes]

    async def _asked(self, kind: Kind, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        owner, engine = self._open_engine()
        given = written_for(kind, name, arguments)
        call = Call(ME, engine.surface, name, given, kind=kind, client_caps=self._profile, face=FACE)
        outcome = await self._performed(owner, engine, call)
        return contents_of(name, outcome, is_attached=engine.is_attached)

    # -- without a loop ------------------------------------------------------------------------------------------------

    @property
    def blocking(self) -> BlockingToolService:
        """The same for programs that have no loop, or stand on one that may wait."""
        return BlockingToolService(service=self)


class BlockingToolService:
    """`ToolService` for threads: every method stands still until it is done."""

    def __init__(
        self,
        config: Mapping[str, Any] | str | os.PathLike[str] | None = None,
        *,
        hub: str | None = None,
        key: str | None = None,
        questions: Questions | None = None,
        service: ToolService | None = None,
    ) -> None:
        """By itself it is initialised by `with`, or by `initialize`; over a `service` it is that one, as it stands.

        Raises:
            ConfigurationError: there is a `service`, which has all else already.
        """
        if service is not None and any(given is not None for given in (config, hub, key, questions)):
            raise ConfigurationError("give a service or what to make one of, not both: a service has its own")
        self.service = service if service is not None else ToolService(config, hub=hub, key=key, questions=questions)

    def initialize(
        self,
        config: Mapping[str, Any] | str | os.PathLike[str] | None = None,
        *,
        hub: str | None = None,
        key: str | None = None,
    ) -> None:
        """See `ToolService`."""
        plan, owner = self.service._planned(config, hub, key)
        opened: list[Engine] = []
        try:
            owner.wait(self.service._open(plan, opened))
        except BaseException:
            owner.start(self.service._close(opened))  # as there
            raise

    def shutdown(self) -> None:
        """See `ToolService`."""
        Owner.shared().wait(self.service.shutdown())

    def __enter__(self) -> BlockingToolService:
        if self.service._engine is None:
            self.initialize()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    def list_tools(self, user_context: UserContext | None = None) -> list[str]:
        """See `ToolService`."""
        return [entry.full_name for entry in self.service._catalog_now().reachable(user_context)]

    def universal_tools(self, user_context: UserContext | None = None) -> list[UniversalTool]:
        """See `ToolService`."""
        return [entry.tool for entry in self.service._catalog_now().reachable(user_context)]

    def resolve(
        self, name: str, user_context: UserContext | None = None, namespace: str | None = None
    ) -> UniversalTool:
        """See `ToolService`."""
        return self.service._catalog_now().resolve_for(user_context, name, namespace).tool

    def get_tool(self, name: str) -> Tool:
        """See `ToolService`."""
        return self.service.get_tool(name)

    @property
    def failures(self) -> dict[str, str]:
        """See `ToolService`."""
        return self.service.failures

    def execute_tool(self, request: ToolRequest) -> ToolResult:
        """See `ToolService`.

        Raises:
            WrongThreadError: this is the loop that would have to answer.
        """
        service = self.service
        owner, engine = service._open_engine()
        owner.refuse_here()
        began = time.perf_counter()
        prepared = service._prepared(engine, service._catalog_now(), request, is_watched=False)
        if isinstance(prepared, ToolResult):
            return prepared
        entry, call = prepared
        crossing: ToThread[Outcome] = ToThread()
        execution = Execution(engine.running.hub, call, OutcomeOnly(crossing), owner, service._asking())
        try:
            owner.post(execution.start)
            outcome = crossing.wait()
        except BaseException:
            _withdraw(owner, execution)
            raise
        return _concluded(request, entry, began, outcome)

    def execute_tool_stream(self, request: ToolRequest) -> BlockingChunks:
        """See `ToolService`."""
        owner, _ = self.service._open_engine()
        owner.refuse_here()
        return BlockingChunks(owner, partial(self.service._begin_here, request))

    def list_resources(self) -> list[dict[str, Any]]:
        """See `ToolService`."""
        return Owner.shared().wait(self.service.list_resources())

    def list_prompts(self) -> list[dict[str, Any]]:
        """See `ToolService`."""
        return Owner.shared().wait(self.service.list_prompts())

    def read_resource(self, uri: str) -> list[dict[str, Any]]:
        """See `ToolService`."""
        return Owner.shared().wait(self.service.read_resource(uri))

    def get_prompt(self, name: str, arguments: Mapping[str, str] | None = None) -> dict[str, Any]:
        """See `ToolService`."""
        return Owner.shared().wait(self.service.get_prompt(name, arguments))


async def _given_up(opening: asyncio.Task[Any] | None) -> None:
    """End a service that is still opening; its own task closes what it has opened so far."""
    if opening is not None:
        if not opening.cancelling():  # who was cancelled before is closing it, and is not to be hurried
            opening.cancel()
        await asyncio.wait([opening])


class _Tools(Mapping[str, Tool]):
    """Tools by their full names, each made when it is asked for."""

    def __init__(self, service: ToolService, catalog: Catalog) -> None:
        self._service = service
        self._catalog = catalog

    def __getitem__(self, name: str) -> Tool:
        return MCPTool(self._service, self._catalog.entries[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._catalog.entries)

    def __len__(self) -> int:
        return len(self._catalog.entries)


def _concluded(request: ToolRequest, entry: Entry, began: float, outcome: Outcome) -> ToolResult:
    seconds, is_of_hub = time.perf_counter() - began, entry.surface.style == "own"
    return result_from(request, outcome, entry.full_name, entry.namespace, seconds, is_of_hub=is_of_hub)


def _withdraw(owner: Owner, execution: Execution) -> None:
    try:
        owner.post(execution.withdraw)
    except ServiceClosedError:
        return  # everything was withdrawn with it
