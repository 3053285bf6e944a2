"""`python -m bench.cluster COMMAND`: what several hubs cost, as processes on real NATS and PostgreSQL.

- `crossing`: a call at the node that owns its server, and the same call at another node, over Unix sockets (the workers
  of one hub) and over NATS. Fails if the second costs more than `CROSSING_MICROSECONDS` of CPU over both nodes, or
  `CROSSING_MILLISECONDS` at the median, than the first.
- `alone`: a call at a hub with `[cluster]` and no other node beside the same hub without. Interpreter steps decide:
  two processes of one hub differ by more than the limit in CPU. Fails above `ALONE_SHARE`.
- `links`: memory and CPU of idle servers that have dialled in, at their node and at another one, and of idle devices.
- `workers`: calls/s of two workers beside one, each pinned to a core. Fails below `WORKERS_TIMES`, or where the load
  needs the same cores, below `OF_CEILING` of what these allow.

Turns are short and interleaved; figures are medians over the rounds, differences and ratios are taken within a round.
Ends with 1 above a limit, 2 when it could not be measured.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import select
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from http.client import HTTPConnection
from itertools import count
from pathlib import Path
from statistics import median
from time import clock_gettime, monotonic, process_time, sleep

import msgspec
import uvloop

from bench.__main__ import ASKS_EACH, NotMeasured
from bench.bus import nats_server
from bench.compare import of_calls, read_when_written, steps_table
from bench.devices import Device, line_of
from bench.devices import connect as connect_device
from bench.dialled import start_diallers, wait_until_listed
from bench.diallers import agent_name, raise_descriptor_limit
from bench.load import Served, WrongAnswer, complaint_about, drive
from bench.messages import Ask, asks, call_body, call_headers
from bench.processes import PORT_LOGGED, PORT_PRINTED, NotStarted, Program, cpu_clock_of, resident_bytes
from bench.stage import KEY, Scenario, wait_until_served
from bench.tokens import RELAY_KEY
from tests import databases

CROSSING_MICROSECONDS = 300.0
CROSSING_MILLISECONDS = 1.5
ALONE_SHARE = 0.02
WORKERS_TIMES = 1.6
OF_CEILING = 0.9
"""Of the ratio that the cores allow, what must be reached: no load keeps two cores busy to the last microsecond."""

LOADS = (1, 16)
WARM_UP_SECONDS = 1.0
SEEN_SECONDS = 20.0
POLL_SECONDS = 0.05
DEVICES_AT_ONCE = 100
"""As many as a listening socket surely takes."""
TOOLS_EACH = 2
"""Of a server of `bench.diallers`."""

CHUNK_BYTES = 64 * 1024
AGENT = 7
AUTHORIZED = {"Authorization": f"Bearer {KEY}"}

CONFIG = """
[hub]
state = "state-{node}"
audit = "{audit}"

[relay]
key = "{relay}"
compatible_agents = "any"

[callers.bench]
key = "env:BENCH_KEY"
allow = ["*"]
operator = true

[servers.direct]
url = "http://127.0.0.1:{direct}/mcp"

