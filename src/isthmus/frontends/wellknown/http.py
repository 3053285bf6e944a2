"""`/.well-known/ai-catalog.json`, and the cards that it points to: `/mcp/server-card`, `/mcp/{server}/server-card`.

Without a key only the hub is listed; a caller with a key also sees its servers. Without a public URL nothing is
published. The documents say where to connect and never list tools. All URLs are built on the configured public URL,
because a Host header could be anything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import urlsplit

import msgspec

from isthmus.core.calls.hub import Hub
from isthmus.frontends.http.auth import TOO_MANY, Authenticator, Denied, Headers
from isthmus.frontends.http.request_cycle import (
    PEER,
    Message,
    Peer,
    Receive,
    Send,
    header_lines,
    join_headers,
    respond,
)
from isthmus.model.callers import Caller
from isthmus.model.calls import EVERYTHING
from isthmus.model.names import ServerName
from isthmus.wire.mcp.messages import Implementation

SCHEMA = "https://static.modelcontextprotocol.io/schemas/v1/server-card.schema.json"
CARD_TYPE = "application/mcp-server-card+json"
AGENT_TYPE = "application/a2a-agent-card+json"
CATALOG_TYPE = "application/ai-catalog+json"
AGENT_CARD = "/.well-known/agent-card.json"
SUFFIX = "/server-card"
"""The suffix of an MCP endpoint's URL for its card."""

_NOT_DNS = re.compile(r"[^A-Za-z0-9.-]")
_ADDRESS = re.compile(r"[0-9.]+")

KEY_HEADER = {
    "name": "Authorization",
    "description": "Bearer, a space, and a key of this hub",
    "isRequired": True,
    "isSecret": True,
}


class ServerCards:
    """Writes the documents of one hub; a `server` of None means the hub itself."""

    def __init__(self, me: Implementation, public_url: str, versions: tuple[str, ...]) -> None:
        self._me = me
        self._base = public_url.rstrip("/")
        self._publisher = _NOT_DNS.sub("-", urlsplit(public_url).hostname or "")
        self._versions = versions

    def catalog(self, servers: Iterable[ServerName], agent: str | None = None) -> dict[str, Any]:
        """The catalog of the hub, these servers, and the A2A agent with this name, if any."""
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
        host = self._publisher  # names start with the domain in reverse order; IP addresses are not reversed
        namespace = host if _ADDRESS.fullmatch(host) else ".".join(reversed(host.split(".")))
        return {
            "$schema": SCHEMA,
            "name": f"{namespace}/{self._name(server)}",
            "version": self._me.version,
            "title": self._title(server),
            "description": "Several MCP servers in one place" if server is None else "One MCP server of a hub",
            "remotes": [remote],
        }

    def _endpoint(self, server: ServerName | None) -> str:
        return f"{self._base}/mcp" if server is None else f"{self._base}/mcp/{server}"

    def _name(self, server: ServerName | None) -> str:
        # Server names have no dots, so none can be mistaken for the hub's.
        return self._me.name if server is None else f"{self._me.name}.{server}"

    def _title(self, server: ServerName | None) -> str:
        return self._me.title or self._me.name if server is None else server


def _entry(urn: str, title: str, kind: str, url: str) -> dict[str, Any]:
    # Both names: the server card draft uses `type`, the current catalog draft `mediaType`.
    return {"identifier": urn, "displayName": title, "type": kind, "mediaType": kind, "url": url}


CATALOG_PATH = "/.well-known/ai-catalog.json"
ENDPOINT = "/mcp"
METHODS = ("GET", "HEAD", "OPTIONS")

_VARY = (b"vary", b"authorization, x-api-key, origin")
PUBLIC: Headers = (
    _VARY,
    (b"cache-control", b"public, max-age=3600"),
    (b"access-control-allow-origin", b"*"),
    (b"access-control-allow-methods", b"GET"),
    (b"access-control-allow-headers", b"Content-Type"),
)
"""Readable by every web page; pages cannot send a key along."""

PRIVATE: Headers = (_VARY, (b"cache-control", b"private, max-age=60"))


class WellKnown:
    """The frontend. `needs_key` returns whether callers need a key now, `agent` the name of the A2A agent."""

    def __init__(
        self, hub: Hub, auth: Authenticator, cards: ServerCards, needs_key: Callable[[], bool], agent: Callable[[], str]
    ) -> None:
        self._hub = hub
        self._auth = auth
        self._cards = cards
        self._needs_key = needs_key
        self._agent = agent

    def is_at(self, path: str, method: str) -> bool:
        """Whether a request is for this frontend; a server that is named like a card keeps its own path."""
        if path == CATALOG_PATH:
            return True
        is_card = path.startswith(ENDPOINT + "/") and path.endswith(SUFFIX) and method in METHODS
        return is_card and path.removeprefix(ENDPOINT + "/") not in self._hub.server_queues

    async def serve(self, scope: Message, _: Receive, __: Send) -> None:
        """Answer one request."""
        peer: Peer = scope["extensions"][PEER]
        admitted = self._auth.admit(join_headers(scope["headers"]), "mcp", scope)
        match scope["method"]:
            case _ if isinstance(admitted, Denied) and admitted.status == TOO_MANY:
                self._auth.on_turned_away("mcp", admitted.status)
                respond(peer, admitted.status, admitted.message, admitted.headers)
            case "OPTIONS":
                peer.answer(204, header_lines(PUBLIC), b"")
            case "GET" | "HEAD" if scope["path"] == CATALOG_PATH:
                catalog = self._cards.catalog(self._visible(admitted), self._agent())
                self._answer(peer, CATALOG_TYPE, catalog, admitted)
            case "GET" | "HEAD":
                between = scope["path"].removeprefix(ENDPOINT).removesuffix(SUFFIX)
                # Without a key, existing and unknown servers look alike.
                server = ServerName(between[1:]) if between else None
                if server is not None and isinstance(admitted, Denied):
                    respond(peer, admitted.status, admitted.message, admitted.headers)
                elif server is not None and server not in self._visible(admitted):
                    respond(peer, 404, "Not found")
                else:
                    self._answer(peer, CARD_TYPE, self._cards.card(server, needs_key=self._needs_key()), admitted)
            case _:
                respond(peer, 405, "Use GET", ((b"allow", b"GET, HEAD, OPTIONS"),))

    def _visible(self, admitted: Caller | Denied) -> list[ServerName]:
        if isinstance(admitted, Denied):
            return []
        return list(self._hub.snapshot.view(admitted.grants, EVERYTHING).servers)

    def _answer(self, peer: Peer, kind: str, document: dict[str, Any], admitted: Caller | Denied) -> None:
        shared = PUBLIC if isinstance(admitted, Denied) else PRIVATE
        peer.answer(200, header_lines([(b"content-type", kind.encode()), *shared]), msgspec.json.encode(document))
