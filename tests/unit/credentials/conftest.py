"""Logins are looked for and renewed often here: the tests would otherwise mostly wait."""

from __future__ import annotations

import pytest

from isthmus.credentials import server_logins


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_logins, "CHECK_SECONDS", 0.02)
    monkeypatch.setattr(server_logins, "RENEWAL_SECONDS_MIN", 0.1)
