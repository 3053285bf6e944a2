"""The MCP servers of one agent: `MCPConfigLoader` finds and reads an `mcp.json`, `MCPManager` connects its servers.

All servers are in one hub. The manager keeps their tools in the agent's registry and follows changes, so nobody has to
list tools again at each turn. A server that fails costs its own tools and a log line. The loader reads every form of
`mcp.json` that the hub understands; it logs problems instead of raising, since an agent should start without them too.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from isthmus.config import values
from isthmus.config.client_files import HostContext
from isthmus.config.dialects import STANDARD
from isthmus.config.files import Document, home_folder, read_document, resolve_path
from isthmus.config.findings import ConfigError
from isthmus.config.importing import load_servers
from isthmus.config.servers import LoadedServers
from isthmus.core.catalog.names import Pair, llm_table
from isthmus.core.settings import Limits
from isthmus.library.catalog import Catalog
from isthmus.library.client import MCPClientWrapper, definition_of
from isthmus.library.errors import ServiceClosedError
from isthmus.library.function_schemas import MCP_RESULT_CHARS, ToolDef, schema_problem
from isthmus.library.loop_thread import LoopThread, LoopThreadLock
from isthmus.library.registry import ToolRegistry
from isthmus.library.resolver import unregister_service
from isthmus.library.server_config import TIMEOUT_SECONDS, TIMEOUT_SECONDS_MIN, MCPServerConfig
from isthmus.library.service import ToolService
from isthmus.model.names import FeatureName, ServerName
from isthmus.upstream.settings import HttpSettings, ServerSettings, StdioSettings, WebSocketSettings

log = logging.getLogger(__name__)

FILE_VARIABLE = "EXCELMANUS_MCP_CONFIG"
FILE_NAME = "mcp.json"
HOME_FILE = ".excelmanus/mcp.json"
ROOT = "mcpServers"
LIMITS = Limits(call_seconds=TIMEOUT_SECONDS)
"""Defaults of entries: an agent's timeout differs from a hub's."""


class MCPConfigLoader:
    """Finds and reads the servers of an `mcp.json`."""

    @staticmethod
    def load(config_path: str | Path | None = None, workspace_root: str | Path = ".") -> list[MCPServerConfig]:
        """Read the servers of the first file that exists.

        The places are `EXCELMANUS_MCP_CONFIG`, `config_path`, `mcp.json` in the workspace, and
        `~/.excelmanus/mcp.json`. Returns an empty list without a readable file. Skipped entries are logged as WARNING,
        an unreadable file as ERROR.
        """
        workspace = Path(workspace_root).absolute()
        file = next(_existing(config_path, workspace), None)
        if file is None:
            return []
        try:
            return _configs_of(read_document(file), _around(workspace))
        except ConfigError as error:
            log.error("%s is invalid, so there are no MCP servers: %s", file, error)
            return []

    @staticmethod
    def _parse_config(data: Any) -> list[MCPServerConfig]:
        """The servers of a parsed file; invalid ones are skipped with a WARNING."""
        if not isinstance(data, Mapping):
            log.error("MCP servers must be in an object under %s, not in %s.", ROOT, type(data).__name__)
            return []
        try:
            return _configs_of(Document(Path.cwd() / FILE_NAME, dict(data), STANDARD), _around(Path.cwd()))
        except ConfigError as error:
            log.error("The MCP servers are invalid: %s", error)
            return []

    @staticmethod
    def _validate_server_config(entry: Any) -> MCPServerConfig | None:
        """One server with its `name` among its fields; None, with a WARNING, if it is invalid."""
        name = entry.get("name") if isinstance(entry, Mapping) else None
        if not isinstance(name, str):
            log.warning("An MCP server without a name was skipped.")
            return None
        rest = {key: value for key, value in entry.items() if key != "name"}
        return next(iter(MCPConfigLoader._parse_config({ROOT: {name: rest}})), None)


def _existing(named: str | Path | None, workspace: Path) -> Iterator[Path]:
    """The existing files, the first choice first; log those that were named but are not files."""
    for source, path in ((FILE_VARIABLE, os.environ.get(FILE_VARIABLE)), ("config_path", named)):
        if path:
            file = resolve_path(str(path), Path.cwd(), home_folder())
            if _is_file(file):
                yield file
            else:
                log.warning("%s is %s, which is not a file: trying the next place for MCP servers.", source, file)
    for file in (workspace / FILE_NAME, home_folder() / HOME_FILE):
        if _is_file(file):
            yield file
        elif os.path.lexists(file):  # a folder or a broken link: probably a mistake
            log.warning("%s is not a file: trying the next place for MCP servers.", file)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # the path is too long, or a folder of it is not accessible
        return False


def _around(workspace: Path) -> HostContext:
    return HostContext(os.environ, workspace, home_folder())


def _configs_of(document: Document, around: HostContext) -> list[MCPServerConfig]:
    roster = load_servers(_in_seconds(_with_servers_only(document)), around, LIMITS)
    for finding in (*document.warnings, *roster.findings):
        log.warning("%s", finding)
    folder = str(document.base(around.home, around.cwd))
    found = (_config(name, settings, roster, folder) for name, settings in roster.servers.items())
    return [config for config in found if config is not None]


def _with_servers_only(document: Document) -> Document:
    """Remove a `mcpServers` member that cannot hold servers, and log it."""
    held = document.table.get(ROOT, {})
    if isinstance(held, dict) or (isinstance(held, list) and held):
        return document
    found = "an empty list" if held == [] else values.quoted(held)
    log.warning("%s: %s must be an object of servers, not %s.", document.file, ROOT, found)
    return replace(document, table={key: value for key, value in document.table.items() if key != ROOT})


def _in_seconds(document: Document) -> Document:
    """The same with seconds for timeouts, unless its program counts otherwise; a hub would have to guess."""
    if document.dialect.unit != "unsaid":
        return document
    return replace(document, dialect=replace(document.dialect, unit="seconds"))


def _config(name: ServerName, settings: ServerSettings, roster: LoadedServers, folder: str) -> MCPServerConfig | None:
    if settings.disabled:
        log.info("MCP server %s is disabled and was skipped.", name)
        return None
    written = roster.entries[name].fields
    timeout = _timeout(name, settings)
    match settings.reach:
        case StdioSettings(command=command, args=args, env=env, cwd=cwd):
            return MCPServerConfig(
                name,
                transport="stdio",
                command=command,
                args=list(args) if "args" in written else None,
                env=dict(env) if "env" in written or env else None,
                cwd=cwd or folder,  # relative paths among its arguments start there too
                url=_idle(written, "url"),
                timeout=timeout,
                base=settings,
            )
        case HttpSettings(url=url, headers=headers) | WebSocketSettings(url=url, headers=headers) as reach:
            transport, user_headers = _carried(reach)
            return MCPServerConfig(
                name,
                transport=transport,
                command=_idle(written, "command"),
                url=url,
                headers=dict(headers),
                timeout=timeout,
                user_headers=user_headers,
                base=settings,
            )
        case _:
            log.warning(
                "MCP server %s has a transport that only ToolService.initialize(path) supports, and was skipped.",
                name,
            )
            return None


def _idle(written: Mapping[str, object], key: str) -> str | None:
    """A member for another transport than the chosen one, as written."""
    value = written.get(key)
    return value if isinstance(value, str) else None


def _carried(reach: HttpSettings | WebSocketSettings) -> tuple[str, tuple[str, ...]]:
    return (reach.carrier, reach.user_headers) if isinstance(reach, HttpSettings) else ("ws", ())


def _timeout(name: ServerName, settings: ServerSettings) -> float:
    seconds = float(max(settings.timeout, TIMEOUT_SECONDS_MIN))
    if seconds != settings.timeout:
        log.warning("MCP server %s has a timeout of %g seconds; %g is used instead.", name, settings.timeout, seconds)
    return int(seconds) if seconds.is_integer() else seconds


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
            await LoopThread.shared().run(self._begin(registry, configs))

    async def shutdown(self) -> None:
        """Remove the tools from the registry and close every connection, unless that is done."""
        if self._service is not None:

            async def finish() -> None:
                async with self._changing:
                    await self._end()

            await LoopThread.shared().run(finish())

    # On the loop thread: cancelling the caller leaves nothing half done there.

    async def _begin(self, registry: ToolRegistry, configs: list[MCPServerConfig]) -> None:
        async with self._changing:
            await self._end()
            if not configs:
                return
            self._service = service = ToolService()
            self._clients = {config.name: MCPClientWrapper(config, service=service) for config in configs}
            self._tools = _RegisteredTools(registry, service, self._clients, self._make_tool_def)
            try:
                await service.initialize({"mcp_servers": configs})
                unregister_service(service)  # private to this manager: not the default service of the process
                self._tools.open()
            except BaseException:
                await self._end()
                raise

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

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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


class _Held(NamedTuple):
    """A tool of a server, with its last definition."""

    pair: tuple[str, str]
    digest: bytes
    tool: ToolDef | None
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
        self._held: dict[str, _Held] = {}
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
        self._registry.exchange([held.tool for held in self._held.values() if held.tool is not None], ())
        self._held = {}

    def update(self) -> None:
        """Make the registry match the current tools of the servers."""
        try:
            catalog = self._service._catalog_now()
            self._log_notes(self._service.notes)
        except ServiceClosedError:
            return  # closing: its servers disconnect one after the other
        self._exchange(dict(self._wanted(catalog)))
        self._log_counts(catalog)

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
        # Tools that the program has removed stay out; a taken name may be free by now.
        new = {name: held for name, held in wanted.items() if self._held.get(name) is not held or name in self._refused}
        come = [held.tool for held in new.values() if held.tool is not None]
        self._held = wanted
        refused = self._registry.exchange(gone, come) if gone or come else []
        for name in {tool.name for tool in refused} - self._refused:
            server, tool = wanted[name].pair
            log.warning("Tool %r of MCP server %s was skipped: the name %s is taken.", tool, server, name)
        self._refused = {tool.name for tool in refused}

    # -- logging -------------------------------------------------------------------------------------------------------

    def _log_notes(self, notes: Mapping[str, tuple[str, ...]]) -> None:
        for server in self._clients:
            for note in notes.get(server, ()):
                if note not in self._notes.get(server, ()):
                    log.warning("MCP server %s: %s", server, note)
        self._notes = dict(notes)

    def _log_counts(self, catalog: Catalog) -> None:
        registered = Counter(
            held.pair[0] for name, held in self._held.items() if held.tool and name not in self._refused
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
