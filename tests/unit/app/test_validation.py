"""The process that checks expensive arguments ends with its hub, whatever arrives in that moment."""

from __future__ import annotations

import asyncio

from isthmus.app.validation import ValidationWorker
from isthmus.core.background import BackgroundTasks
from tests.unit.core.doubles import Stage


async def test_a_worker_that_is_cancelled_as_a_call_arrives_ends() -> None:
    background = BackgroundTasks("test")
    worker = ValidationWorker(background, {})
    inflight, _ = Stage().start()
    inflight.cancel("the caller left")
    worker.validate(inflight, lambda _: None)
    for _ in range(10):
        await asyncio.sleep(0)  # until it waits for the next call
    (task,) = background._tasks
    worker.validate(inflight, lambda _: None)
    task.cancel()
    done, _ = await asyncio.wait([task], timeout=2.0)
    assert done, "the worker ignored its cancellation"
    assert task.cancelled()
