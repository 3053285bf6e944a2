"""The caller's side of one tool call, and the streams of chunks that a program reads.

`Execution` runs on the hub's loop; `ChunkStream` and `BlockingChunks` are read on the caller's side. Made by the
service.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, Protocol, TypeAlias, TypeVar

import msgspec

from isthmus.core.calls.hub import Hub
from isthmus.core.calls.running_call import InFlight
from isthmus.library.errors import ServiceClosedError
from isthmus.library.loop_thread import LoopThread, Promise, ThreadPromise, new_promise
from isthmus.library.own_tools import PartialOutput, final_chunks
from isthmus.library.public_types import ChunkType, ToolResult, ToolStreamChunk
from isthmus.library.questions import QuestionRunner
from isthmus.model.calls import NOT_ASKED, Call, Event, OnReply, Outcome, Progress, Question, Reply
from isthmus.upstream.python.runner import SERVING

CHUNKS_MAX = 256
"""Chunks kept for a slow reader. Beyond it the oldest are dropped and counted; the last chunk is never dropped."""

CLOSED = "the caller no longer waits"

P = TypeVar("P", bound=Promise[None])


class Execution:
    """The caller's side of one call, on the hub's loop."""

    __slots__ = (
        "_call",
        "_cancels",
        "_enclosing",
        "_hub",
        "_inflight",
        "_is_finished",
        "_loop_thread",
        "_questions",
        "_sink",
    )

    def __init__(
        self, hub: Hub, call: Call, sink: CallSink, loop_thread: LoopThread, questions: QuestionRunner | None
    ) -> None:
        self._hub = hub
        self._call = call
        self._sink = sink
        self._loop_thread = loop_thread
        self._questions = questions
        self._enclosing = SERVING.get()  # read here, in the caller's context
        self._cancels: dict[OnReply, Callable[[], None]] = {}
        """For each open question, the function that cancels it."""
        self._inflight: InFlight | None = None
        """Cleared at the end, because both objects refer to each other: leaving that to the garbage collector took 2 to
        3 µs per call, and kept the results of a hundred calls."""
        self._is_finished = False

    def start(self) -> None:
        """Start the call, unless it was cancelled before."""
        if self._is_finished:
            return
        inflight = self._hub.start(self._call, self, self._enclosing)
        if not self._is_finished:
            self._inflight = inflight

    def cancel(self, why: str = CLOSED) -> None:
        """Cancel the call at its server."""
        if self._inflight is not None:
            self._inflight.cancel(why)
        self._is_finished = True

    def emit(self, event: Event) -> None:
        """The server reported something; the call continues."""
        self._sink.emit(event)

    def ask(self, question: Question, reply: OnReply) -> None:
        """The server sends a request to the caller; `reply` is called once, now or later, with the response."""
        if self._questions is None:
            reply(NOT_ASKED)
            return

        def deliver(answer: Reply) -> None:
            if self._cancels.pop(reply, None) is not None:
                reply(answer)

        def on_replied(answer: Reply) -> None:
            with suppress(ServiceClosedError):
                self._loop_thread.post(deliver, answer)

        self._cancels[reply] = self._questions.ask(question, on_replied)

    def retract(self, asked: OnReply) -> None:
        """The server withdrew a question: cancel its handler."""
        if (cancel := self._cancels.pop(asked, None)) is not None:
            cancel()

    def retract_later(self, asked: OnReply) -> Callable[[], None] | None:
        """Withdraw a question now: here it cannot outlast its call."""
        self.retract(asked)
        return None

    def end(self, outcome: Outcome) -> None:
        """The call has ended; called exactly once, and nothing follows."""
        self._is_finished, self._inflight = True, None
        cancels, self._cancels = self._cancels, {}
        for cancel in cancels.values():
            cancel()
        self._sink.end(outcome)


class CallSink(Protocol):
    """Receives the events and the outcome of a call on the hub's loop; never waits."""

    def emit(self, event: Event) -> None:
        """Receive an event."""

    def end(self, outcome: Outcome) -> None:
        """Receive the outcome."""


class OutcomeSink:
    """Forwards the outcome and drops all events."""

    __slots__ = ("_promise",)

    def __init__(self, promise: Promise[Outcome]) -> None:
        self._promise = promise

    def emit(self, event: Event) -> None:
        """Receive an event."""

    def end(self, outcome: Outcome) -> None:
        """Receive the outcome."""
        self._promise.set_result(outcome)


MakeChunks: TypeAlias = Callable[[], Sequence[ToolStreamChunk]]
"""Makes the chunks of one event. Called by the reader: a result may be large, and the hub's loop serves others."""


