"""Threads for what would block the loop, as many as a server may have calls, made when they are needed.

A thread cannot be stopped: what was begun keeps its thread until it ends. What has not begun waits on the loop's
side, so that whether it began is never in doubt. The threads are daemons: a function that hangs must not keep the
hub from ending, as those of `concurrent.futures` would.
"""

from __future__ import annotations

import asyncio
import contextvars
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TextIO, TypeAlias, cast

Job: TypeAlias = Callable[[], Callable[[], None]]
"""Runs in a thread and returns what is to be done with its result on the loop; it does not raise."""

ASIDE: contextvars.ContextVar[bool] = contextvars.ContextVar("aside", default=False)
"""Whether what is printed here goes to standard error: standard output may be a protocol's, or a command's result."""


def step_aside() -> None:
    """In a thread, and in the context of somebody else: say of what is there that which is not so here."""
    ASIDE.set(True)
    if (sniffio := sys.modules.get("sniffio")) is not None:
        # The caller may be of Trio, which is no reason not to run asyncio here.
        sniffio.current_async_library_cvar.set(None)


class Workers:
    """The threads of one server."""

    def __init__(self, name: str, size: int) -> None:
        self._name = name
        self._size = size
        self._loop = asyncio.get_running_loop()
        self._threads = 0
        self._busy = 0
        self._waiting: dict[Job, None] = {}
        self._begun: SimpleQueue[Job | None] = SimpleQueue()

    def run(self, job: Job) -> None:
        """Begin the job, or let it wait for a thread."""
        if self._busy < self._size:
            self._begin(job)
        else:
            self._waiting[job] = None

    def is_waiting(self, job: Job) -> bool:
        """Whether it has not begun."""
        return job in self._waiting

    def take_back(self, job: Job) -> None:
        """Never begin it, if it has not begun."""
        self._waiting.pop(job, None)

    def close(self) -> None:
        """Let every thread end, each when it is done with what it does; whatever waits never begins."""
        self._waiting.clear()
        for _ in range(self._threads):
            self._begun.put(None)

    def _begin(self, job: Job) -> None:
        self._busy += 1
        if self._busy > self._threads:
            self._threads += 1
            threading.Thread(target=self._work, name=f"{self._name}/{self._threads}", daemon=True).start()
        # Not now: a thread that wakes while the loop still works only waits for the interpreter's lock.
        self._loop.call_soon(self._begun.put, job)

    def _work(self) -> None:
        ASIDE.set(True)
        while (job := self._begun.get()) is not None:
            conclude = job()
            with suppress(RuntimeError):  # the loop is closed, and nobody waits any more
                self._loop.call_soon_threadsafe(self._done, conclude)

    def _done(self, conclude: Callable[[], None]) -> None:
        self._busy -= 1
        if self._waiting:
            job = next(iter(self._waiting))
            del self._waiting[job]
            self._begin(job)
        conclude()


class _Stdout:
    """Standard output, which is standard error for those who run aside."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr if ASIDE.get() else self._stream, name)


def divert_prints() -> None:
    """From now on, whatever runs aside prints to standard error; everybody else does not notice."""
    if not isinstance(sys.stdout, _Stdout):
        sys.stdout = cast("TextIO", _Stdout(sys.stdout))
