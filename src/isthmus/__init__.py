"""Isthmus joins agents to tools: one address that serves the tools of many MCP servers.

In a program, begin with `isthmus.connect`; `isthmus.library` has everything else. The names here are imported on first
use, so `import isthmus` is cheap. Each folder has one job; `DESIGN.md` lists them, and only
`isthmus.app` connects them.
"""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"

_LAZY = {
    "connect": "isthmus.library.connection",
    "ToolError": "isthmus.library.errors",
    "tool": "isthmus.library.own_tools",
}
"""Their types are in `__init__.pyi`, for the same reason."""


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        import importlib  # noqa: PLC0415 - every command imports this package

        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
