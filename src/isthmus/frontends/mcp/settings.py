"""What an operator can say of tasks on the MCP face; `config` fills it from `[tasks]`."""

from __future__ import annotations

from dataclasses import dataclass

AFTER_MAX = 600.0
"""As long as any call may take: with more, none would become a task."""


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """What the hub does for callers where their servers have no tasks."""

    provide: bool = True
    """Whether it runs tools as tasks of its own."""
    after: float = 5.0
    """After how many seconds a call becomes a task, for a modern caller that knows what to do with one."""

    def __post_init__(self) -> None:
        if not 0 < self.after <= AFTER_MAX:
            raise ValueError(f"after must be above 0 and at most {AFTER_MAX:g} seconds, not {self.after:g}")
