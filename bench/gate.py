"""`python -m bench.gate`: has a part of the hub become dearer than the baseline allows?

Two yardsticks. `bench.steps` counts what the interpreter does, which is the same on every machine: 3 % more than in
`baseline.json` fails the gate. `bench.sample` measures CPU, which also sees what happens in C and in the system: it
runs in several fresh processes, because where a process happens to place its memory moves a figure by some per cent,
and the median of each scenario counts. A figure more than 15 % above the baseline is measured again before it fails
the gate. `bench.ways` counts the steps of a call through a live hub, from each frontend and to each carrier, of which
5 % more fail. Ends with 1 on a failure; `--save` writes the steps as the new baseline, and CPU where it is above the
old.

The baseline of CPU is what unchanged code cost on the dearest of the machines that it was measured on. Calibrations
even out how fast a processor is, not how well it runs code that is wide: one commit's `frontend_call` took 296 of them
on one virtual machine and 437 on another of the same size. On the first, CPU alone would show nothing below 70 %.
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
from bench.steps import count
from bench.ways import count_ways

BASELINE = Path(__file__).with_name("baseline.json")
SAVE_ADVICE = "if that is intended, run `python -m bench.gate --save` and commit bench/baseline.json"

TOLERANCE = 1.15
"""How far CPU may be above its baseline. The spread of the figures themselves is about 1 %."""

STEPS_TOLERANCE = 1.03
"""The same for steps, whose spread is 0.1 %: timers come due in one run and not in another."""

WAYS_TOLERANCE = 1.05
"""The same for steps through a live hub, whose spread is up to 4 % on a busy machine."""

PROCESSES = 7
"""Samples whose median counts; one process alone is off by up to 7 % now and then."""

ATTEMPTS = 2
"""Measurements that must all be too high before the gate fails; a neighbour's burst seldom lasts."""

SAMPLE_SECONDS = 60.0
"""When to give up on one sampling process, which takes about a second."""

Costs = Mapping[str, float]
"""Scenario → CPU time in calibrations, or steps."""


class Baseline(msgspec.Struct):
    """What everything cost when it was saved."""

    cpu: dict[str, float]
    steps: dict[str, float]
    ways: dict[str, float] = {}
    """Steps through a live hub."""


def measure() -> Costs:
    """Return the median cost of each scenario over several processes."""
    samples = [sample_apart() for _ in range(PROCESSES)]
    return {name: median(each[name] for each in samples) for name in samples[0]}


def sample_apart() -> dict[str, float]:
    """Sample every scenario once in a process of its own."""
    command = [sys.executable, "-m", "bench.sample"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=SAMPLE_SECONDS)
    return msgspec.json.decode(done.stdout, type=dict[str, float])


def too_dear(costs: Costs, baseline: Costs, tolerance: float) -> list[str]:
    """Return the scenarios whose cost is past the tolerance."""
    return [name for name, cost in costs.items() if cost > baseline[name] * tolerance]


def measure_until_sure(baseline: Costs) -> Costs:
    """Measure, and again while something is too dear; return the least that each scenario cost."""
    least = measure()
    for _ in range(ATTEMPTS - 1):
        if not too_dear(least, baseline, TOLERANCE):
            break
        again = measure()
        least = {name: min(cost, again[name]) for name, cost in least.items()}
    return least


def machine() -> str:
    """Name what a baseline is valid for: interpreters and instruction sets differ in what is cheap."""
    major, minor, _ = platform.python_version_tuple()
    return f"{platform.python_implementation()} {major}.{minor} {platform.machine()}"


def load() -> dict[str, Baseline]:
    """Return the committed baselines by machine."""
    return msgspec.json.decode(BASELINE.read_bytes(), type=dict[str, Baseline])


def save(cpu: Costs, steps: Costs, ways: Costs) -> None:
    """Make these the baseline of this kind of machine."""
    baselines = load() if BASELINE.exists() else {}
    old = baselines[machine()].cpu if machine() in baselines else {}
    dearest = {name: max(round(cost, 5), old.get(name, 0.0)) for name, cost in cpu.items()}
    baselines[machine()] = Baseline(dearest, dict(steps), dict(ways))
    text = msgspec.json.format(msgspec.json.encode(dict(sorted(baselines.items()))), indent=2)
    BASELINE.write_bytes(text + b"\n")


def table(unit: str, costs: Costs, baseline: Costs) -> str:
    """Return the figures as text for a terminal."""
    lines = [f"{unit:<28}{'now':>12}{'baseline':>12}{'change':>10}"]
    for name, cost in costs.items():
        before = baseline[name]
        lines.append(f"{name:<28}{cost:>12.6g}{before:>12.6g}{cost / before - 1:>+10.1%}")
    return "\n".join(lines)


def check() -> int:
    """Compare with the baseline and say what to do when it fails."""
    baseline = load().get(machine())
    if baseline is None:
        print(f"gate: there is no baseline for {machine()}, so nothing was compared; `--save` makes one")
        return 0
    for saved in (baseline.cpu, baseline.steps):
        if saved.keys() != SCENARIOS.keys():
            changed = ", ".join(sorted(saved.keys() ^ SCENARIOS.keys()))
            print(f"gate: scenarios and baseline differ in {changed}; {SAVE_ADVICE}", file=sys.stderr)
            return 1
    steps = count(SCENARIOS)
    print(table("steps", steps, baseline.steps))
    ways = count_ways()
    if ways.keys() != baseline.ways.keys():
        changed = ", ".join(sorted(ways.keys() ^ baseline.ways.keys()))
        print(f"gate: ways and baseline differ in {changed}; {SAVE_ADVICE}", file=sys.stderr)
        return 1
    print(table("steps, live hub", ways, baseline.ways))
    cpu = measure_until_sure(baseline.cpu)
    print(table("CPU", cpu, baseline.cpu))
    return (
        _verdict("steps", too_dear(steps, baseline.steps, STEPS_TOLERANCE), STEPS_TOLERANCE)
        | _verdict("steps", too_dear(ways, baseline.ways, WAYS_TOLERANCE), WAYS_TOLERANCE)
        | _verdict("CPU", too_dear(cpu, baseline.cpu, TOLERANCE), TOLERANCE)
    )


def _verdict(unit: str, dear: list[str], tolerance: float) -> int:
    if not dear:
        return 0
    print(f"gate: {unit} past +{tolerance - 1:.0%}: {', '.join(dear)}; {SAVE_ADVICE}", file=sys.stderr)
    return 1


def main() -> int:
    """Check against the baseline, or save a new one."""
    parser = argparse.ArgumentParser(prog="python -m bench.gate", description=__doc__)
    parser.add_argument("--save", action="store_true", help="write the costs of now as the new baseline")
    if not parser.parse_args().save:
        return check()
    cpu, steps, ways = measure(), count(SCENARIOS), count_ways()
    save(cpu, steps, ways)
    print(table("steps", steps, steps))
    print(table("steps, live hub", ways, ways))
    print(table("CPU", cpu, cpu))
    return 0


if __name__ == "__main__":
    sys.exit(main())
