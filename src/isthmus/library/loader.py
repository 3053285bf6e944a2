"""The MCP servers of an `mcp.json`, found where programs with an agent keep theirs.

Reading is `config`'s business: every way of writing a server down that the hub understands is understood here. This
module knows where to look, and tells of what is wrong in the log instead of raising: an agent starts all the same.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from isthmus.config import values
from isthmus.config.dialects.dialect import STANDARD
from isthmus.config.files import Document, home_folder, located, read
from isthmus.config.findings import ConfigError
from isthmus.config.imports import Around
from isthmus.config.merging import roster_of
from isthmus.config.servers import Roster
from isthmus.core.settings import Limits
from isthmus.library.servers import TIMEOUT_SECONDS, TIMEOUT_SECONDS_MIN, MCPServerConfig
from isthmus.model.names import ServerName
from isthmus.upstream.settings import HttpSettings, ServerSettings, SocketSettings, StdioSettings

log = logging.getLogger(__name__)

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
            return _configs_of(read(file), _around(workspace))
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
            file = located(str(path), Path.cwd(), home_folder())
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


def _around(workspace: Path) -> Around:
    return Around(os.environ, workspace, home_folder())


def _configs_of(document: Document, around: Around) -> list[MCPServerConfig]:
    roster = roster_of(_in_seconds(_with_servers_only(document)), around, LIMITS)
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
    found = "an empty list" if held == [] else values.shown(held)
    log.warning("%s: %s must be a table of servers, not %s.", document.file, ROOT, found)
    return replace(document, table={key: value for key, value in document.table.items() if key != ROOT})


def _in_seconds(document: Document) -> Document:
    """The same with seconds for timeouts, unless its program counts otherwise; a hub would have to guess."""
    if document.dialect.unit != "unsaid":
        return document
    return replace(document, dialect=replace(document.dialect, unit="seconds"))


def _config(name: ServerName, settings: ServerSettings, roster: Roster, folder: str) -> MCPServerConfig | None:
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
        case HttpSettings(url=url, headers=headers) | SocketSettings(url=url, headers=headers) as reach:
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


def _carried(reach: HttpSettings | SocketSettings) -> tuple[str, tuple[str, ...]]:
    return (reach.carrier, reach.user_headers) if isinstance(reach, HttpSettings) else ("ws", ())


def _timeout(name: ServerName, settings: ServerSettings) -> float:
    seconds = float(max(settings.timeout, TIMEOUT_SECONDS_MIN))
    if seconds != settings.timeout:
        log.warning("MCP server %s has a timeout of %g seconds: %g are used.", name, settings.timeout, seconds)
    return int(seconds) if seconds.is_integer() else seconds
