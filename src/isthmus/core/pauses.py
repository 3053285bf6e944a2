"""Pauses between the steps of long work, so that the event loop serves others meanwhile.

Each pass over a message of megabytes takes milliseconds, and a message is passed over many times. The faces pause
between passes; what is short is not held up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

LONG_BYTES = 256 * 1024
"""Passes over less take well under a millisecond."""


async def pause_after(size: int) -> None:
    """Let others have a turn of the event loop after a step over so many bytes."""
    if size > LONG_BYTES:
        await asyncio.sleep(0)


PROTOBUF_BYTES = 16 * 1024
"""Protobuf's forms of JSON are read and written in Python, at 50 ns a byte: from here on it takes a millisecond."""

_T = TypeVar("_T")


async def aside(size: int, work: Callable[[], _T], *, over: int = LONG_BYTES) -> _T:
    """Do work over so many bytes here, or on a thread if there are more than `over`; the interpreter alternates.

    The work must be pure: it reads values that nobody changes.
    """
    return work() if size <= over else await asyncio.to_thread(work)
