"""Calls that wait for their callers to come back: what each keeps meanwhile, and how much all of them may.

Who comes back to which is not known here but to `comebacks`, which parks them.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeAlias

import msgspec

from isthmus.core.calls.inflight import InFlight
from isthmus.frontends.mcp.asker import Askable
from isthmus.model.calls import Call
from isthmus.model.events import Event
from isthmus.model.faults import BadReply, ServerError
from isthmus.model.outcomes import Outcome, Result
from isthmus.model.questions import TOO_LATE, Answered, Declined, OnReply, Question
from isthmus.wire.mcp.messages import is_object

MIB = 1024 * 1024

PARKED_MAX = 1_000
PARKED_EACH_MAX = 100
"""Calls of one caller that may wait here for it to come back."""

ASKED_BYTES_MAX = 4 * MIB
"""All questions of one call: a server that asks much must not use up what its caller may have kept."""

KEPT_BYTES_MAX = 256 * MIB
KEPT_EACH_BYTES_MAX = 32 * MIB
"""Questions and ends that are kept for one caller: room for one of the largest replies, and some."""

FULL = Declined(-32603, "Too many calls wait for their callers to come back")
LARGE = Declined(-32603, "The question is more than can be kept until the caller comes back")

Owner: TypeAlias = tuple[str, str]


def owner_of(call: Call) -> Owner:
    """Whose a call is."""
    return call.caller.tenant, call.caller.name


class Parked:
    """A call whose caller has to come back: stands in for it, and keeps what happens meanwhile."""

    def __init__(self, inflight: InFlight, lot: Lot) -> None:
        self.id = secrets.token_urlsafe(16)
        self.caller = inflight.call.caller
        self.owner = owner_of(inflight.call)
        self.number: str | None = None
        """Of the state that its caller has now: every other one has been brought back."""
        self.until = 0.0
        """When that ceases to hold."""
        self.where: Askable | None = None
        """The caller, until it is let go with the questions."""
        self.inflight: InFlight | None = inflight
        """The call, until it has ended."""
        self.questions: dict[str, tuple[Question, OnReply]] = {}
        self.outcome: Outcome | None = None
        self.on_end: Callable[[], None] = _nothing
        self.clock: asyncio.TimerHandle | None = None
        """Runs while an end is kept."""
        self.size_bytes = 0
        """What is kept here, as it was counted."""
        self._lot = lot
        self._asked_bytes = 0
        self._last = 0

    def emit(self, event: Event) -> None:
        """Nobody listens now."""

    def ask(self, question: Question, reply: OnReply) -> None:
        """Keep the question until the caller comes back, if there is room for it."""
        size = _size_of(question.params)
        if self._asked_bytes + size > ASKED_BYTES_MAX or not self._lot.take(self, size):
            reply(LARGE)
            return
        self._asked_bytes += size
        self._last += 1
        self.questions[f"q{self._last}"] = (msgspec.structs.replace(question, params=question.params.copy()), reply)

    def answer(self, key: str, answer: msgspec.Raw) -> None:
        """Give an answer to the server that asked; what is none leaves its question open."""
        if key in self.questions and is_object(answer):
            self._close(key)(Answered(answer))

    def retract(self, reply: OnReply) -> None:
        """Forget the question; whoever brings an answer to it comes back to how the call went on."""
        for key in [key for key, (_, each) in self.questions.items() if each is reply]:
            self._close(key)

    def retract_later(self, reply: OnReply) -> Callable[[], None]:
        """The same after the end, which is kept with the questions, within the same limits."""
        return partial(self.retract, reply)

    def end(self, outcome: Outcome) -> None:
        """Keep how the call ended until the caller comes back."""
        self.outcome = outcome if self.number is None else self._kept(outcome)
        self.inflight = None  # with its arguments, which nobody needs now
        self.on_end()

    def _kept(self, outcome: Outcome) -> Outcome:
        """What is kept for a caller that may stay away for minutes: its end, or that there was no room for it."""
        alone, size = _alone(outcome)
        if self.inflight is None or self._lot.take(self, size):
            return alone
        detail = f"{size} bytes, more than can be kept until the caller comes back"
        return BadReply(self.inflight.target.feature.server, detail)

    def close(self) -> None:
        """Nobody will come back with an answer."""
        if self.clock is not None:
            self.clock.cancel()
        for key in list(self.questions):
            self._close(key)(TOO_LATE)

    def _close(self, key: str) -> OnReply:
        question, reply = self.questions.pop(key)
        size = _size_of(question.params)
        self._asked_bytes -= size
        self._lot.give_back(self, size)
        return reply


class Lot:
    """What is parked: so many calls and so many bytes, in all and of each caller."""

    def __init__(self) -> None:
        self._parked: dict[str, Parked] = {}
        self._counts: dict[Owner, int] = {}
        self._bytes: dict[Owner, int] = {}
        self._size_bytes = 0

    def __len__(self) -> int:
        return len(self._parked)

    def __iter__(self) -> Iterator[Parked]:
        return iter(tuple(self._parked.values()))

    def find(self, id: str) -> Parked | None:
        """The parked call of this id."""
        return self._parked.get(id)

    def park(self, inflight: InFlight) -> Parked | None:
        """Let a call wait for its caller; None if too many do."""
        parked = Parked(inflight, self)
        if len(self._parked) >= PARKED_MAX or self._counts.get(parked.owner, 0) >= PARKED_EACH_MAX:
            return None
        self._parked[parked.id] = parked
        _add(self._counts, parked.owner, 1)
        return parked

    def leave(self, parked: Parked) -> None:
        """A call waits no longer: what it kept is the caller's now, or nobody's."""
        if parked.id in self._parked:
            self.give_back(parked, parked.size_bytes)
            del self._parked[parked.id]
            _add(self._counts, parked.owner, -1)
            parked.close()

    def take(self, parked: Parked, size: int) -> bool:
        """Let a parked call keep so many bytes more; False if that is too much."""
        if self._size_bytes + size > KEPT_BYTES_MAX or self._bytes.get(parked.owner, 0) + size > KEPT_EACH_BYTES_MAX:
            return False
        self._count(parked, size)
        return True

    def give_back(self, parked: Parked, size: int) -> None:
        """A parked call keeps so many bytes less; one that left has given back all."""
        if parked.id in self._parked:
            self._count(parked, -size)

    def _count(self, parked: Parked, size: int) -> None:
        parked.size_bytes += size
        self._size_bytes += size
        _add(self._bytes, parked.owner, size)


def _add(counts: dict[Owner, int], owner: Owner, more: int) -> None:
    """Count on; who has nothing is not in the table."""
    counts[owner] = counts.get(owner, 0) + more
    if not counts[owner]:
        del counts[owner]


def _size_of(raw: msgspec.Raw) -> int:
    return len(memoryview(raw))


def _alone(outcome: Outcome) -> tuple[Outcome, int]:
    """An outcome without the message that it came in, of which it may be a small part; and its size."""
    if isinstance(outcome, Result):
        return msgspec.structs.replace(outcome, payload=outcome.payload.copy()), _size_of(outcome.payload)
    if isinstance(outcome, ServerError) and outcome.data is not None and outcome.server is not None:
        data = outcome.data.copy()
        return ServerError(outcome.server, outcome.code, outcome.message, data), len(outcome.message) + _size_of(data)
    return outcome, len(outcome.message)


def _nothing() -> None: ...
