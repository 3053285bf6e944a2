"""Forked peers use the streams of the process that asked for them, and end with it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

from tests.conftest import children, state
from tests.faults.watching import eventually
from tests.peers import forking
from tests.peers.forking import quickly

SCRIPT = """
import os, sys
print(sys.argv[1], os.environ["WORD"], os.getcwd(), os.getpid(), flush=True)
said = sys.stdin.read()
print("heard", said, file=sys.stderr, flush=True)
sys.exit(7)
"""


async def started(folder: Path) -> asyncio.subprocess.Process:
    (folder / "script.py").write_text(SCRIPT)
    words = quickly([sys.executable, str(folder / "script.py"), "so"])
    env = {**os.environ, "WORD": "a word"}
    return await asyncio.create_subprocess_exec(*words, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=env, cwd=folder)


async def peer_of(process: asyncio.subprocess.Process) -> int:
    """The process of the peer, which is no child of this one."""
    assert process.stdout is not None
    pid = int((await process.stdout.readline()).split()[-1])
    assert pid in set().union(*map(children, forking.servers()))
    return pid


async def test_a_forked_peer_has_the_streams_the_words_and_the_end_of_a_started_one(tmp_path: Path) -> None:
    process = await started(tmp_path)
    out, err = await process.communicate(b"hello")
    assert out.decode().startswith(f"so a word {tmp_path} ")
    assert err == b"heard hello\n"
    assert process.returncode == 7


async def test_a_peer_ends_with_the_program_that_stands_for_it(tmp_path: Path) -> None:
    process = await started(tmp_path)
    peer = await peer_of(process)
    process.kill()
    await process.communicate()
    await eventually(lambda: state(peer) == "gone", "the peer is gone")


async def test_the_signal_that_ended_a_peer_is_reported_as_a_shell_does(tmp_path: Path) -> None:
    process = await started(tmp_path)
    os.kill(await peer_of(process), signal.SIGTERM)
    await process.communicate()
    assert process.returncode == 128 + signal.SIGTERM
