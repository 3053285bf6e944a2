"""Values of the relay: agents, the servers that dial in under them, and the devices that call them.

Shared by the frontend that accepts sockets, by `upstream.dialin`, and by everything that shows them.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from isthmus.model.names import ServerName

Role: TypeAlias = Literal["server", "device"]
"""Which end of the relay a token opens: servers dial in at one, devices call at the other."""

DialledState: TypeAlias = Literal["connecting", "ready", "away"]
"""`connecting`: connected and not listed yet. `away`: disconnected; its tools are kept."""

Forgetting: TypeAlias = Literal["forgotten", "connected", "unknown"]
"""The result of forgetting a server, which is possible only while it is away."""

DEFAULT_TENANT = "default"

MUX_SUBPROTOCOL = "isthmus.mux.v1"
"""Several servers on one WebSocket."""

RELAY_SUBPROTOCOL = "isthmus.relay.v1"
"""One server or device, with its token in the handshake instead of the URL."""

BEARER_SUBPROTOCOL = "isthmus.bearer."
"""A client that cannot set headers offers this prefix and its token as one more subprotocol, which is never chosen."""


class Claim(msgspec.Struct, frozen=True):
    """What a token proves."""

    agent: str
    tenant: str = DEFAULT_TENANT
    role: Role | None = None
    """None opens both ends, as the original's tokens do."""
    id: str = ""
    """The id by which it can be revoked; the original's tokens have none."""
    expires_at: float | None = None
    """In seconds since the epoch."""
    under: str = ""
    """An id of the key that verified the token, which reveals nothing of the key: with another key the token is
    invalid."""

    @property
    def key(self) -> str:
        """The agent, qualified by its tenant unless that is the default."""
        return self.agent if self.tenant == DEFAULT_TENANT else f"{self.tenant}/{self.agent}"


class AgentRules(msgspec.Struct, frozen=True):
    """The configuration of one agent."""

    name: str | None = None
    """The prefix of its servers' names instead of its id."""
    allow: tuple[str, ...] = ()
    """What else its devices may see besides the servers that dial in under it: patterns as for callers."""
    deny: tuple[str, ...] = ()
    """What its devices do not see, including its own servers."""
    grace: float | None = None
    """How long calls wait for a server that is away, in seconds; None for the general setting."""


NO_AGENT_RULES = AgentRules()


class DialledServer(msgspec.Struct, frozen=True):
    """A server that dialled in. Times are in seconds since the epoch."""

    agent: str
    server_id: str
    name: ServerName
    """Its name on the other frontends."""
    state: DialledState
    since: float
    """When its state began."""
    tools: tuple[str, ...] = ()
    title: str | None = None
    """Its own name and version."""
    reason: str | None = None
    """Why it is away."""
    client: str | None = None
    """The address it dials from."""
    is_muxed: bool = False
    """It shares its socket with others."""
    calls: int = 0
    """Running calls."""


class RelayDevice(msgspec.Struct, frozen=True):
    """A connected device."""

    id: str
    agent: str
    since: float
    client: str | None = None
    title: str | None = None
    calls: int = 0
    """Running calls."""
    answered: int = 0


class RelayStatus(msgspec.Struct, frozen=True):
    """All servers and devices now."""

    servers: tuple[DialledServer, ...] = ()
    devices: tuple[RelayDevice, ...] = ()
