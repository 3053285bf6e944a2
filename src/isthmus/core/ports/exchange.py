"""The caller's side of a running call, as the core sees it. Faces and the command line implement it."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from isthmus.model.events import Event
from isthmus.model.outcomes import Outcome
from isthmus.model.questions import OnReply, Question


class Exchange(Protocol):
    """Takes what happens to one call.

    Both methods are synchronous and never wait: a link must not stand still because a caller reads slowly, so
    an implementation that cannot deliver at once keeps or drops by its own stated rule.
    """

    def emit(self, event: Event) -> None:
        """Something happened; the call goes on."""

    def ask(self, question: Question, reply: OnReply) -> None:
        """The server asks something; `reply` is called once, now or later, with the answer or a refusal."""

    def end(self, outcome: Outcome) -> None:
        """The call is over; called exactly once, and nothing follows."""


@runtime_checkable
class Pausable(Protocol):
    """An exchange whose caller can be let go while the call runs, to come back for the rest."""

    def pause(self, seconds: float) -> None:
        """The server let the call's stream go for so long."""
