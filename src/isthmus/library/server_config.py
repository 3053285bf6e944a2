"""One MCP server as a program describes it: by an address, or by a command.

One class takes the words of both worlds, `endpoint` and `url`, with or without `transport`. Read by the service, the
clients and the registry; what comes out is the hub's own `ServerSettings`, whose checks hold here too.
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
"""A longer one would be in vain: no call of a hub takes longer."""

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
"""What people call the ways to reach a server, and what they are."""


@dataclass(slots=True)
class MCPServerConfig:
    """How one server is reached.

    Raises:
        ConfigurationError: (a ValueError) a field cannot be used; the message begins with its name.
    """

    name: str
    endpoint: str | None = None
    """Its address; `url` is the same."""
    headers: dict[str, str] = field(default_factory=dict, repr=False)
    timeout: float = 30
    """Seconds that a call may take: at least 1, at most what a hub lets any call take."""
    transport: str | None = None
    """`stdio`, `http` or `sse`; without it, what the other fields say, and of an address whichever it speaks."""
    command: str | None = None
    args: list[str] | None = None
    env: dict[str, str] | None = field(default=None, repr=False)
    url: str | None = None
    cwd: str | None = None
    max_connect_retries: int = 3
    """Taken for the sake of configurations that have it. A hub tries again by itself, as long as it runs."""
    retry_backoff_seconds: float = 5.0
    """The same."""
    user_headers: Sequence[str] = ()
    """Names of headers that may be sent on for a user, if a request has them; without a name none is."""
    cache: dict[str, Any] | None = None
    """`{"tools": [...], "ttl": seconds}`: tools whose results are given again, for 60 seconds unless it says otherwise;
    `*` means all of them."""
    trusted: bool = False
    """Whether what the server says of its own tools is believed, such as that one destroys nothing."""
    base: ServerSettings | None = field(default=None, repr=False, compare=False)
    """What a file says of the server besides all this, such as which of its tools to leave out."""

    def __post_init__(self) -> None:
        self.settings()

    @classmethod
    def of(cls, given: Mapping[str, Any] | MCPServerConfig) -> MCPServerConfig:
        """One of a dictionary with the same keys. A `name` that no server can have is made legal, as in a file.

        Raises:
            ConfigurationError: a key is missing, unknown or has a value that cannot be used.
        """
        if isinstance(given, cls):
            return given
        if not isinstance(given, Mapping):
            raise ConfigurationError(f"a server must be a dictionary or an MCPServerConfig, not {type(given).__name__}")
        known = [name for name in cls.__dataclass_fields__ if name != "base"]  # which is for whoever read a file
        odd = [str(key) for key in given if key not in known]
        if odd:
            name = given.get("name", "?")
            raise ConfigurationError(
                f"server {name!r} has {', '.join(odd)}, which is unknown; known: {', '.join(known)}"
            )
        if "name" not in given:
            raise ConfigurationError("a server must have a name")
        name = given["name"]
        return cls(**{**given, "name": server_names([name])[name] if isinstance(name, str) else name})

    def settings(self) -> ServerSettings:
        """The same for a hub.

        Raises:
            ConfigurationError: something cannot be used.
        """
        try:
            _check_types(self)
            settings = ServerSettings(
                parse_server_name(self.name),
                self._reach(),
                timeout=float(self.timeout),
                secrets=self._secrets(),
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
        way = self._way()
        if self.command and self._address() and (self.transport is None or way == "auto"):
            raise ConfigurationError(
                f"server {self.name!r}: it must have a command or an address, not both, unless transport says which"
            )
        if self.user_headers and way in ("stdio", "ws"):
            how = "started by a command" if way == "stdio" else "reached by WebSocket"
            raise ConfigurationError(
                f"server {self.name!r}: user_headers cannot be used: headers need an HTTP address, and it is {how}"
            )
        if way == "stdio":
            if not self.command:
                raise ConfigurationError(f"server {self.name!r}: command is missing, which stdio needs")
            # Seen from this program's folder, whatever the server's own is: as in a file, from the file's folder.
            here = Path.cwd() if self.cwd or "/" in self.command else Path()  # there may be none
            home = home_folder()
            cwd = str(resolve_path(self.cwd, here, home)) if self.cwd else self.cwd
            return StdioSettings(
                resolve_program(self.command, here, home), tuple(self.args or ()), dict(self.env or {}), cwd
            )
        address = self._address()
        if address is None:
            raise ConfigurationError(f"server {self.name!r}: endpoint (or url) is missing, or else a command")
        if way == "ws":
            return WebSocketSettings(address, dict(self.headers or {}))
        carriers: dict[str, Carrier] = {"sse": "sse", "http": "http", "auto": "auto"}
        user_headers = tuple(self.user_headers or ())
        return HttpSettings(address, dict(self.headers or {}), carrier=carriers[way], user_headers=user_headers)

    def _address(self) -> str | None:
        if self.endpoint and self.url and self.url != self.endpoint:
            raise ConfigurationError(f"server {self.name!r}: endpoint and url are the same thing, and differ: give one")
        return self.endpoint or self.url or None

    def _way(self) -> str:
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

    def _secrets(self) -> frozenset[str]:
        return frozenset([*(self.headers or {}).values(), *(self.env or {}).values()])


def _completed(settings: ServerSettings, base: ServerSettings) -> ServerSettings:
    """What `base` says of the server, except where `settings` says something."""
    reach, known = settings.reach, base.reach
    if type(known) is type(reach):
        # Of how a server is reached, the era alone has no field here.
        reach = replace(known, **{each.name: getattr(reach, each.name) for each in fields(reach) if each.name != "era"})
    secrets = settings.secrets | base.secrets
    said, rules = settings.rules, base.rules
    if said.is_trusted:
        rules = replace(rules, is_trusted=True)
    if said.cached:
        rules = replace(rules, cached=said.cached, cache_seconds=said.cache_seconds)
    return replace(base, name=settings.name, reach=reach, timeout=settings.timeout, secrets=secrets, rules=rules)


def _check_types(config: MCPServerConfig) -> None:
    if not isinstance(config.name, str):
        raise ValueError(f"name must be text, not {config.name!r}")
    for key in ("endpoint", "url", "transport", "command", "cwd"):
        if not isinstance(getattr(config, key), str | None):
            raise ValueError(f"{key} must be text, not {type(getattr(config, key)).__name__}")
    if not isinstance(config.trusted, bool):
        raise ValueError(f"trusted must be True or False, not {config.trusted!r}")
    _check_timeout(config.timeout)
    for key in ("headers", "env"):
        _check_texts(key, getattr(config, key))
    for key in ("args", "user_headers"):
        given = getattr(config, key)
        is_list = isinstance(given, Iterable) and not isinstance(given, str)
        if given is not None and not (is_list and all(isinstance(each, str) for each in given)):
            raise ValueError(f"{key} must be a list of texts")


def _check_timeout(timeout: object) -> None:
    is_number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if not is_number or not TIMEOUT_SECONDS_MIN <= timeout <= TIMEOUT_SECONDS_MAX:  # type: ignore[operator]
        raise ValueError(f"timeout must be {TIMEOUT_SECONDS_MIN:g} to {TIMEOUT_SECONDS_MAX:g} seconds, not {timeout!r}")


def _check_texts(key: str, given: object) -> None:
    if given is None:
        return
    if not isinstance(given, Mapping) or not all(isinstance(part, str) for pair in given.items() for part in pair):
        raise ValueError(f"{key} must be a dictionary of texts")
