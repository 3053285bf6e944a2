"""Logins are looked for and renewed often here: the tests would otherwise mostly wait."""

from __future__ import annotations

import pytest

from isthmus.credentials import server_logins


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_logins, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(server_logins, "SOONEST_SECONDS", 0.1)
