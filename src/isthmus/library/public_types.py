"""The public values of the library: tools, requests, results, chunks and tasks, as plain dataclasses.

They are for people who write agents: fields have defaults where possible, and nothing here knows how a tool is reached.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Literal, TypeAlias, get_args


class ToolStatus(StrEnum):
    """How an execution ended."""

    SUCCESS = "success"
    ERROR = "error"
    """The tool ran and failed, or its server replied with an error."""
    TIMEOUT = "timeout"
    UNAUTHORIZED = "unauthorized"
    NOT_FOUND = "not_found"
    INVALID_PARAMETERS = "invalid_parameters"
    """The arguments do not fit the tool's schema; nothing ran."""
    UNAVAILABLE = "unavailable"
    """The server is not connected, overloaded or lost; `ErrorPayload.executed` says whether the tool may have run."""
    CANCELLED = "cancelled"


class ErrorCode(StrEnum):
    """Machine-readable error codes."""

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
    """Whether the tool ran."""
    reason: str = ""
    """The hub's reason, such as `timed_out`."""
    server: str | None = None
    retry_after: float | None = None
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class UserPermissions:
    """What a user may do.

    `permissions` are names of tools, `server`, `server.*` or `*`; other entries are ignored. Without any, the user may
    use the built-in tools only. `restrictions["tools"]` lists tools that are denied nevertheless.
    """

    permissions: list[str] | None = field(default_factory=list)
    roles: list[str] = field(default_factory=list)
    restrictions: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class UserContext:
    """The user of a request. Without one there is no restriction: the program acts for itself."""

    user_id: str | None = None
    user_name: str | None = None
    session_token: str | None = field(default=None, repr=False)
    permissions: UserPermissions | None = None
    preferences: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class SessionContext:
    """The conversation of a request."""

    session_id: str | None = None
    conversation_history: list[Any] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class ExecutionContext:
    """Data of the program about an execution; the library does not read it."""

    execution_id: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class UniversalTool:
    """A tool for agents and frameworks."""

    name: str
    """Its full name, `server.tool`."""
    description: str = ""
    parameters_schema: dict[str, Any] = field(default_factory=dict)
    """The JSON Schema of its server."""
    namespace: str | None = None
    """Its server."""
    required_permissions: list[str] = field(default_factory=list)
    supports_streaming: bool = False
    metadata: dict[str, Any] = field(default_factory=dict)
    """`title`, `annotations` and `output_schema`, if its server has them; `llm_name`, its name for language models."""


@dataclass(slots=True)
class ToolRequest:
    """A request to execute a tool. `tool_name` may have any form that `ToolResolver` accepts."""

    tool_name: str
    tool_namespace: str | None = None
    parameters: dict[str, Any] = field(default_factory=dict)
    user_context: UserContext | None = None
    session_context: SessionContext | None = None
    execution_context: ExecutionContext | None = None
    timeout: float | None = None
    """Seconds for the whole call; progress does not extend it. The server's timeout may end a silent call earlier."""
    metadata: dict[str, Any] = field(default_factory=dict, repr=False)
    """`headers`: headers of the user. They may be secrets, so `repr` omits them."""
    session_id: str | None = None


@dataclass(slots=True)
class ToolResult:
    """How an execution ended."""

    tool_name: str
    status: ToolStatus
    tool_namespace: str | None = None
    result_data: Any = None
    """Structured content if there is any, otherwise text, otherwise the list of content blocks."""
    error_message: str | None = None
    error: ErrorPayload | None = None
    execution_time: float | None = None
    """Seconds."""
    created_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    metadata: dict[str, Any] = field(default_factory=dict)
    """`content`: the content blocks; `structured`: whether there is structured content."""
    session_id: str | None = None

    @property
    def is_success(self) -> bool:
        """Whether the tool ran and succeeded."""
        return self.status == ToolStatus.SUCCESS  # not `is`: programs may set a plain string

    @property
    def text(self) -> str:
        """The text blocks, or the error message."""
        if self.status not in (ToolStatus.SUCCESS, ToolStatus.ERROR) or "content" not in self.metadata:
            return self.error_message or ""
        return text_of(self.metadata["content"])

    @property
    def data(self) -> Any:
        """The structured content; None if the tool returned none."""
        return self.result_data if self.metadata.get("structured") else None

    @property
    def content(self) -> list[dict[str, Any]]:
        """The content blocks, as in MCP."""
        content: list[dict[str, Any]] = self.metadata.get("content", [])
        return content


def text_of(content: list[dict[str, Any]]) -> str:
    """The text blocks, joined by newlines."""
    return "\n".join(str(block["text"]) for block in content if block.get("type") == "text" and "text" in block)


ChunkType: TypeAlias = Literal["data", "progress", "log", "complete", "error"]
CHUNK_TYPES: tuple[str, ...] = get_args(ChunkType)


@dataclass(slots=True)
class ToolStreamChunk:
    """One event of an execution.

    `progress` has `{"progress", "total", "message"}`, `log` has `{"level", "logger", "data"}`, `data` has output. The
    last chunk has `is_final`: `complete` with the content of `ToolResult.result_data`, or `error` with the message;
    both have the whole `ToolResult` as `result`.

    Raises:
        ValueError: `chunk_type` is unknown.
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

    @property
    def result(self) -> ToolResult | None:
        """The whole result, in the last chunk."""
        result: ToolResult | None = self.metadata.get("result")
        return result


# -- agents ------------------------------------------------------------------------------------------------------------


class FrameworkType(StrEnum):
    """The framework that runs an agent."""

    ADK = "adk"


@dataclass(slots=True)
class AgentConfig:
    """The configuration of an agent."""

    agent_type: str = "general"
    name: str = "agent"
    description: str = ""
    system_prompt: str = ""
    model: Any = None
    """The framework's model: a name or an object."""
    model_config: dict[str, Any] = field(default_factory=dict)
    available_tools: list[str] = field(default_factory=list)
    """Names of tools that the agent has for every task."""
    framework_type: FrameworkType = FrameworkType.ADK
    framework_config: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class TaskRequest:
    """A task for an agent, with the tools that it may use."""

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
    """The agent's final text."""
    error: ErrorPayload | None = None
    tool_results: list[ToolResult] = field(default_factory=list)
    """The results of all tool calls, in order."""
    session_id: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
