"""Updates of a task as the events of a stream, framed as each binding has it.

JSON-RPC puts every item into the answer to the request; plain HTTP sends items bare; AgentVault has named events, of
which one update may be several. A stream object belongs to one listener. Called by the face.
"""

from __future__ import annotations

from typing import Protocol

from isthmus.model.conversation import Artifact, ArtifactUpdate, Message, StatusUpdate, Task, Update
from isthmus.wire import jsonrpc
from isthmus.wire.a2a import agentvault, v0_1
from isthmus.wire.a2a.operations import Dialect, Problem
from isthmus.wire.a2a.rest import Binding
from isthmus.wire.jsonrpc import Payload, compact
from isthmus.wire.sse import frame


class Stream(Protocol):
    """What one listener is told, as bytes of its `text/event-stream`."""

    def tell(self, update: Update, place: str | None = None) -> bytes:
        """The events of an update; `place` is what its listener says to hear what follows it on another stream."""

    def fail(self, problem: Problem) -> bytes:
        """The last event of a stream that cannot go on."""


def rpc_stream(dialect: Dialect, id: Payload, task: str) -> Stream:
    """The stream that answers the JSON-RPC request of this id, about this task."""
    return VaultStream(task) if dialect is agentvault else RpcStream(dialect, id)


def _data(item: Payload, place: str | None = None) -> bytes:
    """An event without a name: readers that look at nothing but its data exist."""
    head = b"data: " if place is None else b"id: %b\ndata: " % place.encode()
    return b"".join((head, compact(item), b"\n\n"))


class RpcStream:
    """Each item is an answer to the same request."""

    def __init__(self, dialect: Dialect, id: Payload) -> None:
        self._dialect = dialect
        self._id = id

    def tell(self, update: Update, place: str | None = None) -> bytes:
        """The events of an update: one, but for what the first generation has no item for."""
        if self._dialect is v0_1:
            return b"".join(self._event(item) for item in v0_1.unfold(update))  # its readers take each line for data
        return self._event(update, place)

    def _event(self, update: Update, place: str | None = None) -> bytes:
        return _data(jsonrpc.result(self._id, self._dialect.write_update(update)), place)

    def fail(self, problem: Problem) -> bytes:
        """An error as the answer."""
        return _data(jsonrpc.error(self._id, *self._dialect.write_problem(problem)))


class RestStream:
    """Items as they are; an error is an event of that name."""

    def __init__(self, binding: Binding) -> None:
        self._binding = binding

    def tell(self, update: Update, place: str | None = None) -> bytes:
        """The event of an update."""
        return _data(self._binding.dialect.write_update(update), place)

    def fail(self, problem: Problem) -> bytes:
        """The body that the problem would have had alone."""
        _, body = self._binding.write_problem(problem)
        return frame(body, event="error")


class VaultStream:
    """Named events. Whoever subscribes comes late, so a task as a whole is told as all that was said in it.

    What was told once is not told again, however often the task is shown.
    """

    def __init__(self, task: str) -> None:
        self._task = task
        self._at = 0.0
        """When something last happened; events need a time, and messages have none."""
        self._told: set[str] = set()

    def tell(self, update: Update, place: str | None = None) -> bytes:
        """The events of an update, without its place: these clients have no way to say where they are."""
        match update:
            case Task():
                return self._whole(update)
            case Message():
                return self._message(update)
            case StatusUpdate():
                self._at = update.status.at
                return self._spoken(agentvault.spoken(update.status)) + self._status(update)
            case ArtifactUpdate():
                self._at = max(self._at, update.at)
                return self._artifact(update.artifact)

    def _whole(self, task: Task) -> bytes:
        self._at = task.status.at
        said = [self._message(message) for message in agentvault.conversation(task) if message.role == "agent"]
        made = [self._artifact(artifact) for artifact in task.artifacts if f"artifact {artifact.id}" not in self._told]
        return b"".join((*said, *made, self._status(StatusUpdate(task.id, task.context, task.status))))

    def _spoken(self, message: Message | None) -> bytes:
        return b"" if message is None else self._message(message)

    def _message(self, message: Message) -> bytes:
        if message.id and message.id in self._told:
            return b""
        self._told.add(message.id)
        return frame(agentvault.write_message_event(self._task, message, self._at), event="task_message")

    def _artifact(self, artifact: Artifact) -> bytes:
        self._told.add(f"artifact {artifact.id}")
        return frame(agentvault.write_artifact_event(self._task, artifact, self._at), event="task_artifact")

    def _status(self, update: StatusUpdate) -> bytes:
        return frame(agentvault.write_status_event(update.task, update.status), event="task_status")

    def fail(self, problem: Problem) -> bytes:
        """An event that makes its client raise."""
        return frame(agentvault.write_error_event(problem), event="error")
