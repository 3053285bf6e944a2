"""Requests for a WebSocket: whether one is opened, and who takes it. The door's connections ask and answer here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Final, TypeAlias

import msgspec
from websockets.datastructures import Headers
from websockets.exceptions import InvalidHeader
from websockets.http11 import Request
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from isthmus.frontends.http.auth import Denied
from isthmus.frontends.http.request_cycle import Message
from isthmus.transport.socket_channel import SILENT
from isthmus.transport.websocket import PING_SECONDS, AcceptedSocket, Hearer

VERSION: Final = "13"
"""The one version of the protocol that there is."""


class WebSocketOffer(msgspec.Struct, frozen=True):
    """A WebSocket is opened, and belongs to whoever takes it."""

    take: Callable[[AcceptedSocket], Hearer]
    """Called once it is open; returns who hears what comes on it. It may close the socket at once."""
    limit_bytes: int
    """The longest message that may come."""
    subprotocol: str | None = None
    """The one that is chosen of those that were offered."""
    ping_seconds: float = PING_SECONDS
    group: str | None = None
    """Whose it is: those of a group have one share of the hub. None is one group, too: of who belongs to nobody."""


OnUpgrade: TypeAlias = Callable[[Message], WebSocketOffer | Denied]
"""Decides on a request for a WebSocket by its scope: `path`, `query_string`, `headers` (lower case), `client`."""


class AcceptedUpgrade(msgspec.Struct, frozen=True):
    """What opens a WebSocket."""

    opening: WebSocketOffer
    answer: bytes
    chosen: str | None
    """The subprotocol."""


class _Handshake(ServerProtocol):
    """Answers a request for a WebSocket, and reads nothing after it."""

    def __init__(self, wanted: str | None) -> None:
        """`wanted` is the subprotocol that is chosen if it is offered."""
        super().__init__(logger=SILENT)
        self._wanted = wanted

    def select_subprotocol(self, subprotocols: Sequence[Subprotocol]) -> Subprotocol | None:
        return next((name for name in subprotocols if name == self._wanted), None)


def shake_hands(scope: Message, opening: WebSocketOffer) -> AcceptedUpgrade | Denied:
    """Agree on a WebSocket, or say what is wrong with the request for it. Compression is never agreed on."""
    headers = Headers((name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"])
    if (denied := _check(scope, headers)) is not None:
        return denied
    protocol = _Handshake(opening.subprotocol)
    response = protocol.accept(Request(scope["path"], headers))
    protocol.parser.close()  # it has the protocol, which has it: untied, both are freed at once
    if response.status_code != HTTPStatus.SWITCHING_PROTOCOLS:
        return Denied(response.status_code, _in_words(protocol.handshake_exc))
    return AcceptedUpgrade(opening, response.serialize(), protocol.subprotocol)


def _check(scope: Message, headers: Headers) -> Denied | None:
    """What is wrong with the request, as far as the library does not tell it, or not in each of its versions."""
    if scope["method"] != "GET":
        return Denied(HTTPStatus.METHOD_NOT_ALLOWED, "A WebSocket is asked for with GET.", ((b"allow", b"GET"),))
    if scope["http_version"] != "1.1":
        return Denied(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "A WebSocket is asked for with HTTP 1.1.")
    if headers.get("content-length", "0").strip("0") or "transfer-encoding" in headers:
        return Denied(HTTPStatus.BAD_REQUEST, "A request for a WebSocket has no body.")
    if (version := headers.get_all("sec-websocket-version")) and version != [VERSION]:
        return Denied(
            HTTPStatus.UPGRADE_REQUIRED,
            f"Only version {VERSION} of WebSocket is spoken here.",
            ((b"upgrade", b"websocket"), (b"sec-websocket-version", VERSION.encode())),
        )
    return None


def _in_words(error: Exception | None) -> str:
    """What is wrong with a handshake; without the header's value, which may hold a token."""
    if isinstance(error, InvalidHeader):
        return f"No WebSocket can be opened: the header {error.name} is missing or not as it must be."
    return "No WebSocket can be opened: this is not how one is asked for."
