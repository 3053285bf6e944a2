"""The clients whose files the hub reads and writes: how each writes servers and variables, and where its files are.

A `ClientDialect` describes one client's file; `config.client_entries_to_hub` applies its steps, which translate an
entry into our keys. A step changes a `DraftEntry` and never fails: a value of an unexpected shape stays, and the checks
of every entry report it. `with_hub_variables` rewrites a client's variables as `config.variables` reads them: `$VAR`,
`%VAR%` and `{env:VAR}` become `${VAR}`, editor variables such as `${workspaceFolder}` become their value, and
`${input:id}`, which an editor asks its user for, becomes a variable that can be set. `dialect_of` recognizes a file for
`config.files`, and `places_of` finds a client's files for `config.client_file_reader`. `WRITTEN_FORMS` says how
`isthmus connect` writes the hub into a client's file. Nothing here opens a file or looks up a variable. A client
without any habits still has its row, so that the command line knows its name.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from isthmus.config import values
from isthmus.config.finding_codes import CODE_NOT_RUN
from isthmus.config.findings import Finding, Place
from isthmus.model.callers import KEY_VARIABLE

if TYPE_CHECKING:  # commands that only look for a running hub load few modules
    from isthmus.upstream.server_settings import Carrier


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
class ClientDialect:
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


OWN = ClientDialect("isthmus", "Isthmus", roots=(("mcpServers",), ("servers",)), is_own=True, has_hub=True)
STANDARD = ClientDialect("mcp.json", "mcp.json", has_hub=True)
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


def move_up(outer: str) -> Step:
    """Return the step that moves the members of a table up."""

    def move(draft: DraftEntry) -> None:
        nested = draft.fields.get(outer)
        if isinstance(nested, dict):
            del draft.fields[outer]
            for key, value in nested.items():
                if key not in draft.fields:
                    draft.move(str(key), value, outer, str(key))

    return move


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
    drop_nulls, move_up("transport"), rename_keys, split_command, parse_header_lines, use_variables, report_helpers
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


def read_token(draft: DraftEntry) -> None:
    """Read `auth` as a token, unless it is `oauth`."""
    given = draft.fields.get("auth")
    if isinstance(given, str) and given != "oauth":
        del draft.fields["auth"]
        draft.merge("headers", {"Authorization": f"Bearer {given}"}, "auth")


_MCP_SERVERS = (("mcpServers",),)

CLAUDE_DESKTOP = ClientDialect("claude-desktop", "Claude Desktop", roots=_MCP_SERVERS)
CLAUDE_CODE = ClientDialect(
    "claude-code", "Claude Code", roots=_MCP_SERVERS, unit="milliseconds", ignored_below=1000, has_projects=True
)  # fmt: skip
CURSOR = ClientDialect("cursor", "Cursor", roots=_MCP_SERVERS)
VSCODE = ClientDialect("vscode", "VS Code", roots=(("servers",), ("mcp", "servers"), ("mcpServers",)), http="auto")
WINDSURF = ClientDialect("windsurf", "Windsurf", roots=_MCP_SERVERS)
# Their sources say that an address without a type is SSE, which was the only transport once.
CLINE = ClientDialect("cline", "Cline", roots=_MCP_SERVERS, bare_url="sse", unit="seconds")
ROO = ClientDialect("roo", "Roo Code", roots=_MCP_SERVERS, bare_url="sse", unit="seconds")
GEMINI = ClientDialect(
    "gemini",
    "Gemini CLI",
    roots=_MCP_SERVERS,
    unit="milliseconds",
    syntax=("dollar", "percent"),
    switches=("mcp",),
)
CODEX = ClientDialect(
    "codex", "Codex", roots=(("mcp_servers",),), unit="seconds", bare_url="http", steps=(read_tool_timeout,)
)  # fmt: skip
GOOSE = ClientDialect(
    "goose",
    "Goose",
    roots=(("extensions",),),
    unit="seconds",
    own_kinds=frozenset({"builtin", "platform", "frontend", "inline_python"}),
    steps=(move_up("config"),),
)
# Seconds now, milliseconds in earlier versions: the size of the number decides.
ZED = ClientDialect("zed", "Zed", roots=(("context_servers",),))
KIRO = ClientDialect("kiro", "Kiro", roots=_MCP_SERVERS, unit="milliseconds")
COPILOT = ClientDialect("copilot", "Copilot CLI", roots=_MCP_SERVERS, steps=(read_tools_as_filter,))
OPENCODE = ClientDialect(
    "opencode",
    "opencode",
    roots=(("mcp", "servers"), ("mcp",)),
    unit="milliseconds",
    syntax=("curly",),
    steps=(read_request_timeout,),
)
MCPPROXY = ClientDialect("mcpproxy", "mcpproxy", roots=_MCP_SERVERS, steps=(disable_quarantined,))
FASTMCP = ClientDialect(
    "fastmcp", "FastMCP", roots=_MCP_SERVERS, bare_url="path", unit="milliseconds", steps=(read_token,)
)  # fmt: skip

CLIENTS: dict[str, ClientDialect] = {
    dialect.name: dialect
    for dialect in (
        CLAUDE_DESKTOP, CLAUDE_CODE, CURSOR, VSCODE, WINDSURF, CLINE, ROO, GEMINI,
        CODEX, GOOSE, ZED, KIRO, COPILOT, OPENCODE, MCPPROXY, FASTMCP,
    )
}  # fmt: skip
"""By the name on the command line and in `import`."""

DIALECTS: dict[str, ClientDialect] = {OWN.name: OWN, STANDARD.name: STANDARD, **CLIENTS}
"""The values of `--dialect`."""


# -- how clients write the hub ----------------------------------------------------------------------------------

WrittenEntry = dict[str, object]


@dataclass(frozen=True, slots=True)
class HubOverHttp:
    """The hub at its address."""

    name: str
    url: str
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class HubAsProgram:
    """The hub as a program that the client starts."""

    name: str
    command: str
    args: list[str]
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WrittenForm:
    """How a client writes the hub."""

    root: Root
    http: Callable[[HubOverHttp], WrittenEntry] | None
    """None if its file can only name programs."""
    stdio: Callable[[HubAsProgram], WrittenEntry]
    variable: str = ""
    """How a header has the value of `ISTHMUS_KEY`; empty if it cannot."""
    afterwards: str = "Restart it, or reload its MCP servers."


def _plain(program: HubAsProgram, **more: object) -> WrittenEntry:
    env = {"env": dict(program.env)} if program.env else {}
    return {**more, "command": program.command, "args": program.args, **env}


def _headers(hub: HubOverHttp, key: str = "headers") -> WrittenEntry:
    return {key: dict(hub.headers)} if hub.headers else {}


def _url(hub: HubOverHttp, key: str = "url", **more: object) -> WrittenEntry:
    return {**more, key: hub.url, **_headers(hub)}


def _codex(hub: HubOverHttp) -> WrittenEntry:
    if hub.headers.get("Authorization") == f"Bearer {KEY_VARIABLE}":  # Codex names the variable in a key of its own
        return {"url": hub.url, "bearer_token_env_var": KEY_VARIABLE}
    return {"url": hub.url, **_headers(hub, "http_headers")}


def _goose(name: str, type: str, **more: object) -> WrittenEntry:
    return {
        "enabled": True,
        "type": type,
        "name": name,
        "description": "One address for all MCP servers",
        **more,
        "timeout": 300,
    }


WRITTEN_FORMS: dict[str, WrittenForm] = {
    "claude-code": WrittenForm(
        ("mcpServers",),
        lambda hub: _url(hub, type="http"),
        lambda program: _plain(program, type="stdio"),
        f"${{{KEY_VARIABLE}}}",
        "It reads the file when it starts; /mcp shows the hub.",
    ),
    "claude-desktop": WrittenForm(("mcpServers",), None, _plain, afterwards="Quit and start it again."),
    "cursor": WrittenForm(("mcpServers",), _url, _plain, f"${{env:{KEY_VARIABLE}}}"),
    "vscode": WrittenForm(
        ("servers",),
        lambda hub: _url(hub, type="http"),
        lambda program: _plain(program, type="stdio"),
        f"${{env:{KEY_VARIABLE}}}",
        "It starts the hub's tools with the next chat; `MCP: List Servers` shows the hub.",
    ),
    "windsurf": WrittenForm(("mcpServers",), lambda hub: _url(hub, "serverUrl"), _plain, f"${{env:{KEY_VARIABLE}}}"),
    "cline": WrittenForm(
        ("mcpServers",), lambda hub: _url(hub, type="streamableHttp"), lambda program: _plain(program, type="stdio")
    ),
    "codex": WrittenForm(("mcp_servers",), _codex, _plain, KEY_VARIABLE, "It reads the file when it starts."),
    # `url` means the earlier transport to older versions; all know `httpUrl`.
    "gemini": WrittenForm(("mcpServers",), lambda hub: _url(hub, "httpUrl"), _plain, f"${{{KEY_VARIABLE}}}"),
    "zed": WrittenForm(("context_servers",), _url, _plain, afterwards="It follows the file; nothing else to do."),
    "goose": WrittenForm(
        ("extensions",),
        lambda hub: _goose(
            hub.name, "streamable_http", uri=hub.url, **_headers(hub), envs=dict[str, str](), env_keys=list[str]()
        ),
        lambda program: _goose(
            program.name, "stdio", cmd=program.command, args=program.args, envs=dict(program.env), env_keys=list[str]()
        ),
    ),
    "kiro": WrittenForm(
        ("mcpServers",), _url, _plain, f"${{{KEY_VARIABLE}}}", "It follows the file; nothing else to do."
    ),
    "opencode": WrittenForm(
        ("mcp",),
        lambda hub: {"type": "remote", "url": hub.url, "enabled": True, **_headers(hub)},
        lambda program: {
            "type": "local",
            "command": [program.command, *program.args],
            "enabled": True,
            **({"environment": dict(program.env)} if program.env else {}),
        },
        f"{{env:{KEY_VARIABLE}}}",
    ),
    "copilot": WrittenForm(
        ("mcpServers",),
        lambda hub: _url(hub, type="http") | {"tools": ["*"]},
        lambda program: _plain(program, type="local") | {"tools": ["*"]},
    ),
}
"""By the name on the command line, which `isthmus import` uses too."""


# -- variables of clients ---------------------------------------------------------------------------------------

INPUT_PREFIX = "ISTHMUS_INPUT_"
"""Prefix of the variable that holds an input's value."""

