"""The clients whose files are understood, one value each.

What each does differently is all here; where its files lie is in `places`. A client that does nothing of its
own still has its line, so that its name can be given on the command line.
"""

from __future__ import annotations

from isthmus.config.dialects import steps
from isthmus.config.dialects.dialect import OWN, STANDARD, Dialect

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
    "codex", "Codex", roots=(("mcp_servers",),), unit="seconds", bare_url="http", steps=(steps.take_tool_timeout,)
)  # fmt: skip
GOOSE = Dialect(
    "goose",
    "Goose",
    roots=(("extensions",),),
    unit="seconds",
    own_kinds=frozenset({"builtin", "platform", "frontend", "inline_python"}),
    steps=(steps.open_config,),
)
# Seconds now, milliseconds in earlier versions: neither is said, so that the size of the number decides.
ZED = Dialect("zed", "Zed", roots=(("context_servers",),))
KIRO = Dialect("kiro", "Kiro", roots=_MCP_SERVERS, unit="milliseconds")
COPILOT = Dialect("copilot", "Copilot CLI", roots=_MCP_SERVERS, steps=(steps.take_tools_for_a_filter,))
OPENCODE = Dialect(
    "opencode",
    "opencode",
    roots=(("mcp", "servers"), ("mcp",)),
    unit="milliseconds",
    syntax=("curly",),
    steps=(steps.take_request_timeout,),
)
MCPPROXY = Dialect("mcpproxy", "mcpproxy", roots=_MCP_SERVERS, steps=(steps.take_quarantine_for_off,))
FASTMCP = Dialect(
    "fastmcp", "FastMCP", roots=_MCP_SERVERS, bare_url="path", unit="milliseconds", steps=(steps.take_token,)
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
