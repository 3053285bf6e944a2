"""Descendants of a process: found below it or by their mark, and ended with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from isthmus.transport.process_tree import descendants, end_family, marked, settle_mark
from tests.hubs import environment

FAMILY = (
    "import os, time\nr, w = os.pipe()\n"
    "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        os.write(w, b'!')\n    time.sleep(600)\n"
    "os.read(r, 1)\nos.write(1, b'!')\ntime.sleep(600)"
)
MARKED = """
import resource
from isthmus.transport.process_tree import claim_process, marking

own = resource.getrlimit(10)
with marking() as mark:
    assert resource.getrlimit(10) == own, "others may be started by other threads"
claim_process()
with marking() as mark:
    assert resource.getrlimit(10)[0] == mark, "which is inherited from the first moment on"
assert resource.getrlimit(10) == own
"""


@contextmanager
def family() -> Iterator[tuple[int, list[int]]]:
    """A process that leads a group, and whom it started: two in a session of their own."""
    said, say = os.pipe()
    pid = os.posix_spawn(
        sys.executable, [sys.executable, "-c", FAMILY], {}, setpgroup=0, file_actions=[(os.POSIX_SPAWN_DUP2, say, 1)]
    )
    below: list[int] = []
    try:
        os.read(said, 1)
        below = descendants(pid)
        yield pid, below
    finally:
        for each in (pid, *below):
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(said)
        os.close(say)


def test_everybody_below_is_found_wherever_they_went() -> None:
    with family() as (_, below):
        assert len(below) == 2
        assert all(os.getsid(each) == below[0] for each in below)


def test_a_mark_is_also_set_on_existing_children() -> None:
    mark = 1_000_000_000 + os.getpid()
    with family() as (pid, below):
        settle_mark(pid, mark)
        assert sorted(marked(mark)) == sorted([pid, *below])


def test_without_a_mark_descendants_are_ended_all_the_same() -> None:
    with family() as (pid, below):
        assert end_family(pid, None) == {*below}


def test_where_no_other_thread_starts_processes_a_mark_is_there_from_the_first_moment_on() -> None:
    ran = subprocess.run([sys.executable, "-c", MARKED], check=False, capture_output=True, env=environment())
    assert (ran.returncode, ran.stderr) == (0, b"")


def test_a_missing_process_has_no_known_descendants() -> None:
    child = os.posix_spawn(sys.executable, [sys.executable, "-c", ""], {})
    os.waitpid(child, 0)
    assert descendants(child) == []
