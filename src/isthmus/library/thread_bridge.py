"""Promises: one value sent from the hub's loop thread to an asyncio loop, to Trio, or to a blocked thread.

The sender does not know how the receiver waits, and the receiver never runs on the sender's stack. Used by
`loop_thread`, `streaming` and `service`.
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

WAKE_SECONDS = 1.0
"""How often a blocked thread wakes up to notice Ctrl-C: Windows delivers it to a running thread only, and elsewhere a
Ctrl-C just before the thread blocks would be lost."""

Post: TypeAlias = Callable[..., None]
"""Schedules a function, with its arguments, on another loop."""


class Promise(Protocol[T_contra]):
    """One value or one error, set once, from any thread."""

    def set_result(self, value: T_contra) -> None:
        """Wake the receiver with this value. Does nothing if the receiver is gone."""

    def set_exception(self, error: BaseException) -> None:
        """Wake the receiver with this error."""


class AwaitablePromise(Promise[T], Protocol[T]):
    """A promise that a coroutine awaits."""

    def send(self, post: Post, function: Callable[[], object]) -> None:
        """Schedule, through `post`, the function that fulfils this promise."""

    async def wait(self) -> T:
        """Return the value, or raise the error. Cancelling the caller only stops the wait."""


_Outgoing: TypeAlias = tuple[Callable[[], object], Promise[Any], Context]
"""A function to call on the other loop, the promise that receives its failure, and the context to call it in."""


def new_promise() -> AwaitablePromise[Any]:
    """Return a promise for the running asyncio loop, or for the running Trio task.

    Raises:
        RuntimeError: neither runs here.
    """
    if "trio" in sys.modules and (trio := _running_trio()) is not None:
        return TrioPromise(trio)
    try:
        return AsyncioPromise(asyncio.get_running_loop())
    except RuntimeError:
        raise RuntimeError(
            "This must be awaited inside asyncio or Trio. Without either, use the same method of `service.blocking`."
        ) from None


def _running_trio() -> Any:
    """Return the trio module if this is a Trio task; an asyncio loop may run around it or inside it."""
    trio, sniffio = sys.modules["trio"], sys.modules.get("sniffio")
    if sniffio is not None and sniffio.thread_local.name != "trio":
        return None
    return trio if trio.lowlevel.in_trio_task() else None


class _LoopChannel:
    """All values on their way to one loop, and all calls that are about to leave it.

    Waking a loop costs more than everything else here. Under load, all values of one turn of the sender's loop wake the
    receiver once, at the end of that turn: a receiver that wakes earlier only waits for the interpreter lock. Calls
    that leave the loop are batched in the same way. A single value or call is sent at once.
    """

    __slots__ = ("__weakref__", "_eventfd", "_incoming", "_is_busy", "_lock", "_outgoing", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._lock = threading.Lock()
        self._incoming: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._outgoing: list[_Outgoing] = []
        self._is_busy = False
        self._eventfd = _eventfd_for(loop)
        if self._eventfd is not None:
            loop.add_reader(self._eventfd, self._receive)

    def put(self, function: Callable[[Any], None], value: Any) -> None:
        """Call a function on the loop; from any thread."""
        with self._lock:
            self._incoming.append((function, value))
            is_first = len(self._incoming) == 1
        if not is_first:
            return
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:  # the sender is a thread without a loop
            here = None
        if here is self.loop:
            here.call_soon(self._deliver_all)
        elif here is None or not self._is_busy:
            self._wake()
        else:
            here.call_soon(self._wake)

    def send(self, post: Post, function: Callable[[], object], promise: Promise[Any]) -> None:
        """Call a function through `post`, now or together with the other calls of this turn of the loop.

        Either way it runs in the context of its sender, since a batch has several senders.
        """
        if not self._is_busy:
            post(function)
            return
        if not self._outgoing:
            self.loop.call_soon(self._send_all, post)
        self._outgoing.append((function, promise, copy_context()))

    def _send_all(self, post: Post) -> None:
        outgoing, self._outgoing = self._outgoing, []
        try:
            post(_call_all, outgoing)
        except Exception as error:  # noqa: BLE001 - the receivers get it
            for _, promise, _ in outgoing:
                promise.set_exception(error)

    def _wake(self) -> None:
        if self._eventfd is not None:
            os.eventfd_write(self._eventfd, 1)
            return
        with suppress(RuntimeError):  # the loop is closed, so nobody waits
            self.loop.call_soon_threadsafe(self._receive)

    def _receive(self) -> None:
        if self._eventfd is not None:
            with suppress(BlockingIOError):  # a loop that runs inside itself, as in notebooks, may call this twice
                os.eventfd_read(self._eventfd)
        self._deliver_all()

    def _deliver_all(self) -> None:
        with self._lock:
            items, self._incoming = self._incoming, deque()
        self._is_busy = len(items) > 1
        self._deliver(items)

    def _deliver(self, items: deque[tuple[Callable[[Any], None], Any]]) -> None:
        try:
            while items:
                function, value = items.popleft()
                function(value)
        finally:
            if items:  # Ctrl-C interrupted the loop above; deliver the rest later
                self.loop.call_soon(self._deliver, items)

    def __del__(self) -> None:
        # The loop refers to this object while it reads the eventfd. So the loop is closed, or gone as well.
        if self._eventfd is not None:
            os.close(self._eventfd)


def _eventfd_for(loop: asyncio.AbstractEventLoop) -> int | None:
    """Return a file descriptor that wakes one of asyncio's own loops; None for other loops, which wake themselves.

    asyncio uses a socket pair, read until it raises, and a handle with a copy of the context: 15 to 20 of the 95 to
    115 µs of CPU that a single call took. uvloop is as cheap as this.
    """
    if not hasattr(os, "eventfd") or type(loop) is not asyncio.SelectorEventLoop:
        return None
    try:
        return os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    except OSError:  # the process is out of file descriptors
        return None


def _call_all(outgoing: Sequence[_Outgoing]) -> None:
    """On the other loop: call each function; one failure does not affect the others."""
    for function, promise, context in outgoing:
        try:
            context.run(function)
        except Exception as error:  # noqa: BLE001 - the receiver gets it
            promise.set_exception(error)


_channels: dict[int, ref[_LoopChannel]] = {}
"""By the loop's id. A channel refers to its loop, so no other loop can have that id while the channel lives.

