"""Settings of hub tasks for MCP callers; `config` fills them from `[tasks]`."""

from __future__ import annotations

from dataclasses import dataclass

AFTER_MAX = 600.0
"""The longest that any call may take; with more, no call would become a task."""


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """What the hub does for callers whose servers have no tasks."""

    provide: bool = True
    """Whether the hub runs tools as tasks itself."""
    after: float = 5.0
    """After how many seconds a call becomes a task, for a modern caller that supports tasks."""

    def __post_init__(self) -> None:
        if not 0 < self.after <= AFTER_MAX:
            raise ValueError(f"after must be above 0 and at most {AFTER_MAX:g} seconds, not {self.after:g}")
