"""The tools of one agent: `ToolRegistry`, and `MCPManager`, which keeps the tools of an `mcp.json` in a registry.

The registry has the tools under their names for language models, own functions and MCP tools alike. All servers of a
manager are in one hub. The manager follows changes of their tools, so programs need not list tools at each turn. A
server that fails costs its own tools and a log line.
"""

from __future__ import annotations

import inspect
import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakSet

from isthmus.core.catalog.names import Pair, llm_aliases, llm_table
from isthmus.library.catalog import Catalog
from isthmus.library.errors import (
    LibraryError,
    ServiceClosedError,
    ToolExecutionError,
    ToolNotFoundError,
    ToolRegistryError,
)
from isthmus.library.loop_thread import LoopThread, LoopThreadLock
from isthmus.library.provider_formats import MCP_RESULT_CHARS, OpenAIMode, ToolDef, schema_problem
from isthmus.library.resolver import unregister_service
from isthmus.library.server_clients import MCPClientWrapper, definition_of
from isthmus.library.server_config import MCPConfigLoader
from isthmus.library.service import ToolService
from isthmus.model.names import FeatureName, ServerName

log = logging.getLogger(__name__)

SUGGESTIONS_MAX = 3

_registries: WeakSet[ToolRegistry] = WeakSet()
"""All registries of the process, to reset their locks after a fork."""


class ToolRegistry:
    """Tools by name, in order of registration."""

    def __init__(self, tools: Iterable[ToolDef] = ()) -> None:
        self._lock = threading.Lock()
        _registries.add(self)
        # Replaced and never changed, so readers need no lock and can iterate safely.
        self._tools: Mapping[str, ToolDef] = {}
        self.register_many(tools)

    # -- reading -------------------------------------------------------------------------------------------------------

    @property
    def names(self) -> list[str]:
        """The names of all tools."""
        return list(self._tools)

    def get(self, name: str) -> ToolDef | None:
        """The tool with this name, or None; underscores may replace hyphens."""
        tools = self._tools
        return tools.get(name) or tools.get(llm_aliases(tools).get(name, ""))

    def original_of(self, name: str) -> tuple[str, str]:
        """The server of a tool, and the server's name for it.

        Raises:
            ToolNotFoundError: there is no such tool, or it has no server.
        """
        origin = self._find(name).origin
        if origin is None:
            raise ToolNotFoundError(name, hint="It is registered, but not as a tool of an MCP server.")
        return origin

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.get(name) is not None

    def __iter__(self) -> Iterator[ToolDef]:
        return iter(self._tools.values())

    def __len__(self) -> int:
        return len(self._tools)

    # -- registering ---------------------------------------------------------------------------------------------------

    def register(self, tool: ToolDef) -> None:
        """Add a tool.

        Raises:
            ToolRegistryError: its name is taken.
        """
        self.register_many([tool])

    def register_many(self, tools: Iterable[ToolDef]) -> None:
        """Add all tools, or none of them.

        Raises:
            ToolRegistryError: a name is taken, or two tools have the same.
        """
        added = list(tools)
        with self._lock:
            known = dict(self._tools)
            for tool in added:
                if tool.name in known:
                    raise ToolRegistryError(f"The name {tool.name!r} is taken: register the tool under another one.")
                known[tool.name] = tool
            self._tools = known

    def unregister(self, name: str) -> None:
        """Remove a tool.

        Raises:
            ToolNotFoundError: no tool has this name.
        """
        with self._lock:
            removed = self._find(name)
            self._tools = {known: tool for known, tool in self._tools.items() if tool is not removed}

    def exchange(self, removed: Iterable[ToolDef], added: Iterable[ToolDef]) -> list[ToolDef]:
        """Remove and add tools in one step; return the added ones whose names are taken."""
        with self._lock:
            ids = {id(tool) for tool in removed}
            known = {name: tool for name, tool in self._tools.items() if id(tool) not in ids}
            refused = [tool for tool in added if known.setdefault(tool.name, tool) is not tool]
            self._tools = known
        return refused

    # -- calling -------------------------------------------------------------------------------------------------------

    def call_tool(self, name: str, arguments: Mapping[str, Any] | None = None) -> Any:
        """Call a tool and block; a text result is cut to the tool's `max_result_chars`.

        Raises:
            ToolNotFoundError: there is no such tool.
            ToolExecutionError: it failed.
            WrongThreadError: the caller is on the hub's own loop; await `acall_tool` there.
        """
        tool = self._find(name)
        try:
            value = tool.func(**_arguments(tool, arguments))
            if inspect.isawaitable(value):
                if inspect.iscoroutine(value):
                    value.close()  # else Python warns that it was never awaited
                raise ToolExecutionError(tool.name, f"{tool.name} is an async function: await `acall_tool` instead.")
            return _cut(tool, value)
        except LibraryError:
            raise
        except Exception as error:
            raise _failure(tool, error) from error

    async def acall_tool(self, name: str, arguments: Mapping[str, Any] | None = None) -> Any:
        """Await a tool's `async_func`; a tool without one blocks."""
        tool = self._find(name)
        try:
            value = (tool.async_func or tool.func)(**_arguments(tool, arguments))
            return _cut(tool, await value if inspect.isawaitable(value) else value)
        except LibraryError:
            raise
        except Exception as error:
            raise _failure(tool, error) from error

    def _find(self, name: str) -> ToolDef:
        tool = self.get(name)
        if tool is None:
            raise ToolNotFoundError(name, get_close_matches(str(name), self._tools, SUGGESTIONS_MAX))
        return tool

    # -- for language models -------------------------------------------------------------------------------------------

    def to_openai_schema(self, mode: OpenAIMode = "responses") -> list[dict[str, Any]]:
        """All tools for OpenAI's Responses API, or, with `mode="chat_completions"`, for Chat Completions."""
        return [tool.to_openai_schema(mode) for tool in self]

    def to_anthropic_schema(self) -> list[dict[str, Any]]:
        """All tools for Anthropic's Messages API."""
        return [tool.to_anthropic_schema() for tool in self]

    def to_gemini_schema(self) -> list[dict[str, Any]]:
        """All tools for Gemini."""
        declarations = [tool.to_gemini_schema() for tool in self]
        return [{"functionDeclarations": declarations}] if declarations else []


