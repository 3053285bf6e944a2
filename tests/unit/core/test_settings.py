"""Limits refuse values that cannot work."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus.core.settings import Limits


def test_the_defaults_are_acceptable_and_as_documented() -> None:
    limits = Limits()
    assert (limits.call_seconds, limits.hard_seconds, limits.drain_seconds) == (240.0, 3600.0, 30.0)
    assert (limits.request_bytes, limits.reply_bytes, limits.depth) == (4 << 20, 16 << 20, 64)


def test_no_queue_at_all_is_a_choice() -> None:
    assert Limits(max_queued=0).max_queued == 0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"call_seconds": 0}, "call_seconds must be positive, not 0"),
        ({"connect_seconds": -1.5}, "connect_seconds must be positive, not -1.5"),
        ({"drain_seconds": float("nan")}, "drain_seconds must be positive, not nan"),
        ({"lag_seconds": float("inf")}, "lag_seconds must be positive, not inf"),
        ({"hard_seconds": 86_401}, "hard_seconds must be at most 86400, not 86401"),
        ({"max_calls": 0}, "max_calls must be positive, not 0"),
        ({"max_queued": -1}, "max_queued must be at least 0, not -1"),
        ({"request_bytes": 100}, "request_bytes must be at least 4096, not 100"),
        ({"depth": 4}, "depth must be at least 8, not 4"),
        ({"depth": 1000}, "depth must be at most 512, not 1000"),
        ({"breaker_share": 1.5}, "breaker_share must be at most 1, not 1.5"),
        ({"hard_seconds": 20}, "call_seconds must be at most hard_seconds (20), not 240.0"),
        (
            {"breaker_open_max_seconds": 1},
            "breaker_open_max_seconds must be at least breaker_open_seconds (3.0), not 1",
        ),
    ],
)
def test_a_bad_limit_is_refused_by_name_rule_and_value(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match="must be") as refused:
        Limits(**values)
    assert str(refused.value) == message
