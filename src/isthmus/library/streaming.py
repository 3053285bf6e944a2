"""One tool on its way through the hub, for somebody who waits on another thread.

`Execution` is the caller's side of a call on the owner's loop; `ChunkStream` and `BlockingChunks` are what the caller
reads on its own side. Made by the service.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from types import TracebackType
from typing import Any, Protocol, TypeAlias, TypeVar

import msgspec

from isthmus.core.calls.hub import Hub
from isthmus.core.calls.inflight import InFlight
from isthmus.library.contracts import ChunkType, ToolResult, ToolStreamChunk
from isthmus.library.crossing import Crossing, ToThread, crossing_here
from isthmus.library.errors import ServiceClosedError
from isthmus.library.owner import Owner
from isthmus.library.questions import Asking
from isthmus.library.tools import Piece, end_of
from isthmus.model.calls import Call
from isthmus.model.events import Event, Progress
from isthmus.model.outcomes import Outcome
from isthmus.model.questions import NOT_ASKED, OnReply, Question, Reply
from isthmus.upstream.runner import SERVING

CHUNKS_MAX = 256
"""Chunks that may wait for a slow reader; of more, the oldest are dropped and counted. The last is never dropped."""

CLOSED = "the caller does not wait any more"

W = TypeVar("W", bound=Crossing[None])


class Execution:
    """The caller's side of one call; everything happens on the owner's loop."""

    __slots__ = ("_asked", "_asking", "_call", "_hub", "_inflight", "_is_over", "_owner", "_sink", "_within")

    def __init__(self, hub: Hub, call: Call, sink: Sink, owner: Owner, asking: Asking | None) -> None:
        self._hub = hub
        self._call = call
        self._sink = sink
        self._owner = owner
        self._asking = asking
        self._within = SERVING.get()  # here, where the caller is
        self._asked: dict[OnReply, Callable[[], None]] = {}
        """What takes back each question that is not answered."""
        self._inflight: InFlight | None = None
        """Until it ends: the two hold each other, and a call that is over must not wait for the garbage collector.

        That took 2 to 3 µs a call, and kept results for a hundred calls more.
        """
        self._is_over = False

    def start(self) -> None:
        """Start the call, unless nobody wants it any more."""
        if self._is_over:
            return
        inflight = self._hub.start(self._call, self, self._within)
        if not self._is_over:
            self._inflight = inflight

    def withdraw(self, why: str = CLOSED) -> None:
        """Nobody waits any more: the server is told to stop."""
        if self._inflight is not None:
            self._inflight.cancel(why)
        self._is_over = True

    def emit(self, event: Event) -> None:
        """See `Exchange`."""
        self._sink.emit(event)

    def ask(self, question: Question, reply: OnReply) -> None:
        """See `Exchange`."""
        if self._asking is None:
            reply(NOT_ASKED)
        else:
            self._asked[reply] = self._asking.put(question, partial(self._post_answer, reply))

    def _post_answer(self, reply: OnReply, answer: Reply) -> None:
        with suppress(ServiceClosedError):
            self._owner.post(self._answer, reply, answer)

    def _answer(self, reply: OnReply, answer: Reply) -> None:
        if self._asked.pop(reply, None) is not None:
            reply(answer)

    def retract(self, asked: OnReply) -> None:
        """See `Retracting`."""
        if (take_back := self._asked.pop(asked, None)) is not None:
            take_back()

    def retract_later(self, asked: OnReply) -> Callable[[], None] | None:
        """See `Retracting`: with the call, nobody is left to answer."""
        self.retract(asked)
        return None

    def end(self, outcome: Outcome) -> None:
        """See `Exchange`."""
        self._is_over, self._inflight = True, None
        asked, self._asked = self._asked, {}
        for take_back in asked.values():
            take_back()
        self._sink.end(outcome)


class Sink(Protocol):
    """Takes what happens to a call, on the owner's loop; never waits."""

    def emit(self, event: Event) -> None:
        """Something happened."""

    def end(self, outcome: Outcome) -> None:
        """It is over."""


class OutcomeOnly:
    """For who wants nothing but the end."""

    __slots__ = ("_crossing",)

    def __init__(self, crossing: Crossing[Outcome]) -> None:
        self._crossing = crossing

    def emit(self, event: Event) -> None:
        """See `Sink`."""

    def end(self, outcome: Outcome) -> None:
        """See `Sink`."""
        self._crossing.give(outcome)


Chunks: TypeAlias = Callable[[], Sequence[ToolStreamChunk]]
"""What happened, to be put into chunks by whoever reads it: a result may be large, and the loop serves others."""


