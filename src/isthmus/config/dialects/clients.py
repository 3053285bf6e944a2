"""What may differ between two clients' files: a value for each client, and the choice between them.

A dialect tells how an entry of its file is put into our own words; it opens no file and knows no variable's
value. `config.entries` applies it. The table of all clients is in `clients`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from isthmus.config import values
from isthmus.config.codes import CODE_NOT_RUN
from isthmus.config.findings import Finding, Place
from isthmus.upstream.settings import Carrier


@dataclass(slots=True)
class DraftEntry:
    """One entry: some keys in our words, some still in the client's."""

    place: Place
    fields: dict[str, object]
    written_at: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """By our key: the path at which the file has it, where that differs."""
    findings: list[Finding] = field(default_factory=list)

    def at(self, key: str) -> Place:
        """Return where the file has what we call `key`."""
        return self.place.at(*self.written_at.get(key, (key,)))

    def rename(self, theirs: str, ours: str) -> None:
        """Give a key our name, unless that is taken: then it stays what it is, for nobody to read."""
        if theirs in self.fields and ours not in self.fields:
            self.move(ours, self.fields.pop(theirs), theirs)

    def move(self, ours: str, value: object, *written_at: str) -> None:
        """Set one of our keys to what the file has at another path."""
        self.fields[ours] = value
        self.written_at[ours] = written_at

    def merge(self, ours: str, members: dict[str, object], *written_at: str) -> None:
        """Add to one of our tables; what is in it already stays."""
        present = self.fields.get(ours, {})
        if isinstance(present, dict):
            self.fields[ours] = {**members, **present}
            self.written_at.setdefault(ours, (ours,) if present else written_at)


Unit = Literal["seconds", "milliseconds", "unsaid"]
Syntax = Literal["dollar", "percent", "curly"]
Step = Callable[[DraftEntry], None]
Root = tuple[str, ...]

SHARED_ROOTS: tuple[Root, ...] = (
    ("mcpServers",), ("servers",), ("mcp_servers",), ("tool_service", "mcp_servers"), ("context_servers",),
    ("extensions",), ("mcp", "servers"), ("mcp",)
)  # fmt: skip
"""Where servers are looked for when nobody says which client's file it is, the likeliest first."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """One client's way to write servers down."""

    name: str
    title: str
    roots: tuple[Root, ...] = SHARED_ROOTS
    is_own: bool = False
    """Whether the file is written for Isthmus alone: then an unknown key is a mistake and not somebody else's."""
    has_hub: bool = False
    """Whether `[hub]`, `[callers]` and their like in it are meant for us; elsewhere they are the client's."""
    bare_url: Carrier | Literal["path"] = "auto"
    """How an address without a word for its transport is spoken to; `path` goes by its ending."""
    http: Carrier = "http"
    """What the word `http` means: some clients fall back to the earlier transport."""
    unit: Unit = "unsaid"
    ignored_below: float = 0.0
    """Timeouts below are what the client takes for none, in its own unit."""
    syntax: tuple[Syntax, ...] = ()
    """Ways to write a variable besides `${…}`, which is understood in every file."""
    own_kinds: frozenset[str] = frozenset()
    """Types of entries that only the client itself can run: no servers."""
    has_projects: bool = False
    """Whether the file keeps servers under `projects.<folder>` too."""
    switches: Root = ()
    """Where the file names servers that are `allowed` or `excluded`, if it does."""
    steps: tuple[Step, ...] = ()
    """What this client alone does, before what everybody's files have in common."""


OWN = Dialect("isthmus", "Isthmus", roots=(("mcpServers",), ("servers",)), is_own=True, has_hub=True)
STANDARD = Dialect("mcp.json", "mcp.json", has_hub=True)
"""A file that says nothing of the client it was written for."""

RENAMED_KEYS = {
    "serverUrl": "url",
    "server_url": "url",
    "uri": "url",
    "endpoint": "url",
    "cmd": "command",
    "envs": "env",
    "environment": "env",
    "working_dir": "cwd",
    "workingDirectory": "cwd",
    "working_directory": "cwd",
    "envFile": "env_file",
    "http_headers": "headers",
    "userHeaders": "user_headers",
    "protocol": "type",
    "includeTools": "include_tools",
    "enabled_tools": "include_tools",
    "available_tools": "include_tools",
    "excludeTools": "exclude_tools",
    "disabled_tools": "exclude_tools",
    "disabledTools": "exclude_tools",
}
_HELPERS = ("headersHelper", "http_headers_helper")


