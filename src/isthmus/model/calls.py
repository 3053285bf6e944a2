"""A call: what a caller requests, what happens while it runs, and how it ends. Plain data.

`core.calls.running_call` is a running call. A `Fault` (see `model.fault_table`) is the other way a call can end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias, get_args

import msgspec

from isthmus.model.callers import Caller, Exposure
from isthmus.model.fault_table import Fault
from isthmus.model.names import ServerName

# -- events while a call runs ------------------------------------------------------------------------------------------

LogLevel: TypeAlias = Literal["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]
LOG_LEVELS: tuple[LogLevel, ...] = get_args(LogLevel)
"""From the least to the most severe."""


def is_at_least(level: LogLevel, wanted: LogLevel) -> bool:
    """Whether a line of this level is at least as severe as `wanted`."""
    return LOG_LEVELS.index(level) >= LOG_LEVELS.index(wanted)


class Progress(msgspec.Struct, frozen=True):
    """A progress notification as the server sent it (`progress`, `total`, `message`, …), without its token.

    Tokens belong to one connection: the link removes its own, the frontend adds the caller's.
    """

    members: dict[str, msgspec.Raw]
    task_of: ServerName | None = None
    """Set if it may name a task by this server's own id."""


class LogMessage(msgspec.Struct, frozen=True):
    """A log notification that the server sent during the call (`level`, `logger`, `data`)."""

    level: LogLevel
    members: dict[str, msgspec.Raw]
    task_of: ServerName | None = None
    """As in `Progress`."""


Event: TypeAlias = Progress | LogMessage

# -- requests from the server to the caller ----------------------------------------------------------------------------

ClientCapabilities: TypeAlias = frozenset[str]
"""What a client can be asked: `roots`, `sampling`, `elicitation`, each perhaps with a word after a dot.

Servers may list and do different things for different capabilities, so nothing is shared between them."""

NO_CAPABILITIES: ClientCapabilities = frozenset()


class Question(msgspec.Struct, frozen=True):
    """A request from a server to the caller: an MCP method and its parameters, as the server wrote them."""

    method: str
    params: msgspec.Raw
    task_of: ServerName | None = None
    """Set if it may name a task by this server's own id."""


class Answered(msgspec.Struct, frozen=True):
    """The caller's result."""

    result: msgspec.Raw


class Declined(msgspec.Struct, frozen=True):
    """No result: the caller cannot be asked, refused, or did not respond in time."""

    code: int
    message: str


Reply: TypeAlias = Answered | Declined
OnReply: TypeAlias = Callable[[Reply], None]

NOT_ASKED = Declined(-32601, "This caller cannot be asked")
"""A caller that cannot answer responds like a client that does not know the method."""

UNSURE = Declined(-32603, "It is not certain whose call this is about; call once more")
"""A question must reach the session whose call it concerns, or none. From the next call on, sessions are separate."""

TOO_LATE = Declined(-32603, "The call is over")

GIVEN_UP = Declined(-32603, "The call was given up")
"""The server was notified, or is gone: it waits for no response, and some would treat one as an error."""

# -- the call ----------------------------------------------------------------------------------------------------------

Style: TypeAlias = Literal["canonical", "llm", "own"]
"""How tools are named on a surface: `server.tool`, the form language models accept, or the server's own names."""


class Surface(msgspec.Struct, frozen=True):
    """Which names a caller sees: those of every server in one style, one server's own, or those of a set."""

    style: Style = "canonical"
    server: ServerName | None = None
    set: str | None = None
    expose: Exposure | None = None
    """Which tools its lists have, whatever the hub, the set and the caller say; None for what these say."""


EVERYTHING = Surface()

Kind: TypeAlias = Literal[
    "tool",
    "prompt",
    "resource",
    "prompt_argument",
    "uri_argument",
    "task",
    "task_result",
    "task_cancel",
    "task_update",
    "method",
]
"""What is requested: call a tool, get a prompt, read a resource, complete an argument of a prompt or of a resource
template; get, get the result of, cancel or update a server's task; or any other method, which is only named on the
surface of its own server."""

TASK_KINDS: frozenset[Kind] = frozenset({"task", "task_result", "task_cancel", "task_update"})
"""Calls about a task. They name it by its server's own id, on the surface of that server."""


