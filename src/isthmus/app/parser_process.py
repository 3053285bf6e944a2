"""Reads long messages in a process of their own: parsing megabytes at once would block the event loop.

One process serves a hub. It starts with the first long message, which the hub still reads itself, and ends when it is
idle. If it dies, the next process reads its message; a message with which it dies twice, or that takes too long, is
refused. Callers take turns. Without a process, the hub reads long messages itself, in passes (`core.event_loop`).
`RunningHub` owns it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator, Hashable, Mapping
from typing import Any

import structlog

from isthmus.app.parser_worker import HEAD, Frame, FrameHead, Text, frame, is_ready, load, string_passes
from isthmus.app.process_setup import start_worker
from isthmus.core.background import BackgroundTasks
from isthmus.core.event_loop import Job, in_turns
from isthmus.transport.process import ProcessChannel, SpawnFailed

log = structlog.get_logger(__name__)

WORKER = "isthmus.app.parser_worker"

READ_SECONDS = 10.0
"""How long one message may take. Nine megabytes of numbers take 0.1 seconds."""

START_SECONDS = 30.0
"""How long the process may take to start: it loads its modules, perhaps on a busy machine."""

IDLE_SECONDS = 60.0
"""How long the process stays without work."""

RETRY_SECONDS = 60.0
"""How long the hub reads long messages itself after the process could not be started."""

QUEUE_MAX = 256
"""Messages that wait; the hub reads further ones itself. Their bytes count as bytes in flight."""

ATTEMPTS_MAX = 2
"""How many processes may die with one message."""

SLICE_BYTES = 256 * 1024
"""Bytes that are written in one turn of the event loop."""


class _Reading:
    """A job, as it is sent to the process."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.frame = frame(job.work)
        self.attempts = 0


class LongReader:
    """The queue of long messages, and the process that reads them one by one."""

    def __init__(self, background: BackgroundTasks, environment: Mapping[str, str]) -> None:
        self._background = background
        self._environment = environment
        self._loop = asyncio.get_running_loop()
        self._queues: dict[Hashable, deque[_Reading]] = {}
        """By caller, in the order in which they take turns."""
        self._waiting = 0
        self._current: _Reading | None = None
        self._process: ParserProcess | None = None
        """Set once the process is ready."""
        self._task: asyncio.Task[object] | None = None
        self._changed = asyncio.Event()
        self._retry_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def pid(self) -> int | None:
        """The process, while it is ready."""
        return None if self._process is None else self._process.channel.pid

    def offer(self, job: Job) -> bool:
        """Take a job; False if the hub must do it."""
        if self._process is None:
            self._start()
            return False
        if self._waiting >= QUEUE_MAX:
            return False
        try:
            reading = _Reading(job)
        except Exception:
            log.debug("cannot send a job to the process that reads long messages", exc_info=True)
            return False
        self._queues.setdefault(job.owner, deque()).append(reading)
        self._waiting += 1
        self._send_next()
        return True

    # -- the queue -----------------------------------------------------------------------------------------------------

    def _send_next(self) -> None:
        if self._current is not None or not self._queues or self._process is None:
            self._changed.set()
            return
        owner, queue = next(iter(self._queues.items()))
        reading = queue.popleft()
        self._waiting -= 1
        del self._queues[owner]
        if queue:
            self._queues[owner] = queue  # behind all others
        self._current = reading
        reading.attempts += 1
        self._timer = self._loop.call_later(READ_SECONDS, self._took_too_long)
        self._process.send(reading.frame)
        self._changed.set()

    def _take_current(self) -> _Reading | None:
        reading, self._current = self._current, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return reading

    def _answered(self, answer: tuple[bool | None, Any]) -> None:
        reading = self._take_current()
        self._send_next()
        if reading is not None:
            is_done, value = answer
            if is_done:
                reading.job.then(value)
            elif is_done is None:
                log.debug("the process that reads long messages cannot do a job", reason=value)
                reading.job.here()
            else:
                if isinstance(value, str):
                    log.error("the process that reads long messages failed", reason=value)
                reading.job.failed(value)

    def _took_too_long(self) -> None:
        reading = self._take_current()
        process, self._process = self._process, None
        if process is not None:
            log.warning("a message took too long to read", seconds=READ_SECONDS)
            process.channel.kill()
        if reading is not None:
            reading.job.failed(f"it took over {READ_SECONDS:g} seconds to read")

    def _lost(self, why: str) -> None:
        """The process has ended."""
        self._process = None
        reading = self._take_current()
        if reading is not None:
            log.warning("the process that reads long messages ended", reason=why)
            if reading.attempts >= ATTEMPTS_MAX:
                reading.job.failed("the process that read it ended")
            else:
                own = deque([reading, *self._queues.pop(reading.job.owner, ())])
                self._queues = {reading.job.owner: own, **self._queues}
                self._waiting += 1
        self._changed.set()

    # -- the process ---------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        if self._task is None and self._loop.time() >= self._retry_at:
            self._task = self._background.spawn("reader of long messages", self._run())

    async def _run(self) -> None:
        """Keep a process running until it is idle."""
        process = None
        try:
            while True:
                if process is None or process.is_lost:
                    if process is not None and not self._queues:
                        return  # the next long message starts another one
                    process = await ParserProcess.start(self._environment, self._answered, self._lost)
                    self._process = process
                    self._send_next()
                self._changed.clear()
                try:
                    async with asyncio.timeout(IDLE_SECONDS):  # `wait_for` of 3.11 may swallow a cancellation
                        await self._changed.wait()
                except TimeoutError:
                    if self._current is None:
                        return
        except (SpawnFailed, ConnectionError, TimeoutError) as error:
            log.warning("the process that reads long messages cannot start", reason=str(error))
            self._retry_at = self._loop.time() + RETRY_SECONDS
        finally:
            self._task = self._process = None
            self._do_here()
            if process is not None:
                process.channel.kill()
                await process.channel.aclose(0.0)

    def _do_here(self) -> None:
        """Do everything that waits for a process in this one."""
        queues, self._queues, self._waiting = self._queues, {}, 0
        current = self._take_current()
        for queue in ([current] if current else [], *queues.values()):
            for reading in queue:
                reading.job.here()


