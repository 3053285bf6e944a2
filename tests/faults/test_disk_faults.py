"""The disk fails at one write or sync of the journal, again and again: acknowledged tasks stay (R20).

strace has the system call fail, with EIO or as if the disk were full, in a hub that runs and is sent tasks. It may not
attach everywhere, so this is for `make soak`; `make test` refuses writes by a limit (T69).
"""

from __future__ import annotations

import asyncio
import itertools
import random
import shutil
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.conftest import Ledger
from tests.faults import quick_server
from tests.faults.caller import Caller
from tests.faults.oracle import Record, judge
from tests.faults.test_tasks_crash import (
    ENDED,
    SECONDS,
    Load,
    check_nothing_is_unfinished,
    killed,
    outcomes,
    task_message,
)
from tests.faults.watching import eventually, note, times
from tests.hubs import stdio, write_config

POINTS = times(4, 100)
POINTS_EACH = 10
"""Of one hub, which is killed then."""
SEED = 20
FAULTS = tuple(itertools.product(("fdatasync", "pwrite64"), ("EIO", "ENOSPC")))
CALLS_MAX = 60
"""Within so many tasks, the journal writes as often as is needed to meet the fault."""

pytestmark = [
    pytest.mark.timeout(300 if POINTS < 100 else 3600),
    pytest.mark.soak,
]


@pytest.fixture
def strace() -> str:
    """The program, if it may be used here."""
    path = shutil.which("strace")
    if path is not None:
        return path
    pytest.skip("no strace on this machine; install it: sudo apt-get install strace")


@asynccontextmanager
async def failing(strace: str, pid: int, state: Path, call: str, error: str, when: int) -> AsyncIterator[Path]:
    """Have the so many-th call of this kind on the journal fail; what strace saw is in the file."""
    seen = state / "strace"
    seen.unlink(missing_ok=True)
    paths = [word for name in ("journal.db", "journal.db-wal") for word in ("-P", str(state / name))]
    words = (
        strace,
        "-f",
        "-p",
        str(pid),
        *paths,
        "-e",
        f"trace={call}",
        "-e",
        f"inject={call}:error={error}:when={when}",
    )
    process = await asyncio.create_subprocess_exec(
        *words, "-o", str(seen), stdin=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    line = await asyncio.wait_for(process.stderr.readline(), SECONDS)
    if b"attached" not in line:
        pytest.skip(f"strace may not attach here: {line.decode()}")
    try:
        yield seen
    finally:
        with suppress(ProcessLookupError):
            process.terminate()  # it lets go of the hub first
        await process.communicate()


class Submitter(Load):
    """Sends tasks, some of which are refused, and records each answer."""

    async def __aenter__(self) -> Submitter:
        return self

    async def submit(self, nonce: str, history: list[Record]) -> None:
        """Send a message that becomes a task."""
        body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": task_message(nonce, "pay")}
        answer: dict[str, Any] = (await self._client.post("/a2a", json=body)).json()
        if "result" in answer:
            self.acknowledged[answer["result"]["task"]["id"]] = nonce
        else:
            assert answer["error"]["code"] == -32603, answer
            history.append(Record(nonce, "no" if "not started" in answer["error"]["message"] else "unknown"))


async def test_a_disk_that_fails_at_any_write_loses_nothing_that_was_acknowledged(
    tmp_path: Path, ledger: Ledger, no_leftovers: None, strace: str
) -> None:
    config = write_config(
        tmp_path, {"quick": stdio(quick_server.command(ledger.path))}, limits={"listing_seconds": 30.0}
    )
    chance, numbers, history = random.Random(SEED), itertools.count(3, 3), list[Record]()
    acknowledged: dict[str, str] = {}
    met = 0
    points = iter(range(POINTS))
    while batch := list(itertools.islice(points, POINTS_EACH)):
        async with killed(config) as hub, Submitter(hub, 0) as load, Caller(hub.port) as caller:
            await check_nothing_is_unfinished(load)
            await outcomes(load, acknowledged)
            for point in batch:
                call, error = FAULTS[point % len(FAULTS)]
                async with failing(strace, hub.pid, tmp_path / "state", call, error, chance.randint(1, 6)) as seen:
                    met += await submit_until_injected(load, numbers, history, seen)
                    assert (await caller.call("builtin.echo", {"text": "still"})).text == "still"
                await eventually(partial(is_ready, load), "it heals")
            for task in load.acknowledged:
                await eventually(partial(has_ended, load, task), "each task ends")
            acknowledged |= load.acknowledged
    async with killed(config) as hub, Submitter(hub, 0) as load:
        history += await outcomes(load, acknowledged)
    assert judge(history, ledger.ran()) == []
    with closing(sqlite3.connect(tmp_path / "state" / "journal.db")) as journal:
        assert journal.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    refused = len(history) - len(acknowledged)
    note(seed=SEED, points=POINTS, faults_met=met, tasks=len(acknowledged), refused=refused)
    assert met > POINTS // 2


async def submit_until_injected(load: Submitter, numbers: Iterator[int], history: list[Record], seen: Path) -> bool:
    """Send tasks until the disk has failed; whether it has."""
    for number in itertools.islice(numbers, CALLS_MAX):
        await load.submit(f"0-{number}", history)
        if "INJECTED" in seen.read_text():  # noqa: ASYNC240 - strace writes a line or two
            return True
    return False


async def is_ready(load: Load) -> bool:
    try:
        return (await load._client.get("/readyz")).status_code == 200
    except httpx2.TransportError:
        return False


async def has_ended(load: Load, task: str) -> bool:
    return bool((await load.ask("GetTask", {"id": task}))["status"]["state"] in ENDED)
