"""Tools of this process: the hub's built-in ones, functions marked with `@tool`, and functions of one hub.

Each server of them is a queue with a `LocalLink`; `builtin` always exists. When `upstream.python.registry` changes, the
hub publishes again. Created by `app.hub`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping, Set
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import msgspec

from isthmus.core.background import BackgroundTasks
from isthmus.core.calls.hub import Hub
from isthmus.core.calls.inflight import InFlight
from isthmus.core.calls.server_queue import ServerQueue
from isthmus.core.catalog.names import BUILTIN
from isthmus.core.catalog.rules import ToolRules
from isthmus.core.catalog.snapshot import ServerStatus
from isthmus.core.ports import Journal, JournalEntry
from isthmus.model.callers import Caller
from isthmus.model.calls import Result
from isthmus.model.faults import Bug, NotConnected
from isthmus.model.features import Ability, Tool
from isthmus.model.names import FeatureName, ServerName, parse_server_name
from isthmus.model.relay import DEFAULT_TENANT
from isthmus.upstream.python.registry import REGISTRY, FunctionRegistry, NameTaken
from isthmus.upstream.python.runner import Runner
from isthmus.upstream.python.signatures import Runnable

LINES_MAX = 100
"""Lines that one reading of the chat log may ask for."""

UNNAMED_TENANTS = (DEFAULT_TENANT, "local")
"""Whose callers are filed under their names alone: who has no other tenant, and whoever is at this machine."""


class LocalTool(msgspec.Struct, frozen=True):
    """A function and how it is described to callers. It returns the structured content of its result."""

    name: str
    description: str
    input_schema: dict[str, Any]
    run: Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]] | dict[str, Any]]
    """Called with whose call it is, as a text, and the arguments, which were checked against the schema."""
    annotations: dict[str, Any] = {}


class LocalLink:
    """Runs the tools of this process; nothing can be lost on the way.

    `functions` is replaced as a whole; built-in tools take precedence over functions.
    """

    def __init__(self, server: ServerName, tools: list[LocalTool], background: BackgroundTasks, runner: Runner) -> None:
        self.functions: Mapping[str, Runnable] = {}
        self._server = server
        self._own = {tool.name: tool for tool in tools}
        self._described = tuple(_describe(server, tool) for tool in tools)
        self._background = background
        self._runner = runner

    @property
    def tools(self) -> tuple[Tool, ...]:
        """What can be called, the hub's own first."""
        shown = [function for name, function in self.functions.items() if name not in self._own]
        return (*self._described, *(Tool.of(self._server, FeatureName(f.name), f.definition()) for f in shown))

    def names(self) -> Set[str]:
        """The names of all that."""
        return self._own.keys() | self.functions.keys()

    def abilities(self) -> frozenset[Ability]:
        """Tools, and logging if a function can."""
        does_log = any(function.takes_context for function in self.functions.values())
        return frozenset(("tools", "logging") if does_log else ("tools",))

    def send(self, inflight: InFlight) -> None:
        """Run it: a tool of the hub's own at once, or as a member of the crew if it has to wait for something."""
        name = inflight.name
        own = self._own.get(name)
        if own is not None:
            self._run_own(own, inflight)
        elif (function := self.functions.get(name)) is not None:
            self._runner.start(inflight, function)
        else:
            inflight.finish(NotConnected(self._server, f"it has no function {name} any more"))

    def _run_own(self, tool: LocalTool, inflight: InFlight) -> None:
        answer = tool.run(_owner(inflight.call.caller), msgspec.json.decode(inflight.call.arguments))
        if isinstance(answer, dict):
            inflight.finish(_result(answer))
        else:
            inflight.carriage = self._background.spawn(f"tool {tool.name}", _finish(inflight, answer))

    def may_have_run(self, inflight: InFlight) -> bool:
        """A tool of the hub's own began as soon as it was sent."""
        return self._runner.may_have_run(inflight)

    def withdraw(self, inflight: InFlight, reason: str) -> None:
        """Cancel what still waits, or has not begun."""
        if isinstance(inflight.carriage, asyncio.Task):
            inflight.carriage.cancel()
        else:
            self._runner.withdraw(inflight)

    def close(self) -> None:
        """Give every call of a function up; threads end when their functions do."""
        self._runner.close("closed by the hub")


def _owner(caller: Caller) -> str:
    """Whose a line is: two tenants may have a caller of the same name each. No name holds a line break."""
    return caller.name if caller.tenant in UNNAMED_TENANTS else f"{caller.tenant}\n{caller.name}"


async def _finish(inflight: InFlight, answer: Awaitable[dict[str, Any]]) -> None:
    try:
        inflight.finish(_result(await answer))
    except Exception:
        inflight.finish(Bug(inflight.target.exposed))  # the crew logs the rest
        raise


def _result(content: dict[str, Any]) -> Result:
    text = content["text"] if list(content) == ["text"] else msgspec.json.encode(content).decode()
    payload = {"content": [{"type": "text", "text": text}], "structuredContent": content, "isError": False}
    return Result(msgspec.Raw(msgspec.json.encode(payload)))


def _describe(server: ServerName, tool: LocalTool) -> Tool:
    definition = {
        "name": tool.name,
        "description": tool.description,
        "inputSchema": tool.input_schema,
        "annotations": tool.annotations,
    }
    raw = {key: msgspec.Raw(msgspec.json.encode(value)) for key, value in definition.items()}
    return Tool.of(server, FeatureName(tool.name), raw)


