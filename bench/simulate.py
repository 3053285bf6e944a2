"""`python -m bench.simulate`: what a cluster of hubs can carry, from the measured cost of each process per call.

Hubs, nats-server, PostgreSQL, servers and the load are the processes of `bench.queueing`. Calls arrive at random nodes;
those to a server of another node cross. A node writes tasks in one transaction after the other, and all share a disk.
Network and other programs on the same machines are not simulated.

It finds the costs from some loads of three real nodes on the cores of one machine, and prints for other loads what was
measured beside the prediction. Then it predicts clusters that nobody has measured here: 8 and 32 cores, 10,000 calls/s,
a million devices. The measurements are in a file; `--check` takes new ones. Ends with 1 if an error is above
`ALLOWED_ERROR`, 2 when it could not be measured.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Literal, NamedTuple

import msgspec
import uvloop

from bench import agents
from bench.__main__ import ASKS_EACH, NotMeasured
from bench.cluster import Stage, calls_of, cpu_of, machine_busy_seconds
from bench.load import WrongAnswer, complaint_about, drive
from bench.processes import NotStarted
from bench.queueing import Calls, Disk, Journal, Machine, Observed, Process, Simulation, Step, Write
from isthmus.cluster.settings import BusSettings

ALLOWED_ERROR = 0.25
"""Of throughput, latency and CPU; two runs of the same hub differ by 0.15 (see `bench.compare`)."""

MEASURED = Path(__file__).parent / "three_nodes.json"
"""The last measurement; without `--check` everything is computed from it."""

UTILISATION = 0.7
"""Of a node's core, at most: above it a burst waits long, and no node may die."""


# -- a cluster ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU microseconds of one kind of process: of a piece of work, and of the event loop's turn that does it."""

    work: float
    turn: float = 0.0

    def at(self, process: Process, tail: float = 0.0) -> Step:
        """One piece of work; a share `tail` of the turn comes after it has left."""
        return Step(process, self.work * 1e-6, self.turn * 1e-6, tail)


@dataclass(frozen=True, slots=True)
class Costs:
    """Of one call; `fit` finds them from what was measured."""

    load: Cost
    """Two pieces: it sends the call, and takes the answer. It has cores of its own where none are shared."""
    asker: Cost
    """The same for a task."""
    server: Cost
    """One piece: the echo of a server that has dialled in."""
    local: Cost
    """Two pieces at the node with the server's socket: the call comes and goes, the answer comes and goes."""
    entry: Cost
    """Two pieces at another node where the call arrives."""
    owner: Cost
    """Two pieces at the node with the socket, for a call that arrived elsewhere."""
    broker: Cost
    """Two pieces at nats-server: there and back."""
    task: Cost
    """Three pieces of a durable task at its node: it comes, it runs, it is answered. Each answer of the database takes
    a turn besides."""
    database: Cost
    """Two rows of a task at PostgreSQL; a turn is a statement of a transaction."""
    sync_milliseconds: float
    """Of the database's disk."""
    wake_microseconds: float
    """Until an idle core works for a process that has become ready."""
    tail: float
    """The share of a turn that comes after everything has been sent."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A cluster, and which calls it gets."""

    nodes: int
    crossing: float = 0.0
    """The share of calls to a server of another node, if `owner` is none."""
    owner: int | None = None
    """The node with the only server that is called."""
    arrivals: tuple[int, ...] = ()
    """The nodes at which calls arrive; all, if empty."""
    is_task: bool = False
    """Whether calls are durable tasks."""
    cores: int = 0
    """Cores that all processes share; 0 for a core for each hub, and other machines for the rest."""
    has_broker: bool = True
    """Whether nodes are connected by NATS; workers of one machine have Unix sockets."""
    broker_cores: int = 4
    database_cores: int = 8


