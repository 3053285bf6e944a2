"""Settings of servers that dial in, checked when they are made. `config` fills them from `[relay]`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from isthmus.model.relay import NO_AGENT_RULES, AgentRules


@dataclass(frozen=True, slots=True)
class DialInSettings:
    """Durations are seconds."""

    grace: float = 0.0
    """How long calls wait for a server that is away before they fail."""
    forget: float = 86_400.0
    """How long a server that is away stays listed."""
    max_servers: int = 32
    """Servers of one agent, including absent ones. The one that is away longest makes room."""
    max_tools: int = 500
    """Tools of all servers of one agent."""
    max_agent_connections: int = 64
    """Sockets of one agent, of servers and devices together."""
    max_connections: int = 20_000
    """Sockets of the whole relay."""
    agents: Mapping[str, AgentRules] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("grace", "forget"):
            value: float = getattr(self, name)
            if not 0 <= value < float("inf"):
                raise ValueError(f"{name} must be a number of seconds, 0 or more, not {value}")
        for name in ("max_servers", "max_tools", "max_agent_connections", "max_connections"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")

    def rules_of(self, agent: str) -> AgentRules:
        """The configuration of an agent, by its key."""
        return self.agents.get(agent, NO_AGENT_RULES)

    def grace_of(self, agent: str) -> float:
        """How long calls wait for this agent's servers."""
        own = self.rules_of(agent).grace
        return self.grace if own is None else own
