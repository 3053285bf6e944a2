"""Validates arguments in a worker process, for calls whose check would hold the event loop.

One process serves a hub. It starts when it is first needed and ends when it is idle. It has two seconds for a check;
then the call is refused, the process is replaced, and further expensive calls of that tool are refused for a minute.
The queue is bounded, and so is each caller's part of it. `RunningHub` owns it; the stages of a call use it.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NamedTuple

import msgspec
import structlog

from isthmus.app.process_setup import start_worker
from isthmus.core.background import BackgroundTasks
from isthmus.core.calls.running_call import InFlight
from isthmus.core.catalog.argument_validation import EXPENSIVE
from isthmus.model.callers import Caller
from isthmus.model.fault_table import BadArguments, Overloaded
from isthmus.transport.process import ProcessChannel, SpawnFailed

log = structlog.get_logger(__name__)

WORKER = "isthmus.core.catalog.validation_worker"

CHECK_SECONDS = 2.0
"""How long one check may take; large arguments of real tools take milliseconds."""

START_SECONDS = 10.0
"""How long the process may take to start: it loads its modules, perhaps on a busy machine."""

REFUSE_SECONDS = 60.0
"""How long a tool's expensive calls are refused after one of them took too long."""

REFUSED_MAX = 1_000
"""How many such tools are remembered."""

IDLE_SECONDS = 30.0
"""How long the process stays without work."""

QUEUE_MAX = 64
CALLER_MAX = 8
"""Calls that wait, in all and of one caller."""


class _Waiting(NamedTuple):
    inflight: InFlight
    then: Callable[[InFlight], None]


class ValidationWorker:
    """The queue of calls to check, and the process that checks them one by one."""

    def __init__(self, background: BackgroundTasks, environment: Mapping[str, str]) -> None:
        self._background = background
        self._environment = environment
        self._queue: deque[_Waiting] = deque()
        self._of_caller: Counter[Caller] = Counter()
        self._refused: dict[bytes, float] = {}
        """When the expensive calls of a tool are checked again, by the tool's digest."""
        self._arrived = asyncio.Event()
        self._task: asyncio.Task[object] | None = None
        self._process: ValidatorProcess | None = None

    def validate(self, inflight: InFlight, then: Callable[[InFlight], None]) -> None:
        """Check a call's arguments and go on with it, or end it."""
        tool = inflight.target.own or inflight.target.feature
        if self._refused.get(tool.digest, 0.0) > asyncio.get_running_loop().time():
            inflight.finish(BadArguments(inflight.call.name, EXPENSIVE))
            return
        caller = inflight.call.caller
        if len(self._queue) >= QUEUE_MAX or self._of_caller[caller] >= CALLER_MAX:
            why = "they wait until their arguments are checked, which is expensive"
            inflight.finish(Overloaded(tool.server, 0, len(self._queue), why))
            return
        self._of_caller[caller] += 1
        self._queue.append(_Waiting(inflight, then))
        self._arrived.set()
        if self._task is None:
            self._task = self._background.spawn("validation of expensive arguments", self._work())

    async def _work(self) -> None:
        try:
            while await self._wait_for_call():
                waiting = self._queue.popleft()
                caller = waiting.inflight.call.caller
                try:
                    if not waiting.inflight.is_done:
                        await self._check(waiting)
                finally:
                    self._of_caller[caller] -= 1
                    if not self._of_caller[caller]:
                        del self._of_caller[caller]
        finally:
            self._task = None
            await self._end_process()

    async def _wait_for_call(self) -> bool:
        """Wait for a call to check; False if none has come for `IDLE_SECONDS`."""
        if not self._queue:
            self._arrived.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(IDLE_SECONDS):  # not `wait_for`: on 3.11 it can swallow a cancellation
                    await self._arrived.wait()
        return bool(self._queue)

    async def _check(self, waiting: _Waiting) -> None:
        inflight = waiting.inflight
        tool = inflight.target.own or inflight.target.feature
        schema = bytes(tool.definition.get("inputSchema", b"true"))
        try:
            wrong = await self._validate(schema, bytes(inflight.call.arguments))
        except TimeoutError:
            log.warning("arguments took too long to validate", server=tool.server, tool=tool.name)
            now = asyncio.get_running_loop().time()
            if len(self._refused) >= REFUSED_MAX:
                self._refused = {key: until for key, until in self._refused.items() if until > now}
            if len(self._refused) < REFUSED_MAX:
                self._refused[tool.digest] = now + REFUSE_SECONDS
            wrong = EXPENSIVE
        except (SpawnFailed, ConnectionError) as error:
            log.warning("the process that validates arguments cannot start", reason=str(error))
            wrong = EXPENSIVE
        if wrong is not None:
            inflight.finish(BadArguments(inflight.call.name, wrong))
        elif not inflight.is_done:
            waiting.then(inflight)

    async def _validate(self, schema: bytes, arguments: bytes) -> str | None:
        """The error in the arguments, or None.

        Raises:
            TimeoutError: it took too long.
            SpawnFailed: the process cannot be started.
            ConnectionError: the process ended.
        """
        try:
            if self._process is None:
                self._process = await ValidatorProcess.start(self._environment)
                async with asyncio.timeout(START_SECONDS):
                    await self._process.validate(b"true", b"{}")
            async with asyncio.timeout(CHECK_SECONDS):
                return await self._process.validate(schema, arguments)
        except BaseException:
            await self._end_process(at_once=True)
            raise

    async def _end_process(self, *, at_once: bool = False) -> None:
        process, self._process = self._process, None
        if process is not None:
            if at_once:
                process.channel.kill()
            await process.channel.aclose()


class ValidatorProcess:
    """One worker process; it does one check at a time."""

    channel: ProcessChannel

    def __init__(self) -> None:
        self._answer: asyncio.Future[bytes] | None = None
        self._read = bytearray()
        self._lost: str | None = None

    @classmethod
    async def start(cls, environment: Mapping[str, str]) -> ValidatorProcess:
        """Start a process.

        Raises:
            SpawnFailed: it cannot be started.
        """
        process = cls()
        process.channel = await start_worker(
            WORKER,
            environment,
            on_bytes=process._received,
            on_lost=process._ended,
        )
        return process

    async def validate(self, schema: bytes, arguments: bytes) -> str | None:
        """Have arguments checked.

        Raises:
            ConnectionError: the process ended.
        """
        if self._lost is not None:
            raise ConnectionError(self._lost)
        self._answer = asyncio.get_running_loop().create_future()
        lengths = msgspec.json.encode({"schema": len(schema), "arguments": len(arguments)})
        self.channel.write(b"".join((lengths, b"\n", schema, arguments)))
        return msgspec.json.decode(await self._answer, type=str | None)

    def _received(self, data: bytes) -> None:
        self._read += data
        if self._read.endswith(b"\n") and self._answer is not None and not self._answer.done():
            self._answer.set_result(bytes(self._read))
            self._read.clear()

    def _ended(self, why: str) -> None:
        self._lost = why
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionError(why))
