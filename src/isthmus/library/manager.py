"""The MCP servers of one agent: connected all at once, and their tools kept in the agent's registry.

All servers are in one hub. Tools that come later are registered when they come, and those that go are taken out, so
that nobody lists anything again at each turn. A server that fails costs its own tools and a line in the log.
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
from isthmus.config.dialects.clients import STANDARD
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

FILE_VARIABLE = "EXCELMANUS_MCP_CONFIG"
FILE_NAME = "mcp.json"
HOME_FILE = ".excelmanus/mcp.json"
ROOT = "mcpServers"
LIMITS = Limits(call_seconds=TIMEOUT_SECONDS)
"""What holds for entries that say nothing: those of an agent have another default than those of a hub."""


class MCPConfigLoader:
    """Finds and reads the servers of an `mcp.json`."""

    @staticmethod
    def load(config_path: str | Path | None = None, workspace_root: str | Path = ".") -> list[MCPServerConfig]:
        """The servers of the first file that there is; none if there is no file, or none that can be read.

        Looked for are what `EXCELMANUS_MCP_CONFIG` names, `config_path`, `mcp.json` in the workspace, and
        `~/.excelmanus/mcp.json`. What had to be left out is a WARNING in the log, a file that cannot be read an ERROR.
        """
        workspace = Path(workspace_root).absolute()
        file = next(_existing(config_path, workspace), None)
        if file is None:
            return []
        try:
            return _configs_of(read_document(file), _around(workspace))
        except ConfigError as error:
            log.error("%s cannot be used, so that there are no MCP servers: %s", file, error)
            return []

    @staticmethod
    def _parse_config(data: Any) -> list[MCPServerConfig]:
        """The servers of a file's contents; those that cannot be used are left out, with a WARNING."""
        if not isinstance(data, Mapping):
            log.error("MCP servers must be in a table under %s, not in %s.", ROOT, type(data).__name__)
            return []
        try:
            return _configs_of(Document(Path.cwd() / FILE_NAME, dict(data), STANDARD), _around(Path.cwd()))
        except ConfigError as error:
            log.error("There are no MCP servers: %s", error)
            return []

    @staticmethod
    def _validate_server_config(entry: Any) -> MCPServerConfig | None:
        """One server, its `name` among its fields; None, with a WARNING, if it cannot be used."""
        name = entry.get("name") if isinstance(entry, Mapping) else None
        if not isinstance(name, str):
            log.warning("An MCP server must have a name, and is left out.")
            return None
        rest = {key: value for key, value in entry.items() if key != "name"}
        return next(iter(MCPConfigLoader._parse_config({ROOT: {name: rest}})), None)


def _existing(named: str | Path | None, workspace: Path) -> Iterator[Path]:
    """The files that there are, the first choice first; of one that was named and is not there, or is none, tell."""
    for source, path in ((FILE_VARIABLE, os.environ.get(FILE_VARIABLE)), ("config_path", named)):
        if path:
            file = resolve_path(str(path), Path.cwd(), home_folder())
            if _is_file(file):
                yield file
            else:
                log.warning("%s names %s, which is not a file: looking elsewhere for MCP servers.", source, file)
    for file in (workspace / FILE_NAME, home_folder() / HOME_FILE):
        if _is_file(file):
            yield file
        elif os.path.lexists(file):  # a folder, or a link that leads nowhere: somebody meant it to be one
            log.warning("%s is not a file: looking elsewhere for MCP servers.", file)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a path that is too long, or leads through a folder that is not ours to enter
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
    """The same without what stands where servers should be and holds none; of that, tell."""
    held = document.table.get(ROOT, {})
    if isinstance(held, dict) or (isinstance(held, list) and held):
        return document
    found = "an empty list" if held == [] else values.quoted(held)
    log.warning("%s: %s must be a table of servers, not %s.", document.file, ROOT, found)
    return replace(document, table={key: value for key, value in document.table.items() if key != ROOT})


def _in_seconds(document: Document) -> Document:
    """The same with seconds for timeouts, unless its program counts otherwise; a hub would have to guess."""
    if document.dialect.unit != "unsaid":
        return document
    return replace(document, dialect=replace(document.dialect, unit="seconds"))


def _config(name: ServerName, settings: ServerSettings, roster: LoadedServers, folder: str) -> MCPServerConfig | None:
    if settings.disabled:
        log.info("MCP server %s is disabled, and is left out.", name)
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
                cwd=cwd or folder,  # where relative paths among its arguments begin, too
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
                "MCP server %s is neither started nor dialled as one, and is left out: ToolService.initialize(path) "
                "takes it.",
                name,
            )
            return None


def _idle(written: Mapping[str, object], key: str) -> str | None:
    """What a file says of the way that its word for the transport does not mean: kept as it is written."""
    said = written.get(key)
    return said if isinstance(said, str) else None


def _carried(reach: HttpSettings | WebSocketSettings) -> tuple[str, tuple[str, ...]]:
    return (reach.carrier, reach.user_headers) if isinstance(reach, HttpSettings) else ("ws", ())


def _timeout(name: ServerName, settings: ServerSettings) -> float:
    seconds = float(max(settings.timeout, TIMEOUT_SECONDS_MIN))
    if seconds != settings.timeout:
        log.warning("MCP server %s has a timeout of %g seconds: %g are used.", name, settings.timeout, seconds)
    return int(seconds) if seconds.is_integer() else seconds


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
        self._changing = LoopThreadLock()

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
            await LoopThread.shared().run(self._begin(registry, configs))

    async def shutdown(self) -> None:
        """Take the tools out of the registry and close every connection; nothing happens if that is done."""
        if self._service is not None:
            await LoopThread.shared().run(self._finish())

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
                unregister_service(service)  # nobody is to find it who looks for the service of the process
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
        problem = schema_problem(schema)
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
