"""`python -m bench.crowd`: what ten thousand servers cost a hub that have dialled in and are not called.

Two hubs: at one the crowd dials in, from processes of its own, at the other nobody; one echo server dials in at both.
Measured are the crowded hub's memory for each connection, the CPU time that it spends while nothing happens but
pings, and how long a device's call to the echo server takes there beside the other hub, in rounds that alternate; and
how long a neighbour that calls all the time ever waits while the crowd joins, and while half of it leaves at once. Ends
with 1 when a promise is broken, 2 when it could not be measured.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import monotonic, sleep

import uvloop

from bench.devices import Line, drive, line_of
from bench.dialled import start_diallers, start_relay, wait_until_dialled, wait_until_listed
from bench.diallers import agent_name
from bench.load import WrongAnswer
from bench.neighbour import Neighbour
from bench.processes import NotStarted, Program

PROCESSES = 2
"""Processes that the crowd comes from: each bears five thousand well, and there are no more cores."""

TOOLS_EACH = 2
CALLED = 1_000_000
"""The number of the agent whose server is called; none of the crowd."""

NEIGHBOUR = 1_000_001
"""That of the neighbour's."""

REST_SECONDS = 3.0
"""After the last has joined, until the hub's clock is read: what joining left to do is done by then."""

WARM_UP_SECONDS = 0.5
TURN_SECONDS = 0.5

KIB = 1024
PROMISED_KIB = 40.0
"""At most this much of the hub's memory for each connection."""

PROMISED_IDLE = 0.10
"""At most this much of a core for all of them while nothing is called."""

PROMISED_TIMES = 2.0
"""At most this many times as long for a call as without the crowd, at the median."""


@dataclass(frozen=True, slots=True)
class Found:
    """Everything that was measured. Memory is in bytes, times are in seconds."""

    connections: int
    joining_seconds: float
    joining_cpu_seconds: float
    memory_before: int
    memory_after: int
    idle_seconds: float
    idle_cpu_seconds: float
    medians: Sequence[float]
    """Of a call through the crowd, one for each round."""
    medians_alone: Sequence[float]
    worst_joining: float
    """The longest that the neighbour waited while the crowd joined."""
    worst_leaving: float
    """And while half of it left."""

    @property
    def kib_each(self) -> float:
        """Memory for each connection."""
        return (self.memory_after - self.memory_before) / self.connections / KIB

    @property
    def idle_share(self) -> float:
        """Of a core, while nothing is called."""
        return self.idle_cpu_seconds / self.idle_seconds

    @property
    def times_alone(self) -> float:
        """How many times as long a call takes: the median over the rounds."""
        pairs = zip(self.medians, self.medians_alone, strict=True)
        return median(crowded / alone for crowded, alone in pairs)


