"""Writes of one turn of the event loop, made together at its end.

A write wakes its reader at once. While many requests are worked on in one turn, readers that are woken one by one
answer one by one, and every answer costs a switch between processes; woken together they work in batches. The
hub's client and its door hold their writes back until everything that had arrived was read.
"""

from __future__ import annotations

import asyncio
from typing import Protocol


class Writer(Protocol):
    """Something that holds back what it has to write."""

    def flush(self) -> None:
        """Write it now."""


class WriteBatch:
    """Holds writers until the turn's end. Nothing is held longer than that, and order is kept."""

    __slots__ = ("_writers",)

    def __init__(self) -> None:
        self._writers: list[Writer] = []

    def add(self, writer: Writer) -> None:
        """Have `writer` flushed at the end of this turn."""
        if not self._writers:
            asyncio.get_running_loop().call_soon(self._pull)
        self._writers.append(writer)

    def _pull(self) -> None:
        writers, self._writers = self._writers, []
        for writer in writers:
            writer.flush()