class Cluster:
    """The processes of a cluster, and the steps of its calls."""

    def __init__(self, simulation: Simulation, shape: Shape, costs: Costs) -> None:
        self._random = simulation.random
        self._shape = shape
        self._costs = costs
        wake = costs.wake_microseconds * 1e-6
        shared = Machine(simulation, shape.cores, wake) if shape.cores else None

        def processes(cores: int) -> list[Process]:
            machine = shared or Machine(simulation, cores, wake)
            return [Process(machine) for _ in range(shape.nodes)]

        # What a hub sends in a turn leaves together, at its end.
        self.hubs = [Process(shared or Machine(simulation, 1, wake), sends_together=True) for _ in range(shape.nodes)]
        # nats-server and PostgreSQL serve each connection in a thread or process of its own.
        self.brokers, self.databases = processes(shape.broker_cores), processes(shape.database_cores)
        aside = processes(4 * shape.nodes)
        self._servers = aside if shared is None else [Process(shared)] * shape.nodes
        self._loads = processes(4 * shape.nodes) if shared is None else [Process(shared)] * shape.nodes
        disk = Disk(simulation, costs.sync_milliseconds * 1e-3)
        answer = replace(costs.task, work=0.0)
        self._journals = [
            Journal(hub, database, disk, answer.at(hub, costs.tail), costs.database.at(database, costs.tail))
            for hub, database in zip(self.hubs, self.databases, strict=True)
        ]

    def use(self) -> dict[str, tuple[float, int]]:
        """The seconds and turns so far of each kind of process; each hub is one."""
        groups = {f"hub{number}": [hub] for number, hub in enumerate(self.hubs)}
        groups |= {"broker": self.brokers, "database": self.databases}
        groups |= {"server": list(dict.fromkeys(self._servers)), "load": list(dict.fromkeys(self._loads))}
        return {
            name: (sum(each.busy_seconds for each in group), sum(each.turns for each in group))
            for name, group in groups.items()
        }

    def route(self, number: int) -> Sequence[Step | Write]:
        """The steps of a call of a connection."""
        shape, costs, tail = self._shape, self._costs, self._costs.tail
        at = shape.arrivals[number % len(shape.arrivals)] if shape.arrivals else number % shape.nodes
        call = costs.load.at(self._loads[at], tail)
        if shape.is_task:
            call = costs.asker.at(self._loads[at], tail)
            hub, journal = costs.task.at(self.hubs[at], tail), self._journals[at]
            return (call, hub, Write(journal, "new"), hub, Write(journal, "changed"), hub, call)
        if shape.owner is not None:
            to = shape.owner
        elif shape.nodes > 1 and self._random.random() < shape.crossing:
            to = (at + 1 + self._random.randrange(shape.nodes - 1)) % shape.nodes
        else:
            to = at
        echo = costs.server.at(self._servers[to], tail)
        if to == at:
            hub = costs.local.at(self.hubs[at], tail)
            return (call, hub, echo, hub, call)
        entry, owner = costs.entry.at(self.hubs[at], tail), costs.owner.at(self.hubs[to], tail)
        if not shape.has_broker:
            return (call, entry, owner, echo, owner, entry, call)
        there, back = costs.broker.at(self.brokers[at], tail), costs.broker.at(self.brokers[to], tail)
        return (call, entry, there, owner, echo, owner, back, entry, call)


class Figures(NamedTuple):
    """A cluster under a load, simulated or measured."""

    observed: Observed
    cpu: Mapping[str, float]
    """Microseconds per call: of `hub0` and so on, `broker`, `database`, `server` and `load`."""
    busiest: float = 0.0
    """The share of the time that the busiest hub works."""
    turns: Mapping[str, float] = {}
    """Turns per call of the event loops, by the same names; only a simulation knows."""

    @property
    def hubs(self) -> float:
        """CPU of all hubs per call, in microseconds."""
        return sum(spent for name, spent in self.cpu.items() if name.startswith("hub"))


def predict(
    shape: Shape, costs: Costs, *, connections: int = 0, per_second: float = 0.0, seconds: float = 1.0, seed: int = 1
) -> Figures:
    """Simulate a cluster with so many connections that call all the time, or so many calls per second."""
    simulation = Simulation(seed)
    cluster = Cluster(simulation, shape, costs)
    settle = seconds / 5
    calls = Calls(simulation, cluster.route, settle)
    if connections:
        calls.closed(connections)
    else:
        calls.arriving(per_second)
    simulation.run(settle)
    before = cluster.use()
    simulation.run(seconds)
    spent = {name: (use[0] - before[name][0], use[1] - before[name][1]) for name, use in cluster.use().items()}
    observed = calls.observed()
    made = max(observed.calls_per_second * (seconds - settle), 1.0)
    busiest = max(time for name, (time, _) in spent.items() if name.startswith("hub")) / (seconds - settle)
    cpu = {name: time * 1e6 / made for name, (time, _) in spent.items()}
    return Figures(observed, cpu, busiest, {name: turns / made for name, (_, turns) in spent.items()})


