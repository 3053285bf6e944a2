"""The oracle must catch every kind of lie, and no honest history."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.oracle import Record, Violation, Wrong, judge, read_ledger


@pytest.mark.parametrize(
    ("record", "ran"),
    [
        (Record("a", "ok", answer="a"), 1),
        (Record("a", "no"), 0),
        (Record("a", "yes"), 1),
        (Record("a", "unknown"), 0),
        (Record("a", "unknown"), 1),
        (Record("a", "ok", answer="a", is_idempotent=True), 2),
        (Record("a", "unknown", started=1.0, ended=31.4, deadline=30.0), 1),
    ],
)
def test_an_honest_call_is_no_violation(record: Record, ran: int) -> None:
    assert judge([record], {"a": ran} if ran else {}) == []


@pytest.mark.parametrize(
    ("record", "ran", "wrong"),
    [
        (Record("a", "ok", answer="a"), 2, Wrong.DUPLICATE),
        (Record("a", "unknown"), 2, Wrong.DUPLICATE),
        (Record("a", "no"), 1, Wrong.LIED_NOT_SENT),
        (Record("a", "yes"), 0, Wrong.LIED_RAN),
        (Record("a", "ok", answer="a"), 0, Wrong.PHANTOM_OK),
        (Record("a", "ok", answer="b"), 1, Wrong.FOREIGN),
        (Record("a", "ok", answer=None), 1, Wrong.FOREIGN),
        (Record("a", None, ended=None), 0, Wrong.HANG),
        (Record("a", "unknown", started=1.0, ended=41.1, deadline=30.0), 1, Wrong.HANG),
    ],
)
def test_each_lie_is_caught_by_its_name(record: Record, ran: int, wrong: Wrong) -> None:
    assert judge([record], {"a": ran} if ran else {}) == [Violation(wrong, "a")]


def test_one_call_can_be_wrong_in_several_ways() -> None:
    found = judge([Record("a", "no", ended=41.0)], {"a": 2})

    assert {violation.wrong for violation in found} == {Wrong.DUPLICATE, Wrong.HANG, Wrong.LIED_NOT_SENT}


def test_what_ran_without_a_call_is_an_orphan() -> None:
    assert judge([], {"ghost": 1}) == [Violation(Wrong.ORPHAN, "ghost")]


def test_a_ledger_counts_executions_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    path.write_text('{"nonce": "a", "pid": 1}\n{"cancelled": "a", "pid": 1}\n{"nonce": "a", "pid": 2}\n{"child": 3}\n')

    assert read_ledger(path) == {"a": 2}
    assert read_ledger(tmp_path / "none") == {}


def test_a_violation_reads_as_a_sentence() -> None:
    assert str(Violation(Wrong.LIED_NOT_SENT, "n7")) == "LIED_NOT_SENT n7: reported as not executed, and it ran"
