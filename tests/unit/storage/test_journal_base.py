"""Those who wait for a verdict hear theirs, whatever others do with theirs."""

from __future__ import annotations

import asyncio
from collections import deque

import pytest

from isthmus.core.ports.journal import OnVerdict, Verdict
from isthmus.storage import verdicts
from isthmus.storage.verdicts import WriteProbe, settle, tell_all


def test_a_listener_that_fails_does_not_keep_the_others_from_their_verdicts() -> None:
    told: list[Verdict] = []

    def fail(_: Verdict) -> None:
        raise RuntimeError("a defect")

    tell_all([(told.append, "kept"), (fail, "kept"), (told.append, "conflict")])
    assert told == ["kept", "conflict"]


async def test_who_stopped_waiting_is_not_told() -> None:
    waiting: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
    settle(waiting, "kept")
    settle(waiting, "refused")
    assert await waiting == "kept"


async def test_a_failed_write_counts_only_if_one_of_our_own_fails_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "PROBE_SECONDS", 0.0)
    answers: deque[Verdict] = deque(["kept", "refused", "unknown", "conflict"])
    seen: list[bool] = []
    is_over = asyncio.Event()

    def write(done: OnVerdict) -> None:
        seen.append(probe.is_failing)
        asyncio.get_running_loop().call_soon(done, answers.popleft())
        if not answers:
            is_over.set()

    probe = WriteProbe(write)
    probe.suspect()
    probe.suspect()  # one at a time
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert seen == [False]
    assert not probe.is_failing
    probe.suspect()
    await is_over.wait()
    assert seen == [False, False, True, True]
    await asyncio.sleep(0)
    assert not probe.is_failing
