"""`run`: a whole program on the hub's own loop, where its calls cross nothing.

From any other loop, most of what a single call costs is that two threads sleep and wake in turns. A program that is run
here shares the hub's loop, as an `async def` tool does: what blocks the one blocks the other. Called by programs, by
way of `isthmus.library`; the service asks where questions go.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, Generic, TypeVar

from isthmus.library.crossing import LOOK_UP_SECONDS, crossing_here
from isthmus.library.errors import ServiceClosedError, WrongThreadError
from isthmus.library.owner import ENDING, Owner

T = TypeVar("T")

_ON_HUB: ContextVar[bool] = ContextVar("on_hub", default=False)


def is_on_hub() -> bool:
    """Whether this is part of a program that is run on the hub's loop, which is then its own as well."""
    return _ON_HUB.get()


def run(program: Coroutine[Any, Any, T]) -> T:
    """Run a program to its end on the hub's loop, and return what it returns: `run(main())` for `asyncio.run(main())`.

    Ctrl-C cancels it and is raised once it has ended; a second one is raised at once. Tasks that it leaves behind go on
    until the process ends.

    Raises:
        WrongThreadError: a loop runs here already.
    """
    whole = _Program(program, Owner.shared())
    try:
        _check_place()
        whole.begin()
    except BaseException:
        program.close()
        raise
    return whole.wait()


def _check_place() -> None:
    try:
        crossing_here()
    except RuntimeError:
        return
    raise WrongThreadError("A loop runs here already, and would stand still meanwhile: await the coroutine instead.")


class _Program(Generic[T]):
    """A coroutine on the owner's loop, and the thread that stands still for it."""

    def __init__(self, work: Coroutine[Any, Any, T], owner: Owner) -> None:
        self._work = work
        self._owner = owner
        self._task: asyncio.Task[Any] | None = None
        self._is_unwanted = False
        self._value: T | None = None
        self._error: BaseException | None = None
        self._is_over = threading.Event()

    def begin(self) -> None:
        """Start it, in the context of who runs it."""
        self._owner.submit(self._whole())

    async def _whole(self) -> None:
        self._task = asyncio.current_task()
        _ON_HUB.set(True)
        try:
            if self._is_unwanted:
                raise asyncio.CancelledError
            self._value = await self._work
        except BaseException as error:  # noqa: BLE001 - also `SystemExit`, which would end the loop that others use
            self._error = error
        finally:
            self._work.close()  # one that was interrupted before it began was never awaited
            self._is_over.set()

    def wait(self) -> T:
        """Stand still until it has ended; what interrupts that cancels it, and is raised when it has ended."""
        try:
            self._stand_still()
        except BaseException:
            with suppress(ServiceClosedError):
                self._owner.post(self._cancel)
            self._stand_still()
            raise
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # it was returned, and may be None itself

    def _cancel(self) -> None:
        self._is_unwanted = True
        if self._task is not None:
            self._task.cancel()

    def _stand_still(self) -> None:
        while not self._is_over.wait(LOOK_UP_SECONDS):
            if self._owner.loop.is_closed():
                raise ServiceClosedError(ENDING)
