"""The processes under measurement: starting them, learning their ports, reading their CPU time, ending them.

Called by `python -m bench`. Each program runs alone in a process, so that its CPU time is its own. Linux
only, for the clock of another process.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import clock_gettime, monotonic, sleep
from typing import Self, TypeVar

T = TypeVar("T")

START_SECONDS = 15.0
"""Time for a program to say its port; a cold start with byte-compiling takes a second or two."""

END_SECONDS = 5.0
"""Time to end after SIGTERM, before SIGKILL."""

POLL_SECONDS = 0.02

PORT_PRINTED = re.compile(r"^PORT (\d+)$", re.MULTILINE)
"""How the bench's own servers say their port."""

PORT_LOGGED = re.compile(r"http://127\.0\.0\.1:(\d+)")
"""How the hub says its port, somewhere in a log line."""

RESIDENT = re.compile(r"^VmRSS:\s+(\d+) kB$", re.MULTILINE)
"""How the system says what memory a process has."""


def machine() -> str:
    """Name the machine that figures come from."""
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    model = models[0].partition(":")[2].strip() if models else "an unknown processor"
    python = ".".join(str(part) for part in sys.version_info[:3])
    return f"{os.cpu_count()} cores ({model}), Linux, Python {python}"


class NotStarted(Exception):
    """A program that ended or fell silent before it served."""


class Program:
    """One running Python module that serves on a port; leaving its `with` block ends it.

    With a `command` it is that one, and `module` only its name.
    """

    def __init__(
        self,
        module: str,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        python: str = sys.executable,
        command: Sequence[str] = (),
        cwd: Path | None = None,
    ) -> None:
        self._module = module
        # A file, not a pipe: nobody reads during a round, and a full pipe would stop the program.
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 (open for as long as the program runs)
        self._process = subprocess.Popen(
            [*(command or (python, "-m", module)), *arguments],
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(env or {})},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        self._output.close()

    def end(self) -> None:
        """End it, if it has not ended."""
        self._process.terminate()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def signal(self, number: int) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def port(self, said: re.Pattern[str], *, besides: Collection[int] = ()) -> int:
        """Wait for the words that `said` matches and return the port in them.

        `besides` are the ports of others, which a program may well mention before its own.

        Raises:
            NotStarted: they did not come; the message holds what the program said instead.
        """
        give_up = monotonic() + START_SECONDS
        while monotonic() < give_up and self._process.poll() is None:
            own = (port for text in said.findall(self.output()) if (port := int(text)) not in besides)
            if found := next(own, None):
                return found
            sleep(POLL_SECONDS)
        raise NotStarted(f"{self._module} did not say its port; it said:\n{self.output()[-2000:]}")

    def output(self) -> str:
        """Return what the program has written to stdout and stderr so far."""
        # pread leaves the offset alone, which the child shares and writes at.
        size = os.fstat(self._output.fileno()).st_size
        return os.pread(self._output.fileno(), size, 0).decode(errors="replace")

    def is_running(self) -> bool:
        """Say whether it has not ended by itself."""
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """Return the id of its process."""
        return self._process.pid

    def children(self) -> list[int]:
        """Return the ids of the processes that it has started."""
        return [int(text) for text in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]

    def cpu_seconds(self) -> float:
        """Return the CPU time, user and system, that this process alone has used."""
        return clock_gettime(cpu_clock_of(self._process.pid))

    def memory_bytes(self) -> int:
        """Return the memory that this process has, what it shares with others included."""
        return resident_bytes(Path(f"/proc/{self._process.pid}/status").read_text())


class Family(Program):
    """A program that is measured with all processes that it starts, but for the bench's own servers among them."""

    def end(self) -> None:
        """End all of them: a program that is killed leaves what it started."""
        others = descendants(self.pid)
        super().end()
        for pid in others:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def cpu_seconds(self) -> float:
        """Return the CPU time that all of them have used; a process that has ended counts no more."""
        return super().cpu_seconds() + sum(self._each(lambda pid: clock_gettime(cpu_clock_of(pid))))

    def memory_bytes(self) -> int:
        """Return the memory of all of them; what they share counts for each."""
        each = self._each(lambda pid: resident_bytes(Path(f"/proc/{pid}/status").read_text()))
        return super().memory_bytes() + sum(each)

    def _each(self, measured: Callable[[int], T]) -> Iterator[T]:
        for pid in descendants(self.pid):
            with suppress(OSError, NotStarted):  # it has just ended
                if b"bench.direct" not in Path(f"/proc/{pid}/cmdline").read_bytes():
                    yield measured(pid)


def descendants(pid: int) -> list[int]:
    """Return the processes that this one has started and those that they have; any thread can have done it."""
    found: list[int] = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for text in children.read_text().split():
                found += [int(text), *descendants(int(text))]
    return found


def resident_bytes(status: str) -> int:
    """Return what the `status` of a process in /proc says of its memory."""
    found = RESIDENT.search(status)
    if found is None:
        raise NotStarted("a process that has ended has no memory to weigh")
    return int(found[1]) * 1024


def cpu_clock_of(pid: int) -> int:
    """Return the id of a process's CPU clock, in nanoseconds where /proc counts hundredths of a second.

    This is what clock_getcpuclockid(3), which Python does not offer, computes on Linux.
    """
    per_process_scheduled = 2
    return (~pid << 3) | per_process_scheduled