# -- the check: costs from some loads of a real cluster, predictions for others ----------------------------------------

TASK_TOOL = "builtin.echo"
NODES = 3
FEW, MANY = 1, 16
"""The connections of the two loads from which a cost is found: each call has its own turns, or shares them."""

LEAST = 0.1
"""Microseconds that any work takes: a loop without time would never end."""

OTHERS_MAX = 0.15
"""Cores that other programs may have in a turn: the model has only its own processes on them."""

TAIL = 0.5
"""Of a turn's cost, what comes after its messages have left: with less, one connection would take longer than was
measured even if cores woke up at once."""

HOPS = {"local": 4, "crossing": 8}
"""How often a process is woken for a call."""

COMMITS = 2
"""Of a task."""

Kind = Literal["local", "entry", "owner", "broker", "server", "load", "asker", "task", "database"]


class Source(NamedTuple):
    """Where the cost of one kind is measured."""

    row: str
    process: str
    pieces: int


SOURCES: Mapping[Kind, Source] = {
    "local": Source("local", "hub0", 2),
    "server": Source("local", "server", 1),
    "load": Source("local", "load", 2),
    "entry": Source("crossing", "hub1", 2),
    "owner": Source("crossing", "hub0", 2),
    "broker": Source("crossing", "broker", 2),
    "asker": Source("task", "load", 2),
    "task": Source("task", "hub0", 3),
    "database": Source("task", "database", 2),
}
LEARNED = {
    "local": Shape(NODES, owner=0, arrivals=(0,)),
    "crossing": Shape(NODES, owner=0, arrivals=(1,)),
    "task": Shape(NODES, is_task=True, arrivals=(0,)),
}
CHECKED = {
    "calls, 3 connections": (Shape(NODES, owner=0), 3),
    "calls, 6 connections": (Shape(NODES, owner=0), 6),
    "calls, 24 connections": (Shape(NODES, owner=0), 24),
    "tasks, 6 connections": (Shape(NODES, is_task=True), 6),
    "tasks, 24 connections": (Shape(NODES, is_task=True), 24),
}


def fit(measured: Mapping[tuple[str, int], Figures], cores: int, rounds: int = 8, seconds: float = 0.5) -> Costs:
    """The costs with which the simulation spends as much CPU as was measured, with few and with many connections.

    Where one connection takes longer than its CPU explains, cores wake up, and for tasks the disk syncs.
    """
    first = {
        kind: Cost(measured[row, MANY].cpu[process] / pieces, LEAST) for kind, (row, process, pieces) in SOURCES.items()
    }
    costs = Costs(**first, sync_milliseconds=1.0, wake_microseconds=0.0, tail=TAIL)
    for _ in range(rounds):
        found = {
            (row, load): predict(replace(shape, cores=cores), costs, connections=load, seconds=seconds)
            for row, shape in LEARNED.items()
            for load in (FEW, MANY)
        }
        for kind, (row, process, pieces) in SOURCES.items():
            (few, few_turns), (many, many_turns) = (
                (measured[row, load].cpu[process], found[row, load].turns[process]) for load in (FEW, MANY)
            )
            turn = max(0.0, (few - many) / max(few_turns - many_turns, LEAST))
            work = max(LEAST, (many - many_turns * turn) / pieces)
            costs = with_cost(costs, kind, Cost(work, max(LEAST, (few - work * pieces) / few_turns)))
        late = {
            row: measured[row, FEW].observed.p50_milliseconds - found[row, FEW].observed.p50_milliseconds
            for row in LEARNED
        }
        waking = sum(late[row] for row in HOPS) / sum(HOPS.values()) * 1e3
        costs = replace(
            costs,
            wake_microseconds=max(0.0, costs.wake_microseconds + waking),
            sync_milliseconds=max(0.0, costs.sync_milliseconds + late["task"] / COMMITS),
        )
    return costs


def with_cost(costs: Costs, kind: Kind, cost: Cost) -> Costs:
    """The costs with one of them changed."""
    changes: dict[str, Any] = {kind: cost}
    return replace(costs, **changes)


