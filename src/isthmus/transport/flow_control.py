"""Reads and writes that leave time and memory to others: batched writes, portioned reads, bounds per relay agent.

Writes: `WriteBatch` makes the writes of one turn of the event loop together at its end, and `cut` closes a connection
so that nothing more leaves. Reads: `ReadQuota` passes received bytes on in portions, one per turn. An event loop reads
a stream as long as there is data, and a few hundred kilobytes of tiny messages are tenths of a second of work.

`AgentBandwidth` bounds what all sockets of one relay agent use together: time per turn, and memory for incomplete
messages. An agent that floods sixty sockets slows its neighbours no more than with one. If incomplete messages take too
much memory, the agent with the most loses one. The listener has one `AgentBandwidth` for all its sockets.

The HTTP client, WebSockets, processes and the listener use these.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from time import perf_counter
from typing import Final, Protocol
from weakref import WeakValueDictionary


def cut(transport: asyncio.Transport) -> None:
    """Close `transport` so that nothing it still holds is written, not even by a write already under way.

    uvloop's abort() alone leaves the write to run until the handle is closed, one turn of the loop later; a
    request reported as not sent could then still arrive.
    """
    if not transport.is_closing() and transport.get_write_buffer_size() > 0:
        sock = transport.get_extra_info("socket")
        with suppress(OSError), socket.fromfd(sock.fileno(), sock.family, sock.type) as twin:
            twin.shutdown(socket.SHUT_RDWR)
    transport.abort()


# -- writes --------------------------------------------------------------------------------------------------------


class BatchedWriter(Protocol):
    """Something that holds back what it has to write."""

    def flush(self) -> None:
        """Write it now."""


class WriteBatch:
    """Holds writers until the end of the turn of the event loop; order is kept.

    A write wakes its reader at once. Readers that are woken one by one answer one by one, and every answer costs a
    switch between processes; woken together they work in batches. So the client and the listener hold their writes
    back until everything that had arrived was read.
    """

    __slots__ = ("_writers",)

    def __init__(self) -> None:
        self._writers: list[BatchedWriter] = []

    def add(self, writer: BatchedWriter) -> None:
        """Have `writer` flushed at the end of this turn."""
        if not self._writers:
            asyncio.get_running_loop().call_soon(self._flush_all)
        self._writers.append(writer)

    def _flush_all(self) -> None:
        writers, self._writers = self._writers, []
        for writer in writers:
            writer.flush()


# -- the sockets of one relay agent --------------------------------------------------------------------------------

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

    def share_of(self, group: str | None) -> AgentShare:
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
                max(self._groups.values(), key=lambda share: share.held_bytes).give_up_largest()


# -- reads ---------------------------------------------------------------------------------------------------------

PORTION_BYTES = 16 * 1024
"""The portion: a large answer takes a few more turns, a flood of tiny messages some milliseconds."""

PORTION_SECONDS = 0.0005
SMALLEST_PORTION_BYTES = 512
"""A portion that took longer is followed by one of half the size, down to a few messages."""

SHORT_PORTION_BYTES = 2 * 1024
LEAST_PORTION_BYTES = 64
"""A portion of the first size that took longer than the second has expensive messages: the next portion is smaller."""


class ReadQuota:
    """Sits between a transport and its reader; `pause` and `resume` control the transport's reading."""

    __slots__ = ("_at", "_is_open", "_pause", "_rest", "_resume", "_take", "portion_bytes")

    def __init__(self, take: Callable[[bytes], None], *, pause: Callable[[], None], resume: Callable[[], None]) -> None:
        self.portion_bytes = PORTION_BYTES
        """The reader may change it for what follows."""
        self._take = take
        self._pause = pause
        self._resume = resume
        self._rest = b""
        self._at = 0
        self._is_open = True

    def feed(self, data: bytes) -> None:
        """Pass on received bytes, the first portion at once."""
        if not self._rest and len(data) <= self.portion_bytes:
            if len(data) <= SHORT_PORTION_BYTES:
                self._take(data)
            else:
                began = perf_counter()
                self._take(data)
                self._spend(perf_counter() - began)
        elif self._rest:
            self._rest = self._rest[self._at :] + data
            self._at = 0
        else:
            self._rest = data
            began, allowed_bytes = perf_counter(), self.portion_bytes
            self._hand_on()
            if self._rest and self.portion_bytes > allowed_bytes:  # the reader has seen that more costs little
                self._hand_on()
            self._spend(perf_counter() - began)
            if self._rest:
                self._pause()
                self._later()

    def has_rest(self) -> bool:
        """Whether received bytes wait to be passed on."""
        return bool(self._rest)

    def finish(self) -> None:
        """End of input: pass on everything that is left."""
        while self._rest and self._is_open:
            self._hand_on()

    def stop(self) -> None:
        """Drop what waits; the reader is gone."""
        self._is_open = False
        self._rest, self._at = b"", 0

    def let_go(self) -> None:
        """Release the reader. It usually refers back to this object; without the cycle both are freed at once."""
        self.stop()
        self._take = lambda _data: None
        self._pause = self._resume = lambda: None

    def _step(self) -> None:
        if self._rest:
            began = perf_counter()
            self._hand_on()
            self._spend(perf_counter() - began)
        if self._rest:
            self._later()
        elif self._is_open:
            self._resume()

    def _spend(self, seconds: float) -> None:
        """Make the next portion smaller if this one took long: a flood of tiny messages costs most per byte."""
        if seconds > PORTION_SECONDS:
            self.portion_bytes = max(self.portion_bytes // 2, SMALLEST_PORTION_BYTES)
        elif seconds < PORTION_SECONDS / 4 and self.portion_bytes < PORTION_BYTES:
            self.portion_bytes *= 2

    def _later(self) -> None:
        asyncio.get_running_loop().call_soon(self._step)

    def _hand_on(self) -> None:
        portion = self._rest[self._at : self._at + self.portion_bytes]
        self._at += len(portion)
        if self._at >= len(self._rest):
            self._rest, self._at = b"", 0
        self._take(portion)


class SharedReadQuota(ReadQuota):
    """A quota that several connections of one agent share."""

    __slots__ = ("_share",)

    def __init__(
        self, take: Callable[[bytes], None], share: AgentShare, *, pause: Callable[[], None], resume: Callable[[], None]
    ) -> None:
        super().__init__(take, pause=pause, resume=resume)
        self._share = share

    def feed(self, data: bytes) -> None:
        """Pass on received bytes, the first portion at once if the share has time left."""
        if self._rest:
            super().feed(data)
        elif not self._share.has_time():
            self._rest = data
            self._pause()
            self._later()
        elif len(data) <= self.portion_bytes:
            began = perf_counter()
            self._take(data)
            self._spend(perf_counter() - began)
        else:
            super().feed(data)

    def _spend(self, seconds: float) -> None:
        self._share.spend(seconds)
        if seconds > SLICE_SECONDS and self.portion_bytes <= SHORT_PORTION_BYTES:
            self.portion_bytes = max(self.portion_bytes // 4, LEAST_PORTION_BYTES)

    def _later(self) -> None:
        self._share.later(self._step)
