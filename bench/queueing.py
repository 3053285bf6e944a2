"""A small discrete-event simulation: processes on machines, and calls that pass through them.

A process is an event loop: in each turn it does all work that has come, and pays once for the turn, so that work costs
less under load. Processes of one machine share its cores; an idle core takes a while to wake up. A journal writes what
has come in one transaction at a time, and a disk syncs once for all transactions that wait. A call is a list of steps,
each some work at a process, a pause or a write to a journal. Used by `bench.simulate`.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

VARIATION = 0.5
"""By which share turns are shorter or longer than on average. If all took equally long, connections that call all the
time would move in step, and always meet at the same process."""


class Simulation:
    """A clock and what happens at which time. All randomness comes from `random`, so a seed repeats a run."""

    def __init__(self, seed: int, variation: float = VARIATION) -> None:
        self.now = 0.0
        self._variation = variation
        self.random = random.Random(seed)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0

    def after(self, seconds: float, then: Callable[[], None]) -> None:
        """Call `then` in so many seconds; in order, if at the same time."""
        self._number += 1
        heapq.heappush(self._events, (self.now + seconds, self._number, then))

    def varied(self) -> float:
        """A factor for the time of a turn, 1 on average."""
        return self.random.uniform(1 - self._variation, 1 + self._variation)

    def run(self, until: float) -> None:
        """Let time pass."""
        while self._events and self._events[0][0] <= until:
            self.now, _, then = heapq.heappop(self._events)
            then()
        self.now = until


class Machine:
    """Cores that processes share, as Linux shares them.

    A process that is ready gets an idle core. If there is none, it waits at the core where it last worked, first come,
    first served, even if another core becomes idle meanwhile: Linux moves no process that worked within the last half
    millisecond.
    """

    def __init__(self, simulation: Simulation, cores: int, wake_seconds: float = 0.0) -> None:
        """A core without work sleeps; it takes `wake_seconds` until it works for a process that has become ready."""
        self.simulation = simulation
        self._wake_seconds = wake_seconds
        self._idle = list(range(cores))
        self._ready: list[deque[Process]] = [deque() for _ in range(cores)]
        self._made = 0

    def place(self) -> int:
        """The core at which a new process waits first."""
        self._made += 1
        return self._made % len(self._ready)

    def wants(self, process: Process) -> None:
        """A process has work."""
        if self._idle:
            if process.core in self._idle:
                self._idle.remove(process.core)
            else:
                process.core = self._idle.pop()
            self.simulation.after(self._wake_seconds, process.work)
        else:
            self._ready[process.core].append(process)

    def gives_back(self, process: Process, *, has_more: bool) -> None:
        """A process has ended a turn. Its core goes on with the one that waits longest there."""
        ready = self._ready[process.core]
        if has_more:
            ready.append(process)
        if ready:
            ready.popleft().work()
        else:
            self._idle.append(process.core)


class Process:
    """One event loop: in each turn it does what has come since the last one, and pays once for the turn."""

    def __init__(self, machine: Machine, *, sends_together: bool = False) -> None:
        """What is done in a turn leaves piece by piece, or at the end of the turn if it `sends_together`."""
        self.machine = machine
        self.core = machine.place()
        self._sends_together = sends_together
        self._queue: list[tuple[Step, Callable[[], None]]] = []
        self._is_working = False
        self.busy_seconds = 0.0
        self.turns = 0
        """Turns that cost something besides the work."""

    def add(self, step: Step, then: Callable[[], None]) -> None:
        """Do this work in the next turn, and then call `then`."""
        self._queue.append((step, then))
        if not self._is_working:
            self._is_working = True
            self.machine.wants(self)

    def work(self) -> None:
        """It has a core for one turn."""
        batch, self._queue = self._queue, []
        after, times = self.machine.simulation.after, self.machine.simulation.varied()
        turn = max(batch, key=lambda entry: entry[0].turn_seconds)[0]
        whole = times * (turn.turn_seconds + sum(step.seconds for step, _ in batch))
        tail = times * turn.turn_seconds * turn.tail
        left = times * turn.turn_seconds - tail
        for step, then in batch:
            left += times * step.seconds
            after(whole - tail if self._sends_together else left, then)
        self.busy_seconds += whole
        self.turns += bool(turn.turn_seconds)
        after(whole, self._end_turn)

    def _end_turn(self) -> None:
        self._is_working = bool(self._queue)
        self.machine.gives_back(self, has_more=self._is_working)


class Step(NamedTuple):
    """A part of a call: work at a process, or a pause without one (a network)."""

    process: Process | None
    seconds: float
    turn_seconds: float = 0.0
    """What the turn of the event loop costs besides, however much is done in it: waking up, asking what has come."""
    tail: float = 0.0
    """The share of `turn_seconds` that comes after everything has been sent."""


class Disk:
    """Syncs for all that wait, one time after another: who comes during a sync waits for the next one."""

    def __init__(self, simulation: Simulation, seconds: float) -> None:
        self._simulation = simulation
        self._seconds = seconds
        self._waiting: list[Callable[[], None]] = []
        self._is_syncing = False

    def sync(self, then: Callable[[], None]) -> None:
        """Call `then` when everything that was written until now is on the disk."""
        self._waiting.append(then)
        if not self._is_syncing:
            self._begin()

    def _begin(self) -> None:
        synced, self._waiting = self._waiting, []
        self._is_syncing = bool(synced)

        def end() -> None:
            self._begin()
            for then in synced:
                then()

        if synced:
            self._simulation.after(self._seconds, end)


class Journal:
    """The writer of one node: one transaction at a time, with everything that has come since the last one.

    A transaction is a sequence of statements, each a message to the database's process and back: its beginning, one for
    all rows of a kind, and the commit, which waits for the disk.
    """

    def __init__(self, hub: Process, database: Process, disk: Disk, answer: Step, statement: Step) -> None:
        """`answer` is the hub's work for each answer; `statement` has the seconds of a row, and those of a message."""
        self._hub = hub
        self._database = database
        self._disk = disk
        self._answer = answer
        self._statement = statement
        self._waiting: list[tuple[str, Callable[[], None]]] = []
        self._is_writing = False

    def write(self, kind: str, then: Callable[[], None]) -> None:
        """Write a row, and then call `then`."""
        self._waiting.append((kind, then))
        if not self._is_writing:
            self._is_writing = True
            # What else is done at this moment of the hub's turn is in the same transaction.
            self._hub.machine.simulation.after(0.0, self._begin)

    def _begin(self) -> None:
        batch, self._waiting = self._waiting, []
        self._is_writing = bool(batch)
        if batch:
            rows = Counter(kind for kind, _ in batch)
            self._send([0, *rows.values()], [then for _, then in batch])

    def _send(self, statements: Sequence[int], written: Sequence[Callable[[], None]]) -> None:
        rows, *others = statements
        step = self._statement._replace(seconds=rows * self._statement.seconds)

        def answered() -> None:
            if others:
                self._hub.add(self._answer, lambda: self._send(others, written))
            else:
                self._hub.add(self._answer, lambda: self._commit(written))

        self._database.add(step, answered)

    def _commit(self, written: Sequence[Callable[[], None]]) -> None:
        def synced() -> None:
            self._database.add(self._statement._replace(seconds=0.0, turn_seconds=0.0), end)

        def end() -> None:
            # In one turn the hub takes the answer, begins the next transaction with what waits, and does what follows
            # each write: what that writes waits for the transaction after the next.
            self._hub.add(self._answer, self._begin)
            for then in written:
                then()

        self._database.add(self._statement._replace(seconds=0.0), lambda: self._disk.sync(synced))


