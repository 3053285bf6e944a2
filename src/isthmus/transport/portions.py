"""What arrives, handed on in portions: one a turn of the loop, so that a peer that floods has its turn and no more.

A loop reads a stream as long as there is something to read. A few hundred kilobytes of tiny messages are tenths of a
second of work, during which nobody else would be heard.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

PORTION_BYTES = 16 * 1024
"""What is worked on at once: a large answer takes a few more turns, a flood of tiny messages some milliseconds."""


class Portions:
    """Stands between a transport and whoever takes its bytes; `pause` and `resume` are the transport's reading."""

    __slots__ = ("_is_open", "_pause", "_rest", "_resume", "_take")

    def __init__(self, take: Callable[[bytes], None], *, pause: Callable[[], None], resume: Callable[[], None]) -> None:
        self._take = take
        self._pause = pause
        self._resume = resume
        self._rest = b""
        self._is_open = True

    def feed(self, data: bytes) -> None:
        """Hand on what has arrived, the beginning of it at once."""
        if not self._rest and len(data) <= PORTION_BYTES:
            self._take(data)
        elif self._rest:
            self._rest += data
        else:
            self._rest = data
            self._pause()
            self._step()

    def finish(self) -> None:
        """Nothing more arrives: hand on all that is left."""
        while self._rest and self._is_open:
            self._hand_on()

    def stop(self) -> None:
        """Nobody takes anything any more."""
        self._is_open = False
        self._rest = b""

    def _step(self) -> None:
        if self._rest:
            self._hand_on()
        if self._rest:
            asyncio.get_running_loop().call_soon(self._step)
        elif self._is_open:
            self._resume()

    def _hand_on(self) -> None:
        portion, self._rest = self._rest[:PORTION_BYTES], self._rest[PORTION_BYTES:]
        self._take(portion)
