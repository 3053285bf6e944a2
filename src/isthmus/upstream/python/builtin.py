"""Tools of this process: the hub's built-in ones, functions marked with `@tool`, and functions added to one hub.

Each server of such functions is a queue with a `LocalLink`; the server `builtin` always exists. When
`upstream.python.registry` changes, the hub publishes its tools again. Created by `app.hub`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping, Set
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any

import msgspec

from isthmus.core.background import BackgroundTasks
from isthmus.core.calls.hub import Hub
from isthmus.core.calls.running_call import InFlight
from isthmus.core.calls.server_queue import ServerQueue
from isthmus.core.catalog.names import BUILTIN
from isthmus.core.catalog.snapshot import ServerStatus
from isthmus.core.catalog.tool_rules import ToolRules
from isthmus.core.event_loop import LONG_BYTES, in_turn
from isthmus.core.journal import Journal, JournalEntry
from isthmus.model.calls import Result
from isthmus.model.fault_table import Bug, NotConnected
from isthmus.model.features import Ability, Tool
from isthmus.model.names import FeatureName, ServerName, parse_server_name
from isthmus.model.relay import DEFAULT_TENANT
from isthmus.upstream.python.registry import REGISTRY, FunctionRegistry, NameTaken
from isthmus.upstream.python.runner import Runner
from isthmus.upstream.python.signatures import Runnable
from isthmus.wire.jsonrpc import only_members

LINES_MAX = 100
"""Most lines that one call of `chat_log` may request."""

UNNAMED_TENANTS = (DEFAULT_TENANT, "local")
"""Tenants whose callers own their chat log under their name alone: the default one, and callers on this machine."""


class LocalTool(msgspec.Struct, frozen=True):
    """A built-in tool: a function that returns the structured content of its result, and its definition."""

    name: str
    description: str
    input_schema: dict[str, Any]
    run: Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]] | dict[str, Any]]
    """Called with the owner (the caller, as text) and the validated arguments."""
    annotations: dict[str, Any] = {}


class LocalLink:
    """The link to tools of this process.

    `functions` is replaced as a whole; built-in tools take precedence over functions.
    """

    def __init__(self, server: ServerName, tools: list[LocalTool], background: BackgroundTasks, runner: Runner) -> None:
        self.functions: Mapping[str, Runnable] = {}
        self._server = server
        self._own = {tool.name: tool for tool in tools}
        self._definitions: list[Tool] = []
        for tool in tools:
            members = {
                "name": tool.name,
                "description": tool.description,
                "inputSchema": tool.input_schema,
                "annotations": tool.annotations,
            }
            definition = {key: msgspec.Raw(msgspec.json.encode(value)) for key, value in members.items()}
            self._definitions.append(Tool.of(server, FeatureName(tool.name), definition))
        self._background = background
        self._runner = runner

    @property
    def tools(self) -> tuple[Tool, ...]:
        """All tools, the built-in ones first."""
        shown = [function for name, function in self.functions.items() if name not in self._own]
        return (*self._definitions, *(Tool.of(self._server, FeatureName(f.name), f.definition()) for f in shown))

    def names(self) -> Set[str]:
        """The names of all tools."""
        return self._own.keys() | self.functions.keys()

    def abilities(self) -> frozenset[Ability]:
        """Tools, and logging if a function has a context."""
        does_log = any(function.takes_context for function in self.functions.values())
        return frozenset(("tools", "logging") if does_log else ("tools",))

    def send(self, inflight: InFlight) -> None:
        """Run the tool: a built-in one at once or, if it waits, as a background task; a function by the runner."""
        name = inflight.name
        tool = self._own.get(name)
        if tool is not None:
            if len(memoryview(inflight.call.arguments)) > LONG_BYTES:
                in_turn(partial(self._run, tool, inflight))
            else:
                self._run(tool, inflight)
        elif (function := self.functions.get(name)) is not None:
            self._runner.start(inflight, function)
        else:
            inflight.finish(NotConnected(self._server, f"it no longer has a function {name}"))

    def _run(self, tool: LocalTool, inflight: InFlight) -> None:
        if inflight.is_done:  # while long arguments waited for their turn
            return
        # Two tenants may have a caller of the same name; no name contains a line break.
        caller = inflight.call.caller
        owner = caller.name if caller.tenant in UNNAMED_TENANTS else f"{caller.tenant}\n{caller.name}"
        # Unknown arguments are ignored; they may have megabytes.
        arguments = only_members(inflight.call.arguments, *tool.input_schema.get("properties", ()))
        answer = tool.run(owner, msgspec.json.decode(arguments))
        if isinstance(answer, dict):
            inflight.finish(_result(answer))
        else:
            inflight.carriage = self._background.spawn(f"tool {inflight.name}", _finish(inflight, answer))

    def may_have_run(self, inflight: InFlight) -> bool:
        """Always True for built-in tools: they start when they are sent."""
        return self._runner.may_have_run(inflight)

    def withdraw(self, inflight: InFlight, reason: str) -> None:
        """Cancel the call's task, or remove it from the runner's queue."""
        if isinstance(inflight.carriage, asyncio.Task):
            inflight.carriage.cancel()
        else:
            self._runner.withdraw(inflight)

    def close(self) -> None:
        """End all calls of functions; threads end when their functions return."""
        self._runner.close("closed by the hub")


async def _finish(inflight: InFlight, answer: Awaitable[dict[str, Any]]) -> None:
    try:
        inflight.finish(_result(await answer))
    except Exception:
        inflight.finish(Bug(inflight.target.exposed))  # `BackgroundTasks` logs the exception
        raise


def _result(content: dict[str, Any]) -> Result:
    text = content["text"] if list(content) == ["text"] else msgspec.json.encode(content).decode()
    payload = {"content": [{"type": "text", "text": text}], "structuredContent": content, "isError": False}
    return Result(msgspec.Raw(msgspec.json.encode(payload)))


# -- the built-in tools --------------------------------------------------------------------------------------------


def builtin_tools(journal: Journal, now: Callable[[], float]) -> list[LocalTool]:
    """The tools that every hub has; `now` returns seconds since the epoch."""
    log = ChatLog(journal, now)
    return [
        LocalTool(
            "echo",
            "Return the text it is given.",
            _ECHO,
            lambda _owner, arguments: {"text": arguments["text"]},
            {"readOnlyHint": True},
        ),
        LocalTool(
            "timestamp",
            "Tell the current time, in UTC.",
            {"type": "object", "properties": {}},
            lambda _owner, _arguments: {
                "iso": datetime.fromtimestamp(seconds := now(), UTC).isoformat(),
                "unix": seconds,
            },
            {"readOnlyHint": True},
        ),
        LocalTool(
            "chat_log",
            "Keep a line of conversation, and return the caller's latest lines. Without a message it only reads.",
            _CHAT_LOG,
            log.run,
            {"destructiveHint": False},
        ),
    ]


_ECHO: dict[str, Any] = {
    "type": "object",
    "properties": {"text": {"type": "string", "description": "What to say back"}},
    "required": ["text"],
}

_CHAT_LOG: dict[str, Any] = {
    "type": "object",
    "properties": {
        "message": {"type": "string", "description": "The line to keep", "maxLength": 65536},
        "role": {"type": "string", "description": "Who said it", "default": "user", "maxLength": 64},
        "limit": {"type": "integer", "minimum": 0, "maximum": LINES_MAX, "default": 20},
    },
}


class ChatLog:
    """Lines of conversation per caller, in the journal."""

    def __init__(self, journal: Journal, now: Callable[[], float]) -> None:
        self._journal = journal
        self._now = now

    async def run(self, owner: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Store the message, if there is one, and return the latest lines, oldest first."""
        if "message" in arguments:
            line = {"role": arguments.get("role", "user"), "message": arguments["message"]}
            content = msgspec.Raw(msgspec.json.encode(line))
            await self._journal.commit([JournalEntry("chat", owner, self._now(), content)])
        entries = await self._journal.latest("chat", owner, int(arguments.get("limit", 20)))
        lines = [{**msgspec.json.decode(entry.content), "at": entry.at} for entry in entries]
        return {"lines": lines}


