"""Clusters over Unix sockets and over a real NATS server, on both event loops."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from itertools import count
from pathlib import Path

import pytest
import uvloop

from tests.cluster.nodes import Cluster
from tests.cluster.servers import NatsServer

_prefixes = count(1)


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """The server of tests that do it no harm."""
    server = NatsServer(tmp_path_factory.mktemp("nats")).start()
    yield server
    server.kill()


@pytest.fixture
def own_nats_server(tmp_path: Path) -> Iterator[NatsServer]:
    """A server for a test that kills it."""
    server = NatsServer(tmp_path).start()
    yield server
    server.kill()


@pytest.fixture(params=["unix", "nats"])
async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[Cluster]:
    with tempfile.TemporaryDirectory() as folder:  # shorter than pytest's: a socket's path is limited
        if request.param == "unix":
            made = Cluster("unix", f"{folder}/bus")
        else:
            server: NatsServer = request.getfixturevalue("nats_server")
            made = Cluster("nats", server.url, f"test{next(_prefixes)}")
        yield made
        await made.aclose()


@pytest.fixture
async def nats_cluster(nats_server: NatsServer) -> AsyncIterator[Cluster]:
    made = Cluster("nats", nats_server.url, f"test{next(_prefixes)}")
    yield made
    await made.aclose()
