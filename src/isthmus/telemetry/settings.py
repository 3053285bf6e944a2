"""What an operator can say of the audit log; `config` fills it from `[audit]` and `[hub] audit`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

AuditMode: TypeAlias = Literal["off", "batched", "strict"]

DAY_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True)
class AuditSettings:
    """How long records are kept."""

    keep: float = 90 * DAY_SECONDS
    """In seconds."""

    def __post_init__(self) -> None:
        if not self.keep >= DAY_SECONDS:
            raise ValueError(f"keep must be a day (1d) or more, not {self.keep:g} s")
