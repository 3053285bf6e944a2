"""Passes received bytes on in portions, one per turn of the loop, so that a flooding peer does not delay others.

An event loop reads a stream as long as there is data. A few hundred kilobytes of tiny messages are tenths of a second
of work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import perf_counter

from isthmus.transport.agent_bandwidth import SLICE_SECONDS, AgentShare

PORTION_BYTES = 16 * 1024
"""The portion: a large answer takes a few more turns, a flood of tiny messages some milliseconds."""


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
            self._take(data)
        elif self._rest:
            self._rest = self._rest[self._at :] + data
            self._at = 0
        else:
            self._rest = data
            self._pause()
            self._step()

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
        self._take = self._pause = self._resume = _nothing

    def _step(self) -> None:
        if self._rest:
            self._hand_on()
        if self._rest:
            self._later()
        elif self._is_open:
            self._resume()

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

    def _step(self) -> None:
        began = perf_counter()
        super()._step()
        self._spend(perf_counter() - began)

    def _spend(self, seconds: float) -> None:
        self._share.spend(seconds)
        if seconds > SLICE_SECONDS and self.portion_bytes <= SHORT_PORTION_BYTES:
            self.portion_bytes = max(self.portion_bytes // 4, LEAST_PORTION_BYTES)

    def _later(self) -> None:
        self._share.later(self._step)


def _nothing(*_: object) -> None:
    """The reader after `release`."""
