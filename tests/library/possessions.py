"""What a program has at one moment: threads, tasks, processes, descriptors and hubs."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from dataclasses import dataclass

from isthmus.app.hub import RunningHub
from isthmus.library.loop_thread import LoopThread
from tests.conftest import children, descriptors
from tests.library.services import SETTLE_SECONDS

LOOK_SECONDS = 0.1
"""How often is looked what is left: each look takes the garbage collector a tenth of a second in the whole suite."""


@dataclass(frozen=True, slots=True)
class Possessions:
    """What this process has at one moment."""

    threads: frozenset[str]
    tasks: int
    processes: frozenset[int]
    descriptors: frozenset[int]
    hubs: int


def possessions() -> Possessions:
    """Count, with the owner's thread running as it does from the first service on."""
    owner = LoopThread.shared()
    gc.collect()
    return Possessions(
        threads=frozenset(f"{thread.name} {thread.ident}" for thread in threading.enumerate()),
        tasks=owner.call(lambda: len(asyncio.all_tasks(owner.loop))),
        processes=frozenset(children()),
        descriptors=frozenset(descriptors()),
        hubs=sum(1 for thing in gc.get_objects() if type(thing) is RunningHub),
    )


def left_behind(before: Possessions) -> dict[str, object]:
    """What there is more of than before, once nothing is or at last: a thread or a process takes a moment to be gone.

    Less is well: what earlier tests had may go only now.
    """
    deadline = time.monotonic() + SETTLE_SECONDS
    while (extra := _more(possessions(), before)) and time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)
    return extra


def _more(now: Possessions, before: Possessions) -> dict[str, object]:
    found: dict[str, object] = {
        "threads": now.threads - before.threads,
        "tasks": max(0, now.tasks - before.tasks),
        "processes": now.processes - before.processes,
        "descriptors": now.descriptors - before.descriptors,
        "hubs": max(0, now.hubs - before.hubs),
    }
    return {what: extra for what, extra in found.items() if extra}
