"""The tests of `tests.relay.test_devices`, with servers at one node, and callers and devices at another."""

from __future__ import annotations

import pytest

from tests.cluster_hubs.nodes import patient_raw_server
from tests.hubs import HubProcess
from tests.relay import test_devices
from tests.relay.test_devices import *  # noqa: F403


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch, hub: HubProcess) -> None:
    monkeypatch.setattr(test_devices, "raw_server", patient_raw_server(hub))
