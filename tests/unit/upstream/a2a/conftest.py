"""Agents that have been greeted, of every kind."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from isthmus.upstream.a2a import remote_task
from tests.unit.upstream.a2a.scene import Scene, opened
from tests.unit.upstream.a2a.scripted import KINDS


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the pauses between polls."""
    monkeypatch.setattr(remote_task, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(remote_task, "POLL_SECONDS_MAX", 0.02)


@pytest_asyncio.fixture(params=KINDS, ids=" ".join)
async def every(request: pytest.FixtureRequest) -> AsyncIterator[Scene]:
    """One of each generation, in each binding."""
    async with opened(request.param) as scene:
        yield scene


@pytest_asyncio.fixture
async def scene() -> AsyncIterator[Scene]:
    """One of the latest kind."""
    async with opened() as scene:
        yield scene


@pytest_asyncio.fixture
async def plain() -> AsyncIterator[Scene]:
    """One that cannot stream."""
    async with opened(can_stream=False) as scene:
        yield scene
