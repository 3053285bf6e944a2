"""The tests of `tests.relay.test_arrivals`, with servers at one node, and devices at another.

A server connects and a device lists or calls at once: the node of the device has not heard of the server yet.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.cluster_hubs.nodes import cluster, split
from tests.hubs import HubProcess
from tests.relay.test_arrivals import *  # noqa: F403


@pytest_asyncio.fixture(scope="module", loop_scope="session")  # type: ignore[no-redef]  # instead of one hub
async def plain(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HubProcess]:
    relay = {"agents": {"patient": {"grace": 30}}}
    async with (
        cluster(tmp_path_factory.mktemp("arrivals"), "servers", "callers", relay=relay) as (_, (first, second)),
        split(first, second) as both,
    ):
        yield both
