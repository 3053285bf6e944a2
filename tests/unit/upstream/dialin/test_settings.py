"""Settings of dial-in servers: valid values, and which of two settings counts."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus.model.relay import AgentRules
from isthmus.upstream.dialin.settings import DialInSettings


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"grace": -1}, "grace must be a number of seconds, 0 or more, not -1"),
        ({"forget": float("inf")}, "forget must be a number of seconds, 0 or more, not inf"),
        ({"max_servers": 0}, "max_servers must be at least 1, not 0"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused_by_name(words: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        DialInSettings(**words)


def test_an_agents_own_grace_counts_even_if_it_is_zero() -> None:
    agents = {"own": AgentRules(grace=5.0), "none": AgentRules(grace=0.0), "silent": AgentRules()}
    settings = DialInSettings(grace=30.0, agents=agents)
    assert [settings.grace_of(agent) for agent in ("own", "none", "silent", "unknown")] == [5.0, 0.0, 30.0, 30.0]
