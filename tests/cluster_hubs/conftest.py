"""Two nodes for the tests of the relay: servers dial in at one, callers and devices are at the other."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from itertools import count

import pytest
import pytest_asyncio

from tests.cluster_hubs.nodes import cluster, split
from tests.hubs import HubProcess
from tests.relay.conftest import LAG_SECONDS, WAIT_SECONDS

_numbers = count(1)


@pytest.fixture
def new_agent() -> Callable[[], str]:
    """Makes an agent that nobody else has."""
    return lambda: f"agent{next(_numbers)}"


@pytest.fixture
def agent(new_agent: Callable[[], str]) -> str:
    return new_agent()


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def hub(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HubProcess]:
    relay = {"wait": WAIT_SECONDS, "agents": {"guest": {"allow": ["builtin.echo"]}}}
    folder, limits = tmp_path_factory.mktemp("relay"), {"lag_seconds": LAG_SECONDS}
    async with (
        cluster(folder, "servers", "callers", relay=relay, limits=limits) as (_, (first, second)),
        split(first, second) as both,
    ):
        yield both
    for each in (first, second):
        assert "Traceback" not in "".join(each.said), "".join(each.said)
