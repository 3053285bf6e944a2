"""Settings of the relay, checked when created. `config` fills them from `[relay]`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

from isthmus.core.access.tenants import NO_TENANTS, Tenants
from isthmus.model.relay import NO_AGENT_RULES, AgentRules

Aggregate: TypeAlias = Literal["all", "first"]
"""Which responses answer a request to all servers: those of all servers that respond in time, or the first."""

FRAME_BYTES_MIN = 4 * 1024


@dataclass(frozen=True, slots=True)
class RelaySettings:
    """Durations are seconds."""

    enabled: bool = True
    aggregate: Aggregate = "all"
    wait: float = 5.0
    """How long a request to all servers waits for the last response."""
    timeout: float = 25.0
    """Timeout of a device's call: less than the 30 s after which devices give up."""
    frame_bytes: int = 1024 * 1024
    """The longest message to a device: a longer one would end its connection."""
    agents: Mapping[str, AgentRules] = field(default_factory=dict)
    tenants: Tenants = NO_TENANTS
    """The limits of tenants, which also apply to their agents. Not a key of `[relay]`."""

    def __post_init__(self) -> None:
        if self.aggregate not in get_args(Aggregate):
            raise ValueError(f"aggregate must be one of {', '.join(get_args(Aggregate))}, not {self.aggregate!r}")
        for name in ("wait", "timeout"):
            value: float = getattr(self, name)
            if not 0 < value < float("inf"):
                raise ValueError(f"{name} must be a number of seconds above 0, not {value}")
        if self.frame_bytes < FRAME_BYTES_MIN:
            raise ValueError(f"frame_bytes must be at least {FRAME_BYTES_MIN}, not {self.frame_bytes}")

    def rules_of(self, agent: str) -> AgentRules:
        """The rules of an agent, by its key."""
        return self.agents.get(agent, NO_AGENT_RULES)