def _arguments(tool: ToolDef, arguments: object) -> dict[str, Any]:
    given = arguments or {}
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise ToolExecutionError(tool.name, f"The arguments of {tool.name} must be a dictionary with string keys.")
    return dict(given)


def _cut(tool: ToolDef, value: Any) -> Any:
    return tool.truncate_result(value) if isinstance(value, str) else value


def _failure(tool: ToolDef, error: Exception) -> ToolExecutionError:
    return ToolExecutionError(tool.name, f"{tool.name} failed: {type(error).__name__}: {error}")


def _after_fork() -> None:
    """In a forked child: a lost thread may hold a lock."""
    for registry in _registries:
        registry._lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class MCPManager:
    """Connects the servers of an `mcp.json` and keeps their tools in a registry."""

    def __init__(self, workspace_root: str | Path = ".", *, config_path: str | Path | None = None) -> None:
        """Reads nothing before `initialize`."""
        self._workspace_root = workspace_root
        self._config_path = config_path
        self._clients: dict[str, MCPClientWrapper] = {}
        self._service: ToolService | None = None
        self._tools: _RegisteredTools | None = None
        self._changing = LoopThreadLock()

    @property
    def connected_servers(self) -> list[str]:
        """The servers that are connected now."""
        return [name for name, client in self._clients.items() if client.is_connected]

    @property
    def failures(self) -> dict[str, str]:
        """Servers that are not connected, and why. The hub reconnects in the background."""
        with suppress(ServiceClosedError):  # it is just opening, or the program is ending
            return self._service.failures if self._service is not None else {}
        return {}

    async def initialize(self, registry: ToolRegistry) -> None:
        """Read the configuration, connect all servers and register their tools.

        Returns when each server has connected or failed; see `failures`. A second call starts over.
        """
        configs = MCPConfigLoader.load(self._config_path, self._workspace_root)
        if not configs:
            log.debug("No MCP servers are configured.")
        if configs or self._service is not None:

            async def begin() -> None:
                async with self._changing:
                    await self._end()
                    if not configs:
                        return
                    self._service = service = ToolService()
                    self._clients = {config.name: MCPClientWrapper(config, service=service) for config in configs}
                    self._tools = _RegisteredTools(registry, service, self._clients, self._make_tool_def)
                    try:
                        await service.initialize({"mcp_servers": configs})
                        unregister_service(service)  # private to this manager: not the default of the process
                        self._tools.open()
                    except BaseException:
                        await self._end()
                        raise

            await LoopThread.shared().run(begin())

    async def shutdown(self) -> None:
        """Remove the tools from the registry and close every connection, unless that is done."""
        if self._service is not None:

            async def finish() -> None:
                async with self._changing:
                    await self._end()

            await LoopThread.shared().run(finish())

    # On the loop thread: cancelling the caller leaves nothing half done there.

    async def _end(self) -> None:
        service, tools = self._service, self._tools
        self._service, self._tools, self._clients = None, None, {}
        if tools is not None:
            tools.close()
        if service is not None:
            with suppress(ServiceClosedError):
                await service.shutdown()

    async def __aenter__(self) -> MCPManager:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.shutdown()

    def _make_tool_def(
        self, server_name: str, client: MCPClientWrapper, tool: Mapping[str, Any], name: str | None = None
    ) -> ToolDef | None:
        """Make a registry entry of an MCP definition; None, with a WARNING, if the definition is invalid.

        `name` defaults to `mcp_{server}_{tool}`, made legal.
        """
        original, schema = tool.get("name"), tool.get("inputSchema")
        if not isinstance(original, str) or not original:
            log.warning("A tool of MCP server %s has no name and was skipped.", server_name)
            return None
        schema = {"type": "object", "properties": {}} if schema is None else schema
        problem = schema_problem(schema)
        if problem is not None:
            log.warning("Tool %r of MCP server %s was skipped: invalid schema: %s", original, server_name, problem)
            return None

        # Cut here and not only in the registry: programs also call these directly for language models.
        def func(**arguments: Any) -> str:
            return made.truncate_result(client.call_tool_blocking(original, arguments))

        async def async_func(**arguments: Any) -> str:
            return made.truncate_result(await client.call_tool(original, arguments))

        pair: Pair = (ServerName(server_name), FeatureName(original))
        text = tool.get("description")
        prefix = f"[MCP:{server_name}]"
        made = ToolDef(
            name=name or llm_table([pair])[pair],
            description=f"{prefix} {text}" if isinstance(text, str) else prefix,
            input_schema=dict(schema),
            func=func,
            async_func=async_func,
            max_result_chars=MCP_RESULT_CHARS,
            origin=(server_name, original),
        )
        return made


