"""Turns that processes take at something: one at a time, by a lock that ends with its process, however that ends.

`vault` has one for each login: a refresh token that two hubs use at once may cost the login.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

if sys.platform != "win32":
    import fcntl

TURN_SECONDS = 20.0
"""Who has its turn for longer stands still, and is not waited for."""

PAUSE_SECONDS = 0.05


@asynccontextmanager
async def turn(file: Path) -> AsyncIterator[None]:
    """Do something while no other process with this file does; without waiting where none can be had, or locked."""
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        yield
        return
    try:
        await _wait_for(descriptor)
        yield
    finally:
        os.close(descriptor)


async def _wait_for(descriptor: int) -> None:
    if sys.platform == "win32":
        return
    until = time.monotonic() + TURN_SECONDS
    while time.monotonic() < until:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            await asyncio.sleep(PAUSE_SECONDS)
        except OSError:
            return  # some network folders have no locks, and a login must be renewed there as well
        else:
            return