_EDITOR = re.compile(r"\$\{(userHome|workspaceFolder|workspaceRoot|workspaceFolderBasename|cwd|pathSeparator|/)\}")
_INPUT = re.compile(r"\$\{input:([^{}]*)\}")
_NO_NAME = re.compile(r"[^A-Z0-9]+")
_VARIABLE_FORMS = {
    "dollar": re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)"),
    "percent": re.compile(r"%([A-Za-z_][A-Za-z0-9_]*)%"),
    "curly": re.compile(r"(?<!\$)\{env:([A-Za-z_][A-Za-z0-9_]*)\}"),
}
_CURLY_FILE = re.compile(r"(?<!\$)\{file:([^{}]+)\}")


@dataclass(frozen=True, slots=True)
class WorkspaceContext:
    """The workspace of a client, and the inputs that it would ask its user for."""

    folder: Path
    """The folder that is open in the client."""
    home: Path
    inputs: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """By id, as the file declares them."""


def with_hub_variables(text: str, dialect: ClientDialect, around: WorkspaceContext) -> str:
    """Return `text` with its variables written as `${VAR}`."""
    for form in dialect.syntax:
        text = _VARIABLE_FORMS[form].sub(r"${\1}", text)
    if "curly" in dialect.syntax:
        text = _CURLY_FILE.sub(r"${file:\1}", text)
    editor = {
        "userHome": str(around.home),
        "workspaceFolderBasename": around.folder.name,
        "pathSeparator": os.sep,
        "/": os.sep,
    }

    def placeholder(match: re.Match[str]) -> str:
        default = around.inputs.get(match[1], {}).get("default")
        # A placeholder cannot contain a brace.
        fallback = f":-{default}" if isinstance(default, str) and not set(default) & set("{}") else ""
        return f"${{{input_variable(match[1])}{fallback}}}"

    text = _EDITOR.sub(lambda found: editor.get(found[1], str(around.folder)), text)
    return _INPUT.sub(placeholder, text)


