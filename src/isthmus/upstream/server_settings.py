"""The settings of one server, and the one declaration of every key of `[servers.NAME]`.

Each settings class is a frozen dataclass that checks its values when it is made. A field that a file can set carries a
`ServerKey` in its metadata; `SERVER_KEYS` collects them. Parsing, ranges, the documentation, `isthmus import`, `config
show`, reload and `access --diff` all read that table, so that a new key is a new field here. Nothing here reads a file
or the environment: `config` fills the settings in and `app` passes them on. Messages about a bad value never quote what
may be a secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, Literal, TypeAlias, get_args, get_type_hints
from urllib.parse import urlsplit

from isthmus.core.calls.result_cuts import check_result_limit
from isthmus.core.cassette_matching import Player
from isthmus.core.catalog.pins import Pinning
from isthmus.core.catalog.tool_rules import NO_TOOL_RULES, ToolRules
from isthmus.core.settings import CALL_SECONDS, HARD_SECONDS_MAX
from isthmus.model.calls import NO_CAPABILITIES, ClientCapabilities
from isthmus.model.credentials import NO_CREDENTIALS, ServerCredentials
from isthmus.model.names import ServerName
from isthmus.transport.egress import parse_url
from isthmus.transport.process_limits import ProcessLimits

Era = Literal["auto", "legacy", "modern"]
"""Which generation of MCP to speak; `auto` detects it at the first contact."""

Carrier = Literal["auto", "http", "sse", "rpc"]
"""The HTTP transport: Streamable HTTP, the earlier HTTP+SSE, plain JSON-RPC (only tried for an address that a caller
named), or `auto` to detect it."""

Isolation = Literal["shared", "caller", "call"]
"""Who shares a link to the server: all callers, the calls of one caller, or single calls."""

Placement = Literal["node", "one"]
"""Where a program of a cluster runs: on every node, or on one of them."""

Way: TypeAlias = Literal["command", "url", "rpc", "agent", "python"]
"""The key that says how a server is reached; an entry has exactly one."""

WAYS: tuple[Way, ...] = get_args(Way)
NETWORK_WAYS: tuple[Way, ...] = ("url", "rpc", "agent")

REASON_LENGTH_MAX = 300
"""A reason may quote the server, and every list repeats it to every caller."""

TIMEOUT_SECONDS_MAX = HARD_SECONDS_MAX
"""A server may be silent for as long as a call may take at all."""

SECRET_LENGTH_MIN = 4
"""Shorter values are not redacted: replacing every `1` or `on` would damage texts and hide nothing."""

HOP_HEADERS = frozenset(
    ("connection", "content-length", "host", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade")
)
"""Headers about the connection or the body; only the HTTP client itself can set them."""

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
"""Headers that the hub sets itself; a caller's value would be ignored or wrong."""

PARAM_HEADER = "mcp-param-"
"""Prefix of the headers that repeat an argument of a call; the hub sets these too."""

PIN_PROGRAM = "program"
PIN_ARGV = "argv"
"""Names in `sha256` that are not files: the program that is started, and the command line."""

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_TARGET = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*(:[A-Za-z_]\w*)?")


