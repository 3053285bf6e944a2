"""What a server asks back while it works on a call, and what callers say they can answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec

from isthmus.model.names import ServerName

ClientCapabilities: TypeAlias = frozenset[str]
"""What a caller says it can be asked: `roots`, `sampling`, `elicitation`, each perhaps with a word behind a dot.

Servers may list and do different things for different profiles, so that nothing is shared across them."""

NO_CAPABILITIES: ClientCapabilities = frozenset()


class Question(msgspec.Struct, frozen=True):
    """Something that a server asks: a method of MCP and its parameters, as the server wrote them."""

    method: str
    params: msgspec.Raw
    task_of: ServerName | None = None
    """It may name a task, by the id that this server gave it."""


class Answered(msgspec.Struct, frozen=True):
    """What the caller answered."""

    result: msgspec.Raw


class Declined(msgspec.Struct, frozen=True):
    """There is no answer: the caller cannot be asked, refused, or said nothing in time."""

    code: int
    message: str


Reply: TypeAlias = Answered | Declined
OnReply: TypeAlias = Callable[[Reply], None]

NOT_ASKED = Declined(-32601, "This caller cannot be asked")
"""Who cannot answer says so as a client that does not know the method."""

UNSURE = Declined(-32603, "It is not certain whose call this is about; call once more")
"""A question reaches the program whose call it is about, or nobody. By the next call the hub keeps programs apart."""

TOO_LATE = Declined(-32603, "The call is over")

GIVEN_UP = Declined(-32603, "The call was given up")
"""The server was told so, or is gone: it waits for no answer, and some would take one for an error."""
