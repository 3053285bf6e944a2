"""How a call ended: a `Result`, or a `Fault` (see `model.faults`)."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from isthmus.model.faults import Fault
from isthmus.model.names import ServerName


class Result(msgspec.Struct, frozen=True):
    """What the server answered: the whole result as JSON text, unread but for two members.

    `is_error` repeats the result's own `isError`: the tool ran and said no, which is still a result. `is_typed`
    says that the object has a `resultType`, as results have since 2026-07-28 and must not have had before.
    """

    payload: msgspec.Raw
    is_error: bool = False
    is_typed: bool = False
    ttl_seconds: float = 0.0
    """How long the server lets it be given again: to the same caller or, if `is_public`, to anybody."""
    is_public: bool = False
    asked_by: ServerName | None = None
    """It is no end: this server asks something, and goes on when the caller comes back with the answers."""
    task_of: ServerName | None = None
    """It may name a task, by the id that this server gave it."""
    is_bare: bool = False
    """The payload is any JSON value that a plain JSON-RPC server returned, and not a result of MCP. Frontends pass it
    on unchanged; only where the protocol has no room for it, `wire.mcp.results.as_tool_result` converts it."""
    is_untyped: bool = False
    """It is known to have no `resultType`: a long result is not read again to find out."""


Outcome: TypeAlias = Result | Fault
