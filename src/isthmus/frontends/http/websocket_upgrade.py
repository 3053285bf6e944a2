"""The WebSocket handshake: whether a request may open one, and who receives its messages. Used by `connection`."""

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
from isthmus.transport.accepted_socket import AcceptedSocket
from isthmus.transport.websocket import PING_SECONDS, SILENT, MessageReceiver

VERSION: Final = "13"
"""The only version of the protocol."""


class WebSocketOffer(msgspec.Struct, frozen=True):
    """A frontend's consent to open a WebSocket, and its settings."""

    take: Callable[[AcceptedSocket], MessageReceiver]
    """Called once it is open; returns the receiver of its messages. It may close the socket at once."""
    limit_bytes: int
    """The longest message that is accepted."""
    subprotocol: str | None = None
    """Chosen if the client offers it."""
    ping_seconds: float = PING_SECONDS
    group: str | None = None
    """Sockets of one group share its bandwidth. None is the group of unknown clients."""


OnUpgrade: TypeAlias = Callable[[Message], WebSocketOffer | Denied]
"""Decides on a request for a WebSocket by its ASGI scope."""


class AcceptedUpgrade(msgspec.Struct, frozen=True):
    """A successful handshake."""

    opening: WebSocketOffer
    answer: bytes
    chosen: str | None
    """The subprotocol."""


class _Handshake(ServerProtocol):
    """The handshake of the websockets library, without the connection."""

    def __init__(self, wanted: str | None) -> None:
        """`wanted` is the subprotocol that is chosen if the client offers it."""
        super().__init__(logger=SILENT)
        self._wanted = wanted

    def select_subprotocol(self, subprotocols: Sequence[Subprotocol]) -> Subprotocol | None:
        return next((name for name in subprotocols if name == self._wanted), None)


def shake_hands(scope: Message, opening: WebSocketOffer) -> AcceptedUpgrade | Denied:
    """Answer the handshake, or return what is wrong with it. Compression is never accepted."""
    headers = Headers((name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"])
    if (denied := _check(scope, headers)) is not None:
        return denied
    protocol = _Handshake(opening.subprotocol)
    response = protocol.accept(Request(scope["path"], headers))
    protocol.parser.close()  # breaks the reference cycle between the two
    if response.status_code != HTTPStatus.SWITCHING_PROTOCOLS:
        # Without the header's value, which may contain a token.
        error = protocol.handshake_exc
        problem = f"the header {error.name} is missing or invalid" if isinstance(error, InvalidHeader) else "invalid"
        return Denied(response.status_code, f"The WebSocket handshake failed: {problem}.")
    return AcceptedUpgrade(opening, response.serialize(), protocol.subprotocol)


def _check(scope: Message, headers: Headers) -> Denied | None:
    """Check what the library does not check, or not in all of its versions."""
    if scope["method"] != "GET":
        return Denied(HTTPStatus.METHOD_NOT_ALLOWED, "Use GET to open a WebSocket.", ((b"allow", b"GET"),))
    if scope["http_version"] != "1.1":
        return Denied(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "Use HTTP 1.1 to open a WebSocket.")
    if headers.get("content-length", "0").strip("0") or "transfer-encoding" in headers:
        return Denied(HTTPStatus.BAD_REQUEST, "A WebSocket handshake must not have a body.")
    if (version := headers.get_all("sec-websocket-version")) and version != [VERSION]:
        return Denied(
            HTTPStatus.UPGRADE_REQUIRED,
            f"Only version {VERSION} of WebSocket is supported.",
            ((b"upgrade", b"websocket"), (b"sec-websocket-version", VERSION.encode())),
        )
    return None