class Mailbox:
    """What was said and is not yet read; said on one thread, read on another, by one reader."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._items: deque[Chunks] = deque()
        self._reader: Crossing[None] | None = None
        self.dropped = 0

    def put(self, item: Chunks) -> None:
        """Say something, and wake the reader."""
        with self._lock:
            self._items.append(item)
            if len(self._items) > CHUNKS_MAX:
                self._items.popleft()
                self.dropped += 1
            reader, self._reader = self._reader, None
        if reader is not None:
            reader.give(None)

    def take(self, waiting: Callable[[], W]) -> Chunks | W:
        """The next item; if there is none, what to wait on before one asks again."""
        with self._lock:
            if self._items:
                return self._items.popleft()
            self._reader = reader = waiting()
            return reader


class Telling:
    """Takes what happens when it happens, and puts it into chunks when it is read."""

    def __init__(self, name: str, mailbox: Mailbox, conclude: Callable[[Outcome], ToolResult]) -> None:
        self._name = name
        self._mailbox = mailbox
        self._conclude = conclude
        self._next = 0
        self._has_pieces = False

    def emit(self, event: Event) -> None:
        """See `Sink`."""
        self._mailbox.put(partial(self._happened, event, datetime.now(UTC)))

    def end(self, outcome: Outcome) -> None:
        """See `Sink`."""
        self._mailbox.put(partial(self._ended, outcome, datetime.now(UTC)))

    def _happened(self, event: Event, at: datetime) -> list[ToolStreamChunk]:
        content = {key: _decoded(raw) for key, raw in event.members.items()}
        if isinstance(event, Piece):
            self._has_pieces = True
            return [self._numbered(ToolStreamChunk(self._name, "data", content["data"], timestamp=at))]
        kind: ChunkType = "progress" if isinstance(event, Progress) else "log"
        return [self._numbered(ToolStreamChunk(self._name, kind, content, timestamp=at))]

    def _ended(self, outcome: Outcome, at: datetime) -> list[ToolStreamChunk]:
        end = end_of(self._conclude(outcome), at)
        # What was given by the piece is not given once more as a whole.
        chunks = [self._numbered(chunk) for chunk in (end[-1:] if self._has_pieces else end)]
        if self._mailbox.dropped:
            chunks[-1].metadata["dropped"] = self._mailbox.dropped
        return chunks

    def _numbered(self, chunk: ToolStreamChunk) -> ToolStreamChunk:
        chunk.sequence_id = self._next
        self._next += 1
        return chunk


def _decoded(raw: msgspec.Raw) -> Any:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.MsgspecError, RecursionError):
        return None


class _Chunks:
    """What both kinds of streams have: a mailbox, and an execution that ends with its reader."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._mailbox = Mailbox()
        self._read: deque[ToolStreamChunk] = deque()
        """Chunks of one happening that were not given yet."""
        self._execution: Execution | None = None
        self._is_over = False
        self._is_read = False

    def _enter(self) -> None:
        """Begin to read.

        Raises:
            ServiceClosedError: the stream is another process's.
            RuntimeError: somebody else waits for its next chunk.
        """
        self._owner.check()
        if self._is_read:
            raise RuntimeError("this stream is being read already: give each reader a stream of its own")
        self._is_read = True

    def _let_go(self) -> None:
        execution, self._execution = self._execution, None
        self._is_over = True
        self._read.clear()
        if execution is not None:
            with suppress(ServiceClosedError):
                self._owner.post(execution.withdraw)

    def _next_read(self) -> ToolStreamChunk:
        chunk = self._read.popleft()
        if chunk.is_final:
            self._execution = None
            self._is_over = True
        return chunk

    def __del__(self) -> None:
        if self._execution is not None:  # `break` leaves an iterator behind that nobody closes
            self._let_go()


class ChunkStream(_Chunks):
    """The chunks of one execution, as they come. Closing it, or leaving it behind, cancels what still runs.

    It begins when it is first asked for a chunk.
    """

    def __init__(self, owner: Owner, begin: Callable[[Mailbox], Awaitable[Execution | None]]) -> None:
        super().__init__(owner)
        self._begin: Callable[[Mailbox], Awaitable[Execution | None]] | None = begin

    def __aiter__(self) -> ChunkStream:
        return self

    async def __anext__(self) -> ToolStreamChunk:
        self._enter()
        try:
            return await self._await_next()
        finally:
            self._is_read = False

    async def _await_next(self) -> ToolStreamChunk:
        begin, self._begin = self._begin, None
        if begin is not None:
            try:
                self._execution = await begin(self._mailbox)
            except BaseException:
                self._is_over = True
                raise
            if self._is_over:  # closed meanwhile
                self._let_go()
        while not self._is_over:
            if self._read:
                return self._next_read()
            try:
                found = self._mailbox.take(crossing_here)
                if callable(found):
                    self._read.extend(found())
                else:
                    await found.wait()
            except BaseException:
                self._let_go()
                raise
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Stop; what still runs is cancelled at its server."""
        self._begin = None
        self._let_go()

    async def __aenter__(self) -> ChunkStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class BlockingChunks(_Chunks):
    """The same for a thread that stands still between them."""

    def __init__(self, owner: Owner, begin: Callable[[Mailbox], Execution | None]) -> None:
        super().__init__(owner)
        self._begin: Callable[[Mailbox], Execution | None] | None = begin

    def __iter__(self) -> BlockingChunks:
        return self

    def __next__(self) -> ToolStreamChunk:
        self._enter()
        try:
            return self._wait_for_next()
        finally:
            self._is_read = False

    def _wait_for_next(self) -> ToolStreamChunk:
        begin, self._begin = self._begin, None
        if begin is not None:
            try:
                self._execution = begin(self._mailbox)
            except BaseException:
                self._is_over = True
                raise
            if self._is_over:  # closed meanwhile
                self._let_go()
        while not self._is_over:
            if self._read:
                return self._next_read()
            try:
                found = self._mailbox.take(ToThread[None])
                if callable(found):
                    self._read.extend(found())
                else:
                    found.wait()
            except BaseException:
                self._let_go()
                raise
        raise StopIteration

    def close(self) -> None:
        """Stop; what still runs is cancelled at its server."""
        self._begin = None
        self._let_go()

    def __enter__(self) -> BlockingChunks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
