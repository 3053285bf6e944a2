"""Sets up the process of a hub: child processes, memory, open files, the garbage collector, and signals.

Each run marks its child processes with a family number (`transport.process_tree`). The state folder has a file for
each number, which the hub keeps locked. The system releases the lock when the hub ends in any way, so a file that can
be locked belongs to a dead hub. The commands that run a hub use this, and so do `app.serve` and `app.relay`.
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

import structlog

import isthmus
from isthmus.app.state_folder import make_folder
from isthmus.core.event_loop import long_steps
from isthmus.telemetry import logs
from isthmus.transport.process import ProcessChannel, child_environment
from isthmus.transport.process_tree import begin_family, end_marked

if TYPE_CHECKING:
    from isthmus.app.reload import Reloader

if sys.platform != "win32":
    import resource

log = structlog.get_logger(__name__)

FOLDER = "processes"
LOCK = "lock"
"""Held while the folder is searched, so that a file that is just being created does not count as a dead hub's."""


@contextmanager
def family_in(state: Path) -> Iterator[None]:
    """End processes of killed hubs, and mark those started in this block for the next hub."""
    held: IO[bytes] | None = None
    try:
        held = _end_left_over(state / FOLDER)
    except OSError as error:  # A hub also runs without a state folder.
        log.debug("the next hub will not recognize processes of this one", reason=str(error))
    try:
        yield
    finally:
        if held is not None:
            with suppress(OSError):
                Path(held.name).unlink()
            held.close()


def _end_left_over(folder: Path) -> IO[bytes] | None:
    make_folder(folder)
    with (folder / LOCK).open("ab") as lock_file:
        fcntl.flock(lock_file, fcntl.LOCK_EX)
        for file in folder.iterdir():
            if file.name == LOCK:
                continue
            # The lock is free only if the hub that held it is gone.
            with suppress(OSError, ValueError), file.open("ab") as left:
                fcntl.flock(left, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if ended := end_marked(int(file.name, 16)):
                    log.warning("ended processes of a hub that was killed", pids=sorted(ended))
                file.unlink()
        family = begin_family()
        if family is None:
            return None
        held = (folder / f"{family:x}").open("ab")
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return held


# -- limits of the process ---------------------------------------------------------------------------------------------

PR_SET_DUMPABLE = 4


def keep_private() -> None:
    """Disable core dumps; on Linux, also keep other processes of the same user from reading the memory.

    Root still can. On systems without these controls nothing changes.
    """
    if sys.platform == "win32":
        return
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
KEPT_BYTES = 128 * 1024 * 1024
REUSED_BYTES = 32 * 1024 * 1024
"""The most that mallopt accepts."""


def keep_memory() -> None:
    """Have the allocator keep some freed memory, also of large messages, instead of returning all at once.

    Allocating it again costs a page fault for every 4 KiB: a copy of 9 MB took 5 ms instead of 0.6, and 20 ms on
    a nested virtual machine. Threads share one arena, or each would keep or return memory of its own: with several,
    an A2A result of 9 MB took 400 ms instead of 70. Only glibc has these controls.
    """
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            libc = ctypes.CDLL("libc.so.6")
            libc.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
            libc.mallopt(M_MMAP_THRESHOLD, REUSED_BYTES)
            libc.mallopt(M_ARENA_MAX, 1)


CHECK_SECONDS = 10.0
QUIET_CHECKS = (1, 6)
"""After so many checks without a long message, kept memory is returned, twice: by the second time, callers that read
nothing were cut."""


async def return_memory() -> None:
    """Return what the allocator keeps to the system after long messages; runs until it is cancelled.

    That takes 66 µs a megabyte, on a thread. Nothing happens without glibc.
    """
    trim: Callable[[int], int] | None = None
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            trim = ctypes.CDLL("libc.so.6").malloc_trim
    if trim is None:
        return
    seen, quiet_checks = long_steps(), max(QUIET_CHECKS)
    while True:
        await asyncio.sleep(CHECK_SECONDS)
        quiet_checks = 0 if long_steps() != seen else quiet_checks + 1
        seen = long_steps()
        if quiet_checks in QUIET_CHECKS:
            await asyncio.to_thread(trim, 0)


def raise_limit(wanted: int) -> int:
    """Raise the limit on open files to `wanted`, or as far as the system allows; return the limit.

    It is never lowered. On systems without such a limit, `wanted` is returned.
    """
    if sys.platform == "win32":
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted if soft == resource.RLIM_INFINITY else soft
    goal = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (goal, hard))
    except (OSError, ValueError):  # macOS has a lower limit of its own that it does not show here
        return soft
    return goal


# -- the garbage collector ---------------------------------------------------------------------------------------------
# A full collection with ten thousand dial-in servers blocks the hub for half a second and finds nothing, because
# reference counting frees removed servers.