# -- the declaration of a key --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ServerKey:
    """One key of `[servers.NAME]`."""

    doc: str
    """Its sentence in the reference, in Markdown."""
    name: str = ""
    """The key in a file; the field's name if empty."""
    above: float | None = None
    at_least: float | None = None
    at_most: float | None = None
    unit: str = ""
    path: Literal["", "file", "program"] = ""
    """Whether relative values start at the folder of the file; a `program` without a slash is searched on `PATH`."""
    limit: str = ""
    """The key of `[limits]` that holds the default."""
    beside: tuple[Way, ...] = WAYS
    """The ways to reach a server with which the key has an effect."""
    accepts_numbers: bool = False
    """Numbers in a list of texts are taken as they are written."""
    in_clients: bool = False
    """Other clients' files have the key with the same meaning, so it is read there too."""
    is_common_word: bool = False
    """Other programs use the word too: in a file that they share with the hub, the hub does not report it as idle."""
    is_literal: bool = False
    """Variables are not replaced in the value."""
    keeps_links: bool = False
    """A reload applies a change to the next call; a change of any other key starts the server anew."""
    is_noticed: bool = False
    """Callers may notice a change, so `isthmus access --diff` compares it."""
    aliases: tuple[str, ...] = ()
    """Other keys that `config show --origin` looks for if this one is not written."""
    field_name: str = ""
    """The field that holds the value; empty if no single field does."""
    hint: Any = None
    """The type of that field; None for a key that `config.entries_to_settings` reads with code of its own."""
    default: Any = None

    @property
    def is_text(self) -> bool:
        """Whether the value consists of texts, which keep the characters that the file has (`1.10` is not `1.1`)."""
        return self.hint in (str, tuple[str, ...], Mapping[str, str], str | None)

    @property
    def range_text(self) -> str:
        """The accepted range in words; empty if any value is accepted."""
        bounds = (("over", self.above), ("at least", self.at_least), ("at most", self.at_most))
        words = " and ".join(f"{word} {bound:.15g}" for word, bound in bounds if bound is not None)
        return f"{words} {self.unit}".strip() if words else ""

    def check(self, value: float | str | None) -> None:
        """Raise `ValueError` for a number out of range, which NaN is too, or for a text of such a length."""
        if value is None or not self.range_text:
            return
        size = len(value) if isinstance(value, str) else value
        is_high_enough = self.above is None or size > self.above
        is_in_range = is_high_enough and (self.at_least is None or size >= self.at_least)
        if not (is_in_range and (self.at_most is None or size <= self.at_most)):
            raise ValueError(f"{self.name} must be {self.range_text}, not {size}")


def _key(doc: str, **declared: Any) -> dict[str, ServerKey]:
    """Return the metadata of a field that a file can set."""
    return {_METADATA: ServerKey(doc, **declared)}


_METADATA = "server key"

_HEADERS = _key("Headers of every request, by name.", in_clients=True, is_common_word=True)
_USER_HEADERS = _key(
    "Names of headers that a program may send on behalf of its user."
    " See [Headers of a user](concepts.md#headers-of-a-user).",
    in_clients=True,
)
_ERA = _key("Generation of MCP: `auto` detects it. `legacy` lets a server ask that cannot in 2026-07-28.")
_URL = _key("Address of the server: `http://`, `https://`, `ws://` or `wss://`.", in_clients=True, is_common_word=True)


# -- how a server is reached ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StdioSettings:
    """A server that the hub starts as a child process and speaks to over its standard streams."""

    command: str = field(
        metadata=_key(
            "Program to start: a name on `PATH`, or a path.", path="program", in_clients=True, is_common_word=True
        )
    )
    args: tuple[str, ...] = field(
        default=(), metadata=_key("Its arguments.", accepts_numbers=True, in_clients=True, is_common_word=True)
    )
    env: Mapping[str, str] = field(
        default_factory=dict,
        repr=False,
        metadata=_key(
            "Its environment variables, beside the harmless ones of the hub.",
            in_clients=True,
            is_common_word=True,
            aliases=("env_file",),
        ),
    )
    cwd: str | None = field(
        default=None, metadata=_key("Its working folder.", path="file", in_clients=True, is_common_word=True)
    )
    era: Era = field(default="auto", metadata=_ERA)
    limits: ProcessLimits = field(
        default_factory=ProcessLimits,
        metadata=_key(
            "What its processes may use: `memory`, `files`, `processes`, `cpu_seconds`."
            " See [Processes](concepts.md#processes)."
        ),
    )
    sha256: Mapping[str, str] = field(
        default_factory=dict,
        metadata=_key(
            "Digests that are checked before every start: of the program, or a table of several."
            " See [Processes](concepts.md#processes)."
        ),
    )
    """Keys: `program`, `argv`, or the path of a file."""
    may_be_open: bool = True
    """Whether it is started even if every user of the machine can write to its program."""

    def __post_init__(self) -> None:
        if not self.command.strip() or "\0" in self.command:
            raise ValueError(f"command must be the name or path of a program, not {self.command!r}")
        for position, argument in enumerate(self.args):
            if "\0" in argument:
                raise ValueError(f"args.{position} must be text without NUL, not a value that has one")
        for name, value in self.env.items():
            if not name or "=" in name or "\0" in name:
                raise ValueError(f"env must have names without = and NUL, not {name!r}")
            if "\0" in value:
                raise ValueError(f"env.{name} must be text without NUL, not a value that has one")
        if self.cwd is not None and (not self.cwd or "\0" in self.cwd):
            raise ValueError(f"cwd must be a folder, not {self.cwd!r}")
        for what, digest in self.sha256.items():
            if _DIGEST.fullmatch(digest) is None:
                raise ValueError(f"sha256.{what} must be 64 digits of 0 to 9 and a to f, not {digest!r}")


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """A server that the hub dials over HTTP."""

    url: str = field(metadata=_URL)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False, metadata=_HEADERS)
    era: Era = field(default="auto", metadata=_ERA)
    carrier: Carrier = "auto"
    user_headers: tuple[str, ...] = field(default=(), metadata=_USER_HEADERS)

    def __post_init__(self) -> None:
        _check_url("url", self.url, ("http", "https"))
        check_headers(self.headers)
        _check_user_headers(self.user_headers, self.headers)


