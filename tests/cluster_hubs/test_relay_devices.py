"""The tests of `tests.relay.test_devices`, with servers at one node, and callers and devices at another."""

from __future__ import annotations

import pytest

from tests.cluster_hubs.nodes import patient_raw_server
from tests.hubs import HubProcess
from tests.relay import test_devices
from tests.relay.test_devices import *  # noqa: F403

# Methods that the hub does not know are not carried between nodes.
del globals()["test_an_error_of_one_is_beside_the_answers_and_of_all_is_an_error"]


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch, hub: HubProcess) -> None:
    monkeypatch.setattr(test_devices, "raw_server", patient_raw_server(hub))
