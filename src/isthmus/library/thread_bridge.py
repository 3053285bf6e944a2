"""A value on its way from the owner's thread to whoever waits for it: an asyncio loop, Trio, or a plain thread.

Called by everything here that waits. Whoever gives the value does not know who waits and how; whoever waits is never
on the owner's stack.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import Context, copy_context
from functools import partial
from typing import Any, Generic, Protocol, TypeAlias, TypeVar
from weakref import ref

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)


LOOK_UP_SECONDS = 1.0
"""How often a thread that stands still looks up: Windows lets no Ctrl-C through to one that does not, and elsewhere one
is not heard that comes just before the thread stands still."""


Post: TypeAlias = Callable[..., None]
"""Has a function called on another loop soon, with what else it is given."""


class Crossing(Protocol[T_contra]):
    """One value, or one error, given once from any thread."""

    def give(self, value: T_contra) -> None:
        """Wake whoever waits, with this value; nothing happens if nobody can be reached any more."""

    def fail(self, error: BaseException) -> None:
        """The same with an error."""


class Awaited(Crossing[T], Protocol[T]):
    """One that is awaited."""

    def send(self, post: Post, function: Callable[[], object]) -> None:
        """Have a function called where the value is given, by `post`, which does that soon; it gives the value."""

    async def wait(self) -> T:
        """What was given; who is cancelled meanwhile just leaves."""


Departure: TypeAlias = tuple[Callable[[], object], Crossing[Any], Context]
"""A function that is to be called on the other side, who is told if it cannot be, and the context that it is of."""


def crossing_here() -> Awaited[Any]:
    """A crossing to where this is called: an asyncio loop, or Trio."""
    if "trio" in sys.modules and (trio := _trio_here()) is not None:
        return ToTrio(trio)
    try:
        return ToAsyncio(asyncio.get_running_loop())
    except RuntimeError:
        raise RuntimeError(
            "This is to be awaited inside asyncio or Trio; without either, use the same method of `service.blocking`."
        ) from None


def _trio_here() -> Any:
    """Trio, if this is one of its tasks; a loop of asyncio may be running around it, or inside it."""
    trio, sniffio = sys.modules["trio"], sys.modules.get("sniffio")
    if sniffio is not None and sniffio.thread_local.name != "trio":
        return None
    return trio if trio.lowlevel.in_trio_task() else None


class _Delivery:
    """Everything on its way to one loop, and what is about to leave it.

    Where much comes at once, all that comes in one turn of the giver's loop wakes the taker's once, at the turn's end:
    that takes longer than all the rest of a crossing, and who is woken by the first only waits for the interpreter
    until the last was given. What leaves does the same. What comes alone, wakes and leaves at once.
    """

    __slots__ = ("__weakref__", "_bell", "_is_crowded", "_items", "_leaving", "_lock", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._lock = threading.Lock()
        self._items: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._leaving: list[Departure] = []
        self._is_crowded = False
        self._bell = _bell_for(loop)
        if self._bell is not None:
            loop.add_reader(self._bell, self._deliver)

    def put(self, function: Callable[[Any], None], value: Any) -> None:
        """Have a function called on the loop; from any thread."""
        with self._lock:
            self._items.append((function, value))
            is_first = len(self._items) == 1
        if is_first:
            self._wake_in_time()

    def send(self, post: Post, function: Callable[[], object], crossing: Crossing[Any]) -> None:
        """Have a function called where `post` does it: now, or with whatever else leaves in this turn of the loop.

        Either way it is called in the context of who sends it: what leaves together is of several.
        """
        if not self._is_crowded:
            post(function)
            return
        if not self._leaving:
            self.loop.call_soon(self._send_all, post)
        self._leaving.append((function, crossing, copy_context()))

    def _send_all(self, post: Post) -> None:
        leaving, self._leaving = self._leaving, []
        try:
            post(_depart, leaving)
        except Exception as error:  # noqa: BLE001 - whoever waits hears it
            for _, crossing, _ in leaving:
                crossing.fail(error)

    def _wake_in_time(self) -> None:
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:  # it is given by a thread without a loop
            here = None
        if here is self.loop:
            here.call_soon(self._hand_out_all)
        elif here is None or not self._is_crowded:
            self._wake()
        else:
            here.call_soon(self._wake)

    def _wake(self) -> None:
        if self._bell is not None:
            os.eventfd_write(self._bell, 1)
            return
        with suppress(RuntimeError):  # the loop is closed, and nobody waits any more
            self.loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        if self._bell is not None:
            with suppress(BlockingIOError):  # a loop that runs inside itself, as in notebooks, may call this twice
                os.eventfd_read(self._bell)
        self._hand_out_all()

    def _hand_out_all(self) -> None:
        with self._lock:
            items, self._items = self._items, deque()
        self._is_crowded = len(items) > 1
        self._hand_out(items)

    def _hand_out(self, items: deque[tuple[Callable[[Any], None], Any]]) -> None:
        try:
            while items:
                function, value = items.popleft()
                function(value)
        finally:
            if items:  # Ctrl-C came in between, and the rest still waits
                self.loop.call_soon(self._hand_out, items)

    def __del__(self) -> None:
        # The loop holds this while it reads the bell: it is closed, or gone as well.
        if self._bell is not None:
            os.close(self._bell)


def _bell_for(loop: asyncio.AbstractEventLoop) -> int | None:
    """What wakes a loop of asyncio's own; None for others, which are left to do it their own way.

    asyncio's way is a pair of sockets, read until an exception says that there is no more, and a handle with a copy of
    the context: 15 to 20 of the 95 to 115 µs of CPU that a call took by itself. uvloop's is as cheap as this.
    """
    if not hasattr(os, "eventfd") or type(loop) is not asyncio.SelectorEventLoop:
        return None
    try:
        return os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    except OSError:  # the process has as many descriptors as it may
        return None


def _depart(leaving: Sequence[Departure]) -> None:
    """On the other side: each by itself, whatever becomes of the others."""
    for function, crossing, context in leaving:
        try:
            context.run(function)
        except Exception as error:  # noqa: BLE001 - as in `_Delivery`
            crossing.fail(error)


_deliveries: dict[int, ref[_Delivery]] = {}
"""By the loop's id, which is no other loop's while the delivery lives: it holds its loop. However many loops run on a
thread in turns, or threads run one, each has one bell. Weakly: what never arrived must not outlive who waited for it.
A dict of weak keys would say the same, and takes as long to look into as all the rest of making a crossing."""


def _delivery_to(loop: asyncio.AbstractEventLoop) -> _Delivery:
    known = _deliveries.get(id(loop))
    delivery = known() if known is not None else None
    if delivery is None:
        delivery = _Delivery(loop)
        _deliveries[id(loop)] = ref(delivery, partial(_forget, id(loop)))
    return delivery


def _forget(key: int, gone: ref[_Delivery]) -> None:
    if _deliveries.get(key) is gone:  # else another loop has got its id
        del _deliveries[key]


class ToAsyncio(Generic[T]):
    """To a coroutine of asyncio, on whichever loop. Made on that loop's thread."""

    __slots__ = ("_delivery", "_future", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._future: asyncio.Future[T] = loop.create_future()
        self._delivery = _delivery_to(loop)

    def give(self, value: T) -> None:
        """See `Crossing`."""
        self._delivery.put(self._set, value)

    def fail(self, error: BaseException) -> None:
        """See `Crossing`."""
        self._delivery.put(self._set_error, error)

    def send(self, post: Post, function: Callable[[], object]) -> None:
        """See `Awaited`, and `_Delivery`."""
        self._delivery.send(post, function, self)

    async def wait(self) -> T:
        """See `Awaited`."""
        return await self._future

    def _set(self, value: T) -> None:
        if not self._future.done():
            self._future.set_result(value)

    def _set_error(self, error: BaseException) -> None:
        if not self._future.done():
            self._future.set_exception(error)


class ToItself(ToAsyncio[T]):
    """To a coroutine on the very loop that gives: nothing is crossed."""

    __slots__ = ()

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._future = loop.create_future()

    def give(self, value: T) -> None:
        """See `Crossing`; only on the loop."""
        self._set(value)

    def fail(self, error: BaseException) -> None:
        """See `Crossing`; only on the loop."""
        self._set_error(error)

    def send(self, post: Post, function: Callable[[], object]) -> None:
        """See `Awaited`: at once."""
        function()


class ToTrio(Generic[T]):
    """To a task of Trio, which is only imported by those who have it already."""

    __slots__ = ("_error", "_event", "_token", "_trio", "_value")

    def __init__(self, trio: Any) -> None:
        self._trio = trio
        self._token = trio.lowlevel.current_trio_token()
        self._event = trio.Event()
        self._value: T | None = None
        self._error: BaseException | None = None

    def give(self, value: T) -> None:
        """See `Crossing`."""
        self._value = value
        self._wake()

    def fail(self, error: BaseException) -> None:
        """See `Crossing`."""
        self._error = error
        self._wake()

    def send(self, post: Post, function: Callable[[], object]) -> None:
        """See `Awaited`."""
        post(function)

    async def wait(self) -> T:
        """See `Awaited`."""
        await self._event.wait()
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # it was given, and may be None itself

    def _wake(self) -> None:
        with suppress(self._trio.RunFinishedError):  # nobody waits any more
            self._token.run_sync_soon(self._event.set)


class ToThread(Generic[T]):
    """To a thread that stands still for it."""

    __slots__ = ("_arrival", "_error", "_value")

    def __init__(self) -> None:
        self._arrival = threading.Lock()
        self._arrival.acquire()
        self._value: T | None = None
        self._error: BaseException | None = None

    def give(self, value: T) -> None:
        """See `Crossing`."""
        self._value = value
        self._arrival.release()

    def fail(self, error: BaseException) -> None:
        """See `Crossing`."""
        self._error = error
        self._arrival.release()

    def wait(self) -> T:
        """Stand still until something is given; Ctrl-C gets through."""
        while not self._arrival.acquire(timeout=LOOK_UP_SECONDS):
            pass
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # as in `ToTrio`
