"""Runs functions for calls: plain ones in threads, asynchronous ones on the loop.

A function marked as inline runs on the loop without a thread. Asynchronous functions are cancelled with their calls. A
thread cannot be stopped: the call ends, the function goes on, and its result is dropped. Threads are daemons, so that a
hanging function does not keep the hub from ending.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import sys
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import ContextVar
from queue import SimpleQueue
from typing import Any, TextIO, TypeAlias, cast
from weakref import ref

import msgspec
import structlog

from isthmus.core.background import BackgroundTasks
from isthmus.core.calls.inflight import InFlight
from isthmus.core.settings import Limits
from isthmus.model.calls import Event, Outcome, Progress, Result
from isthmus.model.faults import BadArguments, BadReply
from isthmus.model.names import ServerName
from isthmus.upstream.python.context import Context, QuestionSender
from isthmus.upstream.python.model_types import encoded
from isthmus.upstream.python.signatures import BadArgument, Runnable
from isthmus.upstream.waiters import lost
from isthmus.wire.mcp.calls import failed_tool_result, json_tool_result, tool_result

Job: TypeAlias = Callable[[], Callable[[], None]]
"""Runs in a thread and returns what is to be done with its result on the loop; it does not raise."""

PRINTS_TO_STDERR: contextvars.ContextVar[bool] = contextvars.ContextVar("aside", default=False)
"""Whether what is printed here goes to standard error: standard output may be a protocol's, or a command's result."""


def enter_thread_context() -> None:
    """In a thread, and in the context of somebody else: say of what is there that which is not so here."""
    PRINTS_TO_STDERR.set(True)
    if (sniffio := sys.modules.get("sniffio")) is not None:
        # The caller may be of Trio, which is no reason not to run asyncio here.
        sniffio.current_async_library_cvar.set(None)


class WorkerThreads:
    """The threads of one server."""

    def __init__(self, name: str, size: int) -> None:
        self._name = name
        self._size = size
        self._loop = asyncio.get_running_loop()
        self._threads = 0
        self._busy = 0
        self._waiting: dict[Job, None] = {}
        self._begun: SimpleQueue[Job | None] = SimpleQueue()

    def run(self, job: Job) -> None:
        """Begin the job, or let it wait for a thread."""
        if self._busy < self._size:
            self._begin(job)
        else:
            self._waiting[job] = None

    def is_waiting(self, job: Job) -> bool:
        """Whether it has not begun."""
        return job in self._waiting

    def take_back(self, job: Job) -> None:
        """Never begin it, if it has not begun."""
        self._waiting.pop(job, None)

    def close(self) -> None:
        """Let every thread end, each when it is done with what it does; whatever waits never begins."""
        self._waiting.clear()
        for _ in range(self._threads):
            self._begun.put(None)

    def _begin(self, job: Job) -> None:
        self._busy += 1
        if self._busy > self._threads:
            self._threads += 1
            threading.Thread(target=self._work, name=f"{self._name}/{self._threads}", daemon=True).start()
        # Not now: a thread that wakes while the loop still works only waits for the interpreter's lock.
        self._loop.call_soon(self._begun.put, job)

    def _work(self) -> None:
        PRINTS_TO_STDERR.set(True)
        while (job := self._begun.get()) is not None:
            conclude = job()
            with suppress(RuntimeError):  # the loop is closed, and nobody waits any more
                self._loop.call_soon_threadsafe(self._done, conclude)

    def _done(self, conclude: Callable[[], None]) -> None:
        self._busy -= 1
        if self._waiting:
            job = next(iter(self._waiting))
            del self._waiting[job]
            self._begin(job)
        conclude()


class _Stdout:
    """Standard output, which is standard error for those who run aside."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr if PRINTS_TO_STDERR.get() else self._stream, name)


def redirect_prints() -> None:
    """From now on, whatever runs aside prints to standard error; everybody else does not notice."""
    if not isinstance(sys.stdout, _Stdout):
        sys.stdout = cast("TextIO", _Stdout(sys.stdout))


log = structlog.get_logger(__name__)

EVENTS_MAX = 256
"""Events that may wait on their way from a thread to the loop; the oldest of more are dropped."""

WORDS_LENGTH_MAX = 2_000
"""An exception's text may quote anything; a caller needs its beginning."""

_encode = msgspec.json.Encoder(enc_hook=encoded).encode


SERVING: ContextVar[ref[InFlight] | None] = ContextVar("serving", default=None)
"""The call that a function runs for, where that function is; calls that it makes are made within that one."""


