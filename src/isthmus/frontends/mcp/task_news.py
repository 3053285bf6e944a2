"""Telling an earlier caller how its tasks stand, when their servers say so by themselves.

Held by whatever lasts on a face, a session or a conversation, and given up with it. Modern callers are told by
`task_polls`.
"""

from __future__ import annotations

from collections.abc import Callable

from isthmus.core.calls.hub import Hub
from isthmus.core.watch.tasks import Task
from isthmus.frontends.mcp.tasks import is_seen
from isthmus.model.callers import Caller
from isthmus.model.calls import Surface
from isthmus.model.questions import NO_CAPABILITIES, ClientCapabilities


class TaskNews:
    """One conversation's. `tell` is called with every task of its caller of which there is something to say."""

    def __init__(
        self,
        hub: Hub,
        caller: Caller,
        surface: Surface,
        tell: Callable[[Task], None],
        is_crowded: Callable[[], bool] = lambda: False,
        *,
        session: str = "",
        client_caps: ClientCapabilities = NO_CAPABILITIES,
    ) -> None:
        """`is_crowded` says that the caller reads slowly: it is then spared what only repeats a status."""
        self._hub = hub
        self._caller = caller
        self._surface = surface
        self._profile = client_caps
        self._tell = tell
        self._is_crowded = is_crowded
        self.close = hub.tasks.listen(caller, session, self._heard)
        """Hear nothing any more."""

    def _heard(self, task: Task, is_other: bool) -> None:  # noqa: FBT001 - the type of a listener
        view = self._hub.snapshot.view(self._caller.grants, self._surface, self._profile)
        if is_seen(task, view, self._surface) and (is_other or not self._is_crowded()):
            self._tell(task)
