"""A caller disconnects in the middle of its call: the server is cancelled as the caller's era defines."""

from __future__ import annotations

import asyncio
import os
import random
import time
from pathlib import Path
from typing import Literal

import pytest

from tests.conftest import Ledger, Spawn
from tests.faults.caller import Broken, Caller, pay
from tests.faults.oracle import Record, judge
from tests.faults.test_cut import BREAKER_OFF
from tests.faults.watching import Tail, eventually, note, open_descriptors, times
from tests.hubs import HubProcess, serving, stdio
from tests.peers.launch import command

Reach = Literal["stdio", "modern", "stateful", "stateless"]
LEAVERS = times(80, 5000)
LEAVING_AT_ONCE = 40
LEAVING_SECONDS = 0.05
"""After this long, on average, a caller leaves."""
LEAVING_SEED = int(os.environ.get("LEAVING_SEED", "25"))
REACHES: tuple[Reach, ...] = ("stdio", "modern", "stateful", "stateless")


@pytest.fixture
async def servers(ledger: Ledger, spawn: Spawn) -> dict[str, object]:
    """The same server in every way it can be reached."""
    noted = ("--ledger", str(ledger.path))
    stateful, stateless = await spawn("raw_server", *noted), await spawn("raw_server", "--stateless", *noted)
    return {
        "stdio": stdio(command("raw_server", *noted)),
        "modern": {"url": stateful.url, "era": "modern"},
        "stateful": {"url": stateful.url, "era": "legacy"},
        "stateless": {"url": stateless.url, "era": "legacy"},
    }


async def leave(hub: HubProcess, caller: Caller, name: str, nonce: str, tail: Tail, mode: str) -> None:
    """Call, wait until the server has it, and hang up."""
    call = asyncio.ensure_future(caller.call(f"{name}.pay", {"nonce": nonce, "mode": mode}))
    await eventually(lambda: nonce in tail.look().ran, f"{nonce} has begun")
    caller.hang_up()
    with pytest.raises(Broken):
        await call


async def all_listed(caller: Caller) -> bool:
    names = {tool["name"] for tool in (await caller.list_tools())["tools"]}
    return {f"{name}.pay" for name in REACHES} <= names


async def test_a_modern_callers_leaving_cancels_the_call_at_the_server(
    tmp_path: Path, ledger: Ledger, servers: dict[str, object]
) -> None:
    tail = Tail(ledger.path)
    async with serving(tmp_path, servers) as hub, Caller(hub.port) as other:
        await eventually(lambda: all_listed(other), "all servers are there", within=20.0)
        for name in REACHES:
            beside = asyncio.ensure_future(other.call(f"{name}.pay", {"nonce": f"{name}-beside", "mode": "sleep:0.3"}))
            await leave(hub, Caller(hub.port), name, f"{name}-left", tail, "sleep:60")

            await eventually(lambda: f"{name}-left" in tail.look().cancelled, f"{name} was cancelled")  # noqa: B023
            assert (await beside).text == f"{name}-beside"

        assert tail.look().cancelled == {f"{name}-left" for name in REACHES}


async def test_a_legacy_callers_broken_connection_does_not_cancel(
    tmp_path: Path, ledger: Ledger, servers: dict[str, object]
) -> None:
    tail, all_have_left = Tail(ledger.path), tmp_path / "all have left"
    async with serving(tmp_path, servers) as hub, Caller(hub.port, era="legacy") as other:
        await eventually(lambda: all_listed(other), "all servers are there", within=20.0)
        for name in REACHES:
            caller = Caller(hub.port, era="legacy")
            await caller.initialize()
            await leave(hub, caller, name, f"{name}-left", tail, f"until:{all_have_left}")
        all_have_left.touch()

        # Calls that began later have ended: whatever was to be said of the others was said before.
        later = await asyncio.gather(
            *(other.call(f"{name}.pay", {"nonce": f"{name}-later", "mode": "sleep:0.5"}) for name in REACHES)
        )
        assert [answer.reported for answer in later] == ["ok"] * len(REACHES)
        assert tail.look().cancelled == set()


async def test_a_legacy_caller_cancels_in_words(tmp_path: Path, ledger: Ledger, servers: dict[str, object]) -> None:
    tail = Tail(ledger.path)
    async with serving(tmp_path, servers) as hub, Caller(hub.port, era="legacy") as caller:
        await caller.initialize()
        await eventually(lambda: all_listed(caller), "all servers are there", within=20.0)
        for name in REACHES:
            nonce = f"{name}-withdrawn"
            request = caller.call_bytes(f"{name}.pay", {"nonce": nonce, "mode": "sleep:60"}, id='"mine"')
            call = asyncio.ensure_future(caller.send(request))
            await eventually(lambda: nonce in tail.look().ran, f"{nonce} has begun")  # noqa: B023
            words = caller.request_bytes("notifications/cancelled", {"requestId": "mine"}, id=None)
            assert (await caller.send(words)).status == 202

            await eventually(lambda: nonce in tail.look().cancelled, f"{name} was cancelled")  # noqa: B023
            assert (await call).error == (-32012, "unknown", "cancelled")


async def test_callers_that_leave_at_random_moments_are_all_seen_as_cancellations(
    tmp_path: Path, ledger: Ledger, servers: dict[str, object]
) -> None:
    """A call is sent, runs, or is not sent yet when its caller resets the connection. What ran is cancelled."""
    chance, tail, numbers = random.Random(LEAVING_SEED), Tail(ledger.path), iter(range(LEAVERS))
    history: list[Record] = []
    left: dict[str, float] = {}
    """When each caller left."""
    async with serving(tmp_path, servers, limits=BREAKER_OFF) as hub, Caller(hub.port) as other:
        await eventually(lambda: all_listed(other), "all servers are there", within=20.0)
        descriptors = open_descriptors(hub.pid)

        async def leave_often() -> None:
            for number in numbers:
                nonce, caller = f"left-{number}", Caller(hub.port)
                call = asyncio.ensure_future(pay(caller, f"{chance.choice(REACHES)}.pay", nonce, mode="sleep:120"))
                began = time.monotonic()
                await asyncio.sleep(chance.expovariate(1 / LEAVING_SECONDS))
                left[nonce] = time.monotonic()
                caller.hang_up()
                call.cancel()  # it may not be connected yet
                await asyncio.gather(call, return_exceptions=True)
                history.append(Record(nonce, "unknown", None, began, left[nonce]))
                if nonce in tail.look().ran:
                    await eventually(lambda: nonce in tail.look().cancelled, f"{nonce} is cancelled")  # noqa: B023

        await asyncio.gather(*(leave_often() for _ in range(LEAVING_AT_ONCE)))
        # Calls that were on their way when their callers left are cancelled a moment later.
        await eventually(lambda: tail.look().ran == tail.cancelled, "all that ran is cancelled")
        assert judge(history, ledger.ran()) == []
        await eventually(lambda: open_descriptors(hub.pid) <= descriptors + 8, "the connections are closed")
        for name in REACHES:
            assert (await other.call(f"{name}.pay", {"nonce": f"{name}-after"})).reported == "ok", "the slots are free"
    assert tail.cancelled, "a caller left while the tool ran"
    waits = sorted(at - left[nonce] for nonce, at in tail.cancelled_at.items())
    note(
        seed=LEAVING_SEED,
        left=len(history),
        ran_and_were_cancelled=len(waits),
        cancelled_median_seconds=round(waits[len(waits) // 2], 3),
        cancelled_p99_seconds=round(waits[int(0.99 * (len(waits) - 1))], 3),
    )
