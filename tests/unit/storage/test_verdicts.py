"""Those who wait for a verdict hear theirs, whatever others do with theirs."""

from __future__ import annotations

import asyncio

from isthmus.core.ports.journal import Verdict
from isthmus.storage.verdicts import settle, tell_all


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
