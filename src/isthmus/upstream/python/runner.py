"""Runs functions for calls: plain ones in threads, asynchronous ones on the loop.

A function marked as inline runs on the loop without a thread. Asynchronous functions are cancelled with their calls. A
thread cannot be stopped: the call ends, the function continues, and its result is dropped. Threads are daemons, so that
a hanging function does not keep the hub from ending.
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
from isthmus.core.calls.running_call import InFlight
from isthmus.core.event_loop import LONG_BYTES
from isthmus.core.settings import Limits
from isthmus.model.calls import Event, Outcome, Progress, Result
from isthmus.model.fault_table import BadArguments, BadReply
from isthmus.model.names import ServerName
from isthmus.upstream.python.context import Context, QuestionSender
from isthmus.upstream.python.signatures import BadArgument, Runnable, encode_hook
from isthmus.upstream.response_waiters import lost
from isthmus.wire.jsonrpc import render
from isthmus.wire.mcp.forwarded_methods import failed_tool_result, json_tool_result, quoted, tool_result

Job: TypeAlias = Callable[[], Callable[[], None]]
"""Runs in a thread and returns the callback that delivers its result on the loop; it does not raise."""

PRINTS_TO_STDERR: contextvars.ContextVar[bool] = contextvars.ContextVar("aside", default=False)
"""Whether `print` writes to standard error here: standard output may carry a protocol or a command's result."""


def enter_thread_context() -> None:
    """Correct the context variables that a worker thread copied from its caller."""
    PRINTS_TO_STDERR.set(True)
    if (sniffio := sys.modules.get("sniffio")) is not None:
        # The caller may run on Trio, but this thread may run asyncio.
        sniffio.current_async_library_cvar.set(None)


class WorkerThreads:
    """The worker threads of one server, started when they are needed."""

    def __init__(self, name: str, size: int) -> None:
        self._name = name
        self._size = size
        self._loop = asyncio.get_running_loop()
        self._threads = 0
        self._busy = 0
        self._waiting: dict[Job, None] = {}
        self._begun: SimpleQueue[Job | None] = SimpleQueue()

    def run(self, job: Job) -> None:
        """Start the job, or queue it until a thread is free."""
        if self._busy < self._size:
            self._begin(job)
        else:
            self._waiting[job] = None

    def is_waiting(self, job: Job) -> bool:
        """Whether the job has not started."""
        return job in self._waiting

    def take_back(self, job: Job) -> None:
        """Remove the job from the queue, if it has not started."""
        self._waiting.pop(job, None)

    def close(self) -> None:
        """Drop the queue, and let each thread end after its current job."""
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
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._done, conclude)

    def _done(self, conclude: Callable[[], None]) -> None:
        self._busy -= 1
        if self._waiting:
            job = next(iter(self._waiting))
            del self._waiting[job]
            self._begin(job)
        conclude()


class _Stdout:
    """Standard output, except where `PRINTS_TO_STDERR` is set."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr if PRINTS_TO_STDERR.get() else self._stream, name)


def redirect_prints() -> None:
    """From now on, `print` writes to standard error wherever `PRINTS_TO_STDERR` is set."""
    if not isinstance(sys.stdout, _Stdout):
        sys.stdout = cast("TextIO", _Stdout(sys.stdout))


log = structlog.get_logger(__name__)

EVENTS_MAX = 256
"""Most events queued between a thread and the loop; the oldest are dropped."""

TEXT_LENGTH_MAX = 2_000
"""Characters of an exception's text that a caller gets; the text may quote whole documents."""

_encode = msgspec.json.Encoder(enc_hook=encode_hook).encode


SERVING: ContextVar[ref[InFlight] | None] = ContextVar("serving", default=None)
"""In a running function: the call that it runs for. Calls that the function makes are nested in that one."""


