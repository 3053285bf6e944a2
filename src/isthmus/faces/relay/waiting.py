"""Answers that wait for servers which are just arriving, given in the order in which they were asked for.

No task waits: what is waited for are futures, and a timer sees to it that nobody waits longer than agreed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence


class _Answer:
    """One of them, until it is given."""

    __slots__ = ("_arrivals", "_line", "_open", "_timer", "give", "id", "is_due")

    def __init__(self, line: Waiting, id: bytes, give: Callable[[], None]) -> None:
        self._line = line
        self._arrivals: Sequence[asyncio.Future[None]] = ()
        self._open = 0
        self._timer: asyncio.TimerHandle | None = None
        self.id = id
        self.give = give
        self.is_due = False

    def wait_for(self, arrivals: Sequence[asyncio.Future[None]], seconds: float) -> None:
        self._arrivals = arrivals
        self._open = len(arrivals)
        for arrival in arrivals:
            arrival.add_done_callback(self._one_more)
        self._timer = asyncio.get_running_loop().call_later(seconds, self._be_due)

    def _one_more(self, _: asyncio.Future[None]) -> None:
        self._open -= 1
        if not self._open:
            self._be_due()

    def _be_due(self) -> None:
        self.stop()
        self.is_due = True
        self._line.advance()

    def stop(self) -> None:
        """Wait for nothing any more; who asks again and again must not leave a word for each time."""
        for arrival in self._arrivals:
            arrival.remove_done_callback(self._one_more)
        self._arrivals = ()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Waiting:
    """One device's line of answers: none is given before those that were asked for earlier."""

    __slots__ = ("_answers",)

    def __init__(self) -> None:
        self._answers: list[_Answer] = []

    def __len__(self) -> int:
        return len(self._answers)

    def add(
        self, id: bytes, give: Callable[[], None], arrivals: Sequence[asyncio.Future[None]], seconds: float
    ) -> None:
        """Have `give` called when all have arrived or the time is over, and its turn has come: perhaps at once."""
        if not arrivals and not self._answers:
            give()
            return
        answer = _Answer(self, id, give)
        self._answers.append(answer)
        if arrivals:
            answer.wait_for(arrivals, seconds)
        else:
            answer.is_due = True

    def drop(self, id: bytes) -> None:
        """Whoever asked under this id asks something else under it now, and would take the old answer for the new."""
        for answer in [answer for answer in self._answers if answer.id == id]:
            answer.stop()
            self._answers.remove(answer)
        self.advance()

    def hurry(self, id: bytes) -> None:
        """Have what was asked under this id given now, and whatever was asked for before it."""
        last = max((at for at, answer in enumerate(self._answers) if answer.id == id), default=-1)
        for answer in self._answers[: last + 1]:
            answer.stop()
            answer.is_due = True
        self.advance()

    def advance(self) -> None:
        """Give whatever is due and nobody stands before."""
        while self._answers and self._answers[0].is_due:
            self._answers.pop(0).give()

    def close(self) -> None:
        """Nobody is there any more."""
        for answer in self._answers:
            answer.stop()
        self._answers.clear()