def input_variable(id: str) -> str:
    """Return the name of the variable that holds an input's value."""
    return INPUT_PREFIX + _NO_NAME.sub("_", id.upper()).strip("_")


def inputs_used(text: str) -> list[str]:
    """Return the ids of the inputs in a text."""
    return _INPUT.findall(text)


# -- where the files are ----------------------------------------------------------------------------------------

_CLINE = "saoudrizwan.claude-dev/settings/cline_mcp_settings.json"
_ROO = "rooveterinaryinc.roo-cline/settings/mcp_settings.json"

_IN_PROJECT: Mapping[str, tuple[str, ...]] = {
    "claude-code": (".mcp.json",),
    "cursor": (".cursor/mcp.json",),
    "vscode": (".vscode/mcp.json",),
    "roo": (".roo/mcp.json",),
    "gemini": (".gemini/settings.json",),
    "codex": (".codex/config.toml",),
    "zed": (".zed/settings.json",),
    "kiro": (".kiro/settings/mcp.json",),
    "copilot": (".github/mcp.json",),
    "opencode": ("opencode.json", "opencode.jsonc", ".opencode/opencode.json"),
    "fastmcp": ("fastmcp.json",),
}
"""By client: its files below a project's folder."""

PROJECT_NAMES = frozenset(path for paths in _IN_PROJECT.values() for path in paths if "/" not in path)
"""Names of clients' files that are in a project's folder itself."""

