"""The long tests one after the other, with one report: `make soak`, or `python -m tests.soak --scale 0.01` to try it.

Each section is a set of tests at their full numbers, judged by their own assertions and by the oracle of
`tests/faults`. What is done is written down after each section, so that the next run continues with the section that
was not ended, as long as the code and the scale are the same. The report is `build/soak/report.md` and `.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "soak"
TAIL_LINES = 12
"""Of a program's output, for the report."""


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the soak: tests, or a program of `bench` or `tests`."""

    name: str
    promises: str
    what: str
    tests: tuple[str, ...] = ()
    program: tuple[str, ...] = ()
    """Module and options. `{name:full}` is replaced by the full number, in proportion to the scale."""
    env: Mapping[str, str] = field(default_factory=dict)
    workers: int = 0
    is_scaled: bool = True
    """Whether its tests know the scale; the others run as in `make test` unless the soak is a whole one."""


FAULTS = "tests/faults/"
SECTIONS = (
    Section(
        "cut-carriers",
        "R17",
        "the wire to servers is cut at every byte: Streamable HTTP, HTTP+SSE, WebSocket, plain JSON-RPC, A2A agents, "
        "dial-in, stdio",
        (
            FAULTS + "test_cut.py::test_a_cut_of_http_anywhere_is_reported_truthfully",
            FAULTS + "test_cut.py::test_a_cut_of_stdio_anywhere_is_reported_truthfully",
            FAULTS + "test_sse_cut.py",
            FAULTS + "test_cut_carriers.py",
        ),
        env={"ISTHMUS_CUT_STEP": "{step:1}"},
        workers=2,
    ),
    Section(
        "cut-frontends",
        "R17, R18",
        "the wire to callers is cut at every byte: MCP of both eras, A2A in three bindings, REST, relay",
        (
            FAULTS + "test_cut.py::test_a_caller_that_disconnects_anywhere_affects_no_other_caller",
            FAULTS + "test_cut_frontends.py",
        ),
        env={"ISTHMUS_CUT_STEP": "{step:1}"},
        workers=2,
    ),
    Section(
        "kills-sqlite", "R03", "300 kills of the hub, tasks on SQLite", (FAULTS + "test_tasks_crash.py",), workers=2
    ),
    Section(
        "kills-postgres",
        "R03, R15",
        "300 kills of the hub, tasks on PostgreSQL, and a failover to a standby in the middle; kills of nodes",
        (
            FAULTS + "test_tasks_database.py",
            "tests/cluster_database/test_database_faults.py",
            "tests/cluster_database/test_kills.py",
        ),
    ),
    Section(
        "disk",
        "R20",
        "the disk fails or is full at 100 writes of the journal",
        (FAULTS + "test_disk_faults.py", "tests/security/test_T69_unwritable_journal.py"),
    ),
    Section("mixed-calls", "R09", "a million mixed calls with faults", (FAULTS + "test_mixed_calls.py",)),
    Section("clock", "R19", "120 steps of the wall clock", (FAULTS + "test_clock.py",)),
    Section(
        "idle-sockets",
        "R06, R22",
        "10,000 idle servers that dialled in",
        program=("bench.crowd", "--connections", "10000"),  # fewer say nothing about the memory of each
    ),
    Section("slow-readers", "R07", "200 callers that read nothing", (FAULTS + "test_slow_readers.py",)),
    Section("disconnects", "R25", "5,000 callers that leave, seen as cancellations", (FAULTS + "test_leaving.py",)),
    Section(
        "faults",
        "R01 to R27",
        "all other tests of faults, at their full numbers",
        (FAULTS,),
        env={"ISTHMUS_CUT_STEP": "16"},
        workers=2,
        is_scaled=False,
    ),
    Section(
        "security",
        "threats",
        "the tests of threats, at their full numbers",
        ("tests/security", "tests/property/test_smuggling.py"),
        workers=2,
        is_scaled=False,
    ),
    Section(
        "held-loop",
        "R08",
        "heavy input beside ordinary calls, two minutes for each class",
        program=("tests.security.soak_held_loop", "{count:120}"),
        is_scaled=False,
    ),
)
NOT_THERE = {
    "half an hour of 10,000 idle sockets": "`idle-sockets` holds them for seconds",
    "clock steps of a cluster": "`clock` moves the clock of one hub; leases of nodes use the database's",
    "a day of random faults (R29)": "sections run one kind of fault each",
}
"""What a reader may look for here, and why it is not there."""


@dataclass(slots=True)
class Outcome:
    """How a section went."""

    verdict: str
    """`passed`, `failed`, or `not run`."""
    seconds: float
    began: str
    details: list[str] = field(default_factory=list)
    """Tests that failed or were skipped, or the last lines of a program."""
    figures: list[dict[str, Any]] = field(default_factory=list)
    tests: int = 0

    def as_json(self) -> dict[str, Any]:
        """As it is kept."""
        return {name: getattr(self, name) for name in self.__slots__}


class Soak:
    """A run that may have been begun before."""

    def __init__(self, folder: Path, scale: float, sections: Sequence[Section] = SECTIONS) -> None:
        self._folder = folder
        self._scale = scale
        self._sections = sections
        self.run_of = {"commit": commit(), "scale": scale, "machine": machine()}
        self.done: dict[str, Outcome] = {}

    def resume(self) -> bool:
        """Take over what an earlier run of the same code at the same scale has done; False if there is none."""
        path = self._folder / "state.json"
        kept = json.loads(path.read_text()) if path.exists() else {}
        if {name: kept.get(name) for name in ("commit", "scale")} != {
            name: self.run_of[name] for name in ("commit", "scale")
        }:
            return False
        self.done = {name: Outcome(**each) for name, each in kept["sections"].items()}
        return True

    def run(self, names: Sequence[str] = ()) -> bool:
        """Run the sections that are left, or those that are named; whether none has failed.

        A section that is interrupted is left for the next run.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        for section in self._sections:
            is_wanted = section.name in names if names else section.name not in self.done
            if not is_wanted:
                continue
            print(f"{section.name}: {section.what} …", flush=True)
            outcome = self._run_section(section)
            self.done[section.name] = outcome
            self._write()
            print(
                f"{section.name}: {outcome.verdict} after {outcome.seconds:.0f} s",
                *outcome.details,
                sep="\n  ",
                flush=True,
            )
        return all(outcome.verdict != "failed" for outcome in self.done.values())

    def _run_section(self, section: Section) -> Outcome:
        results, figures = self._folder / "results.xml", self._folder / "figures"
        for path in (results, figures):
            path.unlink(missing_ok=True)
        is_soak = section.is_scaled or self._scale >= 1
        env = {
            **os.environ,
            **{name: self._scaled(value) for name, value in section.env.items()},
            **({"ISTHMUS_SOAK": "1", "ISTHMUS_SOAK_SCALE": str(self._scale)} if is_soak else {}),
            "ISTHMUS_FIGURES": str(figures),
        }
        if section.program:
            words = ["-m", *map(self._scaled, section.program)]
        else:
            spread = ["-n", str(section.workers), "--dist", "loadgroup"] if section.workers else []
            words = ["-m", "pytest", "-q", *spread, "--timeout", "7200", f"--junitxml={results}", *section.tests]
            # A folder is what its other sections leave over.
            others = {path.partition("::")[0] for each in self._sections if each is not section for path in each.tests}
            words += [
                f"--ignore={path}" for path in sorted(others) if path.endswith(".py") and path not in section.tests
            ]
        began, start = datetime.now(UTC).isoformat(timespec="seconds"), time.monotonic()
        log = self._folder / f"{section.name}.log"
        with log.open("wb") as output:
            done = subprocess.run(
                [sys.executable, *words], cwd=ROOT, env=env, stdout=output, stderr=subprocess.STDOUT, check=False
            )
        outcome = Outcome("passed" if done.returncode == 0 else "failed", time.monotonic() - start, began)
        if figures.exists():
            outcome.figures = [json.loads(line) for line in figures.read_text().splitlines()]
        if section.program:
            if done.returncode == 2:  # it could not be measured, on a busy machine for example
                outcome.verdict = "not run"
            outcome.details = log.read_text(errors="replace").splitlines()[-TAIL_LINES:]
        elif results.exists():
            read_results(results, outcome)
        else:
            outcome.details = [f"the tests did not run: see {log}"]
        return outcome

    def _scaled(self, text: str) -> str:
        if text.startswith("{count:"):
            return str(max(2, round(int(text[7:-1]) * self._scale)))
        # Beyond every 16th byte, the tests have steps of their own.
        return str(min(16, max(1, round(1 / self._scale)))) if text.startswith("{step:") else text

    def _write(self) -> None:
        whole = {**self.run_of, "sections": {name: outcome.as_json() for name, outcome in self.done.items()}}
        for name, text in (("state.json", json.dumps(whole, indent=2)), ("report.md", self.report())):
            draft = self._folder / f"{name}.new"
            draft.write_text(text)
            draft.replace(self._folder / name)
        (self._folder / "report.json").write_text(json.dumps({**whole, "not_there": NOT_THERE}, indent=2))

    def report(self) -> str:
        """The report, as Markdown."""
        lines = ["# Soak", "", *(f"- {name}: {value}" for name, value in self.run_of.items()), ""]
        if self._scale < 1:
            lines += [f"**A trial at {self._scale:g} of the full numbers.** It shows that the sections work.", ""]
        lines += ["| section | promises | verdict | tests | seconds | began |", "|---|---|---|---:|---:|---|"]
        for section in self._sections:
            if (outcome := self.done.get(section.name)) is None:
                lines.append(f"| {section.name} | {section.promises} | not run | | | |")
                continue
            row = (
                section.name,
                section.promises,
                outcome.verdict,
                outcome.tests,
                round(outcome.seconds),
                outcome.began,
            )
            lines.append(f"| {' | '.join(map(str, row))} |")
        lines += ["", "Not run, because there is no section for it:", ""]
        lines += [f"- {what}: {why}" for what, why in NOT_THERE.items()]
        for section in self._sections:
            if (outcome := self.done.get(section.name)) is not None:
                lines += ["", f"## {section.name}", "", f"{section.what[0].upper()}{section.what[1:]}.", ""]
                lines += [
                    f"- {', '.join(f'{name}: {value}' for name, value in each.items())}" for each in outcome.figures
                ]
                lines += ["", "```text", *outcome.details, "```"] if outcome.details else []
        return "\n".join(lines) + "\n"


