"""One timer for all deadlines: never early, a tick late at most, and independent of failing callbacks."""

from __future__ import annotations

import asyncio

from structlog.testing import capture_logs

from isthmus.core.calls.running_call import TICK_SECONDS, Deadlines


class Waiting:
    """Notes when its time came."""

    def __init__(self) -> None:
        self.expired: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    def expire(self) -> None:
        self.expired.set_result(asyncio.get_running_loop().time())

    def cancel(self, why: str) -> None:
        self.expired.cancel(why)


class Broken:
    """A defect, at the worst moment."""

    def expire(self) -> None:
        raise ZeroDivisionError

    def cancel(self, why: str) -> None: ...


async def test_a_deadline_is_never_early() -> None:
    loop = asyncio.get_running_loop()
    deadlines = Deadlines(loop)
    for seconds in (0.0, 0.001, TICK_SECONDS, 2.5 * TICK_SECONDS):
        waiting, began = Waiting(), loop.time()
        deadlines.add(waiting, seconds)
        async with asyncio.timeout(30):
            assert await waiting.expired - began >= seconds


async def test_deadlines_pass_in_their_order() -> None:
    deadlines = Deadlines(asyncio.get_running_loop())
    later, sooner = Waiting(), Waiting()
    deadlines.add(later, 4 * TICK_SECONDS)
    deadlines.add(sooner, TICK_SECONDS)
    async with asyncio.timeout(30):
        assert await sooner.expired < await later.expired


async def test_removed_deadlines_do_not_expire() -> None:
    deadlines = Deadlines(asyncio.get_running_loop())
    ended, waiting = Waiting(), Waiting()
    bucket = deadlines.add(ended, 0.0)
    deadlines.add(waiting, 0.0)
    del bucket[ended]
    async with asyncio.timeout(30):
        await waiting.expired
    assert not ended.expired.done()


async def test_with_nothing_to_wait_for_nothing_ticks_and_the_next_deadline_is_kept_again() -> None:
    deadlines = Deadlines(asyncio.get_running_loop())
    for _ in range(2):
        waiting = Waiting()
        deadlines.add(waiting, 0.0)
        async with asyncio.timeout(30):
            await waiting.expired
        await asyncio.sleep(0)
        assert deadlines._timer is None


async def test_a_defect_in_one_call_does_not_stop_the_clock_for_the_others() -> None:
    deadlines = Deadlines(asyncio.get_running_loop())
    same, later = Waiting(), Waiting()
    with capture_logs() as logs:
        deadlines.add(Broken(), 0.0)
        deadlines.add(same, 0.0)
        deadlines.add(later, 2 * TICK_SECONDS)
        async with asyncio.timeout(30):
            await same.expired
            await later.expired
    assert [line["event"] for line in logs] == ["a call failed to expire"]


async def test_everything_with_a_deadline_can_be_found() -> None:
    deadlines = Deadlines(asyncio.get_running_loop())
    soon, late, over = Waiting(), Waiting(), Waiting()
    deadlines.add(soon, 1.0)
    deadlines.add(late, 60.0)
    del deadlines.add(over, 60.0)[over]
    assert set(deadlines.pending()) == {soon, late}
