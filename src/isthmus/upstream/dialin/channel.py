"""What a server that dials in is spoken to over: a socket of its own, or its part of one that several share.

`transport.websocket.AcceptedSocket` and `upstream.dialin.mux.MuxChannel` fit it.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable


class Offered(Protocol):
    """An open channel, whose owner closes it."""

    @property
    def client(self) -> str | None:
        """The address that it was dialled from."""

    def frame(self, message: bytes) -> bytes:
        """One message, ready to be written."""

    def write(self, data: bytes) -> int:
        """Send frames; return the offset of their end in all that was ever written."""

    def has_left(self, offset: int) -> bool:
        """Whether the byte before `offset` may have reached the server."""

    def buffered_bytes(self) -> int:
        """How much the server has not taken yet."""

    async def is_alive(self, within: float) -> bool:
        """Whether the peer gives a sign of life when it is asked for one."""

    def kill(self) -> None:
        """End it at once."""

    def close(self, code: int, reason: str) -> None:
        """Say goodbye; nothing is heard afterwards, and nobody need wait."""

    async def aclose(self, code: int = 1000, reason: str = "") -> None:
        """Say goodbye and wait a moment for the peer's."""


@runtime_checkable
class Naming(Protocol):
    """A channel whose peer wants to know what its server is called in the hub."""

    def named(self, server: str, grace: float) -> None:
        """Tell it, and for how long calls wait in the hub while the server is away."""
