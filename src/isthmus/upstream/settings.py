"""How a server is to be reached: the settings that the upstream room owns.

Values only, checked when made, compared on reload. They read no file and no environment; `config` fills them
in and `app` hands them to the supervisor. Messages about a bad value never quote what may hold a secret.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import SplitResult, urlsplit

from isthmus.core.catalog.pins import Pinning
from isthmus.core.catalog.rules import NO_RULES, Rules
from isthmus.core.settings import CALL_SECONDS, HARD_SECONDS_MAX
from isthmus.model.credentials import NO_CREDENTIALS, ServerCredentials
from isthmus.model.names import ServerName
from isthmus.transport.bounds import ProcessLimits
from isthmus.transport.egress import parse_url

Era = Literal["auto", "legacy", "modern"]
"""Which generation of MCP to speak: found out at the first contact unless said."""

Carrier = Literal["auto", "http", "sse", "rpc"]
"""How an address is spoken to: Streamable HTTP, the earlier HTTP+SSE, plain JSON-RPC (which only an address that a
caller named is tried with), or whichever it turns out to be."""

Isolation = Literal["shared", "caller", "call"]
"""Who shares a link to the server: everybody, the calls of one caller, or nobody."""

REASON_LENGTH_MAX = 300
"""A reason may quote the server, and every listing repeats it to every caller."""

TIMEOUT_SECONDS_MAX = HARD_SECONDS_MAX
"""A server may be silent for as long as a call may take at all."""

SECRET_LENGTH_MIN = 4
"""Shorter values are not blanked out of texts: every `1` or `on` would become a hole and hide nothing."""

HOP_HEADERS = frozenset(
    ("connection", "content-length", "host", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade")
)
"""Headers that belong to a connection or to a body, which only the client itself can know."""

OWN_HEADERS = HOP_HEADERS | {
    "accept",
    "accept-encoding",
    "content-type",
    "last-event-id",
    "mcp-method",
    "mcp-name",
    "mcp-protocol-version",
    "mcp-session-id",
}
"""Headers that the hub writes itself: a caller's would have no effect, or a wrong one."""

PARAM_HEADER = "mcp-param-"
"""How headers begin that repeat an argument of a call, which the hub writes itself too."""

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_TARGET = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*(:[A-Za-z_]\w*)?")

PIN_PROGRAM = "program"
PIN_ARGV = "argv"
"""What a process may be held to beside files: the one that it is started from, and its words."""


@dataclass(frozen=True, slots=True)
class StdioSettings:
    """A server that the hub starts as a child process and speaks to over its standard streams."""

    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: str | None = None
    era: Era = "auto"
    limits: ProcessLimits = field(default_factory=ProcessLimits)
    sha256: Mapping[str, str] = field(default_factory=dict)
    """Digests without which it is not started: of its `program`, of its words (`argv`), and of files by their paths."""
    may_be_open: bool = True
    """Whether it is started even if everybody on the machine can write to what is."""

    def __post_init__(self) -> None:
        if not self.command.strip() or "\0" in self.command:
            raise ValueError(f"command must be the name or path of a program, not {self.command!r}")
        for position, argument in enumerate(self.args):
            if "\0" in argument:
                raise ValueError(f"args.{position} must be text without NUL, not a value that has one")
        for name, value in self.env.items():
            _check_variable(name, value)
        if self.cwd is not None and (not self.cwd or "\0" in self.cwd):
            raise ValueError(f"cwd must be a folder, not {self.cwd!r}")
        for what, digest in self.sha256.items():
            if _DIGEST.fullmatch(digest) is None:
                raise ValueError(f"sha256.{what} must be 64 digits of 0 to 9 and a to f, not {digest!r}")


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """A server that the hub dials over HTTP."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    era: Era = "auto"
    carrier: Carrier = "auto"
    user_headers: tuple[str, ...] = ()
    """Names of headers that a caller may have sent with its calls; of others, nothing reaches the server."""

    def __post_init__(self) -> None:
        _check_url("url", self.url, ("http", "https"))
        check_headers(self.headers)
        _check_user_headers(self.user_headers, self.headers)


@dataclass(frozen=True, slots=True)
class NamedSettings(HttpSettings):
    """A server at an address that a caller named, of which nobody said how it is spoken to."""

    ways: tuple[tuple[Carrier, str], ...] = ()
    """What to try, and where, in this order."""
    is_trusted: bool = False
    """Whether the operator lets it lead into a private network."""

    def urls_for(self, carrier: Carrier) -> tuple[str, ...]:
        """Where it may be spoken to so, in the order in which that is tried."""
        return tuple(url for way, url in self.ways if way == carrier) or (self.url,)


@dataclass(frozen=True, slots=True)
class SocketSettings:
    """A server that the hub dials over a WebSocket."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    era: Era = "auto"

    def __post_init__(self) -> None:
        _check_url("url", self.url, ("ws", "wss"))
        check_headers(self.headers)


