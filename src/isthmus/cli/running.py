"""Running a command's coroutine: which loop it gets and what the signals mean meanwhile.

Everything runs on uvloop where there is one. A service (`serve`, `stdio`) handles its own signals. For the
other commands Ctrl-C and SIGTERM cancel the work, and a call is withdrawn at its server.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TypeVar

from isthmus.app.leftovers import family_in
from isthmus.app.privacy import keep_private
from isthmus.cli.exits import CommandFailed, Exit
from isthmus.transport.descendants import claim_process

T = TypeVar("T")

DESCRIPTORS_WANTED = 65_536
"""Every server that is a process takes four, every caller one; the usual limit is 1,024."""


DEBUGGABLE_VARIABLE = "ISTHMUS_DEBUGGABLE"
"""Set to anything, it lets a debugger or a profiler of the same user look into a service."""


def run_command(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end, or until a signal.

    Raises:
        KeyboardInterrupt: it was interrupted, and has cleaned up.
        CommandFailed: it was told to end by SIGTERM, and has cleaned up.
    """
    with asyncio.Runner(loop_factory=_fast_loop()) as runner:
        try:
            return runner.run(_until_terminated(work))
        except asyncio.CancelledError:
            raise CommandFailed(Exit.TERMINATED, "ended by SIGTERM") from None


async def _until_terminated(work: Coroutine[Any, Any, T]) -> T:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await work


def run_service(work: Coroutine[Any, Any, T], state: str | None) -> T:
    """Run what ends by itself when it is told to, and keep what it holds from other processes of the same user.

    What a killed hub of the same state folder left running is ended first. Without a folder nothing is started.
    """
    allow_descriptors()
    claim_process()
    if not os.environ.get(DEBUGGABLE_VARIABLE):
        keep_private()
    family = nullcontext() if state is None else family_in(Path(state))
    with family, asyncio.Runner(loop_factory=_fast_loop()) as runner:
        return runner.run(work)


def allow_descriptors() -> None:
    """Have as many descriptors as may be had without asking, up to what is wanted."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_WANTED if hard == resource.RLIM_INFINITY else min(DESCRIPTORS_WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _fast_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # there is none for Windows; asyncio's own serves as well, only slower
        return None
    return uvloop.new_event_loop
