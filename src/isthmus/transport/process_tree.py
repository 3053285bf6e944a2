"""Finds every process that a child has started, wherever it went, so that `transport.process` can end them together.

Most are found below the child. A daemon that forked twice has lost its parent; it is found by a mark that processes
inherit, whatever program and environment they start: the limit on file locks, which Linux keeps per process and has
ignored since 2.4.25. A program may lower it on purpose; run such programs in a container.

The upper bits of a mark are the number of the hub's run, its family. `app.process_setup` uses it to end what a killed
hub left behind.
"""

from __future__ import annotations

import itertools
import os
import secrets
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

if sys.platform == "linux":
    import resource

MOST: Final = 4096
"""With more, processes are started faster than they can be found."""

ROUNDS_MAX: Final = 10
"""How often the search is repeated: some may have been started while others were killed."""

_RLIMIT_LOCKS: Final = 10
_MARKS: Final = 1 << 62
_SERIAL_BITS: Final = 24
"""Low bits of a mark, different for each child of a hub; the bits above are the family."""
_FAMILIES_MIN: Final = 1 << 20
"""With fewer numbers, as below several hubs, two families could collide."""
_is_claimed = False
_family: int | None = None
_serials = itertools.count()


def descendants(pid: int) -> list[int]:
    """Every process below `pid`, nearest first; empty on systems without /proc."""
    found: list[int] = []
    waiting = [pid]
    while waiting and len(found) < MOST:
        with suppress(OSError):
            for thread in Path(f"/proc/{waiting.pop(0)}/task").iterdir():
                with suppress(OSError):
                    children = [*map(int, (thread / "children").read_text().split())]
                    found += children
                    waiting += children
    return found


def claim_process() -> None:
    """From now on only the hub starts processes in this process, so they can be marked from their start.

    Called by the commands that run a hub. In a program with an embedded hub, processes of other threads could get the
    mark as well. There a mark is set only after the start, and processes that the child starts at once may escape it.
    """
    global _is_claimed  # noqa: PLW0603 - a property of the whole process
    _is_claimed = True


def begin_family() -> int | None:
    """Choose the family number of this process's marks; None if the system has no marks."""
    global _family  # noqa: PLW0603 - as above
    if sys.platform != "linux":
        return None
    _, most = resource.getrlimit(_RLIMIT_LOCKS)
    families = (_MARKS if most == resource.RLIM_INFINITY else min(most, _MARKS)) >> _SERIAL_BITS
    _family = None if families < _FAMILIES_MIN else 1 + secrets.randbelow(families - 1)
    return _family


def end_marked(family: int) -> set[int]:
    """Kill every process with a mark of this family, except this process and its parents; returns the killed ones."""
    ended: set[int] = set()
    spared = _lineage()
    for _ in range(ROUNDS_MAX):
        found = {pid for pid in _pids() if _family_of(pid) == family} - spared - ended
        if not found:
            break
        for pid in found:
            with suppress(OSError):  # it has ended meanwhile
                _kill_if_of(family, pid)
        ended |= found
    return ended


def _kill_if_of(family: int, pid: int) -> None:
    """Kill by a handle, after another check: the number may belong to another process by now."""
    handle = os.pidfd_open(pid)
    try:
        if _family_of(pid) == family:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
    finally:
        os.close(handle)


def _family_of(pid: int) -> int | None:
    mark = _mark_of(pid)
    return None if mark is None or not 0 < mark < _MARKS else mark >> _SERIAL_BITS


def _lineage() -> set[int]:
    """This process and those above it."""
    found: set[int] = set()
    pid = os.getpid()
    while pid and pid not in found:
        found.add(pid)
        with suppress(OSError):
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            pid = next(int(line.split()[1]) for line in lines if line.startswith("PPid:"))
    return found


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdecimal())


@contextmanager
def marking() -> Iterator[int | None]:
    """Choose a mark for the process that is started within; None if the system has no marks. See `settle_mark`."""
    if sys.platform != "linux":
        yield None
        return
    soft, most = resource.getrlimit(_RLIMIT_LOCKS)
    chosen = _mark_below(most)
    if chosen is None or not _is_claimed:
        yield chosen
        return
    with suppress(OSError, ValueError):  # not in every sandbox
        resource.setrlimit(_RLIMIT_LOCKS, (chosen, most))
    try:
        yield chosen
    finally:
        with suppress(OSError, ValueError):
            resource.setrlimit(_RLIMIT_LOCKS, (soft, most))


def _mark_below(most: int) -> int | None:
    """A mark under this limit. A hub that is itself a marked process may only lower it, and must not give its own."""
    if sys.platform == "linux" and most == resource.RLIM_INFINITY:
        most = _MARKS
    if _family is not None and (mark := (_family << _SERIAL_BITS) + next(_serials) % (1 << _SERIAL_BITS)) < most:
        return mark
    return None if most <= 1 else 1 + secrets.randbelow(most - 1)


def settle_mark(pid: int, chosen: int | None) -> None:
    """Set the mark of a process that was just started, and of the processes that it has started already."""
    if sys.platform == "linux" and chosen is not None:
        for each in (pid, *descendants(pid)):
            with suppress(OSError, ValueError):  # it has ended already, or a sandbox does not allow it
                resource.prlimit(each, _RLIMIT_LOCKS, (chosen, chosen))


def marked(chosen: int | None) -> list[int]:
    """Every process with that mark."""
    if chosen is None:
        return []
    return [pid for pid in _pids() if _mark_of(pid) == chosen]


def _mark_of(pid: int) -> int | None:
    if sys.platform == "linux":
        with suppress(OSError):  # gone meanwhile, or of another user
            return resource.prlimit(pid, _RLIMIT_LOCKS)[0]
    return None


def end_family(pid: int, chosen: int | None) -> set[int]:
    """Kill a process that leads a group, and all that it has started; returns the others that were killed.

    It must not have been reaped: its number could belong to another process then.
    """
    ended: set[int] = set()
    for _ in range(ROUNDS_MAX):
        below = descendants(pid)  # before their parents end, which hides the relation
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        found = {*below, *marked(chosen)} - ended - {pid, os.getpid()}
        for each in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(each, signal.SIGKILL)
        if not found:
            break
        ended |= found
    return ended


def reap(pids: set[int]) -> None:
    """Reap processes that became our children: in a container the hub may be process 1."""
    for pid in pids:
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
