"""Who keeps count of what happened, and who must have written it down first. `telemetry` implements both."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from isthmus.core.audit.facts import Fact
from isthmus.model.calls import Call
from isthmus.model.names import ServerName
from isthmus.model.outcomes import Outcome

if TYPE_CHECKING:
    from isthmus.core.calls.inflight import InFlight


@runtime_checkable
class Noting(Protocol):
    """An exchange that keeps what becomes of its call: facts of the call go into the same commit."""

    @property
    def notes_begin(self) -> bool:
        """Whether it writes by itself that its call begins, before that is sent."""

    @property
    def noted_as(self) -> str:
        """What the records of its calls are known by."""

    def note(self, fact: Fact) -> None:
        """Write this with what is kept next, which is how the call ended."""


class Witness(Protocol):
    """Has calls written down before they are sent, and their ends before anybody hears of them."""

    waiting: int
    """Calls that are neither sent nor told for as long as something is being written."""

    def begin(self, inflight: InFlight, send: Callable[[InFlight], None]) -> None:
        """Write that a call is about to be sent, then `send` it; if it cannot be written, end it."""

    def ended(self, inflight: InFlight, server: ServerName | None, outcome: Outcome, seconds: float) -> None:
        """Write how a call ended, then have the in-flight entry `tell` that; or that it could not be written."""

    def begun(self, call: Call, id: str) -> Fact:
        """What is written before a call is sent, for somebody else to write."""


class Recorder(Protocol):
    """Hears of every call once, on the path of the call: implementations count, they do not format or write."""

    witness: Witness | None
    """None if nobody waits for anything to be written."""

    def ended(
        self, call: Call, server: ServerName | None, outcome: Outcome, seconds: float, link: object = None
    ) -> None:
        """A call is over; `server` is None when none was found for it, `link` when it was not sent."""

    def late(self, server: ServerName) -> None:
        """A server answered a call that had already ended, or that never was."""