class RealCluster:
    """Three nodes, NATS, PostgreSQL, and a server that has dialled in at the first of them."""

    def __init__(self, held: ExitStack) -> None:
        stage = Stage(held)
        url, self._broker = stage.nats()
        owner, others, server = stage.dial(stage.cluster(NODES, url))
        self._nodes = [owner, *others]
        self._tool = f"{server}.echo"
        self._server = stage.diallers[0].pid
        self._database = stage.database

    def analyze(self) -> None:
        """Let PostgreSQL plan for the tables as they are now, as it does by itself within a minute.

        Without it a task took the database up to three times as long in the first round as in the third.
        """
        self._database.psql("ANALYZE")

    def measure(self, shape: Shape, connections: int, seconds: float) -> tuple[Figures, float]:
        """Put a load on it; also the cores that other programs had meanwhile."""
        at = shape.arrivals or tuple(range(NODES))
        used = [self._nodes[at[number % len(at)]] for number in range(connections)]
        sockets = [made for node in used for made in node.connect(1)]
        if shape.is_task:
            asks = [agents.asks(TASK_TOOL, 1 + number * ASKS_EACH, ASKS_EACH) for number in range(connections)]
        else:
            asks = calls_of(self._tool, connections)
        check = agents.complaint_about if shape.is_task else complaint_about
        before, busy = self._spent(), machine_busy_seconds()
        served = uvloop.run(drive(0, asks, seconds, check, sockets))
        busy = machine_busy_seconds() - busy
        spent = {
            name: sum(used - before[name].get(pid, 0.0) for pid, used in pids.items())
            for name, pids in self._spent().items()
        }
        p50, p99 = (served.quantile(share) * 1e3 for share in (0.5, 0.99))
        cpu = {name: used * 1e6 / served.calls for name, used in spent.items()}
        others = (busy - sum(spent.values())) / served.seconds
        return Figures(Observed(served.calls / served.seconds, p50, p99), cpu), others

    def _spent(self) -> dict[str, dict[int, float]]:
        """CPU seconds of each process, by its kind."""
        pids = {f"hub{number}": [node.pid] for number, node in enumerate(self._nodes)}
        pids |= {"broker": [self._broker], "server": [self._server], "load": [os.getpid()]}
        pids["database"] = self._database.processes()
        return {name: {pid: cpu_of(pid) for pid in each} for name, each in pids.items()}


def middle(turns: Sequence[Figures]) -> Figures:
    """The median of each figure."""
    observed = Observed(*(median(values) for values in zip(*(turn.observed for turn in turns), strict=True)))
    return Figures(observed, {name: median(turn.cpu[name] for turn in turns) for name in turns[0].cpu})


class Turn(msgspec.Struct, frozen=True):
    """One load of the real cluster, for a moment."""

    row: str
    load: int
    """The connections of a load from which costs are found; 0 for one that is predicted."""
    figures: Figures
    others: float
    """Cores that other programs had meanwhile."""


class Measurement(msgspec.Struct, frozen=True):
    """What `--save` writes."""

    cores: int
    turns: list[Turn]


def measure(rounds: int, seconds: float) -> Measurement:
    """Put all loads on a real cluster, in turn."""
    loads = {(row, load): (shape, load) for row, shape in LEARNED.items() for load in (FEW, MANY)}
    loads |= {(row, 0): load for row, load in CHECKED.items()}
    turns = []
    with ExitStack() as held:
        real = RealCluster(held)
        for number in range(rounds + 1):
            print(f"round {number} of {rounds}", file=sys.stderr)
            for (row, load), (shape, connections) in loads.items():
                figures, others = real.measure(shape, connections, seconds)
                if number:  # the first one warms up
                    turns.append(Turn(row, load, figures, others))
            if not number:
                real.analyze()
    return Measurement(len(os.sched_getaffinity(0)), turns)


def medians(measurement: Measurement) -> dict[tuple[str, int], Figures]:
    """The median of each figure of each load, over the turns without other programs.

    Raises:
        NotMeasured: a load has no such turn.
    """
    taken: dict[tuple[str, int], list[Figures]] = {}
    for turn in measurement.turns:
        quiet = taken.setdefault((turn.row, turn.load), [])
        if turn.others <= OTHERS_MAX:
            quiet.append(turn.figures)
    if noisy := [row for (row, _), turns in taken.items() if not turns]:
        raise NotMeasured(f"other programs had over {OTHERS_MAX} cores in each turn of: {', '.join(noisy)}")
    return {key: middle(turns) for key, turns in taken.items()}


