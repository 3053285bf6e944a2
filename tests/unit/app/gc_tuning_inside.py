"""The cycle collector with many servers: its timing and its work; `test_gc_tuning` runs these tests."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from isthmus.app.process_setup import CROWD, FREEZE_AFTER, THOROUGH_AFTER, CrowdCollector


class Cycle:
    """Something that has itself; `ended` counts those that were freed."""

    ended = 0

    def __init__(self) -> None:
        self.itself: Cycle | None = self

    def __del__(self) -> None:
        Cycle.ended += 1


@pytest.fixture
def collector() -> Iterator[Crowded]:
    """A crowd that comes and goes as a test wants, where nothing is looked at but by it."""
    gc.collect()
    gc.disable()
    Cycle.ended = 0
    try:
        yield Crowded()
    finally:
        gc.unfreeze()
        gc.enable()


class Crowded:
    def __init__(self) -> None:
        self.servers = 0
        self.frozen = gc.get_freeze_count()
        """What is never looked at anyhow: Python 3.12 has some of that."""
        self.collector = CrowdCollector(lambda: self.servers)

    def join(self, count: int) -> None:
        for _ in range(count):
            self.servers += 1
            self.collector.joined()

    def come_again(self, count: int) -> None:
        for _ in range(count):
            self.collector.joined()


def test_few_servers_are_left_to_the_collector(collector: Crowded) -> None:
    collector.join(CROWD - 1)
    collector.come_again(FREEZE_AFTER)
    assert gc.get_freeze_count() == collector.frozen


def test_many_objects_are_collected_once_and_then_frozen(collector: Crowded) -> None:
    collector.join(CROWD - 1)
    staying, going = Cycle(), Cycle()
    del going
    collector.join(1)
    assert Cycle.ended == 1
    assert gc.get_freeze_count() > collector.frozen
    del staying
    gc.collect()
    assert Cycle.ended == 1


def test_later_objects_are_frozen_now_and_then(collector: Crowded) -> None:
    collector.join(CROWD)
    late = Cycle()
    collector.join(FREEZE_AFTER - 1)
    assert any(each is late for each in gc.get_objects())
    collector.join(1)
    assert not any(each is late for each in gc.get_objects())


def test_everything_is_looked_at_when_all_have_come_again_often(collector: Crowded) -> None:
    collector.join(CROWD - 1)
    going = Cycle()
    collector.join(1)
    del going
    collector.come_again((THOROUGH_AFTER - 1) * CROWD)
    assert Cycle.ended == 0
    collector.come_again(FREEZE_AFTER)
    assert Cycle.ended == 1


def test_everything_is_looked_at_once_the_crowd_is_gone(collector: Crowded) -> None:
    collector.join(CROWD - 1)
    going = Cycle()
    collector.join(1)
    del going
    collector.collector.look()
    assert Cycle.ended == 0
    collector.servers = 10
    collector.collector.look()
    assert Cycle.ended == 1
    another = Cycle()
    del another
    collector.collector.look()
    assert Cycle.ended == 1
