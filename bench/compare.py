"""`python -m bench.compare REVISION`: what a call costs in this tree and in an earlier revision, in one run.

Two processes of the same hub differ by up to 15 %: where their objects lie in memory decides how well caches work. So
several hubs of each tree are started, in several generations, and all take turns in random order. A process counts by
the median of its turns, a tree by the median of its processes. Ends with 1 if this tree's median is above every process
of the other tree and more than 5 % above their median, 2 when it could not be measured.

`--steps` counts the interpreter's steps of a call instead, in one process of each tree: they are the same in each run,
and say what a tree does more, not how long it takes. Ends with 1 if this tree takes 3 % more.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from time import monotonic, sleep

import msgspec

from bench.__main__ import ASKS_EACH, WARM_UP_SECONDS, NotMeasured, take_turn
from bench.counted_hub import SHARED
from bench.load import WrongAnswer
from bench.processes import PORT_PRINTED, NotStarted, Program
from bench.stage import SCENARIOS, Scenario, Target, ready, start_hub

ROOT = Path(__file__).parent.parent
HERE = "this tree"
RELAY = "bare relay"
ALLOWED = 1.05
"""A difference of medians below this is noise, whatever the processes say."""

STEPS_ALLOWED = 1.03
"""What `make gate` allows."""

REPORT_SECONDS = 10.0

Costs = dict[tuple[str, str], list[float]]
"""For each scenario and tree, the CPU microseconds per call of each process."""


def measure_generation(
    checkouts: Mapping[str, Path | None], scenarios: Sequence[Scenario], *, twins: int, rounds: int, seconds: float
) -> Costs:
    """Start `twins` hubs of each checkout, and give every scenario of each hub its turns."""
    with ExitStack() as held:
        direct = held.enter_context(Program("bench.direct"))
        direct_port = direct.port(PORT_PRINTED)
        relay = held.enter_context(Program("bench.relay", str(direct_port)))
        relayed = next(scenario for scenario in SCENARIOS if scenario.name == "relay")
        targets = [(RELAY, prepare(relayed, relay, relay.port(PORT_PRINTED)))]
        for _ in range(twins):
            for name, checkout in checkouts.items():
                folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
                hub, port = start_hub(held, direct_port, folder, "off", checkout)
                targets += [(name, prepare(scenario, hub, port)) for scenario in scenarios]
        for _, target in targets:
            take_turn(target, WARM_UP_SECONDS)
        turns: list[list[float]] = [[] for _ in targets]
        for _ in range(rounds):
            for at in random.sample(range(len(targets)), len(targets)):
                turns[at].append(take_turn(targets[at][1], seconds).cpu_microseconds)
    costs: Costs = {}
    for (name, target), taken in zip(targets, turns, strict=True):
        costs.setdefault((target.scenario.name, name), []).append(median(taken))
    return costs


def count_steps(checkout: Path, scenarios: Sequence[Scenario], seconds: float) -> dict[str, dict[str, float]]:
    """Return the steps of one call of each scenario, by package."""
    found: dict[str, dict[str, float]] = {}
    for scenario in scenarios:
        with ExitStack() as held:
            direct = held.enter_context(Program("bench.direct"))
            folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
            hub, port = start_hub(held, direct.port(PORT_PRINTED), folder, "off", checkout, "bench.counted_hub")
            target = prepare(scenario, hub, port)
            take_turn(target, WARM_UP_SECONDS)
            hub.signal(signal.SIGUSR1)
            take_turn(target, seconds)
            hub.signal(signal.SIGUSR2)
            counted = read_when_written(folder / "steps.json")
            if not counted.calls:
                raise NotMeasured("the hub counted no call")
            found[scenario.name] = {name: steps / counted.calls for name, steps in counted.packages.items()}
    return found


class CountedSteps(msgspec.Struct, frozen=True):
    """What `bench.counted_hub` writes."""

    calls: int
    packages: dict[str, int]


def read_when_written(report: Path) -> CountedSteps:
    """Return the count of a hub that was told to end it."""
    ends = monotonic() + REPORT_SECONDS
    while not report.exists():
        if monotonic() > ends:
            raise NotMeasured("the hub wrote no count of its steps")
        sleep(0.05)
    return msgspec.json.decode(report.read_bytes(), type=CountedSteps)


def steps_table(here: Mapping[str, Mapping[str, float]], there: Mapping[str, Mapping[str, float]], other: str) -> str:
    """Return the steps per call as text for a terminal: the sums, and the packages that differ."""
    lines = [f"{'scenario':<22}{'package':<14}{other[:12]:>12}{HERE:>12}{'':>9}"]
    for scenario, packages in here.items():
        others = there[scenario]
        rows = {"all": (of_calls(others), of_calls(packages))}
        rows |= {name: (others.get(name, 0.0), packages.get(name, 0.0)) for name in sorted({*packages, *others})}
        for name, (then, now) in rows.items():
            share = f"{100 * (now - then) / rows['all'][0]:+.1f} %"
            lines.append(f"{scenario if name == 'all' else '':<22}{name:<14}{then:>12.0f}{now:>12.0f}{share:>9}")
    return "\n".join(lines)


def of_calls(packages: Mapping[str, float]) -> float:
    """Return the steps that each call takes for itself."""
    return sum(steps for name, steps in packages.items() if name != SHARED)


def takes_more_steps(here: Mapping[str, float], there: Mapping[str, float]) -> bool:
    """Say whether a call takes more steps than the gate allows."""
    return of_calls(here) > STEPS_ALLOWED * of_calls(there)


def prepare(scenario: Scenario, program: Program, port: int) -> Target:
    """Return the scenario ready to be driven."""
    return ready(scenario, program, port, 16, ASKS_EACH)


def is_slower(here: Sequence[float], there: Sequence[float]) -> bool:
    """Say whether the first tree costs more than the noise between processes explains."""
    return median(here) > max(there) and median(here) > ALLOWED * median(there)


def table(costs: Costs, other: str) -> str:
    """Return the figures as text for a terminal."""
    lines = [f"{'scenario':<22}{'tree':<14}{'CPU µs/call':>12}{'from':>8}{'to':>8}{'processes':>11}"]
    for (scenario, tree), values in costs.items():
        row = f"{median(values):>12.1f}{min(values):>8.1f}{max(values):>8.1f}{len(values):>11}"
        lines.append(f"{scenario:<22}{tree if tree in (HERE, RELAY) else other:<14}{row}")
    return "\n".join(lines)


def main() -> int:
    """Measure, print, and say whether this tree is slower."""
    parser = argparse.ArgumentParser(prog="python -m bench.compare", description=__doc__)
    parser.add_argument("revision", help="the revision to compare with")
    parser.add_argument("--generations", type=int, default=4, help="how often all hubs are started (default 4)")
    parser.add_argument("--twins", type=int, default=2, help="hubs of each tree at a time (default 2)")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each hub and scenario (default 5)")
    parser.add_argument("--seconds", type=float, default=1.0, help="length of a turn (default 1)")
    parser.add_argument("--only", default="hub|hub, stdio server|hub, rpc server", metavar="A|B", help="scenarios")
    parser.add_argument("--steps", action="store_true", help="count interpreter steps instead of CPU time")
    options = parser.parse_args()
    scenarios = [scenario for scenario in SCENARIOS if scenario.name in options.only.split("|")]
    costs: Costs = {}
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        checkout = Path(folder, "checkout")
        git = ("git", "-C", str(ROOT), "worktree")
        added = subprocess.run([*git, "add", "--quiet", "--detach", str(checkout), options.revision], check=False)
        if added.returncode:
            return 2
        checkouts = {HERE: ROOT, options.revision: checkout}
        try:
            if options.steps:
                there = count_steps(checkout, scenarios, options.seconds)
                here = count_steps(ROOT, scenarios, options.seconds)
                print(steps_table(here, there, options.revision))
                return int(any(takes_more_steps(here[name], there[name]) for name in here))
            for number in range(options.generations):
                print(f"generation {number + 1} of {options.generations}", file=sys.stderr)
                turn = measure_generation(
                    checkouts, scenarios, twins=options.twins, rounds=options.rounds, seconds=options.seconds
                )
                for key, values in turn.items():
                    costs.setdefault(key, []).extend(values)
        except (NotMeasured, NotStarted, WrongAnswer) as error:
            print(f"bench: {error}", file=sys.stderr)
            return 2
        finally:
            subprocess.run([*git, "remove", "--force", str(checkout)], check=False)
    print(table(costs, options.revision))
    slower = [
        scenario.name
        for scenario in scenarios
        if is_slower(costs[scenario.name, HERE], costs[scenario.name, options.revision])
    ]
    for name in slower:
        print(f"bench: {name} costs more than in {options.revision}", file=sys.stderr)
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