@dataclass(frozen=True, slots=True)
class DialledInSettings(SocketSettings):
    """A server that opens the WebSocket itself, so that there is nothing to dial and nothing to check."""

    url: str = ""
    era: Era = "legacy"

    def __post_init__(self) -> None:
        """It has no address."""


@dataclass(frozen=True, slots=True)
class DeclaredTool:
    """A tool that the operator describes, because its server cannot."""

    name: str
    description: str = ""
    input_schema: Mapping[str, Any] = field(default_factory=lambda: {"type": "object"})


@dataclass(frozen=True, slots=True)
class RpcSettings:
    """A plain JSON-RPC endpoint, which knows nothing of MCP: its methods are the tools."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    tools: tuple[DeclaredTool, ...] = ()
    """Without any, the server is asked for them by `tools/list`."""
    era: Era = "legacy"
    user_headers: tuple[str, ...] = ()
    """As of `HttpSettings`."""

    def __post_init__(self) -> None:
        _check_url("rpc", self.url, ("http", "https"))
        check_headers(self.headers)
        _check_user_headers(self.user_headers, self.headers)


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """An agent of A2A: its skills are the tools."""

    url: str
    """Its address, below which its card is, or the card's own."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    origins: tuple[str, ...] = ()
    """Where else its card may send the hub, headers included: another host is not believed without."""
    era: Era = "legacy"

    def __post_init__(self) -> None:
        _check_url("agent", self.url, ("http", "https"))
        _check_dialled("agent", self.url)
        check_headers(self.headers)
        for position, origin in enumerate(self.origins):
            _check_origin(f"origins.{position}", origin)


@dataclass(frozen=True, slots=True)
class PythonSettings:
    """Python functions that run in the hub's own process: `package.module:function`, or a whole module."""

    target: str
    path: str | None = None
    """A folder that is searched for the module first."""
    era: Era = "legacy"

    def __post_init__(self) -> None:
        if _TARGET.fullmatch(self.target) is None:
            raise ValueError(f"python must be package.module or package.module:function, not {self.target!r}")


Reach = StdioSettings | HttpSettings | SocketSettings | RpcSettings | AgentSettings | PythonSettings
"""How a server is reached."""


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """One server: its name, how it is reached, and how much of it may be used at once."""

    name: ServerName
    reach: Reach
    timeout: float = CALL_SECONDS
    """How long it may be silent about a call, in seconds."""
    max_calls: int = 64
    max_queued: int = 256
    disabled: bool = False
    isolation: Isolation = "shared"
    rules: Rules = NO_RULES
    credentials: ServerCredentials = NO_CREDENTIALS
    """What it is shown beside its headers, and what single callers are called for by."""
    pin: Pinning | None = None
    """What becomes of a tool whose definition changes; None for what the hub does with all."""
    ca: str = field(default="", repr=False)
    """Certificates (PEM) by which alone the server proves who it is; without any, the system's roots count."""
    secrets: frozenset[str] = field(default=frozenset(), repr=False)
    """Values that must not appear in any log or message; see `redact`."""
    extra: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Keys of the entry that nobody here knows, kept as they were."""

    def __post_init__(self) -> None:
        if not 0 < self.timeout <= TIMEOUT_SECONDS_MAX:
            raise ValueError(f"timeout must be over 0 and at most {TIMEOUT_SECONDS_MAX:g} seconds, not {self.timeout}")
        if self.max_calls < 1:
            raise ValueError(f"max_calls must be at least 1, not {self.max_calls}")
        if self.max_queued < 0:
            raise ValueError(f"max_queued must be 0 or more, not {self.max_queued}")

    def redact(self, text: str) -> str:
        """Return `text` with this server's secrets blanked out."""
        # Longest first: a secret may be a part of another one.
        for secret in sorted(self.secrets, key=len, reverse=True):
            if len(secret) >= SECRET_LENGTH_MIN:
                text = text.replace(secret, "***")
        return text

    def reason(self, text: str) -> str:
        """Why there is no link to this server, as everybody is told: without its secrets, and no book."""
        return self.redact(text)[:REASON_LENGTH_MAX]


