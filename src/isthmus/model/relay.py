"""The relay's words: agents, the servers that dial in under them, and the devices that call them.

Plain values, shared by the face that accepts sockets, by `upstream.dialin` that uses them, and by whoever shows them.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from isthmus.model.names import ServerName

Role: TypeAlias = Literal["server", "device"]
"""Which end of the relay a token opens: servers dial in at one, devices call at the other."""

DialledState: TypeAlias = Literal["connecting", "ready", "away"]
"""`connecting`: its socket is there and it is not listed yet. `away`: it was here and is not; its tools are kept."""

Forgetting: TypeAlias = Literal["forgotten", "connected", "unknown"]
"""What became of the wish that a server be forgotten: that is done only while it is away."""

DEFAULT_TENANT = "default"

MUX_SUBPROTOCOL = "isthmus.mux.v1"
"""Several servers on one WebSocket."""

RELAY_SUBPROTOCOL = "isthmus.relay.v1"
"""One server, or one device, that shows its token in the handshake instead of the address."""

BEARER_SUBPROTOCOL = "isthmus.bearer."
"""A client that cannot set headers offers this and its token as one more subprotocol, which is never chosen."""


class Claim(msgspec.Struct, frozen=True):
    """What a token proves."""

    agent: str
    tenant: str = DEFAULT_TENANT
    role: Role | None = None
    """None opens both ends, as the original's tokens do."""
    id: str = ""
    """By which it can be revoked; the original's tokens have none."""
    expires_at: float | None = None
    """In seconds since the epoch."""
    under: str = ""
    """Marks the key that its token was checked with, and says nothing of it: with another key it is good no more."""

    @property
    def key(self) -> str:
        """The agent, told from agents of the same name in other tenants."""
        return self.agent if self.tenant == DEFAULT_TENANT else f"{self.tenant}/{self.agent}"


class AgentRules(msgspec.Struct, frozen=True):
    """What is configured of one agent."""

    name: str | None = None
    """What its servers' names begin with instead of its id."""
    allow: tuple[str, ...] = ()
    """What else its devices may see, beside the servers that dial in under it: patterns as callers have them."""
    deny: tuple[str, ...] = ()
    """What its devices do not see, its own servers included."""
    grace: float | None = None
    """How long calls wait for a server that is away, in seconds; None for what holds for all agents."""


NO_AGENT_RULES = AgentRules()


class DialledServer(msgspec.Struct, frozen=True):
    """A server that dialled in, as it is shown. Times are in seconds since the epoch."""

    agent: str
    server_id: str
    name: ServerName
    """What it is called on the other faces."""
    state: DialledState
    since: float
    """When it came to be in this state."""
    tools: tuple[str, ...] = ()
    title: str | None = None
    """What it calls itself: name and version."""
    reason: str | None = None
    """Why it is away."""
    client: str | None = None
    """The address it dials from."""
    is_muxed: bool = False
    """It shares its socket with others."""
    calls: int = 0
    """Calls on the way."""


class RelayDevice(msgspec.Struct, frozen=True):
    """A device that is connected, as it is shown."""

    id: str
    agent: str
    since: float
    client: str | None = None
    title: str | None = None
    calls: int = 0
    """Calls on the way."""
    answered: int = 0


class RelayStatus(msgspec.Struct, frozen=True):
    """Everything of the relay at one moment."""

    servers: tuple[DialledServer, ...] = ()
    devices: tuple[RelayDevice, ...] = ()
