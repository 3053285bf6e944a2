"""HTTP+SSE and WebSocket links are cut at every 16th byte, and nothing is lost, doubled or invented.

As `test_cut`, without the hub around the link: what a link says of a call is what the caller is told. The server's
ledger knows what ran. `ISTHMUS_CUT_STEP=1` cuts at every byte.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Literal

import pytest

from isthmus.core.background import BackgroundTasks
from isthmus.core.settings import Limits
from isthmus.credentials.server_logins import StaticCredentials
from isthmus.model.fault_table import Fault
from isthmus.transport.egress import Egress
from isthmus.upstream.base_link import BaseLink, ConnectFailed
from isthmus.upstream.sse import SseLink
from isthmus.upstream.websocket import SocketLink
from tests.conftest import Ledger, Spawn
from tests.faults.chaos import ChaosProxy, Direction, Ending
from tests.faults.oracle import Record, judge
from tests.faults.test_cut import note_cuts
from tests.faults.watching import eventually
from tests.unit.core.doubles import SERVER, Listener
from tests.unit.upstream.doubles import ME, Scene, over, text_of

STEP = int(os.environ.get("ISTHMUS_CUT_STEP", "16"))
PAIR = 2
"""Calls that are under way when the wire is cut: one may be whole while the other is not."""
NEVER = 1_000_000
LIMITS = Limits(breaker_failures=NEVER, breaker_calls=NEVER)
Kind = Literal["sse", "websocket"]

pytestmark = pytest.mark.timeout(300 if STEP >= 16 else 3600)


class Wire:
    """A link through a proxy, made anew whenever it is lost, and the outcomes of its calls."""

    def __init__(self, make: Callable[[], BaseLink]) -> None:
        self._make = make
        self._scene: Scene | None = None
        self._numbers = itertools.count()
        self.history: list[Record] = []

    async def connected(self) -> Scene:
        """A scene whose link is there."""
        while self._scene is None or self._scene.link.lost.done():
            await self.aclose()
            link = self._make()
            try:
                if isinstance(link, SocketLink):
                    await link.start()
                await link.handshake("auto")
            except (Fault, ConnectFailed):
                await link.aclose()
            else:
                self._scene = Scene(link, LIMITS)
        return self._scene

    async def pay(self, scene: Scene) -> Record:
        """Make a call with a nonce of its own and remember it."""
        clock = asyncio.get_running_loop().time
        nonce, started = f"n{next(self._numbers)}", clock()
        listener = await over(scene.start("pay", {"nonce": nonce})[1])
        self.history.append(_record(nonce, listener, started, clock()))
        return self.history[-1]

    async def pay_well(self) -> None:
        """Call until it is answered: the wire is whole, so it must come to that."""

        async def is_answered() -> bool:
            return (await self.pay(await self.connected())).reported == "ok"

        await eventually(is_answered, "the link recovers")

    async def aclose(self) -> None:
        scene, self._scene = self._scene, None
        if scene is not None:
            await scene.link.aclose()


def _record(nonce: str, listener: Listener, started: float, ended: float) -> Record:
    (outcome,) = listener.ends
    if isinstance(outcome, Fault):
        return Record(nonce, outcome.executed, None, started, ended)
    return Record(nonce, "ok", text_of(listener), started, ended)


@asynccontextmanager
async def wired(kind: Kind, port: int) -> AsyncIterator[Wire]:
    background, credentials, egress = BackgroundTasks("test"), StaticCredentials({}), Egress()

    def make() -> BaseLink:
        if kind == "websocket":
            url = f"ws://127.0.0.1:{port}/mcp"
            return SocketLink(
                SERVER, ME, LIMITS, url=url, credentials=credentials, egress=egress, background=background
            )
        url = f"http://127.0.0.1:{port}/sse"
        return SseLink(
            SERVER, ME, LIMITS, url=url, credentials=credentials, egress=egress, background=background, max_calls=8
        )

    wire = Wire(make)
    yield wire
    await wire.aclose()
    await background.aclose()


@pytest.mark.parametrize("ending", ["reset", "close"])
@pytest.mark.parametrize("kind", ["sse", "websocket"])
async def test_a_cut_link_is_reported_truthfully(spawn: Spawn, ledger: Ledger, kind: Kind, ending: Ending) -> None:
    peer = await spawn("raw_server", "--transport", kind, "--ledger", str(ledger.path))
    async with ChaosProxy(peer.port) as proxy, wired(kind, proxy.port) as wire:
        ways: tuple[Direction, ...] = ("up", "down")
        for way in ways:
            await sweep(wire, proxy, way, ending)
        assert judge(wire.history, ledger.ran()) == []
        received = [record.reported for record in wire.history]
        note_cuts(f"{kind}, {ending}", dict(Counter(received)))
        assert received.count("ok") > 20
        assert received.count("unknown") > 10
        assert proxy.cuts > 20

        await wire.pay_well()
        scene = await wire.connected()
        proxy.refuse()
        async with asyncio.timeout(10):
            await scene.link.lost
        assert (await wire.pay(scene)).reported == "no"
        assert judge(wire.history, ledger.ran()) == []
        await proxy.clear()


async def sweep(wire: Wire, proxy: ChaosProxy, way: Direction, ending: Ending) -> None:
    cut = proxy.reset_after if ending == "reset" else proxy.close_after
    await wire.pay_well()
    await proxy.clear()
    scene = await wire.connected()
    await asyncio.gather(*(wire.pay(scene) for _ in range(PAIR)))
    for offset in range(0, proxy.passed[way] + STEP, STEP):
        scene = await wire.connected()
        cut(offset, way)
        await asyncio.gather(*(wire.pay(scene) for _ in range(PAIR)))
        await proxy.clear()
        await wire.pay_well()
