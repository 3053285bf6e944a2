"""Snapshots of what a process holds: threads, tasks, child processes, descriptors and hubs."""

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
"""Between two counts: each takes the garbage collector a tenth of a second in the whole suite."""


@dataclass(frozen=True, slots=True)
class ProcessResources:
    """What this process holds at one moment."""

    threads: frozenset[str]
    tasks: int
    processes: frozenset[int]
    descriptors: frozenset[int]
    hubs: int


def process_resources() -> ProcessResources:
    """Count them; this starts the owner's thread, which runs from the first service on."""
    owner = LoopThread.shared()
    gc.collect()
    return ProcessResources(
        threads=frozenset(f"{thread.name} {thread.ident}" for thread in threading.enumerate()),
        tasks=owner.call(lambda: len(asyncio.all_tasks(owner.loop))),
        processes=frozenset(children()),
        descriptors=frozenset(descriptors()),
        hubs=sum(1 for thing in gc.get_objects() if type(thing) is RunningHub),
    )


def leaked_since(before: ProcessResources) -> dict[str, object]:
    """What this process holds beyond `before`; waits, since threads and processes take a moment to end.

    Having less is fine: resources of earlier tests may be released only now.
    """
    deadline = time.monotonic() + SETTLE_SECONDS
    while (extra := _more(process_resources(), before)) and time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)
    return extra


def _more(now: ProcessResources, before: ProcessResources) -> dict[str, object]:
    found: dict[str, object] = {
        "threads": now.threads - before.threads,
        "tasks": max(0, now.tasks - before.tasks),
        "processes": now.processes - before.processes,
        "descriptors": now.descriptors - before.descriptors,
        "hubs": max(0, now.hubs - before.hubs),
    }
    return {kind: extra for kind, extra in found.items() if extra}
