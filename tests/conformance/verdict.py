"""Checks that pass without the hub and fail through it, compared with the known gaps.

Plain values in, plain values out. `run` gets the findings and prints the verdict; `gaps.toml` is what is known.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from tests.conformance.suite import FAILED, Check, Finding, Findings

GAPS_FILE = Path(__file__).resolve().parent / "gaps.toml"


@dataclass(frozen=True, slots=True)
class Gap:
    """Checks that are known to be lost in some cells, and why; both are patterns, in which `*` is anything."""

    feature: str
    why: str
    cells: tuple[str, ...]
    checks: tuple[str, ...]
    impossible: bool = False
    """Whether no hub could do it, so that there is nothing to lose."""

    def covers(self, cell: str, check: Check) -> bool:
        """Whether this loss is known."""
        return _fits(cell, self.cells) and _fits(str(check), self.checks)


@dataclass(frozen=True, slots=True)
class Verdict:
    """How one cell came out."""

    cell: str
    counted: frozenset[Check]
    """What there is to lose: passes directly, not on a dead port, and is not impossible."""
    lost: frozenset[Check]
    """Passes directly and not through the hub; a dead port may pass it too."""
    covered: frozenset[Check]
    """Passes directly and is in a known gap of this cell."""

    @property
    def kept(self) -> int:
        """How many of the counted pass through the hub."""
        return len(self.counted - self.lost)

    @property
    def surprising(self) -> frozenset[Check]:
        """Lost checks that are no known gaps."""
        return self.lost - self.covered

    @property
    def mended(self) -> frozenset[Check]:
        """Known gaps that are fixed."""
        return self.covered - self.lost

    @property
    def is_as_expected(self) -> bool:
        """Whether there is nothing to do."""
        return self.lost == self.covered


def judge(cell: str, direct: Findings, dead: Findings, through: Findings, gaps: Iterable[Gap]) -> Verdict:
    """Compare what passes through the hub with what passes without it."""
    able, here = passes(direct), [gap for gap in gaps if _fits(cell, gap.cells)]
    covered = frozenset(check for check in able if any(gap.covers(cell, check) for gap in here))
    exempt = {check for check in covered if any(gap.impossible and gap.covers(cell, check) for gap in here)}
    return Verdict(cell, able - passes(dead) - exempt, able - passes(through), covered)


def judge_client(
    cell: str, scenarios: Mapping[str, int], idle: Findings, through: Findings, gaps: Iterable[Gap]
) -> Verdict:
    """Compare what the hub does as a client with all that the suite looks at; `idle` passes without doing anything.

    `scenarios` says how many checks each makes at least; those that it did not come to are lost.
    """
    made = passes(through) | failures(through)
    wanted = {check: Finding("SUCCESS") for check in made | _not_reached(scenarios, made - passes(idle))}
    return judge(cell, wanted, idle, through, gaps)


def _not_reached(scenarios: Mapping[str, int], made: frozenset[Check]) -> frozenset[Check]:
    reached = Counter(check.scenario for check in made)
    return frozenset(
        Check(scenario, "not-reached", "NotReached", turn)
        for scenario, count in scenarios.items()
        for turn in range(1, count - reached[scenario] + 1)
    )


def passes(findings: Findings) -> frozenset[Check]:
    """The checks that came out well."""
    return frozenset(check for check, finding in findings.items() if finding.passed)


def failures(findings: Findings) -> frozenset[Check]:
    """The failed checks; notes and skipped checks do not count."""
    return frozenset(check for check, finding in findings.items() if finding.status in FAILED)


def read_gaps(text: str) -> list[Gap]:
    """The gaps as they are written down."""
    return [_gap(feature, table) for feature, table in tomllib.loads(text).items()]


def _gap(feature: str, table: Mapping[str, Any]) -> Gap:
    lists = {word: tuple(table[word]) for word in ("cells", "checks")}
    return Gap(feature, table["why"], lists["cells"], lists["checks"], table.get("impossible", False))


def _fits(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
