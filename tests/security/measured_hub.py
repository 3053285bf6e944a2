"""A hub that measures every turn of its event loop: `python -m tests.security.measured_hub serve …`.

The hub's own monitor looks at its processor time every 5 ms at most, so it cannot tell one piece of work of 4 ms from
eight of half a millisecond. Here each turn is measured by itself while the loop works, and `GET /v1/hub` has the
figures as `turns`. That costs about 10 µs a turn, so only `soak_held_loop` starts the hub this way.

With `ISTHMUS_TURNS_LOG=FILE.log`, a thread notes where the loop is and the processor time since its last look.
`FILE.log` then has the places by time, and `FILE.longest` those of the longest turns. A C call shows as the line after
it.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from bisect import bisect_left
from collections import Counter
from pathlib import Path
from typing import Any

from isthmus.app import serve
from isthmus.cli.main import program
from isthmus.telemetry import loop_lag

BOUNDS = (0.001, 0.005, 0.02, 0.05)
"""Turns are counted by these lengths, in seconds."""

QUIET_TURN_SECONDS = 0.0002
QUIET_TURNS = 3
"""After so many short turns the loop may sleep again, until the next beat."""

QUIET_BEAT_SECONDS = 0.001
SAMPLE_SECONDS = 0.0005
FRAMES = 6
TURNS_KEPT = 20


class TurnMonitor(loop_lag.LoopMonitor):
    """Measures the processor time of every turn."""

    def __init__(self) -> None:
        super().__init__()
        self._turn_cpu = 0.0
        self._quiet = 0
        self._seconds = [0.0] * (len(BOUNDS) + 1)
        self._longest = 0.0
        self._places: list[tuple[float, str]] = []
        self._turns: list[tuple[float, list[tuple[float, str]]]] = []

    def start(self) -> None:
        """Measure turns, too."""
        super().start()
        self._turn_cpu = time.thread_time()
        self._turn()
        if (file := os.environ.get("ISTHMUS_TURNS_LOG")) is not None:
            threading.Thread(target=self._sample, args=(Path(file),), daemon=True).start()

    def _turn(self) -> None:
        cpu = time.thread_time()
        took, self._turn_cpu = cpu - self._turn_cpu, cpu
        self._seconds[bisect_left(BOUNDS, took)] += took
        self._longest = max(self._longest, took)
        self._quiet = self._quiet + 1 if took < QUIET_TURN_SECONDS else 0
        if self._places:
            if took > BOUNDS[0]:
                self._turns.append((took, self._places))
            self._places = []
        if self._quiet >= QUIET_TURNS:
            self._loop.call_later(QUIET_BEAT_SECONDS, self._turn)
        else:
            self._loop.call_soon(self._turn)

    def figures(self) -> dict[str, Any]:
        """Adds `turns`: the longest since the last look, and the seconds in turns over each bound."""
        longest, self._longest = self._longest, 0.0
        over = {f"{bound:g}": sum(self._seconds[at + 1 :]) for at, bound in enumerate(BOUNDS)}
        return {**super().figures(), "turns": {"longest": longest, "all": sum(self._seconds), "seconds_over": over}}

    def _sample(self, file: Path) -> None:
        """Write where the loop's thread spends its processor time, most first."""
        sys.setswitchinterval(SAMPLE_SECONDS)
        clock = time.pthread_getcpuclockid(self._thread_id)
        seen: Counter[str] = Counter()
        written, before = time.perf_counter(), time.clock_gettime(clock)
        while not self._stopped.wait(SAMPLE_SECONDS):
            frame, now = sys._current_frames().get(self._thread_id), time.clock_gettime(clock)
            took, before = now - before, now
            if took < SAMPLE_SECONDS / 10:
                continue
            places: list[str] = []
            while frame is not None and len(places) < FRAMES:
                places.append(f"{frame.f_globals.get('__name__', '?')}.{frame.f_code.co_name}:{frame.f_lineno}")
                frame = frame.f_back
            place = " < ".join(places)
            seen[place] += round(took * 1e6)
            self._places.append((took, place))
            if time.perf_counter() - written > 1.0:
                file.write_text("".join(f"{took:8} us {place}\n" for place, took in seen.most_common(60)))
                self._turns = sorted(self._turns, key=lambda turn: -turn[0])[:TURNS_KEPT]
                lines = [
                    f"{whole * 1000:.1f} ms\n" + "".join(f"{took * 1000:8.1f} ms {place}\n" for took, place in parts)
                    for whole, parts in self._turns
                ]
                file.with_suffix(".longest").write_text("".join(lines))
                written = time.perf_counter()


if __name__ == "__main__":
    vars(serve)["LoopMonitor"] = TurnMonitor
    sys.exit(program())
