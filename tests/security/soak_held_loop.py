"""T71 for long: each class of heavy input for two minutes, side by side with ordinary calls.

`python -m tests.security.soak_held_loop [SECONDS] [CLASS ...]` prints for each class:

- `longest`: the most processor time of one turn of the hub's event loop (`measured_hub`),
- `>1 ms`, `>5 ms`, `>20 ms`: the share of the time that passed that the loop spent in turns longer than that,
- `p50`, `p99`: how long a paced caller, which calls every 5 ms, waited for the hub,
- `net`: the p99 without the time in which the hub's thread was ready and the machine ran another process,
- `control`: the p99 of the same calls to a process that is not the hub, at the same time: the share of the machine,
- `net/quiet`: `net` beside its value while nothing else happens.

It fails if a class held the loop for over 50 ms. Attackers sit on other machines: the driver and the servers that it
drives run with a lower priority than the hub and the paced caller, and take little time from them.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.hubs import CHECKOUT
from tests.security.heavy_inputs import FAMILIES, HELD, KINDS, PROGRAM, Field, open_field

SECONDS = 120.0
QUIET_SECONDS = 5.0
LOWEST_PRIORITY = 19
SHOWN_BOUNDS = ("0.001", "0.005", "0.02")
PACED_CALLER = str(Path(__file__).with_name("paced_caller.py"))
HEADING = (
    f"{'class':<22}{'longest':>10}{'>1 ms':>8}{'>5 ms':>8}{'>20 ms':>8}"
    f"{'p50':>9}{'p99':>9}{'net':>9}{'control':>9}{'net/quiet':>11}{'calls':>8}{'inputs':>8}"
)


@dataclass(frozen=True)
class Measured:
    """What one class of input did to the loop and to the paced caller."""

    name: str
    seconds: float
    before: dict[str, Any]
    after: dict[str, Any]
    """What the hub said of its loop."""
    waits: Sequence[tuple[float, float]]
    """Of each call the seconds, and those of them in which the hub waited for a processor."""
    control: Sequence[tuple[float, float]]
    inputs: int = 0

    @property
    def longest(self) -> float:
        """The longest turn."""
        return float(self.after["turns"]["longest"])

    def share(self, bound: str) -> float:
        """The share of the time in turns over a bound."""
        both = [float(each["turns"]["seconds_over"][bound]) for each in (self.before, self.after)]
        return (both[1] - both[0]) / self.seconds

    @property
    def net(self) -> float:
        """The p99 of the waits that are the hub's own."""
        return p99([took - delay for took, delay in self.waits])

    def row(self, quiet: Measured) -> str:
        """A line of the table."""
        shares = "".join(f"{self.share(bound) * 100:>7.2f}%" for bound in SHOWN_BOUNDS)
        waits, control = ([took for took, _ in calls] for calls in (self.waits, self.control))
        times = (statistics.median(waits), p99(waits), self.net, p99(control))
        milliseconds = "".join(f"{each * 1000:>7.2f}ms" for each in times)
        ratio = self.net / quiet.net
        longest = f"{self.longest * 1000:>8.1f}ms"
        return f"{self.name:<22}{longest}{shares}{milliseconds}{ratio:>11.1f}{len(self.waits):>8}{self.inputs:>8}"


def p99(waits: Sequence[float]) -> float:
    """The wait that one call in a hundred exceeds."""
    return sorted(waits)[int(len(waits) * 0.99)]


class PacedCaller:
    """The paced caller, in a process of its own: what drives the hub is busy itself."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def waits(self) -> list[tuple[float, float]]:
        """How long its calls took since the last time, and for how long of it the callee waited for a processor."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(b"\n")
        found: list[tuple[float, float]] = json.loads(await self._process.stdout.readline())
        return found


@asynccontextmanager
async def running(*words: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process of `paced_caller.py` until the block ends."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, PACED_CALLER, *words, stdin=pipe, stdout=pipe, limit=1 << 26
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):  # the control ends with its caller
            process.kill()
        await process.wait()


