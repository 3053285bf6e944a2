"""Every asynchronous test of the transports runs on both event loops: they buffer and close differently."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest_asyncio
import uvloop

from isthmus.core.background import BackgroundTasks
from isthmus.transport.egress import Egress
from isthmus.transport.http_client import HttpClient
from tests.unit.transport.doubles import Server


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Server]:
    async with Server() as listening:
        yield listening


@pytest_asyncio.fixture
async def background() -> AsyncIterator[BackgroundTasks]:
    background = BackgroundTasks("test")
    yield background
    await background.aclose()


@pytest_asyncio.fixture
async def client(server: Server, background: BackgroundTasks) -> AsyncIterator[HttpClient]:
    client = HttpClient(server.origin, Egress(), background, is_configured=True)
    yield client
    await client.aclose()
