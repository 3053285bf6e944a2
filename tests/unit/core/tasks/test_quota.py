"""How much is kept of what there is nothing to do about."""

from __future__ import annotations

import asyncio

import pytest

from isthmus.core.tasks import quota
from isthmus.core.tasks.draft import TooMuchSaid
from isthmus.core.tasks.live import Live
from isthmus.core.tasks.quota import BYTES_MAX, WINDOW_SECONDS, Quota
from isthmus.core.tasks.record import Owner
from isthmus.storage.memory import MemoryJournal
from tests.unit.core.doubles import call
from tests.unit.core.tasks.doubles import SECONDS, Workshop, draft

ANN, BEN = Owner("red", "ann"), Owner("blue", "ann")


def test_each_caller_has_so_much_in_an_hour() -> None:
    kept = Quota()
    assert kept.take(ANN, BYTES_MAX - 1, 10.0) == 0
    assert kept.take(ANN, 2, 20.0) == WINDOW_SECONDS - 10
    assert kept.take(ANN, 1, 20.0) == 0
    assert kept.take(BEN, BYTES_MAX, 20.0) == 0, "of another tenant"
    assert kept.take(ANN, 2, 10.0 + WINDOW_SECONDS) == 0


def test_one_message_is_always_kept_however_long() -> None:
    assert Quota().take(ANN, BYTES_MAX + 1, 0.0) == 0


async def test_who_tells_the_agent_nothing_to_do_is_kept_so_much_of_and_calls_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(quota, "BYTES_MAX", 2000)
    shop = Workshop(MemoryJournal())
    begun: list[Live] = []

    async def talk() -> None:
        while len(begun) < 10:
            begun.append(await shop.engine.begin(draft(None, state="input_required")))

    async with asyncio.timeout(SECONDS):
        with pytest.raises(TooMuchSaid, match=r"name a tool, or try in 60 min"):
            await talk()
        assert len(begun) > 1
        for _ in range(10):
            await shop.engine.begin(draft(call()))
    assert len(shop.sent) == 10
