"""What a caller of an A2A agent can ask, in no generation's words.

Each dialect reads its own methods into these and writes what comes of them; the face only knows these.
"""

from __future__ import annotations

from typing import Literal, Protocol, TypeAlias

import msgspec
from msgspec import Raw

from isthmus.model.conversation import ABSENT, Message, Task, TaskState, Update
from isthmus.wire.jsonrpc import Payload

DialectName: TypeAlias = Literal["1.0", "0.3", "0.1", "agentvault"]


class PushTarget(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where updates of a task are to be sent, and what proves there that they come from us."""

    url: str
    id: str = ""
    token: str | None = None
    scheme: str | None = None
    credentials: str | None = None


class Send(msgspec.Struct, frozen=True):
    """Say something: a new task, or the next message of one."""

    message: Message
    task: str | None = None
    """The task that goes on; in 0.1 also one that begins, because there callers name their tasks."""
    context: str | None = None
    waits: bool = True
    """The answer may take as long as the work; else it is given as soon as the task is kept."""
    is_stream: bool = False
    history_length: int | None = None
    output_modes: tuple[str, ...] = ()
    push: PushTarget | None = None
    metadata: Raw = ABSENT


class Get(msgspec.Struct, frozen=True):
    """How does a task stand?"""

    task: str
    history_length: int | None = None


class List(msgspec.Struct, frozen=True):
    """Which tasks are there? Those updated last come first."""

    context: str | None = None
    state: TaskState | None = None
    updated_after: float | None = None
    page_size: int = 50
    page_token: str = ""
    history_length: int | None = None
    has_artifacts: bool = False
    """Whether the artifacts are wanted too."""


class Cancel(msgspec.Struct, frozen=True):
    """Give a task up."""

    task: str
    metadata: Raw = ABSENT


class Subscribe(msgspec.Struct, frozen=True):
    """Hear how a task goes on."""

    task: str


class SetPush(msgspec.Struct, frozen=True):
    """Have updates of a task sent somewhere."""

    task: str
    target: PushTarget


class GetPush(msgspec.Struct, frozen=True):
    """Where are they sent? Without an id, the only place."""

    task: str
    id: str | None = None


class ListPush(msgspec.Struct, frozen=True):
    """Where are they sent, all places."""

    task: str
    page_size: int = 50
    page_token: str = ""


class DeletePush(msgspec.Struct, frozen=True):
    """Send them there no more."""

    task: str
    id: str


class ReadCard(msgspec.Struct, frozen=True):
    """The card, as those see it who proved who they are."""


PushOperation: TypeAlias = SetPush | GetPush | ListPush | DeletePush
Operation: TypeAlias = Send | Get | List | Cancel | Subscribe | PushOperation | ReadCard

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


class Problem(msgspec.Struct, frozen=True):
    """Why an operation was not done; `details` are facts for programs."""

    kind: ProblemKind
    message: str
    details: dict[str, str] = {}


class TaskPage(msgspec.Struct, frozen=True):
    """A page of a list of tasks."""

    tasks: tuple[Task, ...]
    total: int
    next_token: str = ""
    page_size: int = 50


class PushPage(msgspec.Struct, frozen=True):
    """A page of a list of places."""

    task: str
    targets: tuple[PushTarget, ...]
    next_token: str = ""


class Dialect(Protocol):
    """One generation's words. Each is a module: it has no state, and so no objects."""

    name: DialectName

    def read(self, method: str, params: dict[str, Raw]) -> Operation | Problem:
        """What a request asks for."""

    def write_sent(self, sent: Task | Message, history_length: int | None) -> Payload:
        """The result of a `Send` that is answered whole."""

    def write_task(self, task: Task, history_length: int | None) -> Payload:
        """The result of `Get`."""

    def write_cancelled(self, task: Task) -> Payload:
        """The result of `Cancel`."""

    def write_update(self, update: Update) -> Payload:
        """One item of a stream, without what frames it."""

    def write_tasks(self, page: TaskPage, asked: List) -> Payload:
        """The result of `List`, which only 1.0 can ask for."""

    def write_push(self, task: str, target: PushTarget) -> Payload:
        """One place where updates are sent."""

    def write_pushes(self, page: PushPage) -> Payload:
        """All of them."""

    def write_deleted(self) -> Payload:
        """The result of `DeletePush`."""

    def write_problem(self, problem: Problem) -> tuple[int, str, Payload | None]:
        """Code, message and data of an error."""
