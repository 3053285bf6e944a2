"""Budgets as configured: what they limit, whose calls they are about, and when they are renewed.

`config` fills in `Budget`, and `core.calls.budgets` counts. Periods are those of UTC: a day begins at midnight, a month
at its first midnight. Time is always an argument.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, TypeAlias, get_args

Period: TypeAlias = Literal["hour", "day", "month"]
PERIODS: tuple[Period, ...] = get_args(Period)

Per: TypeAlias = Literal["caller", "tenant", "set", "tool", "hub"]
"""What one counter belongs to."""
PERS: tuple[Per, ...] = get_args(Per)

HOUR_SECONDS = 3600
DAY_SECONDS = 86_400

COST_DIGITS = 6
"""Digits after the point of a cost. Sums are rounded to them: ten calls of 0.1 cost 1."""

LIMIT_MAX = 2**53
"""What every reader of JSON can hold exactly."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits for one period, and the calls that they are about. A call needs room in every budget that is about it."""

    name: str
    calls: int | None = None
    result_bytes: int | None = None
    cost: float | None = None
    period: Period = "day"
    per: Per = "caller"
    callers: tuple[str, ...] = ()
    """Names of callers; none for all."""
    tenants: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    """Patterns, as in permissions; none for all tools."""
    costs: tuple[tuple[str, float], ...] = ()
    """Patterns of tools, and what a call of such a tool costs; 1 where none matches."""

    def __post_init__(self) -> None:
        if self.calls is self.result_bytes is self.cost is None:
            raise ValueError("needs calls, result_bytes or cost")
        for key in ("calls", "result_bytes", "cost"):
            limit = getattr(self, key)
            if limit is not None and not 0 <= limit <= LIMIT_MAX:
                raise ValueError(f"{key} must be 0 to {LIMIT_MAX}, not {limit}")
        if self.costs and self.cost is None:
            raise ValueError("costs must come with cost, the limit of their sum")
        for pattern, cost in self.costs:
            if not 0 <= cost <= LIMIT_MAX or round(cost, COST_DIGITS) != cost:
                raise ValueError(f"costs.{pattern} must be 0 or more, with at most {COST_DIGITS} decimal places")
        for key, known in (("period", PERIODS), ("per", PERS)):
            if (value := getattr(self, key)) not in known:
                raise ValueError(f"{key} must be one of {', '.join(known)}, not {value!r}")

    def is_about(self, tenant: str, caller: str, set: str | None) -> bool:
        """Whether it is about calls of this caller in this set."""
        return (
            (not self.callers or caller in self.callers)
            and (not self.tenants or tenant in self.tenants)
            and (not self.sets or set in self.sets)
        )


def period_at(period: Period, now: float) -> tuple[float, float]:
    """When the period of this moment began, and when the next one begins."""
    if period != "month":
        seconds = HOUR_SECONDS if period == "hour" else DAY_SECONDS
        began = now // seconds * seconds
        return began, began + seconds
    moment = datetime.fromtimestamp(now, UTC)
    first = datetime(moment.year, moment.month, 1, tzinfo=UTC)
    following = datetime(moment.year + moment.month // 12, moment.month % 12 + 1, 1, tzinfo=UTC)
    return first.timestamp(), following.timestamp()
