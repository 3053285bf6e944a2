"""Settings of the A2A agent; `config` fills them from `[a2a]`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from isthmus.core.tasks.storage_limits import DEFAULT_BYTES

KEEP_BYTES_MIN = 64 * 1024
"""Room for a few tasks."""

CardForm = Literal["merged", "strict"]


@dataclass(frozen=True, slots=True)
class A2aSettings:
    """Settings of the agent. Durations are seconds."""

    name: str = "Isthmus"
    description: str = "Runs the tools of MCP servers as instructed."
    text_tool: str | None = None
    """The tool that handles plain text; without one, the caller is asked for an instruction."""
    card: CardForm = "merged"
    """The card for requests without a version: merged for 1.0 and 0.3, or strictly 1.0."""
    keep: float = 7 * 24 * 3600.0
    """How long an ended task is stored."""
    keep_bytes: int = DEFAULT_BYTES
    """Storage for the tasks of one caller, for A2A and MCP each."""
    grpc_port: int | None = None
    """The gRPC port, on the same host as HTTP; 0 lets the system choose."""
    grpc_url: str | None = None
    """The public URL of the gRPC port, for the card."""

    def __post_init__(self) -> None:
        for key in ("name", "description", "text_tool", "grpc_url"):
            if (value := getattr(self, key)) is not None and not value.strip():
                raise ValueError(f"{key} must not be empty")
        if self.card not in get_args(CardForm):
            raise ValueError(f"card must be one of {', '.join(get_args(CardForm))}, not {self.card!r}")
        if not 0 < self.keep < float("inf"):
            raise ValueError(f"keep must be a number of seconds above 0, not {self.keep:g}")
        if self.keep_bytes < KEEP_BYTES_MIN:
            raise ValueError(f"keep_bytes must be at least {KEEP_BYTES_MIN}, not {self.keep_bytes}")
        if self.grpc_port is not None and not 0 <= self.grpc_port <= 65535:
            raise ValueError(f"grpc_port must be 0 to 65535, not {self.grpc_port}")
