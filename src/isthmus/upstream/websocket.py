"""A link over a WebSocket that the hub dials: one message per text frame, both eras."""

from __future__ import annotations

from isthmus.core.background import BackgroundTasks
from isthmus.core.ports import Credentials
from isthmus.core.settings import Limits
from isthmus.model.names import ServerName
from isthmus.transport.egress import SOCKET_SCHEMES, DialFailed, Egress, EgressRefused, parse_url
from isthmus.transport.websocket import DialledSocket, HandshakeFailed, WebSocketAddress
from isthmus.upstream.base_link import BaseLink, ChannelWriter, ConnectFailed
from isthmus.upstream.http_shared import ADVICE
from isthmus.wire.mcp.messages import Implementation

SUBPROTOCOL = "mcp"


class SocketLink(BaseLink):
    """One WebSocket. Many requests share it; responses are matched by id."""

    carrier = "websocket"
    is_duplex = True
    start_seconds = 20.0
    takes_methods = True

    def __init__(
        self,
        server: ServerName,
        me: Implementation,
        limits: Limits,
        *,
        url: str,
        credentials: Credentials,
        egress: Egress,
        background: BackgroundTasks,
    ) -> None:
        """`background` is unused: this kind has no task of its own."""
        super().__init__(server, me, limits)
        self._origin, self._target = parse_url(url, SOCKET_SCHEMES)
        self._credentials = credentials
        self._egress = egress

    async def start(self) -> None:
        """Open the WebSocket. Raises `ConnectFailed`."""
        try:
            try:
                socket = await self._connect()
            except HandshakeFailed as failed:
                # The server may want a nonce in the DPoP proof (RFC 9449); then it is tried once more.
                signer = self._credentials.signer
                if signer is None or not signer.wants_nonce(self._url, failed.status or 0, failed.headers):
                    raise
                socket = await self._connect()
        except (DialFailed, EgressRefused) as failed:
            raise ConnectFailed(getattr(failed, "reason", str(failed))) from failed
        except HandshakeFailed as failed:
            refusal = ConnectFailed(f"{failed}{ADVICE.get(failed.status or 0, '')}")
            refusal.status = failed.status
            raise refusal from failed
        self._writer = ChannelWriter(socket.frame, socket)

    async def _connect(self) -> DialledSocket:
        headers = dict(self._credentials.headers_for(self.server))
        if (signer := self._credentials.signer) is not None:
            # The token is always under this lower-case name.
            proof = signer.proof_for("GET", self._url, headers.get("authorization", ""))
            headers |= {} if proof is None else {"dpop": proof}
        endpoint = WebSocketAddress(self._origin, self._target, (SUBPROTOCOL,), self.limits.reply_bytes, headers)
        within = self.limits.connect_seconds
        return await DialledSocket.connect(self._egress, endpoint, self, is_configured=True, within=within)

    @property
    def _url(self) -> str:
        """The URL of the HTTP handshake."""
        return f"{'https' if self._origin.is_secure else 'http'}://{self._origin.authority}{self._target}"