def _check_variable(name: str, value: str) -> None:
    if not name or "=" in name or "\0" in name:
        raise ValueError(f"env must have names without = and NUL, not {name!r}")
    if "\0" in value:
        raise ValueError(f"env.{name} must be text without NUL, not a value that has one")


def check_headers(headers: Mapping[str, str]) -> None:
    """Raise `ValueError` for what no request can carry."""
    for name, value in headers.items():
        _check_header(name, value)


def _check_header(name: str, value: str) -> None:
    if _HEADER_NAME.fullmatch(name) is None:
        # Somebody may have put the whole line there, with its secret.
        said = f"{name.partition(':')[0]!r} and more" if ":" in name else repr(name)
        raise ValueError(f"headers must have names that HTTP allows, not {said}")
    if name.lower() in HOP_HEADERS:
        raise ValueError(f"headers must be without those that HTTP itself needs, not with {name!r}: leave it out")
    if _CONTROL.search(value) or not _is_latin(value):
        raise ValueError(
            f"headers.{name} must be one line of Latin-1 text, not what it is (hidden: it may be a secret)"
        )


def _check_user_headers(names: tuple[str, ...], headers: Mapping[str, str]) -> None:
    taken = {name.lower() for name in headers}
    for position, name in enumerate(names):
        key, low = f"user_headers.{position}", name.lower()
        if _HEADER_NAME.fullmatch(name) is None:
            raise ValueError(f"{key} must be a name that HTTP allows, not {name!r}")
        if low in OWN_HEADERS or low.startswith(PARAM_HEADER):
            raise ValueError(f"{key} must be none that the hub writes itself, not {name!r}")
        if low in taken:
            raise ValueError(f"{key} must be none that headers has as well, not {name!r}: keep one of the two")


def _is_latin(text: str) -> bool:
    return all(ord(character) < 256 for character in text)


def _check_url(key: str, url: str, schemes: tuple[str, str]) -> None:
    # The address itself is not quoted: its query or user part may be a secret.
    parts = _split(key, url)
    if parts.scheme not in schemes:
        raise ValueError(
            f"{key} must start with {schemes[0]}:// or {schemes[1]}://, not {url.partition(':')[0][:20]!r}"
        )
    if not parts.hostname:
        raise ValueError(f"{key} must name a host, not only {parts.scheme}://")
    if "@" in parts.netloc:
        raise ValueError(f"{key} must be without user and password, not with them: send them as headers.Authorization")


def _check_dialled(key: str, url: str) -> None:
    """Refuse what could be split, but not dialled: a host that is none, or port 0."""
    try:
        parse_url(url)
    except ValueError:
        raise ValueError(f"{key} must name a host and a port that can be dialled, not others") from None


def _check_origin(key: str, origin: str) -> None:
    _check_url(key, origin, ("http", "https"))
    _check_dialled(key, origin)
    parts = urlsplit(origin)
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise ValueError(f"{key} must be a scheme, a host and a port, not more than that")


def _split(key: str, url: str) -> SplitResult:
    # urlsplit would quietly drop tabs and newlines, so that what is checked were not what is dialled.
    if any(character.isspace() or ord(character) < 32 for character in url):
        raise ValueError(f"{key} must be an address without spaces, not one with them")
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise ValueError(f"{key} must be an address, not a text that cannot be split ({error})") from None
    return parts
