"""A WebSocket that the hub dials; `transport.accepted_socket` has the ones that clients open.

It does not know what it carries and never dials again. `upstream.websocket` uses it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidStatus
from websockets.frames import CloseCode
from websockets.http11 import Response
from websockets.protocol import OPEN, Event
from websockets.typing import Subprotocol
from websockets.uri import WebSocketURI

from isthmus.transport.accepted_socket import AcceptedSocket
from isthmus.transport.egress import Egress, HttpOrigin
from isthmus.transport.http import header_lines
from isthmus.transport.socket_channel import PING_SECONDS, SILENT, Hearer, SocketChannel

__all__ = [
    "PING_SECONDS",
    "AcceptedSocket",
    "DialledSocket",
    "HandshakeFailed",
    "Hearer",
    "SocketChannel",
    "WebSocketAddress",
]


class HandshakeFailed(Exception):
    """Whoever is there did not open a WebSocket; nothing was sent on it.

    `status` and `headers` are the answer's, if it was one; header names in lower case.
    """

    def __init__(self, reason: str, status: int | None = None, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.headers = headers or {}


@dataclass(frozen=True, slots=True)
class WebSocketAddress:
    """Where a WebSocket is opened and how: `headers` may be secret, messages in have at most `limit_bytes`."""

    origin: HttpOrigin
    target: str
    subprotocols: tuple[str, ...]
    """Those that are offered, the best first."""
    limit_bytes: int
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    ping_seconds: float = PING_SECONDS


class DialledSocket(SocketChannel):
    """A WebSocket that the hub dials, from its handshake to its end."""

    __slots__ = ("_client", "_endpoint", "_opened")

    is_masking = True

    def __init__(self, endpoint: WebSocketAddress, hearer: Hearer) -> None:
        """For `connect`."""
        origin = endpoint.origin
        self._client = ClientProtocol(
            WebSocketURI(origin.is_secure, origin.host, origin.port, endpoint.target, ""),
            subprotocols=[Subprotocol(name) for name in endpoint.subprotocols] or None,
            max_size=endpoint.limit_bytes,
            logger=SILENT,
        )
        super().__init__(self._client, limit_bytes=endpoint.limit_bytes, ping_seconds=endpoint.ping_seconds)
        self._endpoint = endpoint
        self._hearer = hearer
        self._is_secure = origin.is_secure
        self._opened: asyncio.Future[None] = self._loop.create_future()

    @classmethod
    async def connect(
        cls, egress: Egress, endpoint: WebSocketAddress, hearer: Hearer, *, is_configured: bool, within: float
    ) -> DialledSocket:
        """Dial and shake hands, `within` seconds each; a server that does not choose a subprotocol is accepted.

        What the server says at once is heard before this returns.

        Raises:
            EgressRefused: it may not be dialled.
            DialFailed: it cannot be reached.
            HandshakeFailed: it is no WebSocket.
            ValueError: a header cannot be sent.
        """
        header_lines(endpoint.headers)
        _, channel = await egress.dial(
            endpoint.origin, lambda: cls(endpoint, hearer), is_configured=is_configured, within=within
        )
        try:
            await channel._shake_hands(within)
        except BaseException:
            channel.kill()
            raise
        return channel

    async def _shake_hands(self, within: float) -> None:
        try:
            async with asyncio.timeout(within):
                await self._opened
        except TimeoutError:
            raise HandshakeFailed(f"no answer to the WebSocket handshake within {within:g} s") from None

    async def aclose(self) -> None:
        """Say goodbye and wait a moment for the server's."""
        if self._is_over or self._client.state is not OPEN:
            self.kill()
            return
        self._client.send_close(CloseCode.NORMAL_CLOSURE)
        self._answer()
        self._retire()
        await self._wait_for_end()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        request = self._client.connect()
        for name, value in self._endpoint.headers.items():
            if not name.lower().startswith("sec-websocket-"):  # the handshake's own
                request.headers[name] = value
        self._client.send_request(request)
        self._answer()

    def _take(self, event: Event) -> None:
        if isinstance(event, Response):
            self._open()
        else:
            super()._take(event)

    def _open(self) -> None:
        if self._client.handshake_exc is None and not self._opened.done():
            self.chosen = self._client.subprotocol
            self._opened.set_result(None)
            self._begin_pinging()

    def _tell(self, reason: str) -> None:
        if self._opened.done():
            super()._tell(reason)
        else:
            self._fail_to_open(reason)

    def _fail_to_open(self, reason: str) -> None:
        error = self._client.handshake_exc
        if isinstance(error, InvalidStatus):
            status = error.response.status_code
            headers = {name.lower(): value for name, value in error.response.headers.raw_items()}
            failed = HandshakeFailed(f"it answered HTTP {status} instead of opening a WebSocket", status, headers)
        else:
            failed = HandshakeFailed(reason)
        self._opened.set_exception(failed)