class ParserProcess:
    """One process; it does one job at a time."""

    channel: ProcessChannel

    def __init__(self, on_answer: Callable[[tuple[bool | None, Any]], None], on_lost: Callable[[str], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_answer = on_answer
        self._on_lost = on_lost
        self._unsent: deque[memoryview] = deque()
        self._is_pumping = False
        self._asked: list[Text | str] = []
        self._read = bytearray()
        self._wanted = HEAD.size
        self._head: FrameHead | None = None
        self._is_ready: asyncio.Future[None] = self._loop.create_future()
        self.is_lost = False

    @classmethod
    async def start(
        cls,
        environment: Mapping[str, str],
        on_answer: Callable[[tuple[bool | None, Any]], None],
        on_lost: Callable[[str], None],
    ) -> ParserProcess:
        """Start a process and wait until it has loaded its modules.

        Raises:
            SpawnFailed: it cannot be started.
            ConnectionError: it ended at once.
            TimeoutError: it takes too long.
        """
        process = cls(on_answer, on_lost)
        process.channel = await start_worker(
            WORKER,
            environment,
            on_bytes=process._received,
            on_lost=process._ended,
            on_drained=process._pump_on,
            over_sockets=True,
        )
        try:
            process.send(frame(is_ready))
            await asyncio.wait_for(process._is_ready, START_SECONDS)
        except BaseException:
            process.channel.kill()
            await process.channel.aclose(0.0)
            raise
        return process

    # -- sending, a slice in each turn of the loop ---------------------------------------------------------------------

    def send(self, request: Frame) -> None:
        """Send a request."""
        self._asked = request.given
        for part in request.parts:
            self._unsent.extend(memoryview(part)[at : at + SLICE_BYTES] for at in range(0, len(part), SLICE_BYTES))
        if not self._is_pumping:
            self._is_pumping = True
            self._pump()

    def _pump(self) -> None:
        if not self._unsent or self.is_lost:
            self._is_pumping = False
            return
        self.channel.write(self._unsent.popleft())
        if not self.channel.is_full:
            self._loop.call_soon(self._pump)

    def _pump_on(self) -> None:
        if self._is_pumping:
            self._pump()

    # -- receiving -----------------------------------------------------------------------------------------------------

    def _received(self, data: bytes) -> None:
        self._read += data
        while len(self._read) >= self._wanted:
            if self._head is None:
                start = bytes(self._read[: HEAD.size])
                whole = HEAD.size + FrameHead.rest_bytes(start)
                if len(self._read) < whole:
                    self._wanted = whole
                    return
                self._head = FrameHead(start, bytes(self._read[HEAD.size : whole]))
                self._wanted = whole + self._head.pickled + sum(self._head.lengths)
            else:
                passes = _answer_passes(self._read, self._head, self._asked)
                self._read, self._head, self._wanted = bytearray(), None, HEAD.size
                in_turns(passes, self._deliver)

    def _deliver(self, answer: tuple[bool | None, Any]) -> None:
        if not self._is_ready.done():
            self._is_ready.set_result(None)
        elif not self.is_lost:
            self._asked = []
            self._on_answer(answer)

    def _ended(self, why: str) -> None:
        self.is_lost = True
        self._unsent.clear()
        if not self._is_ready.done():
            self._is_ready.set_exception(ConnectionError(why))
        else:
            self._on_lost(why)


def _answer_passes(
    read: bytearray, head: FrameHead, asked: list[Text | str]
) -> Generator[None, None, tuple[bool | None, Any]]:
    """Read a response; its long texts in slices."""
    at = HEAD.size + 9 * len(head.lengths)
    view = memoryview(read)
    pickled = bytes(view[at : at + head.pickled])
    at += head.pickled
    texts: list[Text | str] = []
    for length, is_string in zip(head.lengths, head.are_strings, strict=True):
        text = view[at : at + length]
        texts.append((yield from string_passes(text)) if is_string else bytes(text))
        at += length
        yield
    try:
        answer: tuple[bool | None, Any] = load(pickled, texts, asked)
    except Exception as error:  # noqa: BLE001 - for example a foreign class; the hub can do the job itself
        return None, str(error)
    return answer
