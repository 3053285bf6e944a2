"""Settings are checked when made."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus.frontends.relay.settings import RelaySettings
from isthmus.model.relay import NO_AGENT_RULES, AgentRules


@pytest.mark.parametrize(
    "bad",
    [
        {"aggregate": "some"},
        {"wait": 0},
        {"wait": float("nan")},
        {"timeout": float("inf")},
        {"timeout": -1},
        {"frame_bytes": 1},
    ],
)
def test_a_bad_value_is_refused_by_name(bad: dict[str, Any]) -> None:
    (name,) = bad
    with pytest.raises(ValueError, match=name):
        RelaySettings(**bad)


def test_an_agent_has_the_rules_that_are_configured_of_it() -> None:
    rules = AgentRules(deny=("x",))
    settings = RelaySettings(agents={"a": rules})
    assert settings.rules_of("a") is rules
    assert settings.rules_of("b") is NO_AGENT_RULES
