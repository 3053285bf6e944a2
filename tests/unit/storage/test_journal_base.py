"""Every waiter of a write result gets its own, whatever other waiters do."""

from __future__ import annotations

import asyncio
from collections import deque

import pytest

from isthmus.core.journal import OnWritten, WriteResult
from isthmus.storage import journal_base
from isthmus.storage.journal_base import WriteProbe, notify_all, set_result_once


def test_a_listener_that_fails_does_not_keep_the_others_from_their_verdicts() -> None:
    results: list[WriteResult] = []

    def fail(_: WriteResult) -> None:
        raise RuntimeError("a defect")

    notify_all([(results.append, "kept"), (fail, "kept"), (results.append, "conflict")])
    assert results == ["kept", "conflict"]


async def test_a_cancelled_waiter_is_not_called() -> None:
    waiting: asyncio.Future[WriteResult] = asyncio.get_running_loop().create_future()
    set_result_once(waiting, "kept")
    set_result_once(waiting, "refused")
    assert await waiting == "kept"


async def test_a_failed_write_counts_only_if_one_of_our_own_fails_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_base, "PROBE_SECONDS", 0.0)
    answers: deque[WriteResult] = deque(["kept", "refused", "unknown", "conflict"])
    seen: list[bool] = []
    is_done = asyncio.Event()

    def write(done: OnWritten) -> None:
        seen.append(probe.is_failing)
        asyncio.get_running_loop().call_soon(done, answers.popleft())
        if not answers:
            is_done.set()

    probe = WriteProbe(write)
    probe.probe()
    probe.probe()  # one at a time
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert seen == [False]
    assert not probe.is_failing
    probe.probe()
    await is_done.wait()
    assert seen == [False, False, True, True]
    await asyncio.sleep(0)
    assert not probe.is_failing