OPERATORS = ToolRules(is_trusted=True)
"""Functions of this process belong to the operator, so their annotations are trusted."""


class HubFunctions:
    """The functions that one hub publishes. Used on the hub's loop only; the registry may change in any thread."""

    def __init__(
        self,
        hub: Hub,
        background: BackgroundTasks,
        tools: list[LocalTool],
        *,
        is_settled: bool = True,
        registry: FunctionRegistry = REGISTRY,
    ) -> None:
        """`tools` are the built-in ones. Unless `is_settled`, a first list waits a moment for `settle`."""
        self._hub = hub
        self._background = background
        self._registry = registry
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._is_settled = is_settled
        self._notes: tuple[str, ...] = ()
        self.version = registry.version
        """The version of the registry that is published."""
        self._given: dict[ServerName, dict[str, Runnable]] = {BUILTIN: {}}
        self._links: dict[ServerName, LocalLink] = {}
        self._left: list[LocalLink] = []
        """Links of removed servers whose calls may still run."""
        self._open(BUILTIN, tools)
        self._unwatch = registry.watch(self._registry_changed)

    # -- functions of this hub alone -------------------------------------------------------------------------------

    def add(self, function: Runnable, server: str = BUILTIN) -> None:
        """Publish a function as a tool of a server, which is created if it does not exist.

        Raises:
            NameTaken: the server has a tool of this name, or is a server of the configuration.
            ValueError: the server's name is invalid.
        """
        name = parse_server_name(server)
        if name not in self._links and name in self._hub.server_queues:
            raise NameTaken(f"{name} is a server of the configuration: give the functions a server of their own")
        if name in self._links and function.name in self._links[name].names():
            raise NameTaken(f"there is a tool {name}.{function.name} already: remove it, or give this one another name")
        self._given.setdefault(name, {})[function.name] = function
        if name in self._links:
            self._publish(name)
        else:
            self._open(name, [])

    def remove(self, name: str, server: str = BUILTIN) -> bool:
        """Remove a function that `add` added; False for an unknown name. Its running calls may finish."""
        server_name = ServerName(server)
        given = self._given.get(server_name, {})
        if given.pop(name, None) is None:
            return False
        if given or server == BUILTIN:
            self._publish(server_name)
        else:
            self._left.append(self._links.pop(server_name))
            del self._given[server_name]
            self._hub.close_server_queue(server_name)
        return True

    # -- publishing ------------------------------------------------------------------------------------------------

    def all_loaded(self, notes: tuple[str, ...]) -> None:
        """All modules with built-in functions are loaded or have failed; `notes` are for the operator."""
        self._is_settled = True
        self._notes = notes
        self._publish(BUILTIN)

    def _registry_changed(self) -> None:
        if threading.get_ident() == self._thread:
            self._publish(BUILTIN)
            return
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._publish, BUILTIN)

    def _open(self, server: ServerName, tools: list[LocalTool]) -> None:
        server_queue = ServerQueue(server, self._hub.limits)
        runner = Runner(server, self._hub.limits, self._background, server_queue.max_calls)
        link = self._links[server] = LocalLink(server, tools, self._background, runner)
        link.functions = self._functions_of(server)
        server_queue.attach(link)
        self._hub.open_server_queue(server_queue, self._status(server))

    def _publish(self, server: ServerName) -> None:
        link = self._links.get(server)
        if link is not None:
            link.functions = self._functions_of(server)
            self._hub.publish(self._status(server))

    def _functions_of(self, server: ServerName) -> Mapping[str, Runnable]:
        given = self._given[server]
        if server != BUILTIN:
            return dict(given)
        self.version = self._registry.version  # first: functions that are added meanwhile count as unpublished
        return {**self._registry.functions(), **given}

    def _status(self, server: ServerName) -> ServerStatus:
        link = self._links[server]
        return ServerStatus(
            server,
            "ready",
            tools=link.tools,
            abilities=link.abilities(),
            is_settled=self._is_settled or server != BUILTIN,
            notes=self._notes if server == BUILTIN else (),
            rules=OPERATORS,
        )

    # -- closing ---------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End all calls; threads end when their functions return."""
        self._unwatch()
        links, self._links, self._left = (*self._links.values(), *self._left), {}, []
        for link in links:
            link.close()
