"""What frontends know of a cluster: ids name the node that made them, and a request with such an id belongs there.

Most ids are in a request's head, where `app.forwarding` finds them before a frontend sees the request. Frontends ask
about those that only the body has.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import Final, Protocol

from isthmus.frontends.http.request_cycle import Message, Peer

TAG_END: Final = "~"
"""Ends the tag of a node at the beginning of an id. URLs, headers and cookies allow it; nothing else in ids has it."""


class Nodes(Protocol):
    """The nodes of a cluster."""

    @property
    def prefix(self) -> str:
        """What ids of this node begin with; empty without a cluster."""

    def forward(self, id: str, peer: Peer, scope: Message, body: bytes) -> asyncio.Future[None] | None:
        """Forward a whole request to the node that made this id; None if it is to be answered here.

        The future is done when the response has ended.
        """

    def forward_to(self, holder: str, peer: Peer, scope: Message, body: bytes) -> asyncio.Future[None] | None:
        """The same for the node that holds a task (`Document.holder`)."""


class NoNodes:
    """A hub without a cluster."""

    prefix = ""

    def forward(self, id: str, peer: Peer, scope: Message, body: bytes) -> asyncio.Future[None] | None:
        """Everything is answered here."""
        return None

    def forward_to(self, holder: str, peer: Peer, scope: Message, body: bytes) -> asyncio.Future[None] | None:
        """Everything is answered here."""
        return None


ALONE: Final = NoNodes()


def new_id(nodes: Nodes, random_bytes: int) -> str:
    """A new id that nobody can guess."""
    return nodes.prefix + secrets.token_urlsafe(random_bytes)
