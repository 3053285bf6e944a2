"""What the caller's side of a call does alike on every carrier of MCP.

Which events it passes on, how it is asked, and how it answers in the caller's era; how a message travels is the
carrier's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from isthmus.core.calls.inflight import InFlight
from isthmus.faces.mcp.asker import Asker
from isthmus.faces.mcp.dialogue import Answer, answer_call, event_notification
from isthmus.faces.mcp.faults import Era
from isthmus.faces.mcp.tasks import shown
from isthmus.model.calls import Call
from isthmus.model.events import Event, Log, LogLevel, is_at_least
from isthmus.model.outcomes import Outcome, Result
from isthmus.model.questions import NOT_ASKED, OnReply, Question
from isthmus.wire.jsonrpc import Payload


class CallerSide(ABC):
    """One call's caller. A carrier fills the slots in itself: going up for them would cost every call."""

    __slots__ = ("_asker", "_era", "_id", "_level", "_token", "call", "inflight")

    _asker: Asker | None
    """Knows how the caller is asked; without one it cannot be."""
    _era: Era
    _id: Payload
    _level: LogLevel | None
    """From which level on the caller hears what is logged; None if not at all."""
    _token: Payload | None
    """The caller's own for progress, if it asked for it and can take it."""
    call: Call
    inflight: InFlight | None
    """The running call, where it may have to wait for its caller to come back."""

    @abstractmethod
    def emit(self, event: Event) -> None:
        """See `core.ports.exchange.Exchange`."""

    @abstractmethod
    def end(self, outcome: Outcome) -> None:
        """See `core.ports.exchange.Exchange`."""

    @abstractmethod
    def say(self, message: bytes) -> None:
        """Tell the caller something while the call runs."""

    def ask(self, question: Question, reply: OnReply) -> None:
        """Ask the caller, in its era's way."""
        if self._asker is None:
            reply(NOT_ASKED)
        else:
            self._asker.ask(self, question, reply)

    def _told(self, event: Event) -> bytes | None:
        """An event as the caller hears it; None if it did not ask for such."""
        if isinstance(event, Log) and (self._level is None or not is_at_least(event.level, self._level)):
            return None
        return event_notification(event, self._token)

    def _answer_to(self, outcome: Outcome) -> Answer:
        """How the call ended, in the caller's era."""
        self.inflight = None  # it holds this side, which must not hold it
        if isinstance(outcome, Result) and outcome.is_question and self._asker is not None:
            outcome = self._asker.seal(self.call, outcome)
        return answer_call(self._id, shown(outcome, self.call), self._era, self.call.kind)
