"""Long work lets others have their turn; short work is done at once."""

from __future__ import annotations

import asyncio
import threading

import pytest

from isthmus.core.pauses import LONG_BYTES, aside, pause_after

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize(("size", "turns"), [(LONG_BYTES, 0), (LONG_BYTES + 1, 1)])
async def test_others_have_a_turn_after_a_long_step(size: int, turns: int) -> None:
    seen: list[int] = []
    asyncio.get_running_loop().call_soon(seen.append, 1)
    await pause_after(size)
    assert len(seen) == turns


@pytest.mark.parametrize(("size", "is_here"), [(10, True), (11, False)])
async def test_long_work_is_done_on_a_thread(size: int, *, is_here: bool) -> None:
    assert (await aside(size, threading.get_ident, over=10) == threading.get_ident()) == is_here