_IN_HOME: Mapping[str, tuple[str, ...]] = {
    "claude-code": (".claude.json",),
    "cursor": (".cursor/mcp.json",),
    "windsurf": (".codeium/windsurf/mcp_config.json", ".codeium/mcp_config.json"),
    "cline": (".cline/data/settings/cline_mcp_settings.json", ".cline/mcp_settings.json"),
    "gemini": (".gemini/settings.json",),
    "codex": (".codex/config.toml",),
    "goose": (".config/goose/config.yaml",),
    "zed": (".config/zed/settings.json",),
    "kiro": (".kiro/settings/mcp.json", ".aws/amazonq/mcp.json"),
    "copilot": (".copilot/mcp-config.json",),
    "opencode": (".config/opencode/opencode.json", ".config/opencode/opencode.jsonc"),
    "mcpproxy": (".mcpproxy/mcp_config.json",),
}
"""By client: its files below the home folder, on every system."""

_IN_SETTINGS: Mapping[str, tuple[str, ...]] = {
    "claude-desktop": ("Claude/claude_desktop_config.json",),
    "vscode": ("Code/User/mcp.json", "Code - Insiders/User/mcp.json", "VSCodium/User/mcp.json"),
    "cline": tuple(f"{editor}/User/globalStorage/{_CLINE}" for editor in ("Code", "Cursor", "Windsurf", "VSCodium")),
    "roo": tuple(f"{editor}/User/globalStorage/{_ROO}" for editor in ("Code", "Cursor", "Windsurf", "VSCodium")),
    "goose": ("Block/goose/config/config.yaml",),
    "zed": ("Zed/settings.json",),
}
"""By client: its files below the system's folder for settings."""

