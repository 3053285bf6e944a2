"""Tools that live in this process: the hub's own, and functions of the program's, behind the same link as any server's.

`builtin.echo` and `builtin.timestamp` answer at once; `builtin.chat_log` keeps a caller's own lines in the journal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Set
from datetime import UTC, datetime
from typing import Any

import msgspec

from isthmus.core.background import BackgroundTasks
from isthmus.core.calls.inflight import InFlight
from isthmus.core.ports.journal import Entry, Journal
from isthmus.model.callers import Caller
from isthmus.model.faults import Bug, NotConnected
from isthmus.model.features import Ability, Tool
from isthmus.model.names import FeatureName, ServerName
from isthmus.model.outcomes import Result
from isthmus.model.relay import DEFAULT_TENANT
from isthmus.upstream.runner import Runner
from isthmus.upstream.signatures import Runnable

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
    """Runs what this process has: tools of the hub's own, and functions. Nothing can be lost on the way.

    `functions` are replaced as a whole by whoever made the link; a tool of the hub's own comes before a function.
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
            await self._journal.commit([Entry("chat", caller, self._now(), content)])
        entries = await self._journal.latest("chat", caller, int(arguments.get("limit", 20)))
        lines = [{**msgspec.json.decode(entry.content), "at": entry.at} for entry in entries]
        return {"lines": lines}