Weak references: values that were never received must not outlive their receivers. A `WeakKeyDictionary` of loops would
do the same, but one lookup in it takes as long as all the rest of making a promise."""


def _channel_to(loop: asyncio.AbstractEventLoop) -> _LoopChannel:
    known = _channels.get(id(loop))
    channel = known() if known is not None else None
    if channel is None:
        channel = _LoopChannel(loop)
        _channels[id(loop)] = ref(channel, partial(_drop_channel, id(loop)))
    return channel


def _drop_channel(key: int, gone: ref[_LoopChannel]) -> None:
    if _channels.get(key) is gone:  # else another loop has this id now
        del _channels[key]


class AsyncioPromise(Generic[T]):
    """For a coroutine on any asyncio loop. Made on that loop's thread."""

    __slots__ = ("_channel", "_future", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._future: asyncio.Future[T] = loop.create_future()
        self._channel = _channel_to(loop)

    def set_result(self, value: T) -> None:
        """See `Promise`."""
        self._channel.put(self._resolve, value)

    def set_exception(self, error: BaseException) -> None:
        """See `Promise`."""
        self._channel.put(self._reject, error)

    def send(self, post: Post, function: Callable[[], object]) -> None:
        """See `AwaitablePromise`."""
        self._channel.send(post, function, self)

    async def wait(self) -> T:
        """See `AwaitablePromise`."""
        return await self._future

    def _resolve(self, value: T) -> None:
        if not self._future.done():
            self._future.set_result(value)

    def _reject(self, error: BaseException) -> None:
        if not self._future.done():
            self._future.set_exception(error)


class SameLoopPromise(AsyncioPromise[T]):
    """For a coroutine on the sender's own loop: no thread is involved."""

    __slots__ = ()

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._future = loop.create_future()

    def set_result(self, value: T) -> None:
        """See `Promise`; only on the loop."""
        self._resolve(value)

    def set_exception(self, error: BaseException) -> None:
        """See `Promise`; only on the loop."""
        self._reject(error)

    def send(self, post: Post, function: Callable[[], object]) -> None:
        """Call the function now."""
        function()


class TrioPromise(Generic[T]):
    """For a Trio task. Trio is passed in, so programs without it never import it."""

    __slots__ = ("_error", "_event", "_token", "_trio", "_value")

    def __init__(self, trio: Any) -> None:
        self._trio = trio
        self._token = trio.lowlevel.current_trio_token()
        self._event = trio.Event()
        self._value: T | None = None
        self._error: BaseException | None = None

    def set_result(self, value: T) -> None:
        """See `Promise`."""
        self._value = value
        self._wake()

    def set_exception(self, error: BaseException) -> None:
        """See `Promise`."""
        self._error = error
        self._wake()

    def send(self, post: Post, function: Callable[[], object]) -> None:
        """See `AwaitablePromise`."""
        post(function)

    async def wait(self) -> T:
        """See `AwaitablePromise`."""
        await self._event.wait()
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # it was set, and may be None itself

    def _wake(self) -> None:
        with suppress(self._trio.RunFinishedError):  # nobody waits
            self._token.run_sync_soon(self._event.set)


class ThreadPromise(Generic[T]):
    """For a thread that blocks until the value is there."""

    __slots__ = ("_error", "_is_set", "_value")

    def __init__(self) -> None:
        self._is_set = threading.Lock()
        self._is_set.acquire()
        self._value: T | None = None
        self._error: BaseException | None = None

    def set_result(self, value: T) -> None:
        """See `Promise`."""
        self._value = value
        self._is_set.release()

    def set_exception(self, error: BaseException) -> None:
        """See `Promise`."""
        self._error = error
        self._is_set.release()

    def wait(self) -> T:
        """Block until the value or the error is set; Ctrl-C interrupts."""
        while not self._is_set.acquire(timeout=WAKE_SECONDS):
            pass
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # as in `TrioPromise`
