"""What the relay's face needs of others: `upstream.dialin` and `identity.relay_tokens` fit these, and `app` joins them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from isthmus.core.ports import AgentServers
from isthmus.model.relay import Claim, DialledServer
from isthmus.transport.websocket import AcceptedSocket, Hearer


class Tokens(Protocol):
    """Reads tokens. It knows the key; nobody else does."""

    def read(self, token: str) -> Claim | str:
        """What a token proves, or why it proves nothing, in the words with which its socket is closed."""

    def is_key(self, text: str) -> bool:
        """Whether this is the key itself, which opens the statistics; compared in constant time."""

    def is_valid(self, claim: Claim) -> bool:
        """Whether a token that was good is still: neither expired nor revoked since."""


class DeviceSocket(Protocol):
    """A device's socket, as far as its conversation uses it; `transport.websocket.AcceptedSocket` is one."""

    client: str | None
    on_binary: Callable[[bytes], None] | None

    def send(self, message: bytes) -> None:
        """Send a text message."""

    def buffered_bytes(self) -> int:
        """How much has not left yet."""

    def close(self, code: int, reason: str = "") -> None:
        """Say goodbye; nothing more is heard."""


class DialIns(Protocol):
    """Takes sockets of servers."""

    def accept(self, socket: AcceptedSocket, claim: Claim, server_id: str | None) -> Hearer:
        """Use an open socket as one server's, from now on its owner."""

    def accept_mux(self, socket: AcceptedSocket, claim: Claim) -> Hearer:
        """Use an open socket as several servers', from now on its owner."""

    def roster(self, agent: str) -> AgentServers:
        """The servers of an agent, by its key; there may be none."""

    def servers(self) -> tuple[DialledServer, ...]:
        """Everybody who dialled in."""

    def connections(self) -> int:
        """Sockets of servers, in all."""

    def connections_of(self, agent: str) -> int:
        """Sockets of one agent's servers."""

    def room_for(self, agent: str, others: int, others_of_agent: int) -> str | None:
        """Why no further socket fits, beside so many that are not servers'; None if one does."""
