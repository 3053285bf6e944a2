"""Logins are looked for and renewed often here: the tests would otherwise mostly wait."""

from __future__ import annotations

import pytest

from isthmus.credentials import login_tokens


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login_tokens, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(login_tokens, "SOONEST_SECONDS", 0.1)