class Runner:
    """Runs the functions of one server."""

    def __init__(self, server: ServerName, limits: Limits, background: BackgroundTasks, max_calls: int) -> None:
        self.server = server
        self.limits = limits
        self.loop = asyncio.get_running_loop()
        self._background = background
        self._workers = WorkerThreads(str(server), max_calls)
        self._runs: set[FunctionRun] = set()

    def start(self, inflight: InFlight, function: Runnable) -> None:
        """Run a function for a call, and end the call with its result."""
        try:
            arguments = function.read(inflight.call.arguments)
        except BadArgument as bad:
            inflight.finish(BadArguments(inflight.call.name, str(bad)))
            return
        run = FunctionRun(self, inflight, function, arguments)
        if function.is_inline:
            inflight.finish(inflight.context.run(run.run_here))
            return
        inflight.carriage = run
        self._runs.add(run)
        if function.is_async:
            self._spawn(run)
        else:
            self._workers.run(run.run_in_thread)

    def _spawn(self, run: FunctionRun, rest: Awaitable[Any] | None = None) -> None:
        spawn, name = self._background.spawn, f"function {run.function.name}"
        run.task = run.inflight.context.run(spawn, name, run.run_on_loop(rest))

    def go_on(self, run: FunctionRun, rest: Awaitable[Any]) -> None:
        """Await the awaitable that a plain function returned, unless its call has ended."""
        if run in self._runs:
            self._spawn(run, rest)
        elif inspect.iscoroutine(rest):
            rest.close()

    def function_returned(self, run: FunctionRun, outcome: Outcome) -> None:
        """A function has returned; its call may have ended before."""
        self._runs.discard(run)
        run.inflight.carriage = None
        run.inflight.finish(outcome)

    def may_have_run(self, inflight: InFlight) -> bool:
        """Whether the function has started; otherwise `withdraw` prevents it."""
        run = inflight.carriage
        return not isinstance(run, FunctionRun) or self._has_begun(run)

    def _has_begun(self, run: FunctionRun) -> bool:
        return run.has_begun if run.function.is_async else not self._workers.is_waiting(run.run_in_thread)

    def withdraw(self, inflight: InFlight) -> None:
        """Cancel the function's task, or remove it from the queue; a running thread continues."""
        run = inflight.carriage
        if isinstance(run, FunctionRun):
            self._runs.discard(run)
            self._workers.take_back(run.run_in_thread)
            if run.task is not None:
                run.task.cancel()

    def close(self, why: str) -> None:
        """End all calls; threads end when their functions return."""
        runs, self._runs = self._runs, set()
        for run in runs:
            has_begun = self._has_begun(run)
            self.withdraw(run.inflight)
            self.function_returned(run, lost(self.server, why, may_have_left=has_begun))
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
        """Call an inline function on the loop."""
        try:
            return self._outcome_of(self.function.call(self._arguments, self._context(self._emit)))
        except BaseException as error:  # noqa: BLE001 - also `SystemExit`, which would end the loop
            return self._failed(error)

    async def run_on_loop(self, rest: Awaitable[Any] | None = None) -> None:
        """Await the function, or `rest`. An exception ends only its call, except our own cancellation."""
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
        self._runner.function_returned(self, outcome)

    def run_in_thread(self) -> Callable[[], None]:
        """Call the function in its caller's context, and return the callback for the loop."""
        return self.inflight.context.run(self._run_in_context)

    def _run_in_context(self) -> Callable[[], None]:
        enter_thread_context()
        SERVING.set(ref(self.inflight))
        try:
            value = self.function.call(self._arguments, self._context(EventOutbox(self._runner.loop, self._emit).put))
            if inspect.isawaitable(value):  # an asynchronous function, behind a decorator that does not say so
                return lambda: self._runner.go_on(self, value)
            outcome = self._outcome_of(value)
        except BaseException as error:  # noqa: BLE001 - a function's failure must not cost the thread
            outcome = self._failed(error)
        return lambda: self._runner.function_returned(self, outcome)

    def _context(self, emit: Callable[[Event], None]) -> Context:
        call = self.inflight.call
        return Context(call.caller.name, emit, call.session, QuestionSender(self.inflight, self._runner.loop))

    def _emit(self, event: Event) -> None:
        if self.inflight.call.wants_progress or not isinstance(event, Progress):
            self.inflight.emit(event)

    def _outcome_of(self, value: Any) -> Outcome:
        text = value.payload if isinstance(value, Result) else _written(value)
        if len(memoryview(text)) > self._runner.limits.reply_bytes:
            return BadReply(self._runner.server, f"a result of over {self._runner.limits.reply_bytes} bytes")
        if isinstance(value, Result):
            return value
        if isinstance(value, dict) and "content" in value:
            return tool_result(text)
        return json_tool_result(text, is_error=isinstance(value, dict) and value.get("isError") is True)

    def _failed(self, error: BaseException) -> Outcome:
        log.warning("a function failed", server=self._runner.server, function=self.function.name, exc_info=error)
        return failed_tool_result(f"{type(error).__name__}: {_text_of(error)}".removesuffix(": ")[:TEXT_LENGTH_MAX])


def _written(value: Any) -> bytes:
    """A value as JSON. Long texts, also those of an object, are written in pieces, between which others may run."""
    if type(value) is str and len(value) > LONG_BYTES:
        return b"".join(quoted(value))
    if (
        type(value) is dict
        and any(type(each) is str and len(each) > LONG_BYTES for each in value.values())
        and all(type(key) is str for key in value)
    ):
        return render({key: _written(each) for key, each in value.items()})
    return _encode(value)


def _text_of(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        # The text of a group says only how many exceptions it has.
        parts = (f"{type(part).__name__}: {_text_of(part)}".removesuffix(": ") for part in error.exceptions)
        return f"{error.message}: {'; '.join(parts)}"
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - `__str__` of an exception may fail too
        return ""


class EventOutbox:
    """Sends events from a thread to the loop in order; many events share one wake-up."""

    def __init__(self, loop: asyncio.AbstractEventLoop, emit: Callable[[Event], None]) -> None:
        self._loop = loop
        self._emit = emit
        self._events: deque[Event] = deque(maxlen=EVENTS_MAX)
        self._is_woken = False

    def put(self, event: Event) -> None:
        """Queue an event; a full queue drops its oldest."""
        self._events.append(event)
        if not self._is_woken:
            self._is_woken = True
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._empty)

    def _empty(self) -> None:
        self._is_woken = False
        while self._events:
            self._emit(self._events.popleft())
