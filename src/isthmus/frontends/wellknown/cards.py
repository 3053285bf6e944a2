"""Server cards (SEP-2127) and the catalog of them and of the agent's, as documents: where to connect.

What is offered there is never in them. Pure. Everything is built on the public address that the operator configured: a
name that a request brought along could be anybody's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

from isthmus.model.names import ServerName
from isthmus.wire.mcp.messages import Implementation

SCHEMA = "https://static.modelcontextprotocol.io/schemas/v1/server-card.schema.json"
CARD_TYPE = "application/mcp-server-card+json"
AGENT_TYPE = "application/a2a-agent-card+json"
CATALOG_TYPE = "application/ai-catalog+json"
AGENT_CARD = "/.well-known/agent-card.json"
SUFFIX = "/server-card"
"""What stands behind the address of an MCP endpoint in that of its card."""

_NOT_DNS = re.compile(r"[^A-Za-z0-9.-]")
_ADDRESS = re.compile(r"[0-9.]+")

KEY_HEADER = {
    "name": "Authorization",
    "description": "Bearer, a space, and a key of this hub",
    "isRequired": True,
    "isSecret": True,
}


class Cards:
    """Writes the documents of one hub; `server` is None where they are about the whole of it."""

    def __init__(self, me: Implementation, public_url: str, versions: tuple[str, ...]) -> None:
        self._me = me
        self._base = public_url.rstrip("/")
        self._publisher = _NOT_DNS.sub("-", urlsplit(public_url).hostname or "")
        self._versions = versions

    def catalog(self, servers: Iterable[ServerName], agent: str | None = None) -> dict[str, Any]:
        """The catalog of the hub itself, of these servers, and of the agent of this name, if there is one."""
        entries = [self._entry(server) for server in (None, *servers)]
        if agent is not None:
            urn = f"urn:air:{self._publisher}:a2a:{self._me.name}"
            entries.append(_entry(urn, agent, AGENT_TYPE, self._base + AGENT_CARD))
        return {"specVersion": "1.0", "entries": entries}

    def _entry(self, server: ServerName | None) -> dict[str, Any]:
        urn = f"urn:air:{self._publisher}:mcp:{self._name(server)}"
        return _entry(urn, self._title(server), CARD_TYPE, self._endpoint(server) + SUFFIX)

    def card(self, server: ServerName | None, *, needs_key: bool) -> dict[str, Any]:
        """The card of one server, or of the hub."""
        remote: dict[str, Any] = {
            "type": "streamable-http",
            "url": self._endpoint(server),
            "supportedProtocolVersions": self._versions,
        }
        if needs_key:
            remote["headers"] = [KEY_HEADER]
        return {
            "$schema": SCHEMA,
            "name": f"{_reversed(self._publisher)}/{self._name(server)}",
            "version": self._me.version,
            "title": self._title(server),
            "description": "Several MCP servers in one place" if server is None else "One MCP server of a hub",
            "remotes": [remote],
        }

    def _endpoint(self, server: ServerName | None) -> str:
        return f"{self._base}/mcp" if server is None else f"{self._base}/mcp/{server}"

    def _name(self, server: ServerName | None) -> str:
        # No server's name has a dot, so that none can be taken for the hub's.
        return self._me.name if server is None else f"{self._me.name}.{server}"

    def _title(self, server: ServerName | None) -> str:
        return self._me.title or self._me.name if server is None else server


def _entry(urn: str, title: str, kind: str, url: str) -> dict[str, Any]:
    # The same by two names: `type` is what server cards were specified with, `mediaType` what catalogs are now.
    return {"identifier": urn, "displayName": title, "type": kind, "mediaType": kind, "url": url}


def _reversed(host: str) -> str:
    """A domain as names begin with it, the widest part first; an address has no such order."""
    return host if _ADDRESS.fullmatch(host) else ".".join(reversed(host.split(".")))