class Runner:
    """Runs the functions of one server, and knows which calls it works on."""

    def __init__(self, server: ServerName, limits: Limits, background: BackgroundTasks, max_calls: int) -> None:
        self.server = server
        self.limits = limits
        self.loop = asyncio.get_running_loop()
        self._background = background
        self._workers = WorkerThreads(str(server), max_calls)
        self._works: set[FunctionRun] = set()

    def start(self, inflight: InFlight, function: Runnable) -> None:
        """Run a function for a call, which it ends."""
        try:
            arguments = function.read(inflight.call.arguments)
        except BadArgument as bad:
            inflight.finish(BadArguments(inflight.call.name, str(bad)))
            return
        work = FunctionRun(self, inflight, function, arguments)
        if function.is_inline:
            inflight.finish(inflight.context.run(work.run_here))
            return
        inflight.carriage = work
        self._works.add(work)
        if function.is_async:
            self._spawn(work)
        else:
            self._workers.run(work.run_in_thread)

    def _spawn(self, work: FunctionRun, rest: Awaitable[Any] | None = None) -> None:
        spawn, name = self._background.spawn, f"function {work.function.name}"
        work.task = work.inflight.context.run(spawn, name, work.run_on_loop(rest))

    def go_on(self, work: FunctionRun, rest: Awaitable[Any]) -> None:
        """Await what a plain function returned, unless nobody waits for it any more."""
        if work in self._works:
            self._spawn(work, rest)
        elif inspect.iscoroutine(rest):
            rest.close()

    def ended(self, work: FunctionRun, outcome: Outcome) -> None:
        """A function is done; its call may have ended before."""
        self._works.discard(work)
        work.inflight.carriage = None
        work.inflight.finish(outcome)

    def may_have_run(self, inflight: InFlight) -> bool:
        """What has not begun is taken back by `withdraw`, before the loop gets to beginning it."""
        work = inflight.carriage
        return not isinstance(work, FunctionRun) or self._has_begun(work)

    def _has_begun(self, work: FunctionRun) -> bool:
        return work.has_begun if work.function.is_async else not self._workers.is_waiting(work.run_in_thread)

    def withdraw(self, inflight: InFlight) -> None:
        """Cancel what runs on the loop, take back what has not begun; a thread goes on."""
        work = inflight.carriage
        if isinstance(work, FunctionRun):
            self._works.discard(work)
            self._workers.take_back(work.run_in_thread)
            if work.task is not None:
                work.task.cancel()

    def close(self, why: str) -> None:
        """Give every call up; threads end when their functions do."""
        works, self._works = self._works, set()
        for work in works:
            has_begun = self._has_begun(work)
            self.withdraw(work.inflight)
            self.ended(work, lost(self.server, why, may_have_left=has_begun))
        self._workers.close()


class FunctionRun:
    """One call of one function."""

    __slots__ = ("_arguments", "_runner", "function", "has_begun", "inflight", "task")

    def __init__(self, runner: Runner, inflight: InFlight, function: Runnable, arguments: dict[str, Any]) -> None:
        self._runner = runner
        self._arguments = arguments
        self.inflight = inflight
        self.function = function
        self.has_begun = False
        self.task: asyncio.Task[None] | None = None

    def run_here(self) -> Outcome:
        """Call a function that neither waits nor computes for long."""
        try:
            return self._outcome_of(self.function.call(self._arguments, self._context(self._emit)))
        except BaseException as error:  # noqa: BLE001 - also `SystemExit`, which would end the loop
            return self._failed(error)

    async def run_on_loop(self, rest: Awaitable[Any] | None = None) -> None:
        """Await the function, or the rest of it; whatever it raises ends only its call, but for our cancellation."""
        self.has_begun = True
        PRINTS_TO_STDERR.set(True)
        SERVING.set(ref(self.inflight))
        try:
            value = self.function.call(self._arguments, self._context(self._emit)) if rest is None else rest
            outcome = self._outcome_of(await value)
        except BaseException as error:  # also `SystemExit`, which would end the loop
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise
            outcome = self._failed(error)
        self._runner.ended(self, outcome)

    def run_in_thread(self) -> Callable[[], None]:
        """Call the function in its caller's context, and return what is to be done on the loop."""
        return self.inflight.context.run(self._run_aside)

    def _run_aside(self) -> Callable[[], None]:
        enter_thread_context()
        SERVING.set(ref(self.inflight))
        try:
            value = self.function.call(self._arguments, self._context(EventOutbox(self._runner.loop, self._emit).put))
            if inspect.isawaitable(value):  # an asynchronous function, behind a decorator that does not say so
                return lambda: self._runner.go_on(self, value)
            outcome = self._outcome_of(value)
        except BaseException as error:  # noqa: BLE001 - a function's failure must not cost the thread
            outcome = self._failed(error)
        return lambda: self._runner.ended(self, outcome)

    def _context(self, emit: Callable[[Event], None]) -> Context:
        call = self.inflight.call
        return Context(call.caller.name, emit, call.session, QuestionSender(self.inflight, self._runner.loop))

    def _emit(self, event: Event) -> None:
        if self.inflight.call.wants_progress or not isinstance(event, Progress):
            self.inflight.emit(event)

    def _outcome_of(self, value: Any) -> Outcome:
        text = value.payload if isinstance(value, Result) else _encode(value)
        if len(memoryview(text)) > self._runner.limits.reply_bytes:
            return BadReply(self._runner.server, f"a result of over {self._runner.limits.reply_bytes} bytes")
        if isinstance(value, Result):
            return value
        return tool_result(text) if isinstance(value, dict) else json_tool_result(text)

    def _failed(self, error: BaseException) -> Outcome:
        log.warning("a function failed", server=self._runner.server, function=self.function.name, exc_info=error)
        return failed_tool_result(f"{type(error).__name__}: {_words_of(error)}".removesuffix(": ")[:WORDS_LENGTH_MAX])


def _words_of(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        # Of what failed in a task group its own text says how many failures there are, and not which.
        parts = (f"{type(part).__name__}: {_words_of(part)}".removesuffix(": ") for part in error.exceptions)
        return f"{error.message}: {'; '.join(parts)}"
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - an exception's own text is code as well
        return ""


class EventOutbox:
    """Takes events from a thread to the loop, in order: however many there are, one wake-up at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, emit: Callable[[Event], None]) -> None:
        self._loop = loop
        self._emit = emit
        self._events: deque[Event] = deque(maxlen=EVENTS_MAX)
        self._is_woken = False

    def put(self, event: Event) -> None:
        """Take one; the oldest that still waits makes room for it."""
        self._events.append(event)
        if not self._is_woken:
            self._is_woken = True
            with suppress(RuntimeError):  # the loop is closed, and nobody listens any more
                self._loop.call_soon_threadsafe(self._empty)

    def _empty(self) -> None:
        self._is_woken = False
        while self._events:
            self._emit(self._events.popleft())