def read_results(path: Path, outcome: Outcome) -> None:
    """Add pytest's results; a section with only skipped tests was not run."""
    cases = list(ET.parse(path).getroot().iter("testcase"))
    skipped = [case for case in cases if case.find("skipped") is not None]
    outcome.tests = len(cases) - len(skipped)
    for case in cases:
        for kind in ("failure", "error", "skipped"):
            if (found := case.find(kind)) is not None:
                outcome.details.append(f"{kind}: {case.get('name')}: {(found.get('message') or '')[:200]}")
    if outcome.verdict == "passed" and outcome.tests == 0:
        outcome.verdict = "not run"


def commit() -> str:
    """The revision of this checkout, and whether it has changes."""
    words = ["git", "describe", "--always", "--abbrev=12", "--dirty"]
    found = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


def machine() -> str:
    """What the soak ran on."""
    cores = os.cpu_count()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 30
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    return f"{system}, {cores} cores, {memory} GiB, Python {platform.python_version()}"


def main() -> int:
    """Run as asked; 1 if a section failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", choices=[[], *(section.name for section in SECTIONS)])
    parser.add_argument("--scale", type=float, default=1.0, help="share of the full numbers")
    parser.add_argument("--again", action="store_true", help="forget what was done before")
    options = parser.parse_args()
    soak = Soak(FOLDER, options.scale)
    if not options.again and soak.resume() and soak.done:
        print(f"continued: {', '.join(soak.done)} done before")
    is_well = soak.run(options.sections)
    print(f"the report is {FOLDER / 'report.md'}")
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main())
