"""Where each client's files are on each system, and which client a given file belongs to.

Paths only: nothing is opened. Called by `config.files` to recognize a file and by `config.client_files` to find a
client's files.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from isthmus.config.dialects import clients
from isthmus.config.dialects.clients import OWN, STANDARD, Dialect

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

_BY_NAME: Mapping[str, Dialect] = {
    "claude_desktop_config.json": clients.CLAUDE_DESKTOP,
    ".mcp.json": clients.CLAUDE_CODE,
    ".claude.json": clients.CLAUDE_CODE,
    "managed-mcp.json": clients.CLAUDE_CODE,
    "cline_mcp_settings.json": clients.CLINE,
    "mcp-config.json": clients.COPILOT,
    "fastmcp.json": clients.FASTMCP,
    "opencode.json": clients.OPENCODE,
    "opencode.jsonc": clients.OPENCODE,
}
_BY_FOLDER: Mapping[str, Dialect] = {
    ".cursor": clients.CURSOR,
    ".vscode": clients.VSCODE,
    "windsurf": clients.WINDSURF,
    ".codeium": clients.WINDSURF,
    ".cline": clients.CLINE,
    "saoudrizwan.claude-dev": clients.CLINE,
    ".roo": clients.ROO,
    "rooveterinaryinc.roo-cline": clients.ROO,
    ".gemini": clients.GEMINI,
    "gemini-cli": clients.GEMINI,
    ".codex": clients.CODEX,
    "goose": clients.GOOSE,
    "zed": clients.ZED,
    "Zed": clients.ZED,
    ".zed": clients.ZED,
    ".kiro": clients.KIRO,
    "amazonq": clients.KIRO,
    ".copilot": clients.COPILOT,
    ".github": clients.COPILOT,
    ".opencode": clients.OPENCODE,
    "opencode": clients.OPENCODE,
    ".mcpproxy": clients.MCPPROXY,
    "User": clients.VSCODE,
}
_BY_ROOT: Mapping[tuple[str, str], Dialect] = {
    ("mcp_servers", ".toml"): clients.CODEX,
    ("extensions", ".yaml"): clients.GOOSE,
    ("context_servers", ".json"): clients.ZED,
}
"""Keys that only one client uses in a file of that format."""

_FOLDERS_UP = 3
"""How many parent folders are considered."""


def dialect_of(file: Path, table: Mapping[str, object]) -> Dialect:
    """Return the dialect of a file by its name, its folders and its outermost keys."""
    if file.stem == OWN.name:
        return OWN
    if file.name in _BY_NAME:
        return _BY_NAME[file.name]
    folders = [folder.name for folder in file.parents][:_FOLDERS_UP]
    signs = [_BY_FOLDER[folder] for folder in folders if folder in _BY_FOLDER]
    signs += [dialect for (root, suffix), dialect in _BY_ROOT.items() if root in table and file.suffix == suffix]
    # A folder may have any name, so it counts only if the content agrees.
    found = next((dialect for dialect in signs if _has_root(table, dialect)), None)
    if found is not None and not _is_ours(file, table):
        return found
    return STANDARD if file.suffix.lower() in (".json", ".jsonc") else OWN


def _has_root(table: Mapping[str, object], dialect: Dialect) -> bool:
    return any(root[0] in table for root in dialect.roots)


def _is_ours(file: Path, table: Mapping[str, object]) -> bool:
    return file.suffix.lower() == ".toml" and bool(table.keys() & {"hub", "servers", "callers", "limits"})


def places_of(client: Dialect, home: Path, cwd: Path, environment: Mapping[str, str]) -> list[Path]:
    """Return where a client's files may be, those of the project first."""
    name = client.name
    settings = _settings_folder(home, environment)
    return [
        *(cwd / path for path in _IN_PROJECT.get(name, ())),
        *(home / path for path in _IN_HOME.get(name, ())),
        *(settings / path for path in _IN_SETTINGS.get(name, ())),
    ]


def _settings_folder(home: Path, environment: Mapping[str, str]) -> Path:
    if sys.platform == "darwin":
        return home / "Library" / "Application Support"
    if sys.platform == "win32":
        return Path(environment.get("APPDATA") or home / "AppData" / "Roaming")
    return Path(environment.get("XDG_CONFIG_HOME") or home / ".config")
