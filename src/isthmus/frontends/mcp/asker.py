"""How a caller is asked something, whatever era it speaks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from isthmus.core.calls.inflight import InFlight
from isthmus.model.calls import Call
from isthmus.model.events import Event
from isthmus.model.outcomes import Outcome, Result
from isthmus.model.questions import OnReply, Question


class Askable(Protocol):
    """A caller's side of a call, to which a question can be put: by a message, or by letting it go with a result."""

    call: Call
    inflight: InFlight | None

    def emit(self, event: Event) -> None:
        """See `core.ports.exchange.Exchange`."""

    def ask(self, question: Question, reply: OnReply) -> None:
        """See `core.ports.exchange.Exchange`."""

    def end(self, outcome: Outcome) -> None:
        """See `core.ports.exchange.Exchange`."""

    def say(self, message: bytes) -> None:
        """Tell the caller something while the call runs."""

    def put(self, id: bytes, message: bytes) -> None:
        """Send the caller a request under this id, and again if it comes back before `settle`."""

    def settle(self, id: bytes) -> None:
        """A request was answered, or need not be."""


class Asker(Protocol):
    """Puts questions to callers of one era."""

    def ask(self, where: Askable, question: Question, reply: OnReply) -> None:
        """Put a server's question to the caller; `reply` is called once, now or later."""

    def retract(self, where: Askable, reply: OnReply) -> None:
        """The question that came with this `reply` is not asked any more: tell the caller, where it can be told."""

    def outlive(self, reply: OnReply, say: Callable[[bytes], None] | None) -> Callable[[], None] | None:
        """The call ends and the question that came with this `reply` stays: keep nothing of the call.

        Returns what takes the question back; `say` tells the caller what it can do without, if anything can.
        """

    def seal(self, call: Call, result: Result) -> Outcome:
        """A result that asks, as the caller may carry it; or why it cannot."""
