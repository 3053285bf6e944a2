"""What goes in and out of the library: tools, requests, results, chunks and tasks, as plain dataclasses.

They are for people who write agents: every field has a default where one makes sense, and nothing here knows how a
tool is reached. Everybody else in this room, and the integrations, speak in these.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Literal, TypeAlias, get_args


class ToolStatus(StrEnum):
    """How an execution ended: each way of failing has its own."""

    SUCCESS = "success"
    ERROR = "error"
    """The tool ran and said no, or its server answered with an error."""
    TIMEOUT = "timeout"
    UNAUTHORIZED = "unauthorized"
    NOT_FOUND = "not_found"
    INVALID_PARAMETERS = "invalid_parameters"
    """The arguments do not fit the tool's schema; nothing ran."""
    UNAVAILABLE = "unavailable"
    """The server is not connected, too busy or lost; `ErrorPayload.executed` says whether the tool may have run."""
    CANCELLED = "cancelled"


class ErrorCode(StrEnum):
    """What went wrong, for programs."""

    INTERNAL = "internal.error"
    VALIDATION = "request.validation"
    FRAMEWORK_UNAVAILABLE = "framework.unavailable"
    FRAMEWORK_EXECUTION = "framework.execution"
    MODEL_UPSTREAM = "model.upstream"
    STREAM_INTERRUPTED = "stream.interrupted"
    APPROVAL_TIMEOUT = "approval.timeout"
    TOOL_NOT_DECLARED = "tool.not_declared"
    TOOL_EXECUTION = "tool.execution"
    TOOL_INVALID_PARAMETERS = "tool.invalid_parameters"
    TOOL_TIMEOUT = "tool.timeout"
    TOOL_UNAUTHORIZED = "tool.unauthorized"
    TOOL_UNAVAILABLE = "tool.unavailable"
    TOOL_CANCELLED = "tool.cancelled"


@dataclass(frozen=True, slots=True)
class ErrorPayload:
    """Why an execution failed."""

    code: ErrorCode
    message: str
    executed: Literal["no", "yes", "unknown"] = "no"
    """Whether the tool ran all the same."""
    reason: str = ""
    """The hub's word for it, such as `timed_out`."""
    server: str | None = None
    retry_after: float | None = None
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class UserPermissions:
    """What a user may do.

    `permissions` are names of tools, `server`, `server.*` or `*`; what is no such name is somebody else's business and
    ignored. None of them means the built-in tools only. `restrictions["tools"]` lists what is denied all the same.
    """

    permissions: list[str] | None = field(default_factory=list)
    roles: list[str] = field(default_factory=list)
    restrictions: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class UserContext:
    """On whose behalf something is asked for. Without one there is no restriction: the program asks for itself."""

    user_id: str | None = None
    user_name: str | None = None
    session_token: str | None = field(default=None, repr=False)
    permissions: UserPermissions | None = None
    preferences: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class SessionContext:
    """Which conversation something belongs to."""

    session_id: str | None = None
    conversation_history: list[Any] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class ExecutionContext:
    """Around what something is executed; carried, not read."""

    execution_id: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class UniversalTool:
    """A tool as every framework is shown it."""

    name: str
    """Its full name, `server.tool`."""
    description: str = ""
    parameters_schema: dict[str, Any] = field(default_factory=dict)
    """JSON Schema, as its server gave it."""
    namespace: str | None = None
    """Its server."""
    required_permissions: list[str] = field(default_factory=list)
    supports_streaming: bool = False
    metadata: dict[str, Any] = field(default_factory=dict)
    """`title`, `annotations` and `output_schema`, if its server gave them; `llm_name`, which language models accept."""


@dataclass(slots=True)
class ToolRequest:
    """A wish to have a tool executed. `tool_name` may have any form that `ToolResolver` knows."""

    tool_name: str
    tool_namespace: str | None = None
    parameters: dict[str, Any] = field(default_factory=dict)
    user_context: UserContext | None = None
    session_context: SessionContext | None = None
    execution_context: ExecutionContext | None = None
    timeout: float | None = None
    """Seconds that the whole call may take: progress does not extend it. Silence ends a call earlier, as configured for
    the server."""
    metadata: dict[str, Any] = field(default_factory=dict, repr=False)
    """`headers`: of the user's, which may be secrets, so that they are not shown."""
    session_id: str | None = None


