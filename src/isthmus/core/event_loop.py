"""Pauses between the steps of long work, so that the event loop serves others meanwhile.

Each pass over a message of megabytes takes up to milliseconds, and a message needs several. Frontends and links pause
between passes. Only one of them continues at a time, and some turns of the loop are left to others before the next one
does. Short messages do not wait.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Hashable
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar, cast

_T = TypeVar("_T")

LONG_BYTES = 128 * 1024
"""Passes over less take at most a millisecond."""

READER_BYTES = 3 * 512 * 1024
"""Shorter messages are read here in passes. A megabyte of text takes 0.6 ms, and to send it to the reader and get its
parts back takes as long."""

DECODED_BYTES = 64 * 1024
"""The same for messages that are decoded and encoded as a whole, such as those of A2A: up to 150 ns a byte."""

FREE_TURNS = 4
"""Turns of the loop without a long step after each one with: an ordinary call, which takes so many, waits for one long
step and not for one in each of its turns. An empty turn takes 10 µs."""


async def pause_after(size: int) -> None:
    """Let others have a turn of the event loop after a step over so many bytes."""
    if size > LONG_BYTES:
        await pause()


async def pause() -> None:
    """Let others have their turns of the event loop."""
    turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    in_turn(partial(_settle, turn, None))
    await turn


async def in_passes(passes: Generator[None, None, _T], size: int = LONG_BYTES + 1) -> _T:
    """Do the passes over something of so many bytes, with pauses between them if it is long; return their result."""
    while True:
        try:
            next(passes)
        except StopIteration as done:
            value: _T = done.value
            return value
        await pause_after(size)


def at_once(passes: Generator[None, None, _T]) -> _T:
    """Do all passes without a pause; return their result."""
    while True:
        try:
            next(passes)
        except StopIteration as done:
            value: _T = done.value
            return value


def in_turns(passes: Generator[None, None, _T], then: Callable[[_T], None]) -> None:
    """Do passes, each in a turn of its own, and pass on their result."""
    in_turn(partial(_step, passes, then))


def _step(passes: Generator[None, None, _T], then: Callable[[_T], None]) -> None:
    # Not a closure: one that names itself is a cycle, which holds a message of megabytes until the collector runs.
    try:
        next(passes)
    except StopIteration as done:
        then(done.value)
    else:
        in_turn(partial(_step, passes, then))


def in_turn(step: Callable[[], None]) -> None:
    """Do a step over something long, in a turn of the event loop in which no other such step is done."""
    _line.add(step)


def long_steps() -> int:
    """How many steps over something long this thread's event loop has done so far."""
    return _line.done


# -- the reader --------------------------------------------------------------------------------------------------------


class Job(NamedTuple):
    """Work over a long message, which only reads what it is given. Exactly one of the last three is called."""

    work: Callable[[], Any]
    owner: Hashable
    """Jobs of several owners take turns."""
    then: Callable[[Any], None]
    failed: Callable[[str | Exception], None]
    """The work raised an error of ours, or cannot be done, or took too long."""
    here: Callable[[], None]
    """There is no process: the hub must do the work."""


class Reader(Protocol):
    """Does jobs in a process of its own: `app.parser_process`."""

    def offer(self, job: Job) -> bool:
        """Take a job; False if the hub must do it."""


def use_reader(reader: Reader | None, instead_of: Reader | None = None) -> None:
    """Pass long messages of this event loop to a reader process; with None, the loop reads them itself."""
    if instead_of is None or _line.reader is instead_of:
        _line.reader = reader
        _line.reader_loop = asyncio.get_running_loop()


class ReaderFailed(Exception):
    """A long message could not be read; the message says why."""


def read_long(job: Job) -> None:
    """Have a job done by the reader, or here."""
    reader = _line.reader
    if reader is None or _line.reader_loop is not asyncio.get_running_loop() or not reader.offer(job):
        job.here()


def read_then(
    whole: partial[_T],
    passes: Callable[..., Generator[None, None, _T]],
    then: Callable[[_T], None],
    unreadable: Callable[[str], _T],
    owner: Hashable,
    *,
    over: int = READER_BYTES,
) -> None:
    """Have a long message read by the reader, or here in `passes` that take the same arguments, and pass it on.

    The message is the first argument. The reader gets those of more than `over` bytes.
    """
    if len(memoryview(whole.args[0])) <= over:
        in_turns(passes(*whole.args, **whole.keywords), then)
        return
    read_long(
        Job(
            whole,
            owner,
            then,
            lambda why: then(unreadable(str(why))),
            lambda: in_turns(passes(*whole.args, **whole.keywords), then),
        )
    )


async def read_message(
    whole: partial[_T],
    passes: Callable[..., Generator[None, None, _T]],
    unreadable: Callable[[str], _T],
    owner: Hashable,
) -> _T:
    """The same for one that waits for it."""
    done: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
    read_then(whole, passes, partial(_settle, done), unreadable, owner)
    return await done


async def read_elsewhere(work: Callable[[], _T], here: Callable[[], Awaitable[_T]], owner: Hashable) -> _T:
    """The result of work over something long.

    Raises:
        ReaderFailed: it cannot be read.
        Exception: the work raised it.
    """
    done: asyncio.Future[_T | None] = asyncio.get_running_loop().create_future()
    is_here = False

    def do_here() -> None:
        nonlocal is_here
        is_here = True
        _settle(done, None)

    def failed(why: str | Exception) -> None:
        if not done.done():
            done.set_exception(ReaderFailed(why) if isinstance(why, str) else why)

    read_long(Job(work, owner, partial(_settle, done), failed, do_here))
    found = await done
    return await here() if is_here else cast("_T", found)


def _settle(done: asyncio.Future[_T], value: _T) -> None:
    if not done.done():
        done.set_result(value)


class _PausedSteps(threading.local):
    """Steps that wait for a turn; a thread has one event loop."""

    def __init__(self) -> None:
        self._steps: deque[Callable[[], None]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_called = False
        self.done = 0
        self.reader: Reader | None = None
        self.reader_loop: asyncio.AbstractEventLoop | None = None

    def add(self, step: Callable[[], None]) -> None:
        """Add a step behind all others."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # a thread may have had another one, which ended
            self._loop = loop
            self._steps.clear()
            self._is_called = False
        self._steps.append(step)
        if not self._is_called:
            self._is_called = True
            loop.call_soon(self._turn, 0)

    def _turn(self, free: int) -> None:
        """Do the first step, unless more turns are to be left free; then wait for the next turn."""
        loop = self._loop
        assert loop is not None
        if free:
            loop.call_soon(self._turn, free - 1)
        elif self._steps:
            loop.call_soon(self._turn, FREE_TURNS)
            self.done += 1
            self._steps.popleft()()
        else:
            self._is_called = False


_line = _PausedSteps()


PROTOBUF_BYTES = 16 * 1024
"""Protobuf's forms of JSON are read and written in Python, at 50 ns a byte: from here on it takes a millisecond."""


async def offload(size: int, work: Callable[[], _T], *, over: int = LONG_BYTES, owner: Hashable = None) -> _T:
    """Do work over so many bytes here if it is short, or else by the reader or on a thread.

    The work must be pure: it reads values that do not change. Only a `partial` of a function of a module can be sent
    to the reader.

    Raises:
        ReaderFailed: the reader could not do it.
    """
    if size <= over:
        return work()
    return await read_elsewhere(work, partial(asyncio.to_thread, work), owner)