def yield_the_machine(field: Field, *callers: asyncio.subprocess.Process) -> None:
    """Prefer the hub and the paced callers to this process, the servers that it drives, and others on the machine.

    Only root may use the real-time scheduler. Others lower their own priority.
    """
    try:
        for thread in Path(f"/proc/{field.hub.pid}/task").iterdir():
            os.sched_setscheduler(int(thread.name), os.SCHED_RR, os.sched_param(1))
        for caller in callers:
            os.sched_setscheduler(caller.pid, os.SCHED_RR, os.sched_param(2))
    except PermissionError:
        os.nice(LOWEST_PRIORITY)
        os.setpriority(os.PRIO_PROCESS, field.peer, LOWEST_PRIORITY)
        for status in Path("/proc").glob("[0-9]*/cmdline"):
            words = status.read_bytes().decode(errors="replace").split("\0")
            parents = status.with_name("stat").read_text().rpartition(")")[2].split()
            if PROGRAM in words and int(parents[1]) == field.hub.pid:
                os.setpriority(os.PRIO_PROCESS, int(status.parent.name), LOWEST_PRIORITY)


async def measured(field: Field, callers: tuple[PacedCaller, PacedCaller], family: str, seconds: float) -> Measured:
    """Drive a class for so long; without kinds, wait."""
    kinds = [kind for kind in KINDS if kind.family == family]
    for kind in kinds:
        if "/ python /" in kind.name:  # while the function makes its value, it holds the lock, and not the hub
            await kind.drive(field)
    paced_caller, control = callers
    before, begun, inputs = await field.loop_figures(), time.monotonic(), 0
    await asyncio.gather(paced_caller.waits(), control.waits())
    while kinds and time.monotonic() < begun + seconds:
        for kind in kinds:
            await kind.drive(field)
            inputs += 1
            if time.monotonic() >= begun + seconds:
                break
    await asyncio.sleep(begun + seconds - time.monotonic())
    waits = await asyncio.gather(paced_caller.waits(), control.waits())
    after = await field.loop_figures()
    return Measured(family, time.monotonic() - begun, before, after, *waits, inputs)


async def main(seconds: float, families: Sequence[str]) -> int:
    """Drive every class; the exit code."""
    held: list[str] = []
    env = {"PYTHONPATH": f"{CHECKOUT / 'src'}{os.pathsep}{CHECKOUT}"}
    env |= {name: value for name, value in os.environ.items() if name == "ISTHMUS_TURNS_LOG"}
    with tempfile.TemporaryDirectory() as folder:
        async with (
            running("control") as control,
            open_field(Path(folder), "tests.security.measured_hub", env) as field,
        ):
            assert control.stdout is not None
            port = (await control.stdout.readline()).decode().strip()
            callee = (str(field.hub.port), str(field.hub.pid))
            async with running(*callee) as caller, running(port, str(control.pid)) as other:
                yield_the_machine(field, control, caller, other)
                callers = (PacedCaller(caller), PacedCaller(other))
                quiet = await measured(field, callers, "quiet", QUIET_SECONDS)
                print(HEADING, quiet.row(quiet), sep="\n", flush=True)
                for family in families:
                    found = await measured(field, callers, family, seconds)
                    print(found.row(quiet), flush=True)
                    held += [family] if found.longest > float(HELD) else []
    if held:
        print(f"These classes held the event loop for over {float(HELD) * 1000:g} ms: {', '.join(held)}")
    return 1 if held else 0


if __name__ == "__main__":
    # A hub on standard streams is another process, with one caller.
    served = [family for family in FAMILIES if family != "standard streams"]
    chosen = [family for family in served if not sys.argv[2:] or family in sys.argv[2:]]
    sys.exit(asyncio.run(main(float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS, chosen)))
