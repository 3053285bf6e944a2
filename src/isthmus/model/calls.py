"""A call: one request of one caller to one server. Plain data; what runs is `core.calls.inflight`."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from isthmus.model.callers import Caller
from isthmus.model.events import LogLevel
from isthmus.model.names import ServerName
from isthmus.model.questions import NO_CAPABILITIES, ClientCapabilities

Style: TypeAlias = Literal["canonical", "llm", "own"]
"""How tools are named on a surface: `server.tool`, the form language models accept, or the server's own names."""


class Surface(msgspec.Struct, frozen=True):
    """Which names a caller sees: those of every server in one style, or one server's own."""

    style: Style = "canonical"
    server: ServerName | None = None


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
"""What is asked for: to run a tool, to write out a prompt, to read a resource, to complete an argument of a prompt or
of a template; of a task that a tool was run as, how it stands, its result, its end, or to tell it something; or
whatever a method of one server does, which is named by itself on the surface of that server alone."""

TASK_KINDS: frozenset[Kind] = frozenset({"task", "task_result", "task_cancel", "task_update"})
"""Calls about a task: named by its server's own id, on the surface of that server alone."""


class Call(msgspec.Struct, frozen=True):
    """What a caller asked for, in no protocol's terms.

    `name` is looked up in the caller's view of `surface`, never parsed: a tool's or prompt's exposed name, or a
    URI. `arguments` is a JSON object as text; to complete an argument, it is that argument, and of a method it is the
    parameters, without their `_meta`.
    `meta` and `extra` are members that travel to the server untouched: the caller's `_meta` without the
    keys a protocol owns, and request members this hub does not know. `timeout` is how long the
    whole call may take, in seconds: signs of life extend the server's timeout, and never this one.
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
    """From which level on the caller wants to hear what the server logs meanwhile; None if not at all."""
    client_caps: ClientCapabilities = NO_CAPABILITIES
    """What the caller can be asked meanwhile."""
    session: str = ""
    """Which of the caller's conversations it belongs to, if that has one: what a server asks in one must not be put
    to another, though they be the same caller's."""
    comes_back: bool = False
    """The caller takes a question as the result, and answers it with a call of its own."""
    face: str = ""
    """The way in that it came by, for whoever reads up on it later; nothing is decided by it."""
    timeout: float | None = None
    lasts: bool = False
    """It is a task's: nobody stands and waits for it, so that it may take as long as anything may."""
    is_of_hub: bool = False
    """Of a call about a task: that is the hub's own. A server's id may look just like those of the hub."""
    sharer: str = ""
    """Who shares the server with others of the same caller, such as one device of many: it has a quarter of the slots
    at most. Empty where nobody is counted by themselves."""
    headers: dict[str, str] = {}
    """What the caller wants told by HTTP headers beside the call. A server receives of them those that it is
    configured to, and what is told to none is dropped. They may be secrets."""
    shares_link: bool = False
    """Its conversation is an A2A context. Many of these make one call only, so that a new one does not get a link of
    its own; it keeps the link of its first call."""

    request_id: msgspec.Raw | None = None
    """What the caller calls this request: the id on the wire, where the server is this caller's alone."""

    def __repr__(self) -> str:
        """Everything but the headers."""
        fields = (name for name in self.__struct_fields__ if name != "headers")
        return f"Call({', '.join(f'{name}={getattr(self, name)!r}' for name in fields)})"
