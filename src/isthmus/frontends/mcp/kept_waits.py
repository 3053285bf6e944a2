"""Those who listen to a task of the hub's own: who waits for its result, who is told of it, and who follows it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import msgspec

from isthmus.core.calls.hub import Hub
from isthmus.core.calls.inflight import InFlight, OpenQuestion
from isthmus.core.ports.exchange import Report
from isthmus.core.tasks.engine import Engine
from isthmus.core.tasks.live import Live
from isthmus.core.tasks.record import Record
from isthmus.core.tasks.reports import Noted
from isthmus.core.watch.tasks import Task, kept_task
from isthmus.frontends.mcp.asking import CROWDED, GONE
from isthmus.frontends.mcp.kept_states import announced, modern_members, question_of, result_of
from isthmus.model.callers import Caller
from isthmus.model.events import Progress
from isthmus.model.faults import Draining
from isthmus.model.names import ServerName
from isthmus.model.questions import GIVEN_UP, NOT_ASKED, TOO_LATE, Reply
from isthmus.wire.jsonrpc import Payload
from isthmus.wire.mcp.inputs import ASKED_OF
from isthmus.wire.mcp.tasks import related_to

Tell: TypeAlias = Callable[[Mapping[str, Payload]], None]

UNSAID: tuple[Reply, ...] = (GIVEN_UP, TOO_LATE, GONE, CROWDED, NOT_ASKED)
"""No answers of the caller's: who waits too, or asks for the result next, is asked once more. What a task's maker could
not be asked was never put to the task."""


class Waiting:
    """A caller that waits for a task's result; what the task asks is asked on its stream."""

    def __init__(self, engine: Engine, inflight: InFlight, live: Live) -> None:
        self._engine = engine
        self._inflight = inflight
        self._live = live
        self._number = 0
        """Of the question that it was asked last."""
        self._is_mute = False
        """It said that it can be asked, and cannot: its stream takes no requests, or has taken too many."""
        self._open: OpenQuestion | None = None
        live.listeners[self] = None
        self.moved(live.kept or live.record)

    def moved(self, record: Record) -> None:
        """See `core.tasks.draft.Listener`."""
        if record.is_ended:
            self.leave()
            self._inflight.finish(result_of(record))
        else:
            self._look(record)

    def happened(self, record: Record, noted: Noted) -> None:
        """Progress is told to who asked for it, with the call."""

    def left(self) -> None:
        """See `core.tasks.draft.Leaving`; who waits can ask again."""
        self.leave()
        self._inflight.finish(Draining())

    def leave(self) -> None:
        """Wait no longer; whoever waits too is asked instead."""
        self._live.listeners.pop(self, None)
        self._pass_on()

    def _pass_on(self) -> None:
        """Have another one of those that wait asked what the task asks now."""
        record = self._live.kept or self._live.record
        if record.asked is None or self._live.record.is_ended:
            return
        if (other := self._first(record.asked.method)) is not None:
            other.moved(record)

    def _first(self, method: str) -> Waiting | None:
        """Who of those that wait is asked so: each question is put once, to one that said it can be asked it."""
        waiting = (each for each in self._live.listeners if isinstance(each, Waiting))
        return next((each for each in waiting if each.can_be_asked(method)), None)

    def can_be_asked(self, method: str) -> bool:
        """Whether its conversation is one to which such a question can be put."""
        return not self._is_mute and ASKED_OF.get(method) in self._inflight.call.client_caps

    def _look(self, record: Record) -> None:
        """Ask what is asked now, and let be what is not asked any more."""
        number = 0 if record.asked is None else record.asked.number
        if self._open is not None and number != self._number:
            asked, self._open = self._open, None
            asked.take_back()
        question = question_of(record)
        if question is not None and number != self._number and self._first(question.method) is self:
            self._number = number
            self._open = self._inflight.ask(question, self._answered)

    def _answered(self, reply: Reply) -> None:
        self._open = None
        asked = self._live.record.asked
        if reply == NOT_ASKED:
            self._is_mute = True
            self._pass_on()
        elif reply not in UNSAID and asked is not None and asked.number == self._number:
            self._engine.answer(self._live, None, reply)


class News:
    """Tells a caller's conversations of a task, and who made it of its progress; nothing before it was answered."""

    def __init__(
        self,
        hub: Hub,
        caller: Caller,
        server: ServerName,
        on_end: Callable[[Live], None],
        *,
        session: str | None,
        report: Report | None = None,
    ) -> None:
        """`session` is the conversation that asked for the task; None if nobody is told."""
        self._hub = hub
        self._caller = caller
        self._server = server
        self._on_end = on_end
        self._session = session
        self._report = report
        self._live: Live | None = None
        self._task: Task | None = None

    def begin(self, live: Live) -> None:
        """The caller was answered with the task."""
        self._live = live
        if self._session is not None:
            self._task = kept_task(self._caller, self._server, self._session, announced(live.record))
        # uvloop reads from servers before it wakes who waits for the task to be kept: a quick one has reported by then.
        for noted in live.reports.after(0):
            self.happened(live.record, noted)
        if live.kept is not None and live.kept.state != "working":
            self.moved(live.kept)

    def moved(self, record: Record) -> None:
        """See `core.tasks.draft.Listener`."""
        if self._live is None:
            return
        if self._task is not None:
            self._hub.tasks.announce(self._task, announced(record))
        if record.is_ended:
            self._over(self._live)

    def happened(self, record: Record, noted: Noted) -> None:
        """Progress goes on to reach who asked for it, under its token."""
        event = noted.event
        if self._live is not None and self._report is not None and isinstance(event, Progress):
            self._report(msgspec.structs.replace(event, members=related_to(record.id, event.members)))

    def _over(self, live: Live) -> None:
        live.listeners.pop(self, None)
        self._on_end(live)


class Following:
    """Tells a modern caller how a task stands, first and whenever that changes."""

    def __init__(self, live: Live, tell: Tell) -> None:
        self._live = live
        self._tell = tell

    def look(self) -> None:
        """Tell from now on."""
        record = self._live.kept or self._live.record
        if not record.is_ended:
            self._live.listeners[self] = None
        self.moved(record)

    def moved(self, record: Record) -> None:
        """See `core.tasks.draft.Listener`."""
        if record.is_ended:
            self.stop()
        self._tell(modern_members(record))

    def happened(self, record: Record, noted: Noted) -> None:
        """Of a task's progress, that era tells nothing."""

    def stop(self) -> None:
        """Tell nothing more."""
        self._live.listeners.pop(self, None)
