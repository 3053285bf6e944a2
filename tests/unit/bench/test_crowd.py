"""Conclusions of the crowd's bench from its measurements."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.crowd import Found, broken_promises, shares, table

KEPT = Found(
    connections=10_000,
    joining_seconds=20.0,
    joining_cpu_seconds=15.0,
    memory_before=50 * 1024 * 1024,
    memory_after=50 * 1024 * 1024 + 10_000 * 30 * 1024,
    idle_seconds=40.0,
    idle_cpu_seconds=2.0,
    medians=(0.0003, 0.0004, 0.0009),
    medians_alone=(0.0003, 0.0003, 0.0003),
    worst_joining=0.061,
    worst_leaving=0.023,
)


def test_figures_are_per_connection_and_per_second() -> None:
    assert KEPT.kib_each == pytest.approx(30)
    assert KEPT.idle_share == pytest.approx(0.05)
    assert KEPT.times_alone == pytest.approx(4 / 3)
    assert broken_promises(KEPT) == []


@pytest.mark.parametrize(
    ("broken", "word"),
    [
        (replace(KEPT, memory_after=KEPT.memory_before + 10_000 * 41 * 1024), "41.0 KiB"),
        (replace(KEPT, idle_cpu_seconds=4.1), "10.2%"),
        (replace(KEPT, medians=(0.0007, 0.0007, 0.0007)), "2.33 times"),
    ],
)
def test_each_promise_that_is_broken_is_named(broken: Found, word: str) -> None:
    (sentence,) = broken_promises(broken)
    assert word in sentence


def test_the_table_holds_every_figure_that_is_promised() -> None:
    lines = table(KEPT).splitlines()
    assert [line.split()[-1] for line in lines if line.split()[-1] in {"40", "10%", "2"}] == ["40", "10%", "2"]
    assert [line.split()[-1] for line in lines if "neighbour" in line] == ["61", "23"]


@pytest.mark.parametrize(("connections", "processes"), [(10_000, 2), (7, 3), (1, 2)])
def test_the_crowd_is_shared_out_whole(connections: int, processes: int) -> None:
    numbers = [number for first, count in shares(connections, processes) for number in range(first, first + count)]
    assert numbers == list(range(connections))