def compare(measurement: Measurement, seconds: float = 0.5) -> tuple[Costs, list[str]]:
    """Predict, and print that beside what was measured: the costs, and a sentence for each error above the limit."""
    measured, cores = medians(measurement), measurement.cores
    costs = fit(measured, cores, seconds=seconds)
    print(f"costs, in microseconds: {', '.join(f'{kind} {shown(getattr(costs, kind))}' for kind in SOURCES)}")
    print(f"an idle core wakes in {costs.wake_microseconds:.0f} µs, the disk syncs in {costs.sync_milliseconds:.2f} ms")
    print(f"\n{'three nodes':<24}{'':<14}{'measured':>12}{'predicted':>12}{'error':>9}")
    wrong = []
    for row, (shape, connections) in CHECKED.items():
        real = measured[row, 0]
        guess = predict(replace(shape, cores=cores), costs, connections=connections, seconds=4 * seconds)
        for what, of in COMPARED.items():
            error = of(guess) / of(real) - 1
            print(f"{row:<24}{what:<14}{of(real):>12.2f}{of(guess):>12.2f}{error:>9.0%}")
            if abs(error) > ALLOWED_ERROR:
                wrong.append(f"{row}: {what} is predicted {error:+.0%} off, and {ALLOWED_ERROR:.0%} are allowed")
    return costs, wrong


COMPARED: Mapping[str, Callable[[Figures], float]] = {
    "calls/s": lambda figures: figures.observed.calls_per_second,
    "p50 ms": lambda figures: figures.observed.p50_milliseconds,
    "hubs µs": lambda figures: figures.hubs,
}


def shown(cost: Cost) -> str:
    """A cost as text."""
    return f"{cost.work:.0f} (+{cost.turn:.0f} a turn)"


# -- predictions -------------------------------------------------------------------------------------------------------

RATE_MAX = 25_000.0
"""Calls per second and node that no cost allows."""

CALLS_EACH = 8_000
"""Calls that a prediction simulates."""


def capacity(shape: Shape, costs: Costs) -> tuple[float, Figures]:
    """The calls per second at which the busiest hub, or the broker, works for `UTILISATION` of the time."""
    low, high = 1.0, shape.nodes * RATE_MAX
    for _ in range(9):
        rate = (low + high) / 2
        figures = predict(shape, costs, per_second=rate, seconds=CALLS_EACH / rate)
        broker = figures.cpu["broker"] * rate / 1e6 / shape.broker_cores
        database = figures.cpu["database"] * rate / 1e6 / shape.database_cores
        if max(figures.busiest, broker, database) > UTILISATION:
            high = rate
        else:
            low = rate
    return low, predict(shape, costs, per_second=low, seconds=CALLS_EACH / low)


def predictions(costs: Costs) -> None:
    """Print what clusters that nobody has here would carry."""
    heads = ("calls/s", "p50 ms", "p99 ms", "hubs µs", "broker cores", "db cores")
    print(f"\nat {UTILISATION:.0%} of the busiest process\n{'cluster':<46}" + "".join(f"{head:>14}" for head in heads))
    for name, shape in (
        ("1 node, its own servers", Shape(1)),
        ("8 workers, each its own servers", Shape(8, has_broker=False)),
        ("32 workers, each its own servers", Shape(32, has_broker=False)),
        ("8 workers, servers that dialled in", Shape(8, 7 / 8, has_broker=False)),
        ("32 workers, servers that dialled in", Shape(32, 31 / 32, has_broker=False)),
        ("8 nodes on NATS, servers that dialled in", Shape(8, 7 / 8)),
        ("32 nodes on NATS, servers that dialled in", Shape(32, 31 / 32, broker_cores=8)),
        ("8 nodes, durable tasks", Shape(8, is_task=True)),
        ("32 nodes, durable tasks", Shape(32, is_task=True, database_cores=32)),
    ):
        rate, figures = capacity(shape, costs)
        busy = (figures.cpu[each] * rate / 1e6 for each in ("broker", "database"))
        _, p50, p99 = figures.observed
        cells = (f"{rate:,.0f}", f"{p50:.2f}", f"{p99:.2f}", f"{figures.hubs:.0f}", *(f"{each:.1f}" for each in busy))
        print(f"{name:<46}" + "".join(f"{cell:>14}" for cell in cells))
    print(f"\n10,000 per second need, at {UTILISATION:.0%}:")
    for name, made in (
        ("calls to a node's own servers", Shape),
        ("calls to servers that dialled in, on NATS", lambda nodes: Shape(nodes, 1 - 1 / nodes, broker_cores=16)),
        ("durable tasks", lambda nodes: Shape(nodes, is_task=True, database_cores=32)),
    ):
        nodes = next(
            each
            for each in range(1, 65)
            if predict(made(each), costs, per_second=10_000, seconds=0.5).busiest <= UTILISATION
        )
        figures = predict(made(nodes), costs, per_second=10_000, seconds=1.0)
        database, broker = (figures.cpu[each] / 100 for each in ("database", "broker"))
        told = f"{nodes} nodes, p99 {figures.observed.p99_milliseconds:.1f} ms"
        print(f"  {name}: {told}, {broker:.1f} cores of nats-server, {database:.1f} of PostgreSQL")


