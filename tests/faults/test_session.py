"""A server forgets the hub's session: its 404 proves that nothing ran, so the request goes out once more."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.conftest import Ledger, Spawn
from tests.faults.caller import Caller, pay
from tests.faults.chaos import ChaosProxy
from tests.faults.oracle import Record, judge
from tests.faults.watching import eventually
from tests.hubs import serving

CALLS = 50


async def test_fifty_calls_that_meet_a_forgotten_session_run_exactly_once(
    tmp_path: Path, ledger: Ledger, spawn: Spawn
) -> None:
    peer = await spawn("raw_server", "--era", "legacy", "--ledger", str(ledger.path))
    async with serving(tmp_path, {"raw": {"url": peer.url}}) as hub, Caller(hub.port) as caller:
        await eventually(lambda: is_listed(caller, "raw.pay"), "the server is there", within=20.0)
        await peer.control("session_expire:1")
        assert (await pay(caller, "raw.pay", "the last of its session")).reported == "ok"
        await peer.control("echo")

        records = await asyncio.gather(*(pay(caller, "raw.pay", f"n{at}") for at in range(CALLS)))

        assert {record.reported for record in records} == {"ok"}
        ran = ledger.ran()
        assert {nonce: ran[nonce] for nonce in ran if nonce.startswith("n")} == {f"n{at}": 1 for at in range(CALLS)}


async def test_a_server_that_forgets_all_the_time_is_asked_no_third_time(
    tmp_path: Path, ledger: Ledger, spawn: Spawn
) -> None:
    peer = await spawn("raw_server", "--era", "legacy", "--ledger", str(ledger.path), "--mode", "session_expire:10")
    limits = {"breaker_failures": 1000, "breaker_calls": 1000}
    async with serving(tmp_path, {"raw": {"url": peer.url}}, limits=limits) as hub, Caller(hub.port) as caller:
        await eventually(lambda: is_listed(caller, "raw.pay"), "the server is there", within=20.0)
        records: list[Record] = []

        async def is_turned_away() -> bool:
            # Calls that reach the hub one by one each get a new session: then it takes another burst.
            burst = len(records) // CALLS
            records.extend(await asyncio.gather(*(pay(caller, "raw.pay", f"{burst}-{at}") for at in range(CALLS))))
            return burst >= 3 and any(record.reported == "no" for record in records)

        await eventually(is_turned_away, "a call is rejected twice", within=60.0)
        received = [record.reported for record in records]
        # A call rejected twice fails, and its status proves that nothing ran.
        assert set(received) == {"ok", "no"}
        assert received.count("ok") >= 4 * 10, hub.said
        assert judge(records, ledger.ran()) == []
        assert (await pay(caller, "raw.pay", "after")).reported == "ok"


async def test_changes_arrive_in_the_new_session_too(tmp_path: Path, spawn: Spawn) -> None:
    peer = await spawn("raw_server", "--era", "legacy")
    async with (
        ChaosProxy(peer.port) as wire,
        serving(tmp_path, {"raw": {"url": wire.url}}) as hub,
        Caller(hub.port) as caller,
    ):
        await eventually(lambda: is_listed(caller, "raw.echo"), "the server is there", within=20.0)
        await peer.control("session_expire:1")
        assert (await caller.call("raw.echo", {"text": "the last of its session"})).reported == "ok"
        await peer.control("echo")
        before = wire.connections
        wire.reset_all()
        # The hub opens the stream of changes anew, in a session that has ended, and is rejected.
        await eventually(lambda: wire.connections > before, "the stream is asked for again")
        assert (await caller.call("raw.echo", {"text": "in a new session"})).reported == "ok"

        # The first may be found by the look around that a new session begins with; of the second one must hear.
        for name in ("first", "second"):
            assert (await caller.call("raw.grow", {"name": name})).reported == "ok"
            await eventually(lambda: is_listed(caller, f"raw.{name}"), f"{name} is listed")  # noqa: B023


async def is_listed(caller: Caller, name: str) -> bool:
    return name in [tool["name"] for tool in (await caller.list_tools())["tools"]]
