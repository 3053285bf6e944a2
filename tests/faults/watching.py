"""Watching a process from outside: its memory, descriptors and children, and waiting for conditions."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from tests.conftest import children, state

POLL_SECONDS = 0.01
SLOWEST_POLL_SECONDS = 0.05
"""Most looks are requests: at 100 of them a second, tests that wait would take the machine from those that work."""
IS_SOAK = bool(os.environ.get("ISTHMUS_SOAK"))
"""Whether tests run at their full numbers, as `make soak` has them."""
SOAK_SCALE = float(os.environ.get("ISTHMUS_SOAK_SCALE", "1"))
"""Of the full numbers, where a soak is tried out."""


def times(few: int, many: int) -> int:
    """How often to do something: `few` times in `make test`, `many` times in a soak, in proportion to its scale."""
    return max(few, round(many * SOAK_SCALE)) if IS_SOAK else few


def note(**figures: object) -> None:
    """Print what was measured, and add it to the report of a soak."""
    print(", ".join(f"{name.replace('_', ' ')} {value}" for name, value in figures.items()))
    if path := os.environ.get("ISTHMUS_FIGURES"):
        with Path(path).open("a") as file:
            file.write(json.dumps(figures) + "\n")


async def eventually(holds: Callable[[], bool | Awaitable[bool]], what: str, within: float = 20.0) -> float:
    """Look until it holds and return how long that took; only for conditions without a notification.

    Raises:
        AssertionError: it did not come to hold in time.
    """
    clock = asyncio.get_running_loop().time
    started = clock()
    while True:
        seen = holds()
        if seen if isinstance(seen, bool) else await seen:
            return clock() - started
        waited = clock() - started
        assert waited < within, f"{what}: not within {within:g} s"
        await asyncio.sleep(min(SLOWEST_POLL_SECONDS, max(POLL_SECONDS, waited / 8)))


class Metronome:
    """Tells how late this process was woken: what a busy machine adds to every time that is measured here."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.late_seconds = 0.0
        """Altogether."""

    async def __aenter__(self) -> Metronome:
        self._timer = self._loop.call_later(POLL_SECONDS, self._tick)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._timer.cancel()

    def _tick(self) -> None:
        now = self._loop.time()
        self.late_seconds += max(0.0, now - self._timer.when())
        self._timer = self._loop.call_later(POLL_SECONDS, self._tick)


class Tail:
    """Follows a ledger that others write: what it holds by now, without reading it anew each time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self.ran: set[str] = set()
        """Nonces that ran."""
        self.cancelled: set[str] = set()
        """Nonces of calls that were cancelled at the server."""
        self.cancelled_at: dict[str, float] = {}
        """When they were cancelled, by the monotonic clock that all processes of a machine share."""

    def look(self) -> Tail:
        """Read what is new."""
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._offset)
                whole, _, _ = file.read().rpartition(b"\n")
            self._offset += len(whole) + 1 if whole else 0
            for fact in map(json.loads, whole.splitlines()):
                self.ran |= {fact["nonce"]} if "nonce" in fact else set()
                if "cancelled" in fact:
                    self.cancelled.add(fact["cancelled"])
                    self.cancelled_at[fact["cancelled"]] = fact["at"]
        return self


def family(pid: int) -> dict[int, str]:
    """Every descendant of a process with its command line; a dead one that nobody waited for has none."""
    found: dict[int, str] = {}
    for child in children(pid):
        with suppress(OSError):
            found[child] = Path(f"/proc/{child}/cmdline").read_text().replace("\0", " ")
        found |= family(child)
    return found


def with_mark(pid: int, mark: str) -> list[int]:
    """The descendants of a process whose command line has the mark."""
    return [child for child, words in family(pid).items() if mark in words]


def is_alive(pid: int) -> bool:
    """Whether there is such a process, dead ones that nobody waited for excepted."""
    return state(pid)[0] not in "gZX"


def open_descriptors(pid: int) -> int:
    """How many descriptors a process has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def watches_files(pid: int) -> bool:
    """Whether a process watches files with inotify; a hub does so once it is open."""
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            if "inotify" in os.readlink(descriptor):
                return True
    return False


def resident_bytes(pid: int) -> int:
    """How much memory a process has in use."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def processor_seconds(pid: int) -> float:
    """How long a process has worked, in user and system mode."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
