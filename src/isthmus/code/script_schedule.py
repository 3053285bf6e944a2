"""Which scripts run now, which wait for a worker, and which script starts its next call. No I/O.

A script takes a slot when it starts, of `[code] workers`. While it can do nothing before a person answers, it is
suspended: it keeps its process and frees its slot.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from typing import Generic, Protocol, TypeAlias, TypeVar

SUSPENDED_MAX = 32
SUSPENDED_OF_CALLER_MAX = 8
"""How many scripts are suspended at most: in all, and of one caller. Others keep their slots while they wait."""

CallerKey: TypeAlias = tuple[str, str]
"""A caller's tenant and name."""


class ScheduledScript(Protocol):
    """What the schedule needs of a script."""

    @property
    def owner(self) -> CallerKey:
        """Its caller, who has at most half of the slots."""

    @property
    def is_blocked_on_people(self) -> bool:
        """Whether it can do nothing before a person answers."""

    def start_worker(self) -> None:
        """It has a slot now."""

    def start_one_call(self) -> None:
        """It is its turn to start a call."""


_Script = TypeVar("_Script", bound=ScheduledScript)


class ScriptSchedule(Generic[_Script]):
    """The scripts of one hub by what they wait for."""

    def __init__(self, slots: int) -> None:
        """`slots` is how many scripts run at once."""
        self.slots = slots
        self.queued_count = 0
        self._loop = asyncio.get_running_loop()
        self._is_closed = False
        self._queues: OrderedDict[CallerKey, OrderedDict[_Script, None]] = OrderedDict()
        """Scripts that wait for a slot, by caller; callers take turns."""
        self._running: set[_Script] = set()
        self._running_of: Counter[CallerKey] = Counter()
        self._suspended: set[_Script] = set()
        self._starting: dict[_Script, None] = {}
        """Scripts with calls to start; they take turns."""
        self._has_started_call = False
        """A call was started in this turn of the event loop."""

    @property
    def running_count(self) -> int:
        """How many scripts have a slot."""
        return len(self._running)

    def add(self, script: _Script) -> None:
        """Start a script as soon as it has a slot."""
        self._queues.setdefault(script.owner, OrderedDict())[script] = None
        self.queued_count += 1
        self._fill_slots()

    def remove(self, script: _Script) -> None:
        """A script has ended, or is not to start."""
        self._unqueue(script)
        if script in self._running:
            self._free_slot(script)
        elif script in self._suspended:
            self._suspended.discard(script)
            self._suspend_others()
        self._fill_slots()

    def update(self, script: _Script) -> None:
        """Suspend a script that waits for people, or resume it: then it has a slot at once, even if none is free."""
        if script in self._suspended and not script.is_blocked_on_people:
            self._suspended.discard(script)
            self._take_slot(script)
            self._suspend_others()
        elif script in self._running and script.is_blocked_on_people and self._may_suspend(script):
            self._suspend(script)
        else:
            return
        self._fill_slots()

    def start_calls(self, script: _Script) -> None:
        """Have the calls of a script started: one call of one script in each turn of the event loop.

        So what other callers send is read after each, however many calls scripts make at once.
        """
        self._starting[script] = None
        if not self._has_started_call:
            self._start_one_call()

    def close(self) -> None:
        """Start no other script."""
        self._is_closed = True

    def all(self) -> list[_Script]:
        """All scripts that have not ended."""
        queued = [script for queue in self._queues.values() for script in queue]
        return [*self._running, *self._suspended, *queued]

    def _fill_slots(self) -> None:
        share = max(1, self.slots // 2)
        while not self._is_closed and len(self._running) < self.slots:
            owner = next((each for each in self._queues if self._running_of[each] < share), None)
            if owner is None:
                return
            script = next(iter(self._queues[owner]))
            self._unqueue(script)
            if owner in self._queues:
                self._queues.move_to_end(owner)
            self._take_slot(script)
            script.start_worker()

    def _unqueue(self, script: _Script) -> None:
        queue = self._queues.get(script.owner)
        if queue is not None and script in queue:
            del queue[script]
            self.queued_count -= 1
            if not queue:
                del self._queues[script.owner]

    def _take_slot(self, script: _Script) -> None:
        self._running.add(script)
        self._running_of[script.owner] += 1

    def _free_slot(self, script: _Script) -> None:
        self._running.discard(script)
        self._running_of[script.owner] -= 1
        if not self._running_of[script.owner]:
            del self._running_of[script.owner]

    def _may_suspend(self, script: _Script) -> bool:
        own = sum(each.owner == script.owner for each in self._suspended)
        return len(self._suspended) < SUSPENDED_MAX and own < SUSPENDED_OF_CALLER_MAX

    def _suspend(self, script: _Script) -> None:
        self._free_slot(script)
        self._suspended.add(script)

    def _suspend_others(self) -> None:
        """Suspend scripts for which there was no room before."""
        for script in [each for each in self._running if each.is_blocked_on_people]:
            if self._may_suspend(script):
                self._suspend(script)

    def _start_one_call(self) -> None:
        self._has_started_call = bool(self._starting)
        if self._starting:
            self._loop.call_soon(self._start_one_call)
            script = next(iter(self._starting))
            del self._starting[script]
            script.start_one_call()
