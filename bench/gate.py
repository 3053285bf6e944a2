"""`python -m bench.gate`: has a part of the hub become dearer than the baseline allows?

It runs `bench.sample` in several fresh processes, because where a process happens to place its memory moves
a figure by some per cent, and takes the median of each scenario. A figure more than 15 % above
`baseline.json` is measured again before it fails the gate. Ends with 1 on a failure; `--save` writes what
was measured as the new baseline.

The baseline is what unchanged code cost on the dearest of the machines that it was measured on. Calibrations even out
how fast a processor is, not how well it runs code that is wide: one commit's `face_call` took 296 of them on one
virtual machine and 437 on another of the same size. On the first the gate notices that one only above 70 %.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import median

import msgspec

from bench.scenarios import SCENARIOS

BASELINE = Path(__file__).with_name("baseline.json")
SAVE_ADVICE = "if that is intended, run `python -m bench.gate --save` and commit bench/baseline.json"

TOLERANCE = 1.15
"""How far a figure may be above its baseline. The spread of the figures themselves is about 1 %."""

PROCESSES = 7
"""Samples whose median counts; one process alone is off by up to 7 % now and then."""

ATTEMPTS = 2
"""Measurements that must all be too high before the gate fails; a neighbour's burst seldom lasts."""

SAMPLE_SECONDS = 60.0
"""When to give up on one sampling process, which takes about a second."""

Costs = Mapping[str, float]
"""Scenario → CPU time in calibrations."""


def measure() -> Costs:
    """Return the median cost of each scenario over several processes."""
    samples = [sample_apart() for _ in range(PROCESSES)]
    return {name: median(each[name] for each in samples) for name in samples[0]}


def sample_apart() -> dict[str, float]:
    """Sample every scenario once in a process of its own."""
    command = [sys.executable, "-m", "bench.sample"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=SAMPLE_SECONDS)
    return msgspec.json.decode(done.stdout, type=dict[str, float])


def too_dear(costs: Costs, baseline: Costs) -> list[str]:
    """Return the scenarios whose cost is past the tolerance."""
    return [name for name, cost in costs.items() if cost > baseline[name] * TOLERANCE]


def measure_until_sure(baseline: Costs) -> Costs:
    """Measure, and again while something is too dear; return the least that each scenario cost."""
    least = measure()
    for _ in range(ATTEMPTS - 1):
        if not too_dear(least, baseline):
            break
        again = measure()
        least = {name: min(cost, again[name]) for name, cost in least.items()}
    return least


def machine() -> str:
    """Name what a baseline is valid for: interpreters and instruction sets differ in what is cheap."""
    major, minor, _ = platform.python_version_tuple()
    return f"{platform.python_implementation()} {major}.{minor} {platform.machine()}"


def load() -> dict[str, dict[str, float]]:
    """Return the committed baselines by machine."""
    return msgspec.json.decode(BASELINE.read_bytes(), type=dict[str, dict[str, float]])


def save(costs: Costs) -> None:
    """Make `costs` the baseline of this kind of machine."""
    baselines = load() if BASELINE.exists() else {}
    baselines[machine()] = {name: round(cost, 5) for name, cost in costs.items()}
    text = msgspec.json.format(msgspec.json.encode(dict(sorted(baselines.items()))), indent=2)
    BASELINE.write_bytes(text + b"\n")


def table(costs: Costs, baseline: Costs) -> str:
    """Return the figures as text for a terminal."""
    lines = [f"{'scenario':<24}{'cost':>10}{'baseline':>10}{'change':>10}"]
    for name, cost in costs.items():
        before = baseline[name]
        lines.append(f"{name:<24}{cost:>10.4f}{before:>10.4f}{cost / before - 1:>+10.1%}")
    return "\n".join(lines)


def check() -> int:
    """Compare with the baseline and say what to do when it fails."""
    baseline = load().get(machine())
    if baseline is None:
        print(f"gate: there is no baseline for {machine()}, so nothing was compared; `--save` makes one")
        return 0
    if baseline.keys() != SCENARIOS.keys():
        changed = ", ".join(sorted(baseline.keys() ^ SCENARIOS.keys()))
        print(f"gate: scenarios and baseline differ in {changed}; {SAVE_ADVICE}", file=sys.stderr)
        return 1
    costs = measure_until_sure(baseline)
    print(table(costs, baseline))
    dear = too_dear(costs, baseline)
    if dear:
        print(f"gate: past +{TOLERANCE - 1:.0%}: {', '.join(dear)}; {SAVE_ADVICE}", file=sys.stderr)
    return 1 if dear else 0


def main() -> int:
    """Check against the baseline, or save a new one."""
    parser = argparse.ArgumentParser(prog="python -m bench.gate", description=__doc__)
    parser.add_argument("--save", action="store_true", help="write the measured costs as the new baseline")
    if not parser.parse_args().save:
        return check()
    costs = measure()
    save(costs)
    print(table(costs, costs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
