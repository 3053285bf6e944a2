"""Bounds what all sockets of one relay agent use together: time per turn of the loop, memory for incomplete messages.

An agent that floods sixty sockets slows its neighbours no more than with one. If incomplete messages take too much
memory, the agent with the most loses one. The listener has one `AgentBandwidth` for all its sockets.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol
from weakref import WeakValueDictionary

AT_ONCE = 8
"""Jobs per turn: cleaning up one lost socket takes some tenths of a millisecond."""


class LoopTurns:
    """Runs jobs in order: the first few at once, the others in later turns of the loop.

    When a network fails, all its sockets end together; their clean-up must not hold the loop.
    """

    def __init__(self) -> None:
        self._left = AT_ONCE
        self._is_counting = False
        self._waiting: deque[Callable[[], None]] = deque()

    def do(self, work: Callable[[], None]) -> None:
        """Do it now, or in one of the next turns if enough was done in this one."""
        if not self._is_counting:
            self._is_counting = True
            asyncio.get_running_loop().call_soon(self._begin)
        if self._left and not self._waiting:
            self._left -= 1
            work()
        else:
            self._waiting.append(work)

    def _begin(self) -> None:
        """A turn begins."""
        self._left = AT_ONCE
        self._is_counting = bool(self._waiting)
        if self._is_counting:
            asyncio.get_running_loop().call_soon(self._begin)
        while self._waiting and self._left:
            self._left -= 1
            self._waiting.popleft()()


SLICE_SECONDS: Final = 0.0005
"""Time for one agent in one turn of the loop; short enough for the others not to notice."""

UNFINISHED_BYTES_MAX: Final = 256 * 1024 * 1024
"""Memory for all incomplete messages: a few of the longest, and thousands of ordinary ones."""


class Holder(Protocol):
    """Holds the beginning of a message until the rest arrives."""

    def give_up(self) -> None:
        """Discard it and close."""


class AgentShare:
    """The share of one agent."""

    def __init__(self, shares: AgentBandwidth) -> None:
        """For `AgentBandwidth.of`."""
        self.turns = shares.turns
        self._shares = shares
        self._turn = 0
        self._spent_seconds = 0.0
        """Time used in that turn."""
        self._is_called = False
        self._waiting: deque[Callable[[], None]] = deque()
        self._held: dict[Holder, int] = {}
        self.held_bytes = 0
        """Bytes of incomplete messages."""

    # -- time --------------------------------------------------------------------------------------------------------

    def has_time(self) -> bool:
        """Whether work may be done now; otherwise it waits behind other work of the agent."""
        if self._waiting:
            return False
        return self._turn != self._shares.turn or self._spent_seconds < SLICE_SECONDS

    def spend(self, seconds: float) -> None:
        """Note how long something took."""
        if self._turn != self._shares.turn:
            self._turn = self._shares.turn
            self._spent_seconds = 0.0
        self._spent_seconds += seconds
        if not self._shares.is_counting:
            self._shares.count()

    def later(self, work: Callable[[], None]) -> None:
        """Run a job in one of the next turns; the job reports its own time."""
        self._waiting.append(work)
        if not self._is_called:
            self._is_called = True
            asyncio.get_running_loop().call_soon(self._work_on)

    def _work_on(self) -> None:
        self._is_called = bool(self._waiting)
        if not self._is_called:
            return
        asyncio.get_running_loop().call_soon(self._work_on)
        self._turn, self._spent_seconds = self._shares.turn, 0.0
        for _ in range(len(self._waiting)):  # each only once
            self._waiting.popleft()()
            if self._spent_seconds >= SLICE_SECONDS:
                break

    # -- memory ------------------------------------------------------------------------------------------------------

    def hold(self, holder: Holder, held_bytes: int) -> None:
        """Record how many bytes `holder` holds; if the total is too much, the largest holder is closed."""
        grown_bytes = held_bytes - self._held.get(holder, 0)
        if held_bytes:
            self._held[holder] = held_bytes
        else:
            self._held.pop(holder, None)
        self.held_bytes += grown_bytes
        self._shares.grow(grown_bytes)

    def give_up_largest(self) -> None:
        """Close the largest holder."""
        holder = max(self._held, key=self._held.__getitem__)
        holder.give_up()
        if holder in self._held:
            self.hold(holder, 0)


class AgentBandwidth:
    """The shares of all agents. An agent without sockets is forgotten."""

    def __init__(self, unfinished_bytes_max: int = UNFINISHED_BYTES_MAX) -> None:
        self.turns = LoopTurns()
        """For work that may come for all sockets at once."""
        self.turn = 0
        """The number of the current turn; counted only in turns with work."""
        self.is_counting = False
        self._unfinished_bytes_max = unfinished_bytes_max
        self._held_bytes = 0
        self._groups: WeakValueDictionary[str | None, AgentShare] = WeakValueDictionary()

    def of(self, group: str | None) -> AgentShare:
        """The share of an agent; None is for sockets without one."""
        share = self._groups.get(group)
        if share is None:
            share = self._groups[group] = AgentShare(self)
        return share

    def count(self) -> None:
        """Count the next turn."""
        self.is_counting = True
        asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self.turn += 1
        self.is_counting = False

    def grow(self, grown_bytes: int) -> None:
        """Add to the total of incomplete bytes."""
        self._held_bytes += grown_bytes
        if grown_bytes > 0:
            while self._held_bytes > self._unfinished_bytes_max:
                max(self._groups.values(), key=_held_bytes).give_up_largest()


def _held_bytes(share: AgentShare) -> int:
    return share.held_bytes
