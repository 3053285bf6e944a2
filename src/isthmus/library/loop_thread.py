"""The one thread whose loop owns every hub of this process.

Connections belong to the loop that opened them, and break when another one cancels, closes or blocks it. So all of
them live here, on a loop that nobody else can cancel, close or block, and everybody else crosses over: coroutines of
any asyncio loop or of Trio, threads, notebooks. It is started when it is first needed, and stopped when the program
ends. A forked child has none of its parent's threads: it starts its own, and what it inherited refuses with advice.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from importlib import import_module
from types import TracebackType
from typing import Any, ClassVar, TypeVar

import structlog

from isthmus.library.crossing import Awaited, ToThread, crossing_here
from isthmus.library.errors import ServiceClosedError, WrongThreadError

log = structlog.get_logger(__name__)

T = TypeVar("T")

STOP_SECONDS = 5.0
"""How long what still runs may take to close when the program ends."""
ENDING = "The program is ending, and its hub has been closed."
CLOSED_MEANWHILE = "The hub was closed meanwhile."
WITHDRAW_SECONDS = 1.0
"""How long tasks that nobody closed may take to notice that they are cancelled."""


class Owner:
    """A loop in a thread of its own."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.is_inherited = False
        self.loop = _new_loop()
        self._closers: dict[object, Callable[[], Coroutine[Any, Any, None]]] = {}
        self._thread = threading.Thread(target=self._run, name="isthmus", daemon=True)
        self._thread.start()
        self._ident = self._thread.ident

    @staticmethod
    def shared() -> Owner:
        """The one of this process."""
        with _Shared.lock:
            if _Shared.owner is None:
                _Shared.owner = Owner()
            return _Shared.owner

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        _say_that_this_is_asyncio()
        try:
            while not self._is_run_to_the_end():
                pass
            self._withdraw_all()
        finally:
            # Whoever still crosses over is refused from now on, and does not wait for ever.
            self.loop.close()

    def _is_run_to_the_end(self) -> bool:
        """Run the loop; False if somebody's callback or task on it ended it, as `sys.exit` does with any loop."""
        try:
            self.loop.run_forever()
        except (SystemExit, KeyboardInterrupt):
            log.exception("something tried to end the program from the hub's loop, which goes on")
            return False
        return True

    def _withdraw_all(self) -> None:
        left = asyncio.all_tasks(self.loop)
        for task in left:
            if not task.cancelling():  # what is already on its way out may be closing a connection in good order
                task.cancel()
        if left:
            self.loop.run_until_complete(asyncio.wait(left, timeout=WITHDRAW_SECONDS))
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())

    def is_here(self) -> bool:
        """Whether this is its thread."""
        return threading.get_ident() == self._ident

    def inherit(self) -> None:
        """In a forked child: no thread is this one's, even if a new one has got its number."""
        self.is_inherited = True
        self._ident = None

    # -- crossing over -------------------------------------------------------------------------------------------------

    def post(self, function: Callable[..., Any], *args: Any) -> None:
        """Have a function called on the loop soon, whatever comes of it.

        Raises:
            ServiceClosedError: there is no loop any more, or it is another process's.
        """
        self.check()
        try:
            self.loop.call_soon_threadsafe(function, *args)
        except RuntimeError as error:
            raise ServiceClosedError(ENDING) from error

    def enter(self, function: Callable[[], object]) -> None:
        """Have a function called on the loop: at once where this is it, else soon.

        Raises:
            ServiceClosedError: as `post`.
        """
        if self.is_here():
            function()
        else:
            self.post(function)

    def check(self) -> None:
        """Refuse what was inherited by a fork.

        Raises:
            ServiceClosedError: it is another process's.
        """
        if self.is_inherited:
            raise ServiceClosedError(
                f"This service was made by process {self.pid}, from which process {os.getpid()} was forked, and its "
                "connections cannot be shared: make and initialize a new ToolService in each worker, after the fork."
            )

    async def fetch(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function on the loop and return what it returns."""
        if self.is_here():
            return function(*args)
        crossing = crossing_here()
        self.post(_answer, crossing, function, args)
        value: T = await crossing.wait()
        return value

    def call(self, function: Callable[..., T], *args: Any) -> T:
        """The same, standing still meanwhile."""
        if self.is_here():
            return function(*args)
        crossing: ToThread[T] = ToThread()
        self.post(_answer, crossing, function, args)
        return crossing.wait()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop; who is cancelled meanwhile cancels it."""
        if self.is_here():
            return await work
        crossing, future = self._begun(work)
        try:
            value: T = await crossing.wait()
        except BaseException:
            future.cancel()
            raise
        return value

    async def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end on the loop; who is cancelled meanwhile only stops waiting for it."""
        crossing, _ = self._begun(work)
        value: T = await crossing.wait()
        return value

    def _begun(self, work: Coroutine[Any, Any, T]) -> tuple[Awaited[T], Future[T]]:
        try:
            crossing: Awaited[T] = crossing_here()
        except RuntimeError:
            work.close()
            raise
        future = self.submit(work)
        future.add_done_callback(lambda done: _pass_on(done, crossing))
        return crossing, future

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """The same, standing still meanwhile.

        Raises:
            WrongThreadError: this is the loop that would have to answer.
        """
        try:
            self.refuse_here()
        except WrongThreadError:
            work.close()
            raise
        future = self.submit(work)
        crossing: ToThread[T] = ToThread()
        future.add_done_callback(lambda done: _pass_on(done, crossing))
        try:
            return crossing.wait()
        except BaseException:
            future.cancel()
            raise

    def start(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run a coroutine on the loop, whatever comes of it; once there is no loop any more, do not."""
        with suppress(ServiceClosedError):
            self.submit(work)

    def refuse_here(self) -> None:
        """Refuse to stand still on the loop itself.

        Raises:
            WrongThreadError: this is its thread.
        """
        if self.is_here():
            raise WrongThreadError(
                "A blocking call was made on the loop that has to answer it, and would wait for itself for ever. In a "
                "program that `run` runs, and in an `async def` tool, await the service's own methods (or "
                "`async_func`); blocking ones are for `def` tools and other threads."
            )

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the loop by itself; what is returned has its result, and cancels it.

        Raises:
            ServiceClosedError: there is no loop any more, or it is another process's.
        """
        try:
            self.check()
            return asyncio.run_coroutine_threadsafe(work, self.loop)
        except RuntimeError as error:
            work.close()
            if isinstance(error, ServiceClosedError):
                raise
            raise ServiceClosedError(ENDING) from error

    # -- the end -------------------------------------------------------------------------------------------------------

    def close_at_exit(self, key: object, closer: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Have something closed when the program ends, unless it was before. On the loop only."""
        self._closers[key] = closer

    def closed(self, key: object) -> None:
        """It is closed. On the loop only."""
        self._closers.pop(key, None)

    def stop(self) -> None:
        """Close what is still open, and end the thread; at the end of the program."""
        if self.pid != os.getpid() or not self._thread.is_alive() or self.is_here():
            return
        with suppress(Exception):
            asyncio.run_coroutine_threadsafe(self._close_all(), self.loop).result(STOP_SECONDS)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(STOP_SECONDS)

    async def _close_all(self) -> None:
        await asyncio.gather(*(closer() for closer in list(self._closers.values())), return_exceptions=True)


class OwnersLock:
    """A lock that is held on the owner's loop only; free in a forked child, where nobody is who could hold it."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._lock = asyncio.Lock()

    def __deepcopy__(self, memo: dict[int, Any]) -> OwnersLock:
        return OwnersLock()  # who holds this one will not let go of another

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
    owner: Owner | None = None
    inherited: ClassVar[list[Owner]] = []
    """Owners of parent processes: their loops are neither used nor closed here, since the kernel's part is shared."""


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop  # noqa: PLC0415 - there is none on Windows
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def _say_that_this_is_asyncio() -> None:
    """To whoever asks here which library runs, as anyio does: what comes from Trio brings along that it does."""
    with suppress(ImportError):  # who does not have it has no Trio
        import_module("sniffio").thread_local.name = "asyncio"


def _answer(crossing: Any, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    try:
        value = function(*args)
    except BaseException as error:  # noqa: BLE001 - whoever asked hears it
        crossing.fail(error)
    else:
        crossing.give(value)


def _pass_on(future: Future[Any], crossing: Any) -> None:
    if future.cancelled():
        crossing.fail(ServiceClosedError(CLOSED_MEANWHILE))
    elif (error := future.exception()) is not None:
        crossing.fail(error)
    else:
        crossing.give(future.result())


def _forget() -> None:
    """In a forked child: the thread did not come along, and the lock may be held by one that did not either."""
    if _Shared.owner is not None:
        _Shared.owner.inherit()
        _Shared.inherited.append(_Shared.owner)
        _Shared.owner = None
    _Shared.lock = threading.Lock()


def _stop() -> None:
    if _Shared.owner is not None:
        _Shared.owner.stop()


atexit.register(_stop)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
