"""Which tests `.ci/run` runs again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.again import FAILURES_MAX, failed_tests, main

LOG = """\
[gw0] [ 99%] PASSED tests/unit/test_a.py::test_states[rejected-FAILED]@a
FAILED tests/unit/test_lines.py::test_cut[a - b] c]@wire.test_lines - AssertionError: [x] - y
FAILED tests/security/test_T79_approvals.py::test_what_was_allowed - AssertionError('assert 404 == 200')
ERROR tests/console/test_pages.py::test_page@console
FAILED tests/security/test_T79_approvals.py::test_what_was_allowed - AssertionError('again')
"""


def test_the_ids_of_failed_tests_are_read_from_the_summary() -> None:
    assert failed_tests(LOG) == [
        "tests/unit/test_lines.py::test_cut[a - b] c]",
        "tests/security/test_T79_approvals.py::test_what_was_allowed",
        "tests/console/test_pages.py::test_page",
    ]


@pytest.mark.parametrize("count", [0, FAILURES_MAX + 1])
def test_many_failures_and_a_run_that_broke_off_are_not_repeated(tmp_path: Path, count: int) -> None:
    log = tmp_path / "log"
    log.write_text("".join(f"FAILED tests/unit/test_a.py::test_{number}\n" for number in range(count)))
    assert main(log) == 1
