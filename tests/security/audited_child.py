"""Hubs with a strict audit log that are killed: `python -m tests.security.audited_child`.

For each line on standard input, `FOLDER SEED SECONDS`, a child is forked that calls as fast as it can, and is killed
with SIGKILL after that time; then `done` is printed. To fork is what makes a thousand of them affordable: what a hub
imports takes longer than it lives here.
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
from isthmus.app.journals import open_journal
from isthmus.config.settings import Configuration, HubSettings
from isthmus.core.calls.hub import Hub
from isthmus.core.calls.inflight import InFlight
from isthmus.core.calls.lane import Lane
from isthmus.core.catalog.snapshot import Standing
from isthmus.core.settings import Limits
from isthmus.core.tasks.draft import Draft
from isthmus.core.tasks.engine import Engine
from isthmus.core.tasks.record import Record
from isthmus.core.tasks.reports import Noted
from isthmus.model.callers import Caller, Grants
from isthmus.model.calls import EVERYTHING, Call
from isthmus.model.events import Event
from isthmus.model.features import Tool
from isthmus.model.names import FeatureName, ServerName
from isthmus.model.outcomes import Outcome, Result
from isthmus.model.questions import OnReply, Question
from isthmus.telemetry import logs
from isthmus.telemetry.counters import Counters

SERVER = ServerName("bank")
CALLER = Caller("payer", "acme", Grants(("*",)))
DONE = Result(msgspec.Raw(b'{"content":[]}'))
CALLERS = 6
LEDGER = "ledger"
"""What ran, as the server has it."""
TOLD = "told"
"""What callers were told to have ended."""


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
    """A caller, or somebody who follows a task: notes what it is told."""

    def __init__(self, nonce: str, told: Line) -> None:
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._nonce = nonce
        self._told = told

    def emit(self, event: Event) -> None: ...

    def ask(self, question: Question, reply: OnReply) -> None: ...

    def end(self, outcome: Outcome) -> None:
        self._hear()

    def moved(self, record: Record) -> None:
        if record.is_ended:
            self._hear()

    def happened(self, record: Record, noted: Noted) -> None: ...

    def _hear(self) -> None:
        self._told.write(self._nonce)
        self.over.set_result(None)


def nonce_of(call: Call) -> str:
    read: dict[str, str] = msgspec.json.decode(call.arguments)
    return read["nonce"]


async def run(folder: Path, seed: int) -> None:
    """Call until killed: some calls as they are, some as tasks."""
    chance = random.Random(seed)
    configuration = Configuration(None, HubSettings(state=str(folder), audit="strict"))
    journal = await open_journal(configuration)
    opened = await open_audit(configuration, journal)
    assert opened is not None
    hub = Hub(Limits(), opened.audit.over(Counters()))
    lane = Lane(SERVER, hub.limits)
    lane.attach(Bank(Line(folder / LEDGER), chance))
    tools = (Tool.of(SERVER, FeatureName("pay"), {}),)
    hub.open_lane(lane, Standing(SERVER, "ready", tools=tools, is_settled=True))
    engine = Engine(hub, journal, time.time)
    told = Line(folder / TOLD)

    async def call_on(number: int) -> None:
        for count in range(1_000_000):
            nonce = f"{seed}-{number}-{count}"
            call = Call(CALLER, EVERYTHING, "bank.pay", msgspec.Raw(msgspec.json.encode({"nonce": nonce})))
            waiting = Waiting(nonce, told)
            if number % 2:
                lasting = msgspec.structs.replace(call, lasts=True)
                await engine.begin(Draft(CALLER, nonce, nonce, (), call=lasting, listeners=(waiting,)))
            else:
                hub.start(call, waiting)
            await waiting.over

    await asyncio.gather(*(call_on(number) for number in range(CALLERS)))


def main() -> None:
    """Fork and kill, as told."""
    logs.configure("error", "json")
    for line in sys.stdin:
        folder, seed, seconds = line.split()
        child = os.fork()
        if not child:
            asyncio.run(run(Path(folder), int(seed)))
            os._exit(1)
        time.sleep(float(seconds))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        print("done", flush=True)


if __name__ == "__main__":
    main()
