"""`python -m bench.counted_hub serve …`: a hub that counts the interpreter steps of its main thread, by package.

Started by `bench.compare --steps` and `bench.ways`. SIGUSR1 starts a count; SIGUSR2 ends it and writes it to the file
that BENCH_STEPS names. Counting makes the hub forty times slower, and the steps of a call stay the same.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import msgspec

STARTED = "InFlight.__init__"
"""Each call runs this function once."""

SHARED = "shared"
"""Functions that run less often: timers, and work that several calls have in common. How much of that a call gets
depends on the speed of the hub, so it is counted apart."""


def install(report: Path, call: Callable[[Callable[[], None]], object] = lambda function: function()) -> None:
    """Let the two signals start and end the count; `call` calls a function in the thread that is counted."""
    steps: Counter[CodeType] = Counter()
    runs: Counter[CodeType] = Counter()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        if event == "opcode":
            steps[frame.f_code] += 1
        elif event == "call":
            runs[frame.f_code] += 1
        return trace

    def begin() -> None:
        steps.clear()
        runs.clear()
        sys.settrace(trace)

    def end() -> None:
        sys.settrace(None)
        calls = max((count for code, count in runs.items() if code.co_qualname == STARTED), default=0)
        packages: Counter[str] = Counter()
        for code, count in steps.items():
            packages[package_of(code.co_filename) if runs[code] > 0.9 * calls else SHARED] += count
        draft = report.with_suffix(".new")
        draft.write_bytes(msgspec.json.encode({"calls": calls, "packages": packages}))
        draft.replace(report)

    signal.signal(signal.SIGUSR1, lambda *_: call(begin))
    signal.signal(signal.SIGUSR2, lambda *_: call(end))


def package_of(file: str) -> str:
    """Return the package of Isthmus that a file belongs to, or `libraries`."""
    _, found, inside = file.rpartition("/src/isthmus/")
    return inside.partition("/")[0] if found else "libraries"


if __name__ == "__main__":
    install(Path(os.environ["BENCH_STEPS"]))
    sys.argv[0] = "isthmus"
    runpy.run_module("isthmus", run_name="__main__", alter_sys=True)
