"""`python -m bench`: what one call costs, directly, through a bare relay and through the hub, in one run.

The scenarios take turns in short rounds, so that a machine that slows down slows all of them; figures are
medians over the rounds, ratios are taken within a round. Ends with 1 when the hub breaks its promise, 2
when it could not be measured.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import median

import msgspec
import uvloop

from bench.load import Served, WrongAnswer, drive
from bench.processes import NotStarted, machine
from bench.stage import SCENARIOS, Scenario, Target, set_stage

WARM_UP_SECONDS = 1.5
ASKS_EACH = 64
"""Different calls that one connection sends in turn; enough that no two neighbours are alike."""

REST_SECONDS = 30.0
"""After long messages, before memory is weighed again: the hub returns memory after 10 to 20 seconds of quiet."""

ASKED_BYTES_MAX = 64 * 1024 * 1024
"""Of prepared calls, of each scenario: with long texts there are fewer."""

IMPLAUSIBLE_MICROSECONDS = 2.0
"""Reading and writing a socket alone costs more: below it, the calls were answered by some other process."""

PROMISED_MICROSECONDS = 200.0
"""At most this much CPU of the hub for one call, with permissions on."""

PROMISED_OTHERS_MICROSECONDS = {"hub, SSE server": 250.0, "hub, rpc server": 250.0}
"""The same for ways to a server that take more: an event stream beside every request, a result to be wrapped."""

PROMISED_RELAYS = 2.0
"""At most this many times the bare relay's CPU, in the same run."""


class NotMeasured(Exception):
    """A turn whose figures are not those of the process that was watched."""


@dataclass(frozen=True, slots=True)
class Round:
    """One scenario's turn."""

    calls: int
    cpu_microseconds: float
    calls_per_second: float
    p50_milliseconds: float
    p99_milliseconds: float


@dataclass(frozen=True, slots=True)
class Row:
    """One scenario's figures over all rounds: medians."""

    scenario: str
    cpu_microseconds: float
    calls_per_second: float
    p50_milliseconds: float
    p99_milliseconds: float
    times_relay: float | None
    times_direct: float | None


def measure(
    targets: Sequence[Target], *, rounds: int, seconds: float, take: Callable[[Target, float], Round] | None = None
) -> dict[str, list[Round]]:
    """Warm every target up, then give each its turn, `rounds` times over; `take` takes one, instead of `take_turn`."""
    take = take or take_turn
    for target in targets:
        take(target, WARM_UP_SECONDS)
    taken: dict[str, list[Round]] = {target.scenario.name: [] for target in targets}
    for number in range(rounds):
        print(f"round {number + 1} of {rounds}", file=sys.stderr)
        for target in targets:
            taken[target.scenario.name].append(take(target, seconds))
    return taken


def take_turn(target: Target, seconds: float) -> Round:
    """Drive one target and return what the turn cost.

    Raises:
        NotMeasured: the watched process did no work for the calls; its low cost must not pass for a good one.
        WrongAnswer: see `load.drive`.
    """
    before = target.program.cpu_seconds()
    served = uvloop.run(drive(target.port, target.asks_of, seconds, target.check))
    turn = figures(served, target.program.cpu_seconds() - before)
    if turn.cpu_microseconds < IMPLAUSIBLE_MICROSECONDS:
        spent = f"{turn.cpu_microseconds:.1f} µs a call"
        raise NotMeasured(f"{target.scenario.name!r} spent {spent}: something else listens on port {target.port}")
    return turn


def figures(served: Served, cpu_seconds: float) -> Round:
    """Return the figures of one turn per call."""
    return Round(
        calls=served.calls,
        cpu_microseconds=cpu_seconds / served.calls * 1e6,
        calls_per_second=served.calls / served.seconds,
        p50_milliseconds=served.quantile(0.50) * 1e3,
        p99_milliseconds=served.quantile(0.99) * 1e3,
    )


def summary(taken: Mapping[str, Sequence[Round]]) -> list[Row]:
    """Return one row for each scenario."""
    return [
        Row(
            scenario=name,
            cpu_microseconds=median(turn.cpu_microseconds for turn in turns),
            calls_per_second=median(turn.calls_per_second for turn in turns),
            p50_milliseconds=median(turn.p50_milliseconds for turn in turns),
            p99_milliseconds=median(turn.p99_milliseconds for turn in turns),
            times_relay=ratio(turns, taken.get("relay")),
            times_direct=ratio(turns, taken.get("direct")),
        )
        for name, turns in taken.items()
    ]


def ratio(turns: Sequence[Round], others: Sequence[Round] | None) -> float | None:
    """Return the median of the CPU ratios of turns in the same round, or None without the other."""
    if not others:
        return None
    return median(turn.cpu_microseconds / other.cpu_microseconds for turn, other in zip(turns, others, strict=True))


