"""Ends processes that a killed hub left behind, when the next hub starts on the same state folder.

Each run marks its child processes with a family number (`transport.process_tree`). The state folder has a file for
each number, which the hub keeps locked. The system releases the lock when the hub ends in any way, so a file that can
be locked belongs to a dead hub. The commands that run a hub use this.
"""

from __future__ import annotations

import ctypes
import fcntl
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import structlog

from isthmus.transport.process_tree import begin_family, end_marked

log = structlog.get_logger(__name__)

FOLDER = "processes"
LOCK = "lock"
"""Held while the folder is searched, so that a file that is just being created does not count as a dead hub's."""


@contextmanager
def family_in(state: Path) -> Iterator[None]:
    """End processes of killed hubs, and mark those started in this block for the next hub."""
    held: IO[bytes] | None = None
    try:
        held = _take_over(state / FOLDER)
    except OSError as error:  # A hub also runs without a state folder.
        log.debug("the next hub will not recognize processes of this one", reason=str(error))
    try:
        yield
    finally:
        if held is not None:
            with suppress(OSError):
                Path(held.name).unlink()
            held.close()


def _take_over(folder: Path) -> IO[bytes] | None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (folder / LOCK).open("ab") as looking:
        fcntl.flock(looking, fcntl.LOCK_EX)
        for file in folder.iterdir():
            if file.name != LOCK:
                _end_left(file)
        family = begin_family()
        if family is None:
            return None
        held = (folder / f"{family:x}").open("ab")
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return held


def _end_left(file: Path) -> None:
    """End the processes of this file's hub if that hub is gone."""
    with suppress(OSError, ValueError), file.open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if ended := end_marked(int(file.name, 16)):
            log.warning("ended processes of a hub that was killed", pids=sorted(ended))
        file.unlink()


if sys.platform != "win32":
    import resource

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
