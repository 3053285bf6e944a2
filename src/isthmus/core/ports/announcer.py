"""Links that can be asked to tell of updates of single resources, and whose they are. `upstream` implements them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from isthmus.model.callers import Caller
from isthmus.model.faults import Fault
from isthmus.model.questions import NO_CAPABILITIES, ClientCapabilities


class Follower(NamedTuple):
    """Who follows a resource: a caller, what it can be asked, and which of its conversations it does so in."""

    caller: Caller
    client_caps: ClientCapabilities = NO_CAPABILITIES
    session: str = ""


class Announcer(Protocol):
    """Asks one server, on one link."""

    async def subscribe(self, uri: str) -> None:
        """Have the server tell when this resource is updated; raises `Fault` if it refuses or cannot be reached."""

    def unsubscribe(self, uri: str) -> None:
        """Tell it that nobody wants to know any more; what it answers is of no interest."""


class Owners(Protocol):
    """Those links of one server that not everybody shares."""

    def __bool__(self) -> bool:
        """Whether there are any, or will be soon, or have to be."""

    def refusal(self, follower: Follower) -> Fault | None:
        """Why the server is not asked anything for this one."""

    def is_apart(self, follower: Follower) -> bool:
        """Whether the server knows this one by itself, so that what it tells everybody is none of its business."""

    def own(self, follower: Follower) -> Sequence[Announcer]:
        """Those on which this one's calls go, as far as they are there."""

    def ask_too(self, follower: Follower, links: Sequence[Announcer], uri: str) -> None:
        """Have links that may stand in for this one's own asked to tell of a resource, which nobody waits for."""
