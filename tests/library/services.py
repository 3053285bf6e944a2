"""Services over small real servers, for tests of every environment."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from isthmus.library import ToolRequest
from tests.peers.launch import command

SETTLE_SECONDS = 20.0
"""How long what was closed may take to be gone from a busy machine."""
POLL_SECONDS = 0.01


def raw_server(*options: str, ledger: Path | None = None, name: str = "raw") -> dict[str, Any]:
    """The words of a server without any SDK, which starts quickly."""
    noted = [] if ledger is None else ["--ledger", str(ledger)]
    program, *words = command("raw_server", "--transport", "stdio", *noted, *options)
    return {"name": name, "command": program, "args": words}


def with_servers(*servers: dict[str, Any]) -> dict[str, Any]:
    """What a service is initialised with."""
    return {"enable_mcp": True, "mcp_servers": list(servers)}


def pay(nonce: str, mode: str | None = None, **fields: Any) -> ToolRequest:
    """A request that leaves its nonce in the ledger, whatever becomes of it."""
    parameters = {"nonce": nonce} if mode is None else {"nonce": nonce, "mode": mode}
    return ToolRequest("raw.pay", parameters=parameters, **fields)


def wait_for_line(path: Path, word: str) -> None:
    """Stand still until a server has noted something; it has no other way to tell.

    Raises:
        TimeoutError: it did not come in time.
    """
    deadline = time.monotonic() + SETTLE_SECONDS
    while not (path.exists() and word in path.read_text()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"no {word!r} in {path}")
        time.sleep(POLL_SECONDS)
