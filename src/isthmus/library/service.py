"""`ToolService`: the tools of every MCP server, inside a Python program.

It embeds the hub that `isthmus serve` runs, with the same names, permissions, limits and outcomes, and opens no port.
Connections live on the loop thread. The methods can be awaited on any loop; `blocking` is for programs without one.
"""

from __future__ import annotations

import asyncio
import os
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Literal, NoReturn

import msgspec

from isthmus.code.sandbox_in_hub import EXTRA, is_installed
from isthmus.code.virtual_tools import RUN_CODE, TOOL_SIGNATURES
from isthmus.core.calls.search_tools import CALL_TOOL
from isthmus.library.catalog import Catalog, ToolEntry
from isthmus.library.engine import FRONTEND, HubEngine, open_engine, use_standard_logging
from isthmus.library.errors import (
    ConfigurationError,
    ServiceClosedError,
    ToolError,
    ToolExecutionError,
)
from isthmus.library.loop_thread import (
    AsyncioPromise,
    AwaitablePromise,
    LoopThread,
    LoopThreadLock,
    SameLoopPromise,
    ThreadPromise,
    new_promise,
    runs_on_hub_loop,
)
from isthmus.library.outcomes_to_results import (
    decode_contents,
    decode_definition,
    encode_arguments,
    invalid_request,
    refused_result,
    result_from,
)
from isthmus.library.own_tools import MCPTool, Tool, final_chunks, register_tool
from isthmus.library.permissions import PROGRAM, argument_bytes, caller_for, refused_caller
from isthmus.library.public_types import ToolRequest, ToolResult, UniversalTool, UserContext
from isthmus.library.questions import QuestionRunner, Questions
from isthmus.library.request_checks import check_numbers, request_problem, session_of, valid_utf8
from isthmus.library.resolver import register_service, unregister_service
from isthmus.library.server_config import EnginePlan, read_plan
from isthmus.library.streaming import (
    BlockingChunks,
    ChunkBuffer,
    ChunkSink,
    ChunkStream,
    Execution,
    OutcomeSink,
)
from isthmus.model.calls import EVERYTHING, NO_CAPABILITIES, Call, Kind, LogLevel, Outcome
from isthmus.model.fault_table import BadArguments

HOW_TO_START = "use `async with` (or `with` for a BlockingToolService), or call `initialize` first"

SESSION_KEY = "isthmus/session"
"""The member of `_meta` that tells servers the conversation of a call."""

LOG_LEVEL: LogLevel = "debug"
"""A stream has everything that the server logs; its reader filters."""

_encode = msgspec.json.Encoder().encode

