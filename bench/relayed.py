"""`python -m bench.relayed`: calls over the hub's relay beside the same calls straight to the server's WebSocket.

Devices, the hub, and the servers that dial in are processes of their own. Three loads: one device that waits for each
answer, twenty agents that do, and one device with 64 calls on the way. They take turns in short rounds with the same
load without the hub; figures are medians over the rounds, ratios are taken within a round. Ends with 1 when the hub
breaks its promise, 2 when it could not be measured.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import uvloop

from bench.__main__ import NotMeasured, Round, figures
from bench.devices import Line, drive, line_of
from bench.dialled import start_diallers, start_relay
from bench.diallers import agent_name
from bench.load import WrongAnswer
from bench.processes import PORT_PRINTED, NotStarted, Program

AGENTS = 20
PIPELINED = 64
WARM_UP_SECONDS = 1.0

IMPLAUSIBLE_MICROSECONDS = 0.5
"""Below it, the calls were answered by some other process; an echo that reads 64 at once needs no more than two."""

PROMISED_CALLS_PER_SECOND = 1_130.0
"""Ten times what the original relay manages on two cores as it is shipped."""


@dataclass(frozen=True, slots=True)
class Load:
    """One row: who calls, how much at a time, and whose CPU time is watched."""

    name: str
    lines: tuple[Line, ...]
    window: int
    program: Program
    base: str | None = None
    """The same load without the hub."""
    is_promised: bool = False


def loads(hub: Program, hub_port: int, servers: Program, direct_port: int) -> list[Load]:
    """The three loads, each without the hub and with it."""
    agents = [line_of(hub_port, agent_name(number)) for number in range(AGENTS)]
    straight = [Line(direct_port, "/")] * AGENTS
    made: list[Load] = []
    for name, count, window, is_promised in (
        ("one at a time", 1, 1, True),
        (f"{AGENTS} agents", AGENTS, 1, True),
        (f"{PIPELINED} pipelined", 1, PIPELINED, False),
    ):
        base = f"direct, {name}"
        made.append(Load(base, tuple(straight[:count]), window, servers))
        made.append(Load(f"relay, {name}", tuple(agents[:count]), window, hub, base, is_promised))
    return made


def measure(made: Sequence[Load], *, rounds: int, seconds: float) -> dict[str, list[Round]]:
    """Warm up, then give each load its turn, `rounds` times over."""
    for load in made:
        take_turn(load, WARM_UP_SECONDS)
    taken: dict[str, list[Round]] = {load.name: [] for load in made}
    for number in range(rounds):
        print(f"round {number + 1} of {rounds}", file=sys.stderr)
        for load in made:
            taken[load.name].append(take_turn(load, seconds))
    return taken


def take_turn(load: Load, seconds: float) -> Round:
    """Drive one load and return what the turn cost the process that is watched."""
    before = load.program.cpu_seconds()
    served = uvloop.run(drive(load.lines, load.window, seconds))
    turn = figures(served, load.program.cpu_seconds() - before)
    if turn.cpu_microseconds < IMPLAUSIBLE_MICROSECONDS:
        raise NotMeasured(f"{load.name!r} spent {turn.cpu_microseconds:.1f} µs a call: somebody else answered")
    return turn


def table(made: Sequence[Load], taken: Mapping[str, Sequence[Round]]) -> str:
    """The figures as text for a terminal."""
    heads = ("calls/s", "p50 ms", "p99 ms", "CPU µs/call", "calls/s ×", "p50 ×", "CPU ×")
    lines = [f"{'load':<24}" + "".join(f"{head:>12}" for head in heads)]
    for load in made:
        turns = taken[load.name]
        cells = [
            f"{median(turn.calls_per_second for turn in turns):.0f}",
            f"{median(turn.p50_milliseconds for turn in turns):.2f}",
            f"{median(turn.p99_milliseconds for turn in turns):.2f}",
            f"{median(turn.cpu_microseconds for turn in turns):.1f}",
            *([] if load.base is None else ratios(turns, taken[load.base])),
        ]
        lines.append(f"{load.name:<24}" + "".join(f"{cell:>12}" for cell in cells))
    lines.append("CPU is the hub's, and of a direct load the server's; × is beside the same load without the hub.")
    return "\n".join(lines)


def ratios(turns: Sequence[Round], others: Sequence[Round]) -> list[str]:
    """What is shown of a load beside another."""
    figures_of: Sequence[Callable[[Round], float]] = (
        lambda turn: turn.calls_per_second,
        lambda turn: turn.p50_milliseconds,
        lambda turn: turn.cpu_microseconds,
    )
    return [f"{times(turns, others, of):.2f}" for of in figures_of]


def times(turns: Sequence[Round], others: Sequence[Round], of: Callable[[Round], float]) -> float:
    """The median over the rounds of how many times as much one figure of a load is as of the other."""
    return median(of(turn) / of(other) for turn, other in zip(turns, others, strict=True))


def broken_promises(made: Sequence[Load], taken: Mapping[str, Sequence[Round]]) -> list[str]:
    """A sentence for each load that is served too slowly."""
    rates = {load.name: median(turn.calls_per_second for turn in taken[load.name]) for load in made if load.is_promised}
    return [
        f"{name}: {rate:.0f} calls a second, fewer than {PROMISED_CALLS_PER_SECOND:.0f}"
        for name, rate in rates.items()
        if rate < PROMISED_CALLS_PER_SECOND
    ]


def main() -> int:
    """Measure, print, and say whether the promise holds."""
    parser = argparse.ArgumentParser(prog="python -m bench.relayed", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="turns of each load (default 5)")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a turn (default 2)")
    options = parser.parse_args()
    try:
        with ExitStack() as held:
            folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
            hub, hub_port = start_relay(held, folder)
            servers = start_diallers(held, [f"{hub_port}:0:{AGENTS}"], is_listening=True)
            made = loads(hub, hub_port, servers, servers.port(PORT_PRINTED))
            taken = measure(made, rounds=options.rounds, seconds=options.seconds)
    except (NotMeasured, NotStarted, WrongAnswer, OSError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    print(table(made, taken))
    broken = broken_promises(made, taken)
    for sentence in broken:
        print(f"bench: {sentence}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