@dataclass(frozen=True, slots=True)
class Link:
    """An idle server that has dialled in, at one node: `make links`."""

    kib: float
    joining_milliseconds: float
    idle_microseconds: float
    """CPU per second."""


OWNED, REMOTE, SERVED = Link(33.5, 5.7, 5.8), Link(22.7, 1.7, 0.0), Link(11.2, 0.5, 0.0)
"""At the node with its socket in a cluster of two, at each other node, and at the first for each further node."""
DEVICE_KIB = 8.7
CHANNELS_MAX = BusSettings().channels_max


def million(servers: int = 1_000_000) -> None:
    """Print what idle servers that dialled in take, by the number of nodes."""
    print(f"\n{servers:,} servers that dialled in (a link to each at each node)")
    heads = ("own each", "GiB a node", "idle, of a core", "join all, s", "one dies, s")
    print(f"{'nodes':<8}" + "".join(f"{head:>18}" for head in heads))
    for nodes in (8, 16, 32, 64):
        own, others = servers / nodes, servers - servers / nodes
        owned_kib = OWNED.kib + (nodes - 2) * SERVED.kib
        owned_joining = OWNED.joining_milliseconds + (nodes - 2) * SERVED.joining_milliseconds
        gib = (own * owned_kib + others * REMOTE.kib) / 2**20
        idle = (own * OWNED.idle_microseconds + others * REMOTE.idle_microseconds) / 1e6
        joining = (own * owned_joining + others * REMOTE.joining_milliseconds) / 1e3
        died = (own / (nodes - 1) * owned_joining + own * REMOTE.joining_milliseconds) / 1e3
        mark = f"{own:,.0f}" + (" !" if own > CHANNELS_MAX else "")
        cells = (mark, f"{gib:.1f}", f"{idle:.2f}", f"{joining:,.0f}", f"{died:.0f}")
        print(f"{nodes:<8}" + "".join(f"{cell:>18}" for cell in cells))
    print(f"! above {CHANNELS_MAX:,} servers of one node: other nodes may have no more channels to it")


def main() -> int:
    """Measure if asked to, compare, predict, and say whether the check holds."""
    parser = argparse.ArgumentParser(prog="python -m bench.simulate", description=__doc__)
    parser.add_argument("--check", action="store_true", help="measure three real nodes, instead of reading the file")
    parser.add_argument("--file", type=Path, default=MEASURED, help=f"the measurements (default {MEASURED.name})")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each load (default 5)")
    parser.add_argument("--seconds", type=float, default=1.0, help="length of a turn (default 1)")
    options = parser.parse_args()
    try:
        if options.check:
            taken = measure(options.rounds, options.seconds)
            options.file.write_bytes(msgspec.json.format(msgspec.json.encode(taken), indent=1))
        costs, wrong = compare(msgspec.json.decode(options.file.read_bytes(), type=Measurement))
    except (NotMeasured, NotStarted, WrongAnswer) as failed:
        print(f"bench: {failed}", file=sys.stderr)
        return 2
    predictions(costs)
    million()
    for sentence in wrong:
        print(f"bench: {sentence}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
