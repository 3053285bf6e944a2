"""Isthmus joins agents to tools: one address that serves the tools of many MCP servers.

The package's own top holds only the version. Each folder is a room with one job; `docs/contributing/glossary.md` names
them, and nobody but `isthmus.app` joins them.
"""

__version__ = "0.1.0"
