"""Updates of a task as server-sent events, in the form of each binding.

JSON-RPC wraps every event in a response to the request; plain HTTP sends events bare; AgentVault has named events, and
one update may be several of them. A stream object belongs to one listener. Called by the A2A frontend.
"""

from __future__ import annotations

from typing import Protocol

from isthmus.model.tasks import Artifact, Message, Task, TaskArtifactUpdate, TaskStatusUpdate, Update
from isthmus.wire import jsonrpc
from isthmus.wire.a2a import agentvault, v0_1
from isthmus.wire.a2a.operations import A2aProblem
from isthmus.wire.a2a.rest import Binding
from isthmus.wire.a2a.v1_0 import Dialect
from isthmus.wire.jsonrpc import Payload, compact
from isthmus.wire.sse import frame


class UpdateStream(Protocol):
    """Writes the events for one listener, as bytes of its `text/event-stream`."""

    def write(self, update: Update, event_id: str | None = None) -> bytes:
        """The events of an update. The listener sends `event_id` as `Last-Event-ID` to resume."""

    def fail(self, problem: A2aProblem) -> bytes:
        """The last event of a stream that ends with an error."""


def rpc_stream(dialect: Dialect, id: Payload, task: str) -> UpdateStream:
    """The stream that answers the JSON-RPC request with this id, about this task."""
    return AgentVaultStream(task) if dialect is agentvault.DIALECT else RpcStream(dialect, id)


def _event(data: Payload, event_id: str | None = None) -> bytes:
    """An event without a name, because some readers look only at the data."""
    head = b"data: " if event_id is None else b"id: %b\ndata: " % event_id.encode()
    return b"".join((head, compact(data), b"\n\n"))


class RpcStream:
    """Each event is a response to the same request."""

    def __init__(self, dialect: Dialect, id: Payload) -> None:
        self._dialect = dialect
        self._id = id

    def write(self, update: Update, event_id: str | None = None) -> bytes:
        """One event, except that 0.1 has no event for a whole task."""
        if self._dialect is v0_1.DIALECT:
            # Without event ids: readers of 0.1 take each line for data.
            return b"".join(self._response(part, None) for part in v0_1.split_task(update))
        return self._response(update, event_id)

    def _response(self, update: Update, event_id: str | None) -> bytes:
        return _event(jsonrpc.result(self._id, self._dialect.write_update(update)), event_id)

    def fail(self, problem: A2aProblem) -> bytes:
        """An error response."""
        return _event(jsonrpc.error(self._id, *self._dialect.write_problem(problem)))


class RestStream:
    """Bare events; an error is an event named `error`."""

    def __init__(self, binding: Binding) -> None:
        self._binding = binding

    def write(self, update: Update, event_id: str | None = None) -> bytes:
        """The event of an update."""
        return _event(self._binding.dialect.write_update(update), event_id)

    def fail(self, problem: A2aProblem) -> bytes:
        """The same body as an error response."""
        _, body = self._binding.write_problem(problem)
        return frame(body, event="error")


class AgentVaultStream:
    """Named events. Clients subscribe late, so the first event of a task is followed by all of its messages.

    A message is written only once, however often the task is.
    """

    def __init__(self, task: str) -> None:
        self._task = task
        self._at = 0.0
        """The time of the last update. Events need a time, and messages have none."""
        self._written: set[str] = set()

    def write(self, update: Update, event_id: str | None = None) -> bytes:
        """The events of an update, without the event id: these clients cannot resume."""
        match update:
            case Task():
                self._at = update.status.at
                messages = [each for each in agentvault.conversation(update) if each.role == "agent"]
                artifacts = [each for each in update.artifacts if f"artifact {each.id}" not in self._written]
                return b"".join(
                    (
                        *(self._message(message) for message in messages),
                        *(self._artifact(artifact) for artifact in artifacts),
                        self._status(TaskStatusUpdate(update.id, update.context, update.status)),
                    )
                )
            case Message():
                return self._message(update)
            case TaskStatusUpdate():
                self._at = update.status.at
                spoken = agentvault.spoken(update.status)
                return (b"" if spoken is None else self._message(spoken)) + self._status(update)
            case TaskArtifactUpdate():
                self._at = max(self._at, update.at)
                return self._artifact(update.artifact)

    def _message(self, message: Message) -> bytes:
        if message.id and message.id in self._written:
            return b""
        self._written.add(message.id)
        return frame(agentvault.write_message_event(self._task, message, self._at), event="task_message")

    def _artifact(self, artifact: Artifact) -> bytes:
        self._written.add(f"artifact {artifact.id}")
        return frame(agentvault.write_artifact_event(self._task, artifact, self._at), event="task_artifact")

    def _status(self, update: TaskStatusUpdate) -> bytes:
        return frame(agentvault.write_status_event(update.task, update.status), event="task_status")

    def fail(self, problem: A2aProblem) -> bytes:
        """An event that makes the client raise."""
        return frame(agentvault.write_error_event(problem), event="error")
