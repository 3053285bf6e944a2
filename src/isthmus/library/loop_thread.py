"""The thread whose event loop runs every hub of this process, and `run`, which runs a whole program on it.

A connection belongs to the loop that opened it, and breaks if other code cancels, closes or blocks that loop. So all
connections live on one private loop, and everybody else hands work over: coroutines of any asyncio loop or of Trio,
threads, notebooks. The thread starts when it is first needed and stops when the program ends. A forked child starts a
thread of its own; objects that it inherited refuse to work and say what to do.

Handing a call over costs two thread switches. A program started by `run` shares the hub's loop and avoids them; in
return, code that blocks the program blocks its hub as well.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from contextvars import ContextVar
from importlib import import_module
from types import TracebackType
from typing import Any, ClassVar, Generic, TypeVar

import structlog

from isthmus.library.errors import ServiceClosedError, WrongThreadError
from isthmus.library.thread_bridge import WAKE_SECONDS, AwaitablePromise, ThreadPromise, new_promise

log = structlog.get_logger(__name__)

T = TypeVar("T")

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
            self._cancel_remaining()
        finally:
            # From now on, callers get an error instead of waiting for ever.
            self.loop.close()

    def _cancel_remaining(self) -> None:
        left = asyncio.all_tasks(self.loop)
        for task in left:
            if not task.cancelling():  # a task that is already ending may be closing a connection
                task.cancel()
        if left:
            self.loop.run_until_complete(asyncio.wait(left, timeout=CANCEL_SECONDS))
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())

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

    def call_or_post(self, function: Callable[[], object]) -> None:
        """Call a function now if the caller is on the loop, otherwise `post` it."""
        if self.is_current():
            function()
        else:
            self.post(function)

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

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        try:
            self._wait_finished()
        except BaseException:
            with suppress(ServiceClosedError):
                self._loop_thread.post(self._cancel)
            self._wait_finished()
            raise
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # it was returned, and may be None itself

    def _cancel(self) -> None:
        self._is_cancelled = True
        if self._task is not None:
            self._task.cancel()

    def _wait_finished(self) -> None:
        while not self._is_finished.wait(WAKE_SECONDS):
            if self._loop_thread.loop.is_closed():
                raise ServiceClosedError(PROGRAM_ENDING)
