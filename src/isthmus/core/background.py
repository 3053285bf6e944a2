"""The only place that starts long-lived asyncio tasks.

`BackgroundTasks` is the parent of every background task of one hub: links, supervisors, dials, listeners. If one of
them crashes, that is logged and the others continue. Calls never become background tasks; a call is an entry in a table
(see `core.calls`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

CLOSE_SECONDS = 5.0
"""How long closing waits for cancelled tasks; one that ignores cancellation is logged and abandoned."""


class BackgroundTasks:
    """A set of background tasks; its owner closes it."""

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
        """Start `work` as a task called `name`; `on_crash` receives an exception that is not a cancellation."""
        if self._is_closed:
            work.close()
            raise RuntimeError(f"Background tasks of {self._name!r} are closed: {name!r} cannot start")
        task = asyncio.get_running_loop().create_task(work, name=f"{self._name}/{name}")
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._ended(done, on_crash))
        return task

    def _ended(self, task: asyncio.Task[Any], on_crash: Callable[[BaseException], None] | None) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        # A defect of one task must not affect the others, so it ends here, loudly.
        _log().error("background task crashed", task=task.get_name(), exc_info=error)
        if on_crash is not None:
            on_crash(error)

    async def aclose(self) -> None:
        """Cancel every task and wait for them, at most `CLOSE_SECONDS`."""
        self._is_closed = True
        pending = {task for task in self._tasks if task is not asyncio.current_task()}
        for task in pending:
            task.cancel()
        if not pending:
            return
        _, stuck = await asyncio.wait(pending, timeout=CLOSE_SECONDS)
        for task in stuck:
            _log().error("background task ignored its cancellation", task=task.get_name())


def _log() -> Any:
    # Commands that make one request have a background, but no log, which is slow to load.
    import structlog  # noqa: PLC0415

    return structlog.get_logger(__name__)
