"""The books of server queues and tenants after whatever may happen to calls, in any order: no slot is lost or made up.

Each program starts, answers, withdraws and lets expire calls of three tenants at two servers, which come and go, with
limits and tenants that change meanwhile. After every step the counts are worked out anew from the calls themselves.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable

import msgspec

from isthmus.core.access.tenants import NO_TENANTS, Tenants, TenantSettings
from isthmus.core.calls.hub import Hub
from isthmus.core.calls.running_call import InFlight
from isthmus.core.calls.server_queue import LONG_CALLS, ServerQueue
from isthmus.core.settings import Limits
from isthmus.model.callers import Caller, Grants
from isthmus.model.calls import Call, Outcome, Result
from isthmus.model.fault_table import Lost
from isthmus.model.names import ServerName
from tests.unit.core.doubles import HeldLink, Listener, Notes, call, raw, ready, tool

PROGRAMS = (*range(4_000),) if "ISTHMUS_SOAK" in os.environ else (*range(60), 3530)
"""By their numbers; the last one once held calls back for ever."""
STEPS = 60
SERVERS = (ServerName("files"), ServerName("web"))
TENANTS = ("a", "b", "c")
DONE = Result(raw({}))
KNOWN = (
    NO_TENANTS,
    Tenants({"a": TenantSettings(max_calls=3)}),
    Tenants({"a": TenantSettings(max_calls=1), "b": TenantSettings()}),
)


class Waiter(Listener):
    """An exchange that would rather wait itself, now and then."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self._chance = chance
        self.has_it_back = False

    def put_back(self, inflight: InFlight) -> bool:
        self.has_it_back = self._chance.random() < 0.3
        return self.has_it_back


class SlowWitness:
    """Writes when the test allows it."""

    def __init__(self) -> None:
        self.unwritten: list[Callable[[], None]] = []

    @property
    def waiting(self) -> int:
        return len(self.unwritten)

    def begin(self, inflight: InFlight, send: Callable[[InFlight], None]) -> None:
        self.unwritten.append(lambda: send(inflight))

    def call_ended(self, inflight: InFlight, server: ServerName | None, outcome: Outcome, seconds: float) -> None:
        self.unwritten.append(lambda: inflight.deliver(outcome))

    def start_fact(self, call: Call, id: str) -> msgspec.Raw:
        raise AssertionError("nobody keeps tasks here")