class Write(NamedTuple):
    """A part of a call: a row in a journal. `kind` is the statement that it belongs to."""

    journal: Journal
    kind: str


Route = Callable[[int], Sequence[Step | Write]]
"""The steps of the next call of the connection with this number; it may choose at random."""


class Observed(NamedTuple):
    """What came out of a run."""

    calls_per_second: float
    p50_milliseconds: float
    p99_milliseconds: float


class Calls:
    """Runs calls through a simulation and notes how long they took, after a time to settle."""

    def __init__(self, simulation: Simulation, route: Route, settle: float) -> None:
        self._simulation = simulation
        self._route = route
        self._settle = settle
        self._latencies: list[float] = []

    def closed(self, connections: int) -> None:
        """So many connections, each of which calls again when it is answered."""
        for number in range(connections):
            self._start(number, is_repeated=True)

    def arriving(self, per_second: float) -> None:
        """Calls that arrive at random, however long the others take."""

        def arrive() -> None:
            self._start(self._simulation.random.randrange(1 << 30))
            self._simulation.after(self._simulation.random.expovariate(per_second), arrive)

        self._simulation.after(self._simulation.random.expovariate(per_second), arrive)

    def _start(self, number: int, *, is_repeated: bool = False) -> None:
        began, steps = self._simulation.now, iter(self._route(number))

        def go_on() -> None:
            step = next(steps, None)
            if step is None:
                if self._simulation.now > self._settle:
                    self._latencies.append(self._simulation.now - began)
                if is_repeated:
                    self._start(number, is_repeated=True)
            elif isinstance(step, Write):
                step.journal.write(step.kind, go_on)
            elif step.process is None:
                self._simulation.after(step.seconds, go_on)
            else:
                step.process.add(step, go_on)

        go_on()

    def observed(self) -> Observed:
        """The figures since the model has settled."""
        seconds = self._simulation.now - self._settle
        ordered = sorted(self._latencies)
        if not ordered:
            return Observed(0.0, math.inf, math.inf)
        p50, p99 = (ordered[min(int(len(ordered) * share), len(ordered) - 1)] * 1e3 for share in (0.5, 0.99))
        return Observed(len(ordered) / seconds, p50, p99)
