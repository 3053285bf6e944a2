"""Tasks that rest are kept in mind for a while, and those that somebody listens to for as long as that lasts."""

from __future__ import annotations

import pytest

from isthmus.core.tasks import rested
from isthmus.core.tasks.engine import Engine
from isthmus.core.tasks.live import Live
from isthmus.core.tasks.record import Owner, Record
from isthmus.core.tasks.reports import Noted
from isthmus.core.tasks.rested import Rested
from isthmus.storage.memory import MemoryJournal
from tests.unit.core.doubles import Stage, ready


class Ear:
    """Listens to no end."""

    def moved(self, record: Record) -> None:
        pass

    def happened(self, record: Record, noted: Noted) -> None:
        pass


def resting(number: int, size_bytes: int = 1) -> Live:
    engine = Engine(Stage.of(ready()).hub, MemoryJournal(), lambda: 0.0)
    live = Live(engine, Record(f"t{number}", Owner("a", "b"), "c", "1.0", "input_required", 1.0, float(number)))
    live.size_bytes = size_bytes
    return live


async def test_those_that_nobody_looked_at_for_the_longest_are_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rested, "TASKS_MAX", 2)
    tasks, lives = Rested(), [resting(number) for number in range(3)]
    for live in lives[:2]:
        tasks.keep(live.key, live)
    assert tasks.get(lives[0].key) is lives[0]
    tasks.keep(lives[2].key, lives[2])
    assert [tasks.get(live.key) for live in lives] == [lives[0], None, lives[2]]


async def test_all_of_them_take_so_much_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rested, "TASKS_BYTES", 10)
    tasks, lives = Rested(), [resting(number, 6) for number in range(2)]
    for live in lives:
        tasks.keep(live.key, live)
    assert [tasks.get(live.key) for live in lives] == [None, lives[1]]
    large = resting(3, 11)
    tasks.keep(large.key, large)
    assert tasks.get(large.key) is None


async def test_one_that_somebody_listens_to_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rested, "TASKS_MAX", 1)
    tasks, lives = Rested(), [resting(number) for number in range(3)]
    lives[0].listeners[Ear()] = None
    for live in lives:
        tasks.keep(live.key, live)
    assert tasks.get(lives[0].key) is lives[0]
    lives[0].listeners.clear()
    tasks.keep(lives[2].key, lives[2])
    assert [tasks.get(live.key) for live in lives] == [None, None, lives[2]]


async def test_what_the_journal_let_go_is_dropped() -> None:
    tasks, lives = Rested(), [resting(number) for number in range(3)]
    for live in lives:
        tasks.keep(live.key, live)
    tasks.drop(lambda record: record.updated < 2.0)
    assert [tasks.get(live.key) for live in lives] == [None, None, lives[2]]