class Program:
    """A hub, its calls, and one step after the other."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        notes = Notes()
        self.strict_audit = SlowWitness() if self.chance.random() < 0.3 else None
        notes.strict_audit = self.strict_audit  # type: ignore[assignment]
        self.hub = Hub(Limits(tenant_calls=8), notes)
        self.tenants = self.chance.choices(TENANTS, k=4)
        """Some call more than others."""
        self.calls: list[tuple[InFlight, Waiter]] = []
        for server in SERVERS:
            self.open(server)

    def open(self, server: ServerName) -> None:
        server_queue = ServerQueue(server, self.hub.limits, max_calls=self.chance.choice([1, 2, 4, 5]), max_queued=8)
        server_queue.grace = self.chance.choice([0.0, 60.0])
        server_queue.attach(HeldLink(self.at_once))
        self.hub.open_server_queue(server_queue, ready(tool("read", server), server=server))

    def at_once(self, inflight: InFlight) -> None:
        if self.chance.random() < 0.1:
            inflight.finish(Lost(inflight.target.feature.server, "it broke", executed="unknown"))
        elif self.chance.random() < 0.005:
            raise RuntimeError("a defect in a link")

    @property
    def open_calls(self) -> list[InFlight]:
        """Those that count: neither over, nor over for their server, nor given back."""
        return [each for each, _ in self.calls if each.outcome is None and not each.is_sealed]

    def step(self) -> None:
        steps = (self.start, self.start, self.start, self.end, self.end, self.come_or_go, self.change, self.write)
        self.chance.choice(steps)()

    def start(self) -> None:
        caller = Caller(self.chance.choice("xy"), self.chance.choice(self.tenants), Grants(("*",)))
        asked = call(f"{self.chance.choice(SERVERS)}.read", caller=caller)
        kind = self.chance.random()
        asked = msgspec.structs.replace(asked, lasts=kind < 0.2, sharer=self.chance.choice("st") if kind > 0.8 else "")
        waiter = Waiter(self.chance)
        inflight = self.hub.start(asked, waiter)
        assert inflight.server_queue is None or inflight.counted_by is not None or not self.hub.tenants.are_several
        self.calls.append((inflight, waiter))

    def end(self) -> None:
        if not (running := self.open_calls):
            return
        inflight = self.chance.choice(running)
        match self.chance.randrange(4):
            case 0:
                inflight.cancel("enough")
            case 1:
                inflight.expire()
            case 2 if inflight.link is not None and inflight.server_queue is not None:
                if not inflight.server_queue.admit_long_call(inflight) or self.chance.random() < 0.5:
                    inflight.finish(DONE)
            case _:
                if inflight.link is not None:
                    inflight.finish(DONE)

    def come_or_go(self) -> None:
        server = self.chance.choice(SERVERS)
        server_queue = self.hub.server_queues[server]
        if not server_queue.has_link:
            server_queue.attach(HeldLink(self.at_once))
        elif self.chance.random() < 0.3:
            self.open(server)
        elif self.chance.random() < 0.5:
            server_queue.detach("it is gone", is_failure=False)

    def change(self) -> None:
        self.hub.tenants.configure(self.chance.choice(KNOWN), set(self.chance.sample(TENANTS, 1)))

    def write(self) -> None:
        if self.strict_audit is not None and self.strict_audit.unwritten:
            self.strict_audit.unwritten.pop(0)()

    def finish(self) -> None:
        """Let everything end that still can."""
        while self.open_calls or (self.strict_audit is not None and self.strict_audit.unwritten):
            for inflight in self.open_calls:
                inflight.cancel("enough")
            self.write()

    # -- the books -----------------------------------------------------------------------------------------------------

    def check(self) -> None:
        running = self.open_calls
        counted = Counter(each.call.caller.tenant for each in running if each.counted_by is not None)
        assert self.hub.tenants._under_way == counted
        assert all((each.outcome is None) is not bool(waiter.ends or waiter.has_it_back) for each, waiter in self.calls)
        server_queues = {each.server_queue for each in running if each.server_queue is not None} | set(
            self.hub.server_queues.values()
        )
        for server_queue in server_queues:
            self.check_server_queue(server_queue, [each for each in running if each.server_queue is server_queue])

    def check_server_queue(self, server_queue: ServerQueue, calls: list[InFlight]) -> None:
        sent = [each for each in calls if each.link is not None]
        assert server_queue.running == len(sent)
        counted = server_queue._running_in
        tenants = Counter(each.call.caller.tenant for each in sent if each.counted_by is not None)
        assert {group[1]: count for group, count in counted.items() if group[0] == "tenant"} == tenants
        devices = Counter(each.call.sharer for each in sent if each.call.sharer)
        assert {group[1]: count for group, count in counted.items() if group[0] == "device"} == devices
        assert counted.get(LONG_CALLS, 0) == sum(LONG_CALLS in groups for groups in server_queue._groups.values())
        assert set(server_queue._groups) <= set(sent)
        waiting = server_queue._queue
        assert len(set(waiting)) == len(waiting)
        assert set(waiting) <= {each for each in calls if each.link is None}
        if self.strict_audit is None:
            assert len(waiting) == sum(each.link is None for each in calls), "a call waits nowhere"
        if server_queue.has_link and server_queue.running < server_queue.max_calls:
            assert all(map(server_queue._is_held_back, waiting)), "a call is held back for nothing"


async def test_the_books_of_server_queues_and_tenants_are_right_after_every_step() -> None:
    for seed in PROGRAMS:
        program = Program(seed)
        try:
            for _ in range(STEPS):
                program.step()
                program.check()
            program.finish()
            program.check()
        except AssertionError as error:
            raise AssertionError(f"program {seed}: {error}") from error
        assert not program.open_calls
        assert all(
            server_queue.running == server_queue.queued == 0 for server_queue in program.hub.server_queues.values()
        )