def broken_promises(rows: Sequence[Row]) -> list[str]:
    """Return a sentence for each promise that a scenario does not keep."""
    limits = {"hub": PROMISED_MICROSECONDS, **PROMISED_OTHERS_MICROSECONDS}
    broken = [
        f"{row.scenario}: {row.cpu_microseconds:.0f} µs of CPU a call, more than {limits[row.scenario]:.0f}"
        for row in rows
        if row.cpu_microseconds > limits.get(row.scenario, float("inf"))
    ]
    broken += [
        f"the hub costs {row.times_relay:.2f} bare relays, more than {PROMISED_RELAYS:g}"
        for row in rows
        if row.scenario == "hub" and row.times_relay is not None and row.times_relay > PROMISED_RELAYS
    ]
    return broken


def table(rows: Sequence[Row]) -> str:
    """Return the rows as text for a terminal."""
    heads = ("scenario", "CPU µs/call", "calls/s", "p50 ms", "p99 ms", "× relay", "× direct")
    lines = [f"{heads[0]:<20}" + "".join(f"{head:>13}" for head in heads[1:])]
    for row in rows:
        cells = (
            f"{row.cpu_microseconds:.1f}",
            f"{row.calls_per_second:.0f}",
            f"{row.p50_milliseconds:.2f}",
            f"{row.p99_milliseconds:.2f}",
            "" if row.times_relay is None else f"{row.times_relay:.2f}",
            "" if row.times_direct is None else f"{row.times_direct:.2f}",
        )
        lines.append(f"{row.scenario:<20}" + "".join(f"{cell:>13}" for cell in cells))
    return "\n".join(lines)


def memory_of(targets: Sequence[Target]) -> dict[str, int]:
    """Return the memory that each watched process has now, by the first scenario that it serves."""
    names = {target.program.pid: target.scenario.name for target in reversed(targets)}
    return {names[target.program.pid]: target.program.memory_bytes() for target in targets}


def memory_table(weighed: Sequence[Mapping[str, int]]) -> str:
    """Return the memory of each process before the run, after it, and after a rest."""
    heads = ("memory, MiB", "before", "after", f"{REST_SECONDS:g} s later")
    lines = [f"{heads[0]:<20}" + "".join(f"{head:>13}" for head in heads[1:])]
    lines += [f"{name:<20}" + "".join(f"{each[name] / 2**20:>13.1f}" for each in weighed) for name in weighed[0]]
    return "\n".join(lines)


def chosen(words: str | None) -> list[Scenario]:
    """Return the scenarios whose name fits one of the patterns joined by +, or all."""
    if words is None:
        return list(SCENARIOS)
    names = [word.strip() for word in words.split("+")]
    return [scenario for scenario in SCENARIOS if any(fnmatchcase(scenario.name, name) for name in names)]


def main() -> int:
    """Measure, print, and say whether the promise holds."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="turns of each scenario (default 7)")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of a turn (default 3)")
    parser.add_argument("--connections", type=int, default=16, help="keep-alive connections (default 16)")
    parser.add_argument("--text-bytes", type=int, default=0, help="length of arguments and result (default 15 bytes)")
    parser.add_argument("--only", metavar="A+B", help="scenarios to run, by name; `hub*` is all of the hub")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows and all rounds to FILE")
    options = parser.parse_args()
    try:
        with ExitStack() as held:
            cast = set_stage(
                held,
                chosen(options.only),
                connections=options.connections,
                asks_each=max(2, min(ASKS_EACH, ASKED_BYTES_MAX // options.connections // max(1, options.text_bytes))),
                text_bytes=options.text_bytes,
            )
            before = memory_of(cast)
            taken = measure(cast, rounds=options.rounds, seconds=options.seconds)
            memory = [before, memory_of(cast)]
            if options.text_bytes:
                print(f"resting for {REST_SECONDS:g} seconds", file=sys.stderr)
                time.sleep(REST_SECONDS)
                memory.append(memory_of(cast))
    except (NotMeasured, NotStarted, WrongAnswer) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    rows = summary(taken)
    print(machine())
    print(table(rows))
    if options.text_bytes:
        print(memory_table(memory))
    if not {"hub", "relay"} <= taken.keys():
        print("bench: the promise was not checked in full; that takes both `hub` and `relay`", file=sys.stderr)
    if options.json:
        write_json(options.json, rows, taken)
    broken = [] if options.text_bytes else broken_promises(rows)
    for sentence in broken:
        print(f"bench: {sentence}", file=sys.stderr)
    return 1 if broken else 0


def write_json(file: Path, rows: Sequence[Row], taken: Mapping[str, Sequence[Round]]) -> None:
    """Write everything that was measured."""
    rounds = {name: [asdict(turn) for turn in turns] for name, turns in taken.items()}
    whole = {"machine": machine(), "rows": [asdict(row) for row in rows], "rounds": rounds}
    file.write_bytes(msgspec.json.format(msgspec.json.encode(whole), indent=2))


if __name__ == "__main__":
    sys.exit(main())