def drop_nothings(draft: DraftEntry) -> None:
    """Take out what is null: several programs write all their keys, with nothing in most."""
    draft.fields = {key: value for key, value in draft.fields.items() if value is not None}


def open_transport(draft: DraftEntry) -> None:
    """Bring the parts of a `transport` table up beside it."""
    _open(draft, "transport")


def _open(draft: DraftEntry, outer: str) -> None:
    nested = draft.fields.get(outer)
    if isinstance(nested, dict):
        del draft.fields[outer]
        for key, value in nested.items():
            if key not in draft.fields:
                draft.move(str(key), value, outer, str(key))


def rename_keys(draft: DraftEntry) -> None:
    """Give every key of another name its own."""
    if "httpUrl" in draft.fields:
        # Where both are written it is the newer one, and the other is for older versions of the client.
        draft.fields.pop("url", None)
        draft.fields.setdefault("type", "http")
    draft.rename("httpUrl", "url")
    for theirs, ours in RENAMED_KEYS.items():
        draft.rename(theirs, ours)


def split_command(draft: DraftEntry) -> None:
    """Take a command apart that is a list, or a table with a path in it."""
    match draft.fields.get("command"):
        case [str() as program, *arguments]:
            draft.fields["command"] = program
            written_at = draft.written_at.get("command", ("command",))
            others = draft.fields.get("args")
            draft.move("args", [*arguments, *(others if isinstance(others, list) else [])], *written_at)
        case {"path": path, **members}:
            draft.move("command", path, "command", "path")
            for key, value in members.items():
                if key not in draft.fields:
                    draft.move(str(key), value, "command", str(key))
        case _:
            pass


def list_headers(draft: DraftEntry) -> None:
    """Make a table of headers that are written as lines."""
    lines = draft.fields.get("headers")
    if isinstance(lines, list) and all(isinstance(line, str) and ":" in line for line in lines):
        pairs = (line.partition(":") for line in lines)
        draft.fields["headers"] = {name.strip(): value.strip() for name, _, value in pairs}


def borrow_from_environment(draft: DraftEntry) -> None:
    """Write the keys that only name variables as the placeholders they stand for."""
    _borrow_env(draft, "env_vars")
    _borrow_env(draft, "env_keys")
    named = draft.fields.get("env_http_headers")
    if isinstance(named, dict) and all(isinstance(name, str) for name in named.values()):
        del draft.fields["env_http_headers"]
        draft.merge("headers", {header: f"${{{name}}}" for header, name in named.items()}, "env_http_headers")
    token = draft.fields.get("bearer_token_env_var")
    if isinstance(token, str):
        del draft.fields["bearer_token_env_var"]
        draft.merge("headers", {"Authorization": f"Bearer ${{{token}}}"}, "bearer_token_env_var")


def _borrow_env(draft: DraftEntry, key: str) -> None:
    listed = draft.fields.get(key)
    if not isinstance(listed, list):
        return
    names = [item.get("name") if isinstance(item, dict) else item for item in listed]
    if all(isinstance(name, str) for name in names):
        del draft.fields[key]
        draft.merge("env", {str(name): f"${{{name}}}" for name in names}, key)


def tell_of_helpers(draft: DraftEntry) -> None:
    """Say that programs which would print headers are not run: a file must not be able to start anything."""
    for key in _HELPERS:
        if key in draft.fields:
            text = "is a program that prints headers, and reading a file runs none"
            draft.findings.append(draft.at(key).finding(text, code=CODE_NOT_RUN))


COMMON_STEPS = (
    drop_nothings, open_transport, rename_keys, split_command, list_headers, borrow_from_environment, tell_of_helpers
)  # fmt: skip


# -- what one or two clients do ------------------------------------------------------------------------------


def take_tools_for_a_filter(draft: DraftEntry) -> None:
    """Read a list under `tools` as the tools that are shown."""
    if isinstance(draft.fields.get("tools"), list):
        draft.rename("tools", "include_tools")


def take_tool_timeout(draft: DraftEntry) -> None:
    """Read the seconds that a tool may take."""
    draft.rename("tool_timeout_sec", "timeout")


