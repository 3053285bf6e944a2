"""`MCPServerConfig`: one MCP server of a program, reached by an address or started by a command.

It accepts the common spellings (`endpoint` or `url`, with or without `transport`) and converts to the hub's own
`ServerSettings`, whose checks apply as well. Used by the service, the clients and the registry.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from isthmus.config import values
from isthmus.config.files import home_folder, resolve_path, resolve_program
from isthmus.config.servers import CACHE_KEYS, server_names
from isthmus.core.catalog.rules import CACHE_SECONDS, NO_TOOL_RULES, ToolRules
from isthmus.core.settings import Limits
from isthmus.library.errors import ConfigurationError
from isthmus.model.names import parse_server_name
from isthmus.upstream.settings import (
    Carrier,
    HttpSettings,
    Reach,
    ServerSettings,
    StdioSettings,
    WebSocketSettings,
)

TIMEOUT_SECONDS = 30.0
TIMEOUT_SECONDS_MIN = 1.0
TIMEOUT_SECONDS_MAX = Limits().hard_seconds
"""The hub ends every call after this time."""

TRANSPORTS: dict[str, str] = {
    "stdio": "stdio",
    "local": "stdio",
    "sse": "sse",
    "http": "http",
    "https": "http",
    "streamable_http": "http",
    "streamable-http": "http",
    "streamableHttp": "http",
    "streaming": "http",
    "remote": "auto",
    "auto": "auto",
    "ws": "ws",
    "websocket": "ws",
}
"""Common names of transports, and the transport that each means."""


@dataclass(slots=True)
class MCPServerConfig:
    """How one server is reached.

    Raises:
        ConfigurationError: (a ValueError) a field is invalid; the message begins with its name.
    """

    name: str
    endpoint: str | None = None
    """The address; `url` is an alias."""
    headers: dict[str, str] = field(default_factory=dict, repr=False)
    timeout: float = 30
    """Seconds for a call: at least 1, at most the hub's limit for any call."""
    transport: str | None = None
    """`stdio`, `http` or `sse`. By default derived from the other fields; for an address it is detected."""
    command: str | None = None
    args: list[str] | None = None
    env: dict[str, str] | None = field(default=None, repr=False)
    url: str | None = None
    cwd: str | None = None
    max_connect_retries: int = 3
    """Accepted for compatibility and ignored: the hub always reconnects."""
    retry_backoff_seconds: float = 5.0
    """Accepted for compatibility and ignored."""
    user_headers: Sequence[str] = ()
    """Names of headers that requests may forward for a user; by default none."""
    cache: dict[str, Any] | None = None
    """`{"tools": [...], "ttl": seconds}`: tools whose results are cached, by default for 60 seconds; `*` means all."""
    trusted: bool = False
    """Whether the server's annotations are trusted, such as that a tool is not destructive."""
    base: ServerSettings | None = field(default=None, repr=False, compare=False)
    """Settings of a file that have no field here, such as tools to leave out."""

    def __post_init__(self) -> None:
        self.settings()

    @classmethod
    def of(cls, given: Mapping[str, Any] | MCPServerConfig) -> MCPServerConfig:
        """Make one from a dictionary with the same keys. An illegal `name` is made legal, as in a file.

        Raises:
            ConfigurationError: a key is missing or unknown, or its value is invalid.
        """
        if isinstance(given, cls):
            return given
        if not isinstance(given, Mapping):
            raise ConfigurationError(f"a server must be a dictionary or an MCPServerConfig, not {type(given).__name__}")
        known = [name for name in cls.__dataclass_fields__ if name != "base"]  # set by the loader only
        if unknown := [str(key) for key in given if key not in known]:
            raise ConfigurationError(
                f"server {given.get('name', '?')!r} has unknown keys: {', '.join(unknown)}; known: {', '.join(known)}"
            )
        if "name" not in given:
            raise ConfigurationError("a server needs a name")
        name = given["name"]
        return cls(**{**given, "name": server_names([name])[name] if isinstance(name, str) else name})

    def settings(self) -> ServerSettings:
        """The hub's settings for this server.

        Raises:
            ConfigurationError: a field is invalid.
        """
        try:
            _check_types(self)
            settings = ServerSettings(
                parse_server_name(self.name),
                self._reach(),
                timeout=float(self.timeout),
                secrets=frozenset([*(self.headers or {}).values(), *(self.env or {}).values()]),
                rules=self._rules(),
            )
            return settings if self.base is None else _completed(settings, self.base)
        except ConfigurationError:
            raise
        except ValueError as error:
            raise ConfigurationError(f"server {self.name!r}: {error}") from None

    def _rules(self) -> ToolRules:
        if not self.trusted and not self.cache:
            return NO_TOOL_RULES
        cache = values.table("cache", self.cache or {})
        if odd := [key for key in cache if key not in CACHE_KEYS]:
            raise ValueError(f"cache must have only {' and '.join(CACHE_KEYS)}, not {values.quoted(odd[0])}")
        return ToolRules(
            cached=values.texts("cache.tools", cache.get("tools", [])),
            cache_seconds=values.number("cache.ttl", cache.get("ttl", CACHE_SECONDS)),
            is_trusted=self.trusted,
        )

    def _reach(self) -> Reach:
        transport = self._resolved_transport()
        if self.command and self._address() and (self.transport is None or transport == "auto"):
            raise ConfigurationError(
                f"server {self.name!r}: give a command or an address, or set transport to say which to use"
            )
        if self.user_headers and transport in ("stdio", "ws"):
            how = "started by a command" if transport == "stdio" else "reached by WebSocket"
            raise ConfigurationError(f"server {self.name!r}: user_headers need an HTTP address, but it is {how}")
        if transport == "stdio":
            if not self.command:
                raise ConfigurationError(f"server {self.name!r}: stdio needs a command")
            # Relative to this program's folder, not to the server's `cwd`; in a file, to the file's folder.
            here = Path.cwd() if self.cwd or "/" in self.command else Path()  # the current folder may not exist
            home = home_folder()
            cwd = str(resolve_path(self.cwd, here, home)) if self.cwd else self.cwd
            return StdioSettings(
                resolve_program(self.command, here, home), tuple(self.args or ()), dict(self.env or {}), cwd
            )
        address = self._address()
        if address is None:
            raise ConfigurationError(f"server {self.name!r}: give an endpoint (or url) or a command")
        if transport == "ws":
            return WebSocketSettings(address, dict(self.headers or {}))
        carriers: dict[str, Carrier] = {"sse": "sse", "http": "http", "auto": "auto"}
        user_headers = tuple(self.user_headers or ())
        return HttpSettings(address, dict(self.headers or {}), carrier=carriers[transport], user_headers=user_headers)

    def _address(self) -> str | None:
        if self.endpoint and self.url and self.url != self.endpoint:
            raise ConfigurationError(f"server {self.name!r}: endpoint and url are aliases but differ: give one of them")
        return self.endpoint or self.url or None

    def _resolved_transport(self) -> str:
        if self.transport is not None:
            if self.transport not in TRANSPORTS:
                known = ", ".join(dict.fromkeys(TRANSPORTS))
                raise ConfigurationError(
                    f"server {self.name!r}: transport must be one of {known}, not {self.transport!r}"
                )
            return TRANSPORTS[self.transport]
        if self.command:
            return "stdio"
        address = self.endpoint or self.url or ""
        return "ws" if address.startswith(("ws://", "wss://")) else "auto"


