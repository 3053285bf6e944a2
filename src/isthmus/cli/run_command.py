"""Runs a command's coroutine: the event loop, the signals and the limits of the process.

A service (`serve`, `stdio`, `dial`) handles its own signals and uses uvloop where it exists. In other commands Ctrl-C
and SIGTERM cancel the work, and a running call is cancelled at its server; they use asyncio's own loop, because loading
uvloop takes longer than it saves them.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TypeVar

from isthmus.cli.exits import CommandFailed, Exit

T = TypeVar("T")

DESCRIPTORS_WANTED = 65_536
"""Each server process takes four file descriptors, each caller one; the usual limit is 1,024."""

SWITCH_SECONDS = 0.00002
"""How long a thread may keep the interpreter's lock from the event loop; Python's own 5 ms delay every turn of it. At
0.5 ms the thread that writes the audit log waited long for the lock itself, and was woken in vain whenever the loop
released it for a moment: a call cost 2 to 4 µs more. Two threads that only compute take at most a tenth more."""

SIGTERM = "SIGTERM"
"""The message of the cancellation with which that signal ends a command."""

DEBUGGABLE_VARIABLE = "ISTHMUS_DEBUGGABLE"
"""If set, a debugger or profiler of the same user may attach to a service."""


def quiet_logs() -> None:
    """Log errors only: a command prints its outcome itself."""
    from isthmus.telemetry import logs

    logs.configure("error", "auto")


def run_command(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end, or until a signal.

    Raises:
        KeyboardInterrupt: it was interrupted, and has cleaned up.
        CommandFailed: SIGTERM ended it, and it has cleaned up.
    """

    async def until_terminated() -> T:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel, SIGTERM)
        return await work

    with asyncio.Runner() as runner:
        try:
            return runner.run(until_terminated())
        except asyncio.CancelledError:
            raise CommandFailed(Exit.TERMINATED, "ended by SIGTERM") from None


def run_service(work: Coroutine[Any, Any, T], state: str | None) -> T:
    """Run a service until it ends by itself, and hide its memory from other processes of the same user.

    First ends the processes that a killed hub with the same state folder left behind. Without a folder, there are none.
    """
    from isthmus.app.process_setup import family_in, keep_memory, keep_private, raise_limit
    from isthmus.transport.process_tree import claim_process

    raise_limit(DESCRIPTORS_WANTED)
    claim_process()
    keep_memory()
    sys.setswitchinterval(SWITCH_SECONDS)
    if not os.environ.get(DEBUGGABLE_VARIABLE):
        keep_private()
    family = nullcontext() if state is None else family_in(Path(state))
    with family, asyncio.Runner(loop_factory=_fast_loop()) as runner:
        return runner.run(work)


def _fast_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # Windows has none; asyncio's own loop is slower
        return None
    return uvloop.new_event_loop