# -- the built-in tools --------------------------------------------------------------------------------------------


def builtin_tools(journal: Journal, now: Callable[[], float]) -> list[LocalTool]:
    """The tools that every hub has; `now` tells the time in seconds since the epoch."""
    log = ChatLog(journal, now)
    return [
        LocalTool("echo", "Return the text it is given.", _ECHO, _echo, {"readOnlyHint": True}),
        LocalTool(
            "timestamp",
            "Tell the current time, in UTC.",
            {"type": "object", "properties": {}},
            lambda _caller, _arguments: _timestamp(now()),
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


def _echo(_caller: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"text": arguments["text"]}


def _timestamp(seconds: float) -> dict[str, Any]:
    return {"iso": datetime.fromtimestamp(seconds, UTC).isoformat(), "unix": seconds}


class ChatLog:
    """Each caller's own lines, in the journal."""

    def __init__(self, journal: Journal, now: Callable[[], float]) -> None:
        self._journal = journal
        self._now = now

    async def run(self, caller: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Keep the message, if there is one, and return the latest lines, oldest first."""
        if "message" in arguments:
            line = {"role": arguments.get("role", "user"), "message": arguments["message"]}
            content = msgspec.Raw(msgspec.json.encode(line))
            await self._journal.commit([JournalEntry("chat", caller, self._now(), content)])
        entries = await self._journal.latest("chat", caller, int(arguments.get("limit", 20)))
        lines = [{**msgspec.json.decode(entry.content), "at": entry.at} for entry in entries]
        return {"lines": lines}


OPERATORS = ToolRules(is_trusted=True)
"""Functions of this process are the operator's own, and so is what they say of themselves."""


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
        """`tools` are the hub's own. Unless it `is_settled`, who lists them waits a moment for `settle`."""
        self._hub = hub
        self._background = background
        self._registry = registry
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._is_settled = is_settled
        self._notes: tuple[str, ...] = ()
        self.version = registry.version
        """What is shown of the registry."""
        self._given: dict[ServerName, dict[str, Runnable]] = {BUILTIN: {}}
        self._links: dict[ServerName, LocalLink] = {}
        self._left: list[LocalLink] = []
        """Links of removed servers that may still work."""
        self._open(BUILTIN, tools)
        self._unwatch = registry.watch(self._registry_changed)

    # -- functions of this hub alone -------------------------------------------------------------------------------

    def add(self, function: Runnable, server: str = BUILTIN) -> None:
        """Show a function among the tools of a server, which is made for it unless it is `builtin`.

        Raises:
            NameTaken: the server has such a tool, or is no server of functions.
            ValueError: the server's name cannot be one.
        """
        name = parse_server_name(server)
        if name not in self._links and name in self._hub.server_queues:
            raise NameTaken(f"{name} is a server of the configuration: give the functions a server of their own")
        if name in self._links and function.name in self._links[name].names():
            raise NameTaken(f"there is a tool {name}.{function.name} already: remove it, or give this one another name")
        self._given.setdefault(name, {})[function.name] = function
        if name in self._links:
            self._show(name)
        else:
            self._open(name, [])

    def remove(self, name: str, server: str = BUILTIN) -> bool:
        """Take a function of this hub alone away; False if there is none. What it works on may finish."""
        given = self._given.get(ServerName(server), {})
        if given.pop(name, None) is None:
            return False
        if given or server == BUILTIN:
            self._show(ServerName(server))
        else:
            self._close(ServerName(server))
        return True

    # -- showing ---------------------------------------------------------------------------------------------------

    def settle(self, notes: tuple[str, ...]) -> None:
        """Nothing more is waited for; `notes` are for the operator."""
        self._is_settled = True
        self._notes = notes
        self._show(BUILTIN)

    def _registry_changed(self) -> None:
        if threading.get_ident() == self._thread:
            self._show(BUILTIN)
            return
        with suppress(RuntimeError):  # the loop is closed, and nobody lists anything
            self._loop.call_soon_threadsafe(self._show, BUILTIN)

    def _open(self, server: ServerName, tools: list[LocalTool]) -> None:
        server_queue = ServerQueue(server, self._hub.limits)
        runner = Runner(server, self._hub.limits, self._background, server_queue.max_calls)
        link = self._links[server] = LocalLink(server, tools, self._background, runner)
        link.functions = self._functions_of(server)
        server_queue.attach(link)
        self._hub.open_server_queue(server_queue, self._standing(server))

    def _show(self, server: ServerName) -> None:
        link = self._links.get(server)
        if link is not None:
            link.functions = self._functions_of(server)
            self._hub.publish(self._standing(server))

    def _functions_of(self, server: ServerName) -> Mapping[str, Runnable]:
        given = self._given[server]
        if server != BUILTIN:
            return dict(given)
        self.version = self._registry.version  # read first: what is added meanwhile counts as not shown
        return {**self._registry.functions(), **given}

    def _standing(self, server: ServerName) -> ServerStatus:
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

    # -- the end ---------------------------------------------------------------------------------------------------

    def _close(self, server: ServerName) -> None:
        self._left.append(self._links.pop(server))
        del self._given[server]
        self._hub.close_server_queue(server)

    def close(self) -> None:
        """Give every call up, and let the threads go."""
        self._unwatch()
        links, self._links, self._left = (*self._links.values(), *self._left), {}, []
        for link in links:
            link.close()
