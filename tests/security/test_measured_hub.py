"""The instruments of T71: turns of the event loop, and the table of `soak_held_loop`."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.security.measured_hub import TurnMonitor
from tests.security.soak_held_loop import Measured

WORK_SECONDS = 0.03


def work(seconds: float) -> None:
    """Use that much processor time."""
    ends = time.thread_time() + seconds
    while time.thread_time() < ends:
        pass


@pytest.mark.asyncio
async def test_one_long_turn_differs_from_many_short_ones() -> None:
    monitor = TurnMonitor()
    monitor.start()
    try:
        await asyncio.sleep(0.01)
        monitor.figures()
        for _ in range(60):
            work(WORK_SECONDS / 60)
            await asyncio.sleep(0)
        short = monitor.figures()["turns"]
        await asyncio.sleep(0)
        work(WORK_SECONDS)
        await asyncio.sleep(0.01)
        long = monitor.figures()["turns"]
    finally:
        monitor.close()
    assert short["longest"] < 0.02, short
    assert short["all"] >= WORK_SECONDS * 0.9, short
    assert long["longest"] >= WORK_SECONDS, long
    assert long["seconds_over"]["0.02"] >= WORK_SECONDS, long


def test_a_row_has_shares_of_the_time_that_passed_and_the_ratio_to_the_quiet_p99() -> None:
    nothing = {"turns": {"longest": 0.0, "seconds_over": {"0.001": 1.0, "0.005": 0.5, "0.02": 0.0}}}
    after = {"turns": {"longest": 0.03, "seconds_over": {"0.001": 2.0, "0.005": 1.0, "0.02": 0.1}}}
    control = [(0.0005, 0.0)] * 100
    quiet = Measured("quiet", 10.0, nothing, nothing, [(0.001, 0.0)] * 100, control)
    found = Measured("strings", 10.0, nothing, after, [(0.001, 0.0)] * 98 + [(0.006, 0.003)] * 2, control, 7)
    assert found.row(quiet).split() == [
        "strings", "30.0ms", "10.00%", "5.00%", "1.00%", "1.00ms", "6.00ms", "3.00ms", "0.50ms", "3.0", "100", "7",
    ]  # fmt: skip
