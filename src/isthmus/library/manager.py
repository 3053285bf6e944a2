"""The MCP servers of one agent: connected all at once, and their tools kept in the agent's registry.

All servers are in one hub. Tools that come later are registered when they come, and those that go are taken out, so
that nobody lists anything again at each turn. A server that fails costs its own tools and a line in the log.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from isthmus.core.catalog.names import Pair, llm_table
from isthmus.library.catalog import Catalog
from isthmus.library.errors import ServiceClosedError
from isthmus.library.forms import MCP_RESULT_CHARS, ToolDef, problem_of
from isthmus.library.loader import MCPConfigLoader
from isthmus.library.owner import Owner, OwnersLock
from isthmus.library.registry import ToolRegistry
from isthmus.library.running import ended
from isthmus.library.servers import MCPServerConfig
from isthmus.library.service import ToolService
from isthmus.library.wrapper import MCPClientWrapper, definition_of
from isthmus.model.names import FeatureName, ServerName

log = logging.getLogger(__name__)


class MCPManager:
    """Connects the servers of an `mcp.json`, and keeps their tools in a registry."""

    def __init__(self, workspace_root: str | Path = ".", *, config_path: str | Path | None = None) -> None:
        """Nothing is read before `initialize`."""
        self._workspace_root = workspace_root
        self._config_path = config_path
        self._clients: dict[str, MCPClientWrapper] = {}
        self._service: ToolService | None = None
        self._stock: _Stock | None = None
        self._changing = OwnersLock()

    @property
    def connected_servers(self) -> list[str]:
        """The servers that are there now."""
        return [name for name, client in self._clients.items() if client.is_connected]

    @property
    def failures(self) -> dict[str, str]:
        """The servers that are not there, and why; they are tried again in the background."""
        with suppress(ServiceClosedError):  # it is just beginning, or the program is ending
            return self._service.failures if self._service is not None else {}
        return {}

    async def initialize(self, registry: ToolRegistry) -> None:
        """Read the configuration, connect every server and register its tools; return when each has come or failed.

        A server that fails stops nobody: see `failures`. Once more, it begins anew.
        """
        configs = MCPConfigLoader.load(self._config_path, self._workspace_root)
        if not configs:
            log.debug("No MCP servers are configured.")
        if configs or self._service is not None:
            await Owner.shared().run(self._begin(registry, configs))

    async def shutdown(self) -> None:
        """Take the tools out of the registry and close every connection; nothing happens if that is done."""
        if self._service is not None:
            await Owner.shared().run(self._finish())

    # Both on the owner's loop: whoever cancels or leaves the one that waits leaves nothing half done there.

    async def _begin(self, registry: ToolRegistry, configs: list[MCPServerConfig]) -> None:
        async with self._changing:
            await self._end()
            if not configs:
                return
            self._service = service = ToolService()
            self._clients = {config.name: MCPClientWrapper(config, service=service) for config in configs}
            self._stock = _Stock(registry, service, self._clients, self._make_tool_def)
            try:
                await service.initialize({"mcp_servers": configs})
                ended(service)  # nobody is to find it who looks for the service of the process
                self._stock.open()
            except BaseException:
                await self._end()
                raise

    async def _finish(self) -> None:
        async with self._changing:
            await self._end()

    async def _end(self) -> None:
        service, stock = self._service, self._stock
        self._service, self._stock, self._clients = None, None, {}
        if stock is not None:
            stock.close()
        if service is not None:
            with suppress(ServiceClosedError):
                await service.shutdown()

    async def __aenter__(self) -> MCPManager:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.shutdown()

    def _make_tool_def(
        self, server_name: str, client: MCPClientWrapper, tool: Mapping[str, Any], name: str | None = None
    ) -> ToolDef | None:
        """A tool as the protocol describes it, for a registry; None, with a WARNING, if it cannot be used.

        `name` is what it is called there; by itself it is `mcp_{server}_{tool}`, made legal.
        """
        original, schema = tool.get("name"), tool.get("inputSchema")
        if not isinstance(original, str) or not original:
            log.warning("A tool of MCP server %s has no name, and is left out.", server_name)
            return None
        schema = {"type": "object", "properties": {}} if schema is None else schema
        problem = problem_of(schema)
        if problem is not None:
            log.warning("Tool %r of MCP server %s is left out: its schema is wrong: %s", original, server_name, problem)
            return None

        # Cut here already: whoever calls these without the registry shows a language model the result all the same.
        def func(**arguments: Any) -> str:
            return made.truncate_result(client.call_tool_blocking(original, arguments))

        async def async_func(**arguments: Any) -> str:
            return made.truncate_result(await client.call_tool(original, arguments))

        made = ToolDef(
            name=name or _name_alone(server_name, original),
            description=_described(server_name, tool.get("description")),
            input_schema=dict(schema),
            func=func,
            async_func=async_func,
            max_result_chars=MCP_RESULT_CHARS,
            origin=(server_name, original),
        )
        return made


def _name_alone(server: str, tool: str) -> str:
    pair: Pair = (ServerName(server), FeatureName(tool))
    return llm_table([pair])[pair]


def _described(server: str, description: object) -> str:
    return f"[MCP:{server}] {description}" if isinstance(description, str) else f"[MCP:{server}]"


MakeToolDef = Callable[[str, MCPClientWrapper, Mapping[str, Any], str | None], ToolDef | None]


class _Held(NamedTuple):
    """A tool of a server, as it was last described."""

    pair: tuple[str, str]
    digest: bytes
    tool: ToolDef | None
    """None if it cannot be used."""


class _Stock:
    """The tools that a manager has in a registry; everything happens on the owner's loop."""

    def __init__(
        self, registry: ToolRegistry, service: ToolService, clients: Mapping[str, MCPClientWrapper], make: MakeToolDef
    ) -> None:
        self._registry = registry
        self._service = service
        self._clients = clients
        self._make = make
        self._held: dict[str, _Held] = {}
        """By the name in the registry."""
        self._refused: set[str] = set()
        """Names that somebody else has, who was there first."""
        self._counts: dict[str, int | None] = {}
        """By server: how many tools it was last said to have; None if it is not there."""
        self._notes: dict[str, tuple[str, ...]] = {}
        self._unwatch: Callable[[], None] | None = None

    def open(self) -> None:
        """Put in what there is, and from now on whatever comes."""
        self._unwatch = self._service.watch(self.follow)
        self.follow()

    def close(self) -> None:
        """Take all of them out."""
        if self._unwatch is not None:
            with suppress(ServiceClosedError):  # in a forked worker, nobody is watched
                self._unwatch()
        self._registry.exchange([held.tool for held in self._held.values() if held.tool is not None], ())
        self._held = {}

    def follow(self) -> None:
        """Make the registry hold what the servers offer now."""
        try:
            catalog = self._service._catalog_now()
            self._tell_notes(self._service.notes)
        except ServiceClosedError:
            return  # its servers go one after the other, and nobody is to be told
        self._exchange(dict(self._wanted(catalog)))
        self._tell(catalog)

    def _wanted(self, catalog: Catalog) -> Iterator[tuple[str, _Held]]:
        for entry in catalog.entries.values():
            client = self._clients.get(entry.server)
            if client is None:
                continue
            name, pair, digest = entry.llm_name, (str(entry.server), str(entry.name)), entry.digest
            held = self._held.get(name)
            if held is None or (held.pair, held.digest) != (pair, digest):
                held = _Held(pair, digest, self._make(entry.server, client, definition_of(entry), name))
            yield name, held

    def _exchange(self, wanted: dict[str, _Held]) -> None:
        gone = [held.tool for name, held in self._held.items() if held.tool and wanted.get(name) is not held]
        # What somebody has taken out of the registry stays out; a name that was taken may be free by now.
        new = {name: held for name, held in wanted.items() if self._held.get(name) is not held or name in self._refused}
        come = [held.tool for held in new.values() if held.tool is not None]
        self._held = wanted
        refused = self._registry.exchange(gone, come) if gone or come else []
        for name in {tool.name for tool in refused} - self._refused:
            server, tool = wanted[name].pair
            log.warning("Tool %r of MCP server %s is left out: the name %s is taken.", tool, server, name)
        self._refused = {tool.name for tool in refused}

    # -- telling -------------------------------------------------------------------------------------------------------

    def _tell_notes(self, notes: Mapping[str, tuple[str, ...]]) -> None:
        for server in self._clients:
            for note in notes.get(server, ()):
                if note not in self._notes.get(server, ()):
                    log.warning("MCP server %s: %s", server, note)
        self._notes = dict(notes)

    def _tell(self, catalog: Catalog) -> None:
        registered = Counter(
            held.pair[0] for name, held in self._held.items() if held.tool and name not in self._refused
        )
        for server in self._clients:
            count = None if server in catalog.missing else registered[server]
            if server not in self._counts or self._counts[server] != count:
                self._say(server, count, catalog.missing.get(server, ""))
            self._counts[server] = count

    def _say(self, server: str, count: int | None, why: str) -> None:
        known = self._counts.get(server)
        if count is not None:
            log.info("MCP server %s %s; tools: %d", server, "connected" if known is None else "changed its list", count)
        elif server in self._counts:
            log.warning("MCP server %s was lost, and is tried again: %s", server, why)
        else:
            log.error("MCP server %s cannot be reached, so that its tools are missing: %s", server, why)
