"""Waiting for servers that have just arrived: how long, and in which order answers are given afterwards.

No task waits: what is waited for are futures, and a timer ends each wait.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from weakref import WeakKeyDictionary

ARRIVAL_SECONDS = 1.0
"""How long a list waits for servers that are connected and have not listed their tools."""

SILENT_MAX = 1024
"""How many silent servers are remembered, with a name and without."""


class Patience:
    """Since when devices wait for each arriving server. All devices share it: a silent server is waited for once."""

    __slots__ = ("_doubted", "_loop", "_silent", "_since", "_unnamed")

    def __init__(self) -> None:
        """Needs a running loop."""
        self._loop = asyncio.get_running_loop()
        self._since: WeakKeyDictionary[asyncio.Future[None], float] = WeakKeyDictionary()
        self._silent: dict[tuple[str, str], float] = {}
        """Servers that did not answer when they were last waited for, by agent and `server_id`."""
        self._unnamed: Counter[str] = Counter()
        """How many servers without a `server_id` did so and are gone, by agent."""
        self._doubted: WeakKeyDictionary[asyncio.Future[None], bool] = WeakKeyDictionary()

    def is_known(self, arrival: asyncio.Future[None]) -> bool:
        """Whether some device has waited for it, or would have."""
        return arrival in self._since or arrival in self._doubted

    def left(self, arrival: asyncio.Future[None], seconds: float, name: tuple[str, str] | None = None) -> float:
        """How much is left of so many seconds since the first device began to wait; 0 or less if nothing is.

        `name` is the server's, if it has one: then it is the same server when it dials again.
        """
        now = self._loop.time()
        since = self._since.get(arrival)
        if since is None:
            since = self._since[arrival] = now if name is None else self._silent.get(name, now)
        return since + seconds - now

    def is_doubted(self, arrival: asyncio.Future[None], agent: str) -> bool:
        """Whether a server without a `server_id` is taken for a silent one that went and dials again.

        Such servers cannot be told apart, so for each that went silently the next one that comes is doubted.
        """
        is_doubted = self._doubted.get(arrival)
        if is_doubted is None:
            is_doubted = self._doubted[arrival] = self._unnamed[agent] > 0
            self._unnamed[agent] -= is_doubted
            if not self._unnamed[agent]:
                del self._unnamed[agent]
        return is_doubted

    def ended(self, arrival: asyncio.Future[None], agent: str, server_id: str | None, *, is_here: bool) -> None:
        """A server has been listed, or is gone; if it was waited for in vain, that is remembered."""
        since, name = self._since.get(arrival), (agent, server_id or "")
        was_vain = since is not None and self._loop.time() - since >= ARRIVAL_SECONDS
        if is_here:
            self._silent.pop(name, None)
        elif server_id is None:
            if (was_vain or self._doubted.get(arrival)) and self._unnamed.total() < SILENT_MAX:
                self._unnamed[agent] += 1
        elif since is not None and was_vain:
            if name not in self._silent and len(self._silent) >= SILENT_MAX:
                del self._silent[next(iter(self._silent))]
            self._silent[name] = since


class Wait:
    """One wait for several servers. `on_arrival` is called after each, `on_due` once: after the last, or in time."""

    __slots__ = ("_arrivals", "_on_arrival", "_on_due", "_open", "_timer")

    def __init__(
        self,
        arrivals: Sequence[asyncio.Future[None]],
        seconds: float,
        on_due: Callable[[], None],
        on_arrival: Callable[[], None] | None = None,
    ) -> None:
        self._arrivals = arrivals
        self._open = len(arrivals)
        self._on_due = on_due
        self._on_arrival = on_arrival
        for arrival in arrivals:
            arrival.add_done_callback(self._arrived)
        self._timer = asyncio.get_running_loop().call_later(seconds, self._be_due)

    def _arrived(self, _: asyncio.Future[None]) -> None:
        self._open -= 1
        if not self._open:
            self._be_due()
        elif self._on_arrival is not None:
            self._on_arrival()

    def _be_due(self) -> None:
        self.stop()
        self._on_due()

    def stop(self) -> None:
        """Wait no longer, and leave no callback behind on the futures."""
        for arrival in self._arrivals:
            arrival.remove_done_callback(self._arrived)
        self._arrivals = ()
        self._timer.cancel()


class _Answer:
    """One answer until it is given."""

    __slots__ = ("_line", "_wait", "give", "id", "is_due")

    def __init__(self, line: Waiting, id: bytes, give: Callable[[], None]) -> None:
        self._line = line
        self._wait: Wait | None = None
        self.id = id
        self.give = give
        self.is_due = False

    def wait_for(self, arrivals: Sequence[asyncio.Future[None]], seconds: float) -> None:
        self._wait = Wait(arrivals, seconds, self._be_due)

    def _be_due(self) -> None:
        self.is_due = True
        self._line.advance()

    def stop(self) -> None:
        if self._wait is not None:
            self._wait.stop()


class Waiting:
    """One device's line of answers: none is given before those that were asked for earlier."""

    __slots__ = ("_answers",)

    def __init__(self) -> None:
        self._answers: list[_Answer] = []

    def __len__(self) -> int:
        return len(self._answers)

    def add(
        self, id: bytes, give: Callable[[], None], arrivals: Sequence[asyncio.Future[None]] = (), seconds: float = 0.0
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
