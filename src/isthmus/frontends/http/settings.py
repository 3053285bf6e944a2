"""Where the door listens, what one client may cost it, and how many of them there may be from one address."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

PATROL_SECONDS = 0.5
"""How often connections are inspected: a limit is enforced at most this late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DoorSettings:
    """Where the door listens and what one client may cost."""

    host: str = "127.0.0.1"
    port: int = 8765
    header_seconds: float = 10.0
    """For a whole request head, from the connection's opening or the next request's first byte."""
    body_seconds: float = 10.0
    """The window in which a body must arrive or keep its rate."""
    body_bytes_per_second: int = 1024
    keep_alive_seconds: float = 75.0
    max_head_bytes: int = 32 * 1024
    max_body_bytes: int = 4 * 1024 * 1024
    stall_bytes: int = 1024 * 1024
    """Unsent output beyond which nothing more is written: the client is cut."""
    stall_seconds: float = 10.0
    """How long output may stay unsent before the client is cut."""
    drain_seconds: float = 30.0
    max_connections: int = 4096
    max_connections_per_address: int = 2048
    """Of these, at most so many from one address: whoever is there leaves room for others."""

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ValueError(f"port must be between 0 and 65535, not {self.port}")
        for name in self.__slots__:
            value = getattr(self, name)
            if name not in ("host", "port") and value <= 0:
                raise ValueError(f"{name} must be positive, not {value}")

    @property
    def patrol_seconds(self) -> float:
        """Often enough that the shortest limit is kept with a quarter to spare."""
        shortest = min(self.header_seconds, self.body_seconds, self.keep_alive_seconds, self.stall_seconds)
        return min(PATROL_SECONDS, shortest / 4)


class Addresses:
    """How many connections there are from each address."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._counts: dict[str, int] = {}

    def has_room_for(self, address: str) -> bool:
        """Count one more connection from an address; False if that is one too many."""
        address = whose_address(address)
        count = self._counts[address] = self._counts.get(address, 0) + 1
        return count <= self._limit

    def left(self, address: str) -> None:
        """A connection from an address is gone, or is a WebSocket now, which is counted elsewhere."""
        address = whose_address(address)
        count = self._counts.get(address, 0) - 1
        if count > 0:
            self._counts[address] = count
        else:
            self._counts.pop(address, None)


def whose_address(address: str) -> str:
    """Whose address it is: of IPv6, everybody has 2^64 of them."""
    if ":" not in address:
        return address
    try:
        found = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    return str(found.ipv4_mapped or ipaddress.IPv6Address(int(found) >> 64 << 64))
