"""A program that ends without shutting its service down, in one of several ways.

`python -m tests.library.programs.exits WAY LEDGER`. It prints the pids of its servers.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from isthmus.library import BlockingToolService, ServiceClosedError, ToolService, loop_thread
from tests.library.services import POLL_SECONDS, pay, raw_server, wait_for_line, with_servers


def children() -> list[str]:
    """The pids of this process's children."""
    return [pid for tasks in Path("/proc/self/task").glob("*/children") for pid in tasks.read_text().split()]


def hang_in_thread(service: ToolService, ledger: Path) -> None:
    """A thread in the middle of a call."""
    hung = threading.Thread(target=service.blocking.execute_tool, args=(pay("thread", "sleep:60"),), daemon=True)
    hung.start()
    wait_for_line(ledger, "thread")


def leave_stream(service: ToolService) -> None:
    """A stream that was begun and is neither read nor closed."""
    LEFT.append(service.blocking.execute_tool_stream(pay("stream", "progress:1,sleep:60")))
    assert next(LEFT[-1]).chunk_type == "progress"


def ask_late(service: ToolService) -> None:
    """Ask once everything is closed: first what was there, then for something new."""
    for ask in (lambda: service.blocking.execute_tool(pay("late")), BlockingToolService().initialize):
        try:
            print("answered", ask())
        except ServiceClosedError as error:
            print(error, flush=True)


def open_in_thread() -> None:
    """A thread that waits for a server which keeps silent."""
    silent = BlockingToolService(with_servers(raw_server("--mode", "hang_init,ignore_sigterm", name="silent")))
    threading.Thread(target=wait_to_be_refused, args=(silent,), daemon=True).start()
    while not any(ignores_sigterm(pid) for pid in children()):
        time.sleep(POLL_SECONDS)  # it has no other way to tell that closing it will take a while


def ignores_sigterm(pid: str) -> bool:
    """Whether a process has said so to the kernel."""
    ignored = Path(f"/proc/{pid}/status").read_text().partition("SigIgn:")[2].split()[0]
    return bool(int(ignored, 16) & 1 << signal.SIGTERM - 1)


def wait_to_be_refused(service: BlockingToolService) -> None:
    """Initialize it for as long as there is a program."""
    with suppress(ServiceClosedError):
        service.initialize()


TARDY = """
import sys, time
with open(sys.argv[1], "a") as notes:
    print("begun", file=notes, flush=True)
    sys.stdin.read()
    time.sleep(0.2)
    print("ended in good order", file=notes)
"""
"""A server that never answers, and takes a moment to end once its client is gone."""


async def give_up(notes: Path) -> None:
    """Stop waiting for a server that keeps silent."""
    tardy = {"name": "tardy", "command": sys.executable, "args": ["-c", TARDY, str(notes)]}
    opening = asyncio.create_task(ToolService().initialize(with_servers(tardy)))
    await asyncio.to_thread(wait_for_line, notes, "begun")
    opening.cancel()
    await asyncio.wait([opening])


LEFT: list[Any] = []
"""What is not even let go of before the end."""


def main(way: str, ledger: Path) -> None:
    """Make a service over two servers, and end."""
    service = ToolService()
    if way == "busy":
        atexit.unregister(loop_thread._stop)
        atexit.register(ask_late, service)  # what is registered first is done last
        atexit.register(loop_thread._stop)
    asyncio.run(service.initialize(with_servers(raw_server(ledger=ledger), raw_server(name="other"))))
    print(*children(), flush=True)
    match way:
        case "busy":
            hang_in_thread(service, ledger)
            leave_stream(service)
        case "opening":
            open_in_thread()
            print(*children(), flush=True)
        case "given up":
            asyncio.run(give_up(ledger.with_name("notes")))
        case "raise":
            raise SystemExit("said goodbye")
        case "killed":
            os.kill(os.getpid(), signal.SIGTERM)
        case _:
            raise AssertionError(way)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
