"""T68: the hub is killed (`kill -9`, out of memory), and its busy servers and their daemons run on without it.

A killed process can end nothing. Every process that a hub starts inherits a mark that belongs to that run of the hub;
the state folder names it. The next hub of the same folder ends what carries the mark of one that is gone, and nothing
else: marks of hubs that run are left alone, and a process is looked at once more before it is ended.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.faults.watching import eventually, is_alive
from tests.hubs import HubProcess, serving, started, stdio, write_config

pytestmark = [pytest.mark.asyncio, pytest.mark.skipif(sys.platform != "linux", reason="the mark is Linux's")]

BUSY = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
if not os.fork():
    os.setsid()
    if not os.fork():  # a daemon with nothing of what it was given
        rest = 'import sys, os, time; open(sys.argv[1], "w").write(str(os.getpid())); time.sleep(600)'
        os.execve(sys.executable, [sys.executable, '-c', rest, sys.argv[1] + '.daemon'], {})
    os._exit(0)
open(sys.argv[1], 'w').write(str(os.getpid()))
time.sleep(600)  # and never looks at its input
"""


async def processes(folder: Path) -> list[int]:
    """The server in this folder and its daemon."""
    files = [folder / "server", folder / "server.daemon"]
    await eventually(lambda: all(file.exists() and file.read_text() for file in files), "both are there", 30.0)
    return [int(file.read_text()) for file in files]


def busy(folder: Path) -> dict[str, object]:
    folder.mkdir(exist_ok=True)
    return {"busy": stdio([sys.executable, "-c", BUSY, str(folder / "server")])}


async def killed(folder: Path) -> list[int]:
    """What a hub leaves that is killed."""
    config = write_config(folder, busy(folder / "first"))
    running = started(folder, "--config", str(config))
    hub: HubProcess = await running.__aenter__()
    left = await processes(folder / "first")
    hub.process.send_signal(signal.SIGKILL)
    with pytest.raises(AssertionError, match="the hub ended with -9"):
        await running.__aexit__(None, None, None)
    assert all(map(is_alive, left)), "nobody else ends them"
    return left


async def test_the_next_hub_ends_processes_of_a_killed_one(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    async with serving(other, busy(other / "theirs")):
        theirs = await processes(other / "theirs")
        left = await killed(tmp_path)
        try:
            async with serving(tmp_path, busy(tmp_path / "second")) as hub:
                await eventually(lambda: not any(map(is_alive, left)), "they are gone", 10.0)
                (line,) = [line for line in hub.said if "processes of a hub that was killed" in line]
                assert all(str(pid) in line for pid in left)
                assert all(map(is_alive, theirs)), "another hub's are not touched"
                assert all(map(is_alive, await processes(tmp_path / "second")))
        finally:
            for pid in filter(is_alive, left):
                os.kill(pid, signal.SIGKILL)
    assert not list((tmp_path / "state" / "processes").glob("[0-9a-f]*")), "a hub that ends leaves nothing to look for"
