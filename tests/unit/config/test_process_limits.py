from __future__ import annotations

import pytest

from isthmus.config.process_limits import process_limits, size_of
from isthmus.transport.bounds import ProcessLimits


def test_limits_are_read_with_their_units() -> None:
    table = {"memory": "1GiB", "files": 256, "processes": "32", "cpu_seconds": 60}
    assert process_limits(table) == ProcessLimits(1 << 30, 256, 32, 60)
    assert process_limits({}) == ProcessLimits()


@pytest.mark.parametrize(
    ("written", "size"), [("512MiB", 512 << 20), ("64 KiB", 64 << 10), ("1Ti", 1 << 40), ("4096B", 4096), (4096, 4096)]
)
def test_a_size_is_a_number_of_bytes_or_has_a_unit(written: object, size: int) -> None:
    assert size_of("memory", written) == size


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ({"memory": "much"}, "limits.memory must be a size like 512MiB or 1GiB, not 'much'"),
        ({"memory": "1KiB"}, "limits.memory must be at least 16777216, not 1024"),
        ({"memory": 1.5}, "limits.memory must be a size like 512MiB or 1GiB, not 1.5"),
        ({"files": "many"}, "limits.files must be a whole number, not 'many'"),
        ({"files": 0}, "limits.files must be at least 1, not 0"),
        ({"fiels": 3}, "limits must have only memory, files, processes, cpu_seconds, not 'fiels'"),
        (3, "limits must be a table, not 3"),
    ],
)
def test_what_makes_no_sense_is_told(table: object, told: str) -> None:
    with pytest.raises(ValueError, match=told.replace(".", r"\.")):
        process_limits(table)
