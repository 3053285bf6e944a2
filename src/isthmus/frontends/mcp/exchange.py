"""What the caller's side of a call does alike on every carrier of MCP.

Which events it passes on, how it is asked, and how it answers in the caller's era; how a message travels is the
carrier's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial

import msgspec

from isthmus.core.calls.inflight import InFlight
from isthmus.core.ports.exchange import Report
from isthmus.frontends.mcp.asker import Asker
from isthmus.frontends.mcp.dialogue import Answer, answer_call, event_notification
from isthmus.frontends.mcp.faults import Era
from isthmus.frontends.mcp.tasks import shown, shown_event
from isthmus.model.callers import Caller
from isthmus.model.calls import Call
from isthmus.model.events import Event, Log, LogLevel, Progress, is_at_least
from isthmus.model.outcomes import Outcome, Result
from isthmus.model.questions import NOT_ASKED, OnReply, Question
from isthmus.wire.jsonrpc import Payload, notification, render
from isthmus.wire.mcp.inputs import COMPLETED, ELICITATION_ID


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

    def put(self, id: bytes, message: bytes) -> None:
        """See `asker.Askable`; nobody comes back to most streams."""
        self.say(message)

    def settle(self, id: bytes) -> None:  # noqa: B027 - a carrier that keeps nothing has nothing to do
        """See `asker.Askable`."""

    def ask(self, question: Question, reply: OnReply) -> None:
        """Ask the caller, in its era's way."""
        if self._asker is None:
            reply(NOT_ASKED)
        else:
            self._asker.ask(self, question, reply)

    def retract(self, reply: OnReply) -> None:
        """See `core.ports.exchange.Retracting`."""
        if self._asker is not None:
            self._asker.retract(self, reply)

    def retract_later(self, reply: OnReply) -> Callable[[], None] | None:
        """See `core.ports.exchange.Retracting`."""
        return None if self._asker is None else self._asker.outlive(reply, self._afterwards())

    def done(self, id: msgspec.Raw) -> None:
        """See `core.ports.exchange.Sending`; the modern era has no such word."""
        if self._era == "legacy":
            self.say(_done(id))

    def done_later(self) -> Callable[[msgspec.Raw], None] | None:
        """See `core.ports.exchange.Sending`."""
        say = self._afterwards() if self._era == "legacy" else None
        return None if say is None else lambda id: say(_done(id))

    def _told(self, event: Event) -> bytes | None:
        """An event as the caller hears it; None if it did not ask for such."""
        if isinstance(event, Log) and (self._level is None or not is_at_least(event.level, self._level)):
            return None
        return event_notification(shown_event(event, self.call.caller), self._token)

    def reporter(self) -> Report | None:
        """See `core.ports.exchange.Lasting`."""
        say = self._afterwards()
        if say is None or self._token is None:
            return None
        return partial(_report, say, bytes(self._token), self.call.caller)

    def _afterwards(self) -> Callable[[bytes], None] | None:
        """How the caller is told what it can do without, once the call is over; None if it cannot be."""
        return None

    def _answer_to(self, outcome: Outcome) -> Answer:
        """How the call ended, in the caller's era."""
        self.inflight = None  # it holds this side, which must not hold it
        if isinstance(outcome, Result) and outcome.asked_by and self._asker is not None:
            outcome = self._asker.seal(self.call, outcome)
        return answer_call(self._id, shown(outcome, self.call), self._era, self.call.kind)


def _done(id: msgspec.Raw) -> bytes:
    return notification(COMPLETED, render({ELICITATION_ID: id}))


def _report(say: Callable[[bytes], None], token: bytes, caller: Caller, event: Progress) -> None:
    message = event_notification(shown_event(event, caller), token)
    if message is not None:
        say(message)