def _completed(settings: ServerSettings, base: ServerSettings) -> ServerSettings:
    """`base`, overridden by `settings`."""
    reach, known = settings.reach, base.reach
    if type(known) is type(reach):
        # Only the era has no field here.
        reach = replace(known, **{each.name: getattr(reach, each.name) for each in fields(reach) if each.name != "era"})
    secrets = settings.secrets | base.secrets
    own, rules = settings.rules, base.rules
    if own.is_trusted:
        rules = replace(rules, is_trusted=True)
    if own.cached:
        rules = replace(rules, cached=own.cached, cache_seconds=own.cache_seconds)
    return replace(base, name=settings.name, reach=reach, timeout=settings.timeout, secrets=secrets, rules=rules)


def _check_types(config: MCPServerConfig) -> None:
    if not isinstance(config.name, str):
        raise ValueError(f"name must be a string, not {config.name!r}")
    for key in ("endpoint", "url", "transport", "command", "cwd"):
        if not isinstance(getattr(config, key), str | None):
            raise ValueError(f"{key} must be a string, not {type(getattr(config, key)).__name__}")
    if not isinstance(config.trusted, bool):
        raise ValueError(f"trusted must be True or False, not {config.trusted!r}")
    timeout: object = config.timeout
    is_number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if not is_number or not TIMEOUT_SECONDS_MIN <= timeout <= TIMEOUT_SECONDS_MAX:  # type: ignore[operator]
        raise ValueError(f"timeout must be {TIMEOUT_SECONDS_MIN:g} to {TIMEOUT_SECONDS_MAX:g} seconds, not {timeout!r}")
    for key in ("headers", "env"):
        table = getattr(config, key)
        if table is not None and not (
            isinstance(table, Mapping) and all(isinstance(part, str) for pair in table.items() for part in pair)
        ):
            raise ValueError(f"{key} must be a dictionary of strings")
    for key in ("args", "user_headers"):
        given = getattr(config, key)
        is_list = isinstance(given, Iterable) and not isinstance(given, str)
        if given is not None and not (is_list and all(isinstance(each, str) for each in given)):
            raise ValueError(f"{key} must be a list of strings")