@dataclass(frozen=True, slots=True)
class TargetHttpSettings(HttpSettings):
    """A server at an address that a caller named; its transport is not configured."""

    ways: tuple[tuple[Carrier, str], ...] = ()
    """The transports to try with their addresses, in this order."""
    is_trusted: bool = False
    """Whether the operator lets it lead into a private network."""

    def urls_for(self, carrier: Carrier) -> tuple[str, ...]:
        """Return the addresses to try with one transport, in order."""
        return tuple(url for way, url in self.ways if way == carrier) or (self.url,)


@dataclass(frozen=True, slots=True)
class WebSocketSettings:
    """A server that the hub dials over a WebSocket."""

    url: str = field(metadata=_URL)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False, metadata=_HEADERS)
    era: Era = field(default="auto", metadata=_ERA)

    def __post_init__(self) -> None:
        _check_url("url", self.url, ("ws", "wss"))
        check_headers(self.headers)


@dataclass(frozen=True, slots=True)
class DialInServerSettings(WebSocketSettings):
    """A server that opens the WebSocket itself: the hub has no address to dial."""

    url: str = ""
    era: Era = "legacy"

    def __post_init__(self) -> None:
        """Check nothing: there is no address."""


@dataclass(frozen=True, slots=True)
class DeclaredTool:
    """A tool that the operator describes because its server cannot."""

    name: str
    description: str = ""
    input_schema: Mapping[str, Any] = field(default_factory=lambda: {"type": "object"})


@dataclass(frozen=True, slots=True)
class JsonRpcSettings:
    """A plain JSON-RPC endpoint without MCP: its methods are the tools."""

    url: str = field(
        metadata=_key(
            "Address of a plain JSON-RPC endpoint: each method is a tool.",
            name="rpc",
            is_common_word=True,
            aliases=("url",),
        )
    )
    headers: Mapping[str, str] = field(default_factory=dict, repr=False, metadata=_HEADERS)
    tools: tuple[DeclaredTool, ...] = field(
        default=(),
        metadata=_key(
            "The tools of a plain JSON-RPC endpoint, each with `description` and `input_schema`. Without any, the hub"
            " requests `tools/list`. See [Plain JSON-RPC](concepts.md#plain-json-rpc-servers).",
            is_common_word=True,
            is_literal=True,
        ),
    )
    era: Era = "legacy"
    user_headers: tuple[str, ...] = field(default=(), metadata=_USER_HEADERS)

    def __post_init__(self) -> None:
        _check_url("rpc", self.url, ("http", "https"))
        check_headers(self.headers)
        _check_user_headers(self.user_headers, self.headers)


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """An A2A agent: its skills are the tools."""

    url: str = field(
        metadata=_key(
            "Address of an A2A agent, or of its card: each skill is a tool."
            " See [Agents](concepts.md#agents-as-servers).",
            name="agent",
            is_common_word=True,
        )
    )
    headers: Mapping[str, str] = field(default_factory=dict, repr=False, metadata=_HEADERS)
    origins: tuple[str, ...] = field(
        default=(),
        metadata=_key("Other hosts that the card may send the hub to, with the same headers.", is_common_word=True),
    )
    era: Era = "legacy"

    def __post_init__(self) -> None:
        _check_url("agent", self.url, ("http", "https"))
        _check_can_dial("agent", self.url)
        check_headers(self.headers)
        for position, origin in enumerate(self.origins):
            key = f"origins.{position}"
            _check_url(key, origin, ("http", "https"))
            _check_can_dial(key, origin)
            parts = urlsplit(origin)
            if parts.path not in ("", "/") or parts.query or parts.fragment:
                raise ValueError(f"{key} must be a scheme, a host and a port, not more than that")


