"""Which tasks of agents belong to which caller: who knows the id of another's task must not be able to go on with it.

Memory only, bounded, and without a clock: after a restart nobody goes on with an earlier task. All links to agents
share one, so that a link that is made anew knows what the one before it gave.
"""

from __future__ import annotations

from typing import NamedTuple

from isthmus.model.callers import Caller
from isthmus.model.names import ServerName

TASKS_OF_CALLER_MAX = 1_000
TASKS_MAX = 10_000
"""Of all callers together; the oldest are forgotten first."""


class _Owner(NamedTuple):
    tenant: str
    name: str


class _Task(NamedTuple):
    owner: _Owner
    server: ServerName
    id: str


class GivenTasks:
    """The tasks that callers were given, the oldest first."""

    def __init__(self) -> None:
        self._all: dict[_Task, None] = {}
        self._of: dict[_Owner, dict[_Task, None]] = {}

    def add(self, caller: Caller, server: ServerName, id: str) -> None:
        """A caller was given a task, or has just gone on with it."""
        task = _task(caller, server, id)
        self._forget(task)
        own = self._of.setdefault(task.owner, {})
        self._all[task] = own[task] = None
        if len(own) > TASKS_OF_CALLER_MAX:
            self._forget(next(iter(own)))
        elif len(self._all) > TASKS_MAX:
            self._forget(next(iter(self._all)))

    def has(self, caller: Caller, server: ServerName, id: str) -> bool:
        """Whether it is a task of this caller's."""
        return _task(caller, server, id) in self._all

    def _forget(self, task: _Task) -> None:
        if task not in self._all:
            return
        del self._all[task]
        own = self._of[task.owner]
        del own[task]
        if not own:
            del self._of[task.owner]


def _task(caller: Caller, server: ServerName, id: str) -> _Task:
    return _Task(_Owner(caller.tenant, caller.name), server, id)
