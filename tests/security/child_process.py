"""A child process as the hub starts it, for tests of its access, its limits and its leftovers."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from isthmus.transport.process import ProcessChannel, child_environment
from isthmus.transport.process_limits import ProcessLimits

SECONDS = 30.0


class Child:
    """A child, what it said, and why it ended."""

    def __init__(self) -> None:
        self.said = b""
        self.lost: str | None = None
        self.channel: ProcessChannel
        self._news = asyncio.Event()

    def on_bytes(self, data: bytes) -> None:
        """Take what it says."""
        self.said += data
        self._news.set()

    def ended(self, why: str) -> None:
        """Take why it ended."""
        self.lost = why
        self._news.set()

    async def line(self) -> bytes:
        """The first line that it says."""
        async with asyncio.timeout(SECONDS):
            while b"\n" not in self.said:
                assert self.lost is None, f"{self.lost}: {self.channel.stderr_tail}"
                self._news.clear()
                await self._news.wait()
        return self.said.partition(b"\n")[0]

    async def loss(self) -> str:
        """Why it ended, once it has."""
        async with asyncio.timeout(SECONDS):
            while self.lost is None:
                self._news.clear()
                await self._news.wait()
        return self.lost


@asynccontextmanager
async def running(
    script: str,
    *words: str,
    env: Mapping[str, str] | None = None,
    parent: Mapping[str, str] | None = None,
    limits: ProcessLimits | None = None,
) -> AsyncIterator[Child]:
    """Run a script as the hub runs its servers; `parent` is the hub's own environment."""
    child = Child()
    child.channel = await ProcessChannel.spawn(
        [sys.executable, "-c", script, *words],
        env=child_environment(env or {}, os.environ if parent is None else parent),
        cwd=None,
        on_bytes=child.on_bytes,
        on_lost=child.ended,
        limits=limits or ProcessLimits(),
    )
    try:
        yield child
    finally:
        child.channel.kill()
        await child.channel.aclose()
