from __future__ import annotations

import os
import signal
import sys

from isthmus.transport.descendants import descendants

FAMILY = (
    "import os, time\nr, w = os.pipe()\n"
    "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        os.write(w, b'!')\n    time.sleep(600)\n"
    "os.read(r, 1)\nos.write(1, b'!')\ntime.sleep(600)"
)


def test_everybody_below_is_found_wherever_they_went() -> None:
    said, say = os.pipe()
    pid = os.posix_spawn(
        sys.executable, [sys.executable, "-c", FAMILY], {}, file_actions=[(os.POSIX_SPAWN_DUP2, say, 1)]
    )
    found: list[int] = []
    try:
        os.read(said, 1)
        found = descendants(pid)
        assert len(found) == 2
        assert all(os.getsid(each) == found[0] for each in found)
    finally:
        for each in (pid, *found):
            os.kill(each, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(said)
        os.close(say)


def test_of_a_process_that_is_not_there_nobody_is_known() -> None:
    child = os.posix_spawn(sys.executable, [sys.executable, "-c", ""], {})
    os.waitpid(child, 0)
    assert descendants(child) == []
