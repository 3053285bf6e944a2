"""A live, initialised connection to one server, as the core sees it. `upstream` implements it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from isthmus.core.calls.inflight import InFlight
    from isthmus.core.watch.tasks import Place


class Link(Protocol):
    """Carries calls to a server.

    `send` puts the call on its way without waiting and later ends it by `InFlight.finish`; it may do so before it
    returns. It never raises and never sends a call twice.
    """

    def send(self, inflight: InFlight) -> None:
        """Put the call on its way."""

    def may_have_run(self, inflight: InFlight) -> bool:
        """False only if the request provably never left this process whole."""

    def withdraw(self, inflight: InFlight, reason: str) -> None:
        """Forget the call, which ends here, and tell the server to stop working on it."""


class Pooled(Link, Protocol):
    """Several links to one server, told apart by whose calls they carry."""

    def ended(self, inflight: InFlight) -> None:
        """A call that was sent on it is over."""

    def left(self, session: str) -> None:
        """A conversation is over: nobody comes any more for what was its alone."""


@runtime_checkable
class Versed(Protocol):
    """A link, or several, that may be able to ask its server for any method of the protocol."""

    takes_methods: bool


@runtime_checkable
class Placed(Protocol):
    """A link, or several, whose server may run calls as tasks."""

    def place_of(self, inflight: InFlight) -> Place | None:
        """Where a call was answered that has not ended here; None if that life of its link is over."""
