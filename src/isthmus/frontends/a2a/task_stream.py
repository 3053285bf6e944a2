"""Listeners of a task: a caller that waits for its end, and a stream that sends every update.

`http` and `grpc` create them.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias
from weakref import WeakValueDictionary

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from isthmus.core.tasks.live_task import LiveTask, Report
from isthmus.core.tasks.record import TaskRecord
from isthmus.frontends.a2a.caller_messages import message_bytes
from isthmus.frontends.a2a.task_view import (
    RESULT,
    agent_says,
    artifacts_of,
    brief_of,
    reported,
    whole_task,
    without_questions,
)
from isthmus.frontends.http.request_cycle import CROWDED_BYTES, STREAM, KeepAlive, Peer
from isthmus.model.callers import Caller
from isthmus.model.tasks import (
    ENDED,
    WAITING,
    Artifact,
    DataPart,
    FilePart,
    Part,
    TaskArtifactUpdate,
    TaskStatus,
    TaskStatusUpdate,
    TextPart,
    Update,
)
from isthmus.wire.a2a.operations import A2aProblem
from isthmus.wire.a2a.streams import UpdateStream
from isthmus.wire.jsonrpc import object_members, render

PIECE_LENGTH = 256 * 1024
"""Characters of one piece: at most 1 MiB on the wire, which every client takes (gRPC's refuse 4 MiB), and few enough
that others are served between two of them. A multiple of 4, because base64 is whole there."""

PIECE = "isthmus/piece"
"""The member of a part's metadata that says which piece it is."""


PartForm: TypeAlias = Callable[[Part], Part]
"""Converts a part for its receiver."""


def unchanged_part(part: Part) -> Part:
    """The same part."""
    return part


class ArtifactChunk(NamedTuple):
    """A piece of an artifact."""

    artifact: Artifact
    is_more: bool
    """It continues the pieces before it."""
    is_complete: bool


def is_long(artifact: Artifact) -> bool:
    """Whether an artifact is more than a piece."""
    return message_bytes(artifact) > PIECE_LENGTH


def artifact_chunks(artifact: Artifact, form: PartForm = unchanged_part) -> Iterator[ArtifactChunk]:
    """The pieces of an artifact in their order, made one at a time."""
    last = len(artifact.parts) - 1
    for position, part in enumerate(map(form, artifact.parts)):
        count = chunk_count(part)
        for number in range(count):
            piece = part if count == 1 else _cut(part, position, number, count)
            is_complete = position == last and number == count - 1
            yield ArtifactChunk(replace(artifact, parts=(piece,)), position + number > 0, is_complete)


def chunk_count(part: Part) -> int:
    """How many pieces a part is sent in."""
    match part:
        case TextPart(text=whole):
            return _count(whole)
        case FilePart(content=str(whole)) if len(whole) % 4 == 0 and not any(map(whole.__contains__, " \r\n")):
            return _count(whole)
        case FilePart() | DataPart():
            return 1


def _count(whole: str) -> int:
    return max(1, -(-len(whole) // PIECE_LENGTH))


def _cut(part: Part, position: int, number: int, count: int) -> Part:
    members = object_members(part.metadata) if part.metadata else None
    piece = msgspec.json.encode({"part": position, "piece": number, "pieces": count})
    metadata = Raw(render({**(members or {}), PIECE: piece}))
    where = slice(number * PIECE_LENGTH, (number + 1) * PIECE_LENGTH)
    if isinstance(part, TextPart):
        return replace(part, text=part.text[where], metadata=metadata)
    assert isinstance(part, FilePart), "JSON is never cut"
    assert part.content is not None, "only bytes are"
    return replace(part, content=part.content[where], metadata=metadata)


SLOW_READER_SECONDS = (0.001, 0.05)
"""How long a stream waits for a slow reader before it checks again: at first, and at most. Each wait doubles."""

CHANGED = A2aProblem("invalid_request", "The caller's identity or permissions have changed; send the request again")


def is_settled(record: TaskRecord) -> bool:
    """Whether the task has ended, or waits for its caller."""
    return record.state in ENDED or record.state in WAITING


def is_terminal(record: TaskRecord) -> bool:
    """Whether the task has ended."""
    return record.is_terminal


def _is_at_rest(record: TaskRecord) -> bool:
    """Whether no call is running, or it waits for an answer that cannot arrive any longer."""
    return is_settled(record) or record.phase != "sent"


IsLast: TypeAlias = Callable[[TaskRecord], bool]

_PLACE = re.compile(r"[0-9]{1,15}\.([0-9]{1,15})")
"""The id of an event: the version of the task, and the number of the last report."""


def number_in(place: str | None) -> int | None:
    """The number of the last report that a caller received, from its `Last-Event-ID`; None without a valid one."""
    found = None if place is None else _PLACE.fullmatch(place)
    return None if found is None else int(found[1])


class _Wait:
    """A wait for a task to settle, which also ends when the caller disconnects."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.over: asyncio.Future[None] = loop.create_future()

    def task_changed(self, record: TaskRecord) -> None:
        """See `core.tasks.live_task.TaskListener`."""
        if is_settled(record):
            self.end()

    def task_reported(self, record: TaskRecord, noted: Report) -> None:
        """Ignored."""

    def left(self) -> None:
        """See `core.tasks.live_task.ShutdownListener`. The caller gets the present state and can ask again."""
        self.end()

    def end(self) -> None:
        """Stop waiting."""
        if not self.over.done():
            self.over.set_result(None)


async def until_settled(live: LiveTask, peer: Peer, seconds: float) -> TaskRecord:
    """Wait until the task has ended or waits for its caller, the time is over, or the caller has disconnected."""
    if live.stored is None or not is_settled(live.stored):
        loop = asyncio.get_running_loop()
        wait = _Wait(loop)
        live.listeners[wait] = None
        peer.on_disconnect(wait.end)
        timer = loop.call_later(seconds, wait.end)
        try:
            await wait.over
        finally:
            timer.cancel()
            del live.listeners[wait]
    return live.stored or live.record


class TaskStream:
    """Sends the updates of a task to one caller, until the state that `is_last` accepts.

    `over` is the last state that was sent; None if the caller disconnected before.
    """

    def __init__(
        self,
        caller: Caller,
        live: LiveTask,
        peer: Peer,
        stream: UpdateStream,
        after: int = 0,
        is_last: IsLast = is_settled,
        *,
        form: PartForm = unchanged_part,
        is_kept_alive: bool = True,
    ) -> None:
        self.caller = caller
        self._live = live
        self._peer = peer
        self._stream = stream
        self._is_last = is_last
        self._form = form
        self._loop = asyncio.get_running_loop()
        self._keep_alive = KeepAlive(peer, self._loop) if is_kept_alive else None
        self._version = 0
        self._number = after
        """Number of the last report that the caller received."""
        self._due: deque[Iterator[Update]] = deque()
        """Updates to send, as fast as the caller reads. They are made when it is their turn, to save memory."""
        self._last: TaskRecord | None = None
        """The final state of the task, once all due updates are sent."""
        self._timer: asyncio.TimerHandle | None = None
        self._pause = SLOW_READER_SECONDS[0]
        self.over: asyncio.Future[TaskRecord | None] = self._loop.create_future()
        self.has_final = False
        """Whether the last event must be a final status update, as clients of 0.3 expect."""
        self.is_for_sender = False
        """Whether a message opened the stream; its sender knows the questions already."""

    def begin(self) -> None:
        """Send the current state, and follow the task."""
        self._peer.begin(200, STREAM)
        self._peer.on_disconnect(self.stop)
        self._live.listeners[self] = None
        record = self._live.stored or self._live.record
        made = _shown(record)
        if record.is_terminal and any(map(is_long, made.task.artifacts)):
            # Some clients cannot read so much at once, and some stop at the end of the task.
            self._send(replace(made.task, status=TaskStatus("working", made.task.created), artifacts=()))
            self._due.append(self._missed_reports(record))
            self.task_changed(record)
            return
        self._version = record.version
        self._send(without_questions(made.task) if self.is_for_sender else made.task)
        if self._is_last(record):
            self._last = record
        # A task may be faster than the stream that its message opened.
        if self._live.reports.after(self._number) or (self.has_final and self._last is not None):
            self._due.append(self._missed(made))
        self._send_due()

    def _missed(self, made: _TaskView) -> Iterator[Update]:
        """Reports that the caller missed, and then the state again if the task is settled."""
        yield from self._missed_reports(made.record)
        if is_settled(made.record):
            yield _status_update(made)

    def _missed_reports(self, record: TaskRecord) -> Iterator[Update]:
        while missed := self._live.reports.after(self._number):
            for noted in missed:
                self._number = noted.number
                yield reported(record, noted)

    def task_changed(self, record: TaskRecord) -> None:
        """See `core.tasks.live_task.TaskListener`."""
        self._due.append(self._changed(record.version, updates_of(record, self._form)))
        if self._is_last(record):
            self._last = record
            self._live.listeners.pop(self, None)
        if self._timer is None:
            self._send_due()

    def _changed(self, version: int, updates: Iterator[Update]) -> Iterator[Update]:
        self._version = version
        yield from updates

    def _send_due(self) -> None:
        """Send due updates; continue later if the caller reads slowly."""
        self._timer = None
        while self._due and not self.over.done():
            if self._peer.buffered_bytes() > CROWDED_BYTES:
                self._timer = self._loop.call_later(self._pause, self._send_due)
                self._pause = min(2 * self._pause, SLOW_READER_SECONDS[1])
                return
            self._pause = SLOW_READER_SECONDS[0]
            if (update := next(self._due[0], None)) is None:
                self._due.popleft()
            else:
                self._send(update)
        if self._last is not None:
            self._end(self._last)

    def task_reported(self, record: TaskRecord, noted: Report) -> None:
        """See `core.tasks.live_task.TaskListener`. A slow reader misses reports, but no changes."""
        if not self._due and self._peer.buffered_bytes() <= CROWDED_BYTES:
            self._number = noted.number
            self._send(reported(record, noted))

    def _send(self, update: Update) -> None:
        if not self.over.done():
            self._peer.push(self._stream.write(update, f"{self._version}.{self._number}"))

    def _end(self, record: TaskRecord) -> None:
        if not self.over.done():
            self._stop(record)
            self._peer.end(b"")

    def wind_up(self) -> None:
        """The hub is shutting down: follow the running call to its end, and then stop."""
        self._is_last = _is_at_rest
        record = self._live.stored or self._live.record
        if _is_at_rest(record):
            self._last = record
            if not self._due:
                self._end(record)

    def cut_off(self) -> None:
        """End the stream with an error, because the caller has lost access."""
        if not self.over.done():
            self._stop(None)
            self._peer.push(self._stream.fail(CHANGED))
            self._peer.end(b"")

    def stop(self) -> None:
        """The caller has disconnected."""
        self._stop(None)

    def _stop(self, last: TaskRecord | None) -> None:
        if self._keep_alive is not None:
            self._keep_alive.stop()
        if self._timer is not None:
            self._timer.cancel()
        self._due.clear()
        self._live.listeners.pop(self, None)
        if not self.over.done():
            self.over.set_result(last)


def updates_of(record: TaskRecord, form: PartForm = unchanged_part) -> Iterator[Update]:
    """The updates of a changed task: its artifacts in chunks, and then its status."""
    return _updates(_shown(record), form)


class _TaskView:
    """The view of a task, shared by all of its streams, because its artifacts may be large."""

    def __init__(self, record: TaskRecord) -> None:
        self.record = record
        self.task = whole_task(record)


_made: WeakValueDictionary[int, _TaskView] = WeakValueDictionary()
"""By the id of the record object, which is valid while the entry exists."""


def _shown(record: TaskRecord) -> _TaskView:
    if (made := _made.get(id(record))) is None:
        made = _made[id(record)] = _TaskView(record)
    return made


def _updates(made: _TaskView, form: PartForm) -> Iterator[Update]:
    record, task = made.record, made.task
    if record.origin == "agentvault":
        for artifact in artifacts_of(record, brief_of(record)):
            yield agent_says(record, RESULT, artifact.parts)
    for artifact in task.artifacts:
        for piece, is_more, is_complete in artifact_chunks(artifact, form):
            yield TaskArtifactUpdate(record.id, record.context, piece, is_more, is_complete, at=record.updated)
    yield _status_update(made)


def _status_update(made: _TaskView) -> TaskStatusUpdate:
    record = made.record
    return TaskStatusUpdate(record.id, record.context, made.task.status, is_settled(record))
