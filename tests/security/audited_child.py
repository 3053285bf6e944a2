"""Hubs with a strict audit log that are killed: `python -m tests.security.audited_child`.

For each line on standard input, `FOLDER SEED SECONDS`, two children are forked that call as fast as they can, and are
killed with SIGKILL so long after each has ended a call, every fourth time after they were forked; then `done` is
printed. One keeps its tasks in the folder, the other in memory and only its log there, beside the first. To fork is
what makes a thousand of them affordable: what a hub imports takes longer than it lives here.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from pathlib import Path

import msgspec

from isthmus.app.audit import open_audit
from isthmus.app.serve import open_journal
from isthmus.config.settings import Configuration, HubSettings
from isthmus.core.calls.hub import Hub
from isthmus.core.calls.running_call import InFlight
from isthmus.core.calls.server_queue import ServerQueue
from isthmus.core.catalog.snapshot import ServerStatus
from isthmus.core.journal import ClosableJournal
from isthmus.core.settings import Limits
from isthmus.core.tasks.engine import TaskEngine
from isthmus.core.tasks.live_task import NewTask, Report
from isthmus.core.tasks.record import TaskRecord
from isthmus.model.callers import Caller, Grants
from isthmus.model.calls import EVERYTHING, Call, Event, OnReply, Outcome, Question, Result
from isthmus.model.features import Tool
from isthmus.model.names import FeatureName, ServerName
from isthmus.storage.memory import MemoryJournal
from isthmus.telemetry import logs
from isthmus.telemetry.call_metrics import CallMetrics

SERVER = ServerName("bank")
CALLER = Caller("payer", "acme", Grants(("*",)))
DONE = Result(msgspec.Raw(b'{"content":[]}'))
CALLERS = 6
LEDGER = "ledger"
"""What ran, as the server has it."""
TOLD = "told"
"""The calls whose end the callers received."""
BESIDE = "-beside"
"""What both files of the hub are called by that is beside the other."""


class Line:
    """A file that lines are appended to; what was written is there though the process is killed."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, text: str) -> None:
        os.write(self._file, f"{text}\n".encode())


class Bank:
    """A link to a server that notes each call before it answers, at once or a moment later."""

    def __init__(self, ledger: Line, chance: random.Random) -> None:
        self._ledger = ledger
        self._chance = chance
        self._loop = asyncio.get_running_loop()

    def send(self, inflight: InFlight) -> None:
        self._ledger.write(nonce_of(inflight.call))
        if self._chance.random() < 0.5:
            inflight.finish(DONE)
        else:
            self._loop.call_later(self._chance.random() * 0.003, inflight.finish, DONE)

    def may_have_run(self, _: InFlight) -> bool:
        return True

    def withdraw(self, inflight: InFlight, reason: str) -> None: ...


class Waiting:
    """A caller, or a follower of a task: records what it receives."""

    def __init__(self, nonce: str, received: Line) -> None:
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._nonce = nonce
        self._told = received

    def emit(self, event: Event) -> None: ...

    def ask(self, question: Question, reply: OnReply) -> None: ...

    def end(self, outcome: Outcome) -> None:
        self._hear()

    def task_changed(self, record: TaskRecord) -> None:
        if record.is_terminal:
            self._hear()

    def task_reported(self, record: TaskRecord, noted: Report) -> None: ...

    def _hear(self) -> None:
        self._told.write(self._nonce)
        self.over.set_result(None)


def nonce_of(call: Call) -> str:
    read: dict[str, str] = msgspec.json.decode(call.arguments)
    return read["nonce"]


async def run(folder: Path, seed: int, beside: str, begun: int) -> None:
    """Call until killed: some calls as they are, some as tasks. `begun` is printed after the first end."""
    chance = random.Random(f"{seed}{beside}")
    configuration = Configuration(None, HubSettings(state=str(folder), audit="strict"))
    journal: ClosableJournal = MemoryJournal() if beside else await open_journal(configuration)
    opened = await open_audit(configuration, journal)
    assert opened is not None
    hub = Hub(Limits(), opened.audit.wrap(CallMetrics()))
    server_queue = ServerQueue(SERVER, hub.limits)
    server_queue.attach(Bank(Line(folder / f"{LEDGER}{beside}"), chance))
    tools = (Tool.of(SERVER, FeatureName("pay"), {}),)
    hub.open_server_queue(server_queue, ServerStatus(SERVER, "ready", tools=tools, is_settled=True))
    engine = TaskEngine(hub, journal, time.time)
    received = Line(folder / f"{TOLD}{beside}")

    async def call_on(number: int) -> None:
        for count in range(1_000_000):
            nonce = f"{seed}-{number}-{count}"
            call = Call(CALLER, EVERYTHING, "bank.pay", msgspec.Raw(msgspec.json.encode({"nonce": nonce})))
            waiting = Waiting(nonce, received)
            if number % 2:
                lasting = msgspec.structs.replace(call, lasts=True)
                await engine.begin(NewTask(CALLER, nonce, nonce, (), call=lasting, listeners=(waiting,)))
            else:
                hub.start(call, waiting)
            await waiting.over
            if not number and not count:
                os.write(begun, b".")

    await asyncio.gather(*(call_on(number) for number in range(CALLERS)))


def main() -> None:
    """Fork and kill, as told."""
    logs.configure("error", "json")
    for line in sys.stdin:
        folder, seed, seconds = line.split()
        begun, received = os.pipe()
        children = [forked(Path(folder), int(seed), beside, received) for beside in ("", BESIDE)]
        os.close(received)
        for _ in children if int(seed) % 4 else ():
            os.read(begun, 1)
        time.sleep(float(seconds))
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        os.close(begun)
        print("done", flush=True)


def forked(folder: Path, seed: int, beside: str, begun: int) -> int:
    """A child that calls."""
    child = os.fork()
    if not child:
        asyncio.run(run(folder, seed, beside, begun))
        os._exit(1)
    return child


if __name__ == "__main__":
    main()
