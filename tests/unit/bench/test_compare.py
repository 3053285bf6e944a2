"""When a tree counts as slower than another."""

from __future__ import annotations

import pytest

from bench.compare import HERE, is_slower, table


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
