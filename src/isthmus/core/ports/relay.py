"""The servers that dialled in under an agent, as faces see them; and the whole relay, for who shows it.

`upstream.dialin` implements the first, `app` joins the second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from isthmus.model.names import ServerName
from isthmus.model.relay import Forgetting, RelayStatus


class Seat(Protocol):
    """One server of an agent: here, or away and remembered."""

    @property
    def server_id(self) -> str:
        """What it is called under its agent."""

    @property
    def server(self) -> ServerName:
        """What it is called in the hub."""

    @property
    def is_here(self) -> bool:
        """Whether it is connected and has been listed."""

    @property
    def welcome(self) -> bytes:
        """Its own answer to `initialize`, the text of a JSON object; empty if it gave none."""


class Arrival(NamedTuple):
    """A server that is connected and not listed yet."""

    label: str
    """Its `server_id`, or a default if it gave none."""
    is_named: bool
    """Whether it gave a `server_id`."""
    ended: asyncio.Future[None]
    """Done once the server is listed; cancelled if it is gone before."""


class Roster(Protocol):
    """One agent's servers. There is one for each agent that anybody connects under."""

    @property
    def agent(self) -> str:
        """The agent's key (`Claim.key`)."""

    def seats(self) -> Sequence[Seat]:
        """Its servers, in the order in which they first came; a new sequence when one joins, leaves or is renamed."""

    def arriving(self) -> Sequence[Arrival]:
        """Servers that are connected and not listed yet."""

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` when `seats` or a seat changes, until the returned function is called."""


class RelayBook(Protocol):
    """Shows the relay, and forgets who is away."""

    def status(self) -> RelayStatus:
        """Everything at this moment."""

    def forget(self, server: ServerName) -> Forgetting:
        """Keep nothing of a server that is away any longer."""