NO_CONFIG = (None, None, None)
"""No configuration, no hub, no key."""


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
        """Reads and connects nothing; `initialize` or `async with` do so, with the arguments given here.

        `questions` has the handlers for requests from servers.
        """
        self._config = (config, hub, key)
        self._questions = questions
        self._client_caps = questions.client_caps if questions is not None else NO_CAPABILITIES
        self._loop_thread: LoopThread | None = None
        self._engine: HubEngine | None = None
        self._was_open = False
        self._opening = LoopThreadLock()
        """Held while the service opens or closes."""

    # -- opening and closing -------------------------------------------------------------------------------------------

    async def initialize(
        self,
        config: Mapping[str, Any] | str | os.PathLike[str] | None = None,
        *,
        hub: str | None = None,
        key: str | None = None,
    ) -> None:
        """Connect; return when each server has connected or failed. `failures` lists those that failed.

        Args:
            config: `{"enable_mcp": True, "mcp_servers": [...]}`, directly or under `"tool_service"`, or
                `{"mcpServers": {...}}`; or the path of an `isthmus.toml` or `mcp.json`; or None, for the built-in
                tools and those of `@tool`. Calls are written to an audit log if the configuration has `audit` or
                `state` (in a file: under `[hub]`).
            hub: the address of a running hub, instead of `config`.
            key: the key of this program at that hub.

        Arguments that were passed to `ToolService(...)` are not repeated here.

        Raises:
            ConfigurationError: the configuration is invalid, was already passed to `ToolService(...)`, or the running
                hub cannot be reached. A single broken server is listed in `failures` instead.
            ServiceClosedError: the service is open in the parent of this forked process.
        """
        plan, loop_thread = self._read_config(config, hub, key)
        opened: list[HubEngine] = []
        try:
            await loop_thread.run(self._open(plan, opened))
        except BaseException:
            loop_thread.start(self._close(opened))  # it may have opened just when the caller was cancelled
            raise

    def _read_config(self, config: Any, hub: str | None, key: str | None) -> tuple[EnginePlan, LoopThread]:
        use_standard_logging()
        given = (config, hub, key)
        if NO_CONFIG not in (given, self._config):
            raise ConfigurationError(
                "The configuration was already passed to ToolService(...): call `initialize` without arguments."
            )
        plan = read_plan(*(self._config if given == NO_CONFIG else given))
        if self.is_inherited and self._engine is not None:
            self._open_engine()  # raises, and says what to do
        self._loop_thread = LoopThread.shared() if self._engine is None else self._loop_thread
        return plan, LoopThread.shared()

    async def _open(self, plan: EnginePlan, opened: list[HubEngine]) -> None:
        """Open the engine and append it to `opened`; waits for other openings and closings of this service."""
        async with self._opening:
            if self._engine is not None:
                raise ConfigurationError(
                    "This ToolService is already initialized (`async with` does that). Call `initialize` before "
                    "`async with`, shut the service down first, or make another one."
                )
            loop_thread = LoopThread.shared()
            opening = asyncio.current_task()
            assert opening is not None

            async def cancel_opening() -> None:
                if not opening.cancelling():  # a cancelled task is already closing its connections; let it finish
                    opening.cancel()
                await asyncio.wait([opening])

            loop_thread.close_at_exit(self, cancel_opening)
            try:
                engine = await open_engine(plan, self._questions)
                try:
                    await engine.wait_connected()
                    if (why := engine.remote_hub_problem()) is not None:
                        raise ConfigurationError(f"The hub cannot be reached: {why}")
                except BaseException:
                    await engine.aclose()
                    raise
            except BaseException:
                loop_thread.remove_closer(self)
                raise
            self._engine, self._was_open = engine, True
            opened.append(engine)
            loop_thread.close_at_exit(self, self._close)
            register_service(self)

    async def shutdown(self) -> None:
        """Cancel running calls and close every connection; does nothing if the service is closed.

        Cancelling the caller only stops the wait. In a forked child it does nothing: the parent shuts its service down.
        """
        if self._loop_thread is not None and not self.is_inherited:
            await self._loop_thread.run_shielded(self._close())

    async def _close(self, only: Sequence[HubEngine] | None = None) -> None:
        async with self._opening:
            engine = self._engine
            if engine is None or (only is not None and engine not in only):
                return
            self._engine = None
            unregister_service(self)
            try:
                await engine.aclose()
            finally:
                LoopThread.shared().remove_closer(self)  # last, so that the end of the program waits for this

    async def __aenter__(self) -> ToolService:
        if self._engine is None:
            await self.initialize()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.shutdown()

    def __copy__(self) -> ToolService:
        return self  # a copied agent shares the service: connections cannot be copied

    def __deepcopy__(self, memo: dict[int, Any]) -> ToolService:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "A ToolService, or an object that has one, cannot be pickled: its connections belong to this process. "
            "Make and initialize one in each process."
        )

    @property
    def is_initialized(self) -> bool:
        """Whether it is initialized and not shut down."""
        return self._engine is not None

    @property
    def is_inherited(self) -> bool:
        """Whether it was initialized by the parent of this forked process."""
        return self._loop_thread is not None and self._loop_thread.is_inherited

    def _open_engine(self) -> tuple[LoopThread, HubEngine]:
        loop_thread, engine = self._loop_thread, self._engine
        if loop_thread is None or engine is None:
            state = "shut down" if self._was_open else f"not initialized: {HOW_TO_START}"
            raise ServiceClosedError(f"This ToolService is {state}.")
        loop_thread.check_process()
        return loop_thread, engine

    # -- tools ---------------------------------------------------------------------------------------------------------

    async def catalog(self) -> Catalog:
        """The current tools, by all their names."""
        loop_thread, engine = self._open_engine()
        known = engine.current_catalog
        return known if known is not None else await loop_thread.call_async(engine.catalog)

    def _catalog_now(self) -> Catalog:
        loop_thread, engine = self._open_engine()
        known = engine.current_catalog
        return known if known is not None else loop_thread.call(engine.catalog)

    async def list_tools(self, user_context: UserContext | None = None) -> list[str]:
        """The full names of all tools, or of those that `user_context` may use."""
        return [entry.full_name for entry in (await self.catalog()).reachable(user_context)]

    async def universal_tools(self, user_context: UserContext | None = None) -> list[UniversalTool]:
        """The same as `UniversalTool` objects, with descriptions and schemas."""
        return [entry.tool for entry in (await self.catalog()).reachable(user_context)]

    async def resolve(
        self, name: str, user_context: UserContext | None = None, namespace: str | None = None
    ) -> UniversalTool:
        """Find one tool by any form of its name.

        Raises:
            ToolNotFoundError: no tool has this name.
            AmbiguousToolError: several tools have it.
            ToolDeniedError: the user may not use the tool.
        """
        return (await self.catalog()).resolve_for(user_context, name, namespace).tool

    def get_tool(self, name: str) -> Tool:
        """Return a tool as an executable object.

        Raises:
            ToolNotFoundError: no tool has this name.
            AmbiguousToolError: several tools have it.
        """
        return MCPTool(self, self._catalog_now().resolve(name))

    @property
    def _tools(self) -> Mapping[str, Tool]:
        """The current tools by their full names."""
        return _Tools(self, self._catalog_now())

    @property
    def failures(self) -> dict[str, str]:
        """Servers that are not connected, and why. The hub reconnects in the background."""
        loop_thread, engine = self._open_engine()
        return loop_thread.call(engine.failures)

    @property
    def notes(self) -> dict[str, tuple[str, ...]]:
        """What was left out of each server's lists, and why."""
        loop_thread, engine = self._open_engine()
        return loop_thread.call(engine.notes)

    def watch(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Call a function, on the loop thread, when tools may have changed; the returned function stops that."""
        loop_thread, engine = self._open_engine()
        key = object()
        loop_thread.call(engine.watch, key, callback)
        return partial(loop_thread.post, engine.unwatch, key)

    def register_tool(self, tool: Tool) -> None:
        """Serve a tool of the program like all others, as `namespace.name` or `builtin.name`.

        Raises:
            ConfigurationError: its name is taken or invalid.
        """
        loop_thread, engine = self._open_engine()
        loop_thread.call(register_tool, engine.running.functions, tool)

    # -- executing -----------------------------------------------------------------------------------------------------

    async def execute_tool(self, request: ToolRequest) -> ToolResult:
        """Execute a tool; a failure is a status of the result. Cancelling the caller cancels the call at its server."""
        loop_thread, engine = self._open_engine()
        began = time.perf_counter()
        catalog = engine.current_catalog
        if catalog is None:
            catalog = await self.catalog()
        prepared = self._make_call(engine, catalog, request, is_streamed=False)
        if isinstance(prepared, ToolResult):
            return prepared
        entry, call = prepared
        outcome = await self._execute(loop_thread, engine, call)
        return _make_result(request, entry, began, outcome)

    async def _execute(self, loop_thread: LoopThread, engine: HubEngine, call: Call) -> Outcome:
        promise: AwaitablePromise[Outcome] = (
            SameLoopPromise(loop_thread.loop) if loop_thread.is_current() else new_promise()
        )
        execution = Execution(
            engine.running.hub, call, OutcomeSink(promise), loop_thread, self._question_runner(promise)
        )
        promise.send(loop_thread.post, execution.start)
        try:
            outcome: Outcome = await promise.wait()
        except BaseException:
            _cancel(loop_thread, execution)
            raise
        return outcome

    async def run_code(
        self,
        code: str,
        *,
        timeout: float | None = None,
        user_context: UserContext | None = None,
        session_id: str | None = None,
    ) -> ToolResult:
        """Run a Python script that calls tools, in a sandbox; see "Code mode" in the documentation.

        Its result is `result_data["result"]`: the value of the last expression. `result_data["printed"]` has what it
        printed. A script that fails has the status `error`, and `error_message` says why. Cancelling the caller ends
        the script and its calls.

        Args:
            code: The script. Every tool is an async function with keyword arguments, as `tool_signatures` shows.
            timeout: Seconds for the whole script.
            user_context: The user whose permissions its calls have.
            session_id: The conversation that its calls belong to.

        Raises:
            ConfigurationError: the library of the sandbox is not installed, or a user is named at a remote hub.
        """
        if not is_installed():
            raise ConfigurationError(EXTRA)
        code = textwrap.dedent(code)
        given = {"code": code} if timeout is None else {"code": code, "timeout": timeout}
        return await self._call_virtual(RUN_CODE, given, user_context, session_id)

    async def tool_signatures(self, *names: str, user_context: UserContext | None = None) -> str:
        """The Python signatures of all tools, or of those that are named, for scripts of `run_code`.

        Raises:
            ToolExecutionError: there are too many names.
        """
        result = await self._call_virtual(TOOL_SIGNATURES, {"names": list(names)}, user_context, None)
        if result.error is not None:
            raise ToolExecutionError(TOOL_SIGNATURES, result.error.message, result)
        return str(result.result_data)

    async def _call_virtual(
        self, name: str, parameters: dict[str, Any], user: UserContext | None, session: str | None
    ) -> ToolResult:
        """Call a tool of code mode, whatever the configuration exposes."""
        loop_thread, engine = self._open_engine()
        began = time.perf_counter()
        request = ToolRequest(name, parameters=parameters, user_context=user, session_id=session)
        caller = PROGRAM
        if user is not None:
            if engine.is_attached:
                raise ConfigurationError(
                    "Scripts for a user need a local hub, because a remote one does not know users: "
                    "leave user_context out, or call the remote hub's own run_code."
                )
            caller = caller_for(user, session, is_attached=False)
            # A script may name every tool that its caller may use: exactly those of the user.
            grants = (await self.catalog()).grants_for(user, caller.grants)
            caller = msgspec.structs.replace(caller, grants=grants)
        call = Call(
            caller,
            msgspec.structs.replace(engine.surface, expose="code"),
            name,
            msgspec.Raw(_encode(parameters)),
            client_caps=self._client_caps,
            session=session or "",
            frontend=FRONTEND,
        )
        outcome = await self._execute(loop_thread, engine, call)
        return result_from(request, outcome, name, None, time.perf_counter() - began)

    def execute_tool_stream(self, request: ToolRequest) -> ChunkStream:
        """Execute a tool and yield its progress, logs and result; closing the stream cancels the call at its server."""
        loop_thread, _ = self._open_engine()

        async def start(buffer: ChunkBuffer) -> Execution | None:
            return self._start_stream(request, await self.catalog(), buffer, self._question_runner(new_promise()))

        return ChunkStream(loop_thread, start)

    def _question_runner(self, promise: AwaitablePromise[Any] | None = None) -> QuestionRunner | None:
        """Runs the handlers for requests from servers: on the loop that waits, if that loop is the program's own."""
        if self._questions is None:
            return None
        loop = promise.loop if isinstance(promise, AsyncioPromise) else None
        is_own = self._loop_thread is None or loop is not self._loop_thread.loop or runs_on_hub_loop()
        return QuestionRunner(self._questions, loop if is_own else None)

    def _start_stream(
        self, request: ToolRequest, catalog: Catalog, buffer: ChunkBuffer, questions: QuestionRunner | None
    ) -> Execution | None:
        loop_thread, engine = self._open_engine()
        began = time.perf_counter()
        prepared = self._make_call(engine, catalog, request, is_streamed=True)
        if isinstance(prepared, ToolResult):
            buffer.put(partial(final_chunks, prepared))
            return None
        entry, call = prepared
        sink = ChunkSink(entry.full_name, buffer, partial(_make_result, request, entry, began))
        execution = Execution(engine.running.hub, call, sink, loop_thread, questions)
        if loop_thread.is_current():
            execution.start()
        else:
            loop_thread.post(execution.start)
        return execution

    def _make_call(
        self, engine: HubEngine, catalog: Catalog, request: ToolRequest, *, is_streamed: bool
    ) -> tuple[ToolEntry, Call] | ToolResult:
        """Find the tool and make the call for it, or return the result that refuses the request."""
        if (problem := request_problem(request)) is not None:
            return self._record_refusal(request, invalid_request(request, problem))
        user = request.user_context
        try:
            entry, parameters = catalog.resolve_for(user, request.tool_name, request.tool_namespace), request.parameters
            if entry.is_virtual and entry.exposed == CALL_TOOL and isinstance(name := parameters.get("name"), str):
                # The permissions of users are known here, and not to the hub.
                entry, parameters = catalog.resolve_for(user, name), parameters.get("arguments") or {}
        except ToolError as error:
            return self._record_refusal(request, refused_result(request, error))
        try:
            arguments = _encode(parameters)
            check_numbers(arguments, parameters)
        except (TypeError, ValueError, RecursionError, OverflowError) as error:
            return self._record_refusal(
                request, invalid_request(request, BadArguments(entry.full_name, str(error)).message)
            )
        session = session_of(request)
        caller = PROGRAM if user is None else caller_for(user, session, is_attached=engine.is_attached)
        if entry.is_virtual and user is not None:
            caller = msgspec.structs.replace(caller, grants=catalog.grants_for(user, caller.grants))
        return entry, Call(
            caller,
            entry.surface,
            entry.exposed,
            msgspec.Raw(arguments),
            meta={} if session is None else {SESSION_KEY: msgspec.Raw(_encode(session))},
            wants_progress=is_streamed,
            log_level=LOG_LEVEL if is_streamed else None,
            client_caps=self._client_caps,
            session=session or "",
            timeout=request.timeout,
            headers=(request.metadata or {}).get("headers") or {},
            frontend=FRONTEND,
        )

    def noted(
        self,
        refusal: ToolResult,
        arguments: object = None,
        user_context: UserContext | None = None,
        session_id: str | None = None,
    ) -> ToolResult:
        """Write a call that was refused outside the hub to the audit log; return `refusal` unchanged.

        For integrations that refuse calls themselves; `execute_tool` records its own refusals. May be called from any
        thread. Does nothing without an audit log, or if the service is not open.

        Args:
            refusal: The result of the call, under the name that was called.
            arguments: The arguments, or their unparsed text; None if unknown.
            user_context: The user of the call.
            session_id: The conversation of the call.
        """
        loop_thread, engine = self._loop_thread, self._engine
        if loop_thread is not None and engine is not None and engine.is_audited:
            session = session_id if isinstance(session_id, str) else ""
            call = Call(
                refused_caller(user_context, session, is_attached=engine.is_attached),
                EVERYTHING,
                valid_utf8(refusal.tool_name),
                msgspec.Raw(argument_bytes(arguments)),
                session=session,
                frontend=FRONTEND,
            )
            with suppress(ServiceClosedError):
                loop_thread.post(engine.record_refusal, call, refusal, user_context)
        return refusal

    def _record_refusal(self, request: ToolRequest, refusal: ToolResult) -> ToolResult:
        return self.noted(refusal, request.parameters, request.user_context, session_of(request))

    # -- resources and prompts -----------------------------------------------------------------------------------------

    async def list_resources(self) -> list[dict[str, Any]]:
        """Resource definitions, with the URIs that `read_resource` takes."""
        return await self._list("resources", "uri")

    async def list_prompts(self) -> list[dict[str, Any]]:
        """Prompt definitions, with the names that `get_prompt` takes."""
        return await self._list("prompts", "name")

    async def read_resource(self, uri: str) -> list[dict[str, Any]]:
        """The contents of a resource, text or base64.

        Raises:
            ToolExecutionError: it cannot be read; `result` says why.
        """
        contents = (await self._get("resource", uri, {})).get("contents")
        if not isinstance(contents, list):
            raise ToolExecutionError(uri, f"The server's reply for {uri} has no contents")
        return contents

    async def get_prompt(self, name: str, arguments: Mapping[str, str] | None = None) -> dict[str, Any]:
        """A prompt's `description` and `messages`. Prompts have full and short names, like tools.

        Raises:
            AmbiguousToolError: several prompts have this short name.
            ToolExecutionError: the prompt cannot be read; `result` says why.
        """
        loop_thread, engine = self._open_engine()
        if isinstance(name, str):
            name = await loop_thread.call_async(engine.resolve_prompt, name)
        return await self._get("prompt", name, arguments or {})

    async def _list(self, kind: Literal["prompts", "resources"], key: str) -> list[dict[str, Any]]:
        loop_thread, engine = self._open_engine()
        routes = await loop_thread.call_async(engine.features, kind)
        return [{**decode_definition(route.feature.definition), key: route.exposed} for route in routes]

    async def _get(self, kind: Kind, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        loop_thread, engine = self._open_engine()
        encoded = encode_arguments(kind, name, arguments)
        call = Call(PROGRAM, engine.surface, name, encoded, kind=kind, client_caps=self._client_caps, frontend=FRONTEND)
        outcome = await self._execute(loop_thread, engine, call)
        return decode_contents(name, outcome, is_attached=engine.is_attached)

    # -- without a loop ------------------------------------------------------------------------------------------------

    @property
    def blocking(self) -> BlockingToolService:
        """The same service for code that blocks."""
        return BlockingToolService(service=self)


class BlockingToolService:
    """`ToolService` for programs without an event loop: every method blocks until it is done."""

    def __init__(
        self,
        config: Mapping[str, Any] | str | os.PathLike[str] | None = None,
        *,
        hub: str | None = None,
        key: str | None = None,
        questions: Questions | None = None,
        service: ToolService | None = None,
    ) -> None:
        """Makes a service that `with` or `initialize` opens, or wraps `service` in its current state.

        Raises:
            ConfigurationError: `service` is given together with other arguments.
        """
        if service is not None and any(given is not None for given in (config, hub, key, questions)):
            raise ConfigurationError("Give `service` alone: it already has a configuration and questions.")
        self.service = service if service is not None else ToolService(config, hub=hub, key=key, questions=questions)

    def initialize(
        self,
        config: Mapping[str, Any] | str | os.PathLike[str] | None = None,
        *,
        hub: str | None = None,
        key: str | None = None,
    ) -> None:
        """Connect; return when each server has connected or failed. `failures` lists those that failed."""
        plan, loop_thread = self.service._read_config(config, hub, key)
        opened: list[HubEngine] = []
        try:
            loop_thread.run_blocking(self.service._open(plan, opened))
        except BaseException:
            loop_thread.start(self.service._close(opened))  # as in `ToolService.initialize`
            raise

    def shutdown(self) -> None:
        """Cancel running calls and close every connection; does nothing if the service is closed."""
        LoopThread.shared().run_blocking(self.service.shutdown())

    def __enter__(self) -> BlockingToolService:
        if self.service._engine is None:
            self.initialize()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def list_tools(self, user_context: UserContext | None = None) -> list[str]:
        """The full names of all tools, or of those that `user_context` may use."""
        return [entry.full_name for entry in self.service._catalog_now().reachable(user_context)]

    def universal_tools(self, user_context: UserContext | None = None) -> list[UniversalTool]:
        """The same as `UniversalTool` objects, with descriptions and schemas."""
        return [entry.tool for entry in self.service._catalog_now().reachable(user_context)]

    def resolve(
        self, name: str, user_context: UserContext | None = None, namespace: str | None = None
    ) -> UniversalTool:
        """Find one tool by any form of its name."""
        return self.service._catalog_now().resolve_for(user_context, name, namespace).tool

    def get_tool(self, name: str) -> Tool:
        """Return a tool as an executable object."""
        return self.service.get_tool(name)

    @property
    def failures(self) -> dict[str, str]:
        """Servers that are not connected, and why. The hub reconnects in the background."""
        return self.service.failures

    def execute_tool(self, request: ToolRequest) -> ToolResult:
        """Execute a tool; a failure is a status of the result. Cancelling the caller cancels the call at its server.

        Raises:
            WrongThreadError: the caller is on the hub's own loop.
        """
        service = self.service
        loop_thread, engine = service._open_engine()
        loop_thread.check_may_block()
        began = time.perf_counter()
        prepared = service._make_call(engine, service._catalog_now(), request, is_streamed=False)
        if isinstance(prepared, ToolResult):
            return prepared
        entry, call = prepared
        promise: ThreadPromise[Outcome] = ThreadPromise()
        execution = Execution(engine.running.hub, call, OutcomeSink(promise), loop_thread, service._question_runner())
        try:
            loop_thread.post(execution.start)
            outcome = promise.wait()
        except BaseException:
            _cancel(loop_thread, execution)
            raise
        return _make_result(request, entry, began, outcome)

    def run_code(
        self,
        code: str,
        *,
        timeout: float | None = None,
        user_context: UserContext | None = None,
        session_id: str | None = None,
    ) -> ToolResult:
        """Run a Python script that calls tools, in a sandbox; see "Code mode" in the documentation."""
        running = self.service.run_code(code, timeout=timeout, user_context=user_context, session_id=session_id)
        return LoopThread.shared().run_blocking(running)

    def tool_signatures(self, *names: str, user_context: UserContext | None = None) -> str:
        """The Python signatures of all tools, or of those that are named, for scripts of `run_code`."""
        return LoopThread.shared().run_blocking(self.service.tool_signatures(*names, user_context=user_context))

    def execute_tool_stream(self, request: ToolRequest) -> BlockingChunks:
        """Execute a tool and yield its progress, logs and result; closing the stream cancels the call at its server."""
        loop_thread, _ = self.service._open_engine()
        loop_thread.check_may_block()

        def start(buffer: ChunkBuffer) -> Execution | None:
            service = self.service
            return service._start_stream(request, service._catalog_now(), buffer, service._question_runner())

        return BlockingChunks(loop_thread, start)

    def list_resources(self) -> list[dict[str, Any]]:
        """Resource definitions, with the URIs that `read_resource` takes."""
        return LoopThread.shared().run_blocking(self.service.list_resources())

    def list_prompts(self) -> list[dict[str, Any]]:
        """Prompt definitions, with the names that `get_prompt` takes."""
        return LoopThread.shared().run_blocking(self.service.list_prompts())

    def read_resource(self, uri: str) -> list[dict[str, Any]]:
        """The contents of a resource, text or base64."""
        return LoopThread.shared().run_blocking(self.service.read_resource(uri))

    def get_prompt(self, name: str, arguments: Mapping[str, str] | None = None) -> dict[str, Any]:
        """A prompt's `description` and `messages`. Prompts have full and short names, like tools."""
        return LoopThread.shared().run_blocking(self.service.get_prompt(name, arguments))


class _Tools(Mapping[str, Tool]):
    """Tools by their full names, made on access."""

    def __init__(self, service: ToolService, catalog: Catalog) -> None:
        self._service = service
        self._catalog = catalog

    def __getitem__(self, name: str) -> Tool:
        return MCPTool(self._service, self._catalog.entries[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._catalog.entries)

    def __len__(self) -> int:
        return len(self._catalog.entries)


def _make_result(request: ToolRequest, entry: ToolEntry, began: float, outcome: Outcome) -> ToolResult:
    seconds, is_of_hub = time.perf_counter() - began, entry.surface.style == "own"
    return result_from(request, outcome, entry.full_name, entry.namespace, seconds, is_of_hub=is_of_hub)


def _cancel(loop_thread: LoopThread, execution: Execution) -> None:
    with suppress(ServiceClosedError):  # closing has cancelled it
        loop_thread.post(execution.cancel)
