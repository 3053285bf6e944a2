"""Nodes for tests: in this process, and in processes of their own (`python -m tests.cluster.nodes …`)."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import uvloop

from isthmus.cluster.bus import Bus, BusChannel, ChannelEnd, NodeId
from isthmus.cluster.nats import NatsBus, NatsSettings
from isthmus.cluster.sessions import BaseBus
from isthmus.cluster.settings import BusSettings
from isthmus.cluster.unix import UnixBus

CALM = BusSettings(silence_seconds=30.0, answer_seconds=10.0)
"""For tests that are not about leases: a busy machine may stop a process for seconds."""

ROOT = Path(__file__).parents[2]


def as_bus(bus: BaseBus) -> Bus:
    """The port itself; the type checker proves that the implementations have it."""
    return bus


class Inbox:
    """Receives what a channel delivers."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[bytes] = asyncio.Queue()
        self.end: asyncio.Future[ChannelEnd] = asyncio.get_running_loop().create_future()
        self.writables = 0
        self.silences: list[int] = []

    def message(self, message: bytes) -> None:
        assert not self.end.done()
        self.messages.put_nowait(message)

    def writable(self) -> None:
        self.writables += 1

    def silent(self, confirmed: int) -> None:
        self.silences.append(confirmed)

    def closed(self, end: ChannelEnd) -> None:
        self.end.set_result(end)

    async def next(self) -> bytes:
        async with asyncio.timeout(30):
            return await self.messages.get()

    async def ended(self, within: float = 30.0) -> ChannelEnd:
        async with asyncio.timeout(within):
            return await self.end


class EchoInbox(Inbox):
    """Sends everything back."""

    def __init__(self, channel: BusChannel) -> None:
        super().__init__()
        self._channel = channel

    def message(self, message: bytes) -> None:
        self._channel.send(message)


@dataclass
class Cluster:
    """A cluster of one kind; its nodes are closed at the end of the test."""

    kind: Literal["unix", "nats"]
    where: str
    """The folder, or the URL of NATS."""
    prefix: str = "test"
    buses: list[BaseBus] = field(default_factory=list)
    processes: list[asyncio.subprocess.Process] = field(default_factory=list)

    async def node(
        self,
        node: str,
        attributes: Mapping[str, str] | None = None,
        settings: BusSettings = CALM,
        where: str = "",
        prepare: Callable[[Bus], None] | None = None,
    ) -> BaseBus:
        bus = await start_node(self.kind, where or self.where, self.prefix, node, attributes, settings, prepare)
        self.buses.append(bus)
        return bus

    async def pair(self, settings: BusSettings = CALM) -> tuple[BaseBus, BaseBus]:
        a, b = await self.node("a", settings=settings), await self.node("b", settings=settings)
        await present(a, "b")
        await present(b, "a")
        return a, b

    async def program(self, node: str, settings: Mapping[str, float] | None = None) -> asyncio.subprocess.Process:
        """A node in a process of its own, with the services of `main`."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            __name__,
            self.kind,
            self.where,
            self.prefix,
            node,
            json.dumps(settings or {}),
            cwd=ROOT,
        )
        self.processes.append(process)
        return process

    async def aclose(self) -> None:
        for process in self.processes:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        for bus in self.buses:
            await bus.aclose()


async def start_node(
    kind: str,
    where: str,
    prefix: str,
    node: str,
    attributes: Mapping[str, str] | None,
    settings: BusSettings,
    prepare: Callable[[Bus], None] | None = None,
) -> BaseBus:
    if kind == "unix":
        return await UnixBus.start(Path(where), NodeId(node), attributes, settings, prepare)
    return await NatsBus.start(NatsSettings((where,), prefix), NodeId(node), attributes, settings, prepare)


async def present(bus: BaseBus, *nodes: str) -> None:
    """Wait until these nodes are the peers."""
    changed = asyncio.Event()
    stop = bus.on_peers_changed(changed.set)
    async with asyncio.timeout(30):
        while set(bus.peers()) != set(nodes):
            changed.clear()
            await changed.wait()
    stop()


async def until(is_true: Callable[[], bool]) -> None:
    """Wait for something that nobody announces."""
    async with asyncio.timeout(30):
        while not is_true():  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.01)


async def connected(bus: BaseBus, *, is_connected: bool, within: float) -> None:
    changed = asyncio.Event()
    stop = bus.on_state_changed(lambda _: changed.set())
    async with asyncio.timeout(within):
        while bus.state.is_connected != is_connected:
            changed.clear()
            await changed.wait()
    stop()


async def open_channel(a: BaseBus, b: BaseBus, service: str = "talk") -> tuple[BusChannel, BusChannel]:
    """Both ends of a channel; neither is started."""
    accepted: asyncio.Future[BusChannel] = asyncio.get_running_loop().create_future()
    stop = b.serve(service, accepted.set_result)
    here = await a.connect(b.node, service, within=30)
    there = await accepted
    stop()
    return here, there


async def main(kind: str, where: str, prefix: str, node: str, settings: str) -> None:
    """A node that answers `echo`, never answers `hang`, and serves `echo` and `silence`."""

    async def hang(_node: NodeId, _payload: bytes) -> bytes:
        await asyncio.Event().wait()
        return b""

    def prepare(bus: Bus) -> None:
        bus.respond("echo", lambda _node, payload: payload)
        bus.respond("hang", hang)
        bus.serve("echo", lambda channel: channel.start(EchoInbox(channel)))
        bus.serve("silence", lambda _channel: None)

    await start_node(kind, where, prefix, node, None, BusSettings(**json.loads(settings)), prepare)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
