"""T44: script in a page with texts of servers.

The only page is the console's, a file that holds nothing of servers (T72). Every other answer on every path has a media
type that no browser renders as a page, and says that it is not to be guessed.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.hubs import Raw, serving
from tests.security.fickle import Fickle, until
from tests.security.fickle_server import tool
from tests.security.source import texts

SCRIPT = "<script>alert(1)</script><img src=x onerror=alert(1)>"

KINDS = (
    "application/json",
    "application/problem+json",
    "text/plain; charset=utf-8",
    "text/plain; version=0.0.4; charset=utf-8",
)

PATHS = (
    "/",
    "/mcp",
    "/sse-not",
    "/v1/tools",
    "/v1/servers",
    "/openapi.json",
    "/.well-known/agent-card.json",
    "/.well-known/agent.json",
    "/livez",
    "/readyz",
    "/healthz",
    "/metrics",
    f"/{SCRIPT}",
    "/v1/tools/<script>",
    "/console/session",
    "/console/none",
)


def test_nothing_in_the_hub_writes_a_page() -> None:
    """Nor does a command: what a browser is told that comes back from a login is plain text."""
    page = re.compile(r"content-type: ?text/html|<!doctype|<html", re.IGNORECASE)
    assert [name for name, text in texts().items() if page.search(text)] == []


async def test_nothing_is_a_page(tmp_path: Path) -> None:
    fickle = Fickle(tmp_path / "lists.json")
    fickle.lists(tool("odd", SCRIPT, title=SCRIPT))
    async with serving(tmp_path, {"fickle": fickle.entry}) as hub, Raw(hub.url) as raw:

        async def is_there() -> bool:
            return "fickle.odd" in await raw.names()

        await until(is_there, "the server is listed")
        for path in PATHS:
            answer = await raw.http.get(f"http://127.0.0.1:{hub.port}{path}", headers={"accept": "text/html"})
            kind = answer.headers.get("content-type", "")
            assert not answer.content or kind in KINDS, (path, kind)
            assert not answer.content or answer.headers.get("x-content-type-options") == "nosniff", path
