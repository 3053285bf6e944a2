"""How much servers are asked to log: as much as the most curious caller wants."""

from __future__ import annotations

from isthmus.core.watch.levels import Levels
from isthmus.model.events import LogLevel


def heard(levels: Levels) -> list[LogLevel | None]:
    told: list[LogLevel | None] = []
    levels.watch(lambda: told.append(levels.lowest))
    return told


def test_nobody_asks_for_anything_at_first() -> None:
    assert Levels().lowest is None


def test_the_most_talkative_level_that_anybody_wants_is_asked_for() -> None:
    levels = Levels()
    told = heard(levels)
    levels.want("a", "error")
    levels.want("b", "debug")
    levels.want("c", "emergency")
    assert told == ["error", "debug"]
    assert levels.lowest == "debug"


def test_who_leaves_or_wants_less_is_heard_as_well() -> None:
    levels = Levels()
    levels.want("a", "debug")
    levels.want("b", "warning")
    told = heard(levels)
    levels.want("a", "critical")
    levels.want("b", None)
    levels.want("a", None)
    levels.want("never there", None)
    assert told == ["warning", "critical", None]


def test_a_watcher_that_left_hears_nothing() -> None:
    levels, told = Levels(), []
    unwatch = levels.watch(lambda: told.append("told"))
    unwatch()
    unwatch()
    levels.want("a", "info")
    assert told == []