@dataclass(frozen=True, slots=True)
class PythonSettings:
    """Python functions that run in the hub's own process."""

    target: str = field(
        metadata=_key(
            "Python functions in the hub's process: `package.module` or `package.module:function`.",
            name="python",
            is_common_word=True,
        )
    )
    path: str | None = field(
        default=None, metadata=_key("Folder to search for the module first.", path="file", is_common_word=True)
    )
    era: Era = "legacy"

    def __post_init__(self) -> None:
        if _TARGET.fullmatch(self.target) is None:
            raise ValueError(f"python must be package.module or package.module:function, not {self.target!r}")


@dataclass(frozen=True, slots=True)
class ReplaySettings(PythonSettings):
    """A server of a cassette, which is replayed in the hub's own process. No file configures it."""

    player: Player = field(kw_only=True, compare=False)


Reach = StdioSettings | HttpSettings | WebSocketSettings | JsonRpcSettings | AgentSettings | PythonSettings
"""How a server is reached."""


# -- one server ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """One server: its name, how it is reached, and how it may be used."""

    name: ServerName
    reach: Reach
    timeout: float = field(
        default=CALL_SECONDS,
        metadata=_key(
            "Seconds that the server may be silent about a call. See [Timeouts](concepts.md#timeouts).",
            above=0,
            at_most=TIMEOUT_SECONDS_MAX,
            unit="seconds",
            limit="call_seconds",
            in_clients=True,
            keeps_links=True,
            is_noticed=True,
        ),
    )
    max_calls: int = field(
        default=64,
        metadata=_key(
            "Calls that run at once, including calls that wait for their caller's input.",
            at_least=1,
            limit="max_calls",
            keeps_links=True,
            is_noticed=True,
        ),
    )
    max_queued: int = field(
        default=256,
        metadata=_key(
            "Calls that may wait for a free slot.", at_least=0, limit="max_queued", keeps_links=True, is_noticed=True
        ),
    )
    max_result_bytes: int | None = field(
        default=None,
        metadata=_key(
            "Larger results of its tools are [cut](budgets.md#large-results), as in `[hub]`; what the hub says if not"
            " set.",
            at_least=0,
            keeps_links=True,
            is_noticed=True,
        ),
    )
    disabled: bool = field(
        default=False, metadata=_key("Switches the server off.", in_clients=True, aliases=("enabled",))
    )
    required: bool = field(
        default=False,
        metadata=_key(
            "`/readyz` is 503 while the server is not connected. Other servers never make it so.", keeps_links=True
        ),
    )
    isolation: Isolation = field(
        default="shared",
        metadata=_key(
            "Who shares a link to the server: `shared` (all callers), `caller` (one caller's calls), `call` (a link"
            " per call). See [Who shares a link](concepts.md#who-shares-a-link).",
            is_noticed=True,
        ),
    )
    placement: Placement = field(
        default="node",
        metadata=_key(
            "Where the program runs in a cluster: `node` (on every node), `one` (on one node, which the others call)."
            " See [Which node calls what](cluster.md#which-node-calls-what).",
            beside=("command", "python"),
            is_noticed=True,
        ),
    )
    pool: int | None = field(
        default=None,
        metadata=_key(
            "The number of nodes of a cluster on which the program runs, one process on each; instead of `placement`.",
            at_least=1,
            beside=("command", "python"),
            is_noticed=True,
        ),
    )
    rules: ToolRules = NO_TOOL_RULES
    credentials: ServerCredentials = NO_CREDENTIALS
    """What the hub presents to the server beside its headers, for all callers or for each."""
    pin: Pinning | None = field(
        default=None,
        metadata=_key(
            "What happens to a tool whose definition changes; without it, `pin` of `[hub]` decides."
            " See [Definitions that change](concepts.md#definitions-that-change).",
            keeps_links=True,
            is_noticed=True,
        ),
    )
    ca: str = field(
        default="",
        repr=False,
        metadata=_key(
            "File of certificates (PEM) to trust for this server instead of the system's.",
            path="file",
            is_common_word=True,
            beside=NETWORK_WAYS,
        ),
    )
    """The certificates themselves, read from the file."""
    secrets: frozenset[str] = field(default=frozenset(), repr=False)
    """Values that must not appear in a log or a message; see `redact`."""
    extra: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Keys of the entry that the hub does not know, unchanged."""
    client_caps: ClientCapabilities = NO_CAPABILITIES
    """The client capabilities that the shared link declares. Only hubs that a command starts for itself set them; in
    other hubs, callers that can be asked have links of their own."""

    def __post_init__(self) -> None:
        for key, value in declared_values(self):
            key.check(value)
        check_result_limit(self.max_result_bytes)
        if self.pool is not None and self.placement == "one":
            raise ValueError('pool must not be beside placement = "one", which is a pool of 1')

    @property
    def owners(self) -> int:
        """How many nodes of a cluster run it for all others; 0 if each node runs its own."""
        return 1 if self.placement == "one" else self.pool or 0

    def redact(self, text: str) -> str:
        """Return `text` with this server's secrets replaced by `***`."""
        # Longest first: a secret may be a part of another one.
        for secret in sorted(self.secrets, key=len, reverse=True):
            if len(secret) >= SECRET_LENGTH_MIN:
                text = text.replace(secret, "***")
        return text

    def redact_line(self, line: str) -> str:
        """Return one line of a longer text without this server's secrets, also those of several lines."""
        for secret in self.secrets:
            for part in secret.splitlines() if "\n" in secret else ():
                if len(part) >= SECRET_LENGTH_MIN:
                    line = line.replace(part, "***")
        return self.redact(line)

    def reason(self, text: str) -> str:
        """Return why there is no link to this server as callers may read it: short and without secrets."""
        return self.redact(text)[:REASON_LENGTH_MAX]


