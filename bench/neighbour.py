"""One device that calls in a steady beat while something happens to the others, and says how long it ever waited.

Called by `bench.crowd`. It calls whether or not it was answered, so that a hub that stands still for a while is seen
by all the calls of that while.
"""

from __future__ import annotations

import asyncio
from threading import Event, Thread
from typing import Self

import uvloop

from bench.devices import OPEN_SECONDS, Device, Line, connect
from bench.load import GRACE_SECONDS, WrongAnswer

BEAT_SECONDS = 0.005


class Beating(Device):
    """Calls when it is told to."""

    def call(self) -> None:
        """Call once."""
        self._transport.write(self._next())

    def is_answered(self) -> bool:
        """Whether nothing is on the way."""
        return not self._sent

    async def leave(self) -> None:
        """Call no more; whatever becomes of the connection is no failure."""
        for waited_for in (self.welcomed, self.ended):
            waited_for.cancel()
        self._transport.abort()
        await asyncio.sleep(0)  # which is when it is told that it is gone

    def _go_on(self, now: float) -> bytes:
        return b""


class Neighbour:
    """Calls on a line, from a thread of its own, for as long as its `with` block lasts."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._is_done = Event()
        self._thread = Thread(target=self._run)
        self._failure: Exception | None = None
        self.latencies: list[float] = []

    @property
    def worst(self) -> float:
        """The longest that it waited, in seconds."""
        return max(self.latencies)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_done.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            uvloop.run(self._call())
        except (WrongAnswer, OSError, TimeoutError) as error:
            self._failure = WrongAnswer(f"the neighbour was not served: {str(error) or type(error).__name__}")

    async def _call(self) -> None:
        device = await connect(self._line, 1, Beating)
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                await device.welcomed
            await self._beat(device)
        finally:
            await device.leave()
        self.latencies = device.latencies

    async def _beat(self, device: Beating) -> None:
        while not self._is_done.is_set():
            _check(device)
            device.call()
            await asyncio.sleep(BEAT_SECONDS)
        async with asyncio.timeout(GRACE_SECONDS):
            while not device.is_answered():
                _check(device)
                await asyncio.sleep(BEAT_SECONDS)


def _check(device: Device) -> None:
    if device.ended.done():
        device.ended.result()
