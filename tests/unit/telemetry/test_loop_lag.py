"""A loop that is held is noticed, counted and named."""

from __future__ import annotations

import asyncio
import time

import pytest
from structlog.testing import capture_logs

from isthmus.telemetry.loop_lag import HELD_SECONDS, LoopMonitor


def hold_the_loop(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


async def beaten(monitor: LoopMonitor, holds: int) -> None:
    async with asyncio.timeout(10):
        while monitor.held < holds:  # noqa: ASYNC110 - a timer of the monitor's own sets it
            await asyncio.sleep(0.01)


@pytest.mark.asyncio
async def test_code_that_holds_the_loop_is_counted_and_named() -> None:
    monitor = LoopMonitor()
    with capture_logs() as logs:
        monitor.start()
        hold_the_loop(0.6)
        await beaten(monitor, 1)
        monitor.close()
    assert monitor.figures()["lag_seconds_max"] > 0.5
    assert monitor.busy_seconds_max > 0.5
    [received] = [entry for entry in logs if entry["event"] == "the event loop was blocked"]
    assert "test_loop_lag.hold_the_loop" in received["where"]
    assert received["busy"] > 0.5


@pytest.mark.asyncio
async def test_a_process_that_gets_no_processor_is_not_blamed() -> None:
    monitor = LoopMonitor()
    with capture_logs() as logs:
        monitor.start()
        time.sleep(10 * HELD_SECONDS)  # noqa: ASYNC251 - as if another process had the processor
        async with asyncio.timeout(10):
            while not monitor.last_seconds:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0)
        monitor.close()
    assert logs == []
    assert monitor.figures()["held"] == 0
    assert monitor.figures()["lag_seconds_max"] > 2 * HELD_SECONDS


@pytest.mark.asyncio
async def test_pieces_of_work_are_counted_by_their_length() -> None:
    monitor = LoopMonitor()
    monitor.start()
    before = monitor.figures()["busy_over"]
    assert set(before.values()) == {0}
    hold_the_loop(0.06)
    await beaten(monitor, 1)
    monitor.close()
    after = monitor.figures()["busy_over"]
    assert after["0.01"] >= after["0.05"] == 1
    assert after["0.5"] == 0


@pytest.mark.asyncio
async def test_a_loop_that_works_beats_more_often() -> None:
    monitor = LoopMonitor()
    monitor.start()
    async with asyncio.timeout(10):
        for _ in range(40):
            hold_the_loop(0.004)
            await asyncio.sleep(0)
    monitor.close()
    assert 0 < monitor.busy_seconds_max < HELD_SECONDS
