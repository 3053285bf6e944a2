"""`/.well-known/ai-catalog.json`, and the cards that it points to: `/mcp/server-card`, `/mcp/{server}/server-card`.

A stranger is shown the hub and nothing behind it; who has a key is shown the servers that it may see. Without a public
address there is nothing to publish, and all of this is not there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from isthmus.core.calls.hub import Hub
from isthmus.frontends.http.auth import TOO_MANY, Authenticator, Denied, Headers
from isthmus.frontends.http.bodies import JSON, joined
from isthmus.frontends.http.request_cycle import PEER, Message, Peer, Receive, Send, header_lines
from isthmus.frontends.wellknown.cards import CARD_TYPE, CATALOG_TYPE, SUFFIX, Cards
from isthmus.model.callers import Caller
from isthmus.model.calls import EVERYTHING
from isthmus.model.names import ServerName

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
"""Any page may read what any stranger may; no page may send a key along."""

PRIVATE: Headers = (_VARY, (b"cache-control", b"private, max-age=60"))


class WellKnown:
    """The face. `needs_key` says whether callers must have one now, `agent` what the agent is called."""

    def __init__(
        self, hub: Hub, auth: Authenticator, cards: Cards, needs_key: Callable[[], bool], agent: Callable[[], str]
    ) -> None:
        self._hub = hub
        self._auth = auth
        self._cards = cards
        self._needs_key = needs_key
        self._agent = agent

    def is_at(self, path: str, method: str) -> bool:
        """Whether a request is for this face; a server that is called like the card keeps its own path."""
        if path == CATALOG_PATH:
            return True
        is_card = path.startswith(ENDPOINT + "/") and path.endswith(SUFFIX) and method in METHODS
        return is_card and path.removeprefix(ENDPOINT + "/") not in self._hub.server_queues

    async def serve(self, scope: Message, _: Receive, __: Send) -> None:
        """Answer one request."""
        peer: Peer = scope["extensions"][PEER]
        admitted = self._auth.admit(joined(scope["headers"]), "mcp", scope)
        match scope["method"]:
            case _ if isinstance(admitted, Denied) and admitted.status == TOO_MANY:
                self._auth.on_turned_away("mcp", admitted.status)
                _say(peer, admitted.status, admitted.message, admitted.headers)
            case "OPTIONS":
                peer.answer(204, header_lines(PUBLIC), b"")
            case "GET" | "HEAD" if scope["path"] == CATALOG_PATH:
                catalog = self._cards.catalog(self._visible(admitted), self._agent())
                self._answer(peer, CATALOG_TYPE, catalog, admitted)
            case "GET" | "HEAD":
                self._show_card(peer, _server_in(scope["path"]), admitted)
            case _:
                _say(peer, 405, "Use GET", ((b"allow", b"GET, HEAD, OPTIONS"),))

    def _show_card(self, peer: Peer, server: ServerName | None, admitted: Caller | Denied) -> None:
        # To a stranger a server that is there and one that is not look alike.
        if server is not None and isinstance(admitted, Denied):
            _say(peer, admitted.status, admitted.message, admitted.headers)
        elif server is not None and server not in self._visible(admitted):
            _say(peer, 404, "Not found")
        else:
            self._answer(peer, CARD_TYPE, self._cards.card(server, needs_key=self._needs_key()), admitted)

    def _visible(self, admitted: Caller | Denied) -> list[ServerName]:
        if isinstance(admitted, Denied):
            return []
        return list(self._hub.snapshot.view(admitted.grants, EVERYTHING).servers)

    def _answer(self, peer: Peer, kind: str, document: dict[str, Any], admitted: Caller | Denied) -> None:
        shared = PUBLIC if isinstance(admitted, Denied) else PRIVATE
        peer.answer(200, header_lines([(b"content-type", kind.encode()), *shared]), msgspec.json.encode(document))


def _server_in(path: str) -> ServerName | None:
    """The server whose card a path stands for; None if it is the hub's own."""
    between = path.removeprefix(ENDPOINT).removesuffix(SUFFIX)
    return ServerName(between[1:]) if between else None


def _say(peer: Peer, status: int, text: str, headers: Headers = ()) -> None:
    peer.answer(status, JSON + header_lines(headers), msgspec.json.encode({"error": text}))
