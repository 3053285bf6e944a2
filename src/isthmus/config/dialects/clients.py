"""The clients whose files the hub reads: how each writes servers, and the steps that translate an entry into our keys.

A `Dialect` describes one client's file; `config.entries` applies it. A step changes a `DraftEntry` and never fails: a
value of an unexpected shape stays, and the checks of every entry report it. Nothing here opens a file or reads a
variable; `places` knows where the files are. A client without any habits still has its row, so that the command line
knows its name.
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
    """One entry while its keys are translated."""

    place: Place
    fields: dict[str, object]
    written_at: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """By our key: its path in the file, where that differs."""
    findings: list[Finding] = field(default_factory=list)

    def at(self, key: str) -> Place:
        """Return the place of one of our keys in the file."""
        return self.place.at(*self.written_at.get(key, (key,)))

    def rename(self, theirs: str, ours: str) -> None:
        """Rename a key to ours, unless the entry already has ours."""
        if theirs in self.fields and ours not in self.fields:
            self.move(ours, self.fields.pop(theirs), theirs)

    def move(self, ours: str, value: object, *written_at: str) -> None:
        """Set one of our keys from another path of the file."""
        self.fields[ours] = value
        self.written_at[ours] = written_at

    def merge(self, ours: str, members: dict[str, object], *written_at: str) -> None:
        """Add to one of our tables; existing members win."""
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
"""Where servers are searched in a file of an unknown client, the most likely first."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one client writes servers."""

    name: str
    title: str
    roots: tuple[Root, ...] = SHARED_ROOTS
    is_own: bool = False
    """Whether the file is only for Isthmus: then an unknown key is a mistake, not another program's key."""
    has_hub: bool = False
    """Whether `[hub]`, `[callers]` and so on are ours; in other files they belong to the client."""
    bare_url: Carrier | Literal["path"] = "auto"
    """The transport of an address without a type; `path` decides by its ending."""
    http: Carrier = "http"
    """The transport that `http` means: some clients fall back to the earlier one."""
    unit: Unit = "unsaid"
    ignored_below: float = 0.0
    """The client ignores shorter timeouts, in its own unit."""
    syntax: tuple[Syntax, ...] = ()
    """Forms of a variable beside `${…}`, which every file may use."""
    own_kinds: frozenset[str] = frozenset()
    """Types of entries that only the client itself can run."""
    has_projects: bool = False
    """Whether the file keeps servers under `projects.<folder>` too."""
    switches: Root = ()
    """The key with lists of servers that are `allowed` or `excluded`."""
    steps: tuple[Step, ...] = ()
    """Steps for this client only; they run before the common ones."""


OWN = Dialect("isthmus", "Isthmus", roots=(("mcpServers",), ("servers",)), is_own=True, has_hub=True)
STANDARD = Dialect("mcp.json", "mcp.json", has_hub=True)
"""A file of an unknown client."""

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


def drop_nulls(draft: DraftEntry) -> None:
    """Remove nulls: several programs write all their keys, most of them null."""
    draft.fields = {key: value for key, value in draft.fields.items() if value is not None}


def open_transport(draft: DraftEntry) -> None:
    """Move the members of a `transport` table up."""
    _move_up(draft, "transport")


def _move_up(draft: DraftEntry, outer: str) -> None:
    nested = draft.fields.get(outer)
    if isinstance(nested, dict):
        del draft.fields[outer]
        for key, value in nested.items():
            if key not in draft.fields:
                draft.move(str(key), value, outer, str(key))


def rename_keys(draft: DraftEntry) -> None:
    """Rename the keys of other clients to ours."""
    if "httpUrl" in draft.fields:
        # If both are there, `url` is for older versions of the client.
        draft.fields.pop("url", None)
        draft.fields.setdefault("type", "http")
    draft.rename("httpUrl", "url")
    for theirs, ours in RENAMED_KEYS.items():
        draft.rename(theirs, ours)


def split_command(draft: DraftEntry) -> None:
    """Split a command that is a list, or a table with a `path`."""
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


def parse_header_lines(draft: DraftEntry) -> None:
    """Turn a list of header lines into a table."""
    lines = draft.fields.get("headers")
    if isinstance(lines, list) and all(isinstance(line, str) and ":" in line for line in lines):
        pairs = (line.partition(":") for line in lines)
        draft.fields["headers"] = {name.strip(): value.strip() for name, _, value in pairs}


