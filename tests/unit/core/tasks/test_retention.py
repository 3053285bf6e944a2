"""Old tasks are deleted, with their documents."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from isthmus.core.access.approval_rules import EXPIRES_SECONDS_MAX
from isthmus.core.calls.running_call import TASK_QUESTION_SECONDS
from isthmus.core.ports import Document
from isthmus.core.tasks import retention
from isthmus.core.tasks.push_delivery import DELIVERY, STATES
from isthmus.core.tasks.record import DEDUP_KEY, KEY_SECONDS
from isthmus.core.tasks.retention import UNANSWERED_SECONDS, Retention
from tests.unit.core.doubles import DONE
from tests.unit.core.tasks.doubles import OWNER, SECONDS, Workshop, draft, turns


class Tidy:
    """A workshop with one task of each kind, and who tidies it up."""

    def __init__(self) -> None:
        self.shop = Workshop()
        self.keep = 100.0
        self.retention = Retention(self.shop.journal, self.shop.now, lambda: self.keep, self.shop.engine.forget_before)

    async def fill(self) -> None:
        engine = self.shop.engine
        await self.shop.begin(id="ended")
        self.shop.sent[0].finish(DONE)
        await self.shop.begin(id="running")
        await engine.begin(draft(None, state="input_required", id="waiting"))
        self.shop.journal._write([Document(DEDUP_KEY, OWNER.key, "key", 1, self.shop.seconds, b"{}")])
        await turns()

    async def left(self) -> set[str]:
        """The ids of what the engine finds."""
        ids = ("ended", "running", "waiting")
        return {id for id in ids if await self.shop.engine.find(OWNER, id) is not None}


async def test_ended_tasks_go_when_their_time_is_over() -> None:
    tidy = Tidy()
    await tidy.fill()
    assert await tidy.retention.prune() == 0
    assert await tidy.left() == {"ended", "running", "waiting"}
    tidy.shop.seconds += tidy.keep
    assert await tidy.retention.prune() == 1
    assert await tidy.left() == {"running", "waiting"}


async def test_abandoned_tasks_are_deleted_when_no_person_can_be_asked_any_more() -> None:
    tidy = Tidy()
    await tidy.fill()
    tidy.shop.seconds += UNANSWERED_SECONDS
    await tidy.retention.prune()
    assert await tidy.left() == {"running"}
    assert await tidy.shop.journal.read(DEDUP_KEY, OWNER.key, "key") is None


@pytest.mark.parametrize("seconds", [TASK_QUESTION_SECONDS, EXPIRES_SECONDS_MAX])
async def test_a_task_is_stored_for_as_long_as_a_person_may_be_asked(seconds: float) -> None:
    tidy = Tidy()
    await tidy.fill()
    tidy.shop.seconds += seconds
    await tidy.retention.prune()
    assert await tidy.left() == {"running", "waiting"}


async def test_deliveries_are_deleted_with_their_tasks() -> None:
    tidy = Tidy()
    at = tidy.shop.seconds
    for number, state in enumerate(STATES):
        tidy.shop.journal._write([Document(DELIVERY, OWNER.key, str(number), 1, at, b"{}", "t", state)])
    assert await tidy.retention.prune() == 0
    tidy.shop.seconds += tidy.keep
    assert await tidy.retention.prune() == len(STATES)


async def test_keys_hold_for_a_day_however_short_tasks_are_kept() -> None:
    tidy = Tidy()
    await tidy.fill()
    tidy.shop.seconds += KEY_SECONDS - 60.0
    await tidy.retention.prune()
    assert await tidy.shop.journal.read(DEDUP_KEY, OWNER.key, "key") is not None


async def test_how_long_tasks_are_kept_may_change() -> None:
    tidy = Tidy()
    await tidy.fill()
    tidy.keep = 0.5
    assert await tidy.retention.prune() == 1


async def test_it_looks_again_and_again_in_small_bites(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "RETENTION_SECONDS", (0.0, 0.0))
    monkeypatch.setattr(retention, "BATCH", 2)
    tidy = Tidy()
    bites: list[int] = []
    prune = tidy.shop.journal.prune

    async def counted(*given: Any, **more: Any) -> int:
        bites.append(await prune(*given, **more))
        return bites[-1]

    monkeypatch.setattr(tidy.shop.journal, "prune", counted)
    for number in range(5):
        await tidy.shop.begin(id=f"t{number}")
        tidy.shop.sent[-1].finish(DONE)
    await turns()
    running = asyncio.ensure_future(tidy.retention.run())
    await turns()
    tidy.shop.seconds += tidy.keep * 2
    async with asyncio.timeout(SECONDS):
        while (await tidy.shop.journal.page("task", OWNER.key, limit=9)).total:
            await turns()
    running.cancel()
    assert [bite for bite in bites if bite] == [2, 2, 1]


async def test_a_journal_that_refuses_does_not_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "RETENTION_SECONDS", (0.0, 0.0))
    tidy = Tidy()
    tries = 0
    done = asyncio.Event()

    async def refuse(*_: object, **__: object) -> int:
        nonlocal tries
        tries += 1
        if tries > 2:
            done.set()
        raise OSError("no room")

    monkeypatch.setattr(tidy.shop.journal, "prune", refuse)
    running = asyncio.ensure_future(tidy.retention.run())
    async with asyncio.timeout(SECONDS):
        await done.wait()
    running.cancel()


@pytest.mark.parametrize(("keep", "pause"), [(0.0, 1.0), (2.0, 2.0), (86_400.0, 3600.0)])
def test_it_looks_as_often_as_tasks_are_kept_but_neither_all_the_time_nor_never(keep: float, pause: float) -> None:
    assert retention.pause_seconds(keep) == pause


async def test_it_looks_at_once_on_request() -> None:
    tidy = Tidy()
    await tidy.fill()
    running = asyncio.ensure_future(tidy.retention.run())
    await turns()
    tidy.keep = 0.5
    assert await tidy.left() == {"ended", "running", "waiting"}
    tidy.retention.look_again()
    async with asyncio.timeout(SECONDS):
        while "ended" in await tidy.left():
            await turns()
    running.cancel()
