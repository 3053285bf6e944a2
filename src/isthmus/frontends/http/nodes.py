"""What frontends know of a cluster: an id names the node that created it, and a request with that id belongs there.

Most ids are in a request's head, where `app.forwarding` finds them before a frontend sees the request. Frontends
forward requests whose id is only in the body.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import Final, Protocol

from isthmus.frontends.http.request_cycle import Message, Peer
from isthmus.model.callers import Caller

TAG_END: Final = "~"
"""Ends the tag of a node at the beginning of an id. URLs, headers and cookies allow it; nothing else in ids has it."""

FORWARDED: Final = "isthmus.forwarded"
"""The member of a scope whose request came from another node, and is not forwarded again."""


class Nodes(Protocol):
    """The nodes of a cluster."""

    @property
    def prefix(self) -> str:
        """What ids of this node begin with; empty without a cluster."""

    @property
    def has_others(self) -> bool:
        """Whether there is another node now."""

    def forward(self, id: str, peer: Peer, scope: Message, body: bytes) -> asyncio.Future[None] | None:
        """Forward a whole request to the node that made this id; None if it is to be answered here.

        The future is done when the response has ended.
        """

    def forward_to(self, holder: str, peer: Peer, scope: Message, body: bytes) -> asyncio.Future[None] | None:
        """The same for the node that holds a task (`Document.holder`)."""

    def forward_conversation(self, id: str, peer: Peer, scope: Message, body: bytes) -> asyncio.Future[None] | None:
        """The same for the node whose servers know this conversation: the node that made its id, if it is alive.

        Otherwise all nodes choose the same one.
        """

    def forward_caller(self, caller: Caller, peer: Peer, scope: Message, body: bytes) -> asyncio.Future[None] | None:
        """The same for the node with this caller's processes outside of sessions; all nodes choose the same one."""


class NoNodes:
    """A hub without a cluster."""

    prefix = ""
    has_others = False

    def forward(self, id: str, peer: Peer, scope: Message, body: bytes) -> asyncio.Future[None] | None:
        """Everything is answered here."""
        return None

    def forward_to(self, holder: str, peer: Peer, scope: Message, body: bytes) -> asyncio.Future[None] | None:
        """Everything is answered here."""
        return None

    def forward_conversation(self, id: str, peer: Peer, scope: Message, body: bytes) -> asyncio.Future[None] | None:
        """Everything is answered here."""
        return None

    def forward_caller(self, caller: Caller, peer: Peer, scope: Message, body: bytes) -> asyncio.Future[None] | None:
        """Everything is answered here."""
        return None


ALONE: Final = NoNodes()


def new_id(nodes: Nodes, random_bytes: int) -> str:
    """A new id that nobody can guess."""
    return nodes.prefix + secrets.token_urlsafe(random_bytes)
