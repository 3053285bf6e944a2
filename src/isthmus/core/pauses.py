"""Pauses between the steps of long work, so that the event loop serves others meanwhile.

Each pass over a message of megabytes takes milliseconds, and a message needs several. Frontends pause between passes,
and in each turn of the loop only one of them continues: sixty long messages take sixty turns. Short messages do not
wait.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TypeVar

LONG_BYTES = 256 * 1024
"""Passes over less take well under a millisecond."""


async def pause_after(size: int) -> None:
    """Let others have a turn of the event loop after a step over so many bytes."""
    if size > LONG_BYTES:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        in_turn(partial(_go_on, turn))
        await turn


def in_turn(step: Callable[[], None]) -> None:
    """Do a step over something long in a turn of the event loop in which no other such step is done."""
    _line.steps.append(step)
    if len(_line.steps) == 1:
        asyncio.get_running_loop().call_soon(_step)


def _step() -> None:
    steps = _line.steps
    try:
        steps[0]()
    finally:
        steps.popleft()
        if steps:
            asyncio.get_running_loop().call_soon(_step)


def _go_on(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_result(None)


class _Line(threading.local):
    """Steps that wait for a turn; a thread has one event loop."""

    def __init__(self) -> None:
        self.steps: deque[Callable[[], None]] = deque()


_line = _Line()


PROTOBUF_BYTES = 16 * 1024
"""Protobuf's forms of JSON are read and written in Python, at 50 ns a byte: from here on it takes a millisecond."""

_T = TypeVar("_T")


async def aside(size: int, work: Callable[[], _T], *, over: int = LONG_BYTES) -> _T:
    """Do work over so many bytes here, or on a thread if there are more than `over`; the interpreter alternates.

    The work must be pure: it reads values that nobody changes.
    """
    return work() if size <= over else await asyncio.to_thread(work)
