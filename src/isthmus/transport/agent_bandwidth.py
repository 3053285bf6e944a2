"""What the sockets of one group take of the hub together: time in a turn of the loop, memory for what is unfinished.

A group is whoever they belong to. Somebody who floods through sixty sockets slows a neighbour no more than through one,
and what is cut when too much is unfinished is cut where most of it is. The door has one `AgentBandwidth` for all it opens.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol
from weakref import WeakValueDictionary

AT_ONCE = 8
"""What is done in one turn: to see off whoever has gone takes some tenths of a millisecond."""


class LoopTurns:
    """Does things in the order in which they come, the first few at once."""

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
"""How long a group is worked for in one turn; whoever waits for their own turn hardly notices it."""

UNFINISHED_BYTES_MAX: Final = 256 * 1024 * 1024
"""What all messages that are not whole yet may hold: some of the longest, and thousands of usual ones."""


class Holder(Protocol):
    """Who keeps the beginning of a message until its end has come."""

    def give_up(self) -> None:
        """Let go of it, and be over."""


class AgentShare:
    """One group's."""

    def __init__(self, shares: AgentBandwidth) -> None:
        """For `AgentBandwidth.of`."""
        self.turns = shares.turns
        self._shares = shares
        self._turn = 0
        self._spent_seconds = 0.0
        """In that turn."""
        self._is_called = False
        self._waiting: deque[Callable[[], None]] = deque()
        self._held: dict[Holder, int] = {}
        self.held_bytes = 0
        """How much of messages that are not whole is kept."""

    # -- time --------------------------------------------------------------------------------------------------------

    def has_time(self) -> bool:
        """Whether something may be done at once; else it must wait, behind others of the group."""
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
        """Have something done in one of the next turns; it says itself what it took."""
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
        for _ in range(len(self._waiting)):  # nobody twice
            self._waiting.popleft()()
            if self._spent_seconds >= SLICE_SECONDS:
                break

    # -- memory ------------------------------------------------------------------------------------------------------

    def hold(self, holder: Holder, held_bytes: int) -> None:
        """Note how much `holder` keeps now; if that is too much of all, whoever keeps most gives up."""
        grown_bytes = held_bytes - self._held.get(holder, 0)
        if held_bytes:
            self._held[holder] = held_bytes
        else:
            self._held.pop(holder, None)
        self.held_bytes += grown_bytes
        self._shares.grow(grown_bytes)

    def give_up_largest(self) -> None:
        """Have the one who keeps most give up."""
        holder = max(self._held, key=self._held.__getitem__)
        holder.give_up()
        if holder in self._held:
            self.hold(holder, 0)


class AgentBandwidth:
    """Everybody's. A group that has no socket any more is forgotten."""

    def __init__(self, unfinished_bytes_max: int = UNFINISHED_BYTES_MAX) -> None:
        self.turns = LoopTurns()
        """For what may come for everybody at once."""
        self.turn = 0
        """Which turn of the loop it is, as far as something is done in it."""
        self.is_counting = False
        self._unfinished_bytes_max = unfinished_bytes_max
        self._held_bytes = 0
        self._groups: WeakValueDictionary[str | None, AgentShare] = WeakValueDictionary()

    def of(self, group: str | None) -> AgentShare:
        """A group's share; None is the group of whoever belongs to nobody."""
        share = self._groups.get(group)
        if share is None:
            share = self._groups[group] = AgentShare(self)
        return share

    def count(self) -> None:
        """Have the next turn counted."""
        self.is_counting = True
        asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self.turn += 1
        self.is_counting = False

    def grow(self, grown_bytes: int) -> None:
        """Note that so much more is kept, or less."""
        self._held_bytes += grown_bytes
        if grown_bytes > 0:
            while self._held_bytes > self._unfinished_bytes_max:
                max(self._groups.values(), key=_held_bytes).give_up_largest()


def _held_bytes(share: AgentShare) -> int:
    return share.held_bytes