class ChunkBuffer:
    """Chunks that are not read yet: written on the hub's loop, read by one reader on its own thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._items: deque[MakeChunks] = deque()
        self._reader: Promise[None] | None = None
        self.dropped = 0

    def put(self, item: MakeChunks) -> None:
        """Add an item and wake the reader."""
        with self._lock:
            self._items.append(item)
            if len(self._items) > CHUNKS_MAX:
                self._items.popleft()
                self.dropped += 1
            reader, self._reader = self._reader, None
        if reader is not None:
            reader.set_result(None)

    def get(self, make_promise: Callable[[], P]) -> MakeChunks | P:
        """Return the next item, or a promise to wait for before the next `get`."""
        with self._lock:
            if self._items:
                return self._items.popleft()
            self._reader = reader = make_promise()
            return reader


class ChunkSink:
    """Turns events and the outcome into numbered chunks."""

    def __init__(self, name: str, buffer: ChunkBuffer, make_result: Callable[[Outcome], ToolResult]) -> None:
        self._name = name
        self._buffer = buffer
        self._make_result = make_result
        self._next = 0
        self._has_partial_output = False

    def emit(self, event: Event) -> None:
        """Receive an event."""
        self._buffer.put(partial(self._event_chunks, event, datetime.now(UTC)))

    def end(self, outcome: Outcome) -> None:
        """Receive the outcome."""
        self._buffer.put(partial(self._last_chunks, outcome, datetime.now(UTC)))

    def _event_chunks(self, event: Event, at: datetime) -> list[ToolStreamChunk]:
        content: dict[str, Any] = {}
        for key, raw in event.members.items():
            try:
                content[key] = msgspec.json.decode(raw)
            except (msgspec.MsgspecError, RecursionError):
                content[key] = None
        if isinstance(event, PartialOutput):
            self._has_partial_output = True
            return [self._numbered(ToolStreamChunk(self._name, "data", content["data"], timestamp=at))]
        kind: ChunkType = "progress" if isinstance(event, Progress) else "log"
        return [self._numbered(ToolStreamChunk(self._name, kind, content, timestamp=at))]

    def _last_chunks(self, outcome: Outcome, at: datetime) -> list[ToolStreamChunk]:
        last = final_chunks(self._make_result(outcome), at)
        # Output that was sent in parts is not sent again as a whole.
        chunks = [self._numbered(chunk) for chunk in (last[-1:] if self._has_partial_output else last)]
        if self._buffer.dropped:
            chunks[-1].metadata["dropped"] = self._buffer.dropped
        return chunks

    def _numbered(self, chunk: ToolStreamChunk) -> ToolStreamChunk:
        chunk.sequence_id = self._next
        self._next += 1
        return chunk


class _ChunkReader:
    """What both streams share: a buffer, and an execution that ends with its reader."""

    def __init__(self, loop_thread: LoopThread) -> None:
        self._loop_thread = loop_thread
        self._buffer = ChunkBuffer()
        self._ready: deque[ToolStreamChunk] = deque()
        """Chunks of one event that are not returned yet."""
        self._execution: Execution | None = None
        self._is_finished = False
        self._is_reading = False

    def _begin_read(self) -> None:
        """Start to read one chunk.

        Raises:
            ServiceClosedError: the stream belongs to another process.
            RuntimeError: another reader waits for the next chunk.
        """
        self._loop_thread.check_process()
        if self._is_reading:
            raise RuntimeError("This stream already has a reader: give each reader a stream of its own.")
        self._is_reading = True

    def _cancel(self) -> None:
        execution, self._execution = self._execution, None
        self._is_finished = True
        self._ready.clear()
        if execution is not None:
            with suppress(ServiceClosedError):
                self._loop_thread.post(execution.cancel)

    def _begin(self, execution: Execution | None) -> None:
        self._execution = execution
        if self._is_finished:  # closed meanwhile
            self._cancel()

    def _poll(self, make_promise: Callable[[], P]) -> ToolStreamChunk | P | None:
        """The next chunk, a promise to wait for before the next `_poll`, or None at the end."""
        while not self._is_finished and not self._ready:
            try:
                found = self._buffer.get(make_promise)
                if not callable(found):
                    return found
                self._ready.extend(found())
            except BaseException:
                self._cancel()
                raise
        if self._is_finished:
            return None
        chunk = self._ready.popleft()
        if chunk.is_final:
            self._execution = None
            self._is_finished = True
        return chunk

    def __del__(self) -> None:
        if self._execution is not None:  # `break` leaves an iterator unclosed
            self._cancel()


class ChunkStream(_ChunkReader):
    """The chunks of one execution. The execution starts with the first read.

    Closing the stream, or dropping it, cancels the call.
    """

    def __init__(self, loop_thread: LoopThread, start: Callable[[ChunkBuffer], Awaitable[Execution | None]]) -> None:
        super().__init__(loop_thread)
        self._start: Callable[[ChunkBuffer], Awaitable[Execution | None]] | None = start

    def __aiter__(self) -> ChunkStream:
        return self

    async def __anext__(self) -> ToolStreamChunk:
        self._begin_read()
        try:
            return await self._next()
        finally:
            self._is_reading = False

    async def _next(self) -> ToolStreamChunk:
        start, self._start = self._start, None
        if start is not None:
            try:
                self._begin(await start(self._buffer))
            except BaseException:
                self._is_finished = True
                raise
        while (found := self._poll(new_promise)) is not None:
            if isinstance(found, ToolStreamChunk):
                return found
            try:
                await found.wait()
            except BaseException:
                self._cancel()
                raise
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Stop reading; a running call is cancelled at its server."""
        self._start = None
        self._cancel()

    async def __aenter__(self) -> ChunkStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class BlockingChunks(_ChunkReader):
    """`ChunkStream` for a thread that blocks until the next chunk."""

    def __init__(self, loop_thread: LoopThread, start: Callable[[ChunkBuffer], Execution | None]) -> None:
        super().__init__(loop_thread)
        self._start: Callable[[ChunkBuffer], Execution | None] | None = start

    def __iter__(self) -> BlockingChunks:
        return self

    def __next__(self) -> ToolStreamChunk:
        self._begin_read()
        try:
            return self._next()
        finally:
            self._is_reading = False

    def _next(self) -> ToolStreamChunk:
        start, self._start = self._start, None
        if start is not None:
            try:
                self._begin(start(self._buffer))
            except BaseException:
                self._is_finished = True
                raise
        while (found := self._poll(ThreadPromise[None])) is not None:
            if isinstance(found, ToolStreamChunk):
                return found
            try:
                found.wait()
            except BaseException:
                self._cancel()
                raise
        raise StopIteration

    def close(self) -> None:
        """Stop reading; a running call is cancelled at its server."""
        self._start = None
        self._cancel()

    def __enter__(self) -> BlockingChunks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