MakeToolDef = Callable[[str, MCPClientWrapper, Mapping[str, Any], str | None], ToolDef | None]


class _ServerTool(NamedTuple):
    """A tool of a server, with its last definition."""

    pair: tuple[str, str]
    digest: bytes
    definition: ToolDef | None
    """None if the definition is invalid."""


class _RegisteredTools:
    """The tools of a manager in a registry. On the loop thread only."""

    def __init__(
        self, registry: ToolRegistry, service: ToolService, clients: Mapping[str, MCPClientWrapper], make: MakeToolDef
    ) -> None:
        self._registry = registry
        self._service = service
        self._clients = clients
        self._make = make
        self._tools: dict[str, _ServerTool] = {}
        """By name in the registry."""
        self._refused: set[str] = set()
        """Names that other tools of the registry already have."""
        self._counts: dict[str, int | None] = {}
        """The last logged number of tools of each server; None if it is not connected."""
        self._notes: dict[str, tuple[str, ...]] = {}
        self._unwatch: Callable[[], None] | None = None

    def open(self) -> None:
        """Register the current tools and follow changes."""
        self._unwatch = self._service.watch(self.update)
        self.update()

    def close(self) -> None:
        """Remove all tools."""
        if self._unwatch is not None:
            with suppress(ServiceClosedError):  # in a forked worker there is nothing to unwatch
                self._unwatch()
        self._registry.exchange([tool.definition for tool in self._tools.values() if tool.definition is not None], ())
        self._tools = {}

    def update(self) -> None:
        """Make the registry match the current tools of the servers."""
        try:
            catalog = self._service._catalog_now()
            notes = self._service.notes
        except ServiceClosedError:
            return  # closing: its servers disconnect one after the other
        for server in self._clients:
            for note in notes.get(server, ()):
                if note not in self._notes.get(server, ()):
                    log.warning("MCP server %s: %s", server, note)
        self._notes = notes
        current: dict[str, _ServerTool] = {}
        for entry in catalog.entries.values():
            client = self._clients.get(entry.server)
            if client is None:
                continue
            name, pair, digest = entry.llm_name, (str(entry.server), str(entry.name)), entry.digest
            tool = self._tools.get(name)
            if tool is None or (tool.pair, tool.digest) != (pair, digest):
                tool = _ServerTool(pair, digest, self._make(entry.server, client, definition_of(entry), name))
            current[name] = tool
        removed = [
            tool.definition for name, tool in self._tools.items() if tool.definition and current.get(name) is not tool
        ]
        # Tools that the program has removed stay out; a taken name may be free by now.
        added = [
            tool.definition
            for name, tool in current.items()
            if tool.definition is not None and (self._tools.get(name) is not tool or name in self._refused)
        ]
        self._tools = current
        refused = self._registry.exchange(removed, added) if removed or added else []
        for name in {definition.name for definition in refused} - self._refused:
            server, own_name = current[name].pair
            log.warning("Tool %r of MCP server %s was skipped: the name %s is taken.", own_name, server, name)
        self._refused = {definition.name for definition in refused}
        self._log_counts(catalog)

    def _log_counts(self, catalog: Catalog) -> None:
        registered = Counter(
            tool.pair[0] for name, tool in self._tools.items() if tool.definition and name not in self._refused
        )
        for server in self._clients:
            count = None if server in catalog.missing else registered[server]
            if server not in self._counts or self._counts[server] != count:
                why = catalog.missing.get(server, "")
                if count is not None:
                    event = "connected" if self._counts.get(server) is None else "changed its list"
                    log.info("MCP server %s %s; tools: %d", server, event, count)
                elif server in self._counts:
                    log.warning("MCP server %s was lost; reconnecting: %s", server, why)
                else:
                    log.error("MCP server %s cannot be reached, so its tools are missing: %s", server, why)
            self._counts[server] = count
