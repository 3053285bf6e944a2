"""What a task has to do at a server that must be reached first, because a caller named it by its address."""

from __future__ import annotations

from collections.abc import Callable

from isthmus.core.ports.exchange import Exchange
from isthmus.core.ports.targets import Aim, Opened
from isthmus.core.tasks.draft import Underway
from isthmus.model.calls import Call
from isthmus.model.faults import Cancelled, Fault
from isthmus.model.outcomes import Outcome


class Errand:
    """Reaches a server and does there what `do` says: a call, or an end that needs none."""

    def __init__(self, aim: Aim, do: Callable[[Opened], Call | Outcome]) -> None:
        self._aim = aim
        self._do = do

    def start(self, exchange: Exchange) -> Underway:
        """See `core.tasks.draft.Errand`."""
        return _Way(self._aim, self._do, exchange)


class _Way:
    """An errand that has begun; see `core.tasks.draft.Underway`."""

    def __init__(self, aim: Aim, do: Callable[[Opened], Call | Outcome], exchange: Exchange) -> None:
        self._do = do
        self._exchange = exchange
        self._call: Underway | None = None
        self._outcome: Outcome | None = None
        self._give_up = aim.open(self._reached)

    @property
    def outcome(self) -> Outcome | None:
        """How it ended; None as long as it has not."""
        return self._outcome if self._call is None else self._call.outcome

    def cancel(self, why: str) -> None:
        """Give it up; what was never sent has not run."""
        if self._call is not None:
            self._call.cancel(why)
        elif self._outcome is None:
            self._give_up()
            self._end(Cancelled(why, executed="no"))

    def _reached(self, opened: Opened | Fault) -> None:
        if self._outcome is not None:
            return
        if isinstance(opened, Fault):
            self._end(opened)
            return
        work = self._do(opened)
        if isinstance(work, Call):
            self._call = opened.hub.start(work, self._exchange)
        else:
            self._end(work)

    def _end(self, outcome: Outcome) -> None:
        self._outcome = outcome
        self._exchange.end(outcome)
