"""Settings of the HTTP listener: its address, the limits of one client, and connections per address."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

INSPECT_SECONDS = 0.5
"""How often connections are inspected; limits are enforced at most this late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpListenerSettings:
    """The listener's address and the limits of one client."""

    host: str = "127.0.0.1"
    port: int = 8765
    header_seconds: float = 10.0
    """For a whole request head, from the start of the connection or the request's first byte."""
    body_seconds: float = 10.0
    """The window in which a body must arrive or keep its rate."""
    body_bytes_per_second: int = 1024
    keep_alive_seconds: float = 75.0
    max_head_bytes: int = 32 * 1024
    max_body_bytes: int = 4 * 1024 * 1024
    stall_bytes: int = 1024 * 1024
    """A client with more unsent output than this is disconnected."""
    stall_seconds: float = 10.0
    """A client whose output stays unsent for longer is disconnected."""
    drain_seconds: float = 30.0
    max_connections: int = 4096
    max_connections_per_address: int = 2048
    """Connections from one address at most, so that others find room."""

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ValueError(f"port must be between 0 and 65535, not {self.port}")
        for name in self.__slots__:
            value = getattr(self, name)
            if name not in ("host", "port") and value <= 0:
                raise ValueError(f"{name} must be positive, not {value}")

    @property
    def inspect_seconds(self) -> float:
        """The interval of inspections: a quarter of the shortest limit at most."""
        shortest = min(self.header_seconds, self.body_seconds, self.keep_alive_seconds, self.stall_seconds)
        return min(INSPECT_SECONDS, shortest / 4)


class AddressCounts:
    """The number of connections from each address."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._counts: dict[str, int] = {}

    def has_room_for(self, address: str) -> bool:
        """Count one more connection from an address; False if there are too many."""
        address = client_address(address)
        count = self._counts[address] = self._counts.get(address, 0) + 1
        return count <= self._limit

    def left(self, address: str) -> None:
        """A connection from an address has closed, or has become a WebSocket, which is counted elsewhere."""
        address = client_address(address)
        count = self._counts.get(address, 0) - 1
        if count > 0:
            self._counts[address] = count
        else:
            self._counts.pop(address, None)


def client_address(address: str) -> str:
    """The address by which a client is counted: the /64 network for IPv6, because one client has all of it."""
    if ":" not in address:
        return address
    try:
        found = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    return str(found.ipv4_mapped or ipaddress.IPv6Address(int(found) >> 64 << 64))
