"""The tests of `tests.relay.test_dial`, with servers at one node, and callers and devices at another."""

from __future__ import annotations

import pytest

from tests.cluster_hubs.nodes import stands
from tests.hubs import HubProcess
from tests.relay import test_dial
from tests.relay.dialling import DialProcess
from tests.relay.test_dial import *  # noqa: F403

# Without "no_leftovers": the connections between both addresses are in this process.
pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.xdist_group("cluster")]


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch, hub: HubProcess) -> None:
    """The node with the socket tells the name some milliseconds before the other node has the server."""
    received = test_dial.offered

    async def offered(dial: DialProcess, *names: str) -> None:
        await received(dial, *names)
        for name in names:
            if not name.startswith("robot_"):  # of a hub that is alone
                await stands(hub, name, "ready")

    monkeypatch.setattr(test_dial, "offered", offered)
