"""The caller's side of a running call, as the core sees it. Faces and the command line implement it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

import msgspec

from isthmus.model.events import Event, Progress
from isthmus.model.outcomes import Outcome
from isthmus.model.questions import OnReply, Question

if TYPE_CHECKING:
    from isthmus.core.calls.inflight import InFlight


class Exchange(Protocol):
    """Takes what happens to one call.

    All methods are synchronous and never wait: a link must not stand still because a caller reads slowly, so
    an implementation that cannot deliver at once keeps or drops by its own stated rule.
    """

    def emit(self, event: Event) -> None:
        """Something happened; the call goes on."""

    def ask(self, question: Question, reply: OnReply) -> None:
        """The server asks something; `reply` is called once, now or later, with the answer or a refusal."""

    def end(self, outcome: Outcome) -> None:
        """The call is over; called exactly once, and nothing follows."""


Report: TypeAlias = Callable[[Progress], None]


@runtime_checkable
class Lasting(Protocol):
    """An exchange whose caller hears progress even of what goes on after the answer."""

    def reporter(self) -> Report | None:
        """What tells the caller of it, and holds no more than that needs; None if the caller did not ask for it."""


class Aside:
    """An exchange of the hub's own, beside a caller's calls: what a server asks meanwhile is about one of those."""


@runtime_checkable
class Pausable(Protocol):
    """An exchange whose caller can be let go while the call runs, to come back for the rest."""

    def pause(self, seconds: float) -> None:
        """The server let the call's stream go for so long."""


@runtime_checkable
class Retracting(Protocol):
    """An exchange that can tell its caller that a question need not be answered."""

    def retract(self, reply: OnReply) -> None:
        """The question that came with this `reply` is not asked any more, and `reply` is called no more."""

    def retract_later(self, reply: OnReply) -> Callable[[], None] | None:
        """What tells the same after the call's end, which comes now; neither holds more than is needed for that."""


@runtime_checkable
class Sending(Protocol):
    """An exchange whose caller may be sent elsewhere by a question, and told when its user is done there."""

    def done(self, id: msgspec.Raw) -> None:
        """The user is done where the question of this id, which is the server's, sent them."""

    def done_later(self) -> Callable[[msgspec.Raw], None] | None:
        """What tells the same after the call's end, and holds no more than that needs; None if nothing can."""


@runtime_checkable
class Patient(Protocol):
    """An exchange that keeps whether its call was sent: it writes that first, and can wait itself for a server.

    Calls that have one last (`Call.lasts`).
    """

    def may_send(self, inflight: InFlight, send: Callable[[InFlight], None]) -> bool:
        """Its call has left every queue. Whether it may be sent now; else `send` is called once that is written."""

    def put_back(self, inflight: InFlight) -> bool:
        """Take a call back that was not sent, to start it anew later; False if it is to wait where it is.

        If it is taken back, nothing more is heard of it, not even an end.
        """