# -- all keys ------------------------------------------------------------------------------------------------


_CLASSES: tuple[tuple[type, tuple[Way, ...]], ...] = (
    (StdioSettings, ("command",)),
    (HttpSettings, ("url",)),
    (WebSocketSettings, ("url",)),
    (JsonRpcSettings, ("rpc",)),
    (AgentSettings, ("agent",)),
    (PythonSettings, ("python",)),
    (ServerSettings, WAYS),
)

_OTHER_KEYS = (
    ServerKey(
        "Transport of a `url`: `auto`, `http`, `sse`, `ws` or `rpc`. Without it the hub detects the transport.",
        name="type",
        in_clients=True,
        aliases=("transport", "transportType"),
    ),
    ServerKey("The same as `type`.", name="transport", in_clients=True),
    ServerKey("The same as `type`.", name="transportType", in_clients=True),
    ServerKey(
        "File with more environment variables, as lines of `NAME=value`.",
        name="env_file",
        path="file",
        beside=("command",),
        in_clients=True,
        is_common_word=True,
        hint=str,
    ),
    ServerKey("`enabled = false` is `disabled = true`.", name="enabled", in_clients=True),
    ServerKey("Login at the server by OAuth. See [Credentials](credentials.md).", name="oauth", beside=NETWORK_WAYS),
    ServerKey("Credentials of single callers. See [Credentials](credentials.md).", name="callers", beside=NETWORK_WAYS),
    ServerKey(
        "`caller` refuses callers that have no credentials of their own; `any` does not.",
        name="credentials",
        beside=NETWORK_WAYS,
    ),
    ServerKey(
        'The only tools to list; `"*"` stands for every one.',
        name="include_tools",
        in_clients=True,
        hint=tuple[str, ...],
    ),
    ServerKey(
        'Tools to hide; `"*"` stands for every one.', name="exclude_tools", in_clients=True, hint=tuple[str, ...]
    ),
    ServerKey("By tool: arguments that are filled in where a caller leaves them out.", name="defaults"),
    ServerKey("Results to cache: `tools` by name, for `ttl` seconds (60).", name="cache", is_literal=True),
    ServerKey(
        "Whether to believe the server's own tags and annotations, and pass on its instructions at `/mcp/NAME`. See"
        " [Permissions](permissions.md).",
        name="trusted",
    ),
    ServerKey(
        "The operator's tags, for everything or by tool. See [Permissions](permissions.md).",
        name="tags",
        hint=tuple[str, ...],
    ),
    ServerKey("Keys of other clients. Kept, never read.", name="extra", is_literal=True),
    ServerKey("The same as JSON text, for values that TOML cannot hold.", name="extra_json", is_literal=True),
)
"""Keys without a field of their own here, or that set fields of another package's settings."""


