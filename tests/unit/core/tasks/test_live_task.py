"""Stored progress reports of a tool: the newest ones, in order, and bounded."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from isthmus.core.tasks.live_task import REPORTS_BYTES_MAX, REPORTS_MAX, ReportLog
from isthmus.model.calls import Progress
from tests.unit.core.doubles import raw


def reports_of(*sizes: int) -> ReportLog:
    """Reports with a message of so many letters each."""
    reports = ReportLog()
    for at, size in enumerate(sizes):
        reports.note(Progress({"message": raw("x" * size)}), float(at))
    return reports


def test_they_are_counted_from_one_and_returned_in_order_after_the_last_read_one() -> None:
    reports = reports_of(1, 1, 1)
    assert [(report.number, report.at) for report in reports.after(0)] == [(1, 0.0), (2, 1.0), (3, 2.0)]
    assert [report.number for report in reports.after(2)] == [3]
    assert reports.after(3) == []


def test_a_number_that_none_has_had_yet_is_another_hub_s_and_all_are_given() -> None:
    assert len(reports_of(1, 1).after(3)) == 2


@given(st.lists(st.integers(0, REPORTS_BYTES_MAX), max_size=2 * REPORTS_MAX))
def test_the_newest_are_remembered_as_far_as_there_is_room(sizes: list[int]) -> None:
    kept = reports_of(*sizes).after(0)
    numbers = [report.number for report in kept]
    assert numbers == list(range(len(sizes) - len(kept) + 1, len(sizes) + 1))
    assert len(kept) <= REPORTS_MAX
    # Each costs nine bytes beside its letters: its member's name, and quotes.
    room = REPORTS_BYTES_MAX - sum(size + 9 for size in sizes[len(sizes) - len(kept) :])
    assert room >= 0
    assert len(kept) in (REPORTS_MAX, len(sizes)) or room < sizes[len(sizes) - len(kept) - 1] + 9


def test_once_forgotten_they_take_no_room_and_counting_goes_on() -> None:
    reports = reports_of(1, 1)
    reports.clear()
    assert reports.after(0) == []
    reports.note(Progress({}), 9.0)
    assert [report.number for report in reports.after(0)] == [3]


def test_a_turn_begins_after_all_that_was_reported_before() -> None:
    reports = reports_of(1, 1)
    assert reports.turn == 0
    reports.begin_turn()
    assert reports.turn == 2
