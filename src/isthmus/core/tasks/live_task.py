"""A task in memory. The engine keeps what becomes of it; to its call, it is the caller's side."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import structlog

from isthmus.core.audit.facts import Fact
from isthmus.core.calls.inflight import InFlight
from isthmus.core.ports.journal import Verdict
from isthmus.core.tasks.draft import Listener, Underway
from isthmus.core.tasks.login import is_login, login_of
from isthmus.core.tasks.record import Asked, Record, bytes_of, ending_of, state_after
from isthmus.core.tasks.reports import Reports
from isthmus.model.calls import Call
from isthmus.model.conversation import TaskState
from isthmus.model.events import Event
from isthmus.model.outcomes import Outcome
from isthmus.model.questions import Declined, OnReply, Question

if TYPE_CHECKING:
    from isthmus.core.tasks.engine import Engine
    from isthmus.core.tasks.waiting import Wait

log = structlog.get_logger(__name__)

ASKED_BYTES_MAX = 4 * 1024 * 1024
"""All that a task asks at once: it is kept, and told with how the task stands."""

TOO_MUCH = Declined(-32603, "The question is more than can be kept until the caller answers")


class Live:
    """A task in memory: its newest record, its running call, and who listens."""

    def __init__(self, engine: Engine, record: Record, *, is_kept: bool = False) -> None:
        self.record = record
        """The newest, which may not be kept yet."""
        self.kept: Record | None = record if is_kept else None
        """The newest that is kept: what anybody may be told."""
        self.listeners: dict[Listener, None] = {}
        self.reports = Reports()
        self.inflight: Underway | None = None
        self.reply: OnReply | None = None
        """Takes the answer to what the server asks."""
        self.questions: list[tuple[Asked, OnReply]] = []
        """What it asks besides, to be asked next."""
        self.asked = 0
        """How much was asked so far."""
        self.begun: asyncio.Future[Verdict] | None = None
        """What the journal says to the task itself, until it has."""
        self.wakes: list[asyncio.Future[None]] = []
        """Those who wait for what is being written."""
        self.send: Callable[[], None] | None = None
        """Sends the call, or starts the errand, once it is kept that it may have been sent."""
        self.writing_send: Callable[[], None] | None = None
        """The one of which that is being written."""
        self.is_starting = False
        """Whether its call is just finding its place: what becomes of it is written with what is written next."""
        self.size_bytes = 0
        self.counted_bytes = 0
        self.is_counted_open = False
        """See `core.tasks.allowance`."""
        self.is_writing = False
        self.is_stale = False
        """Whether what is being written is not the newest any more."""
        self.is_unsure = False
        """Whether something was written of which nobody knows if it is kept."""
        self.is_news = False
        """Whether there is something in what is not written yet that others are told."""
        self.waits_for_login = False
        """A call that its server did not begin because somebody has to log in first is no end of the task."""
        self.call: Call | None = None
        """The call of this turn, until it has ended; None if it is an errand, or was begun by somebody else."""
        self.since = record.created
        """When this turn began."""
        self.is_left = False
        """Whether the hub before this one left it unsent: it may wait for its server for as long as it may take."""
        self.wait: Wait | None = None
        """For its server, if that is away and the call was not sent."""
        self.notes: list[Fact] = []
        """What the audit log is to be told with what is written next."""
        self.noting: list[Fact] = []
        """What it is told with what is being written."""
        self.key = (record.owner.key, record.id)
        """What it is found under."""
        self._engine = engine

    # -- the caller's side of its call (see `core.ports.exchange.Exchange`) --------------------------------------------

    def emit(self, event: Event) -> None:
        """Remember it, and pass it on to who listens, once they know of the task at all."""
        noted = self.reports.note(event, self._engine.now())
        if (kept := self.kept) is None:
            return
        for listener in list(self.listeners):
            contained(partial(listener.happened, kept, noted))

    def ask(self, question: Question, reply: OnReply) -> None:
        """Wait for the task's next message; one thing is asked after the other."""
        self.asked += 1
        asked = Asked(question.method, question.params.copy(), self.asked)
        if sum(len(memoryview(each.params)) for each in (asked, *self._besides())) > ASKED_BYTES_MAX:
            reply(TOO_MUCH)
        elif self.reply is None:
            self._put(asked, reply)
        else:
            self.questions.append((asked, reply))
            self._engine.change(self, besides=self._besides())

    def _put(self, asked: Asked, reply: OnReply) -> None:
        self.reply = reply
        state: TaskState = "auth_required" if is_login(asked) else "input_required"
        self._engine.change(self, state=state, asked=asked, besides=self._besides())

    def _besides(self) -> tuple[Asked, ...]:
        return tuple(asked for asked, _ in self.questions)

    def ask_next(self) -> bool:
        """Ask what is to be asked next; False if that is nothing."""
        if not self.questions:
            return False
        self._put(*self.questions.pop(0))
        return True

    def take(self, number: int) -> OnReply | None:
        """Whom the answer to a question goes to that is asked besides; it is not asked any more."""
        found = [each for each in self.questions if each[0].number == number]
        return self._drop(found[0]) if found else None

    def _drop(self, each: tuple[Asked, OnReply]) -> OnReply:
        self.questions.remove(each)
        self._engine.change(self, besides=self._besides())
        return each[1]

    def retract(self, reply: OnReply) -> None:
        """See `core.ports.exchange.Retracting`."""
        if reply is self.reply:
            self.reply = None
            if not self.ask_next():
                self._engine.change(self, state="working", asked=None)
        for each in [each for each in self.questions if each[1] is reply]:
            self._drop(each)

    def retract_later(self, reply: OnReply) -> None:
        """The task has ended with its call, and asks nothing any more."""

    @property
    def noted_as(self) -> str:
        """See `core.ports.recorder.Noting`."""
        return self.record.id

    def note(self, fact: Fact) -> None:
        """See `core.ports.recorder.Noting`."""
        self.notes.append(fact)

    @property
    def notes_begin(self) -> bool:
        """See `core.ports.recorder.Noting`; an errand's call is begun by others."""
        return self.call is not None

    def may_send(self, inflight: InFlight, send: Callable[[InFlight], None]) -> bool:
        """See `core.ports.exchange.Patient`."""
        return self._engine.may_send(self, inflight, send)

    def put_back(self, inflight: InFlight) -> bool:
        """See `core.ports.exchange.Patient`."""
        return self._engine.put_back(self, inflight)

    def end(self, outcome: Outcome) -> None:
        """Keep how it ended."""
        self.inflight = None
        self.call = None
        self.reply = None
        self.questions.clear()
        if self.waits_for_login and (asked := login_of(outcome)) is not None:
            self._engine.change(self, state="auth_required", phase="idle", asked=asked)
            return
        ending, state = ending_of(outcome), state_after(outcome)
        if (refused := self._engine.allowance.refusal(self, bytes_of(ending))) is not None:
            ending, state = ending_of(refused), state_after(refused)
        self._engine.change(self, state=state, phase="over", ending=ending, asked=None, besides=(), pending=None)


def contained(tell: Callable[[], None]) -> None:
    """Tell a listener something."""
    try:
        tell()
    except Exception:  # one broken listener must not keep the others, or the server's link, from the news
        log.exception("a listener of a task failed")
