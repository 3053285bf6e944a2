"""The runner of long tests continues after an interruption, and its report names failed and skipped sections."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests import soak
from tests.soak import ROOT, SECTIONS, Outcome, Section, Soak

WELL = Section("well", "R01", "prints a line", program=("platform",))
BAD = Section("bad", "R02", "is not there", program=("no_such_module_of_tests",))


def test_a_second_run_continues_after_the_first(tmp_path: Path) -> None:
    first = Soak(tmp_path, 0.5, [WELL, BAD])
    assert first.run(["well"])
    again = Soak(tmp_path, 0.5, [WELL, BAD])
    assert again.resume()
    began = again.done["well"].began
    assert not again.run()
    assert again.done["well"].began == began, "it is not run twice"
    assert again.done["bad"].verdict == "failed"
    again.done["well"].tests = 99
    again.run(["well"])
    assert again.done["well"].tests == 0, "one that is named is run again"


def test_another_scale_begins_anew(tmp_path: Path) -> None:
    Soak(tmp_path, 0.5, [WELL]).run()
    assert not Soak(tmp_path, 1.0, [WELL]).resume()


def test_another_commit_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Soak(tmp_path, 0.5, [WELL]).run()
    monkeypatch.setattr(soak, "commit", lambda: "another")
    assert not Soak(tmp_path, 0.5, [WELL]).resume()


def test_the_report_has_verdicts_figures_and_skipped_sections(tmp_path: Path) -> None:
    run = Soak(tmp_path, 0.01, [WELL, BAD, Section("later", "R03", "comes later")])
    run.done["well"] = Outcome("passed", 2.0, "2026-01-01T00:00:00+00:00", figures=[{"seed": 7, "calls": 3}], tests=4)
    run.run(["bad"])
    report = (tmp_path / "report.md").read_text()
    assert "| well | R01 | passed | 4 | 2 | 2026-01-01T00:00:00+00:00 |" in report
    assert "| bad | R02 | failed |" in report
    assert "No module named no_such_module_of_tests" in report
    assert "| later | R03 | not run |" in report
    assert "- seed: 7, calls: 3" in report
    assert "A trial at 0.01 of the full numbers." in report
    kept = json.loads((tmp_path / "report.json").read_text())
    assert kept["sections"]["bad"]["verdict"] == "failed"
    assert {"commit", "machine", "scale", "not_there"} <= kept.keys()


def test_a_section_whose_tests_are_all_skipped_was_not_run(tmp_path: Path) -> None:
    results = tmp_path / "results.xml"
    results.write_text('<a><testcase name="t"><skipped message="no strace"/></testcase></a>')
    outcome = Outcome("passed", 1.0, "")
    soak.read_results(results, outcome)
    assert (outcome.verdict, outcome.details) == ("not run", ["skipped: t: no strace"])


def test_every_section_names_tests_and_programs_that_exist() -> None:
    assert len({section.name for section in SECTIONS}) == len(SECTIONS)
    for section in SECTIONS:
        assert bool(section.tests) != bool(section.program), section.name
        for path, _, test in (each.partition("::") for each in section.tests):
            assert (ROOT / path).exists(), path
            assert f"def {test}(" in (ROOT / path).read_text() if test else True, test
        assert not section.program or ROOT.joinpath(*section.program[0].split(".")).with_suffix(".py").is_file()


def test_the_page_about_reliability_has_the_sections() -> None:
    page = (ROOT / "RELIABILITY.md").read_text(encoding="utf-8")
    names = {section.name for section in SECTIONS}
    used = [word for words in re.findall(r"make soak ARGS=\"?([\w -]+)", page) for word in words.split()]
    assert set(used) <= names
    listed = page.partition("## The soak")[2].partition("\n## ")[0]
    assert [name for name in names if f"`{name}`" not in listed] == []