def use_variables(draft: DraftEntry) -> None:
    """Replace keys that name variables by placeholders."""
    _use_env_list(draft, "env_vars")
    _use_env_list(draft, "env_keys")
    named = draft.fields.get("env_http_headers")
    if isinstance(named, dict) and all(isinstance(name, str) for name in named.values()):
        del draft.fields["env_http_headers"]
        draft.merge("headers", {header: f"${{{name}}}" for header, name in named.items()}, "env_http_headers")
    token = draft.fields.get("bearer_token_env_var")
    if isinstance(token, str):
        del draft.fields["bearer_token_env_var"]
        draft.merge("headers", {"Authorization": f"Bearer ${{{token}}}"}, "bearer_token_env_var")


def _use_env_list(draft: DraftEntry, key: str) -> None:
    listed = draft.fields.get(key)
    if not isinstance(listed, list):
        return
    names = [item.get("name") if isinstance(item, dict) else item for item in listed]
    if all(isinstance(name, str) for name in names):
        del draft.fields[key]
        draft.merge("env", {str(name): f"${{{name}}}" for name in names}, key)


def report_helpers(draft: DraftEntry) -> None:
    """Report programs that would print headers: reading a file never runs one."""
    for key in _HELPERS:
        if key in draft.fields:
            text = "is a program that prints headers; the hub does not run it"
            draft.findings.append(draft.at(key).finding(text, code=CODE_NOT_RUN))


COMMON_STEPS = (
    drop_nulls, open_transport, rename_keys, split_command, parse_header_lines, use_variables, report_helpers
)  # fmt: skip


# -- what one or two clients do ------------------------------------------------------------------------------


def read_tools_as_filter(draft: DraftEntry) -> None:
    """Read a list under `tools` as `include_tools`."""
    if isinstance(draft.fields.get("tools"), list):
        draft.rename("tools", "include_tools")


def read_tool_timeout(draft: DraftEntry) -> None:
    """Read `tool_timeout_sec` as the timeout."""
    draft.rename("tool_timeout_sec", "timeout")


def read_request_timeout(draft: DraftEntry) -> None:
    """Read `timeout.request` as the timeout."""
    parts = draft.fields.get("timeout")
    if isinstance(parts, dict):
        del draft.fields["timeout"]
        draft.fields.update({f"timeout.{key}": value for key, value in parts.items() if key != "request"})
        if "request" in parts:
            draft.move("timeout", parts["request"], "timeout", "request")


def disable_quarantined(draft: DraftEntry) -> None:
    """Disable a server in quarantine."""
    if values.plain(draft.fields.get("quarantined")) is True:
        draft.move("disabled", True, "quarantined")


def open_config(draft: DraftEntry) -> None:
    """Move the members of a `config` table up."""
    _move_up(draft, "config")


def read_token(draft: DraftEntry) -> None:
    """Read `auth` as a token, unless it is `oauth`."""
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
# Their sources say that an address without a type is SSE, which was the only transport once.
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
    "codex", "Codex", roots=(("mcp_servers",),), unit="seconds", bare_url="http", steps=(read_tool_timeout,)
)  # fmt: skip
GOOSE = Dialect(
    "goose",
    "Goose",
    roots=(("extensions",),),
    unit="seconds",
    own_kinds=frozenset({"builtin", "platform", "frontend", "inline_python"}),
    steps=(open_config,),
)
# Seconds now, milliseconds in earlier versions: the size of the number decides.
ZED = Dialect("zed", "Zed", roots=(("context_servers",),))
KIRO = Dialect("kiro", "Kiro", roots=_MCP_SERVERS, unit="milliseconds")
COPILOT = Dialect("copilot", "Copilot CLI", roots=_MCP_SERVERS, steps=(read_tools_as_filter,))
OPENCODE = Dialect(
    "opencode",
    "opencode",
    roots=(("mcp", "servers"), ("mcp",)),
    unit="milliseconds",
    syntax=("curly",),
    steps=(read_request_timeout,),
)
MCPPROXY = Dialect("mcpproxy", "mcpproxy", roots=_MCP_SERVERS, steps=(disable_quarantined,))
FASTMCP = Dialect(
    "fastmcp", "FastMCP", roots=_MCP_SERVERS, bare_url="path", unit="milliseconds", steps=(read_token,)
)  # fmt: skip

CLIENTS: dict[str, Dialect] = {
    dialect.name: dialect
    for dialect in (
        CLAUDE_DESKTOP, CLAUDE_CODE, CURSOR, VSCODE, WINDSURF, CLINE, ROO, GEMINI,
        CODEX, GOOSE, ZED, KIRO, COPILOT, OPENCODE, MCPPROXY, FASTMCP,
    )
}  # fmt: skip
"""By the name on the command line and in `import`."""

DIALECTS: dict[str, Dialect] = {OWN.name: OWN, STANDARD.name: STANDARD, **CLIENTS}
"""The values of `--dialect`."""
