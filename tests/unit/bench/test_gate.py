"""The gate passes equal costs, and fails calls that do more work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench import gate
from bench.scenarios import SCENARIOS, Scenario, Work
from bench.steps import count


def repeating(times: int) -> Scenario:
    @contextmanager
    def scenario() -> Iterator[Work]:
        numbers = list(range(times))
        yield lambda: [str(number) for number in numbers]

    return scenario


@pytest.fixture(autouse=True)
def few_scenarios(monkeypatch: pytest.MonkeyPatch) -> None:
    """`make gate` counts all of them, which takes its time."""
    few = {name: SCENARIOS[name] for name in ("core_call", "frontend_call")}
    monkeypatch.setattr(gate, "SCENARIOS", few)
    monkeypatch.setitem(globals(), "SCENARIOS", few)
    monkeypatch.setattr(gate, "count_ways", lambda: {"to stdio": 5_000.0})


def saved(monkeypatch: pytest.MonkeyPatch, folder: Path, steps: dict[str, float]) -> None:
    """Save a baseline of these steps, and a CPU limit that is never exceeded."""
    monkeypatch.setattr(gate, "BASELINE", folder / "baseline.json")
    monkeypatch.setattr(gate, "measure", lambda: dict.fromkeys(SCENARIOS, 1.0))
    gate.save(dict.fromkeys(SCENARIOS, 1.0), steps, {"to stdio": 5_000.0})


def test_steps_are_the_same_each_time_and_more_for_more() -> None:
    first, again, longer = (count({"work": repeating(times)}) for times in (100, 100, 105))

    assert first == again
    assert longer["work"] > first["work"] * gate.STEPS_TOLERANCE


def test_unchanged_costs_pass(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    saved(monkeypatch, tmp_path, count(SCENARIOS))

    assert gate.check() == 0


def test_a_scenario_that_does_more_fails_by_its_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = count(SCENARIOS)
    saved(monkeypatch, tmp_path, {**steps, "core_call": steps["core_call"] * 0.95})

    assert gate.check() == 1
    assert "gate: steps past +3%: core_call; if that is intended" in capsys.readouterr().err


def test_a_way_through_a_live_hub_that_does_more_fails_by_its_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved(monkeypatch, tmp_path, count(SCENARIOS))
    monkeypatch.setattr(gate, "count_ways", lambda: {"to stdio": 5_300.0})

    assert gate.check() == 1
    assert "gate: steps past +5%: to stdio; if that is intended" in capsys.readouterr().err


def test_cpu_that_was_saved_on_a_dearer_machine_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    steps = dict.fromkeys(SCENARIOS, 5.0)
    saved(monkeypatch, tmp_path, steps)
    gate.save({**dict.fromkeys(SCENARIOS, 0.5), "core_call": 2.0}, dict.fromkeys(SCENARIOS, 4.0), {"to stdio": 4_000.0})

    kept = gate.load()[gate.machine()]
    assert kept.cpu == {**dict.fromkeys(SCENARIOS, 1.0), "core_call": 2.0}
    assert kept.steps == dict.fromkeys(SCENARIOS, 4.0)
