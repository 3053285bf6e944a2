"""`python -m bench.code`: what a call costs inside a script, and how long a script takes to start.

A hub in this process has one server that answers at once. The same calls are made directly and by scripts, of which
some are durable (SQLite). A cost is CPU time of this process, and of the sandbox's processes; the least disturbed round
counts. Of a durable script it also prints the time and the writes of a call. The start is the time from the request to
the script's first call, its type check included, with a warm worker; that is the median. Ends with 1 when a promise is
not kept.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import NamedTuple

import uvloop
from msgspec import Raw

from bench.processes import cpu_clock_of
from bench.scenarios import CALLER, SERVER, hub_with_instant_server
from isthmus.code.scripts import RunningScript, ScriptRequest, Scripts
from isthmus.code.settings import CodeSettings
from isthmus.core.audit import Fact
from isthmus.core.background import BackgroundTasks
from isthmus.core.calls.hub import Hub
from isthmus.core.journal import Document, Journal, OnWritten
from isthmus.credentials.sealing import ProcessSealer
from isthmus.model.calls import EVERYTHING, Call, Event, OnReply, Outcome, Question, Result
from isthmus.storage.memory import MemoryJournal
from isthmus.storage.sqlite import SqliteJournal
from isthmus.transport.process_tree import descendants

PROMISED_MICROSECONDS = 300.0
PROMISED_MILLISECONDS = 25.0
FEW, MANY = 20, 420
"""Calls of a short and of a long script: their difference is free of what a script costs to start."""
ROUNDS = 8
STARTS = 40
OWNER = "bench\nbench"

ONCE = f"await {SERVER}_echo(text='x')"


class Ended:
    """An exchange that notes when and how a call or a script ends."""

    def __init__(self) -> None:
        self.done: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    def emit(self, event: Event) -> None:
        raise AssertionError(event)

    def ask(self, question: Question, reply: OnReply) -> None:
        raise AssertionError(question)

    def end(self, outcome: Outcome) -> None:
        self.done.set_result(outcome)


def sandbox_seconds() -> float:
    """The CPU time of the sandbox: of this process's children, their children, and what these have ended."""
    seconds = 0.0
    for pid in descendants(os.getpid()):
        with suppress(OSError):  # it has ended
            seconds += time.clock_gettime(cpu_clock_of(pid))
            # After the name, which may contain anything: the time of ended children is in the fields 16 and 17.
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            seconds += (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")
    return seconds


def loop_of(count: int) -> str:
    return f"for each in range({count}):\n    await {SERVER}_echo(text='x')\n"


class Cost(NamedTuple):
    """What some calls cost, in microseconds: CPU of the hub and of the sandbox, and their time."""

    hub: float
    sandbox: float
    time: float

    @property
    def cpu(self) -> float:
        """Of hub and sandbox."""
        return self.hub + self.sandbox

    def __str__(self) -> str:
        return f"{self.cpu:7.1f} µs  (hub {self.hub:.1f}, sandbox {self.sandbox:.1f})"


async def cost(work: Callable[[int], Awaitable[None]]) -> Cost:
    """The cost of one call."""
    few, many = await cost_of(lambda: work(FEW)), await cost_of(lambda: work(MANY))
    return Cost(*((long - short) / (MANY - FEW) for long, short in zip(many, few, strict=True)))


async def cost_of(work: Callable[[], Awaitable[None]]) -> Cost:
    """The cost of some work."""
    found = []
    workers = sandbox_seconds()
    for _ in range(ROUNDS):
        hub, began = time.process_time(), time.perf_counter()
        await work()
        found.append(((time.process_time() - hub) * 1e6, (time.perf_counter() - began) * 1e6))
    await asyncio.sleep(0.5)  # the last worker ends
    # Workers come and go, so that the sandbox's is the mean of all rounds.
    sandbox = (sandbox_seconds() - workers) / ROUNDS * 1e6
    return Cost(min(hub for hub, _ in found), sandbox, min(taken for _, taken in found))


class CountedJournal(SqliteJournal):
    """A journal that counts its writes."""

    writes = 0

    def write(self, documents: Sequence[Document], done: OnWritten, facts: Sequence[Fact] = ()) -> None:
        """See `Journal`."""
        self.writes += 1
        super().write(documents, done, facts)


async def call_directly(hub: Hub, count: int) -> None:
    """Make the calls one after the other, each when the one before has ended."""
    for _ in range(count):
        ended = Ended()
        hub.start(Call(CALLER, EVERYTHING, f"{SERVER}.echo", Raw(b'{"text":"x"}')), ended)
        await ended.done


class Bench:
    """Runs scripts on one hub."""

    def __init__(self, hub: Hub, journal: Journal) -> None:
        self.background = BackgroundTasks("bench")
        settings = CodeSettings(calls=MANY)
        self.scripts = Scripts(hub, self.background, settings, time.time, journal, ProcessSealer)
        self._journal = journal
        self._number = 0

    async def run(self, code: str, *, is_durable: bool) -> None:
        """Run a script to its end."""
        ended = Ended()
        self._number += 1
        request = ScriptRequest(CALLER, EVERYTHING, code, id=f"script-{self._number}")
        script = RunningScript(self.scripts, request, ended, OWNER if is_durable else "")
        if is_durable:
            kept: asyncio.Future[object] = asyncio.get_running_loop().create_future()
            self._journal.write([self.scripts.first_document(request, OWNER)], kept.set_result)
            await kept
        self.scripts.start_script(script)
        outcome = await ended.done
        assert isinstance(outcome, Result), outcome
        assert not outcome.is_error, bytes(outcome.payload)

    async def close(self) -> None:
        self.scripts.close()
        await self.background.aclose()


async def measure() -> int:
    """Print the figures; 1 if a promise is not kept."""
    hub = await hub_with_instant_server()
    with tempfile.TemporaryDirectory() as folder:
        journal = CountedJournal(Path(folder))
        plain, durable = Bench(hub, MemoryJournal()), Bench(hub, journal)
        direct = (await cost(lambda count: call_directly(hub, count))).hub
        await plain.run(ONCE, is_durable=False)
        scripted = await cost(lambda count: plain.run(loop_of(count), is_durable=False))
        stored = await cost(lambda count: durable.run(loop_of(count), is_durable=True))
        writes = journal.writes / (ROUNDS * (FEW + MANY))
        starts = []
        for _ in range(STARTS):
            while not plain.scripts.sandbox.has_spare:  # noqa: ASYNC110 (another process)
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.3)  # the last worker has ended
            began = time.perf_counter()
            await plain.run(ONCE, is_durable=False)
            starts.append((time.perf_counter() - began) * 1e3)
        await plain.close()
        await durable.close()
        await journal.aclose()
    over = scripted.cpu - direct
    print(f"a call made directly             {direct:7.1f} µs")
    print(f"the same call in a script        {scripted}")
    print(f"the same in a durable script     {stored}; it takes {stored.time:.0f} µs and {writes:.2f} writes")
    print(f"overhead of a script             {over:7.1f} µs  (promised: at most {PROMISED_MICROSECONDS:g})")
    print(f"overhead of a durable script     {stored.cpu - direct:7.1f} µs")
    print(f"a script of one call, whole      {median(starts):7.1f} ms  (promised: at most {PROMISED_MILLISECONDS:g})")
    return int(over > PROMISED_MICROSECONDS or median(starts) > PROMISED_MILLISECONDS)


def main() -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(prog="python -m bench.code", description=__doc__)
    parser.parse_args()
    sys.exit(uvloop.run(measure()))


if __name__ == "__main__":
    main()