class Call(msgspec.Struct, frozen=True):
    """What a caller requests, independent of its protocol.

    `name` is looked up in the caller's view of `surface`, never parsed: the exposed name of a tool or prompt, or a URI.
    `arguments` is a JSON object as text; for a completion it is the argument, for a method the parameters without their
    `_meta`. `meta` and `extra` reach the server unchanged: the caller's `_meta` without the keys that a protocol owns,
    and request members that this hub does not know. `timeout` bounds the whole call in seconds: progress extends the
    server's timeout, never this one.
    """

    caller: Caller
    surface: Surface
    name: str
    arguments: msgspec.Raw
    meta: dict[str, msgspec.Raw] = {}
    extra: dict[str, msgspec.Raw] = {}
    wants_progress: bool = False
    kind: Kind = "tool"
    log_level: LogLevel | None = None
    """The lowest level of log messages that the caller wants during the call; None for none."""
    client_caps: ClientCapabilities = msgspec.field(default=NO_CAPABILITIES, name="profile")
    """What the caller can be asked during the call. Stored as `profile`: task records hold calls."""
    session: str = ""
    """The caller's session, if it has one: a question about one session must not reach another of the same caller."""
    comes_back: bool = False
    """The caller accepts a question as the result and answers it with another call."""
    frontend: str = msgspec.field(default="", name="face")
    """The frontend, for the audit log, and for results that are cut: some clients check what is left. Stored as `face`.
    """
    timeout: float | None = None
    lasts: bool = False
    """It belongs to a task: no caller waits on a connection, so it may take as long as `hard_seconds`."""
    is_of_hub: bool = False
    """For a call about a task: the task is the hub's own. A server's id may look like one of the hub's."""
    sharer: str = ""
    """One of several devices that share the caller: it gets a quarter of the server's slots at most. Empty if the
    caller is not divided."""
    headers: dict[str, str] = {}
    """HTTP headers that the caller wants passed on. A server receives those that it is configured to receive; the rest
    is dropped. They may be secrets."""
    shares_link: bool = False
    """Its session is an A2A context. Many of these make one call only, so a new one gets no link of its own; it keeps
    the link of its first call."""

    linked_trace: str = ""
    """The `traceparent` of its HTTP request, where `_meta` names another parent; for telemetry only."""

    request_id: msgspec.Raw | None = None
    """The caller's request id, used on the wire where the server belongs to this caller alone."""

    tool: str = ""
    """The server's own name of the tool or prompt, where a set has another; for the audit log."""

    script: str = ""
    """The id of the script that makes it, if one does; for the audit log. Scripts take half of a server's slots."""

    script_lines: tuple[int, ...] = ()
    """The lines of that script that name the tool, for people who are asked to allow the call."""

    fleet: str = ""
    """The fleet that makes it at one of its members; for the audit log."""

    is_by_argument: bool = False
    """The caller named the tool in an argument of another, so that its client knows nothing of the tool's schemas."""

    knows_links: bool = True
    """Whether the caller's protocol version has resource links; MCP has them since 2025-06-18."""

    is_admitted: bool = False
    """Another node of this hub has admitted it: approvals, budgets, the limits of tenants and large results are that
    node's concern."""

    fleet_set: str | None = None
    """The set in which the fleet's tool was called, of a call that a fleet makes: budgets and records are about it."""

    @property
    def set(self) -> str | None:
        """The set in which its name is looked up, or that of the fleet's tool, if any."""
        return self.caller.grants.set or self.surface.set or self.fleet_set

    def __repr__(self) -> str:
        """Everything but the headers."""
        fields = (name for name in self.__struct_fields__ if name != "headers")
        return f"Call({', '.join(f'{name}={getattr(self, name)!r}' for name in fields)})"


# -- the end of a call -------------------------------------------------------------------------------------------------


class Result(msgspec.Struct, frozen=True):
    """What the server answered: the whole result as JSON text; only two members are decoded.

    `is_error` repeats the result's own `isError`: the tool ran and reported an error, which is still a result.
    `is_typed` says that the object has a `resultType`, as results have since 2026-07-28 and must not have had before.
    """

    payload: msgspec.Raw
    is_error: bool = False
    is_typed: bool = False
    ttl_seconds: float = 0.0
    """How long the server allows it to be cached: for the same caller or, if `is_public`, for all."""
    is_public: bool = False
    asked_by: ServerName | None = None
    """Not an end: this server asks something and continues when the caller calls again with the answers."""
    task_of: ServerName | None = None
    """Set if it may name a task by this server's own id."""
    is_bare: bool = False
    """The payload is any JSON value that a plain JSON-RPC server returned, and not a result of MCP. Frontends pass it
    on unchanged; only where the protocol has no room for it, `wire.mcp.forwarded_methods` converts it."""
    is_untyped: bool = False
    """It is known to have no `resultType`: a long result is not read again to find out."""


Outcome: TypeAlias = Result | Fault