_BY_NAME: Mapping[str, ClientDialect] = {
    "claude_desktop_config.json": CLAUDE_DESKTOP,
    ".mcp.json": CLAUDE_CODE,
    ".claude.json": CLAUDE_CODE,
    "managed-mcp.json": CLAUDE_CODE,
    "cline_mcp_settings.json": CLINE,
    "mcp-config.json": COPILOT,
    "fastmcp.json": FASTMCP,
    "opencode.json": OPENCODE,
    "opencode.jsonc": OPENCODE,
}
_BY_FOLDER: Mapping[str, ClientDialect] = {
    ".cursor": CURSOR,
    ".vscode": VSCODE,
    "windsurf": WINDSURF,
    ".codeium": WINDSURF,
    ".cline": CLINE,
    "saoudrizwan.claude-dev": CLINE,
    ".roo": ROO,
    "rooveterinaryinc.roo-cline": ROO,
    ".gemini": GEMINI,
    "gemini-cli": GEMINI,
    ".codex": CODEX,
    "goose": GOOSE,
    "zed": ZED,
    "Zed": ZED,
    ".zed": ZED,
    ".kiro": KIRO,
    "amazonq": KIRO,
    ".copilot": COPILOT,
    ".github": COPILOT,
    ".opencode": OPENCODE,
    "opencode": OPENCODE,
    ".mcpproxy": MCPPROXY,
    "User": VSCODE,
}
_BY_ROOT: Mapping[tuple[str, str], ClientDialect] = {
    ("mcp_servers", ".toml"): CODEX,
    ("extensions", ".yaml"): GOOSE,
    ("context_servers", ".json"): ZED,
}
"""Keys that only one client uses in a file of that format."""

_FOLDERS_UP = 3
"""How many parent folders are considered."""


def dialect_of(file: Path, table: Mapping[str, object]) -> ClientDialect:
    """Return the dialect of a file by its name, its folders and its outermost keys."""
    if file.stem == OWN.name:
        return OWN
    if file.name in _BY_NAME:
        return _BY_NAME[file.name]
    folders = [folder.name for folder in file.parents][:_FOLDERS_UP]
    signs = [_BY_FOLDER[folder] for folder in folders if folder in _BY_FOLDER]
    signs += [dialect for (root, suffix), dialect in _BY_ROOT.items() if root in table and file.suffix == suffix]
    # A folder may have any name, so it counts only if the content agrees.
    found = next((dialect for dialect in signs if any(root[0] in table for root in dialect.roots)), None)
    is_ours = file.suffix.lower() == ".toml" and bool(table.keys() & {"hub", "servers", "callers", "limits"})
    if found is not None and not is_ours:
        return found
    return STANDARD if file.suffix.lower() in (".json", ".jsonc") else OWN


def places_of(client: ClientDialect, home: Path, cwd: Path, environment: Mapping[str, str]) -> list[Path]:
    """Return where a client's files may be, those of the project first."""
    return [*project_files(client, cwd), *user_files(client, home, environment)]


def project_files(client: ClientDialect, folder: Path) -> list[Path]:
    """Return where a client's files for a project's folder may be."""
    return [folder / path for path in _IN_PROJECT.get(client.name, ())]


def user_files(client: ClientDialect, home: Path, environment: Mapping[str, str]) -> list[Path]:
    """Return where a client's files for all projects may be."""
    if sys.platform == "darwin":
        settings = home / "Library" / "Application Support"
    elif sys.platform == "win32":
        settings = Path(environment.get("APPDATA") or home / "AppData" / "Roaming")
    else:
        settings = Path(environment.get("XDG_CONFIG_HOME") or home / ".config")
    return [
        *(home / path for path in _IN_HOME.get(client.name, ())),
        *(settings / path for path in _IN_SETTINGS.get(client.name, ())),
    ]
