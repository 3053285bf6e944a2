"""From a file and an environment to a `Configuration`: the one way in.

It reads files and nothing else: the environment, the working folder and the home folder are handed in by
`app` or the command line, so that a test can have its own. It opens no socket and starts nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from isthmus.config.callers import ROOT as CALLERS
from isthmus.config.callers import KnownCaller, read_callers
from isthmus.config.files import Document, find, read
from isthmus.config.findings import ConfigError, Finding, Place, nearest
from isthmus.config.hub import read_hub
from isthmus.config.servers import ROOTS as SERVERS
from isthmus.config.servers import Reading, read_servers
from isthmus.config.settings import Configuration, HubSettings
from isthmus.config.variables import Variables, seen_from

AccessMode = Literal["open", "keys"]

_TABLES = dict.fromkeys(("hub", "limits", CALLERS, *SERVERS))


def load(
    path: Path | None,
    environment: Mapping[str, str],
    cwd: Path,
    home: Path,
    *,
    host: str | None = None,
    port: int | None = None,
) -> Configuration:
    """Find, read and check the configuration; with no file anywhere, return the defaults.

    `host` and `port` are the command line's and win. They are taken here and not put in afterwards, because
    what makes a key strong enough depends on the host.

    Raises:
        ConfigError: the named file is missing, the file cannot be parsed, or what it says of the hub or of
            callers cannot be honoured.
    """
    given = {key: value for key, value in (("host", host), ("port", port)) if value is not None}
    file = find(path, environment, cwd, home)
    if file is None:
        return Configuration(file=None, hub=read_hub(None, home, given)[0])
    return _configuration(read(file), environment, home, given)


def _configuration(
    document: Document, environment: Mapping[str, str], home: Path, given: Mapping[str, object]
) -> Configuration:
    hub, of_hub = read_hub(document, home, given)
    seen, of_variables = seen_from(document.file, environment)
    variables = Variables(seen, document.file.parent, home)
    servers, of_servers = read_servers(Reading(document, variables, home, hub.limits))
    callers, of_callers = read_callers(document, variables, is_loopback=hub.is_loopback)
    return Configuration(
        file=document.file,
        hub=hub,
        servers=servers,
        callers=callers,
        warnings=(
            *document.warnings,
            *_of_tables(document),
            *of_variables,
            *of_hub,
            *of_servers,
            *of_callers,
        ),
    )


def _of_tables(document: Document) -> list[Finding]:
    """Look at the outermost keys of a file.

    Raises:
        ConfigError: one is probably a mistyped `callers`, without which the hub would be open.
    """
    place = Place(document.file)
    unknown = [key for key in document.table if key not in _TABLES]
    for key in unknown:
        if nearest(key, _TABLES) == CALLERS:
            raise ConfigError(place.unknown(key, _TABLES))
    if document.is_own:
        return [place.unknown(key, _TABLES) for key in unknown]
    if not any(key in document.table for key in _TABLES):
        return [place.finding("has no servers", advice="they belong under mcpServers")]
    return []


def access_mode(hub: HubSettings, callers: tuple[KnownCaller, ...]) -> AccessMode:
    """Say who may call: whoever holds a key, or, on loopback with no caller configured, every local program.

    Raises:
        ConfigError: others can reach the hub and no caller is configured. It is never open to a network.
    """
    if callers:
        return "keys"
    if hub.is_loopback:
        return "open"
    raise ConfigError(
        Place(None, "hub.host").finding(
            "must be loopback while no caller is configured",
            value=repr(hub.host),
            advice='add [callers.NAME] with key = "env:NAME_KEY" and allow = ["*"], or listen on 127.0.0.1',
        )
    )
