"""What the hub loses: the checks that pass without it and not through it, beside the gaps that are known.

Plain values in, plain values out. `run` gets the findings and prints the verdict.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.conformance.suite import Check, Findings

GAPS_FILE = Path(__file__).resolve().parent / "gaps.toml"


@dataclass(frozen=True, slots=True)
class Gap:
    """Checks that are known to be lost in some cells, and why."""

    feature: str
    why: str
    cells: frozenset[str]
    checks: frozenset[str]

    def covers(self, cell: str, check: Check) -> bool:
        """Whether a loss is known."""
        return cell in self.cells and str(check) in self.checks


@dataclass(frozen=True, slots=True)
class Verdict:
    """How one cell came out."""

    cell: str
    counted: frozenset[Check]
    """Those that pass directly and not on a dead port: what there is to lose."""
    lost: frozenset[Check]
    """Those that pass directly and not through the hub, among them such as a dead port passes too."""
    known: frozenset[Check]
    """Those of the lost that are known gaps."""
    mended: frozenset[str]
    """Known gaps that are none any more."""

    @property
    def kept(self) -> int:
        """How many of the counted pass through the hub."""
        return len(self.counted - self.lost)

    @property
    def surprising(self) -> frozenset[Check]:
        """What was lost and nobody knew."""
        return self.lost - self.known

    @property
    def is_as_expected(self) -> bool:
        """Whether there is nothing to do."""
        return not self.surprising and not self.mended


def judge(cell: str, direct: Findings, dead: Findings, through: Findings, gaps: Iterable[Gap]) -> Verdict:
    """Compare what passes through the hub with what passes without it."""
    direct_passes = passes(direct)
    lost = direct_passes - passes(through)
    gaps = [gap for gap in gaps if cell in gap.cells]
    known = frozenset(check for check in lost if any(gap.covers(cell, check) for gap in gaps))
    promised = frozenset().union(*(gap.checks for gap in gaps))
    return Verdict(cell, direct_passes - passes(dead), lost, known, promised - {str(check) for check in known})


def passes(findings: Findings) -> frozenset[Check]:
    """The checks that came out well."""
    return frozenset(check for check, finding in findings.items() if finding.passed)


def failures(findings: Findings) -> frozenset[Check]:
    """The checks that did not; what a scenario only notes or leaves out is none of them."""
    return frozenset(check for check, finding in findings.items() if finding.status in {"FAILURE", "WARNING"})


def read_gaps(file: Path = GAPS_FILE) -> list[Gap]:
    """The gaps that the project knows of."""
    tables: Mapping[str, Mapping[str, object]] = tomllib.loads(file.read_text())
    return [_gap(feature, table) for feature, table in tables.items()]


def _gap(feature: str, table: Mapping[str, object]) -> Gap:
    return Gap(feature, str(table["why"]), _words(table["cells"]), _words(table["checks"]))


def _words(value: object) -> frozenset[str]:
    if not isinstance(value, list):
        raise ValueError(f"a gap names its cells and checks in lists, not as {value!r}")
    return frozenset(map(str, value))