def _collect() -> tuple[dict[type, tuple[ServerKey, ...]], dict[str, ServerKey]]:
    by_class: dict[type, tuple[ServerKey, ...]] = {}
    by_name: dict[str, ServerKey] = {}
    for settings, ways in _CLASSES:
        hints = get_type_hints(settings)
        found = []
        for item in fields(settings):
            if _METADATA not in item.metadata:
                continue
            declared: ServerKey = item.metadata[_METADATA]
            name = declared.name or item.name
            default = None if item.default is MISSING else item.default
            beside = tuple(dict.fromkeys((*by_name[name].beside, *ways))) if name in by_name else ways
            key = replace(
                declared,
                name=name,
                beside=declared.beside if declared.beside != WAYS else beside,
                field_name=item.name,
                hint=hints[item.name],
                default=default,
            )
            found.append(key)
            by_name[name] = key
        by_class[settings] = tuple(found)
    return by_class, by_name | {key.name: key for key in _OTHER_KEYS}


_KEYS_OF, SERVER_KEYS = _collect()


def keys_of(settings: type) -> tuple[ServerKey, ...]:
    """Return the keys that set fields of one settings class, in the order of the fields."""
    return _KEYS_OF[settings]


def way_of(reach: Reach) -> Way:
    """Return the key that says how a server is reached."""
    return next(ways[0] for settings, ways in _CLASSES if isinstance(reach, settings))


def declared_values(server: ServerSettings) -> Iterator[tuple[ServerKey, Any]]:
    """Yield the value of every key that a field of a server, or of how it is reached, holds."""
    for settings in (server.reach, server):
        found = next(cls for cls, _ in _CLASSES if isinstance(settings, cls))
        yield from ((key, getattr(settings, key.field_name)) for key in keys_of(found))


def starts_the_same(old: ServerSettings, new: ServerSettings) -> bool:
    """Whether a link made for the old settings serves the new ones as well."""
    names = {"rules", "extra", "secrets"} | {key.field_name for key in keys_of(ServerSettings) if key.keeps_links}
    return replace(old, **{name: getattr(new, name) for name in names}) == new


def keys_beside(way: Way) -> frozenset[str]:
    """Return the keys that have an effect with one way to reach a server."""
    return frozenset(name for name, key in SERVER_KEYS.items() if way in key.beside)


# -- checks --------------------------------------------------------------------------------------------------


def check_headers(headers: Mapping[str, str]) -> None:
    """Raise `ValueError` for headers that no request can carry."""
    for name, value in headers.items():
        if _HEADER_NAME.fullmatch(name) is None:
            # The name may be the whole header line, with its secret.
            found = f"{name.partition(':')[0]!r} and more" if ":" in name else repr(name)
            raise ValueError(f"headers must have names that HTTP allows, not {found}")
        if name.lower() in HOP_HEADERS:
            raise ValueError(f"headers must leave out what HTTP sets itself, not have {name!r}")
        if _CONTROL.search(value) or any(ord(character) > 255 for character in value):
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
            raise ValueError(f"{key} must be a header that the hub does not set itself, not {name!r}")
        if low in taken:
            raise ValueError(f"{key} must differ from those in headers, not {name!r}: keep one of the two")


def _check_url(key: str, url: str, schemes: tuple[str, str]) -> None:
    # The address itself is not quoted: its query or user part may be a secret.
    if any(character.isspace() or ord(character) < 32 for character in url):
        # urlsplit would silently drop tabs and newlines: the hub would dial another address than it checked.
        raise ValueError(f"{key} must be an address without spaces, not one with them")
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise ValueError(f"{key} must be an address, not a text that cannot be split ({error})") from None
    if parts.scheme not in schemes:
        raise ValueError(
            f"{key} must start with {schemes[0]}:// or {schemes[1]}://, not {url.partition(':')[0][:20]!r}"
        )
    if not parts.hostname:
        raise ValueError(f"{key} must name a host, not only {parts.scheme}://")
    if "@" in parts.netloc:
        raise ValueError(f"{key} must be without user and password, not with them: send them as headers.Authorization")


def _check_can_dial(key: str, url: str) -> None:
    """Reject an address that can be split but not dialled: an invalid host, or port 0."""
    try:
        parse_url(url)
    except ValueError:
        raise ValueError(f"{key} must name a host and a port that can be dialled, not others") from None