[servers.pipe]
command = {python}
args = ["-m", "bench.direct", "--carrier", "stdio"]
cwd = {folder}
"""
STORAGE = """
[storage]
url = "{database}"
"""
CLUSTER = """
[cluster]
nats = "{nats}"
node = "{node}"
"""


# -- nodes -------------------------------------------------------------------------------------------------------------


class Node(msgspec.Struct, rename="camel"):
    """What is read of a node in `GET /v1/cluster`."""

    name: str
    servers: list[str]


class Seen(msgspec.Struct):
    """The cluster as the node sees it that answers."""

    node: str
    nodes: list[Node]


@dataclass(frozen=True, slots=True)
class HubNode:
    """One process of a hub. The workers of one hub share a port."""

    name: str
    pid: int
    port: int
    is_worker: bool = False

    def cpu_seconds(self) -> float:
        """CPU time that it has used."""
        return cpu_of(self.pid)

    def connect(self, wanted: int) -> list[socket.socket]:
        """Open connections to this node. The system chooses the worker of each connection, so it is asked."""
        found: list[socket.socket] = []
        while len(found) < wanted:
            connection = HTTPConnection("127.0.0.1", self.port, timeout=SEEN_SECONDS)
            if not self.is_worker or seen_on(connection).node == self.name:
                connection.connect() if connection.sock is None else None
                connection.sock.setblocking(False)
                found.append(connection.sock)
            else:
                connection.close()
        return found


def cpu_of(pid: int) -> float:
    """CPU time of a process, user and system."""
    return clock_gettime(cpu_clock_of(pid))


def seen_on(connection: HTTPConnection) -> Seen:
    """Ask the node at the other end of a connection for the cluster."""
    connection.request("GET", "/v1/cluster", headers=AUTHORIZED)
    return msgspec.json.decode(connection.getresponse().read(), type=Seen)


class Stage:
    """Starts what a command needs; `held` ends it."""

    def __init__(self, held: ExitStack, audit: str = "off") -> None:
        self.held = held
        self._audit = audit
        self._folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        self.database = held.enter_context(databases.running(fsync="on", autovacuum="on", shared_buffers="128MB"))
        self.diallers: list[Program] = []
        self.direct = held.enter_context(Program("bench.direct"))
        self.direct_port = self.direct.port(PORT_PRINTED)
        self._names = count(1)

    def nats(self) -> tuple[str, int]:
        """Start a NATS server: its address and its process."""
        return self.held.enter_context(nats_server())

    def start(self, *options: str, tables: str = "", module: str = "isthmus", node: str = "") -> tuple[Program, int]:
        """Start a hub with a database schema of its own, or of the cluster that `tables` names."""
        node = node or f"hub{next(self._names)}"
        quoted = {"python": sys.executable, "folder": str(Path(__file__).parent.parent)}
        texts = {key: msgspec.json.encode(value).decode() for key, value in quoted.items()}
        config = self._folder / f"{node}.toml"
        base = CONFIG.format(node=node, audit=self._audit, relay=RELAY_KEY, direct=self.direct_port, **texts)
        config.write_text(base + (tables or STORAGE.format(database=self.database.url())))
        serve = ("serve", "--config", str(config), "--host", "127.0.0.1", "--port", "0", *options)
        env = {"BENCH_KEY": KEY, "BENCH_STEPS": str(self.steps_file(node))}
        hub = self.held.enter_context(Program(module, *serve, env=env))
        return hub, hub.port(PORT_LOGGED, besides=(self.direct_port,))

    def database_url(self) -> str:
        """A schema of its own in the database."""
        return self.database.url()

    def steps_file(self, node: str) -> Path:
        """Where a counted hub writes its steps."""
        return self._folder / f"{node}.steps.json"

    def workers(self, number: int) -> list[HubNode]:
        """Start `isthmus serve --workers`; one worker is a hub without them, as users run it."""
        if number == 1:
            hub, port = self.start()
            return [HubNode("one", hub.pid, port)]
        parent, port = self.start("--workers", str(number))
        seen = wait_until_seen(port, number)
        # A worker's name ends with its number, and the parent starts them in this order.
        names = sorted(each.name for each in seen.nodes)
        return [HubNode(name, pid, port, True) for name, pid in zip(names, parent.children(), strict=True)]

    def cluster(self, number: int, nats: str) -> list[HubNode]:
        """Start nodes that share NATS and a database."""
        database = self.database.url()
        made = [self.node(f"node{each}", nats, database) for each in range(1, number + 1)]
        for each in made:
            wait_until_seen(each.port, number)
        return made

    def node(self, name: str, nats: str, database: str) -> HubNode:
        """Start one node."""
        tables = STORAGE.format(database=database) + CLUSTER.format(nats=nats, node=name)
        hub, port = self.start(tables=tables, node=name)
        return HubNode(name, hub.pid, port)

    def dial(self, nodes: Sequence[HubNode]) -> tuple[HubNode, list[HubNode], str]:
        """Let a server dial in at the first port: its owner, the other nodes, and its name, which all know by then."""
        self.diallers.append(start_diallers(self.held, [f"{nodes[0].port}:{AGENT}:1"]))
        give_up = monotonic() + SEEN_SECONDS
        while True:
            seen = wait_until_seen(nodes[0].port, len(nodes))
            for each in seen.nodes:
                if each.servers:
                    owner = next(node for node in nodes if node.name == each.name)
                    return owner, [node for node in nodes if node is not owner], each.servers[0]
            if monotonic() > give_up:
                raise NotStarted("no node owns the server that has dialled in")
            sleep(POLL_SECONDS)


def wait_until_seen(port: int, number: int) -> Seen:
    """Wait until a node sees so many, itself included. Raises `NotStarted`."""
    give_up = monotonic() + SEEN_SECONDS
    while True:
        connection = HTTPConnection("127.0.0.1", port, timeout=SEEN_SECONDS)
        try:
            seen = seen_on(connection)
        finally:
            connection.close()
        if len(seen.nodes) == number:
            return seen
        if monotonic() > give_up:
            raise NotStarted(f"{seen.node} sees {len(seen.nodes)} nodes, not {number}")
        sleep(POLL_SECONDS)


def calls_of(tool: str, connections: int) -> list[list[Ask]]:
    """The calls of each connection."""
    return [
        asks("/mcp", tool, "modern", AUTHORIZED, first_id=1 + number * ASKS_EACH, count=ASKS_EACH)
        for number in range(connections)
    ]


def wait_until_called(program: Program, port: int, tool: str) -> None:
    """Wait until a call succeeds."""
    ask = Ask(call_body(1, tool, "ready?", "modern"), 1, "ready?")
    scenario = Scenario(tool, "hub", tool)
    wait_until_served(scenario, program, port, ask, "/mcp", call_headers(tool, "modern", AUTHORIZED))


# -- a call that crosses nodes -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Turn:
    """One load on one way, per call."""

    calls: int
    calls_per_second: float
    p50_milliseconds: float
    p99_milliseconds: float
    cpu_microseconds: Mapping[str, float]
    """Of each process that is watched."""

    @property
    def nodes(self) -> float:
        """CPU of all processes but the broker."""
        return sum(spent for name, spent in self.cpu_microseconds.items() if name != BROKER)


BROKER = "nats-server"


@dataclass(frozen=True, slots=True)
class Way:
    """One row of a table: where the calls arrive, and whose CPU is watched."""

    name: str
    tool: str
    at: HubNode
    watched: Mapping[str, int]
    owner_row: str = ""
    """The row of the same call at the owner, for a call that crosses nodes."""
    has_key: bool = True

    def take_turn(self, connections: int, seconds: float) -> Turn:
        """Call for some seconds."""
        if self.has_key:
            calls = calls_of(self.tool, connections)
        else:
            calls = [asks("/mcp", self.tool, "modern", {}, first_id=1, count=ASKS_EACH) for _ in range(connections)]
        sockets = self.at.connect(connections)
        before = {name: cpu_of(pid) for name, pid in self.watched.items()}
        served = uvloop.run(drive(self.at.port, calls, seconds, sockets=sockets))
        return turn_of(served, {name: cpu_of(pid) - before[name] for name, pid in self.watched.items()})


def turn_of(served: Served, spent: Mapping[str, float]) -> Turn:
    """The figures of a turn, per call."""
    return Turn(
        served.calls,
        served.calls / served.seconds,
        served.quantile(0.50) * 1e3,
        served.quantile(0.99) * 1e3,
        {name: seconds / served.calls * 1e6 for name, seconds in spent.items()},
    )


Taken = dict[tuple[str, int], list[Turn]]
"""The turns of each row and number of connections."""


def crossing_ways(stage: Stage) -> list[Way]:
    """The direct call, the bare relay, and both kinds of bus, each at the owner and at another node."""
    relay = stage.held.enter_context(Program("bench.relay", str(stage.direct_port)))
    bare = HubNode("", relay.pid, relay.port(PORT_PRINTED))
    ways = [
        Way(
            "direct", "echo", HubNode("", stage.direct.pid, stage.direct_port), {"server": stage.direct.pid}, "", False
        ),
        Way("relay", "echo", bare, {"relay": relay.pid}, "", False),
    ]
    url, broker = stage.nats()
    for bus, nodes, extra in (
        ("Unix", stage.workers(2), {}),
        ("NATS", stage.cluster(2, url), {BROKER: broker}),
    ):
        owner, (other,), server = stage.dial(nodes)
        tool = f"{server}.echo"
        watched = {"owner": owner.pid, "other": other.pid, **extra}
        ways.append(Way(f"{bus}, at the owner", tool, owner, watched))
        ways.append(Way(f"{bus}, crossing", tool, other, watched, f"{bus}, at the owner"))
    return ways


def take_turns(ways: Sequence[Way], loads: Sequence[int], rounds: int, seconds: float) -> Taken:
    """Warm up, then give each row its turn with each load, `rounds` times over."""
    for way in ways:
        way.take_turn(max(loads), WARM_UP_SECONDS)
    taken: Taken = {}
    for number in range(rounds):
        print(f"round {number + 1} of {rounds}", file=sys.stderr)
        for load in loads:
            for way in ways:
                taken.setdefault((way.name, load), []).append(way.take_turn(load, seconds))
    return taken


def added(turns: Sequence[Turn], base: Sequence[Turn], of: Callable[[Turn], float]) -> float:
    """How much more a figure is than in the other row, in the same round: the median."""
    return median(of(turn) - of(other) for turn, other in zip(turns, base, strict=True))


def crossing(options: argparse.Namespace) -> int:
    """Measure calls that cross nodes."""
    with ExitStack() as held:
        ways = crossing_ways(Stage(held, options.audit))
        taken = take_turns(ways, LOADS, options.rounds, options.seconds)
    broken = []
    heads = ("calls/s", "p50 ms", "p99 ms", "nodes µs", "broker µs", "× relay", "added µs", "added ms")
    print(f"{'call':<22}{'at once':>8}" + "".join(f"{head:>11}" for head in heads))
    for load in LOADS:
        for way in ways:
            turns = taken[way.name, load]
            cells = [
                f"{median(turn.calls_per_second for turn in turns):.0f}",
                f"{median(turn.p50_milliseconds for turn in turns):.3f}",
                f"{median(turn.p99_milliseconds for turn in turns):.3f}",
                f"{median(turn.nodes for turn in turns):.1f}",
                f"{median(turn.cpu_microseconds.get(BROKER, 0.0) for turn in turns):.1f}",
                f"{median(a.nodes / b.nodes for a, b in zip(turns, taken['relay', load], strict=True)):.2f}",
            ]
            if way.owner_row:
                base = taken[way.owner_row, load]
                more = added(turns, base, lambda turn: turn.nodes)
                later = added(turns, base, lambda turn: turn.p50_milliseconds)
                cells += [f"{more:.1f}", f"{later:.3f}"]
                broken += broken_crossing(
                    f"{way.name}, {load} at once", more, later if load == 1 else 0.0
                )  # 16 wait for cores
            print(f"{way.name:<22}{load:>8}" + "".join(f"{cell:>11}" for cell in cells))
    return complain(broken)


def broken_crossing(name: str, microseconds: float, milliseconds: float) -> list[str]:
    """A sentence for each limit that is exceeded."""
    broken = []
    if microseconds > CROSSING_MICROSECONDS:
        broken.append(
            f"{name}: {microseconds:.0f} µs of CPU more than at the owner, and {CROSSING_MICROSECONDS:g} are allowed"
        )
    if milliseconds > CROSSING_MILLISECONDS:
        broken.append(
            f"{name}: {milliseconds:.2f} ms more than at the owner, and {CROSSING_MILLISECONDS:g} are allowed"
        )
    return broken


def complain(broken: Sequence[str]) -> int:
    """Print what is above its limit; return the exit status."""
    for sentence in broken:
        print(f"bench: {sentence}", file=sys.stderr)
    return 1 if broken else 0


# -- a node alone ------------------------------------------------------------------------------------------------------


ALONE_TOOLS = {"server over HTTP": "direct.echo", "server over stdio": "pipe.echo", "built-in echo": "builtin.echo"}
WITHOUT, WITH = "without [cluster]", "with [cluster]"


def alone(options: argparse.Namespace) -> int:
    """Measure a node that is alone beside a hub without a cluster."""
    with ExitStack() as held:
        stage = Stage(held, options.audit)
        nats, _ = stage.nats()
        ways = []
        for name in (WITHOUT, WITH):
            hub, port = start_alone(stage, name, nats)
            ways += [
                Way(f"{name}, {what}", tool, HubNode("", hub.pid, port), {"hub": hub.pid})
                for what, tool in ALONE_TOOLS.items()
            ]
            for tool in ALONE_TOOLS.values():
                wait_until_called(hub, port, tool)
        idle = idle_share([way.watched["hub"] for way in ways[:: len(ALONE_TOOLS)]], options.seconds * 5)
        taken = take_turns(ways, (16,), options.rounds, options.seconds)
    steps = {
        name: {what: counted_steps(options, name, tool) for what, tool in ALONE_TOOLS.items()}
        for name in (WITHOUT, WITH)
    }
    print(steps_table(steps[WITH], steps[WITHOUT], WITHOUT))
    print(f"\n{'CPU µs/call':<22}{WITHOUT:>20}{WITH:>20}{'more':>10}")
    for what in ALONE_TOOLS:
        base, turns = taken[f"{WITHOUT}, {what}", 16], taken[f"{WITH}, {what}", 16]
        values = [median(turn.nodes for turn in each) for each in (base, turns)]
        share = median(a.nodes / b.nodes for a, b in zip(turns, base, strict=True)) - 1
        print(f"{what:<22}{values[0]:>20.1f}{values[1]:>20.1f}{share:>10.1%}")
    print(f"{'idle, of a core':<22}{idle[0]:>20.2%}{idle[1]:>20.2%}")
    return complain(
        [
            f"{what}: {more:.1%} more steps with [cluster], and {ALONE_SHARE:.0%} are allowed"
            for what in ALONE_TOOLS
            if (more := of_calls(steps[WITH][what]) / of_calls(steps[WITHOUT][what]) - 1) > ALONE_SHARE
        ]
    )


def start_alone(stage: Stage, name: str, nats: str, module: str = "isthmus", node: str = "") -> tuple[Program, int]:
    """A hub on a database, with a cluster or without."""
    tables = STORAGE.format(database=stage.database_url()) + (
        CLUSTER.format(nats=nats, node="alone") if name == WITH else ""
    )
    return stage.start(tables=tables, module=module, node=node)


def idle_share(pids: Sequence[int], seconds: float) -> list[float]:
    """Of a core, what each process takes while nothing is called."""
    began, before = monotonic(), [cpu_of(pid) for pid in pids]
    sleep(seconds)
    return [(cpu_of(pid) - spent) / (monotonic() - began) for pid, spent in zip(pids, before, strict=True)]


def counted_steps(options: argparse.Namespace, name: str, tool: str) -> dict[str, float]:
    """The steps of one call in a hub of its own, by package."""
    with ExitStack() as held:
        stage = Stage(held, options.audit)
        hub, port = start_alone(stage, name, stage.nats()[0], "bench.counted_hub", "counted")
        wait_until_called(hub, port, tool)
        way = Way(name, tool, HubNode("", hub.pid, port), {"hub": hub.pid})
        # One at a time: how many calls share a write would differ between two runs.
        way.take_turn(1, WARM_UP_SECONDS)
        hub.signal(signal.SIGUSR1)
        way.take_turn(1, options.seconds)
        hub.signal(signal.SIGUSR2)
        counted = read_when_written(stage.steps_file("counted"))
    if not counted.calls:
        raise NotMeasured("the hub counted no call")
    return {package: number / counted.calls for package, number in counted.packages.items()}


# -- workers -----------------------------------------------------------------------------------------------------------

FLOOD_CONNECTIONS = 128
"""In all: each worker has enough calls to go on with while the load waits for a core."""

OTHERS_MAX = 0.3
"""Cores that other programs, and the opening of connections, may take: two workers need all of two."""

LOAD = "load"


def flood(nodes: Sequence[HubNode], tool: str, seconds: float) -> Turn:
    """Call as fast as the nodes answer, with as little work as Python allows: no event loop, no parser.

    Each connection repeats one call, so each answer must be the same bytes. All nodes have equally many connections.

    Raises:
        WrongAnswer: one was not.
    """
    each = FLOOD_CONNECTIONS // len(nodes)
    sockets = [made for node in nodes for made in node.connect(each)]
    calls = [of_one[0] for of_one in calls_of(tool, len(sockets))]
    lines: dict[int, tuple[Callable[[int], bytes], Callable[[bytes], int], bytes, bytes]] = {}
    with select.epoll() as ready, ExitStack() as held:
        for made, ask in zip(sockets, calls, strict=True):
            held.callback(made.close)
            made.setblocking(True)
            made.sendall(ask.wire)
            body = read_answer(made)
            if complaint := complaint_about(body, ask):
                raise WrongAnswer(complaint)
            lines[made.fileno()] = made.recv, made.send, ask.wire, body
            ready.register(made, select.EPOLLIN)
        before = {node.name: node.cpu_seconds() for node in nodes}
        own, began = process_time(), monotonic()
        for _, send, wire, _ in lines.values():
            send(wire)
        done, until = 0, began + seconds
        while monotonic() < until:
            for line, _ in ready.poll():
                receive, send, wire, body = lines[line]
                if not receive(CHUNK_BYTES).endswith(body):
                    raise WrongAnswer(f"an answer was not {body[:300]!r}")
                send(wire)
                done += 1
        took = monotonic() - began
        spent = {node.name: node.cpu_seconds() - before[node.name] for node in nodes} | {LOAD: process_time() - own}
    if not done:
        raise WrongAnswer("there was no answer")
    return Turn(done, done / took, 0.0, 0.0, {name: seconds / done * 1e6 for name, seconds in spent.items()})


def machine_busy_seconds() -> float:
    """CPU time that all programs of this machine, and other machines on the same processor, have had so far."""
    user, nice, system, _idle, _io, irq, softirq, steal, *_ = (
        Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    )
    return sum(map(int, (user, nice, system, irq, softirq, steal))) / os.sysconf("SC_CLK_TCK")


def read_answer(made: socket.socket) -> bytes:
    """The body of one answer."""
    head, _, body = made.recv(CHUNK_BYTES).partition(b"\r\n\r\n")
    found = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
    if found is None:
        raise WrongAnswer(f"an answer without a length: {head[:300]!r}")
    while len(body) < int(found[1]):
        body += made.recv(CHUNK_BYTES)
    return body


def ceiling(hub: float, load: float, cores: int, workers: int = 2) -> float:
    """How many times as many calls/s `workers` can reach as one, if the load needs the same cores.

    `hub` and `load` are CPU microseconds per call. One worker has a core of its own, and the load has another one.
    """
    one = 1 / max(hub, load if cores > 1 else hub + load)
    return min(workers / hub, cores / (hub + load)) / one


def workers(options: argparse.Namespace) -> int:
    """Measure two workers beside one."""
    cores = len(os.sched_getaffinity(0))
    if cores < 2:
        raise NotMeasured("two workers need two cores")
    with ExitStack() as held:
        stage = Stage(held, options.audit)
        hubs = {number: stage.workers(number) for number in (1, 2)}
        for nodes in hubs.values():
            for core, node in enumerate(nodes):
                os.sched_setaffinity(node.pid, {core})
            flood(nodes, "builtin.echo", WARM_UP_SECONDS)
        taken: dict[int, list[Turn]] = {1: [], 2: []}
        others: list[float] = []
        for number in range(options.rounds):
            print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
            for of, nodes in hubs.items():
                busy, began = machine_busy_seconds(), monotonic()
                turn = flood(nodes, "builtin.echo", options.seconds)
                taken[of].append(turn)
                others.append((machine_busy_seconds() - busy - turn.nodes * turn.calls / 1e6) / (monotonic() - began))
    hub_of: Callable[[Turn], float] = lambda turn: turn.nodes - turn.cpu_microseconds[LOAD]  # noqa: E731
    print(f"{'workers':<10}{'calls/s':>12}{'hub µs':>12}{'load µs':>12}{'cores busy':>12}")
    for of, turns in taken.items():
        load = median(turn.cpu_microseconds[LOAD] for turn in turns)
        busy = median(turn.nodes * turn.calls_per_second / 1e6 for turn in turns)
        rate = median(turn.calls_per_second for turn in turns)
        print(f"{of:<10}{rate:>12.0f}{median(map(hub_of, turns)):>12.1f}{load:>12.1f}{busy:>12.2f}")
    pairs = list(zip(taken[1], taken[2], strict=True))
    reached = median(two.calls_per_second / one.calls_per_second for one, two in pairs)
    allowed = median(ceiling(hub_of(one), one.cpu_microseconds[LOAD], cores) for one, _ in pairs)
    if median(others) > OTHERS_MAX:
        raise NotMeasured(f"other programs had {median(others):.2f} cores; run it on a quiet machine")
    wanted = min(WORKERS_TIMES, OF_CEILING * allowed)
    print(f"two workers reach {reached:.2f} times one; {cores} cores, which the load needs too, allow {allowed:.2f}")
    broken = f"two workers reach {reached:.2f} times the calls/s of one, and {wanted:.2f} are promised here"
    return complain([broken] if reached < wanted else [])


# -- idle servers and devices ------------------------------------------------------------------------------------------

REST_SECONDS = 3.0
LINKS = {"owner": "the node with its socket", "other": "each other node", BROKER: "nats-server"}
FURTHER = "its node, for a further one"


def links(options: argparse.Namespace) -> int:
    """Measure what an idle server that has dialled in costs its node and another one, and what an idle device costs."""
    raise_descriptor_limit()
    with ExitStack() as held:
        stage = Stage(held, options.audit)
        url, broker = stage.nats()
        database = stage.database_url()
        owner, other = (stage.node(name, url, database) for name in ("node1", "node2"))
        wait_until_seen(owner.port, 2)
        pids = {"owner": owner.pid, "other": other.pid, BROKER: broker}
        before = use_of(pids)
        idle = idle_share(list(pids.values()), options.seconds * 5)
        start_diallers(held, [f"{owner.port}:0:{options.count}"])
        wait_until_listed(other.port, 0, options.count * TOOLS_EACH)  # no socket of them is at this node
        joined = use_of(pids)
        sleep(REST_SECONDS)
        settled = use_of(pids)
        idle_then = idle_share(list(pids.values()), options.seconds * 20)
        print(f"{'a server that dialled in':<28}{'KiB':>10}{'joining ms':>12}{'idle µs/s':>12}")
        for number, (name, what) in enumerate(LINKS.items()):
            kib = (settled[name].memory_bytes - before[name].memory_bytes) / 1024 / options.count
            joining = (joined[name].cpu_seconds - before[name].cpu_seconds) * 1e3 / options.count
            share = (idle_then[number] - idle[number]) * 1e6 / options.count
            print(f"{what:<28}{kib:>10.1f}{joining:>12.2f}{share:>12.2f}")
        settled = use_of(pids)
        third = stage.node("node3", url, database)
        wait_until_listed(third.port, 0, options.count * TOOLS_EACH)
        sleep(REST_SECONDS)
        joined = use_of(pids)
        kib = (joined["owner"].memory_bytes - settled["owner"].memory_bytes) / 1024 / options.count
        joining = (joined["owner"].cpu_seconds - settled["owner"].cpu_seconds) * 1e3 / options.count
        print(f"{FURTHER:<28}{kib:>10.1f}{joining:>12.2f}")
        bytes_each, seconds_each = uvloop.run(idle_devices(owner, options.count))
    print(f"{'a device, at its node':<28}{bytes_each / 1024:>10.1f}{seconds_each * 1e3:>12.2f}")
    return 0


@dataclass(frozen=True, slots=True)
class Use:
    """What a process has used so far."""

    memory_bytes: int
    cpu_seconds: float


def use_of(pids: Mapping[str, int]) -> dict[str, Use]:
    """Memory and CPU time of processes."""
    return {
        name: Use(resident_bytes(Path(f"/proc/{pid}/status").read_text()), cpu_of(pid)) for name, pid in pids.items()
    }


async def idle_devices(node: HubNode, count: int) -> tuple[float, float]:
    """Connect devices, each of an agent of its own: bytes and CPU seconds that each costs."""
    before = use_of({"": node.pid})[""]
    devices = []
    for number in range(count):
        devices.append(await connect_device(line_of(node.port, agent_name(number)), 1, Device))
        if number % DEVICES_AT_ONCE == DEVICES_AT_ONCE - 1:
            await devices[-1].welcomed
    async with asyncio.timeout(SEEN_SECONDS):
        await asyncio.gather(*(device.welcomed for device in devices))
    after = use_of({"": node.pid})[""]
    for device in devices:
        device.close()
    return (after.memory_bytes - before.memory_bytes) / count, (after.cpu_seconds - before.cpu_seconds) / count


# -- the command -------------------------------------------------------------------------------------------------------

COMMANDS: Mapping[str, Callable[[argparse.Namespace], int]] = {
    "crossing": crossing,
    "alone": alone,
    "workers": workers,
    "links": links,
}


def main() -> int:
    """Measure, print, and say whether the limits hold."""
    parser = argparse.ArgumentParser(prog="python -m bench.cluster", description=__doc__)
    parser.add_argument("what", choices=COMMANDS)
    parser.add_argument("--rounds", type=int, default=7, help="turns of each row (default 7)")
    parser.add_argument("--seconds", type=float, default=1.0, help="length of a turn (default 1)")
    parser.add_argument("--count", type=int, default=3000, help="servers and devices of `links` (default 3000)")
    parser.add_argument("--audit", default="off", help="the hubs' `audit` (default off, as in `make bench`)")
    options = parser.parse_args()
    try:
        return COMMANDS[options.what](options)
    except (NotMeasured, NotStarted, WrongAnswer) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
