"""Processes that a killed hub left behind: the next one on the same state folder ends them.

Each run has a family number, by which everything that it starts is marked (`transport.process_tree`). The state folder
has a file for each number, which its hub holds locked. The system lets go of the lock when the hub ends, however that
comes about: whoever can lock such a file knows that its hub is gone. Used by the commands that run a hub.
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
"""Held while the folder is looked through, so that a file which is just being made is not taken for a dead hub's."""


@contextmanager
def family_in(state: Path) -> Iterator[None]:
    """End what killed hubs left, and have what is started within be known to the next one."""
    held: IO[bytes] | None = None
    try:
        held = _take_over(state / FOLDER)
    except OSError as error:  # A hub runs without a state folder, too.
        log.debug("processes will not be known to the next hub", reason=str(error))
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
    """End what the hub of this file has left, if it is gone."""
    with suppress(OSError, ValueError), file.open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if ended := end_marked(int(file.name, 16)):
            log.warning("ended processes of a hub that was killed", pids=sorted(ended))
        file.unlink()


if sys.platform != "win32":
    import resource

PR_SET_DUMPABLE = 4


def keep_private() -> None:
    """Leave no memory behind in a file after a crash; on Linux, let no other process of the same user look either.

    Who has root's rights still can. Where the system knows no such thing, nothing is changed.
    """
    if sys.platform == "win32":
        return
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
