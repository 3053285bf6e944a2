"""The only place that starts long-lived tasks.

A crew is the parent of every background task of one hub: links, supervisors, dials, listeners. One child's
crash stays its own: it is logged, its siblings go on, and whoever spawned it may be told. Calls never become
crew members; a call is an entry in a table (see `core.calls`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

log = structlog.get_logger(__name__)

CLOSE_SECONDS = 5.0
"""How long a closing crew waits for cancelled children; a child that ignores cancellation is reported and left."""


class BackgroundTasks:
    """A set of background tasks with one owner, who closes it."""

    def __init__(self, name: str = "hub") -> None:
        self._name = name
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(
        self,
        name: str,
        work: Coroutine[Any, Any, Any],
        *,
        on_crash: Callable[[BaseException], None] | None = None,
    ) -> asyncio.Task[Any]:
        """Start `work` as a child called `name`; `on_crash` hears of an exception that is not a cancellation."""
        if self._is_closed:
            work.close()
            raise RuntimeError(f"crew {self._name!r} is closed and cannot start {name!r}")
        task = asyncio.get_running_loop().create_task(work, name=f"{self._name}/{name}")
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._ended(done, on_crash))
        return task

    def _ended(self, task: asyncio.Task[Any], on_crash: Callable[[BaseException], None] | None) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        # A child's bug must not reach its siblings, so it ends here, loudly.
        log.error("background task crashed", task=task.get_name(), exc_info=error)
        if on_crash is not None:
            on_crash(error)

    async def aclose(self) -> None:
        """Cancel every child and wait for them, at most `CLOSE_SECONDS`."""
        self._is_closed = True
        pending = {task for task in self._tasks if task is not asyncio.current_task()}
        for task in pending:
            task.cancel()
        if not pending:
            return
        _, stuck = await asyncio.wait(pending, timeout=CLOSE_SECONDS)
        for task in stuck:
            log.error("background task ignored its cancellation", task=task.get_name())
