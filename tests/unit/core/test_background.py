"""Background tasks: one child's crash stays its own."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from isthmus.core import background as backgrounds
from isthmus.core.background import BackgroundTasks


async def fails() -> None:
    raise ZeroDivisionError


async def test_a_child_runs_under_its_name_and_leaves_when_done() -> None:
    background = BackgroundTasks("hub")

    async def work() -> str:
        task = asyncio.current_task()
        assert task is not None
        return task.get_name()

    assert await background.spawn("reconnector", work()) == "hub/reconnector"
    assert len(background) == 0


async def test_a_crash_is_logged_and_reported_and_costs_no_sibling() -> None:
    background = BackgroundTasks()
    received: list[BaseException] = []
    sibling = background.spawn("sibling", asyncio.Event().wait())
    with capture_logs() as logs:
        crashed = background.spawn("broken", fails(), on_crash=received.append)
        await asyncio.wait({crashed})
        await asyncio.sleep(0)
    assert [type(error) for error in received] == [ZeroDivisionError]
    assert [(line["event"], line["task"]) for line in logs] == [("background task crashed", "hub/broken")]
    assert not sibling.done()
    await background.aclose()


async def test_a_crash_without_a_callback_is_logged_all_the_same() -> None:
    background = BackgroundTasks()
    with capture_logs() as logs:
        await asyncio.wait({background.spawn("broken", fails())})
        await asyncio.sleep(0)
    assert len(logs) == 1


async def test_closing_cancels_every_child_and_waits_for_its_clean_up() -> None:
    background = BackgroundTasks()
    cleaned: list[str] = []
    started = asyncio.Event()

    async def tidy() -> None:
        try:
            started.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append("tidy")

    background.spawn("tidy", tidy())
    await started.wait()
    await background.aclose()
    assert cleaned == ["tidy"]
    assert len(background) == 0


async def test_a_closed_background_starts_nothing() -> None:
    background = BackgroundTasks()
    await background.aclose()
    with pytest.raises(RuntimeError, match="'late' cannot start"):
        background.spawn("late", fails())


async def test_a_child_that_ignores_its_cancellation_is_reported_and_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backgrounds, "CLOSE_SECONDS", 0.01)
    background = BackgroundTasks()
    release = asyncio.Event()
    started = asyncio.Event()

    async def stubborn() -> None:
        while not release.is_set():
            started.set()
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    task = background.spawn("stubborn", stubborn())
    await started.wait()
    with capture_logs() as logs:
        await background.aclose()
    assert [line["event"] for line in logs] == ["background task ignored its cancellation"]
    release.set()
    await task


async def test_a_child_may_close_its_own_background() -> None:
    background = BackgroundTasks()
    async with asyncio.timeout(30):
        await background.spawn("closer", background.aclose())
