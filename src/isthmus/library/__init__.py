"""Isthmus inside a Python program: the tools of every MCP server, synchronously or asynchronously.

`isthmus.connect` is the shortest way in, `ToolService` has everything; `tool` makes tools of your own functions.
`__all__` is the stable core, which most programs need. The other names are for advanced use; they are importable from
here and documented in their submodules. See `docs/library.md` for what is stable. Integrations with agent frameworks
are in `isthmus.integrations`.
"""

from __future__ import annotations

import importlib
from typing import Any

from isthmus.library.agent_tools import is_destructive
from isthmus.library.dispatcher import Dispatcher
from isthmus.library.errors import (
    AmbiguousToolError,
    ConfigurationError,
    LibraryError,
    ServiceClosedError,
    ToolDeniedError,
    ToolError,
    ToolExecutionError,
    ToolNotFoundError,
    ToolUnreachableError,
)
from isthmus.library.errors import ServerConnectionError as ServerConnectionError
from isthmus.library.errors import ToolRegistryError as ToolRegistryError
from isthmus.library.errors import UnresolvedToolsError as UnresolvedToolsError
from isthmus.library.errors import WrongThreadError as WrongThreadError
from isthmus.library.loop_thread import run
from isthmus.library.manager import MCPManager as MCPManager
from isthmus.library.manager import ToolRegistry as ToolRegistry
from isthmus.library.own_tools import MCPTool as MCPTool
from isthmus.library.own_tools import NoAnswerError as NoAnswerError
from isthmus.library.own_tools import Tool as Tool
from isthmus.library.own_tools import ToolContext, tool
from isthmus.library.provider_formats import ToolDef as ToolDef
from isthmus.library.public_types import AgentConfig as AgentConfig
from isthmus.library.public_types import AgentRequest as AgentRequest
from isthmus.library.public_types import AgentResponse as AgentResponse
from isthmus.library.public_types import ErrorCode as ErrorCode
from isthmus.library.public_types import (
    ErrorPayload,
    ToolRequest,
    ToolResult,
    ToolStatus,
    ToolStreamChunk,
    UniversalTool,
    UserContext,
    UserPermissions,
)
from isthmus.library.public_types import ExecutionContext as ExecutionContext
from isthmus.library.public_types import FrameworkType as FrameworkType
from isthmus.library.public_types import SessionContext as SessionContext
from isthmus.library.public_types import TaskRequest as TaskRequest
from isthmus.library.questions import Questions
from isthmus.library.resolver import TaskEngine as TaskEngine
from isthmus.library.resolver import ToolResolver as ToolResolver
from isthmus.library.resolver import create_task_request as create_task_request
from isthmus.library.server_clients import MCPClient as MCPClient
from isthmus.library.server_clients import MCPClientWrapper as MCPClientWrapper
from isthmus.library.server_config import MCPConfigLoader as MCPConfigLoader
from isthmus.library.server_config import MCPServerConfig
from isthmus.library.service import BlockingToolService, ToolService
from isthmus.library.streaming import BlockingChunks as BlockingChunks
from isthmus.library.streaming import ChunkStream as ChunkStream

__all__ = [
    "AmbiguousToolError",
    "BlockingToolService",
    "ConfigurationError",
    "Dispatcher",
    "ErrorPayload",
    "LibraryError",
    "MCPServerConfig",
    "Questions",
    "ServiceClosedError",
    "ToolContext",
    "ToolDeniedError",
    "ToolError",
    "ToolExecutionError",
    "ToolNotFoundError",
    "ToolRequest",
    "ToolResult",
    "ToolService",
    "ToolStatus",
    "ToolStreamChunk",
    "ToolUnreachableError",
    "UniversalTool",
    "UserContext",
    "UserPermissions",
    "is_destructive",
    "run",
    "tool",
]

_LAZY = {"AdkDomainAgent": "isthmus.integrations.adk"}
"""Names that need an agent framework; imported on first access."""


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
