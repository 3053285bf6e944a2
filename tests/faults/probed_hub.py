"""A hub with probes and an adjustable wall clock: `python -m tests.faults.probed_hub serve …`.

SIGUSR1 writes the number of asyncio tasks to the file that PROBE_TASKS names. SIGUSR2 reads by how many seconds
`time.time` is wrong from then on, from the file that PROBE_CLOCK names; so does the start. SQLite, TLS and
`datetime.now` keep the system's clock.
"""

from __future__ import annotations

import asyncio
import os
import runpy
import signal
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

from tests.hubs import CHECKOUT, HubProcess, started, write_config

WAIT_SECONDS = 20.0


def install(tasks: Path, clock: Path) -> None:
    """Let the two signals look into this process."""
    system_time, offset = time.time, 0.0

    def step(*_: object) -> None:
        nonlocal offset
        offset = float(clock.read_text()) if clock.exists() else 0.0

    def count(*_: object) -> None:
        draft = tasks.with_suffix(".new")
        draft.write_text(str(len(asyncio.all_tasks(asyncio.get_running_loop()))))
        draft.replace(tasks)

    time.time = lambda: system_time() + offset
    step()
    signal.signal(signal.SIGUSR1, count)
    signal.signal(signal.SIGUSR2, step)


class ProbedHub:
    """The other side of the two signals."""

    def __init__(self, hub: HubProcess, folder: Path) -> None:
        self.hub = hub
        self._folder = folder

    async def tasks(self) -> int:
        """How many asyncio tasks the hub has."""
        file = self._folder / "probe-tasks"
        file.unlink(missing_ok=True)
        self.hub.process.send_signal(signal.SIGUSR1)
        async with asyncio.timeout(WAIT_SECONDS):
            while not file.exists():  # noqa: ASYNC110 - another process writes it
                await asyncio.sleep(0.01)
        return int(file.read_text())

    def step_clock(self, offset: float) -> None:
        """Have the hub's wall clock be wrong by so many seconds."""
        (self._folder / "probe-clock").write_text(str(offset))
        self.hub.process.send_signal(signal.SIGUSR2)


def probed(folder: Path, servers: Mapping[str, Any], **tables: Any) -> AbstractAsyncContextManager[ProbedHub]:
    """Run such a hub."""
    return probed_with(write_config(folder, servers, **tables))


@asynccontextmanager
async def probed_with(config: Path) -> AsyncIterator[ProbedHub]:
    """The same with a configuration, in its folder."""
    folder = config.parent
    env = {
        "PYTHONPATH": os.pathsep.join([str(CHECKOUT), str(CHECKOUT / "src")]),
        "PROBE_TASKS": str(folder / "probe-tasks"),
        "PROBE_CLOCK": str(folder / "probe-clock"),
    }
    async with started(folder, "--config", str(config), env=env, module="tests.faults.probed_hub") as hub:
        yield ProbedHub(hub, folder)


if __name__ == "__main__":
    install(Path(os.environ["PROBE_TASKS"]), Path(os.environ["PROBE_CLOCK"]))
    sys.argv[0] = "isthmus"
    runpy.run_module("isthmus", run_name="__main__", alter_sys=True)
