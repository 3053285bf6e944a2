"""What may differ between two clients' files: a value for each client, and the choice between them.

A dialect tells how an entry of its file is put into our own words; it opens no file and knows no variable's
value. `config.entries` applies it. The table of all clients is in `clients`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from isthmus.config.dialects.draft import Draft
from isthmus.upstream.settings import Carrier

Unit = Literal["seconds", "milliseconds", "unsaid"]
Syntax = Literal["dollar", "percent", "curly"]
Step = Callable[[Draft], None]
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
