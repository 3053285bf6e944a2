"""T71 for long: each class of heavy input for two minutes, side by side with ordinary calls.

`python -m tests.security.soak_held_loop [SECONDS]` prints for each class how long the event loop was busy at most, and
how long an innocent caller waited, beside its quiet value. It fails if a class held the loop for over 50 ms.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.security.heavy_inputs import FAMILIES, HELD, KINDS, Field, longest, open_field

SECONDS = 120.0
QUIET_SECONDS = 5.0
HEADING = f"{'class':<22}{'busy over':>11}{'p50':>11}{'p99':>11}{'p99/quiet':>11}{'calls':>8}"


def row(name: str, busy: str, waits: list[float], quiet: list[float]) -> str:
    """A line of the table."""
    ratio = p99(waits) / p99(quiet)
    milliseconds = f"{statistics.median(waits) * 1000:>8.1f} ms{p99(waits) * 1000:>8.1f} ms"
    return f"{name:<22}{float(busy) * 1000:>8.0f} ms{milliseconds}{ratio:>11.1f}{len(waits):>8}"


def p99(waits: list[float]) -> float:
    """The wait that one call in a hundred exceeds."""
    return sorted(waits)[int(len(waits) * 0.99)]


class Innocent:
    """The innocent caller, in a process of its own: what drives the hub is busy itself."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def waits(self) -> list[float]:
        """How long its calls took since the last time."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(b"\n")
        found: list[float] = json.loads(await self._process.stdout.readline())
        return found


@asynccontextmanager
async def innocent_caller(port: int) -> AsyncIterator[Innocent]:
    """An innocent caller that calls until the block ends."""
    program = str(Path(__file__).with_name("innocent.py"))
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, program, str(port), stdin=pipe, stdout=pipe, limit=1 << 26
    )
    try:
        yield Innocent(process)
    finally:
        process.kill()
        await process.wait()


async def soaked(field: Field, family: str, seconds: float) -> tuple[str, bool]:
    """Drive a class for so long: how long the loop was busy at most, and whether that was too long."""
    kinds = [kind for kind in KINDS if kind.family == family]
    before, ends = await field.busy(), time.monotonic() + seconds
    while time.monotonic() < ends:
        for kind in kinds:
            await kind.drive(field)
            if time.monotonic() >= ends:
                break
    after = await field.busy()
    return longest(before, after), after[HELD] > before[HELD]


async def main(seconds: float) -> int:
    """Drive every class; the exit code."""
    held: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        async with open_field(Path(folder)) as field, innocent_caller(field.hub.port) as innocent:
            await innocent.waits()
            await asyncio.sleep(QUIET_SECONDS)
            quiet = await innocent.waits()
            print(HEADING, row("quiet", "0", quiet, quiet), sep="\n", flush=True)
            for family in FAMILIES:
                busy, is_held = await soaked(field, family, seconds)
                print(row(family, busy, await innocent.waits(), quiet), flush=True)
                held += [family] if is_held else []
    if held:
        print(f"These classes held the event loop for over {float(HELD) * 1000:g} ms: {', '.join(held)}")
    return 1 if held else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS)))