@dataclass(slots=True)
class ToolResult:
    """How an execution ended."""

    tool_name: str
    status: ToolStatus
    tool_namespace: str | None = None
    result_data: Any = None
    """Structured content if the tool gave some, otherwise its text, otherwise the list of its content blocks."""
    error_message: str | None = None
    error: ErrorPayload | None = None
    execution_time: float | None = None
    """Seconds."""
    created_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    metadata: dict[str, Any] = field(default_factory=dict)
    """`content`: the blocks as its server gave them; `structured`: whether it gave structured content."""
    session_id: str | None = None

    @property
    def is_success(self) -> bool:
        """Whether the tool ran and did not say no."""
        return self.status == ToolStatus.SUCCESS  # also for who writes it as a text

    @property
    def text(self) -> str:
        """The tool's words: its text blocks, or what went wrong."""
        if self.status not in (ToolStatus.SUCCESS, ToolStatus.ERROR) or "content" not in self.metadata:
            return self.error_message or ""
        return text_of(self.metadata["content"])


def text_of(content: list[dict[str, Any]]) -> str:
    """The text blocks of a result, one after the other."""
    return "\n".join(str(block["text"]) for block in content if block.get("type") == "text" and "text" in block)


ChunkType: TypeAlias = Literal["data", "progress", "log", "complete", "error"]
CHUNK_TYPES: tuple[str, ...] = get_args(ChunkType)


@dataclass(slots=True)
class ToolStreamChunk:
    """Something that happened during an execution, told when it happened.

    `progress` has `{"progress", "total", "message"}`, `log` has `{"level", "logger", "data"}`, `data` what the tool
    returned. The last has `is_final`: `complete` with the same as `ToolResult.result_data`, or `error` with
    the message; both have the whole `ToolResult` as `metadata["result"]`.

    Raises:
        ValueError: `chunk_type` is none of these.
    """

    tool_name: str
    chunk_type: ChunkType
    content: Any
    is_final: bool = False
    sequence_id: int = 0
    metadata: dict[str, Any] = field(default_factory=dict)
    timestamp: datetime = field(default_factory=lambda: datetime.now(UTC))

    def __post_init__(self) -> None:
        if self.chunk_type not in CHUNK_TYPES:
            raise ValueError(f"chunk_type must be one of {', '.join(CHUNK_TYPES)}, not {self.chunk_type!r}")


# -- agents ------------------------------------------------------------------------------------------------------------


class FrameworkType(StrEnum):
    """What runs an agent."""

    ADK = "adk"


@dataclass(slots=True)
class AgentConfig:
    """What an agent is made of."""

    agent_type: str = "general"
    name: str = "agent"
    description: str = ""
    system_prompt: str = ""
    model: Any = None
    """What the framework takes for a model: a name, or an object."""
    model_config: dict[str, Any] = field(default_factory=dict)
    available_tools: list[str] = field(default_factory=list)
    """Names of tools that the agent has whatever it is asked to do."""
    framework_type: FrameworkType = FrameworkType.ADK
    framework_config: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class TaskRequest:
    """Something to be done by an agent, with the tools that it may use for it."""

    task_id: str = field(default_factory=lambda: f"task_{uuid.uuid4().hex[:12]}")
    task_type: str = "chat"
    description: str = ""
    user_context: UserContext | None = None
    session_context: SessionContext | None = None
    execution_context: ExecutionContext | None = None
    messages: list[Any] = field(default_factory=list)
    available_tools: list[UniversalTool] = field(default_factory=list)
    available_knowledge: list[Any] = field(default_factory=list)
    execution_config: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    session_id: str | None = None
    agent_config: AgentConfig | None = None
    agent_id: str | None = None


@dataclass(slots=True)
class AgentRequest:
    """A task for one kind of agent."""

    task_request: TaskRequest
    agent_type: str = "general"
    framework_type: FrameworkType = FrameworkType.ADK
    agent_config: AgentConfig | None = None
    runtime_options: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    session_id: str | None = None


@dataclass(slots=True)
class AgentResponse:
    """How an agent's task ended."""

    task_id: str
    status: Literal["success", "error"]
    text: str = ""
    """What the agent said at the end."""
    error: ErrorPayload | None = None
    tool_results: list[ToolResult] = field(default_factory=list)
    """Of every tool that was executed, in order."""
    session_id: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
