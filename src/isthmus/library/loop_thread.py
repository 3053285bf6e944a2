"""The thread whose event loop runs every hub of this process, and `run`, which runs a whole program on it.

A connection belongs to the loop that opened it, and breaks if other code cancels, closes or blocks that loop. So all
connections live on one private loop, and everybody else hands work over: coroutines of any asyncio loop or of Trio,
threads, notebooks. The thread starts when it is first needed and stops when the program ends. A forked child starts a
thread of its own; objects that it inherited refuse to work and say what to do.

Handing a call over costs two thread switches. A program started by `run` shares the hub's loop and avoids them; in
return, code that blocks the program blocks its hub as well.

A promise sends one value from the loop thread to an asyncio loop, to Trio, or to a blocked thread. The sender does not
know how the receiver waits, and the receiver never runs on the sender's stack.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from importlib import import_module
from typing import Any, ClassVar, Generic, Protocol, TypeAlias, TypeVar
from weakref import ref

import structlog

from isthmus.library.errors import ServiceClosedError, WrongThreadError

log = structlog.get_logger(__name__)

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
    if (trio := sys.modules.get("trio")) is not None:
        sniffio = sys.modules.get("sniffio")  # an asyncio loop may run around a Trio task or inside it
        if (sniffio is None or sniffio.thread_local.name == "trio") and trio.lowlevel.in_trio_task():
            return TrioPromise(trio)
    try:
        return AsyncioPromise(asyncio.get_running_loop())
    except RuntimeError:
        raise RuntimeError(
            "This must be awaited inside asyncio or Trio. Without either, use the same method of `service.blocking`."
        ) from None


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
        # Wakes asyncio's own loops; other loops wake themselves. asyncio uses a socket pair, read until it raises, and
        # a handle with a copy of the context: 15 to 20 of the 95 to 115 µs of CPU that a single call took. uvloop is
        # as cheap as this.
        self._eventfd: int | None = None
        if hasattr(os, "eventfd") and type(loop) is asyncio.SelectorEventLoop:
            with suppress(OSError):  # the process is out of file descriptors
                self._eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
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
        with suppress(RuntimeError):  # the loop is closed, so no caller waits
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


class AsyncioPromise(Generic[T]):
    """For a coroutine on any asyncio loop. Made on that loop's thread."""

    __slots__ = ("_channel", "_future", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._future: asyncio.Future[T] = loop.create_future()
        key = id(loop)
        known = _channels.get(key)
        channel = known() if known is not None else None
        if channel is None:

            def drop(gone: ref[_LoopChannel]) -> None:
                if _channels.get(key) is gone:  # else another loop has this id now
                    del _channels[key]

            channel = _LoopChannel(loop)
            _channels[key] = ref(channel, drop)
        self._channel = channel

    def set_result(self, value: T) -> None:
        """Wake the receiver with this value. Does nothing if the receiver is gone."""
        self._channel.put(self._resolve, value)

    def set_exception(self, error: BaseException) -> None:
        """Wake the receiver with this error."""
        self._channel.put(self._reject, error)

    def send(self, post: Post, function: Callable[[], object]) -> None:
        """Schedule, through `post`, the function that fulfils this promise."""
        self._channel.send(post, function, self)

    async def wait(self) -> T:
        """Return the value, or raise the error. Cancelling the caller only stops the wait."""
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
        """Wake the receiver with this value; only on the loop."""
        self._resolve(value)

    def set_exception(self, error: BaseException) -> None:
        """Wake the receiver with this error; only on the loop."""
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
        """Wake the receiver with this value. Does nothing if the receiver is gone."""
        self._value = value
        self._wake()

    def set_exception(self, error: BaseException) -> None:
        """Wake the receiver with this error."""
        self._error = error
        self._wake()

    def send(self, post: Post, function: Callable[[], object]) -> None:
        """Schedule, through `post`, the function that fulfils this promise."""
        post(function)

    async def wait(self) -> T:
        """Return the value, or raise the error. Cancelling the caller only stops the wait."""
        await self._event.wait()
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # it was set, and may be None itself

    def _wake(self) -> None:
        with suppress(self._trio.RunFinishedError):  # no caller waits
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
        """Wake the receiver with this value. Does nothing if the receiver is gone."""
        self._value = value
        self._is_set.release()

    def set_exception(self, error: BaseException) -> None:
        """Wake the receiver with this error."""
        self._error = error
        self._is_set.release()

    def wait(self) -> T:
        """Block until the value or the error is set; Ctrl-C interrupts."""
        while not self._is_set.acquire(timeout=WAKE_SECONDS):
            pass
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # as in `TrioPromise`


STOP_SECONDS = 5.0
"""How long services may take to close when the program ends."""
CANCEL_SECONDS = 1.0
"""How long the remaining tasks may take to end after they are cancelled."""
PROGRAM_ENDING = "The program is ending and its hub is closed."
CLOSED_MEANWHILE = "The hub was closed during this call."


class LoopThread:
    """An event loop in its own thread."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.is_inherited = False
        try:
            import uvloop  # noqa: PLC0415 - not available on Windows

            self.loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        except ImportError:
            self.loop = asyncio.new_event_loop()
        self._closers: dict[object, Callable[[], Coroutine[Any, Any, None]]] = {}
        self._thread = threading.Thread(target=self._run_loop, name="isthmus", daemon=True)
        self._thread.start()
        self._ident = self._thread.ident

    @staticmethod
    def shared() -> LoopThread:
        """Return the loop thread of this process; start it if necessary."""
        with _Shared.lock:
            if _Shared.thread is None:
                _Shared.thread = LoopThread()
            return _Shared.thread

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self.loop)
        with suppress(ImportError):  # without sniffio there is no Trio either
            # anyio asks sniffio which library runs; a context copied from a Trio task would answer "trio".
            import_module("sniffio").thread_local.name = "asyncio"
        try:
            while True:
                try:
                    self.loop.run_forever()
                    break
                except (SystemExit, KeyboardInterrupt):  # a callback or task on the loop called `sys.exit`
                    log.exception("a task on the hub's loop tried to end the program; the loop goes on")
            left = asyncio.all_tasks(self.loop)
            for task in left:
                if not task.cancelling():  # a task that is already ending may be closing a connection
                    task.cancel()
            if left:
                self.loop.run_until_complete(asyncio.wait(left, timeout=CANCEL_SECONDS))
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        finally:
            # From now on, callers get an error instead of waiting for ever.
            self.loop.close()

    def is_current(self) -> bool:
        """Whether the caller runs on this thread."""
        return threading.get_ident() == self._ident

    def mark_inherited(self) -> None:
        """In a forked child: no thread of the child is this one, even if a new thread gets the same ident."""
        self.is_inherited = True
        self._ident = None

    # -- handing work over ---------------------------------------------------------------------------------------------

    def post(self, function: Callable[..., Any], *args: Any) -> None:
        """Call a function on the loop soon; its result is discarded.

        Raises:
            ServiceClosedError: the loop is closed, or belongs to another process.
        """
        self.check_process()
        try:
            self.loop.call_soon_threadsafe(function, *args)
        except RuntimeError as error:
            raise ServiceClosedError(PROGRAM_ENDING) from error

    def check_process(self) -> None:
        """Refuse to work in a forked child.

        Raises:
            ServiceClosedError: the loop belongs to the parent process.
        """
        if self.is_inherited:
            raise ServiceClosedError(
                f"This service was made by process {self.pid}, from which process {os.getpid()} was forked. "
                "Connections cannot be shared: make and initialize a new ToolService in each worker, after the fork."
            )

    async def call_async(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function on the loop and return its result."""
        if self.is_current():
            return function(*args)
        promise = new_promise()
        self.post(_fulfil, promise, function, args)
        value: T = await promise.wait()
        return value

    def call(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function on the loop, block, and return its result."""
        if self.is_current():
            return function(*args)
        promise: ThreadPromise[T] = ThreadPromise()
        self.post(_fulfil, promise, function, args)
        return promise.wait()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop; cancelling the caller cancels it."""
        if self.is_current():
            return await work
        promise, future = self._start_awaited(work)
        try:
            value: T = await promise.wait()
        except BaseException:
            future.cancel()
            raise
        return value

    async def run_shielded(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop; cancelling the caller only stops the wait."""
        promise, _ = self._start_awaited(work)
        value: T = await promise.wait()
        return value

    def _start_awaited(self, work: Coroutine[Any, Any, T]) -> tuple[AwaitablePromise[T], Future[T]]:
        try:
            promise: AwaitablePromise[T] = new_promise()
        except RuntimeError:
            work.close()
            raise
        future = self.submit(work)
        future.add_done_callback(lambda done: _copy_result(done, promise))
        return promise, future

    def run_blocking(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and block until it has ended.

        Raises:
            WrongThreadError: the caller is on the loop.
        """
        try:
            self.check_may_block()
        except WrongThreadError:
            work.close()
            raise
        future = self.submit(work)
        promise: ThreadPromise[T] = ThreadPromise()
        future.add_done_callback(lambda done: _copy_result(done, promise))
        try:
            return promise.wait()
        except BaseException:
            future.cancel()
            raise

    def start(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run a coroutine on the loop and discard its result; does nothing after the loop is closed."""
        with suppress(ServiceClosedError):
            self.submit(work)

    def check_may_block(self) -> None:
        """Refuse to block the loop itself.

        Raises:
            WrongThreadError: the caller is on the loop.
        """
        if self.is_current():
            raise WrongThreadError(
                "A blocking call on the hub's own loop would wait for itself for ever. In an `async def` tool, and in "
                "a program started by `run`, await the methods of the service (or `async_func`). Blocking calls are "
                "for `def` tools and other threads."
            )

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the loop; the future has its result and can cancel it.

        Raises:
            ServiceClosedError: the loop is closed, or belongs to another process.
        """
        try:
            self.check_process()
            return asyncio.run_coroutine_threadsafe(work, self.loop)
        except RuntimeError as error:
            work.close()
            if isinstance(error, ServiceClosedError):
                raise
            raise ServiceClosedError(PROGRAM_ENDING) from error

    # -- at exit -------------------------------------------------------------------------------------------------------

    def close_at_exit(self, key: object, closer: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Call `closer` when the program ends, unless `remove_closer` is called first. On the loop only."""
        self._closers[key] = closer

    def remove_closer(self, key: object) -> None:
        """Undo `close_at_exit`. On the loop only."""
        self._closers.pop(key, None)

    def stop(self) -> None:
        """Close everything and end the thread, at the end of the program."""
        if self.pid != os.getpid() or not self._thread.is_alive() or self.is_current():
            return

        async def close_all() -> None:
            await asyncio.gather(*(closer() for closer in list(self._closers.values())), return_exceptions=True)

        with suppress(Exception):
            asyncio.run_coroutine_threadsafe(close_all(), self.loop).result(STOP_SECONDS)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(STOP_SECONDS)


class LoopThreadLock:
    """A lock for code on the loop thread. In a forked child it is free: its holder did not survive the fork."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._lock = asyncio.Lock()

    def __deepcopy__(self, memo: dict[int, Any]) -> LoopThreadLock:
        return LoopThreadLock()  # the holder of this lock would never release the copy

    async def __aenter__(self) -> None:
        if self._pid != os.getpid():
            self._pid, self._lock = os.getpid(), asyncio.Lock()
        await self._lock.acquire()

    async def __aexit__(self, *_: object) -> None:
        self._lock.release()


class _Shared:
    lock = threading.Lock()
    thread: LoopThread | None = None
    inherited: ClassVar[list[LoopThread]] = []
    """Loop threads of parent processes. Their loops are neither used nor closed: parent and child share the kernel's
    objects behind them."""


def _fulfil(promise: Any, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    try:
        value = function(*args)
    except BaseException as error:  # noqa: BLE001 - the caller gets it
        promise.set_exception(error)
    else:
        promise.set_result(value)


def _copy_result(future: Future[Any], promise: Any) -> None:
    if future.cancelled():
        promise.set_exception(ServiceClosedError(CLOSED_MEANWHILE))
    elif (error := future.exception()) is not None:
        promise.set_exception(error)
    else:
        promise.set_result(future.result())


def _after_fork() -> None:
    """In a forked child: the thread does not exist there, and a lost thread may hold the lock."""
    if _Shared.thread is not None:
        _Shared.thread.mark_inherited()
        _Shared.inherited.append(_Shared.thread)
        _Shared.thread = None
    _Shared.lock = threading.Lock()


def _stop() -> None:
    if _Shared.thread is not None:
        _Shared.thread.stop()


atexit.register(_stop)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


# -- a program on the hub's loop ---------------------------------------------------------------------------------------

_on_hub_loop: ContextVar[bool] = ContextVar("on_hub_loop", default=False)


def runs_on_hub_loop() -> bool:
    """Whether the caller is part of a program started by `run`."""
    return _on_hub_loop.get()


def run(program: Coroutine[Any, Any, T]) -> T:
    """Run a program on the hub's loop and return its result: `run(main())` instead of `asyncio.run(main())`.

    Ctrl-C cancels the program and is raised after the program has ended; a second Ctrl-C is raised at once. Tasks that
    the program leaves behind go on until the process ends.

    Raises:
        WrongThreadError: an event loop already runs in this thread.
    """
    running = _Program(program, LoopThread.shared())
    try:
        try:
            new_promise()
        except RuntimeError:
            pass  # as it should be: no loop runs here
        else:
            raise WrongThreadError(
                "An event loop already runs in this thread, and `run` would block it: await the coroutine instead."
            )
        running.start()
    except BaseException:
        program.close()
        raise
    return running.wait()


class _Program(Generic[T]):
    """A coroutine on the hub's loop, and the thread that waits for it."""

    def __init__(self, work: Coroutine[Any, Any, T], loop_thread: LoopThread) -> None:
        self._work = work
        self._loop_thread = loop_thread
        self._task: asyncio.Task[Any] | None = None
        self._is_cancelled = False
        self._value: T | None = None
        self._error: BaseException | None = None
        self._is_finished = threading.Event()

    def start(self) -> None:
        """Start it in the caller's context."""
        self._loop_thread.submit(self._run())

    async def _run(self) -> None:
        self._task = asyncio.current_task()
        _on_hub_loop.set(True)
        try:
            if self._is_cancelled:
                raise asyncio.CancelledError
            self._value = await self._work
        except BaseException as error:  # noqa: BLE001 - even `SystemExit`, which would end the shared loop
            self._error = error
        finally:
            self._work.close()  # it was never awaited if Ctrl-C came before the start
            self._is_finished.set()

    def wait(self) -> T:
        """Block until it has ended; an interruption cancels it and is raised after the end."""

        def cancel() -> None:
            self._is_cancelled = True
            if self._task is not None:
                self._task.cancel()

        try:
            self._wait_finished()
        except BaseException:
            with suppress(ServiceClosedError):
                self._loop_thread.post(cancel)
            self._wait_finished()
            raise
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # it was returned, and may be None itself

    def _wait_finished(self) -> None:
        while not self._is_finished.wait(WAKE_SECONDS):
            if self._loop_thread.loop.is_closed():
                raise ServiceClosedError(PROGRAM_ENDING)
