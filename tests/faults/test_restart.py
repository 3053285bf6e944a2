"""A server over HTTP restarts: calls that it still works on continue, and the hub reconnects."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.conftest import Ledger, Spawn
from tests.faults.caller import Caller, Era, pay
from tests.faults.chaos import ChaosProxy
from tests.faults.oracle import Record, judge
from tests.faults.watching import Tail, eventually
from tests.hubs import serving
from tests.peers.launch import http_peer


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_calls_that_a_leaving_server_still_works_on_come_to_their_end(
    era: Era, tmp_path: Path, ledger: Ledger, spawn: Spawn
) -> None:
    """A server that is replaced stops listening first, and finishes what it has."""
    peer = await spawn("raw_server", "--era", era, "--ledger", str(ledger.path))
    all_is_over = tmp_path / "all is over"
    until = f"until:{all_is_over}"
    async with (
        ChaosProxy(peer.port) as wire,
        serving(tmp_path, {"raw": {"url": wire.url}}) as hub,
        Caller(hub.port) as caller,
    ):
        await eventually(lambda: is_up(caller), "the server is there", within=20.0)
        tail = Tail(ledger.path)
        working = [asyncio.ensure_future(pay(caller, "raw.pay", f"w{at}", mode=until)) for at in range(8)]
        await eventually(lambda: len(tail.look().ran) == 8, "it works on all of them")

        wire.refuse(is_gentle=True)
        more: list[Record] = []

        async def is_refused() -> bool:
            # Enough of them at once use up the connections that are kept, so that a new one is asked for.
            nonces = (f"m{at}" for at in range(len(more), len(more) + 20))
            more.extend(await asyncio.gather(*(pay(caller, "raw.pay", nonce) for nonce in nonces)))
            return any(record.reported == "no" for record in more)

        await eventually(is_refused, "a connection is refused")
        assert {record.reported for record in more} <= {"ok", "no"}
        all_is_over.touch()

        records = await asyncio.gather(*working)
        assert [record.reported for record in records] == ["ok"] * 8
        await wire.clear()
        await eventually(lambda: is_up(caller), "it is found again", within=20.0)
        assert judge([*records, *more], ledger.ran()) == []


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_killed_server_is_reported_at_once_and_found_again_when_it_is_back(
    era: Era, tmp_path: Path, ledger: Ledger
) -> None:
    options = ("--era", era, "--ledger", str(ledger.path))
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(http_peer("raw_server", *options))
        # Its port is the wire's: nobody else can take that one between the two.
        wire = await stack.enter_async_context(ChaosProxy(first.port))
        hub = await stack.enter_async_context(serving(tmp_path, {"raw": {"url": wire.url}}))
        caller = await stack.enter_async_context(Caller(hub.port))
        await eventually(lambda: is_up(caller), "the server is there", within=20.0)
        tail = Tail(ledger.path)
        working = [asyncio.ensure_future(pay(caller, "raw.pay", f"w{at}", mode="sleep:60")) for at in range(50)]
        await eventually(lambda: len(tail.look().ran) == 50, "it works on all of them")

        wire.refuse(is_gentle=True)
        await first.kill()
        async with asyncio.timeout(20):
            records = await asyncio.gather(*working)
        assert {record.reported for record in records} == {"unknown"}
        refused = await caller.call("raw.echo", {"text": "x"})
        assert refused.error[1] == "no"
        await eventually(lambda: is_missed(caller), "listings say that it is gone")

        second = await stack.enter_async_context(http_peer("raw_server", *options))
        wire.target = second.port
        await wire.clear()
        await eventually(lambda: is_up(caller), "it is found again", within=20.0)
        assert not await is_missed(caller)
        assert judge(records, ledger.ran()) == []


async def is_missed(caller: Caller) -> bool:
    return "raw" in (await caller.list_tools()).get("_meta", {}).get("isthmus/missing", {})


async def is_up(caller: Caller) -> bool:
    return (await caller.call("raw.echo", {"text": "?"})).reported == "ok"
