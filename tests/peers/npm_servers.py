"""The reference servers from npm, as they are published: `npm/package-lock.json` holds their hashes.

`make test` installs them. Without node, or before they are installed, a test that needs them is skipped with the
reason, and in CI it fails.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

import pytest

from tests.peers.launch import HttpPeer, listening_peer
from tests.peers.node import FOLDER, find_node

NpmServer = Literal["everything", "filesystem", "memory"]


def npm_command(server: NpmServer, *arguments: str) -> list[str]:
    """The words that start a server over stdio, without npx in between."""
    return [node(), _script(server), *arguments]


@asynccontextmanager
async def everything_over_http(transport: Literal["sse", "streamableHttp"]) -> AsyncIterator[HttpPeer]:
    """Run `server-everything` on a free port; its addresses are `/sse` and `/mcp`."""
    words = [node(), "--require", str(FOLDER / "say_port.cjs"), _script("everything"), transport]
    async with listening_peer(words) as peer:
        yield peer


def node() -> str:
    """The Node.js that servers and clients from npm run on."""
    return find_node() or _missing("there is no node on PATH")


def _script(server: NpmServer) -> str:
    script = FOLDER / "node_modules" / "@modelcontextprotocol" / f"server-{server}" / "dist" / "index.js"
    return str(script) if script.exists() else _missing(f"server-{server} is not installed")


def _missing(what: str) -> str:
    reason = f"{what}; install Node.js 18 or newer with npm, and `make test` fetches the servers"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)
