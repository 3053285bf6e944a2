"""The operations of A2A, their results and their problems, independent of the generation.

Each dialect (`v1_0`, `v0_3`, `v0_3_rest`, `v0_1`, `agentvault`) reads its requests into these and writes their results.
"""

from __future__ import annotations

from typing import Literal, Protocol, TypeAlias

import msgspec
from msgspec import Raw

from isthmus.model.tasks import ABSENT, Message, Task, TaskState, Update
from isthmus.wire.jsonrpc import Payload

DialectName: TypeAlias = Literal["1.0", "0.3", "0.1", "agentvault"]


class PushConfig(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where push notifications of a task go, and how the hub authenticates itself there."""

    url: str
    id: str = ""
    token: str | None = None
    scheme: str | None = None
    credentials: str | None = None


class SendMessage(msgspec.Struct, frozen=True):
    """Send a message: it begins a task, or continues one."""

    message: Message
    task: str | None = None
    """The task to continue. In 0.1 also the task to begin, because callers choose its id."""
    context: str | None = None
    waits: bool = True
    """The response may wait for the work; otherwise it is sent as soon as the task is stored."""
    is_stream: bool = False
    history_length: int | None = None
    output_modes: tuple[str, ...] = ()
    push: PushConfig | None = None
    metadata: Raw = ABSENT


class GetTask(msgspec.Struct, frozen=True):
    """Get a task."""

    task: str
    history_length: int | None = None


class ListTasks(msgspec.Struct, frozen=True):
    """List tasks, the last updated first."""

    context: str | None = None
    state: TaskState | None = None
    updated_after: float | None = None
    page_size: int = 50
    page_token: str = ""
    history_length: int | None = None
    has_artifacts: bool = False
    """Whether the tasks include their artifacts."""


class CancelTask(msgspec.Struct, frozen=True):
    """Cancel a task."""

    task: str
    metadata: Raw = ABSENT


class SubscribeToTask(msgspec.Struct, frozen=True):
    """Follow a task by a stream."""

    task: str


class CreatePushConfig(msgspec.Struct, frozen=True):
    """Send push notifications of a task to a URL."""

    task: str
    target: PushConfig


class GetPushConfig(msgspec.Struct, frozen=True):
    """Get a push notification config; without an id, the first one."""

    task: str
    id: str | None = None


class ListPushConfigs(msgspec.Struct, frozen=True):
    """List the push notification configs of a task."""

    task: str
    page_size: int = 50
    page_token: str = ""


class DeletePushConfig(msgspec.Struct, frozen=True):
    """Delete a push notification config."""

    task: str
    id: str


class GetExtendedCard(msgspec.Struct, frozen=True):
    """Get the card for authenticated callers."""


PushOperation: TypeAlias = CreatePushConfig | GetPushConfig | ListPushConfigs | DeletePushConfig
Operation: TypeAlias = (
    SendMessage | GetTask | ListTasks | CancelTask | SubscribeToTask | PushOperation | GetExtendedCard
)

ProblemKind: TypeAlias = Literal[
    "parse",
    "invalid_request",
    "unknown_method",
    "key_reused",
    "invalid_params",
    "internal",
    "task_not_found",
    "task_not_cancelable",
    "push_not_supported",
    "unsupported_operation",
    "not_json",
    "content_type_not_supported",
    "invalid_agent_response",
    "card_not_configured",
    "extension_required",
    "version_not_supported",
]


class A2aProblem(msgspec.Struct, frozen=True):
    """Why an operation failed; `details` are for programs."""

    kind: ProblemKind
    message: str
    details: dict[str, str] = {}


class TaskPage(msgspec.Struct, frozen=True):
    """A page of a list of tasks."""

    tasks: tuple[Task, ...]
    total: int
    next_token: str = ""
    page_size: int = 50


class PushConfigPage(msgspec.Struct, frozen=True):
    """A page of a list of push notification configs."""

    task: str
    targets: tuple[PushConfig, ...]
    next_token: str = ""


class A2aDialect(Protocol):
    """How one generation reads requests and writes results. Each dialect is a module, because it has no state."""

    name: DialectName

    def read(self, method: str, params: dict[str, Raw]) -> Operation | A2aProblem:
        """Read a request."""

    def write_sent(self, sent: Task | Message, history_length: int | None) -> Payload:
        """The result of a `SendMessage` without a stream."""

    def write_task(self, task: Task, history_length: int | None) -> Payload:
        """The result of `GetTask`."""

    def write_cancelled(self, task: Task) -> Payload:
        """The result of `CancelTask`."""

    def write_update(self, update: Update) -> Payload:
        """One stream event, without its frame."""

    def write_tasks(self, page: TaskPage, asked: ListTasks) -> Payload:
        """The result of `ListTasks`, which only 1.0 has."""

    def write_push(self, task: str, target: PushConfig) -> Payload:
        """One push notification config."""

    def write_pushes(self, page: PushConfigPage) -> Payload:
        """The result of `ListPushConfigs`."""

    def write_deleted(self) -> Payload:
        """The result of `DeletePushConfig`."""

    def write_problem(self, problem: A2aProblem) -> tuple[int, str, Payload | None]:
        """Code, message and data of an error."""
