"""Isthmus inside a Python program: every MCP server as tools, synchronously or not.

`ToolService` is where to begin; `tool` makes tools of one's own functions. The integrations with agent frameworks are
in `isthmus.integrations`, each with what its framework needs.
"""

from __future__ import annotations

import importlib
from typing import Any

from isthmus.library.client import MCPClient, MCPClientWrapper
from isthmus.library.contracts import (
    AgentConfig,
    AgentRequest,
    AgentResponse,
    ErrorCode,
    ErrorPayload,
    ExecutionContext,
    FrameworkType,
    SessionContext,
    TaskRequest,
    ToolRequest,
    ToolResult,
    ToolStatus,
    ToolStreamChunk,
    UniversalTool,
    UserContext,
    UserPermissions,
)
from isthmus.library.dispatcher import Dispatcher
from isthmus.library.errors import (
    AmbiguousToolError,
    ConfigurationError,
    LibraryError,
    ServerConnectionError,
    ServiceClosedError,
    ToolDeniedError,
    ToolError,
    ToolExecutionError,
    ToolNotFoundError,
    ToolRegistryError,
    ToolUnreachableError,
    UnresolvedToolsError,
    WrongThreadError,
)
from isthmus.library.function_schemas import ToolDef
from isthmus.library.functions import NoAnswerError, ToolContext, tool
from isthmus.library.integration_base import is_destructive
from isthmus.library.loop_thread import run
from isthmus.library.manager import MCPConfigLoader, MCPManager
from isthmus.library.questions import Questions
from isthmus.library.registry import ToolRegistry
from isthmus.library.resolver import TaskEngine, ToolResolver, create_task_request
from isthmus.library.server_config import MCPServerConfig
from isthmus.library.service import BlockingToolService, ToolService
from isthmus.library.streaming import BlockingChunks, ChunkStream
from isthmus.library.tools import MCPTool, Tool

_ELSEWHERE = {"AdkDomainAgent": "isthmus.integrations.adk"}
"""What needs an agent framework, and is only looked for when it is wanted."""

__all__ = [
    "AgentConfig",
    "AgentRequest",
    "AgentResponse",
    "AmbiguousToolError",
    "BlockingChunks",
    "BlockingToolService",
    "ChunkStream",
    "ConfigurationError",
    "Dispatcher",
    "ErrorCode",
    "ErrorPayload",
    "ExecutionContext",
    "FrameworkType",
    "LibraryError",
    "MCPClient",
    "MCPClientWrapper",
    "MCPConfigLoader",
    "MCPManager",
    "MCPServerConfig",
    "MCPTool",
    "NoAnswerError",
    "Questions",
    "ServerConnectionError",
    "ServiceClosedError",
    "SessionContext",
    "TaskEngine",
    "TaskRequest",
    "Tool",
    "ToolContext",
    "ToolDef",
    "ToolDeniedError",
    "ToolError",
    "ToolExecutionError",
    "ToolNotFoundError",
    "ToolRegistry",
    "ToolRegistryError",
    "ToolRequest",
    "ToolResolver",
    "ToolResult",
    "ToolService",
    "ToolStatus",
    "ToolStreamChunk",
    "ToolUnreachableError",
    "UniversalTool",
    "UnresolvedToolsError",
    "UserContext",
    "UserPermissions",
    "WrongThreadError",
    "create_task_request",
    "is_destructive",
    "run",
    "tool",
]


def __getattr__(name: str) -> Any:
    if name in _ELSEWHERE:
        return getattr(importlib.import_module(_ELSEWHERE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