def take_request_timeout(draft: DraftEntry) -> None:
    """Read the part of a `timeout` table that is about calls."""
    parts = draft.fields.get("timeout")
    if isinstance(parts, dict):
        del draft.fields["timeout"]
        draft.fields.update({f"timeout.{key}": value for key, value in parts.items() if key != "request"})
        if "request" in parts:
            draft.move("timeout", parts["request"], "timeout", "request")


def take_quarantine_for_off(draft: DraftEntry) -> None:
    """Leave a server off that its owner has not looked at yet."""
    if values.plain(draft.fields.get("quarantined")) is True:
        draft.move("disabled", True, "quarantined")


def open_config(draft: DraftEntry) -> None:
    """Bring the parts of a `config` table up beside it."""
    _open(draft, "config")


def take_token(draft: DraftEntry) -> None:
    """Read `auth` as a token, unless it is the word for a login that needs a browser."""
    given = draft.fields.get("auth")
    if isinstance(given, str) and given != "oauth":
        del draft.fields["auth"]
        draft.merge("headers", {"Authorization": f"Bearer {given}"}, "auth")


_MCP_SERVERS = (("mcpServers",),)

CLAUDE_DESKTOP = Dialect("claude-desktop", "Claude Desktop", roots=_MCP_SERVERS)
CLAUDE_CODE = Dialect(
    "claude-code", "Claude Code", roots=_MCP_SERVERS, unit="milliseconds", ignored_below=1000, has_projects=True
)  # fmt: skip
CURSOR = Dialect("cursor", "Cursor", roots=_MCP_SERVERS)
VSCODE = Dialect("vscode", "VS Code", roots=(("servers",), ("mcp", "servers"), ("mcpServers",)), http="auto")
WINDSURF = Dialect("windsurf", "Windsurf", roots=_MCP_SERVERS)
# Both say in their sources that an address without a type stays what it was when there was only one kind.
CLINE = Dialect("cline", "Cline", roots=_MCP_SERVERS, bare_url="sse", unit="seconds")
ROO = Dialect("roo", "Roo Code", roots=_MCP_SERVERS, bare_url="sse", unit="seconds")
GEMINI = Dialect(
    "gemini",
    "Gemini CLI",
    roots=_MCP_SERVERS,
    unit="milliseconds",
    syntax=("dollar", "percent"),
    switches=("mcp",),
)
CODEX = Dialect(
    "codex", "Codex", roots=(("mcp_servers",),), unit="seconds", bare_url="http", steps=(take_tool_timeout,)
)  # fmt: skip
GOOSE = Dialect(
    "goose",
    "Goose",
    roots=(("extensions",),),
    unit="seconds",
    own_kinds=frozenset({"builtin", "platform", "frontend", "inline_python"}),
    steps=(open_config,),
)
# Seconds now, milliseconds in earlier versions: neither is said, so that the size of the number decides.
ZED = Dialect("zed", "Zed", roots=(("context_servers",),))
KIRO = Dialect("kiro", "Kiro", roots=_MCP_SERVERS, unit="milliseconds")
COPILOT = Dialect("copilot", "Copilot CLI", roots=_MCP_SERVERS, steps=(take_tools_for_a_filter,))
OPENCODE = Dialect(
    "opencode",
    "opencode",
    roots=(("mcp", "servers"), ("mcp",)),
    unit="milliseconds",
    syntax=("curly",),
    steps=(take_request_timeout,),
)
MCPPROXY = Dialect("mcpproxy", "mcpproxy", roots=_MCP_SERVERS, steps=(take_quarantine_for_off,))
FASTMCP = Dialect(
    "fastmcp", "FastMCP", roots=_MCP_SERVERS, bare_url="path", unit="milliseconds", steps=(take_token,)
)  # fmt: skip

CLIENTS: dict[str, Dialect] = {
    dialect.name: dialect
    for dialect in (
        CLAUDE_DESKTOP, CLAUDE_CODE, CURSOR, VSCODE, WINDSURF, CLINE, ROO, GEMINI,
        CODEX, GOOSE, ZED, KIRO, COPILOT, OPENCODE, MCPPROXY, FASTMCP,
    )
}  # fmt: skip
"""By the name that is used on the command line and in `import`."""

DIALECTS: dict[str, Dialect] = {OWN.name: OWN, STANDARD.name: STANDARD, **CLIENTS}
"""Everything that `--dialect` takes."""
