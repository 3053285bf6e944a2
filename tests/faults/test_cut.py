"""The wire is cut at every 16th byte, and nothing is lost, doubled or invented (R17).

Between hub and server over HTTP and stdio, and between caller and hub. The server's ledger knows what ran; the oracle
compares it with what each caller was told. `ISTHMUS_CUT_STEP=1` cuts at every byte, in every way and for as long as
it takes:

    ISTHMUS_CUT_STEP=1 .venv/bin/python -m pytest tests/faults/test_cut.py
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from tests.conftest import Ledger, Spawn
from tests.faults import quick_server, stdio_cut
from tests.faults.caller import Caller, Era, pay
from tests.faults.chaos import ChaosProxy, Direction, Ending
from tests.faults.oracle import Record, judge
from tests.faults.watching import eventually, note, open_descriptors
from tests.hubs import HubProcess, serving, stdio
from tests.peers.launch import command

STEP = int(os.environ.get("ISTHMUS_CUT_STEP", "16"))
WAYS: tuple[Direction, ...] = ("up", "down")
ENDINGS: tuple[Ending, ...] = ("reset", "close")
DEADLINE = 30.0
PROMPT_SECONDS = 15.0
"""A cut is reported when it happens; a report near the deadline is no report of the cut."""
ABREAST = 3
"""Calls that are under way over HTTP when every connection is cut."""
EVERY_BYTES = 4 * STEP if STEP >= 16 else STEP
"""How often every connection is cut: the hub's own question whether the server is still there then meets the
same fate, and the link is made anew, which takes its time."""
NEVER = 1_000_000
BREAKER_OFF = {"breaker_failures": NEVER, "breaker_calls": NEVER}
"""Here every call fails, and each is to reach the server all the same."""

pytestmark = pytest.mark.timeout(600 if STEP >= 16 else 3600)


@dataclass(frozen=True, slots=True)
class Kind:
    """One way of speaking Streamable HTTP."""

    era: Era
    is_stateless: bool
    mode: Literal["echo", "sse"]

    def __str__(self) -> str:
        return f"{self.era}-{'stateless' if self.is_stateless else 'stateful'}-{self.mode}"


KINDS = [
    Kind("modern", is_stateless=True, mode="echo"),
    Kind("modern", is_stateless=True, mode="sse"),
    Kind("legacy", is_stateless=True, mode="echo"),
    Kind("legacy", is_stateless=True, mode="sse"),
    Kind("legacy", is_stateless=False, mode="echo"),
    Kind("legacy", is_stateless=False, mode="sse"),
]


class CutServer:
    """One server entry of the hub with a wire of its own; server queues are swept side by side, each in order."""

    def __init__(self, caller: Caller, name: str, mode: str, prefix: str = "") -> None:
        self.caller = caller
        self.name = name
        self.mode = mode
        self.prefix = prefix or name
        """Of its nonces, where hubs with servers of one name share a ledger."""
        self.history: list[Record] = []
        self.armed: list[Record] = []
        """Those calls of the history that were to be cut at one exact byte."""
        self._numbers = itertools.count()

    async def pay(self) -> Record:
        """Make a call with a nonce of its own and remember it."""
        nonce = f"{self.prefix}-{next(self._numbers)}"
        record = await pay(self.caller, f"{self.name}.pay", nonce, mode=self.mode, deadline=DEADLINE)
        self.history.append(record)
        return record

    async def pay_well(self) -> None:
        """Call until it is answered: the wire is whole, so it must come to that."""

        async def is_answered() -> bool:
            return (await self.pay()).reported == "ok"

        await eventually(is_answered, f"{self.name} recovers", within=20.0)


WHOLE = slice(None)


def offsets(size: int, step: int = STEP) -> range:
    """Where to cut something of that size: before, at and after its ends too."""
    return range(0, size + step, step)


def verdict(server_queues: Iterable[CutServer], ledger: Ledger) -> list[str]:
    """Everything that was not honest, and everybody who waited too long to hear of a cut."""
    history = [record for server_queue in server_queues for record in server_queue.history]
    late = [record for record in history if record.ended is None or record.ended - record.started > PROMPT_SECONDS]
    return [str(violation) for violation in judge(history, ledger.ran())] + [f"LATE {record}" for record in late]


def count(server_queues: Iterable[CutServer]) -> dict[str | None, int]:
    """The number of calls by outcome."""
    received = [record.reported for server_queue in server_queues for record in server_queue.history]
    return {word: received.count(word) for word in set(received)}


def note_cuts(wire: str, received: dict[str | None, int], step: int = STEP) -> None:
    """Record how many calls a sweep made, and their outcomes."""
    note(
        wire=wire,
        step=step,
        calls=sum(received.values()),
        **{f"told_{word}": n for word, n in sorted(received.items(), key=str)},
    )


# -- between hub and server, over HTTP ---------------------------------------------------------------------------------


async def test_a_cut_of_http_anywhere_is_reported_truthfully(tmp_path: Path, ledger: Ledger, spawn: Spawn) -> None:
    peers = {
        is_stateless: await spawn(
            "raw_server", "--ledger", str(ledger.path), *(["--stateless"] if is_stateless else [])
        )
        for is_stateless in (True, False)
    }
    async with AsyncExitStack() as stack:
        wires = {
            f"{kind}-{ending}": (
                kind,
                ending,
                await stack.enter_async_context(ChaosProxy(peers[kind.is_stateless].port)),
            )
            for kind in KINDS
            for ending in ENDINGS
        }
        servers = {
            name: {"url": proxy.url, "era": kind.era, "timeout": DEADLINE} for name, (kind, _, proxy) in wires.items()
        }
        hub = await stack.enter_async_context(serving(tmp_path, servers, limits=BREAKER_OFF))
        caller = await stack.enter_async_context(Caller(hub.port))
        server_queues = {name: CutServer(caller, name, kind.mode) for name, (kind, _, _) in wires.items()}
        await asyncio.gather(
            *(sweep_http(server_queues[name], proxy, ending) for name, (_, ending, proxy) in wires.items())
        )

        assert verdict(server_queues.values(), ledger) == []
        received = count(server_queues.values())
        note_cuts("Streamable HTTP", received)
        assert sum(received.values()) > 2000
        # The hub's own requests share the wire and are hit now and then; nearly always it is the call's bytes.
        armed = [record.reported for server_queue in server_queues.values() for record in server_queue.armed]
        assert armed.count("unknown") > 0.8 * len(armed)
        # Each kind of honesty was called for: answers, losses, and what provably never left.
        assert min(received.get("ok", 0), received.get("unknown", 0)) > 500
        assert received.get("no", 0) >= len(server_queues)


async def sweep_http(
    server_queue: CutServer, proxy: ChaosProxy, ending: Ending, step: int = STEP, share: slice = WHOLE
) -> None:
    """Cut requests and answers, one at a time and several, then refuse connections altogether.

    With `share`, other sweeps of the same kind of server cut at the other places.
    """
    await server_queue.pay_well()
    cut = proxy.reset_after if ending == "reset" else proxy.close_after
    for way in WAYS:
        await server_queue.pay_well()
        await proxy.clear()
        await server_queue.pay_well()
        for offset in offsets(proxy.passed[way], step)[share]:
            await server_queue.pay_well()
            cut(offset, way)
            server_queue.armed.append(await server_queue.pay())
            await server_queue.pay_well()
            await proxy.clear()
            if offset % EVERY_BYTES == 0:
                # Several at once, on kept connections and on new ones, each of which is cut by itself.
                cut(offset, way, every=True)
                await asyncio.gather(*(server_queue.pay() for _ in range(ABREAST)))
                await proxy.clear()
    proxy.refuse()

    async def is_refused() -> bool:
        # A kept connection may still be written to before its end is seen, and one that was accepted only now stands.
        proxy.reset_all()
        return (await server_queue.pay()).reported == "no"

    await eventually(is_refused, f"{server_queue.name} is told that nothing left")
    await proxy.clear()
    await server_queue.pay_well()


# -- between hub and server, over stdio --------------------------------------------------------------------------------

PAIR = 2
"""Calls that share the pipe when it is cut: one may be whole while the other is not."""
PIPES = 3
"""Processes of each era that are cut side by side."""


async def test_a_cut_of_stdio_anywhere_is_reported_truthfully(
    tmp_path: Path, ledger: Ledger, no_leftovers: None
) -> None:
    server: dict[Era, list[str]] = {
        "modern": quick_server.command(ledger.path),
        "legacy": command("raw_server", "--era", "legacy", "--ledger", str(ledger.path)),
    }
    names = {f"{era}{at}": (era, tmp_path / f"order-{era}{at}") for era in server for at in range(PIPES)}
    entries = {
        name: stdio(stdio_cut.command(server[era], "--arm", str(order)), era=era, timeout=DEADLINE)
        for name, (era, order) in names.items()
    }
    async with serving(tmp_path, entries, limits=BREAKER_OFF) as hub, Caller(hub.port) as caller:
        server_queues = {name: CutServer(caller, name, "") for name in names}
        await asyncio.gather(
            *(
                sweep_stdio(server_queues[name], order, list(cuts_of(era))[int(name[-1]) :: PIPES])
                for name, (era, order) in names.items()
            )
        )

        assert verdict(server_queues.values(), ledger) == []
        received = count(server_queues.values())
        note_cuts("stdio", received)
        assert min(received.get("ok", 0), received.get("unknown", 0)) > 100


LINES: dict[Era, dict[Direction, int]] = {"modern": {"up": 330, "down": 150}, "legacy": {"up": 130, "down": 140}}
"""About how long a request and an answer are; a cut behind the last byte is one that falls into the next call."""


def cuts_of(era: Era) -> Iterator[tuple[int, Direction, stdio_cut.How]]:
    """Every cut of an era; in the short sweep the ways to end take turns, in the long one all are made."""
    for way in WAYS:
        for at, offset in enumerate(offsets(LINES[era][way] * PAIR)):
            ways: Sequence[stdio_cut.How] = ("kill", "close")
            for how in ways if STEP < 16 else ways[at % 2 :][:1]:
                yield offset + 1, way, how  # the wrapper counts a cut down to nothing: there is none before the first


async def sweep_stdio(
    server_queue: CutServer, order: Path, cuts: Sequence[tuple[int, Direction, stdio_cut.How]]
) -> None:
    for after, way, how in cuts:
        await server_queue.pay_well()
        stdio_cut.arm(order, after, way, how)
        await asyncio.gather(*(server_queue.pay() for _ in range(PAIR)))
    disarm(order)
    await server_queue.pay_well()


def disarm(order: Path) -> None:
    """Take back a cut that nothing has run into yet."""
    order.unlink(missing_ok=True)


# -- between caller and hub --------------------------------------------------------------------------------------------


@asynccontextmanager
async def steady(caller: Caller, tool: str, history: list[Record], name: str = "steady") -> AsyncIterator[None]:
    """Another caller that calls all the while, and must not notice the cuts."""
    numbers = itertools.count()
    is_done = False

    async def go_on() -> None:
        while not is_done:
            history.append(await pay(caller, tool, f"{name}-{next(numbers)}"))

    task = asyncio.ensure_future(go_on())
    yield
    is_done = True
    await task


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_a_caller_that_disconnects_anywhere_affects_no_other_caller(
    era: Era, tmp_path: Path, ledger: Ledger, spawn: Spawn
) -> None:
    peer = await spawn("raw_server", "--ledger", str(ledger.path))
    servers = {"over_http": {"url": peer.url}, "over_stdio": stdio(quick_server.command(ledger.path))}
    async with (
        serving(tmp_path, servers) as hub,
        ChaosProxy(hub.port) as proxy,
        Caller(proxy.port, era=era) as breaking,
        Caller(hub.port) as other,
    ):
        server_queues = [CutServer(breaking, name, "") for name in servers]
        neighbour: list[Record] = []
        for server_queue in server_queues:
            await server_queue.pay_well()
        descriptors = open_descriptors(hub.pid)
        async with steady(other, "over_stdio.pay", neighbour):
            for server_queue, way, ending in itertools.product(server_queues, WAYS, ENDINGS):
                await break_off(server_queue, proxy, way, proxy.reset_after if ending == "reset" else proxy.close_after)

        records = [record for server_queue in server_queues for record in server_queue.history]
        assert judge([*records, *neighbour], ledger.ran()) == []
        note_cuts(f"MCP caller, {era}", count(server_queues))
        assert proxy.cuts > 100
        assert {record.reported for record in neighbour} == {"ok"}
        assert len(neighbour) > 10
        await eventually(lambda: open_descriptors(hub.pid) <= descriptors + 4, "the broken connections are closed")
        assert not complaints(hub)


async def break_off(
    server_queue: CutServer, proxy: ChaosProxy, way: Direction, cut: Callable[[int, Direction], None]
) -> None:
    await server_queue.pay_well()
    await proxy.clear()
    await server_queue.pay_well()
    for offset in offsets(proxy.passed[way]):
        cut(offset, way)
        await server_queue.pay()
        await proxy.clear()
    await server_queue.pay_well()


def complaints(hub: HubProcess) -> list[str]:
    """What the hub said that sounds like a defect."""
    return [line for line in hub.said if "Traceback" in line or '"error"' in line]
