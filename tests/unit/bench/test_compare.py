"""When a tree counts as slower than another."""

from __future__ import annotations

import pytest

from bench.compare import HERE, is_slower, steps_table, table, takes_more_steps


@pytest.mark.parametrize(
    ("here", "there", "slower"),
    [
        ([80.0, 82.0, 84.0], [78.0, 79.0, 86.0], False),  # one process of the other costs more
        ([81.0, 82.0, 83.0], [78.0, 79.0, 80.0], False),  # less than 5 %
        ([90.0, 91.0, 92.0], [78.0, 79.0, 80.0], True),
        ([70.0, 71.0], [78.0, 79.0], False),
    ],
)
def test_only_a_difference_beyond_that_of_processes_counts(
    here: list[float], there: list[float], *, slower: bool
) -> None:
    assert is_slower(here, there) is slower


def test_the_table_has_the_median_and_the_range_of_the_processes() -> None:
    shown = table({("hub", HERE): [3.0, 1.0, 2.0], ("hub", "v1"): [4.0]}, "v1").splitlines()
    assert shown[1].split() == ["hub", "this", "tree", "2.0", "1.0", "3.0", "3"]
    assert shown[2].split() == ["hub", "v1", "4.0", "4.0", "4.0", "1"]


def test_steps_are_compared_in_all_and_shown_by_package() -> None:
    here, there = {"hub": {"core": 60.0, "telemetry": 42.0}}, {"hub": {"core": 80.0, "faces": 20.0}}
    shown = [line.split() for line in steps_table(here, there, "v1").splitlines()[1:]]
    assert shown[0] == ["hub", "all", "100", "102", "+2.0", "%"]
    assert ["telemetry", "0", "42", "+42.0", "%"] in shown
    assert not takes_more_steps(here["hub"], there["hub"])
    assert takes_more_steps({"core": 104.0}, there["hub"])
