"""Pauses between the steps of long work, so that the event loop serves others meanwhile.

Each pass over a message of megabytes takes milliseconds, and a message needs several. Frontends and links pause between
passes, and in each turn of the loop only one of them continues: sixty long messages take sixty turns. Short messages do
not wait.

A step that cannot be cut and takes over a millisecond delays everybody else's calls. While several connections are
active, the next step waits in proportion to that, so that such steps take a few percent of the time. If one
connection has the hub for itself, nothing waits.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from functools import partial
from typing import TypeVar

_T = TypeVar("_T")

LONG_BYTES = 256 * 1024
"""Passes over less take well under a millisecond."""

SHORT_STEP_SECONDS = 0.001
"""A step may take that long without a rest after it: a call that waits for it is answered within 1.5 ms."""

REST_FACTOR = 50
"""The rest after a longer step, as a multiple of the excess: one call in fifty of the others waits for such a step."""

REST_SECONDS_MAX = 0.25
"""No rest is longer: a message of 9 MB has some ten steps, and its caller waits, too."""


async def pause_after(size: int) -> None:
    """Let others have a turn of the event loop after a step over so many bytes."""
    if size > LONG_BYTES:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        in_turn(partial(_go_on, turn))
        await turn


async def in_passes(passes: Generator[None, None, _T], size: int) -> _T:
    """Do the passes over something of so many bytes, with pauses between them if it is long; return their result."""
    while True:
        try:
            next(passes)
        except StopIteration as done:
            value: _T = done.value
            return value
        await pause_after(size)


def in_turns(passes: Generator[None, None, _T], then: Callable[[_T], None]) -> None:
    """Do passes, each in a turn of its own, and pass on their result."""

    def step() -> None:
        try:
            next(passes)
        except StopIteration as done:
            then(done.value)
        else:
            in_turn(step)

    in_turn(step)


def in_turn(step: Callable[[], None]) -> None:
    """Do a step over something long in a turn of the event loop in which no other such step is done."""
    _line.add(step)


def rest_while(are_several_active: Callable[[], bool]) -> None:
    """Rest after long steps while this is true; the HTTP listener knows."""
    _line.are_several_active = are_several_active


def _go_on(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_result(None)


class _Line(threading.local):
    """Steps that wait for a turn; a thread has one event loop."""

    def __init__(self) -> None:
        self._steps: deque[Callable[[], None]] = deque()
        self._is_scheduled = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._rests_until = 0.0
        self._spent = 0.0
        self._began = 0.0
        self.are_several_active: Callable[[], bool] = bool

    def add(self, step: Callable[[], None]) -> None:
        """Add a step behind all others."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # a thread may have had another one, which ended
            self._loop, self._is_scheduled, self._rests_until = loop, False, 0.0
            self._steps.clear()
        self._steps.append(step)
        if not self._is_scheduled:
            self._schedule(loop)

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_scheduled = True
        if self._rests_until > loop.time():
            loop.call_at(self._rests_until, self._step)
        else:
            loop.call_soon(self._step)

    def _step(self) -> None:
        """Do the first step. If it wakes a task, that runs between `_begin` and `_end`, in the next turn."""
        loop = self._loop
        assert loop is not None
        began = time.thread_time()
        loop.call_soon(self._begin)
        try:
            self._steps.popleft()()
        finally:
            self._spent = time.thread_time() - began
            loop.call_soon(self._end)

    def _begin(self) -> None:
        self._began = time.thread_time()

    def _end(self) -> None:
        loop = self._loop
        assert loop is not None
        excess = max(self._spent, time.thread_time() - self._began) - SHORT_STEP_SECONDS
        if excess > 0 and self.are_several_active():
            self._rests_until = loop.time() + min(excess * REST_FACTOR, REST_SECONDS_MAX)
        self._is_scheduled = False
        if self._steps:
            self._schedule(loop)


_line = _Line()


PROTOBUF_BYTES = 16 * 1024
"""Protobuf's forms of JSON are read and written in Python, at 50 ns a byte: from here on it takes a millisecond."""


async def aside(size: int, work: Callable[[], _T], *, over: int = LONG_BYTES) -> _T:
    """Do work over so many bytes here, or on a thread if there are more than `over`; the interpreter alternates.

    The work must be pure: it reads values that nobody changes.
    """
    return work() if size <= over else await asyncio.to_thread(work)
