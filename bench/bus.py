"""`python -m bench.bus`: what a message between two nodes costs, over Unix sockets and over NATS.

Two nodes, each in a process of its own, and a real nats-server. CPU is that of both nodes together; that of nats-server
is shown beside it. Ends with 1 if a request of 1 KB and its response cost more than `PROMISED_US` at either load.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import clock_gettime
from typing import NamedTuple

import uvloop

from bench.processes import Program, cpu_clock_of
from isthmus.cluster.bus import Bus, BusChannel, ChannelEnd, NodeId
from isthmus.cluster.nats import NatsBus, NatsSettings
from isthmus.cluster.sessions import BaseBus
from isthmus.cluster.settings import BusSettings
from isthmus.cluster.unix import UnixBus

PROMISED_US = 150.0
"""Half of what a call across nodes may cost in all."""

PAYLOAD = b"x" * 1024
ROUND_TRIPS = 4000
ROUNDS = 5
LOADS = (1, 32)
LONG_BYTES = 10_000_000
PEER = NodeId("peer")
SETTINGS = BusSettings(silence_seconds=30.0)


class Cost(NamedTuple):
    """Of one round trip, in microseconds."""

    nodes: float
    broker: float
    median: float
    """Its latency."""


class Answers:
    """Hands each message of a channel to whoever waits for it."""

    def __init__(self) -> None:
        self.waiting: list[asyncio.Future[int]] = []

    def message(self, message: bytes) -> None:
        self.waiting.pop(0).set_result(len(message))

    def writable(self) -> None: ...

    def silent(self, confirmed: int) -> None: ...

    def closed(self, end: ChannelEnd) -> None: ...


class Echo:
    """Sends everything back, as fast as it is read."""

    def __init__(self, channel: BusChannel) -> None:
        self._channel = channel

    def message(self, message: bytes) -> None:
        self._channel.send(message)

    def writable(self) -> None: ...

    def silent(self, confirmed: int) -> None: ...

    def closed(self, end: ChannelEnd) -> None: ...


async def start(kind: str, where: str, node: str, prepare: Callable[[Bus], None] | None = None) -> BaseBus:
    """A node of either kind."""
    if kind == "unix":
        return await UnixBus.start(Path(where), NodeId(node), settings=SETTINGS, prepare=prepare)
    return await NatsBus.start(NatsSettings((where,)), NodeId(node), settings=SETTINGS, prepare=prepare)


async def serve(kind: str, where: str) -> None:
    """The other node: it answers until it is ended."""

    def prepare(bus: Bus) -> None:
        bus.respond("echo", lambda _node, payload: payload)
        bus.serve("echo", lambda channel: channel.start(Echo(channel)))

    await start(kind, where, PEER, prepare)
    await asyncio.Event().wait()


async def measure(once: Callable[[], Awaitable[object]], load: int, peer: Program, broker: int | None) -> Cost:
    """The cost of a round trip with so many of them at a time: the least of some rounds."""
    latencies: list[float] = []

    async def caller() -> None:
        for _ in range(ROUND_TRIPS // load):
            began = time.perf_counter()
            await once()
            latencies.append(time.perf_counter() - began)

    costs = []
    await caller()
    for _ in range(ROUNDS):
        latencies.clear()
        before = (time.process_time() + peer.cpu_seconds(), _cpu_of(broker))
        await asyncio.gather(*(caller() for _ in range(load)))
        spent = time.process_time() + peer.cpu_seconds() - before[0], _cpu_of(broker) - before[1]
        each = 1e6 / len(latencies)
        costs.append(Cost(spent[0] * each, spent[1] * each, sorted(latencies)[len(latencies) // 2] * 1e6))
    return min(costs)


def _cpu_of(pid: int | None) -> float:
    return 0.0 if pid is None else clock_gettime(cpu_clock_of(pid))


async def run(kind: str, where: str, broker: int | None) -> bool:
    """Print the costs over one kind of bus; return whether the promise holds."""
    bus = await start(kind, where, "bench")
    is_kept = True
    with Program("bench.bus", kind, where) as peer:
        async with asyncio.timeout(15):
            while PEER not in bus.peers():  # noqa: ASYNC110 - once, while the other process starts
                await asyncio.sleep(0.01)
        channel = await bus.connect(PEER, "echo", within=10)
        answers = Answers()
        channel.start(answers)

        async def message(payload: bytes = PAYLOAD) -> None:
            answered: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            answers.waiting.append(answered)
            channel.send(payload)
            await answered

        for load in LOADS:
            cost = await measure(lambda: bus.request(PEER, "echo", PAYLOAD, within=30), load, peer, broker)
            _print(kind, "request and response, 1 KB", load, cost)
            is_kept = is_kept and cost.nodes <= PROMISED_US
            _print(kind, "channel, 1 KB there and back", load, await measure(message, load, peer, broker))
        began, before = time.perf_counter(), time.process_time() + peer.cpu_seconds()
        await message(bytes(LONG_BYTES))
        took, spent = time.perf_counter() - began, time.process_time() + peer.cpu_seconds() - before
        print(f"{kind:5} channel, 10 MB there and back: {took * 1000:.0f} ms, {spent * 1000:.0f} ms of CPU")
    await bus.aclose()
    return is_kept


def _print(kind: str, what: str, load: int, cost: Cost) -> None:
    broker = f", nats-server {cost.broker:5.1f} µs" if cost.broker else ""
    print(f"{kind:5} {what}, {load:2} at a time: {cost.nodes:6.1f} µs of CPU, median {cost.median:6.0f} µs{broker}")


@contextmanager
def nats_server() -> Iterator[tuple[str, int]]:
    """A server of its own: its URL and its process."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    program = Path(sys.executable).with_name("nats-server")
    process = subprocess.Popen([program, "-a", "127.0.0.1", "-p", str(port)], stderr=subprocess.DEVNULL)
    try:
        give_up = time.monotonic() + 15
        while time.monotonic() < give_up:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.02)
        yield f"nats://127.0.0.1:{port}", process.pid
    finally:
        process.kill()
        process.wait()


def main() -> int:
    """Measure both kinds."""
    with tempfile.TemporaryDirectory() as folder:
        is_kept = uvloop.run(run("unix", f"{folder}/bus", None))
    with nats_server() as (url, pid):
        is_kept = uvloop.run(run("nats", url, pid)) and is_kept
    if not is_kept:
        print(f"A request and its response cost more than {PROMISED_US:g} µs.")
    return 0 if is_kept else 1


if __name__ == "__main__":
    if len(sys.argv) == 3:
        uvloop.run(serve(*sys.argv[1:]))
    else:
        sys.exit(main())
