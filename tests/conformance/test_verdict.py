"""Which checks count as lost, as known gaps and as fixed."""

from __future__ import annotations

import json
from pathlib import Path

from tests.conformance.client import SCRIPTS, filled
from tests.conformance.suite import CLIENT_SCENARIOS, Check, Finding, Findings, read_findings
from tests.conformance.verdict import GAPS_FILE, Gap, failures, judge, judge_client, read_gaps

FAST = Check("speed", "is-fast", "IsFast")
KIND = Check("manners", "is-kind", "IsKind")
THERE = Check("manners", "is-there", "IsThere")

CELL = "2025-06-18 legacy-http"


def found(*passed: Check, failed: tuple[Check, ...] = ()) -> Findings:
    """Findings in which some checks passed and others failed."""
    return {check: Finding("SUCCESS") for check in passed} | {check: Finding("FAILURE", "why") for check in failed}


def gap(pattern: str, *, cell: str = "2025-* *", impossible: bool = False) -> Gap:
    """A known gap."""
    return Gap("a feature", "a reason", (cell,), (pattern,), impossible)


def test_checks_that_pass_on_a_dead_port_are_not_counted_but_can_be_lost() -> None:
    verdict = judge(CELL, found(FAST, THERE), found(THERE), found(FAST, failed=(THERE,)), [])
    assert verdict.counted == {FAST}
    assert verdict.kept == 1
    assert verdict.surprising == {THERE}
    assert not verdict.is_as_expected


def test_a_check_that_the_suite_did_not_come_to_is_lost() -> None:
    verdict = judge(CELL, found(FAST, KIND), {}, found(KIND), [])
    assert verdict.surprising == {FAST}
    assert verdict.kept == 1


def test_a_warning_and_a_note_are_no_pass() -> None:
    through: Findings = {FAST: Finding("WARNING"), KIND: Finding("INFO")}
    assert judge(CELL, found(FAST, KIND), {}, through, []).lost == {FAST, KIND}


def test_a_known_gap_is_lost_and_expected() -> None:
    verdict = judge(CELL, found(FAST, KIND), {}, found(KIND), [gap("speed: is-fast *")])
    assert verdict.is_as_expected
    assert (verdict.kept, len(verdict.counted)) == (1, 2)


def test_a_known_gap_of_another_cell_excuses_nothing() -> None:
    verdict = judge(CELL, found(FAST), {}, found(), [gap("speed: *", cell="2026-07-28 *")])
    assert verdict.surprising == {FAST}


def test_a_known_gap_that_passes_must_be_taken_out() -> None:
    verdict = judge(CELL, found(FAST), {}, found(FAST), [gap("speed: *")])
    assert verdict.mended == {FAST}
    assert not verdict.is_as_expected


def test_impossible_checks_are_not_counted() -> None:
    verdict = judge(CELL, found(FAST, KIND), {}, found(KIND), [gap("speed: *", impossible=True)])
    assert verdict.is_as_expected
    assert verdict.counted == {KIND}


def test_only_failures_and_warnings_of_the_fixture_are_its_own() -> None:
    findings: Findings = {FAST: Finding("FAILURE"), KIND: Finding("WARNING"), THERE: Finding("INFO")}
    assert failures(findings) == {FAST, KIND}


def test_a_check_that_a_scenario_makes_twice_is_two_checks(tmp_path: Path) -> None:
    entries = [
        {"id": "is-fast", "name": "IsFast", "status": "SUCCESS"},
        {"id": "is-fast", "name": "IsFast", "status": "FAILURE", "errorMessage": "too slow"},
    ]
    folder = tmp_path / "server-speed-2026-08-01T10-00-00-000Z"
    folder.mkdir()
    (folder / "checks.json").write_text(json.dumps(entries))
    second = Check("speed", "is-fast", "IsFast", 2)
    assert dict(read_findings(tmp_path)) == {FAST: Finding("SUCCESS"), second: Finding("FAILURE", "too slow")}
    assert str(second) == "speed: is-fast IsFast (2)"


def test_every_known_gap_has_cells_checks_and_a_reason() -> None:
    gaps = read_gaps(GAPS_FILE.read_text())
    assert all(gap.why and gap.cells and gap.checks for gap in gaps)


def test_a_client_must_pass_all_that_is_looked_at_and_idling_counts_for_nothing() -> None:
    noted: Findings = {Check("manners", "is-noted", "IsNoted"): Finding("SKIPPED")}
    through = {**found(KIND, THERE, failed=(FAST,)), **noted}
    verdict = judge_client("2025-06-18 client", {"speed": 1}, found(THERE), through, [])
    assert verdict.counted == {FAST, KIND}
    assert verdict.kept == 1
    assert verdict.surprising == {FAST}


def test_a_check_of_a_client_that_was_not_come_to_is_lost() -> None:
    verdict = judge_client("2025-06-18 client", {"speed": 3, "absent": 1}, found(THERE), found(FAST, THERE), [])
    assert verdict.kept == 1
    assert sorted(map(str, verdict.surprising)) == [
        "absent: not-reached NotReached",
        "speed: not-reached NotReached",
        "speed: not-reached NotReached (2)",
    ]


def test_every_scenario_for_a_client_has_a_script_and_every_script_a_scenario() -> None:
    assert {scenario for scenarios in CLIENT_SCENARIOS.values() for scenario in scenarios} == set(SCRIPTS)


def test_a_form_is_filled_in_with_its_defaults() -> None:
    schema = {"type": "object", "properties": {"age": {"type": "integer", "default": 30}, "ok": {"type": "boolean"}}}
    assert filled(schema) == {"age": 30, "ok": True}
    assert filled({}) == {}