COLLECT_AFTER = 20_000
"""Allocations between two collections, instead of 700. A call's objects die with it, so more frequent collections
find nothing."""

COLLECT_OLD_AFTER = 2
"""Young collections between two older ones, instead of 10. Otherwise long-lived cycles (removed servers, sessions)
would grow to hundreds of megabytes before a collection."""

CROWD = 500
"""From this many servers on, full collections take so long that they are postponed."""

FREEZE_AFTER = 250
"""New servers between two freezes of all existing objects: some 20,000 objects, as many as one collection scans
anyway."""

THOROUGH_AFTER = 4
"""After this many times the current number of servers have joined, everything is scanned once. Nothing else finds
frozen objects that became cycles, such as sessions of other frontends."""


def spare_the_collector() -> None:
    """Collect rarely, and never scan the objects that exist now."""
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER, COLLECT_OLD_AFTER, COLLECT_OLD_AFTER)


class CrowdCollector:
    """Postpones full collections while there are many servers. `servers` returns their number, including away ones."""

    def __init__(self, servers: Callable[[], int]) -> None:
        self._servers = servers
        self._new = 0
        """Servers that joined since the last freeze."""
        self._came = 0
        """Servers that joined between the last full collection and the last freeze."""
        self._is_crowded = False

    def joined(self) -> None:
        """A server joined."""
        self._new += 1
        if self._new < FREEZE_AFTER or (servers := self._servers()) < CROWD:
            return
        self._is_crowded = True
        self._came += self._new
        self._new = 0
        if self._came > THOROUGH_AFTER * servers:
            self._collect_all()
        else:
            _collect_and_freeze()

    def look(self) -> None:
        """Run a full collection once the crowd is gone; call it now and then."""
        if self._is_crowded and self._servers() < CROWD:
            self._is_crowded = False
            self._collect_all()

    def _collect_all(self) -> None:
        self._came = 0
        gc.unfreeze()
        _collect_and_freeze()


def _collect_and_freeze() -> None:
    """Collect cycles among objects that are not frozen yet, then freeze the rest."""
    gc.collect()
    gc.freeze()


# -- worker processes --------------------------------------------------------------------------------------------------
async def start_worker(
    module: str,
    environment: Mapping[str, str],
    *,
    on_bytes: Callable[[bytes], None],
    on_lost: Callable[[str], None],
    on_drained: Callable[[], None] = lambda: None,
    over_sockets: bool = False,
) -> ProcessChannel:
    """Start a module of this package as a process of its own; see `ProcessChannel.spawn`.

    Raises:
        SpawnFailed: it cannot be started.
    """
    package = str(Path(isthmus.__file__).parent.parent)
    return await ProcessChannel.spawn(
        [sys.executable or "python3", "-m", module],
        env=child_environment({"PYTHONPATH": package}, environment),
        cwd=None,
        on_bytes=on_bytes,
        on_lost=on_lost,
        on_drained=on_drained,
        over_sockets=over_sockets,
    )


# -- signals -----------------------------------------------------------------------------------------------------------
STDIN = 0


class Signals:
    """Makes SIGTERM and SIGINT awaitable; SIGHUP reloads the configuration.

    A closing terminal sends SIGHUP, too: a hub that was started on one ends then.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._count = 0
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._reloader: Reloader | None = None
        self._had_terminal = os.isatty(STDIN)
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._on_shutdown_signal)
        self._loop.add_signal_handler(signal.SIGHUP, self._on_hangup)

    async def wait_for(self, count: int) -> None:
        """Wait for this many signals in total."""
        if self._count < count:
            waiter = self._loop.create_future()
            self._waiters.append((count, waiter))
            await waiter

    def reload_by(self, reloader: Reloader | None) -> None:
        """Set or remove the reloader."""
        if self._reloader is not None:
            self._reloader.stop()
        self._reloader = reloader
        if reloader is not None:
            reloader.start()

    def _on_hangup(self) -> None:
        if self._had_terminal and not os.isatty(STDIN):
            self._on_shutdown_signal()
            return
        logs.reopen()
        if self._reloader is not None:
            self._reloader.reload_now()

    def _on_shutdown_signal(self) -> None:
        self._count += 1
        for count, waiter in self._waiters:
            if count <= self._count and not waiter.done():
                waiter.set_result(None)

    def close(self) -> None:
        """Restore the signals except SIGTERM, so that a repeated one does not disturb the shutdown.

        A function handles it instead of SIG_IGN, which child processes would inherit. It is blocked in between, so
        there is no moment in which it would kill.
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        try:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                self._loop.remove_signal_handler(number)
            signal.signal(signal.SIGTERM, lambda _number, _frame: None)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
