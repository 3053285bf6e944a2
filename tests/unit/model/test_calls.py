"""Log levels of servers, from debug to emergency."""

from __future__ import annotations

from isthmus.model.calls import LOG_LEVELS, is_at_least


def test_levels_are_ordered() -> None:
    assert LOG_LEVELS[0] == "debug"
    assert LOG_LEVELS[-1] == "emergency"
    for wanted in range(len(LOG_LEVELS)):
        grave = [level for level in LOG_LEVELS if is_at_least(level, LOG_LEVELS[wanted])]
        assert grave == list(LOG_LEVELS[wanted:])