def shares(connections: int, processes: int) -> list[tuple[int, int]]:
    """The first number and the count of each process's part of the crowd."""
    bounds = [connections * number // processes for number in range(processes + 1)]
    return [(first, last - first) for first, last in pairwise(bounds) if last > first]


def measure(held: ExitStack, connections: int, seconds: float, rounds: int) -> Found:
    """Set the stage and measure, in the order in which memory comes first and calls come last."""
    folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
    hub, port = start_relay(held, folder / "crowded")
    _, port_alone = start_relay(held, folder / "alone")
    start_diallers(held, [f"{port}:{NEIGHBOUR}:1"])
    neighbours = line_of(port, agent_name(NEIGHBOUR))
    say("connecting …")
    before, cpu, began = hub.memory_bytes(), hub.cpu_seconds(), monotonic()
    with Neighbour(neighbours) as joining:
        crowd = join(held, port, connections)
    joined, cpu_joined = monotonic(), hub.cpu_seconds()
    wait_until_listed(port, connections + 1, (connections + 1) * TOOLS_EACH)
    say(f"{connections} are listed; idling for {seconds:g} s …")
    sleep(REST_SECONDS)
    after = hub.memory_bytes()
    idle, idle_cpu = idled(hub, seconds)
    say(f"calling, {rounds} rounds …")
    called = [f"{number}:{CALLED}:1" for number in (port, port_alone)]
    start_diallers(held, called)
    lines = [line_of(number, agent_name(CALLED)) for number in (port, port_alone)]
    medians, alone = alternate(lines, rounds)
    check_nobody_left(crowd)
    say("half of them leave …")
    with Neighbour(neighbours) as leaving:
        crowd[0].end()
        sleep(REST_SECONDS)
    return Found(
        connections,
        joined - began,
        cpu_joined - cpu,
        before,
        after,
        idle,
        idle_cpu,
        medians,
        alone,
        joining.worst,
        leaving.worst,
    )


def join(held: ExitStack, port: int, connections: int) -> list[Program]:
    """Have the whole crowd dial in, and return its processes once each server was asked for its tools."""
    crowd = [
        held.enter_context(Program("bench.diallers", f"{port}:{first}:{count}"))
        for first, count in shares(connections, PROCESSES)
    ]
    for diallers in crowd:
        wait_until_dialled(diallers)
    return crowd


def idled(hub: Program, seconds: float) -> tuple[float, float]:
    """Wait, and return how long that was and how much CPU time the hub spent on it."""
    began, cpu = monotonic(), hub.cpu_seconds()
    sleep(seconds)
    return monotonic() - began, hub.cpu_seconds() - cpu


def alternate(lines: Sequence[Line], rounds: int) -> tuple[list[float], list[float]]:
    """The medians of calls on the two lines, in rounds that take turns."""
    for line in lines:
        uvloop.run(drive([line], 1, WARM_UP_SECONDS))
    turns = [[uvloop.run(drive([line], 1, TURN_SECONDS)).quantile(0.5) for line in lines] for _ in range(rounds)]
    return [turn[0] for turn in turns], [turn[1] for turn in turns]


def check_nobody_left(crowd: Sequence[Program]) -> None:
    """Raises `NotStarted` if a server of the crowd was lost meanwhile: then it was not a crowd that was measured."""
    lost = [line for diallers in crowd for line in diallers.output().splitlines() if line.startswith("LOST")]
    if lost:
        raise NotStarted(f"{len(lost)} servers of the crowd were lost, the first so: {lost[0]}")


def broken_promises(found: Found) -> list[str]:
    """A sentence for each promise that the hub does not keep."""
    broken = []
    if found.kib_each > PROMISED_KIB:
        broken.append(f"{found.kib_each:.1f} KiB for each connection, more than {PROMISED_KIB:g}")
    if found.idle_share > PROMISED_IDLE:
        broken.append(f"{found.idle_share:.1%} of a core for an idle crowd, more than {PROMISED_IDLE:.0%}")
    if found.times_alone > PROMISED_TIMES:
        broken.append(f"a call takes {found.times_alone:.2f} times as long as alone, more than {PROMISED_TIMES:g}")
    return broken


def table(found: Found) -> str:
    """Everything that was measured as text for a terminal."""
    rows = (
        ("connections", f"{found.connections}", ""),
        ("joining, seconds", f"{found.joining_seconds:.1f}", ""),
        ("joining, CPU ms each", f"{found.joining_cpu_seconds / found.connections * 1e3:.2f}", ""),
        ("memory without, MiB", f"{found.memory_before / KIB / KIB:.1f}", ""),
        ("memory with, MiB", f"{found.memory_after / KIB / KIB:.1f}", ""),
        ("memory each, KiB", f"{found.kib_each:.1f}", f"{PROMISED_KIB:g}"),
        ("idle CPU, of a core", f"{found.idle_share:.1%}", f"{PROMISED_IDLE:.0%}"),
        ("call through it, ms", f"{median(found.medians) * 1e3:.3f}", ""),
        ("call alone, ms", f"{median(found.medians_alone) * 1e3:.3f}", ""),
        ("times as long", f"{found.times_alone:.2f}", f"{PROMISED_TIMES:g}"),
        ("worst call of a neighbour while joining, ms", f"{found.worst_joining * 1e3:.0f}", ""),
        ("worst call of a neighbour while half leave, ms", f"{found.worst_leaving * 1e3:.0f}", ""),
    )
    heads = f"{'':<48}{'measured':>12}{'at most':>12}"
    return "\n".join([heads, *(f"{name:<48}{value:>12}{limit:>12}" for name, value, limit in rows)])


def say(what: str) -> None:
    """Tell who waits."""
    print(what, file=sys.stderr)


def main() -> int:
    """Measure, print, and say whether the promises hold."""
    parser = argparse.ArgumentParser(prog="python -m bench.crowd", description=__doc__)
    parser.add_argument("--connections", type=int, default=10_000, help="servers that dial in (default 10000)")
    parser.add_argument("--seconds", type=float, default=40.0, help="how long they idle (default 40: two pings each)")
    parser.add_argument("--rounds", type=int, default=15, help="rounds of calls (default 15)")
    options = parser.parse_args()
    try:
        with ExitStack() as held:
            found = measure(held, options.connections, options.seconds, options.rounds)
    except (NotStarted, WrongAnswer, OSError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    print(table(found))
    broken = broken_promises(found)
    for sentence in broken:
        print(f"bench: {sentence}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
