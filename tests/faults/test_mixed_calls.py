"""Many calls of all kinds, with faults and cancellations among them, leave nothing behind (R09).

A thousand here, a million in `make soak`. Most are echoes, and each caller checks that the answer is its own. One
in seven writes the ledger, and the oracle judges it: a third of these break their connection, repeat their answer, come
late or have garbage around them, and the others are given up in the middle.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.conftest import Ledger, Spawn
from tests.faults.caller import Answer, Broken, Caller, pay
from tests.faults.oracle import Record, judge
from tests.faults.probed_hub import ProbedHub, probed
from tests.faults.test_cut import BREAKER_OFF
from tests.faults.watching import eventually, note, open_descriptors, resident_bytes, times
from tests.hubs import stdio
from tests.peers.launch import command

CALLS = times(1_000, 1_000_000)
SLICES = 10
"""Memory is looked at after each; the first one is the warm-up."""
WORKERS = 24
SEED = 9
FAULTS: Final = ("dup_reply", "garbage", "late_reply:0.02")
BREAKS: Final = (*FAULTS, "drop")
"""For servers where each call has a connection of its own."""
SERVERS: Final = {"stdio": FAULTS, "socket": FAULTS, "modern": BREAKS, "legacy": BREAKS}
GROWTH_BYTES = 1 << 20
"""For each hundred thousand calls after the warm-up."""
SLOPE_CALLS = 100_000
"""With fewer calls, the slope says more about the allocator than about the hub."""

pytestmark = pytest.mark.timeout(300 if CALLS < SLOPE_CALLS else 7200)


class Mix:
    """Callers of three kinds, and the outcomes of their calls."""

    def __init__(self, hub: ProbedHub) -> None:
        self._port = hub.hub.port
        self._chance = random.Random(SEED)
        self._callers: list[Caller] = []
        self.history: list[Record] = []
        """The calls that the ledger has."""
        self.kinds: Counter[str] = Counter()
        self.made = 0

    async def run(self, calls: int) -> None:
        """Make so many calls, several at a time, and leave no connection or session open."""
        numbers = iter(range(self.made, self.made + calls))
        self.made += calls
        try:
            await asyncio.gather(*(self._work(numbers) for _ in range(WORKERS)))
        finally:
            for caller in self._callers:
                caller.hang_up()
            self._callers.clear()

    async def _work(self, numbers: Iterator[int]) -> None:
        modern, legacy = Caller(self._port), Caller(self._port, era="legacy")
        self._callers += [modern, legacy]
        await legacy.initialize()
        for number in numbers:
            chance = self._chance.random()
            server = self._chance.choice(tuple(SERVERS))
            if chance < 0.05:
                mode = self._chance.choice(SERVERS[server])
                self._record("fault", await pay(modern, f"{server}.pay", f"n{number}", mode=mode))
            elif chance < 0.15:
                self._record("given up", await self._give_up(server, f"n{number}"))
            else:
                await self._echo(number, server, modern, legacy)
        await legacy.end_session()

    async def _give_up(self, server: str, nonce: str) -> Record:
        caller = Caller(self._port)
        call = asyncio.ensure_future(pay(caller, f"{server}.pay", nonce, mode="sleep:60"))
        await asyncio.sleep(self._chance.expovariate(1 / 0.005))
        caller.hang_up()
        call.cancel()  # it may not be connected yet
        await asyncio.gather(call, return_exceptions=True)
        return Record(nonce, "unknown")

    async def _echo(self, number: int, server: str, modern: Caller, legacy: Caller) -> None:
        text = f"own {number}"
        kind = number % 3
        try:
            if kind < 2:
                answer: Answer = await (modern, legacy)[kind].call(f"{server}.echo", {"text": text})
                found = answer.text if answer.reported == "ok" else answer.reported
            else:
                found = await self._echo_by_rest(server, text, modern)
        except Broken as error:
            raise AssertionError(f"the hub ended a connection: {error}") from error
        assert found == text, (server, text, found)
        self.kinds[("MCP modern", "MCP legacy", "REST")[kind]] += 1

    async def _echo_by_rest(self, server: str, text: str, caller: Caller) -> str:
        body = json.dumps({"text": text}).encode()
        head = f"POST /v1/tools/{server}.echo HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        answer = await caller.send(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        response = json.loads(answer.body)
        return str(response["content"][0]["text"] if answer.status == 200 else response["executed"])

    def _record(self, kind: str, record: Record) -> None:
        self.kinds[kind] += 1
        self.history.append(record)


async def test_many_mixed_calls_leave_nothing_behind(tmp_path: Path, ledger: Ledger, spawn: Spawn) -> None:
    noted = ("--ledger", str(ledger.path))
    modern, legacy = await spawn("raw_server", *noted), await spawn("raw_server", "--era", "legacy", *noted)
    socket = await spawn("raw_server", "--transport", "websocket", *noted)
    servers = {
        "stdio": stdio(command("raw_server", *noted)),
        "modern": {"url": modern.url, "era": "modern"},
        "legacy": {"url": legacy.url, "era": "legacy"},
        "socket": {"url": socket.socket_url},
    }
    async with probed(tmp_path, servers, limits={**BREAKER_OFF, "listing_seconds": 30.0}) as hub:
        mix = Mix(hub)

        async def settled() -> tuple[int, int]:
            return await hub.tasks(), open_descriptors(hub.hub.pid)

        await mix.run(CALLS // SLICES)
        await eventually(lambda: is_quiet(hub), "the warm-up is over", within=30.0)
        before = await settled()
        sizes = [(mix.made, resident_bytes(hub.hub.pid))]
        for _ in range(SLICES - 1):
            await mix.run(CALLS // SLICES)
            sizes.append((mix.made, resident_bytes(hub.hub.pid)))

        async def is_as_before() -> bool:
            return all(now <= then for now, then in zip(await settled(), before, strict=True))

        await eventually(is_as_before, f"tasks and descriptors as before: {before}", within=60.0)
        after = await settled()
    assert judge(mix.history, ledger.ran()) == []
    growth = slope(sizes) * 100_000
    note(seed=SEED, calls=mix.made, tasks_before=before[0], tasks_after=after[0], descriptors_before=before[1],
         descriptors_after=after[1], kib_for_100_000_calls=round(growth / 1024), kinds=dict(mix.kinds),
         mib=[round(size / (1 << 20), 1) for _, size in sizes])  # fmt: skip
    assert CALLS < SLOPE_CALLS or growth <= GROWTH_BYTES


async def is_quiet(hub: ProbedHub) -> bool:
    """Whether two looks, a moment apart, see the same number of tasks and descriptors."""
    first = await hub.tasks(), open_descriptors(hub.hub.pid)
    await asyncio.sleep(1.0)
    return first == (await hub.tasks(), open_descriptors(hub.hub.pid))


def slope(sizes: list[tuple[int, int]]) -> float:
    """Bytes for each call, by least squares."""
    middle_calls = sum(calls for calls, _ in sizes) / len(sizes)
    middle_bytes = sum(size for _, size in sizes) / len(sizes)
    across = sum((calls - middle_calls) ** 2 for calls, _ in sizes)
    return sum((calls - middle_calls) * (size - middle_bytes) for calls, size in sizes) / across
